"""The command `compare`, which shows the differences between two results or two groups of
results."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.cli.output import print_json_or_lines
from workbench.cli.registry import command, option, repeatable_option
from workbench.cli.results import open_results_db, parse_result_ids
from workbench.model.errors import InputError

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, Comparison
    from workbench.store.results_db import ResultsDb


@command(
    "compare",
    "show what changed between two results or groups of results, in configuration and in metrics",
    option(
        "groups IDS",
        "the results of A, then of B: 7, 1-3 or 1,2,5. Several results per side give an interval",
        nargs="*",
    ),
    repeatable_option("--tag TAG", "use all results with this tag as a group", dest="tags"),
    repeatable_option(
        "--arm",
        "the difference that you compare on purpose: no warning is shown about it",
        dest="arms",
        choices=("model", "engine", "host", "driver"),
    ),
    examples=(
        "workbench compare 41 42",
        "workbench compare 41-43 44,45,47",
        "workbench compare --tag before --tag after --arm driver",
    ),
)
def compare_results(arguments: argparse.Namespace) -> int:
    from workbench.bench import compare as comparing
    from workbench.store.quality_db import QualityDb

    db = open_results_db()
    sides = [[db.get(i) for i in parse_result_ids(text)] for text in arguments.groups]
    sides += [_list_results_with_tag(db, tag) for tag in arguments.tags]
    if len(sides) != 2:
        raise InputError(
            f"`compare` takes two results or two groups, not {len(sides)}",
            next_step="give two, for example compare 1 2, compare 1-3 4-6, or compare --tag before "
            "--tag after",
        )
    a, b = sides
    if both := sorted({r.id for r in a} & {r.id for r in b}):
        raise InputError(
            f"{', '.join(f'#{i}' for i in both)} would be in both groups of results",
            next_step="give groups that have no result in common; `workbench results list` lists "
            "the results",
        )
    kinds = [kind for arm in arguments.arms for kind in comparing.DIFFERENCES_OF_ARM_KIND[arm]]
    comparison = comparing.compare(
        a, b, arms=kinds, quality=QualityDb(db.path).newest_comparisons()
    )
    document = {**asdict(comparison), "ids_a": [r.id for r in a], "ids_b": [r.id for r in b]}
    return print_json_or_lines(arguments.json, document, _comparison_lines(comparison, a, b))


def _list_results_with_tag(db: ResultsDb, tag: str) -> list[BenchResult]:
    found = [*reversed(db.list(None, tag=tag))]
    if not found:
        raise InputError(
            f"no result has the tag {tag!r}", next_step="`workbench results tag ID +TAG` adds a tag"
        )
    return found


def _format_side(side: str, runs: Sequence[BenchResult]) -> str:
    """Return the name of one side of a comparison with the ids of its results, such as "A #1 #2".
    Simulated results are marked."""
    simulated = {r.conditions.simulated for r in runs}
    mark = ""
    if simulated == {True}:
        mark = "  SIMULATED"
    elif True in simulated:
        mark = "  in part SIMULATED"
    ids = [f"#{r.id}" for r in runs]
    return f"{side} {' '.join(ids if len(ids) < 9 else [*ids[:7], '…', ids[-1]])}{mark}"


def _comparison_lines(
    comparison: Comparison, a: Sequence[BenchResult], b: Sequence[BenchResult]
) -> Iterator[str]:
    from workbench.report.formats.terminal import block_lines
    from workbench.report.series_blocks import comparison_blocks

    yield f"{_format_side('A', a)}  vs  {_format_side('B', b)}"
    yield from block_lines(comparison_blocks(comparison))
