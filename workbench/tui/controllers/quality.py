"""The keys of comparisons of answers: show what was found about two results, measure, stop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from workbench.model.errors import InputError
from workbench.model.experiment import Arm, ArmTarget
from workbench.model.quality import NOT_MEASURED
from workbench.tui.cells import Row, paragraph_rows, stack_paragraphs
from workbench.tui.controllers.base import Controller, import_module_in_thread
from workbench.tui.formats import time_of_day_text
from workbench.tui.glyphs import G
from workbench.tui.modals.ask import Confirm
from workbench.tui.modals.base import PickModal
from workbench.tui.pages.quality import QualityPage, ShownComparison

if TYPE_CHECKING:
    from workbench.model.quality import QualityResult
    from workbench.session.quality.measuring import QualityOptions
    from workbench.session.servers.arm_targets import BasePlans

    PlannedComparison = tuple[Arm, Arm, BasePlans, QualityOptions]


class QualityController(Controller):
    def open_quality_page(self) -> None:
        """Open the page about the answers of the results A and B, or about the comparison that
        runs."""
        self.run_in_background(self._find_comparison_to_show, self._open_comparison_page)

    def _open_comparison_page(self, content: ShownComparison) -> None:
        self.services.pages.open(QualityPage(self.state, content, self.run_page_action))

    def run_page_action(self, page: QualityPage, action: str) -> None:
        """Do what a key of the page asks for. `action` is "stop" (stop the comparison that runs),
        "list" (choose a stored comparison) or "measure" (ask for consent to a new comparison)."""
        if action == "stop":
            self.stop_comparison()
        elif action == "list":
            self.run_in_background(
                self.session.results.list_quality_results,
                partial(self._pick_stored_comparison, page),
            )
        elif (
            page.shown.pair is not None
            and self.controllers.experiments.can_measure_or_show_message()
        ):
            self.run_in_background(
                partial(self._plan_comparison, *page.shown.pair),
                partial(self._confirm_comparison, page),
            )

    def stop_comparison(self) -> None:
        """Stop the comparison that runs. The servers that ran before are restored."""
        self.run_in_background(self.session.quality.stop)

    async def _find_comparison_to_show(self) -> ShownComparison:
        """Return what the page shows: the comparison of the marked results, else of those of the
        Compare pane, else of the last two. Without two results, return the newest stored
        comparison."""
        stored = await self.session.results.list_quality_results()
        try:
            pair = self.session.results.resolve_result_pair(
                *self.controllers.results.marked_or_compared_result_ids()
            )
        except InputError:
            return ShownComparison(next(iter(stored), None), stored_count=len(stored))
        return ShownComparison(
            await self.session.results.find_comparison_of_answers(*pair), pair, len(stored)
        )

    def _pick_stored_comparison(
        self, page: QualityPage, comparisons: Sequence[QualityResult]
    ) -> None:
        """Let the user choose a stored comparison, and show it on the page."""

        def show_chosen_comparison(number: str | None) -> None:
            found = next((one for one in comparisons if str(one.id) == number), None)
            if found is not None:
                page.show_comparison(ShownComparison(found, page.shown.pair, len(comparisons)))

        items = [(str(one.id), _comparison_list_text(one), "text") for one in comparisons]
        result, shown = page.shown.result, ""
        if result is not None:
            shown = str(result.id)
        picker = PickModal("Comparisons of answers", items, chosen=shown, filter=True, free=False)
        self.app.push_screen(picker, show_chosen_comparison)

    # a new one
    async def _plan_comparison(self, a_id: int, b_id: int) -> PlannedComparison:
        """Return the comparison of the servers behind the results `a_id` and `b_id` as (A, B, base
        plans, options)."""
        await import_module_in_thread("workbench.session.quality.comparison")
        from workbench.quality import texts
        from workbench.session.quality.measuring import QualityOptions
        from workbench.session.quality.sides import resolve_arms_to_servers

        arms = [Arm(target=ArmTarget(f"#{number}")) for number in (a_id, b_id)]
        of_a, of_b = await resolve_arms_to_servers(self.session, *arms)
        of_a, of_b, bases = await self.session.quality.targets.resolve_targets(of_a, of_b)
        return of_a, of_b, bases, QualityOptions(texts=texts.shipped_text_set())

    def _confirm_comparison(self, page: QualityPage, planned: PlannedComparison) -> None:
        """Show what a comparison does and what it takes, and start it if the user agrees."""
        from workbench.session.quality.comparison import comparison_plan_lines
        from workbench.session.quality.sides import run_ids_to_stop

        a, b, bases, options = planned
        stopped = run_ids_to_stop(self.session, a, b)

        lines, engines = [], {"A": ""}
        for side, number in zip("AB", page.shown.pair or (), strict=False):
            row = self.state.find_result(number)
            if row is not None:
                lines.append(f"{side} is the server of result #{number}: {row.label}")
                engines[side] = row.engine
        lines += comparison_plan_lines(a, b, bases, options, engines["A"])

        def make_question_rows(width: int) -> list[Row]:
            rows = stack_paragraphs(lines, width, "text", "   ")
            if stopped:
                warning = (
                    f"run {', '.join(stopped)} is stopped meanwhile, and a server runs at the end"
                )
                rows += [(), *paragraph_rows(f"{G.alert} {warning}", width, "warnb", "  ")]
            return rows

        def measure_if_confirmed(yes: bool | None) -> None:
            if yes:
                work = partial(self.session.quality.compare_and_show_progress, a, b, bases, options)
                self.run_measurement(work, partial(self._show_comparison_result, page))

        ask = Confirm(
            "Compare the answers of A and B", make_question_rows, yes="measure", wide=True
        )
        self.app.push_screen(ask, measure_if_confirmed)

    def _show_comparison_result(self, page: QualityPage, result: QualityResult) -> None:
        """Show what was found. If the Compare pane shows the two results, it says so too."""
        page.show_comparison(ShownComparison(result, page.shown.pair, page.shown.stored_count + 1))
        self.show_message(result.summary, next_step="press Q to see where A and B part")
        comparison = self.state.comparison
        if comparison is not None and page.shown.pair == (comparison.a, comparison.b):
            self.run_in_background(self.session.results.compare(comparison.a, comparison.b))


def _comparison_list_text(comparison: QualityResult) -> str:
    verdict, sides = comparison.verdict, f"{comparison.a} > {comparison.b}"
    if comparison.simulated:
        sides = f"SIMULATED {sides}"
    if comparison.imported:
        sides = f"imported {sides}"
    if verdict == NOT_MEASURED:
        verdict = "not measured"
    return f"{comparison.id:>4} {time_of_day_text(comparison.unix_s)}  {verdict:<12}  {sides}"
