"""The keys of sweeps and searches: start, show, stop and resume a sweep over a GPU setting, the
concurrency or flags, or a search for users or for a rate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.model.settings import SWEPT
from workbench.model.sweep import CONCURRENCY, FLAGS, RATES, USERS, Sweep
from workbench.tui.controllers.series import Resume, SeriesController, resume_text_and_work
from workbench.tui.modals.form import Values
from workbench.tui.modals.gpu_confirm import PlannedChange
from workbench.tui.modals.sweep_form import (
    Wanted,
    make_search_load,
    parse_sweep_form,
    sets_gpu_setting,
    sweep_form,
)
from workbench.tui.pages.live import MeasurementPage, SweepPage
from workbench.tui.panes.launch import Launch

if TYPE_CHECKING:
    from workbench.session.session import Session

Load = Mapping[str, Any]  # fields of BenchSpec


class SweepController(SeriesController[Sweep]):
    @property
    def latest(self) -> Sweep | None:
        return self.state.sweep

    def new_page(self) -> MeasurementPage:
        if self.controllers.tunes.latest is not None:
            return self.controllers.tunes.new_page()
        return SweepPage(self.state, self.services.progress.remaining_s, self.run_page_action)

    async def stop(self) -> None:
        await self.session.sweeps.cancel()

    def resume(self, page: MeasurementPage, outcome: str) -> Resume[Sweep] | None:
        sweep = self.latest
        if sweep is None:
            return None
        said, work = resume_text_and_work(self.session, sweep)
        changes = partial(self._find_changes, sweep) if sweep.facts.sets_gpu else None
        return Resume(said, work, changes, takes_password=sweep.facts.sets_gpu)

    async def _find_changes(self, sweep: Sweep) -> PlannedChange:
        by_value = await self.session.sweeps.plan_resume(sweep.id)
        return await self.controllers.gpu.change_from_steps(by_value)

    def end_message(self, measured: Sweep) -> tuple[str, str]:
        return (
            f"{measured.description}: {measured.error or measured.knee_text or measured.state}",
            "press S to see the sweep",
        )

    async def open_form(self) -> None:
        if not self.can_measure():
            return
        state = self.state
        server = self.ready_server("a sweep")
        if server is None:
            return
        count = len(state.gpus)

        def decided(values: Values | None) -> None:
            if values is None:
                return
            wanted = parse_sweep_form(values, count)
            self.session.memory.store_form("sweep", values)
            if sets_gpu_setting(wanted):
                self._confirm_sweep(wanted, server.run_id)
            else:
                self.begin(lambda: self._run_sweep(wanted))

        last, spec = self.session.memory.last_form("sweep"), self.session.bench.default_spec()
        await self.app.push_screen(
            sweep_form(state, self.pane(Launch).current_item, spec, last, self._check_flags),
            decided,
        )

    def _confirm_sweep(self, wanted: Wanted, run_id: str) -> None:
        """Show the commands of a sweep of a GPU setting on the server `run_id`. Start it if the user
        agrees."""

        async def look_up() -> PlannedChange:
            by_value = await self.session.sweeps.plan_gpu(
                wanted.kind, wanted.values, wanted.gpu, run_id=run_id
            )
            return await self.controllers.gpu.change_from_steps(by_value)

        def agreed(password: str | None) -> None:
            self.begin(lambda: self._run_sweep(wanted, run_id=run_id, password=password))

        self.controllers.gpu.confirm_setting_changes(look_up, agreed, takes_password=True)

    def _check_flags(self, flags: Mapping[str, Sequence[str]]) -> None:
        if flags:
            self.session.sweeps.check_flags(flags)

    async def _run_sweep(self, wanted: Wanted, **more: Any) -> Sweep:
        load = {**self.session.bench.default_fields(), **more}
        return await STARTS[wanted.kind](self.session, wanted, load)


async def _sweep_flags(session: Session, wanted: Wanted, load: Load) -> Sweep:
    return await session.sweeps.run_flags(wanted.flags, **load)


async def _sweep_concurrency(session: Session, wanted: Wanted, load: Load) -> Sweep:
    levels = [int(value) for value in wanted.values]
    # the level decides the numbers of requests
    return await session.sweeps.run_concurrency(
        levels, **_load_without(load, "requests", "warmup", "concurrency")
    )


async def _sweep_gpu_setting(session: Session, wanted: Wanted, load: Load) -> Sweep:
    # each value is given the same time
    return await session.sweeps.run_gpu(
        wanted.kind, wanted.values, wanted.gpu, **_load_without(load, "requests", "warmup")
    )


async def _search_users(session: Session, wanted: Wanted, load: Load) -> Sweep:
    from workbench.session.series.user_capacity import UserLevels

    return await session.sweeps.run_users(UserLevels(), **make_search_load(load, wanted))


async def _search_rates(session: Session, wanted: Wanted, load: Load) -> Sweep:
    from workbench.session.series.rate_capacity import RateRange

    rates = RateRange(horizon_s=wanted.horizon_s)
    return await session.sweeps.run_rates(rates, **make_search_load(load, wanted))


def _load_without(load: Load, *names: str) -> dict[str, Any]:
    return {name: value for name, value in load.items() if name not in names}


# for each kind that the form offers (OFFERS), what starts it
STARTS: Mapping[str, Callable[[Session, Wanted, Load], Awaitable[Sweep]]] = {
    FLAGS.name: _sweep_flags,
    CONCURRENCY.name: _sweep_concurrency,
    USERS.name: _search_users,
    RATES.name: _search_rates,
    **{setting.key: _sweep_gpu_setting for setting in SWEPT},
}
