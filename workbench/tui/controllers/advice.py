"""The keys of the advice: show what the advisor says about a result, and test one finding in an A/B
experiment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from workbench.model.findings import Level
from workbench.tui.controllers.base import Controller
from workbench.tui.formats import enclose_nonempty_text
from workbench.tui.modals.base import PickModal
from workbench.tui.pages.base import Keys, Page

if TYPE_CHECKING:
    from workbench.model.findings import Finding
    from workbench.model.plan import LaunchPlan
    from workbench.session.results.advice import AdvisedResult


class AdviceController(Controller):
    def open_advice_on_selected_result(self) -> None:
        """Open the page with the advice on the result under the cursor of the Bench pane."""
        if (row := self.controllers.results.selected_row) is not None:
            self.run_in_background(
                self.session.advisor.advise_on_result(row.id), self.open_advice_page
            )

    def open_advice_page(self, advised: AdvisedResult) -> None:
        from workbench.report.finding_blocks import advice_blocks  # not for the first frame
        from workbench.tui.block_rows import block_rows

        result = advised.result
        assert result is not None  # of_result has one
        title = f"Advice on result #{result.id}"
        blocks = advice_blocks(advised.findings, advised.verdicts)
        page = Page(
            title,
            lambda w: block_rows(blocks, w),
            lambda: self.advice_page_keys(advised),
            kind="advice",
        )
        self.services.pages.open(page)

    def advice_page_keys(self, advised: AdvisedResult) -> Keys:
        """Return the page key that starts the test of a finding in an A/B experiment, as {key:
        (label, function)}. Return {} if no finding of the advice `advised` can be tested."""
        from workbench.session.results.advice import can_test_finding

        found = list(filter(can_test_finding, advised.findings))
        if not found:
            return {}
        return {"t": ("Test a change (A/B)", lambda: self._pick_finding_and_test(advised, found))}

    def pick_and_test_finding(self, advised: AdvisedResult, findings: Sequence[Finding]) -> None:
        """Let the user pick one of `findings`, and test its change in an A/B
        experiment. If the advice `advised` has no result to compare with, show a message
        instead."""
        if advised.result is None:
            text = "this run has no valid result to compare with"
            self.show_message(
                text,
                Level.WARN,
                next_step="measure the run (b in the Bench pane), then press t again",
            )
            return
        self.run_in_background(self._pick_finding_and_test(advised, findings))

    async def _pick_finding_and_test(
        self, advised: AdvisedResult, findings: Sequence[Finding]
    ) -> None:
        async def test_finding(finding: Finding) -> None:
            await self._start_experiment(advised, finding)

        await self.pick_and_use_finding("Test which change?", findings, test_finding)

    async def pick_and_use_finding(
        self,
        title: str,
        findings: Sequence[Finding],
        use_finding: Callable[[Finding], Awaitable[None] | None],
    ) -> None:
        """Show `findings` in a list titled `title`, and call `use_finding` with the
        finding that the user picks. If there is only one finding, call `use_finding` with it
        without showing a list."""
        from workbench.report.finding_blocks import finding_text_with_gain

        async def use_finding_by_number(number: str | None) -> None:
            if number is not None:
                done = use_finding(findings[int(number)])
                if done is not None:
                    await done

        if len(findings) == 1:
            await use_finding_by_number("0")
            return

        items = []
        for number, finding in enumerate(findings):
            options = [change.option_text for change in finding.changes]
            changes = " ".join([*options, *finding.settings])
            items.append((str(number), f"{changes}  {finding_text_with_gain(finding)}", "text"))
        await self.app.push_screen(PickModal(title, items, free=False), use_finding_by_number)

    async def _start_experiment(self, advised: AdvisedResult, finding: Finding) -> None:
        from workbench.session.results.advice import (
            arms_of_finding,
            experiment_options_of,
            make_advised_change,
        )

        result, view = advised.result, self.state.plan
        if result is None or not self.controllers.experiments.can_measure_or_show_message():
            return
        if finding.settings and self.state.alterations:
            text = "GPU settings are altered, and this experiment begins without altered settings"
            self.show_message(
                text, Level.WARN, next_step="press r to revert the GPU settings, then t again"
            )
            return
        plan: LaunchPlan | None = None
        if view is not None:
            plan = view.plan
        arms = self.run_or_show_error(lambda: arms_of_finding(finding, result, plan))
        if arms is None:
            return
        if arms[0] == arms[1]:
            self.show_message("this result was measured with this change already", Level.WARN)
            return
        expected = enclose_nonempty_text(" Expected: ", finding.expected_gain, ".")
        about = [
            f"A is the configuration of result #{result.id}, B has the change as well.{expected}",
            f"Each run repeats the load of result #{result.id}. The first run is discarded.",
        ]
        options = self.run_or_show_error(lambda: experiment_options_of(finding, result))
        if options is None:
            return
        tested = make_advised_change(finding, result)
        await self.controllers.experiments.ask_precision_and_run_experiment(
            *arms, about, tested, options
        )
