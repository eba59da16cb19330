"""The keys of sweeps: start, show, stop and resume a sweep over a GPU setting, the concurrency or
flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.model.sweep import Sweep
from workbench.tui.controllers.series import SeriesController, Work
from workbench.tui.modals.form import Values
from workbench.tui.modals.sweep_form import Wanted, parse, sweep_form
from workbench.tui.pages.live import Live, SweepPage
from workbench.tui.panes.launch import Launch

_OF_A_TRACE = ("trace", "trace_name", "trace_s", "trace_reuse", "speed", "first", "content")


class SweepController(SeriesController[Sweep]):
    @property
    def measured(self) -> Sweep | None:
        return self.state.sweep

    def new_page(self) -> Live:
        if self.controllers.tunes.measured is not None:
            return self.controllers.tunes.new_page()
        return SweepPage(self.state, self.services.progress.measured.left, self.act)

    async def stop(self) -> None:
        await self.session.sweeps.cancel()

    def resume(self, page: Live, outcome: str) -> tuple[str, Work[Sweep]] | None:
        sweep = self.measured
        if sweep is None:
            return None
        return (
            "resuming: everything is checked before anything is changed"
        ), lambda: self.session.sweeps.resume(sweep.id)

    def summary(self, measured: Sweep) -> tuple[str, str]:
        return (
            f"sweep of {measured.name}: {measured.error or measured.knee_text or measured.state}",
            "press S to see the sweep",
        )

    async def new(self) -> None:
        if not self.nothing_measured():
            return
        state = self.state
        if state.server is None or state.server.state is not ServerState.READY:
            self.say(
                "a sweep needs a server that is READY, and there is none",
                Level.WARN,
                "press s to start a server",
            )
            return
        count = len(state.telemetry.gpus) if state.telemetry else 0

        def decided(values: Values | None) -> None:
            if values is not None:
                wanted = parse(values, count)
                self.session.memory.keep_form("sweep", values)
                self.begin(lambda: self._run(wanted))

        last, spec = self.session.memory.last_form("sweep"), self.session.bench.defaults()
        await self.app.push_screen(
            sweep_form(state, self.pane(Launch).current, spec, last, self._check_flags), decided
        )

    def _check_flags(self, flags: Mapping[str, Sequence[str]]) -> None:
        if flags:
            self.session.sweeps.check_flags(flags)

    async def _run(self, wanted: Wanted) -> Sweep:
        shape = dict(self.session.bench.shape())
        if wanted.kind == "flag":
            return await self.session.sweeps.run_flags(wanted.flags, **shape)
        if wanted.kind in ("users", "rates"):
            own = ("requests", "warmup", "concurrency", "rate", "seconds", "command", "slo")
            # a search after the benchmark of a trace sends prompts of the trace's mean lengths
            traced = _OF_A_TRACE if shape.get("trace_name") else ()
            rest = {n: value for n, value in shape.items() if n not in (*own, *traced)}
            return await self._search_capacity(wanted, {**rest, "slo": wanted.slo})
        # they follow from the level, or each value is given the same time
        for name in ("requests", "warmup"):
            shape.pop(name, None)
        if wanted.kind == "concurrency":
            shape.pop("concurrency", None)
            return await self.session.sweeps.run_concurrency(
                [int(v) for v in wanted.values], **shape
            )
        return await self.session.sweeps.run_gpu(wanted.kind, wanted.values, wanted.gpu, **shape)

    async def _search_capacity(self, wanted: Wanted, load: Mapping[str, Any]) -> Sweep:
        from workbench.session.series.rate_capacity import Rates
        from workbench.session.series.user_capacity import UserLevels

        if wanted.kind == "rates":
            return await self.session.sweeps.run_rates(Rates(horizon_s=wanted.horizon_s), **load)
        return await self.session.sweeps.run_users(UserLevels(), **load)
