"""The value that a GPU sweep names, in pairs of runs against what was set at the start."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from workbench.model.errors import WorkbenchError
from workbench.session.sweep_run import SweepRun, broken

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, Comparison

METRICS = ("tok_per_joule", "output_tok_s")  # what the value is named for; the second where power is not known


async def compared(
    run: SweepRun, label: str, pairs: int, measure: Callable[[str, int], Awaitable[BenchResult]]
) -> None:
    """Measure "A" (the start) and "B" (the value), either first as often as the other, and note what they show.
    `measure(arm, pair)` sets the arm and runs its benchmark."""
    from workbench.bench.compare import compare
    from workbench.bench.metric_changes import BETTER

    orders = [("AB", "BA")[pair % 2] for pair in range(pairs)]
    random.Random(run.sweep.id).shuffle(orders)
    found: list[tuple[BenchResult, BenchResult]] = []
    for pair in range(pairs):
        made = {}
        for arm in orders[pair]:
            run.session.going_on()
            result = await measure(arm, pair)
            why = broken(result) or next(iter(result.summary.refused), None)
            if why:
                raise WorkbenchError(f"a run of the pairs is not to be used: {why}")
            made[arm] = result
            run.paired()
        found.append((made["A"], made["B"]))
    metric = METRICS[any(r.summary.tok_per_joule is None for both in found for r in both)]
    comparison = compare([a for a, _ in found], [b for _, b in found], paired=True, chosen=metric)
    confirmed = next(m.verdict for m in comparison.metrics if m.metric == metric) == BETTER
    run.change(confirmed=confirmed)
    said = "confirmed" if confirmed else "not confirmed"
    run.note(f"{label} against the start in {pairs} pairs: {said}, {_sentence(comparison, metric)}")


def _sentence(comparison: Comparison, metric: str) -> str:
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
