"""The keys of servers: start, stop and choose a server, and search its log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.model.counts import count_of
from workbench.model.errors import WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.run_options import PROCESS
from workbench.tui.cells import Row, paragraph_rows, rows_beside_label
from workbench.tui.controllers.base import Controller
from workbench.tui.formats import duration_text, enclose_nonempty_text
from workbench.tui.modals.ask import (
    Confirm,
    Question,
    running_bench_warning_rows,
    running_series_warning_rows,
)
from workbench.tui.modals.base import PickModal
from workbench.tui.modals.form import Field, Form, Values
from workbench.tui.modals.launch import (
    ConfirmStart,
    command_rows,
    external_server_rows,
    finding_rows,
    other_measurement_warning_rows,
)
from workbench.tui.pages.base import Keys, Page
from workbench.tui.pages.texts import log_finding_rows
from workbench.tui.panes.log import LogPane

if TYPE_CHECKING:
    from workbench.model.in_force import InForceReport
    from workbench.model.job import Job
    from workbench.model.plan import PlanDifference
    from workbench.model.server_run import ServedText, ServerStatus
    from workbench.server.external_servers import FoundServer
    from workbench.session.servers.endpoint import Endpoint
    from workbench.session.state import PlanView
    from workbench.tui.controllers import Controllers

MOST_MATCHES = 500  # lines that the session's search returns
NUMBER_CELLS = 9


def _stop_method_text(server: ServerStatus, grace_s: float, unit: str | None) -> str:
    """Return a sentence that says how Workbench stops `server`: by signals, by its launcher, or not
    at all. `grace_s` is the number of seconds between SIGTERM and SIGKILL. `unit` is the systemd
    unit that Workbench has installed for the server; None if there is none."""
    if server.others:
        return (
            f"Somebody else started {server.handle}: Workbench only ends following it, and "
            "leaves it running."
        )
    if server.run_as != PROCESS:
        text = f"Workbench asks {server.run_as} to stop the server"
        text += enclose_nonempty_text(": ", server.handle)
        if unit:
            text += ". The unit stays installed: d in the Log pane stops the server and removes it"
        return text
    return (
        "Workbench sends TERM to its processes, and KILL to those that still run after "
        f"{grace_s:.0f} s."
    )


def _launcher_and_handle_text(server: ServerStatus) -> str:
    if server.run_as == PROCESS:
        return ""
    return f"  {server.run_as}{enclose_nonempty_text(' ', server.handle)}"


def _other_server_text(pid_text: str, server: FoundServer) -> str:
    how, by = "by hand", pid_text
    if server.unit:
        how, by = f"by {server.launcher_name}", f"{server.unit}, {pid_text}"
    models = ", ".join(server.models[:5]) or server.note
    return f"{how:<13} {server.engine or '-':<9} {models}  {by}, port {server.port}"


def _job_list_text(job: Job) -> str:
    where = job.node or enclose_nonempty_text("(", job.reason, ")")
    left = "no time limit"
    if job.left_s is not None:
        left = f"{duration_text(job.left_s)} left"
    ours = job.run_id or f"not of Workbench: {job.name}"
    return f"{job.id:<8} {job.state:<9} {where:<12} {left:<13} {ours}"


class ServerController(Controller):
    def __init__(self, controllers: Controllers) -> None:
        super().__init__(controllers)
        self.searched, self.matches = "", tuple[tuple[int, str], ...]()  # in the whole log file
        self.rejected: WorkbenchError | None = None  # why the last start began no server

    async def start_server(self) -> None:
        """Show the plan with its command, and start the server if the user agrees."""
        state = self.state
        if state.plan is None:
            self.show_message("there is no plan to start", Level.WARN, "press p to load a preset")
            return
        untrusted_findings = self.session.plans.untrusted_findings()
        if untrusted_findings:
            await self._ask_trust_in_plan(untrusted_findings)
            return
        panes = self.services.panes
        before = panes.active

        def show_log_if_same_pane(_: object) -> None:
            if panes.active == before:
                self.go_to_pane("log")

        def start_server_in_background(_: ConfirmStart) -> None:
            # A start that is rejected leaves the user at the pane where the plan can be corrected.
            self.run_in_background(self._start_planned_server(), show_log_if_same_pane)

        await self.show_start_plan(state.plan, start_server_in_background, self.start_server)

    async def show_start_plan(
        self,
        plan: PlanView,
        on_consent: Callable[[ConfirmStart], None],
        reopen_page: Callable[[], Awaitable[None]],
        *,
        followup_text: str = "",
        answers_cost_text: str = "",
    ) -> None:
        """Show the plan with its command, and call `on_consent` with the page if the user agrees to
        start it. If the user chose the change that the reason against a start proposes, make this
        change and call `reopen_page`. `followup_text` says what follows the start; "" if nothing
        does. `answers_cost_text` says what comparing the answers adds; "" if they are not
        compared."""
        state = self.state
        server = state.server
        changes: Sequence[PlanDifference] = ()
        if state.live_server is not None:
            changes = self.run_or_show_error(self.session.servers.changes_against_running, ())
        elif server is not None and not server.outlived:
            server = None  # nothing of it is in the way

        def make_disturbance_rows(width: int) -> list[Row]:
            return [
                *other_measurement_warning_rows(state.host.measured_by, width),
                *running_series_warning_rows(self.state, width),
            ]

        page = ConfirmStart(
            plan,
            server,
            changes,
            make_disturbance_rows,
            next_step_text=followup_text,
            answers_cost_text=answers_cost_text,
        )

        async def start_or_fix_plan(yes: bool | None) -> None:
            if yes:
                self.services.clear_message()  # an error of the start before is not about this one
                on_consent(page)
            elif yes is False and page.problem is not None:
                change = page.problem.changes[0]
                self.run_or_show_error(
                    lambda: self.session.plans.set_flag(change.name, str(change.value))
                )
                await reopen_page()

        await self.app.push_screen(page, start_or_fix_plan)
        if not page.rejected:
            self.run_in_background(
                self.session.servers.find_start_problem(),
                page.show_problem,
                exclusive_group="problem",
            )
            self.run_in_background(
                self.session.servers.find_start_warnings(),
                page.show_warnings,
                exclusive_group="warnings",
            )

    def restart_previous_server(self) -> None:
        """Start again what ran before a restart failed."""
        back = self.state.goes_back_to
        if back is None:
            self.show_message(
                "no restart has failed, so there is nothing to go back to",
                next_step="press s to start the plan",
            )
            return
        self.services.clear_message()
        self.show_message(f"starting again what ran before: the plan of run {back}")
        self.run_in_background(
            self.session.servers.restart_replaced_server(), lambda _: self.go_to_pane("log")
        )

    async def _start_planned_server(self) -> None:
        self.rejected = None
        try:
            await self.session.servers.start()
        except WorkbenchError as error:
            self.rejected = error
            raise

    async def _ask_trust_in_plan(self, untrusted_findings: Sequence[Finding]) -> None:
        """Show the parts of the plan that run programs from outside Workbench or give the server
        power over its host. If the user agrees, trust these parts and open the page before the
        start of the server."""
        plan = self.state.plan
        title, about = "Trust this server?", "These options give the server power over its host:"
        if plan is None or plan.plan.stranger:
            title = "Trust this preset?"
            about = (
                "This preset did not come with Workbench, and it runs more than its engine's "
                "usual program:"
            )

        def make_question_rows(width: int) -> list[Row]:
            rows = [
                *paragraph_rows(about, width, "warn"),
                (),
                *finding_rows(untrusted_findings, width),
                (),
            ]
            if plan is not None and plan.start_command:
                rows += command_rows(plan.start_command, width)
            return rows

        async def trust_and_start(yes: bool | None) -> None:
            if yes:
                self.run_or_show_error(self.session.plans.trust_preset_parts)
                await self.start_server()

        box = Confirm(title, make_question_rows, yes="trust it", no="leave it", default=False)
        await self.app.push_screen(box, trust_and_start)

    async def stop_server(self) -> None:
        server, measured_by = self.state.server, self.state.host.measured_by
        if server is None or not server.may_still_be_running:
            self.show_message("no server that Workbench started is running on this host")
            return
        if self.state.host.link != "connected":
            lost = f"{self.state.host.name} cannot be reached, so {server.run_id} cannot be stopped"
            self.show_message(
                lost, Level.WARN, "wait until the connection is back, then press x again"
            )
            return
        # loads modules that the first frame does not need
        from workbench.server.supervisor import STOP_GRACE_S
        from workbench.session.servers import adoption

        unit = adoption.installed_unit_name(self.session, server.run_id)

        def make_question_rows(width: int) -> list[Row]:
            about = f"{server.run_id}: {server.engine} {server.model} on {server.host}"
            about += enclose_nonempty_text(", pid ", server.pid)
            if server.outlived:
                about += f"; {count_of(server.outlived, 'process', 'processes')} outlived it"
            how = _stop_method_text(server, STOP_GRACE_S, unit)
            rows = [
                *other_measurement_warning_rows(measured_by, width),
                *running_bench_warning_rows(self.state, width),
            ]
            return [*rows, *paragraph_rows(about, width), *paragraph_rows(how, width, "dim")]

        def stop_if_confirmed(yes: bool | None) -> None:
            if yes:
                self.run_in_background(self.session.servers.stop(server.run_id))

        box = Confirm(
            "Stop the server",
            make_question_rows,
            yes="stop it",
            no="leave it running",
            default=measured_by is None,
        )
        await self.app.push_screen(box, stop_if_confirmed)

    async def uninstall_unit(self) -> None:
        """Remove the systemd unit that Workbench installed when it started the selected run. Ask
        the user for consent, and stop the server first."""
        from workbench.session.servers import (
            adoption,  # loads modules that the first frame does not need
        )

        server, measured_by = self.state.server, self.state.host.measured_by
        next_step = "press o in the Log pane to choose a run; x stops a server"
        if server is None:
            self.show_message("no run is selected", next_step=next_step)
            return
        unit = adoption.installed_unit_name(self.session, server.run_id)
        if unit is None:
            what = f"the start of run {server.run_id} has installed no unit"
            self.show_message(what, next_step=next_step)
            return
        title, how = "Remove the unit", f"Workbench disables {unit}, and removes"
        runs = server.has_own_processes
        if runs:
            title = "Stop the server and remove its unit"
            how = f"Workbench stops {unit}, disables it, and removes"

        def make_question_rows(width: int) -> list[Row]:
            about = f"{server.engine} {server.model} on {server.host}, run {server.run_id}"
            rows: list[Row] = []
            if runs:
                rows = [
                    *other_measurement_warning_rows(measured_by, width),
                    *running_bench_warning_rows(self.state, width),
                ]
            again = "its file and its environment. A start installs it again."
            return [
                *rows,
                *paragraph_rows(about, width),
                *paragraph_rows(f"{how} {again}", width, "dim"),
            ]

        def uninstall_if_confirmed(yes: bool | None) -> None:
            if yes:
                self.run_in_background(
                    adoption.stop_server_and_remove_unit(self.session, server.run_id),
                    self._report_unit_removal,
                )

        await self.app.push_screen(
            Confirm(title, make_question_rows, yes="remove it", no="leave it"),
            uninstall_if_confirmed,
        )

    def _report_unit_removal(self, paths: Sequence[str]) -> None:
        self.show_message(
            enclose_nonempty_text("removed ", ", ".join(paths)) or "the unit was removed already"
        )

    def restart_server(self) -> None:
        """Show the command that restarts the selected server through its launcher, and run it if
        the user agrees."""
        from workbench.session.servers import (
            adoption,  # loads modules that the first frame does not need
        )

        server = self.state.server_with_process
        if server is None:
            self.show_message("no running server is selected")
        else:
            self.run_in_background(
                adoption.preview_restart_command(self.session, server.run_id),
                lambda shown: self._ask_restart(server, shown),
            )

    def _ask_restart(self, server: ServerStatus, command_text: str) -> None:
        from workbench.session.servers import adoption

        def make_question_rows(width: int) -> list[Row]:
            rows = [
                *other_measurement_warning_rows(self.state.host.measured_by, width),
                *running_bench_warning_rows(self.state, width),
            ]
            about = (
                f"{server.engine} {server.model} loads its model again; run {server.run_id} "
                "goes on."
            )
            return [
                *rows,
                *paragraph_rows(f"$ {command_text}", width, "strong", "    "),
                *paragraph_rows(about, width, "dim"),
            ]

        def restart_if_confirmed(yes: bool | None) -> None:
            if yes:
                self.run_in_background(adoption.restart_in_place(self.session, server.run_id))

        self.app.push_screen(
            Confirm(
                "Restart the server", make_question_rows, yes="restart it", no="leave it running"
            ),
            restart_if_confirmed,
        )

    def pick_server_run(self) -> None:
        self.run_in_background(
            self.session.servers.find_external_servers,
            self._show_server_run_list,
            exclusive_group="runs",
        )

    def _show_server_run_list(self, other_servers: Sequence[FoundServer]) -> None:
        """Show a list of all server runs, from which the user selects one. `other_servers`, which
        Workbench did not start, are at the end of the list."""
        state = self.state
        # the link is slow, and a form was opened meanwhile
        if self.app.screen is not self.services.screen:
            return
        if not (state.servers or other_servers):
            self.show_message(
                "no server has run on this host yet", next_step="press s to start the plan"
            )
            return
        by_hand = {f"pid {o.pid}": o for o in other_servers}
        items = [
            (
                s.run_id,
                f"{s.run_id}  {s.state_word:<13} {s.engine:<9} {s.model}{_launcher_and_handle_text(s)}",
                "text",
            )
            for s in reversed(state.servers)
        ]
        items += [(name, _other_server_text(name, o), "dim") for name, o in by_hand.items()]

        def select_or_show_server(name: str | None) -> None:
            if name in by_hand:
                self._open_other_server_page(by_hand[name])
            elif name:
                self.run_in_background(self.session.servers.select(name))

        self.app.push_screen(
            PickModal("Server runs", items, chosen=state.run_id or ""), select_or_show_server
        )

    def _open_other_server_page(self, server: FoundServer) -> None:
        """Open the page of a server that Workbench did not start."""
        keys: Keys = {}
        if server.unit:
            keys = {"t": ("Follow it", lambda: self._adopt_server(server))}
        page = Page(
            "Not started by Workbench", lambda w: external_server_rows(server, w), lambda: keys
        )
        self.services.pages.open(page)

    def pick_run_by_job(self) -> None:
        """Show the user's batch jobs on the host with state, node and time left. Enter selects the
        server run that the job executes."""

        async def read_jobs() -> Sequence[Job]:
            from workbench.server import jobs  # not for the first frame

            return await jobs.read_jobs(self.session.host, self.state.servers)

        self.run_in_background(read_jobs(), self._show_job_list, exclusive_group="jobs")

    def _show_job_list(self, jobs: Sequence[Job]) -> None:
        # the link is slow, and a form was opened meanwhile
        if self.app.screen is not self.services.screen:
            return
        if not jobs:
            self.show_message("you have no batch jobs on this host")
            return
        runs = {job.id: job.run_id for job in jobs}
        items = []
        for job in jobs:
            role = "dim"
            if job.run_id:
                role = "text"
            items.append((job.id, _job_list_text(job), role))

        def select_run_of_job(job_id: str | None) -> None:
            if job_id is None:
                return
            run_id = runs[job_id]
            if run_id:
                self.run_in_background(self.session.servers.select(run_id))
            else:
                self.show_message(f"Workbench did not start job {job_id}")

        self.app.push_screen(PickModal("Your jobs", items), select_run_of_job)

    async def show_endpoint_entry(self) -> None:
        """Show the selected server's entry for the endpoint file of the evaluation library
        "verifiers". Ask whether to copy the address, to copy the entry, or to write the entry into
        the file."""
        from workbench.session.servers import endpoint as endpoints  # not for the first frame

        server = self.state.ready_server
        if server is None:
            self.show_message(
                "no server that is READY is selected",
                next_step="press s to start a server, or o to choose one",
            )
            return
        found = endpoints.make_endpoint_of_run(self.session, server.run_id)

        def make_endpoint_rows(width: int) -> list[Row]:
            facts = (
                ("address", f"{found.url} on {found.host}"),
                ("model", found.model),
                ("key", found.api_key_advice),
            )
            rows: list[Row] = []
            for label, said in facts:
                if said:
                    lines = paragraph_rows(said, width - 9)
                    rows += rows_beside_label(f"{label:<9}", "dim", lines)
            return [*rows, (), *paragraph_rows(found.entry_line, width, "strong", "  ")]

        async def copy_or_write_endpoint(what: str | None) -> None:
            if what == "write":
                await self._ask_and_write_endpoint_entry(found)
            elif what == "address":
                self.copy_text(what, found.url)
            elif what == "entry":
                self.copy_text(what, found.entry_line)

        items = [
            ("address", "copy the address", "text"),
            ("entry", "copy the entry of the endpoint file", "text"),
            ("write", f"write the entry into {found.file} on {found.host} …", "text"),
        ]
        box = Question(
            "Endpoint of the server",
            make_endpoint_rows,
            items,
            str,
            keys="enter choose   esc cancel",
            wide=True,
        )
        await self.app.push_screen(box, copy_or_write_endpoint)

    async def _ask_and_write_endpoint_entry(self, found: Endpoint) -> None:
        """Ask for the path of the endpoint file and the name of the entry, and write the entry
        `found` into that file on the host."""
        from workbench.session.servers import endpoint as endpoints

        fields = (
            Field("file", "file", found.file, "path on the host", wide=True),
            Field("name", "name", found.name, "as `vf-eval -m` takes it", wide=True),
        )

        async def write_endpoint_entry(values: Values) -> None:
            entry = replace(
                found,
                file=values["file"].strip() or found.file,
                name=values["name"].strip() or found.name,
            )
            self.show_message(
                await endpoints.write_endpoint_and_describe(self.session, entry),
                next_step=entry.api_key_advice or None,
            )

        title = f"Write the endpoint on {found.host}"
        await self.app.push_screen(
            Form(
                title,
                fields,
                accept="write",
                submit=write_endpoint_entry,
                doing="writing",
                label_cells=8,
            )
        )

    def _adopt_server(self, server: FoundServer) -> None:
        """Add a server that Workbench did not start to the list of runs, and follow its state and
        log. The server is identified by its systemd unit or container."""
        from workbench.session.servers import adoption

        assert server.unit is not None
        self.services.pages.close_all()
        following = adoption.adopt_and_return_run_id(
            self.session, server.launcher_name, server.unit, server.launcher_options_to_adopt
        )
        self.run_in_background(following, lambda _: self.go_to_pane("log"))

    def open_settings_in_force(self) -> None:
        """Open the page that compares each setting of the selected server's plan with the value
        that the server reports or that its process shows."""
        from workbench.report.in_force_blocks import settings_in_force_blocks
        from workbench.tui.block_rows import block_rows

        def open_in_force_page(report: InForceReport) -> None:
            self.services.pages.open(
                Page(
                    "Asked and in force",
                    lambda width: block_rows(settings_in_force_blocks(report), width),
                )
            )

        self.run_in_background(
            self.session.servers.read_settings_in_force(),
            open_in_force_page,
            exclusive_group="in force",
        )

    # the log
    def go_to_next_log_error(self) -> None:
        if not self.pane_of_type(LogPane).move_to_next_error():
            self.show_message("the log contains no error")

    def search_log(self, text: str) -> None:
        """Move the Log pane to the next line that contains `text`, and count the lines with `text`
        in the whole log file."""
        pane = self.pane_of_type(LogPane)
        if not text:
            pane.move_to_line_with("")
            return
        is_repeated = pane.hit is not None and text == self.searched
        hit = pane.move_to_line_with(text, from_last_match=is_repeated)
        self.searched = text
        self.run_in_background(
            self.session.servers.find_numbered_log_lines(text),
            lambda lines: self._report_log_matches(hit, lines),
            exclusive_group="log search",
        )

    def _report_log_matches(
        self, is_match_in_pane: bool, numbered_lines: Sequence[tuple[int, str]]
    ) -> None:
        self.matches = tuple(numbered_lines)
        if not numbered_lines:
            self.show_message(f"“{self.searched}” is not in the log", Level.WARN)
            return
        n_lines = count_of(len(numbered_lines), "line")
        if len(numbered_lines) >= MOST_MATCHES:
            n_lines += " or more"
        if is_match_in_pane:
            self.show_message(
                f"“{self.searched}”: found in {n_lines} of the whole log",
                next_step="press enter for the next of these lines, or esc, then m to list all of "
                "them",
            )
        else:
            self.show_message(
                f"“{self.searched}”: found in {n_lines} of the log file, none of which is in the "
                "Log pane",
                next_step="press m in the Log pane to list these lines",
            )

    def _served_text_findings(self) -> list[Finding]:
        """Return the findings about the text of the selected server."""
        server = self.state.server
        if server is None:
            return []
        return [f for f in server.findings if f.code.startswith("text.")]

    def probe_served_text(self) -> None:
        """Ask the selected server for text again, and say whether its text is an answer."""
        server = self.state.ready_server
        if server is None:
            self.show_message(
                "no server that is READY is selected", next_step="press o to choose one"
            )
            return

        def report_probed_text(text: ServedText) -> None:
            level = Level.INFO
            if text.problem:
                level = Level.ERROR
            self.show_message(f"{server.title}: {text.summary}", level)

        self.show_message(f"asking {server.title} for text …")
        self.run_in_background(
            self.session.servers.request_text_of_server(server.run_id), report_probed_text
        )

    def show_log_findings(self) -> None:
        """Open the page of those log lines of the server whose cause Workbench knows. Each line has
        its number, its cause and its fix."""

        def make_finding_rows(width: int) -> list[Row]:
            found = [*self._served_text_findings(), *self.session.servers.log_findings()]
            return log_finding_rows(found, width) or paragraph_rows(
                "No line of this log is known.", width, "dim"
            )

        def page_keys() -> Keys:
            found = [f for f in self.session.servers.log_findings() if f.changes]
            if not found:
                return {}
            test = ("Test a change (A/B)", lambda: self._start_experiment_of_log_finding(found))
            return {
                "f": ("Fix in the plan", lambda: self._fix_log_finding_in_plan(found)),
                "t": test,
            }

        self.services.pages.open(Page("Known lines of the log", make_finding_rows, page_keys))

    async def _fix_log_finding_in_plan(self, found: list[Finding]) -> None:
        """Apply the fix of a finding about the server's log to the plan. If `found` has several
        findings, ask which one to fix."""
        run_id = self.state.run_id

        def apply_fix_to_run_plan(finding: Finding) -> None:
            if run_id is not None:
                plan = self.session.servers.supervisor.record(run_id).plan
                done = self.run_or_show_error(
                    lambda: self.session.plans.apply_fix_and_describe(finding, plan)
                )
                if done:
                    self.show_message(
                        f"changed in the plan: {done} (press u to undo)",
                        next_step="press s to start the plan",
                    )

        await self.controllers.advice.pick_and_use_finding(
            "Fix which finding in the plan?", found, apply_fix_to_run_plan
        )

    def _start_experiment_of_log_finding(self, found: list[Finding]) -> None:
        """Test the change of a finding about the server's log in an A/B experiment, in which A is
        the newest result of the selected run. If `found` has several findings, ask which one to
        test."""
        run_id = self.state.run_id
        if run_id is not None:
            self.run_in_background(
                self.session.advisor.advise_on_run(run_id),
                lambda advised: self.controllers.advice.pick_and_test_finding(advised, found),
            )

    def list_log_matches(self) -> None:
        if not self.matches:
            self.show_message(
                "there is no search of the log to continue",
                next_step="press / in the Log pane to search",
            )
            return

        def make_match_rows(width: int) -> list[Row]:
            made: list[Row] = []
            for number, text in self.matches:
                made += rows_beside_label(
                    f"{number:>7}  ", "dim", paragraph_rows(text, max(20, width - NUMBER_CELLS))
                )
            return made

        self.services.pages.open(Page(f"“{self.searched}” in the log", make_match_rows))
