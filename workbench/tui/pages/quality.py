"""The page about the answers of A and B: whether they are the same, how that was measured, and
where they part. While a comparison runs, the page shows how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.model.lazy_dataclass import dataclass
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.formats import gauge_text
from workbench.tui.glyphs import G
from workbench.tui.pages.base import Keys, Page

if TYPE_CHECKING:
    from workbench.model.quality import QualityResult
    from workbench.report.blocks import Block
    from workbench.session.state import QualityView, SessionState

_ROLES = {"same": "goodb", "differs": "bad", "broken": "bad"}
_GAUGE_CELLS = 24
_WHAT = (
    "A comparison of answers scores 34 texts on both servers, and lets both write after the same "
    "beginnings, several answers together. It says whether the answers of B are the same as those of "
    "A, or by how much they differ."
)


@dataclass(frozen=True, slots=True)
class ShownComparison:
    """What the page is about: the comparison that is shown, None if there is none yet, and the two
    results whose servers can be compared, None if there are no two."""

    result: QualityResult | None = None
    pair: tuple[int, int] | None = None
    stored_count: int = 0  # comparisons that are stored


class QualityPage(Page):
    """The page about one comparison of answers. `run_page_action(page, action)` is called for its
    keys, with "measure", "stop" or "list"."""

    OWN = "Kmo"

    def __init__(
        self,
        state: SessionState,
        shown: ShownComparison,
        run_page_action: Callable[[Any, str], Any],
    ) -> None:
        self.state, self.shown, self.run_page_action = state, shown, run_page_action
        super().__init__(
            "Answers of A and B", self._page_rows, self._keys_possible_now, kind="quality"
        )

    def show(self, state: SessionState) -> None:
        before, self.state = self.state.quality, state
        if before is not state.quality:
            self.draw()

    def show_comparison(self, shown: ShownComparison) -> None:
        self.shown, self.top = shown, 0
        self.draw()

    @property
    def running_comparison(self) -> QualityView | None:
        return self.state.running_quality

    def _keys_possible_now(self) -> Keys:
        found: dict[str, tuple[str, Callable[[], Any]]] = {}
        running = self.running_comparison
        if running is not None:
            if not running.stopping:
                found["K"] = ("Stop", partial(self.run_page_action, self, "stop"))
            return found
        if self.shown.pair is not None and self.state.host.replay is None:
            found["m"] = ("Measure", partial(self.run_page_action, self, "measure"))
        if self.shown.stored_count:
            found["o"] = ("Others", partial(self.run_page_action, self, "list"))
        return found

    def _page_rows(self, width: int) -> list[Row]:
        if self.running_comparison is not None:
            return running_comparison_rows(self.running_comparison, width)
        view = self.state.quality
        rows: list[Row] = []
        if view is not None and view.ended:
            rows = [*paragraph_rows(f"{G.alert} {view.ended}", width, "warn", "  "), ()]
        if self.shown.result is not None:
            return [*rows, *quality_comparison_rows(self.shown.result, width)]
        return [*rows, *self._no_result_rows(width)]

    def _no_result_rows(self, width: int) -> list[Row]:
        pair = self.shown.pair
        if pair is None:
            text = "No two results of this host are there, so there is nothing to compare."
            then = "Press b to run a benchmark, and again after a change."
            return [*paragraph_rows(text, width), *paragraph_rows(then, width, "dim")]
        head: Row = (
            (f"A #{pair[0]}", "a"),
            (" vs ", "dim"),
            (f"B #{pair[1]}", "b"),
            ("  quality not measured", "warnb"),
        )
        then = "Press m to see what it takes, and to start it."
        return [head, (), *paragraph_rows(_WHAT, width), (), *paragraph_rows(then, width, "key")]


def running_comparison_rows(view: QualityView, width: int) -> list[Row]:
    """Return the rows about a comparison that runs: the two servers, the progress, and the steps
    that were done."""
    rows = [*_compared_side_rows(view.a, view.b, width), ()]
    if view.stopping:
        rows += paragraph_rows(
            "~ stopping: the servers that ran before are restored", width, "warn"
        )
    elif view.step and view.done < view.total:
        gauge = gauge_text(view.done / view.total, min(_GAUGE_CELLS, width - 2))
        rows.append(((f"~ {view.step} {view.done}/{view.total}", "warn"),))
        rows.append(((f"  {gauge}", "warn"),))
    else:
        rows.append((("~ under way", "warn"),))
    rows.append(())
    for text in view.said:
        rows += paragraph_rows(f"ok {text}", width, "dim", "   ")
    return rows


def _compared_side_rows(a: str, b: str, width: int) -> list[Row]:
    return [
        *paragraph_rows(f"A  {a}", width, "a", "   "),
        *paragraph_rows(f"B  {b}", width, "b", "   "),
    ]


def quality_comparison_rows(result: QualityResult, width: int) -> list[Row]:
    """Return the rows of a comparison of answers: the verdict first, then the blocks of the
    reports. A table that is wider than the page is shown as one paragraph a row."""
    from workbench.report.blocks import SIMULATED
    from workbench.report.quality_blocks import (
        compared_sides_rows,
        instrument_problem_blocks,
        quality_detail_blocks,
    )
    from workbench.tui.block_rows import block_rows, fact_rows

    role = _ROLES.get(result.verdict, "warnb")
    rows: list[Row] = [*paragraph_rows(result.summary, width, role), ()]
    if result.simulated:
        rows += block_rows([SIMULATED], width)
    rows += block_rows(instrument_problem_blocks(result), width)
    rows += _compared_side_rows(result.a, result.b, width)
    facts = [fact for fact in compared_sides_rows(result) if fact[0] not in ("A", "B")]
    rows += fact_rows(facts, width)
    blocks: Sequence[Block] = quality_detail_blocks(result)
    return [*rows, *block_rows(blocks, width, show_all=True)]
