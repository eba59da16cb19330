"""Pairs of runs that compare the best value of a GPU sweep with the previous value."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from workbench.bench.compare import compare
from workbench.bench.metric_changes import BETTER
from workbench.model.errors import WorkbenchError
from workbench.session.series.sweep_progress import SweepProgress, broken

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, Comparison

# a value is named for the first; for the second if power is not known
METRICS = ("tok_per_joule", "output_tok_s")


async def compare_in_pairs(
    progress: SweepProgress,
    label: str,
    pairs: int,
    measure: Callable[[str, int], Awaitable[BenchResult]],
) -> None:
    """Measure arm "A" (the previous value) and arm "B" (the value with this label) `pairs` times,
    each arm first in half of the pairs. Store the outcome as a note of the sweep. `measure(arm,
    pair)` sets the arm's value and benchmarks it. Raises WorkbenchError if a run has no valid
    result."""
    orders = [("AB", "BA")[pair % 2] for pair in range(pairs)]
    random.Random(progress.sweep.id).shuffle(orders)
    found: list[tuple[BenchResult, BenchResult]] = []
    for pair in range(pairs):
        made = {}
        for arm in orders[pair]:
            progress.check_stop()
            result = await measure(arm, pair)
            why = broken(result) or next(iter(result.summary.refused), None)
            if why:
                raise WorkbenchError(
                    f"the result of run {arm} in pair {pair + 1} is invalid: {why}"
                )
            made[arm] = result
            progress.pair_run_done()
        found.append((made["A"], made["B"]))
    metric = METRICS[any(r.summary.tok_per_joule is None for both in found for r in both)]
    comparison = compare([a for a, _ in found], [b for _, b in found], paired=True, chosen=metric)
    confirmed = next(m.verdict for m in comparison.metrics if m.metric == metric) == BETTER
    progress.change(confirmed=confirmed)
    outcome = "confirmed" if confirmed else "not confirmed"
    progress.note(
        f"{label} against the previous value in {pairs} pairs: {outcome}, "
        f"{_changes(comparison, metric)}"
    )


def _changes(comparison: Comparison, metric: str) -> str:
    change = next(m for m in comparison.metrics if m.metric == metric)
    speed = next(m for m in comparison.metrics if m.metric == "output_tok_s")
    shown = [
        f"{name} {_pct(m.change_pct)} ± {m.interval_pct:.1f} %"
        for name, m in (("tok/J", change), ("tok/s", speed))
        if m.interval_pct is not None and (m is not change or metric == METRICS[0])
    ]
    return ", ".join([*shown, *comparison.warnings]) or change.verdict


def _pct(value: float | None) -> str:
    return "n/a" if value is None else f"{value:+.1f}"
