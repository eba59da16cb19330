"""The keys of sweeps and searches: start, show, stop and resume a sweep over a GPU setting, the
concurrency or flags, or a search for users or for a rate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.model.settings import SWEPT
from workbench.model.sweep import CONCURRENCY, FLAGS, RATES, USERS, Sweep
from workbench.tui.controllers.series import (
    ChangeLookup,
    PreparedResume,
    SeriesController,
    prepare_sweep_resume,
)
from workbench.tui.modals.form import Values
from workbench.tui.modals.gpu_confirm import PlannedChange
from workbench.tui.modals.sweep_form import (
    RequestedSweep,
    is_gpu_setting_sweep,
    parse_sweep_form,
    search_load_from_bench_fields,
    sweep_form,
)
from workbench.tui.pages.live import MeasurementPage, SweepPage
from workbench.tui.panes.launch import Launch

if TYPE_CHECKING:
    from workbench.session.session import Session

Load = Mapping[str, Any]  # fields of BenchSpec


class SweepController(SeriesController[Sweep]):
    @property
    def latest_measurement(self) -> Sweep | None:
        return self.state.sweep

    def make_measurement_page(self) -> MeasurementPage:
        if self.controllers.tunes.latest_measurement is not None:
            return self.controllers.tunes.make_measurement_page()
        return SweepPage(
            self.state, self.services.progress.series_remaining_s, self.run_page_action
        )

    async def stop_measurement(self) -> None:
        await self.session.sweeps.cancel()

    def prepare_resume(self, page: MeasurementPage, action: str) -> PreparedResume[Sweep] | None:
        sweep = self.latest_measurement
        if sweep is None:
            return None
        changes: ChangeLookup | None = None
        if sweep.sweep_kind.sets_gpu:
            changes = partial(self._look_up_resumed_changes, sweep)
        return prepare_sweep_resume(
            self.session, sweep, changes, takes_password=sweep.sweep_kind.sets_gpu
        )

    async def _look_up_resumed_changes(self, sweep: Sweep) -> PlannedChange:
        by_value = await self.session.sweeps.list_resume_commands(sweep.id)
        return await self.controllers.gpu.planned_change_of_gpu_sweep(by_value)

    def end_message_and_next_step(self, measured: Sweep) -> tuple[str, str]:
        return f"{measured.description}: {measured.outcome_text}", "press S to see the sweep"

    async def open_measurement_form(self) -> None:
        if not self.can_measure_or_show_message():
            return
        state = self.state
        server = self.ready_server_or_show_message("a sweep")
        if server is None:
            return
        count = len(state.gpus)

        def start_sweep_from_form(values: Values | None) -> None:
            if values is None:
                return
            wanted = parse_sweep_form(values, count)
            self.session.screen_memory.store_form("sweep", values)
            if is_gpu_setting_sweep(wanted):
                self._confirm_gpu_sweep(wanted, server.run_id)
            else:
                self.start_measurement(lambda: self._run_sweep(wanted))

        last = self.session.screen_memory.last_form_values("sweep")
        spec = self.session.bench.default_spec()
        await self.app.push_screen(
            sweep_form(
                state, self.pane_of_type(Launch).current_item, spec, last, self._check_swept_flags
            ),
            start_sweep_from_form,
        )

    def _confirm_gpu_sweep(self, wanted: RequestedSweep, run_id: str) -> None:
        """Show the commands of a sweep of a GPU setting on the server `run_id`. Start it if the
        user agrees."""

        async def look_up_setting_changes() -> PlannedChange:
            by_value = await self.session.sweeps.list_gpu_sweep_commands(
                wanted.kind, wanted.values, wanted.gpu, run_id=run_id
            )
            return await self.controllers.gpu.planned_change_of_gpu_sweep(by_value)

        def start_sweep(password: str | None) -> None:
            self.start_measurement(
                lambda: self._run_sweep(wanted, run_id=run_id, password=password)
            )

        self.controllers.gpu.confirm_setting_changes(
            look_up_setting_changes, start_sweep, takes_password=True
        )

    def _check_swept_flags(self, flags: Mapping[str, Sequence[str]]) -> None:
        if flags:
            self.session.sweeps.check_flags_can_be_swept(flags)

    async def _run_sweep(self, wanted: RequestedSweep, **extra_options: Any) -> Sweep:
        load = {**self.session.bench.default_spec_fields(), **extra_options}
        return await STARTS[wanted.kind](self.session, wanted, load)


async def _sweep_flags(session: Session, wanted: RequestedSweep, load: Load) -> Sweep:
    return await session.sweeps.run_flag_sweep(wanted.flags, **load)


async def _sweep_concurrency(session: Session, wanted: RequestedSweep, load: Load) -> Sweep:
    levels = [int(value) for value in wanted.values]
    # the level decides the numbers of requests
    return await session.sweeps.run_concurrency_sweep(
        levels, **_load_without_fields(load, "requests", "warmup", "concurrency")
    )


async def _sweep_gpu_setting(session: Session, wanted: RequestedSweep, load: Load) -> Sweep:
    # each value is given the same time
    return await session.sweeps.run_gpu_setting_sweep(
        wanted.kind, wanted.values, wanted.gpu, **_load_without_fields(load, "requests", "warmup")
    )


async def _search_user_capacity(session: Session, wanted: RequestedSweep, load: Load) -> Sweep:
    from workbench.session.series.user_capacity import UserLevels

    return await session.sweeps.run_user_capacity_search(
        UserLevels(), **search_load_from_bench_fields(load, wanted)
    )


async def _search_rate_capacity(session: Session, wanted: RequestedSweep, load: Load) -> Sweep:
    from workbench.session.series.rate_capacity import RateRange

    rates = RateRange(horizon_s=wanted.horizon_s)
    return await session.sweeps.run_rate_capacity_search(
        rates, **search_load_from_bench_fields(load, wanted)
    )


def _load_without_fields(load: Load, *names: str) -> dict[str, Any]:
    return {name: value for name, value in load.items() if name not in names}


# for each kind that the form offers (OFFERS), what starts it
STARTS: Mapping[str, Callable[[Session, RequestedSweep, Load], Awaitable[Sweep]]] = {
    FLAGS.name: _sweep_flags,
    CONCURRENCY.name: _sweep_concurrency,
    USERS.name: _search_user_capacity,
    RATES.name: _search_rate_capacity,
    **{setting.key: _sweep_gpu_setting for setting in SWEPT},
}
