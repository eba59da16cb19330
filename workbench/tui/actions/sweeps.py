"""Sweeps: asked for, watched, cancelled, looked at again; and one key that cancels whatever is measuring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.tui.actions.base import Actions

if TYPE_CHECKING:
    from workbench.model.sweep import Sweep
    from workbench.tui.modals.live import SweepPage
    from workbench.tui.modals.sweep_form import Wanted
    from workbench.tui.widgets.flags import Flags
    from workbench.tui.widgets.status_bar import StatusBar


class SweepActions(Actions):
    flags: Flags
    status_bar: StatusBar

    async def action_sweep(self) -> None:
        """The one that runs or was last; the form for a new one where there is none."""
        if self.session.state.sweep is not None:
            await self.sweep_page()
        else:
            await self.new_sweep()

    async def sweep_page(self) -> None:
        await self.app.push_screen(self._new_page(), self._sweep_left)

    def _new_page(self) -> SweepPage:
        from workbench.tui.modals.live import SweepPage

        return SweepPage(self.session.state, self.status_bar.measured.left, self._act_on_sweep)

    async def _sweep_left(self, outcome: str | None) -> None:
        if outcome == "new":
            await self.new_sweep()

    def _act_on_sweep(self, page: SweepPage, outcome: str) -> None:
        if outcome == "stop":
            from workbench.tui.modals.live import STOPPING

            page.ask(STOPPING)
            self.attempt(lambda: self.session.cancel_sweep(), failed=lambda: page.refused(self.session.state))
        elif (sweep := page.measured) is not None:
            page.ask("going on: everything is checked before anything is touched")
            self.attempt(
                lambda: self.session.resume_sweep(sweep.id),
                self._swept,
                failed=lambda: page.refused(self.session.state),
            )

    async def new_sweep(self) -> None:
        state = self.session.state
        if state.bench.running:
            self.say("something is being measured", next_step="K cancels it")
            return
        server = state.server
        if server is None or server.state is not ServerState.READY:
            self.say("a sweep measures a server that is READY, and there is none", Level.WARN, "s starts the plan")
            return
        from workbench.tui.modals.sweep_form import Wanted, parse, sweep_form

        count = len(state.telemetry.gpus) if state.telemetry else 0
        spec = self.session.bench_defaults()

        async def decided(values: dict[str, str] | None) -> None:
            wanted = parse(values, count) if values else None
            if isinstance(wanted, Wanted) and values:
                self.session.keep_form("sweep", values)
                await self._start_sweep(wanted)

        last = self.session.last_form("sweep")
        await self.app.push_screen(sweep_form(state, self.flags.current, spec, last), decided)

    async def _start_sweep(self, wanted: Wanted) -> None:
        """Its page stands at once, so that the next key meets it."""
        session, page, shape = self.session, self._new_page(), dict(self.session.bench_shape())

        async def work() -> Sweep:
            if wanted.kind == "flag":
                return await session.flag_sweep(wanted.flags, **shape)
            for name in ("requests", "warmup"):  # they follow from the level, or each value is given the same time
                shape.pop(name, None)
            if wanted.kind == "concurrency":
                shape.pop("concurrency", None)
                return await session.concurrency_sweep([int(v) for v in wanted.values], **shape)
            return await session.gpu_sweep(wanted.kind, wanted.values, wanted.gpu, **shape)

        page.ask("starting: everything is checked before anything is touched", blank=True)
        await self.app.push_screen(page, self._sweep_left)
        self.attempt(work, self._swept, failed=lambda: page.refused(self.session.state))

    def _swept(self, sweep: Sweep) -> None:
        from workbench.tui.modals.live import SweepPage

        if not isinstance(self.app.screen, SweepPage) and sweep.state != "running":
            self.say(f"sweep of {sweep.name}: {sweep.error or sweep.knee_text or sweep.state}", next_step="S shows it")

    def action_cancel(self) -> None:
        """Whatever is measuring. An experiment and a sweep keep what they have."""
        state = self.session.state
        if state.experiment is not None and state.experiment.state == "running":
            self.attempt(lambda: self.session.stop_experiment(), lambda _: self.say("experiment stopped; X, R goes on"))
        elif state.sweep is not None and state.sweep.state == "running":
            self.attempt(lambda: self.session.cancel_sweep(), lambda _: self.say("sweep stopped; S shows what it has"))
        elif state.bench.running or state.bench.queued:
            self.attempt(lambda: self.session.cancel_bench())
        else:
            self.say("nothing is being measured")
