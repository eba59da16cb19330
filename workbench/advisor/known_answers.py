"""Advice that would make the answers worse: a change is not recommended if the answers of the
server with it were compared with those without it, and differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench.engines.answer_settings import collect_answer_settings, find_quality_comparison
from workbench.model.bench import Conditions
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.quality import BROKEN, DIFFERS, QualityResult


def withdraw_changes_with_worse_answers(
    findings: Sequence[Finding], conditions: Conditions, known: Sequence[QualityResult]
) -> tuple[Finding, ...]:
    """Return findings about a server with these conditions. One whose change is known to change the
    answers recommends nothing any more, says why, and comes last. `known` has the comparisons of
    answers, the newest first."""
    kept, refused = [], []
    for finding in findings:
        worse = _find_comparison_with_worse_answers(finding.changes, conditions, known)
        if worse is None:
            kept.append(finding)
        else:
            refused.append(_mark_as_not_recommended(finding, worse))
    return (*kept, *refused)


def _find_comparison_with_worse_answers(
    changes: Sequence[PlanChange], conditions: Conditions, known: Sequence[QualityResult]
) -> QualityResult | None:
    if not changes or not known:
        return None
    flags: dict[str, Any] = dict(conditions.flags)
    env = dict(conditions.env)
    for change in changes:
        target: dict[str, Any] = env if change.env else flags
        target.pop(change.name, None)
        if change.value is not None:
            target[change.name] = str(change.value) if change.env else change.value
    changed = replace(conditions, flags=flags, env=env)
    before, after = collect_answer_settings(conditions), collect_answer_settings(changed)
    found = find_quality_comparison(before, after, known, simulated=conditions.simulated)
    return found if found is not None and found.verdict in (DIFFERS, BROKEN) else None


def _mark_as_not_recommended(finding: Finding, worse: QualityResult) -> Finding:
    simulated = ", SIMULATED" if worse.simulated else ""
    where = f"comparison of answers {worse.id}{simulated}"
    return replace(
        finding,
        level=Level.INFO,
        text=f"not recommended: with this change, {worse.summary} ({where}). {finding.text}",
        fix=None,
        changes=(),
        settings=(),
        expected_gain=None,
    )
