"""compare: two results, or two groups of them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.cli.dispatch import Command, emit
from workbench.cli.open_session import say
from workbench.model.bench import half_width
from workbench.model.errors import InputError

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, Comparison
    from workbench.store.results_db import ResultsDb

_MOST = 1000  # results in a group


def ids_of(text: str) -> tuple[int, ...]:
    """ "7", "1-3", "1,2,5-7". Raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,18}(-[0-9]{1,18})?\s*", part):
            raise InputError(f"{text!r} names no results", next_step="for example 7, 1-3 or 1,2,5-7")
        first, _, last = part.strip().partition("-")
        if not 0 <= int(last or first) - int(first) < _MOST:
            raise InputError(f"{part.strip()!r} is no range of results", next_step=f"at most {_MOST}, the lower first")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def compare(arguments: argparse.Namespace) -> int:
    from workbench.bench.compare import ARMS
    from workbench.bench.compare import compare as compared
    from workbench.session.session import Session

    db = Session.of_host().results_db
    sides = [[db.get(i) for i in ids_of(text)] for text in arguments.groups]
    sides += [_tagged(db, tag) for tag in arguments.tags]
    if len(sides) != 2:
        raise InputError(
            f"comparing takes two results or groups, not {len(sides)}",
            next_step="for example compare 1 2, compare 1-3 4-6, or compare --tag before --tag after",
        )
    a, b = sides
    if both := sorted({r.id for r in a} & {r.id for r in b}):
        twice = ", ".join(f"#{i}" for i in both)
        raise InputError(f"{twice} would be in both groups", next_step="give two: workbench results list")
    kinds = [kind for arm in arguments.arms for kind in ARMS[arm]]
    comparison = compared(a, b, arms=kinds)
    if arguments.json:
        ids = {"ids_a": [r.id for r in a], "ids_b": [r.id for r in b]}
        return emit({**asdict(comparison), **ids})
    _say(comparison, a, b)
    return 0


def _tagged(db: ResultsDb, tag: str) -> list[BenchResult]:
    found = [*reversed(db.list(None, tag=tag))]
    if not found:
        raise InputError(f"no result has the tag {tag!r}", next_step="workbench results tag ID +TAG")
    return found


def _named(side: str, runs: Sequence[BenchResult]) -> str:
    simulated = {r.conditions.simulated for r in runs}
    word = "" if simulated == {False} else "  SIMULATED" if simulated == {True} else "  in part SIMULATED"
    shown = [f"#{r.id}" for r in runs]
    return f"{side} {' '.join(shown if len(shown) < 9 else [*shown[:7], '…', shown[-1]])}{word}"


def _say(comparison: Comparison, a: Sequence[BenchResult], b: Sequence[BenchResult]) -> None:
    say(f"{_named('A', a)}  vs  {_named('B', b)}")
    for warning in comparison.warnings:
        say(f"  not like for like: {warning}")
    for one in comparison.differences:
        name = one["name"] if one["kind"] == one["name"] else f"{one['kind']} {one['name']}"
        say(f"  {name}: {one['a']} -> {one['b']}")
    if not comparison.differences:
        say("  the same configuration")
    for change in comparison.metrics:
        x, y = (("n/a" if v is None else f"{v:,.2f}") for v in (change.a, change.b))
        moved = "" if change.change_pct is None else f"{change.change_pct:+.1f} %"
        width = "" if change.interval_pct is None else f" ± {half_width(change.interval_pct)}"
        say(f"  {change.metric:<14} {x:>12} {y:>12} {change.unit:<6} {moved:>9}{width}  {change.verdict}")
    for line in comparison.notes:
        say(f"  {line}")


COMMANDS: dict[str, Command] = {"compare": compare}
