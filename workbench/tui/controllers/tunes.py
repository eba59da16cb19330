"""The keys of tunes: plan, start, show, stop and resume the search for a better configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.findings import Level
from workbench.model.sweep import Sweep, SweepSpec
from workbench.model.tune import gpu_settings_of_candidate
from workbench.report.tune_blocks import tune_plan_blocks
from workbench.tui.block_rows import block_rows
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.controllers.series import (
    ChangeLookup,
    PreparedResume,
    SeriesController,
    prepare_sweep_resume,
)
from workbench.tui.glyphs import G
from workbench.tui.modals.ask import Confirm
from workbench.tui.modals.form import Values
from workbench.tui.modals.gpu_confirm import PlannedChange
from workbench.tui.modals.tune_form import parse_tune_form, tune_form
from workbench.tui.pages.live import MeasurementPage, TunePage

if TYPE_CHECKING:
    from workbench.session.series.sweep_parts import PlannedSweep


class TuneController(SeriesController[Sweep]):
    @property
    def latest_measurement(self) -> Sweep | None:
        return self.state.tune

    def make_measurement_page(self) -> TunePage:
        return TunePage(self.state, self.services.progress.series_remaining_s, self.run_page_action)

    async def stop_measurement(self) -> None:
        await self.session.sweeps.cancel()

    def prepare_resume(self, page: MeasurementPage, action: str) -> PreparedResume[Sweep] | None:
        tune = self.latest_measurement
        if tune is None or tune.spec is None:
            return None
        return prepare_sweep_resume(self.session, tune, self._make_change_lookup(tune.spec))

    def _make_change_lookup(self, spec: SweepSpec) -> ChangeLookup | None:
        """Return the function that finds out which GPU settings a tune changes; None if it changes
        none."""
        if spec.tune is None or not any(
            gpu_settings_of_candidate(c.sets) for c in spec.tune.candidates
        ):
            return None

        async def look_up_setting_changes() -> PlannedChange:
            planned = await self.session.sweeps.preview_tune_setting_changes(spec)
            return await self.controllers.gpu.planned_change_from_outcomes(planned)

        return look_up_setting_changes

    def end_message_and_next_step(self, measured: Sweep) -> tuple[str, str]:
        return f"{measured.name}: {measured.outcome_text}", "press N to see the tune"

    async def open_measurement_form(self) -> None:
        """Open the form of a tune of the plan. Then show its candidates, and start it if the user
        agrees."""
        if not self.can_measure_or_show_message():
            return
        if self.state.plan is None:
            self.show_message(
                "a tune needs a plan, and none is loaded", Level.WARN, "press p for a preset"
            )
            return
        found: list[PlannedSweep] = []

        async def plan_tune_from_form(values: Values) -> None:
            wanted = parse_tune_form(values)
            found[:] = [
                await self.session.sweeps.plan_tune(
                    wanted.goal,
                    wanted.limits,
                    starts=wanted.starts,
                    max_minutes=wanted.max_minutes,
                    **self.session.bench.default_spec_fields(),
                )
            ]

        def confirm_planned_tune(values: Values | None) -> None:
            if values is not None and found:
                self.session.screen_memory.store_form("tune", values)
                self._confirm_tune(found[0])

        load = self.session.sweeps.tune_load_text(self.session.bench.default_spec_fields())
        last = self.session.screen_memory.last_form_values("tune")
        await self.app.push_screen(tune_form(load, last, plan_tune_from_form), confirm_planned_tune)

    def _confirm_tune(self, planned: PlannedSweep) -> None:
        """Show what the tune tries, what it leaves out and what it takes. Start it if the user
        agrees."""
        spec, stops = planned.spec.tune, self.state.live_server
        assert spec is not None
        cost = self.session.sweeps.estimate_tune_cost(planned)
        blocks = tune_plan_blocks(spec, cost, simulated=self.state.simulated)

        def make_question_rows(width: int) -> list[Row]:
            rows = block_rows(blocks, width)
            if stops is not None:
                warning = f"run {stops.run_id} is stopped meanwhile, and started again afterwards"
                rows += [(), *paragraph_rows(f"{G.alert} {warning}", width, "warnb", "  ")]
            return rows

        def start_if_confirmed(yes: bool | None) -> None:
            if yes:
                changes = self._make_change_lookup(planned.spec)
                self.start_measurement_after_consent(
                    changes, lambda: self.session.sweeps.run_tune(planned)
                )

        title = f"{planned.name[:1].upper()}{planned.name[1:]} on {self.state.host.name}"
        self.app.push_screen(
            Confirm(title, make_question_rows, yes="start the tune", wide=True), start_if_confirmed
        )
