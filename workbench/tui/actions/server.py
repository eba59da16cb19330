"""Starting, stopping and choosing servers; hosts; leaving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.findings import Finding, Level
from workbench.model.server_run import ServerState
from workbench.tui.actions.base import Actions

if TYPE_CHECKING:
    from workbench.server.external_servers import FoundServer

ALIVE = (ServerState.STARTING, ServerState.READY, ServerState.UNRESPONSIVE, ServerState.STOPPING)


class ServerActions(Actions):
    active: int

    async def action_start(self) -> None:
        state = self.session.state
        if state.plan is None:
            self.say("there is no plan to start", Level.WARN, "p picks a preset")
            return
        foreign = self.session.untrusted()
        if foreign:
            await self._ask_trust(foreign)
            return
        from workbench.tui.modals.launch import StartPlan

        server = state.server
        alive = server is not None and server.state in ALIVE
        in_the_way = server if server is not None and (alive or server.outlived) else None
        changes = self.try_now(self.session.changes_against_running) if alive else ()

        def decided(yes: bool | None) -> None:
            if yes:
                before = self.active
                # A start that is refused leaves the person where the plan can be corrected.
                self.attempt(self.session.start(), lambda _: self.go(3) if self.active == before else None)

        await self.app.push_screen(StartPlan(state.plan, in_the_way, changes or (), state.measured_by), decided)

    async def _ask_trust(self, foreign: Sequence[Finding]) -> None:
        """Before the first start of a stranger's preset: what it runs, and the command."""
        from workbench.tui.cells import Row, paragraph
        from workbench.tui.modals.ask import Confirm
        from workbench.tui.modals.launch import command_rows, finding_rows

        plan = self.session.state.plan

        def text(width: int) -> list[Row]:
            about = "This preset did not come with Workbench, and it runs more than its engine's usual program:"
            rows = [*paragraph(about, width, "warn"), (), *finding_rows(foreign, width), ()]
            return [*rows, *(command_rows(plan.command, width) if plan is not None and plan.command else ())]

        async def decided(yes: bool | None) -> None:
            if yes:
                self.try_now(self.session.trust)
                await self.action_start()

        box = Confirm("Trust this preset?", text, yes="trust it", no="leave it", default=False)
        await self.app.push_screen(box, decided)

    async def action_stop(self) -> None:
        server = self.session.state.server
        if server is None or not (server.state in ALIVE or server.outlived):
            self.say("no server of Workbench is running here")
            return
        from workbench.tui.cells import Row, paragraph
        from workbench.tui.modals.ask import Confirm
        from workbench.tui.modals.launch import disturbed_rows

        measured_by = self.session.state.measured_by

        def text(width: int) -> list[Row]:
            about = f"{server.run_id}: {server.engine} {server.model} on {server.host}, pid {server.pid}"
            about += f"; {server.outlived} processes outlived it" if server.outlived else ""
            how = "TERM to its process group, KILL to what is left after the grace time."
            disturbed = disturbed_rows(measured_by, width)
            return [*disturbed, *paragraph(about, width), *paragraph(how, width, "dim")]

        def decided(yes: bool | None) -> None:
            if yes:
                self.attempt(self.session.stop(server.run_id))

        await self.app.push_screen(
            Confirm("Stop the server", text, yes="stop it", no="leave it running", default=measured_by is None), decided
        )

    async def action_runs(self) -> None:
        self.attempt(self.session.other_servers, self._show_runs, only="runs")

    def _show_runs(self, others: Sequence[FoundServer]) -> None:
        """Runs to choose from, and servers of other origin to read about."""
        state = self.session.state
        if not state.servers and not others:
            self.say("no runs on this host yet", next_step="s starts the plan")
            return
        from workbench.tui.modals.base import PickModal, TextModal
        from workbench.tui.modals.launch import found_rows

        strangers = {f"pid {o.pid}": o for o in others}
        items = [
            (s.run_id, f"{s.run_id}  {s.state:<13} {s.engine:<9} {s.model}", "text") for s in reversed(state.servers)
        ]
        items += [
            (
                name,
                f"{'by hand':<13} {o.engine or '-':<9} {', '.join(o.models[:5]) or o.note}  {name}, port {o.port}",
                "dim",
            )
            for name, o in strangers.items()
        ]

        def chosen(name: str | None) -> None:
            if name in strangers:
                other = strangers[name]
                self.app.push_screen(TextModal("Not started by Workbench", lambda w: found_rows(other, w), wide=True))
            elif name:
                self.attempt(self.session.select_run(name))

        self.app.push_screen(PickModal("Server runs", items, chosen=state.run_id or ""), chosen)

    async def action_host(self) -> None:
        from workbench.tui.modals.base import PickModal

        names = self.try_now(self.session.known_hosts) or ()
        now = self.session.state.host.name
        items = [(n, n + ("  (now)" if n == now else ""), "text") for n in names]

        def chosen(name: str | None) -> None:
            if name and name != now:
                self.attempt(self.session.switch_host(name))

        await self.app.push_screen(PickModal("Work on another host", items, chosen=now, filter=True), chosen)

    def action_try_again(self) -> None:
        """Connect again now."""
        self.attempt(self.session.try_again())

    async def ask_host_key(self) -> None:
        """The host is unknown: its fingerprint stands in `state.host.message`."""
        from workbench.tui.cells import paragraph
        from workbench.tui.modals.ask import Confirm

        host = self.session.state.host

        def decided(yes: bool | None) -> None:
            if yes:
                self.attempt(self.session.accept_host_key())

        await self.app.push_screen(
            Confirm(
                f"Unknown host key of {host.name}",
                lambda w: paragraph(host.message or "", w),
                yes="the fingerprint is right: connect",
                no="do not connect",
            ),
            decided,
        )

    async def action_quit(self) -> None:
        state = self.session.state
        server = state.server
        alive = f"{server.engine} :{server.port}" if server is not None and server.state in ALIVE else None
        measuring = state.bench.running or any(
            one is not None and one.state == "running" for one in (state.experiment, state.sweep)
        )
        if not alive and not state.alterations and not measuring:
            self.app.exit(0)
            return
        from workbench.tui.modals.ask import Quit

        def decided(choice: dict[str, bool] | None) -> None:
            if choice is None:
                return
            if state.alterations and not choice["keep"] and state.host.sudo_password:
                self._leave_with_password(choice["stop"])
            else:
                self.attempt(self.leave(stop=choice["stop"], keep=choice["keep"]))

        await self.app.push_screen(Quit(state, alive), decided)

    def _leave_with_password(self, stop: bool) -> None:
        from workbench.tui.cells import paragraph
        from workbench.tui.modals.gpu_confirm import ConfirmSettings

        def given(answer: dict[str, str] | None) -> None:
            if answer is not None:
                self.attempt(self.leave(stop=stop, keep=False, password=answer.get("password")))

        text = "sudo on this host asks for a password before the settings can be given back."
        self.app.push_screen(
            ConfirmSettings("Revert and leave", lambda w: paragraph(text, w), yes="revert and leave", password=True),
            given,
        )

    async def leave(self, *, stop: bool, keep: bool, password: str | None = None) -> None:
        """Ends the screen only when what was asked for has been done; an error keeps it open and says why."""
        state = self.session.state
        if stop:
            self.say("stopping the server …")
            await self.session.stop()
        if state.alterations and keep:
            self.say("leaving the GPU settings on …")
            await self.session.keep_gpu()
        elif state.alterations:
            self.say("reverting GPU settings …")
            report = await self.session.revert_gpu(password=password)
            if not report.ok:
                self.show_report("Not everything could be reverted", report)  # type: ignore[attr-defined]
                return
        self.app.exit(0)
