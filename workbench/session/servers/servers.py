"""The servers of the host: starting, following and stopping them, and finding servers that were
started elsewhere."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from workbench import engines
from workbench.hosts.base import is_cluster
from workbench.model.counts import count_of
from workbench.model.errors import BenchError, NotTrusted, PlanError, ServerError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.plan import plan_differences
from workbench.model.run_options import PROCESS
from workbench.model.secrets import MASK, mask_command, mask_secrets_of_plan
from workbench.model.server_run import EngineMetrics, LogBatch, ServerState, ServerStatus

if TYPE_CHECKING:
    from workbench.model.flags import FlagRow
    from workbench.model.gpu import Telemetry
    from workbench.model.in_force import InForceReport
    from workbench.model.plan import Command, LaunchPlan, Node, PlanDifference
    from workbench.model.server_run import ServedText
    from workbench.server.cluster_supervisor import ClusterSupervisor
    from workbench.server.external_servers import ExternalServers, FoundServer
    from workbench.server.log_lines import LogRing
    from workbench.server.supervisor import PreparedServer, Supervisor
    from workbench.session.plans.free_memory import MemoryShortage
    from workbench.session.plans.plan_editor import PlanEditor
    from workbench.session.plans.plans import Plans
    from workbench.session.plans.presets import Presets
    from workbench.session.servers.walltime import WalltimeWarnings
    from workbench.session.state_holder import StateHolder

NoteRunId = Callable[[str], Awaitable[None]]  # is called with the id of a run

MAX_SHOWN_RUNS = 50  # newest runs in the state
POWER_OVER_HOST_TEXT = "the server would have power over its host"
_STARTING_TEXT = "starting"
_SHOW_ERROR_STEP = "press e in the Log pane to see the first error"


class Servers:
    """Starts, follows and stops the servers of this host. The functions of `on_ready` and
    `on_ended` are called with a server's status when the server becomes READY or ends. The
    functions of `before_end` are awaited with a run id before that run is stopped. The functions of
    `on_engine_reading` are called with a server's run id or URL and each reading of its engine's
    counters that a benchmark makes."""

    def __init__(self, core: StateHolder, presets: Presets, plans: Plans) -> None:
        self._core, self._presets, self._plans = core, presets, plans
        self._supervisor: Supervisor | None = None
        self._reserved: list[str] = []
        self._start = asyncio.Lock()  # held while a run is being started
        self._external: ExternalServers | None = None
        self._walltime: WalltimeWarnings | None = None  # of servers whose launcher will end them
        self._started_plans: dict[str, LaunchPlan] = {}  # of this session's runs, with secrets
        # the run that was stopped for a start which then failed without a run of its own
        self._not_replaced: str | None = None
        self.on_ready: list[Callable[[ServerStatus], None]] = []
        self.on_ended: list[Callable[[ServerStatus], None]] = []
        self.before_end: list[Callable[[str], Awaitable[None]]] = []
        self.on_engine_reading: list[Callable[[str, EngineMetrics], None]] = []

    @property
    def supervisor(self) -> Supervisor:
        """The supervisor of the servers on the session's host or cluster, made at the first use."""
        if self._supervisor is None:
            self._supervisor = self._make_supervisor()
        return self._supervisor

    def _make_supervisor(self) -> Supervisor:
        host = self._core.host
        if is_cluster(host):
            from workbench.server.cluster_supervisor import ClusterSupervisor

            return ClusterSupervisor(host, self._show_server_event)
        from workbench.server.supervisor import Supervisor

        return Supervisor(host, self._show_server_event, self._core.beat)

    def _node_commands_on_cluster(self, editor: PlanEditor) -> Sequence[tuple[Node, Command]]:
        """Return the nodes with the commands that start the editor's plan on them, if the session's
        host is a cluster. () on other hosts, and for a plan without nodes."""
        if not self._on_cluster:
            return ()
        return editor.node_commands()

    def _cluster_supervisor(self) -> ClusterSupervisor:
        """Return the supervisor of the session's host, which is a cluster."""
        from workbench.server.cluster_supervisor import ClusterSupervisor

        assert isinstance(self.supervisor, ClusterSupervisor)
        return self.supervisor

    @property
    def _on_cluster(self) -> bool:
        return is_cluster(self._core.host)

    async def close(self) -> None:
        """Stop following the servers, which keep running."""
        if self._walltime is not None:
            self._walltime.close()
        if self._supervisor is not None:
            await self._supervisor.close()
            self._supervisor = None

    # ---- what happens on the host

    def _show_server_event(self, event: ServerStatus | LogBatch) -> None:
        if isinstance(event, LogBatch):
            if event.run_id == self._core.state.run_id:
                self._core.update(log_revision=self._core.state.log_revision + 1)
            return
        before = {status.run_id: status for status in self._core.state.servers}.get(event.run_id)
        self._show_servers()
        self._schedule_walltime_warnings(event)
        plan = self.supervisor.record(event.run_id).plan
        was_ready = False if before is None else before.is_ready
        if before is None:
            self._presets.register_preset_file(plan)
        if event.is_ready and not was_ready:
            self._presets.remember_variables(event.run_id, plan)
        if before is None:
            return
        if before.state != event.state:
            self._announce_state_change(before, event)
        elif event.state.is_alive:
            self._report_new_findings(before, event)

    def forward_gpu_reading(self, telemetry: Telemetry) -> None:
        """Give the supervisor a reading of the host's GPUs. From it, the supervisor sees whether a
        starting server only spins."""
        if self._supervisor is not None and not is_cluster(self._core.host):
            self._supervisor.record_gpu_samples(telemetry.gpus)

    def _schedule_walltime_warnings(self, status: ServerStatus) -> None:
        """Schedule the warnings before a launcher ends this server, if it will."""
        if self._walltime is None:
            if status.ends_unix_s is None:
                return
            from workbench.session.servers.walltime import WalltimeWarnings

            self._walltime = WalltimeWarnings(self._core, self.supervisor.host_unix_time_s)
        self._walltime.schedule_warnings(status)

    def _announce_state_change(self, before: ServerStatus, now: ServerStatus) -> None:
        was_not_ready = before.state in (ServerState.STARTING, ServerState.UNKNOWN)
        if now.state is ServerState.READY and was_not_ready:
            if before.ready_unix_s is None:
                self._report_ready(now)
            self._core.spawn(self._show_parts_missing_from_preset(now))
            for hear in self.on_ready:
                hear(now)
        elif now.state.has_ended:
            if now.state is not ServerState.STOPPED:
                self._report_failure(now)
            self._plans.show_unapplied_preset_parts(None, ())
            for hear in self.on_ended:
                hear(now)

    def _report_ready(self, status: ServerStatus) -> None:
        """Report that a server has become READY. If its text is no answer, also report why."""
        from workbench.server.start_times import format_start_duration

        after = format_start_duration(status, self.supervisor.statuses())
        self._core.record_command(f"# {status.run_id} is {status.state_word.upper()}{after}")
        text = status.suspect_text
        if text is None:
            return
        self._core.record_command(f"# {status.run_id}: {text.summary}")
        self._core.notify(
            Level.ERROR,
            f"{status.title} is READY?: {text.summary}",
            "i in the Log pane says what to check; a asks the server again",
        )

    def _report_failure(self, now: ServerStatus) -> None:
        """Report that a server has ended by itself, with the next step."""
        fixes = [finding.fix for finding in now.findings[:1]]
        next_step = next(filter(None, fixes), _SHOW_ERROR_STEP)
        state = self._core.state
        is_selected = now.run_id == state.run_id
        if is_selected and state.goes_back_to:
            next_step = _add_restart_to_next_step(next_step, state.goes_back_to)
        text = f"{now.engine} {now.state}: {now.reason or 'the log has the cause'}"
        self._core.notify(Level.ERROR, text, next_step)
        if is_selected:  # its log is on the screen
            self._core.spawn(self.supervisor.mark_log_as_read(now.run_id))

    def _report_new_findings(self, before: ServerStatus, now: ServerStatus) -> None:
        """Notify the user of the first new error or warning that the log of a live server shows.
        `before` and `now` are two successive statuses of the server."""
        known = {finding.code for finding in before.findings}
        for new in now.findings:
            if new.level not in (Level.ERROR, Level.WARN) or new.code in known:
                continue
            if not new.code.startswith("text."):
                source = "start" if new.code == "start.spinning" else "log"
                self._core.notify(Level.WARN, f"{source} of {now.title}: {new.text}", new.fix)
                return

    def _show_servers(self) -> None:
        self._show_servers_and_select(self._core.state.run_id)

    def _show_servers_and_select(self, run_id: str | None, **changes: Any) -> None:
        """Show the servers and the selected run `run_id` in the session's state. `changes` are
        further fields of the state to change."""
        statuses = self.supervisor.statuses()
        self._core.update(
            run_id=run_id,
            servers=statuses[:MAX_SHOWN_RUNS],
            goes_back_to=self._run_to_go_back_to(run_id, statuses),
            **changes,
        )

    def _run_to_go_back_to(
        self, run_id: str | None, statuses: Sequence[ServerStatus]
    ) -> str | None:
        """Return the run to go back to if `run_id` failed before it was READY: the run that was
        stopped for it. Return `run_id` itself if it was stopped and the new server never became a
        run. None in all other cases, and if the earlier run is not known any more."""
        known = {status.run_id: status for status in statuses}
        if run_id not in known:
            return None
        selected = known[run_id]
        if run_id == self._not_replaced and not selected.may_still_be_running:
            return run_id
        failed = selected.state in (ServerState.FAILED, ServerState.CRASHED)
        if not failed or selected.ready_unix_s is not None:
            return None
        earlier = self.supervisor.record(run_id).replaces
        return earlier if earlier in known else None

    def _show_selected_run_and_log(self, run_id: str) -> None:
        self._show_servers_and_select(run_id, log_revision=self._core.state.log_revision + 1)

    async def list_runs_and_select_one(self) -> None:
        """List the host's server runs in the session's state. If no run is selected, select the
        newest live one. If none is alive and the newest run is a restart that failed, select that
        one, so that the user can start the earlier server again."""
        if await self._lacks_run_directories():
            self._core.update(servers_read=True)
            return
        statuses = await self.supervisor.runs()
        self._show_servers()
        try:
            if self._core.state.run_id is None:
                await self._select_run_to_follow(statuses)
        finally:
            # only now: a screen that has read the servers and shows none says "no server"
            self._core.update(servers_read=True)

    async def _select_run_to_follow(self, statuses: Sequence[ServerStatus]) -> None:
        """Select the newest live run, or else the newest run if it is a restart that failed."""
        for status in statuses:
            if status.state.is_alive:
                await self.select(status.run_id)
                return
        if not statuses:
            return
        newest = statuses[0].run_id
        if self._run_to_go_back_to(newest, statuses):
            await self.select(newest)

    async def _lacks_run_directories(self) -> bool:
        """Return whether this machine has no directory of a run, so that the supervisor (1.3 MiB)
        need not be loaded. False on another host, which would have to be asked. Also False if the
        supervisor is loaded, or if the directory cannot be read."""
        host = self._core.host
        if self._supervisor is not None or not host.is_local or is_cluster(host):
            return False
        try:
            return not os.listdir(f"{await host.state_dir()}/runs")  # noqa: PTH208  (as names)
        except FileNotFoundError:
            return True
        except OSError:  # the supervisor says why
            return False

    async def list_servers_started_elsewhere(self) -> None:
        """List the servers that another Workbench or a command has started since the last call, and
        notify the user."""
        if not self._core.host.connected:
            return
        if await self._lacks_run_directories() or not await self.supervisor.has_unread_runs():
            return
        known: set[str | None] = {status.run_id for status in self._core.state.servers}
        await self.list_runs_and_select_one()
        known.add(self._core.state.run_id)
        for status in self._core.state.servers:
            if status.state.is_alive and status.run_id not in known:
                text = f"{status.engine} {status.model} was started elsewhere: run {status.run_id}"
                self._core.notify(Level.INFO, text, "press o in the Log pane to choose that run")

    async def find_external_servers(self) -> Sequence[FoundServer]:
        """Return the running servers of the host that no Workbench started. () on a simulated
        host."""
        if self._core.state.host.simulated is not None:
            return ()
        from workbench.server.external_servers import ExternalServers, ports_of_live_servers

        own: Sequence[int] = ()
        if self._supervisor is not None:
            own = ports_of_live_servers(self._supervisor.statuses())
        if self._external is None:
            self._external = ExternalServers(self._core.host)
        return await self._external.find(own)

    def publish_engine_reading(self, server: str, reading: EngineMetrics) -> None:
        for hear in self.on_engine_reading:
            hear(server, reading)

    # ---- the selected run

    async def select(self, run_id: str) -> None:
        """Select a run and follow its log. If no plan is loaded, the plan of the run becomes the
        plan under edit."""
        await self.supervisor.load_log(run_id)
        self._show_selected_run_and_log(run_id)
        if not self.supervisor.status(run_id).state.is_alive:
            await self.supervisor.mark_log_as_read(run_id)
        if self._plans.current is not None:
            return
        plan = self.supervisor.record(run_id).plan
        # A plan with a masked secret cannot be started again.
        if MASK not in repr(plan):
            self._plans.edit_plan(plan, plan.preset_id or f"{plan.engine} as run {run_id}")
            self._core.spawn(self._plans.locate_engine())

    def log_of_selected_run(self) -> LogRing | None:
        """Return the log of the selected run. None if no run is selected or its directory was
        removed."""
        run_id = self._core.state.run_id
        if self._supervisor is None or run_id is None:
            return None
        try:
            return self._supervisor.log(run_id)
        except ServerError:  # the run's directory has been removed
            return None

    def log_findings(self) -> tuple[Finding, ...]:
        """Return the findings about the selected run's log; () if no run is selected."""
        run_id = self._core.state.run_id
        if self._supervisor is None or run_id is None:
            return ()
        return self._supervisor.findings_in_log(run_id)

    async def read_settings_in_force(self) -> InForceReport:
        """Return for each setting in the plan of the selected run which value the running server
        really has. Raises ServerError if no run is selected."""
        return await self.supervisor.read_settings_in_force(self._selected_run_id())

    def _selected_run_id(self) -> str:
        if self._core.state.run_id is None:
            raise ServerError(
                "no run is selected",
                host=self._core.host.name,
                next_step="press o in the Log pane to choose a run",
            )
        return self._core.state.run_id

    async def find_numbered_log_lines(self, text: str) -> Sequence[tuple[int, str]]:
        """Search the whole log file of the selected run, ignoring case. Return the line number and
        the line of the first 500 matches. Raises ServerError if no run is selected."""
        return [
            (m.number, m.line)
            for m in await self.supervisor.search_log(self._selected_run_id(), text)
        ]

    def changes_against_running(self) -> Sequence[PlanDifference]:
        """Return the differences between the plan of the selected live run and the plan under edit.
        () if there is no such run or no plan."""
        running, editor = self.running_plan(), self._plans.current
        if running is None or editor is None:
            return ()
        return plan_differences(running, mask_secrets_of_plan(editor.plan))

    def running_plan(self) -> LaunchPlan | None:
        """Return the plan of the selected live run, with its secrets masked. None if there is no
        such run."""
        live = self._core.state.live_server
        if live is None:
            return None
        return self.supervisor.record(live.run_id).plan

    def changed_flags_of_running_server(self) -> Sequence[FlagRow]:
        """Return the flags and variables in which the selected live run differs from its engine's
        defaults, the edited ones first. () if there is no such run."""
        running, editor = self.running_plan(), self._plans.current
        if running is None:
            return ()
        catalog = engines.get_engine(running.engine).catalog(running.engine_version)
        base = None
        if editor is not None and editor.base.preset_id == running.preset_id:
            base = editor.base
        return engines.list_changed_flags(running, catalog, base)

    async def selected_or_ready_run_id(self) -> str:
        """Return the id of the selected run, or else of the newest READY run. Raises ServerError if
        there is neither."""
        if self._core.state.run_id is not None:
            return self._core.state.run_id
        for status in await self.supervisor.runs():
            if status.state is ServerState.READY:
                return status.run_id
        raise ServerError(
            "no server is READY on this host, and this command needs one to put under load",
            host=self._core.host.name,
            next_step="start a server with `workbench start PRESET --wait`, or give --url URL",
        )

    async def ready_run_id(self, run_id: str | None) -> str:
        """Return `run_id`, or if it is None the id of the selected run or else of the newest READY
        run. Raises BenchError if that run is not READY, and ServerError if there is no run."""
        run_id = run_id or await self.selected_or_ready_run_id()
        state = self.supervisor.status(run_id).state
        if state is not ServerState.READY:
            raise BenchError(
                f"run {run_id} is {state}, not READY",
                host=self._core.host.name,
                next_step="give a READY run; `workbench servers` lists the runs",
            )
        return run_id

    async def process_parts_missing_from_preset(self, status: ServerStatus) -> tuple[str, ...]:
        """Return as texts what the server of a run lacks of its preset: the limit of open files, or
        the warm-up. () if nothing is missing or the preset no longer exists."""
        from workbench.session.plans.preset_process_parts import unapplied_process_parts

        if status.preset_id is None or not status.alive:
            return ()
        try:
            preset = self._presets.get(status.preset_id)
            run_dir = f"{await self.supervisor.runs_dir()}/{status.run_id}"
            return await unapplied_process_parts(self._core.host, preset, status, run_dir)
        except WorkbenchError:  # the preset no longer exists, or the link was lost
            return ()

    async def _show_parts_missing_from_preset(self, status: ServerStatus) -> None:
        """Show in the session's state what the server of a run lacks of the preset from which it
        was started."""
        self._plans.show_unapplied_preset_parts(
            status.preset_id, await self.process_parts_missing_from_preset(status)
        )

    # ---- start and stop

    @contextmanager
    def reserve_servers(self, holder: str) -> Iterator[None]:
        """Reserve the servers for the caller while the block runs, so that nothing else starts,
        stops or loads them. `holder` names the caller in messages, for example "an experiment"."""
        self._reserved.append(holder)
        try:
            yield
        finally:
            self._reserved.remove(holder)

    def check_not_reserved(self) -> None:
        """Raise ServerError if an experiment or a sweep has reserved the servers."""
        if self._reserved:
            raise ServerError(
                f"{self._reserved[0]} is running and needs the server",
                host=self._core.host.name,
                next_step=f"wait until {self._reserved[0]} has ended, or cancel it; results "
                "measured so far are kept",
            )

    def require_startable_plan(self, plan: LaunchPlan, editor: PlanEditor) -> None:
        """Raise PlanError if the engine would reject the plan or Workbench cannot start it. Raises
        NotTrusted if the plan's preset runs programs that the user has not agreed to."""
        foreign = editor.untrusted_preset_parts()
        if foreign:
            reason = POWER_OVER_HOST_TEXT
            if plan.stranger:
                reason = "the preset is not from Workbench and runs more than its engine"
            raise NotTrusted(
                f"{reason}: {'; '.join(part.text for part in foreign)}",
                next_step="look at the plan with `workbench plan`, then start it with --trust",
                findings=[part.finding_with_fix() for part in foreign],
            )
        errors = [f for f in editor.findings() if f.level is Level.ERROR]
        if errors:
            raise PlanError(
                f"the plan has {count_of(len(errors), 'error')}: {errors[0].text}",
                next_step=errors[0].fix or "correct the flag, then start again",
                findings=errors,
            )
        has_all_nodes = self._on_cluster or self._core.state.host.simulated is not None
        if len(plan.nodes) > 1 and not has_all_nodes:
            names = ", ".join(node.name for node in plan.nodes)
            raise PlanError(
                f"this plan runs on {len(plan.nodes)} nodes ({names}), but Workbench starts "
                "servers on one host only",
                host=self._core.host.name,
                next_step="write the hosts as a cluster in hosts.toml and use --cluster NAME, or "
                "run each node's "
                "command yourself: `workbench plan` prints them",
            )

    def require_nodes_reached(self) -> None:
        """Raise HostUnreachable if the host is a cluster and one of its nodes could not be reached
        when the cluster was opened."""
        if is_cluster(self._core.host):
            self._core.host.check_nodes_reachable()

    def _check_may_start(self) -> None:
        """Raise ServerError if another start is under way, or an experiment has reserved the
        servers."""
        # two starts at once would both find the port free
        if _STARTING_TEXT in self._core.state.busy:
            raise ServerError(
                "another server is being started",
                host=self._core.host.name,
                next_step="wait until that server is listed with a run id",
            )
        self.check_not_reserved()

    async def start(self) -> str:
        """Start the plan under edit, after stopping the selected run if it is live. Return the id
        of the new run, which is then STARTING. Raises PlanError or ServerError if the plan cannot
        be started."""
        self._check_may_start()
        selected = self._core.state.server
        editor = self._plans.editor
        self.require_startable_plan(editor.effective_plan, editor)
        return await self._start_plan_of_editor(editor, selected)

    async def start_again(self, run_id: str) -> str:
        """Start the plan with which a run was started, after stopping that run if it is live, or
        else the selected one. The plan under edit stays as it is. Return the id of the new run.
        Raises PlanError or ServerError if the plan cannot be started."""
        self._check_may_start()
        editor = self.editor_of_run(run_id)
        await self._plans.locate_engine_unless_searched(editor)
        self.require_startable_plan(editor.effective_plan, editor)
        status = self.supervisor.status(run_id)
        to_replace = status if status.has_own_processes else self._core.state.server
        return await self._start_plan_of_editor(editor, to_replace)

    async def restart_replaced_server(self) -> str:
        """Start again what ran before a restart failed. Return the id of the new run. Raises
        ServerError if no restart has failed."""
        before = self._core.state.goes_back_to
        if before is None:
            raise ServerError(
                "no restart has failed, so there is no earlier server to go back to",
                host=self._core.host.name,
                next_step="press s to start the plan under edit",
            )
        return await self.start_again(before)

    async def _start_plan_of_editor(self, editor: PlanEditor, selected: ServerStatus | None) -> str:
        async with self._start:
            with self._core.show_as_busy(_STARTING_TEXT):
                return (await self.launch_unchecked_plan(editor, _server_to_stop(selected))).run_id

    def editor_of_run(self, run_id: str) -> PlanEditor:
        """Return an editor with the plan with which a run was started. A secret, which is not
        stored, comes from this session, the environment or the preset. Raises PlanError if a secret
        is missing or the plan is not known."""
        from workbench.session.servers.arm_targets import plan_with_secrets

        plan = self._started_plans.get(run_id)
        if plan is None:
            record = self.supervisor.record(run_id)
            problem = record.problem
            if problem is None and record.adopts is not None:
                problem = f"Workbench did not start the server of run {run_id}"
            if problem is not None:
                raise PlanError(
                    problem,
                    host=self._core.host.name,
                    next_step="press p to load a preset; on the command line use `workbench start "
                    "PRESET`",
                )
            plan = plan_with_secrets(self._presets, record.plan)
        return self._plans.make_editor(plan, f"run {run_id}")

    async def find_start_problem(self) -> Finding | None:
        """Return why a start of the plan under edit would be refused now. None if nothing is known
        that prevents it. A server that the start would stop counts as ended."""
        try:
            await self.check_start_on_host(self._plans.editor, self._server_to_replace)
        except (ServerError, PlanError) as error:
            changes = error.findings[0].changes if error.findings else ()
            return Finding(
                Level.ERROR, "host.start", error.message, fix=error.next_step, changes=changes
            )
        return None

    @property
    def _server_to_replace(self) -> ServerStatus | None:
        """The selected server if a start would stop it, else None."""
        return _server_to_stop(self._core.state.server)

    async def find_start_warnings(self) -> tuple[Finding, ...]:
        """Return the warnings about a start of the plan under edit: those of `host_findings`,
        without the one about the port, which `find_start_problem` checks. A server that the start
        would stop counts as ended."""
        return await self._warnings_about_host(self._server_to_replace)

    async def host_findings(self) -> tuple[Finding, ...]:
        """Return findings about the start of the plan under edit on this host as it is now: another
        process uses its port, too little GPU memory or disk space is free, nothing can be written
        to the state directory, or the driver or the engine's packages do not support the GPUs. ()
        on a cluster, and for a plan without a command."""
        from workbench.server import preflight

        editor, host = self._plans.editor, self._core.host
        command = self._command_for_this_host(editor)
        if command is None:
            return ()
        port = None
        with suppress(WorkbenchError):  # without a state directory, which is one of the findings
            runs = await self.supervisor.runs()  # first: the finding about memory names them
            port = await preflight.find_port_problem(host, editor.plan, command, runs)
        return tuple(filter(None, (port, *await self._warnings_about_host(None))))

    def _command_for_this_host(self, editor: PlanEditor) -> Command | None:
        """Return the command that would start the editor's plan on this host. None if the plan is
        wrong, for several nodes, or for a cluster; other checks find what prevents its start."""
        if self._on_cluster or editor.node_commands():
            return None
        try:
            return editor.launch_command()
        except WorkbenchError:
            return None

    async def _warnings_about_host(self, replaced: ServerStatus | None) -> tuple[Finding, ...]:
        """Return the warnings of `host_findings` except that about the port. `replaced`, a server
        that the start would stop, counts as ended."""
        from workbench.server import preflight
        from workbench.server.model_disk import find_disk_problem
        from workbench.server.state_disk import check_state_directory

        editor, host = self._plans.editor, self._core.host
        command = self._command_for_this_host(editor)
        if command is None:
            return ()
        found: list[Finding | None] = [*await check_state_directory(host)]
        memory = await self._find_memory_shortage(editor, replaced)
        if memory is not None:
            found.append(memory.finding)
        if preflight.uses_host_files(editor.plan.run_as) and not self._core.state.host.simulated:
            found.append(await find_disk_problem(host, editor.effective_plan, command))
        found += await self._unsupported_gpu_findings(editor)
        return tuple(filter(None, found))

    async def _unsupported_gpu_findings(self, editor: PlanEditor) -> Sequence[Finding]:
        """Return what the doctor would find about the driver and the packages of the plan's engine,
        and what is known about the paths between the GPUs. A container brings its own packages. ()
        if no GPU has been read."""
        telemetry = self._core.state.telemetry
        if telemetry is None or not telemetry.infos:
            return ()
        from workbench.doctor.checks import find_engine_start_warnings
        from workbench.doctor.examination import examine_for_engine_start
        from workbench.server import preflight

        own = preflight.uses_host_files(editor.plan.run_as)
        engine = editor.host_context.found if own else None
        seen = await examine_for_engine_start(
            self._core.host, engine, telemetry.driver, telemetry.infos
        )
        return (
            *find_engine_start_warnings(seen),
            *await self._gpu_path_findings(editor, telemetry),
        )

    async def _gpu_path_findings(
        self, editor: PlanEditor, telemetry: Telemetry
    ) -> Sequence[Finding]:
        """Return what is known about the paths between the GPUs that the plan uses together. () in
        a container, and for a single GPU."""
        from workbench.server import preflight

        if not preflight.uses_host_files(editor.plan.run_as):
            return ()
        from workbench.session.conditions import gpu_indices_of_plan
        from workbench.session.hosts import gpu_paths

        used = gpu_indices_of_plan(editor.effective_plan, telemetry.infos)
        if len(used) < 2:
            return ()
        return await gpu_paths.gpu_path_findings_before_start(
            self._core.host, telemetry.driver, telemetry.infos, used
        )

    async def check_start_on_host(self, editor: PlanEditor, replaced: ServerStatus | None) -> None:
        """Raise ServerError if the program or the model of the plan is missing, or if its port is
        in use. `replaced` is the server that the start would stop, None if there is none; its port
        counts as free. Also raise ServerError if the engine would find too little GPU memory after
        the end of that server."""
        from workbench.server import preflight

        simulated = self._core.state.host.simulated is not None
        nodes = self._node_commands_on_cluster(editor)
        if nodes:
            replaces = None if replaced is None else replaced.run_id
            await self._cluster_supervisor().check_and_select_rank_commands(
                editor.effective_plan, nodes, simulated=simulated, replaces=replaces
            )
        else:
            await preflight.check_before_start(
                self._core.host,
                editor.plan,
                editor.launch_command(),
                await self.supervisor.runs(),
                simulated=simulated,
                freed_ports=preflight.list_freed_ports(replaced),
            )
        await self._check_memory_after_replacement(editor, replaced)

    async def _check_cluster_can_start_plan(
        self, editor: PlanEditor, replaced: ServerStatus | None
    ) -> None:
        """Raise ServerError for an error that `workbench cluster check` finds about the plan. The
        nodes of a simulated cluster are not examined: they share this machine's addresses."""
        host = self._core.host
        if not is_cluster(host) or host.simulated or not editor.node_commands():
            return
        from workbench.session.hosts import cluster_check

        await cluster_check.check_cluster_can_start_plan(
            host, editor, replaces_server=replaced is not None
        )

    async def _check_memory_after_replacement(
        self, editor: PlanEditor, replaced: ServerStatus | None
    ) -> None:
        """Raise ServerError if the start replaces a server, and the engine would find too little
        GPU memory after the end of that server."""
        if replaced is None:
            return
        found = await self._find_memory_shortage(editor, replaced)
        if found is not None and found.certain:
            raise ServerError(
                f"{found.finding.text}; {replaced.engine} run {replaced.run_id} was not stopped",
                host=self._core.host.name,
                next_step=found.finding.fix,
            )

    async def _find_memory_shortage(
        self, editor: PlanEditor, replaced: ServerStatus | None
    ) -> MemoryShortage | None:
        from workbench.session.plans.free_memory import find_memory_shortage

        if self._on_cluster:
            return None
        living = [status for status in self.supervisor.statuses() if status.may_still_be_running]
        telemetry = self._core.state.telemetry
        if replaced is None:
            return find_memory_shortage(editor, telemetry, living, None)
        if telemetry is None or replaced.run_as != PROCESS or replaced.run_dir is None:
            return None  # the processes of a unit, container or job are not those of the run
        living = [status for status in living if status.run_id != replaced.run_id]
        staying = await self._gpu_pids_outside_run(telemetry, replaced.run_dir)
        return find_memory_shortage(editor, telemetry, living, staying)

    async def _gpu_pids_outside_run(self, telemetry: Telemetry, run_dir: str) -> Collection[int]:
        """Return the processes on the GPUs that do not belong to the run in `run_dir`."""
        from workbench.hosts import detached_process

        seen = await detached_process.read_status(self._core.host, run_dir)
        listed = {p.pid for gpu in telemetry.gpus for p in gpu.known_processes if not p.place}
        # The list may be some seconds old: a process that has ended since holds nothing.
        return await detached_process.find_existing_pids(
            self._core.host, listed - set(seen.members)
        )

    @property
    def is_starting(self) -> bool:
        """Whether a run is being started that is not listed yet."""
        return self._start.locked()

    async def wait_for_start(self) -> None:
        """Wait until the server that is being started appears in the list of servers, or its start
        has failed."""
        async with self._start:
            pass

    async def launch_unchecked_plan(
        self,
        editor: PlanEditor,
        replaced: ServerStatus | None = None,
        note_run_id: NoteRunId | None = None,
    ) -> ServerStatus:
        """Start the plan of `editor` without checking its flags, and select the new run. Return the
        status of the new run. `replaced` is a server to stop before that; it is stopped only after
        everything that can be checked and written beforehand has succeeded. `note_run_id` is called
        with the id of the new run before its process starts."""
        prepared = await self._prepare_start(editor, replaced)
        try:
            if note_run_id is not None:
                await note_run_id(prepared.run_id)
            if replaced is not None:
                await self.stop_run_quietly(replaced.run_id)
        except BaseException:
            await asyncio.shield(prepared.discard())
            raise
        try:
            status = await prepared.launch()
        except WorkbenchError as error:
            if replaced is not None:
                self._not_replaced = replaced.run_id
                error.next_step = _add_restart_to_next_step(error.next_step, replaced.run_id)
                self._show_servers()
            raise
        self._started_plans[status.run_id] = editor.plan
        self._record_commands_of_start(editor, f"run {status.run_id}")
        self._show_selected_run_and_log(status.run_id)
        return status

    def _record_commands_of_start(self, editor: PlanEditor, run_text: str) -> None:
        """Record the command of a start, or those of its nodes, without secrets."""
        nodes = self._node_commands_on_cluster(editor)
        for node, command in nodes:
            outcome = f"{node.node_title} on {node.name}, {run_text}"
            self._core.record_command(mask_command(command).shell_line, outcome)
        if not nodes:
            shown = editor.make_launcher_command() or mask_command(editor.launch_command())
            self._core.record_command(shown.shell_line, run_text)

    async def _prepare_start(
        self, editor: PlanEditor, replaced: ServerStatus | None
    ) -> PreparedServer:
        """Check the start of a plan on the host, and write the files of the new run. `replaced` is
        the server that is stopped before the launch."""
        await self._plans.locate_engine_unless_searched(editor)
        await self._plans.read_model_size(editor)
        await self._check_memory_after_replacement(editor, replaced)
        await self._check_cluster_can_start_plan(editor, replaced)
        plan = editor.effective_plan
        options: dict[str, Any] = {
            "engine_version": editor.host_context.installed_version,
            "simulated": self._core.state.host.simulated is not None,
            "replaces": replaced.run_id if replaced else self._core.state.goes_back_to,
        }
        nodes = self._node_commands_on_cluster(editor)
        if nodes:
            cluster = self._cluster_supervisor()
            return await cluster.prepare_ranks(plan, nodes, editor.engine, **options)
        command = editor.launch_command()
        return await self.supervisor.prepare(plan, command, editor.engine, **options)

    async def stop(self, run_id: str | None = None) -> None:
        """Stop the run `run_id` (None: the selected one), and return when its processes have ended.
        Raises ServerError if no run is given or selected."""
        run_id = run_id or self._core.state.run_id
        if run_id is None:
            raise ServerError(
                "no server is selected to stop",
                host=self._core.host.name,
                next_step="press o in the Log pane to choose a run",
            )
        with self._core.show_as_busy("stopping"):
            await self.stop_run_quietly(run_id)

    async def stop_run_quietly(self, run_id: str) -> ServerStatus:
        """Stop a run without showing this work in `state.busy`. Return the last status of the
        run."""
        for prepare in self.before_end:
            await prepare(run_id)
        started = time.monotonic()
        status = await self.supervisor.stop(run_id)
        self._core.record_command(
            f"workbench stop {run_id}", f"ended in {time.monotonic() - started:.1f} s"
        )
        self._show_servers()
        return status

    async def request_text_of_server(self, run_id: str | None = None) -> ServedText:
        """Ask the READY server of the run `run_id` (None: of the selected run) for text again.
        Return what it answers. Raises ServerError if there is no such server, or if it does not
        answer."""
        run_id = run_id or self._selected_run_id()
        self.check_not_reserved()
        with self._core.show_as_busy("asking for text"):
            text = await self.supervisor.probe(run_id)
        self._core.record_command(f"workbench probe {run_id}", text.summary)
        self._show_servers()
        return text

    async def wait_ready(self, run_id: str, timeout_s: float | None = None) -> ServerStatus:
        """Wait until a run is READY or has ended. Return its status. Raises ServerError after
        `timeout_s` seconds; None waits without limit."""
        try:
            return await self.supervisor.wait_ready(run_id, timeout_s)
        except TimeoutError:
            status = self.supervisor.status(run_id)
            raise ServerError(
                f"run {run_id} was not READY within {timeout_s:.0f} s "
                f"({status.phase or status.state_word})",
                host=self._core.host.name,
                next_step=f"the server is still starting: watch it with `workbench logs {run_id} "
                "--follow`, "
                f"or stop it with `workbench stop {run_id}`",
            ) from None


def _server_to_stop(selected: ServerStatus | None) -> ServerStatus | None:
    """Return `selected` if a start must stop that server first, else None."""
    if selected is None or not selected.has_own_processes:
        return None
    return selected


def _add_restart_to_next_step(next_step: str | None, run_id: str) -> str:
    """Return `next_step` with the key and the command that start again what ran before."""
    back = f"press Z, or run `workbench restart {run_id}`, to start again what ran before"
    return f"{next_step}; or {back}" if next_step else back
