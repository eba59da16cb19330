"""The key that applies everything that the plan's preset contains (launch, GPU settings, warm-up),
and the page that says what was applied."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.counts import count_of
from workbench.model.findings import Level
from workbench.tui.cells import Row, pad_text, paragraph_rows, rows_beside_label
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.ask import running_bench_warning_rows
from workbench.tui.modals.form import Values
from workbench.tui.modals.gpu_confirm import ConfirmSettings
from workbench.tui.modals.launch import other_measurement_warning_rows
from workbench.tui.pages.base import Page

if TYPE_CHECKING:
    from workbench.session.plans.preset_apply import (
        AppliedPreset,
        PresetApply,
        PresetPart,
        PresetPreview,
    )

NAME_CELLS = 20
AFTERWARDS = (
    "The server is started first. If a setting cannot be applied, those before it are reverted and "
    "the server is "
    "stopped. The previous values are written to disk first; press r to restore them. A restart of "
    "the host resets the "
    "CPU governor and the C-states."
)


class ApplyController(Controller):
    def ask_to_apply_preset(self) -> None:
        """List everything that the plan's preset changes on the host, and apply it if the user
        agrees."""
        if self.state.plan is None:
            self.show_message("there is no preset to apply", Level.WARN, "press p to load a preset")
            return
        if self.session.plans.untrusted_findings():
            self.show_message(
                "you have not trusted this preset yet",
                Level.WARN,
                "press s to see what it would run, and trust it there",
            )
            return
        preset_id = self.state.plan.plan.preset_id
        self.show_message(
            f"looking up what {preset_id or 'the plan'} changes on {self.state.host.name}: "
            "nothing is changed yet"
        )

        async def look_up_preset_changes() -> tuple[PresetApply, PresetPreview]:
            await asyncio.to_thread(_import_preset_modules)
            from workbench.session.plans.preset_apply import PresetApply

            preset = PresetApply(self.session)
            return preset, await preset.preview_preset()

        self.run_in_background(
            look_up_preset_changes,
            lambda found: self._confirm_preset_parts(*found),
            exclusive_group="look up a preset",
        )

    def _confirm_preset_parts(self, preset: PresetApply, whole: PresetPreview) -> None:
        self.services.clear_message()
        state = self.state

        def make_question_rows(width: int) -> list[Row]:
            rows = [
                *other_measurement_warning_rows(state.host.measured_by, width),
                *running_bench_warning_rows(self.state, width),
            ]
            rows += preset_part_rows(whole.parts, width, "cannot be applied: ")
            for note in dict.fromkeys(outcome.command.note for outcome in whole.outcomes):
                if note:
                    rows += paragraph_rows(f"! {note}", width, "warn", "  ")
            return [*rows, (), *paragraph_rows(AFTERWARDS, width, "dim")]

        def apply_if_confirmed(given: Values | None) -> None:
            if given is not None:
                self.services.clear_message()
                self.run_in_background(
                    preset.apply_preset(
                        whole, password=given.get("password"), on_step=self._report_preset_step
                    ),
                    self._show_apply_outcome,
                )
                self.go_to_pane("log")

        password = bool(whole.first_missing_right) and state.host.sudo_password
        careful = bool(whole.inapplicable_parts) or state.host.measured_by is not None
        title = f"Apply {whole.preset_id} whole"
        box = ConfirmSettings(
            title,
            make_question_rows,
            yes_text="apply all of it",
            default_no=careful,
            asks_password=password,
        )
        self.app.push_screen(box, apply_if_confirmed)

    def _report_preset_step(self, step: str) -> None:
        self.show_message(f"applying the preset: {step}")

    def _show_apply_outcome(self, applied: AppliedPreset) -> None:
        if not applied.parts_not_applied:
            count = count_of(len(applied.parts), "part")
            done = f"preset {applied.preset_id}: {count} applied, and checked by reading them back"
            self.show_message(done, next_step="press r to revert the GPU settings")
            return
        self.services.clear_message()

        def make_outcome_rows(width: int) -> list[Row]:
            left = "No server runs, and no setting is changed."
            if applied.run_id:
                left = f"The server {applied.run_id} runs."
            return [
                *preset_part_rows(applied.parts, width, "not applied: "),
                (),
                *paragraph_rows(left, width),
            ]

        self.services.pages.open(
            Page(f"{applied.preset_id}: not applied whole", make_outcome_rows, kind="apply")
        )


def _import_preset_modules() -> None:
    """Import the modules that find out what a preset changes. The import is slow, so call this
    function in a thread, and not in the one that draws the screen."""
    import workbench.gpu.settings.apply
    import workbench.gpu.settings.plan
    import workbench.session.plans.preset_apply  # noqa: F401


def preset_part_rows(parts: Sequence[PresetPart], width: int, problem_prefix: str) -> list[Row]:
    """Return the rows of a preset's parts: for each part its name, its change and its command. A
    part that cannot be applied also has a row with `problem_prefix`, such as "not applied: ",
    followed by the reason."""
    rows: list[Row] = []
    for part in parts:
        role = "strong"
        if part.problem:
            role = "warn"
        lines = paragraph_rows(part.change_text, width - NAME_CELLS, role)
        rows += rows_beside_label(pad_text(part.name, NAME_CELLS), "title", lines)
        if part.problem:
            rows += paragraph_rows(f"  x {problem_prefix}{part.problem}", width, "warn", "    ")
        if part.command:
            rows += paragraph_rows(f"  $ {part.command}", width, "dim", "    ")
    return rows
