"""The list of results with each experiment and each sweep as one row, which opens into its runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from workbench.model.counts import count_of
from workbench.model.lazy_dataclass import dataclass
from workbench.tui.cells import Row, cut_text

if TYPE_CHECKING:
    from workbench.session.bench.row import BenchRow, SeriesView


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """An experiment or a sweep in the list of results, with its runs, the newest first."""

    view: SeriesView
    runs: tuple[BenchRow, ...]
    opened: bool

    @property
    def name(self) -> str:
        return self.view.name


def group_results(
    rows: Sequence[BenchRow], opened_names: Collection[str]
) -> list[BenchRow | SeriesRow]:
    """Return `rows` with one row in the place of the newest run of each series. The runs follow it
    if its name is among `opened_names`."""
    runs: dict[str, list[BenchRow]] = {}
    for row in rows:
        if row.series is not None:
            runs.setdefault(row.series.name, []).append(row)
    items: list[BenchRow | SeriesRow] = []
    for row in rows:
        if row.series is None:
            items.append(row)
            continue
        name = row.series.name
        own = runs.pop(name, None)
        if own is None:
            continue
        items.append(SeriesRow(row.series, tuple(own), name in opened_names))
        items += own if name in opened_names else ()
    return items


def series_row(item: SeriesRow, width: int) -> Row:
    """Return the row of a series: its name, its verdict, and the number of its runs."""
    sign = "v" if item.opened else ">"
    head, runs = f"{sign} {item.name} ", f" ({count_of(len(item.runs), 'run')})"
    said = cut_text(item.view.said, max(0, width - len(head) - len(runs)))
    return ((head, "title"), (said, "text"), (runs, "dim"))
