"""The measured outcomes of experiments that tested a finding, as sentences such as "expected up to
+127 % tok/s, measured +85.2 % ± 2.1 (experiment 4)"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.series_state import SeriesState

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.model.experiment import Experiment
    from workbench.model.findings import Finding

_KEPT = (SeriesState.DONE, SeriesState.STOPPED)


def list_verdicts_on_finding(
    finding: Finding, result: BenchResult, experiments: Sequence[Experiment]
) -> tuple[str, ...]:
    """Return one sentence for each experiment that tested this finding, on this result or on
    another result of the same host and model. The newest of `experiments` comes first, and the
    sentences keep this order."""
    found = []
    for experiment in experiments:
        tested = experiment.advice
        if tested is None or tested.code != finding.code or experiment.state not in _KEPT:
            continue
        alike = (experiment.host, tested.model) == (result.conditions.host, result.conditions.model)
        if tested.result_id == result.id or alike:
            found.append(format_verdict(experiment))
    return tuple(found)


def format_verdict(experiment: Experiment) -> str:
    """Return a sentence that compares the gain that an experiment measured with the expected gain
    of the finding that it tested. "" if the experiment tests no finding."""
    tested = experiment.advice
    if tested is None:
        return ""
    expected = "no gain was expected in numbers"
    if tested.expected_gain:
        expected = f"expected {tested.expected_gain}"
    measured = f"measured {experiment.measured}" if experiment.measured else "nothing was shown"
    unfinished = "" if experiment.state == SeriesState.DONE else f", {experiment.state}"
    said = f"{expected}, {measured} (experiment {experiment.id}{unfinished})"
    comparison = experiment.comparison
    if comparison is None:
        return said
    return "; ".join(
        filter(
            None, (said, comparison.quality, comparison.broken_answer_clause, comparison.content)
        )
    )
