"""A GPU sweep confirms the value that it names in pairs against the start, and claims no more than
they show."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.made_results import result, sweep

from workbench.model.bench import BenchResult
from workbench.model.errors import WorkbenchError
from workbench.model.sweep import Sweep
from workbench.session.series.paired_runs import compare_in_pairs


class Run:
    def __init__(self) -> None:
        self.sweep = sweep(kind="power_limit_w")

    def change(self, **fields: Any) -> None:
        self.sweep = replace(self.sweep, **fields)

    def check_stop(self) -> None:
        pass

    def pair_run_done(self) -> None:
        self.change(left_s=0.0)

    def note(self, text: str) -> None:
        self.change(notes=(*self.sweep.notes, text))


def carried_out(gain: float, refused: tuple[str, ...] = ()) -> tuple[Sweep, list[tuple[str, int]]]:
    """Of a value with `gain` times the start's tok/J; the start's own pairs differ by 1 %."""
    run, made = Run(), []

    async def measure(arm: str, pair: int) -> BenchResult:
        made.append((arm, pair))
        plain = result(len(made))
        thrift = (1 + 0.01 * (pair % 2)) * (gain if arm == "B" else 1.0)
        return replace(
            plain,
            spec=replace(plain.spec, seed=pair),
            summary=replace(
                plain.summary, tok_per_joule=thrift, refused=refused, requests_failed=0, errors={}
            ),
        )

    asyncio.run(compare_in_pairs(run, "400 W", 4, measure))  # type: ignore[arg-type]
    return run.sweep, made


def test_a_value_that_saves_in_every_pair_is_confirmed() -> None:
    found, made = carried_out(1.2)
    assert found.confirmed is True
    assert found.notes[-1].startswith(
        "400 W against the previous value in 4 pairs: confirmed, tok/J +20"
    )
    assert sorted(made) == sorted((arm, pair) for pair in range(4) for arm in "AB")
    assert {made[2 * pair][0] for pair in range(4)} == {"A", "B"}, "either comes first in some pair"


def test_a_value_that_does_not_is_not() -> None:
    found, _ = carried_out(1.0)
    assert found.confirmed is False and "pairs: not confirmed" in found.notes[-1]


def test_a_run_that_refuses_itself_confirms_nothing() -> None:
    with pytest.raises(WorkbenchError, match="is invalid: settings changed during the run"):
        carried_out(1.2, ("settings changed during the run: GPU0 power limit 300 -> 220 W",))
