"""The advisor: applies all rules to a result or a running server, and sorts the findings."""

from __future__ import annotations

from workbench.advisor import gpu_rules, load_rules, scope_rules, speed_rules
from workbench.advisor.advice import Advice, Rule, make_advice
from workbench.advisor.facts import Facts
from workbench.model.findings import Finding, Level

RULES: tuple[Rule, ...] = (
    *speed_rules.RULES,
    *load_rules.RULES,
    *gpu_rules.RULES,
    *scope_rules.RULES,
)


def list_advice_findings(facts: Facts) -> tuple[Finding, ...]:
    """Return the findings about a result or a running server, with those of `facts.log` about the
    server's log. Warnings and errors come first, then changes with the largest expected gain, and
    last plain information. If the server's text is no answer, the finding about it is the first."""
    found = [*load_rules.report_text_without_answer(facts), *map(Advice, facts.log)]
    for rule in RULES:
        found += rule(facts)
    if sum(one.gain is not None for one in found) > 1:
        found.append(_make_one_change_at_a_time_advice(facts))
    return tuple(one.finding_with_gain for one in sorted(found, key=lambda one: one.sort_key))


def _make_one_change_at_a_time_advice(facts: Facts) -> Advice:
    """Return the advice to test one change at a time, because the expected gains of several
    findings cannot be added up."""
    text = "the expected gains do not add up, and changes overlap: test one at a time"
    limit = facts.ceiling_tok_s
    fix = ""
    if limit:
        fix = (
            f"all changes together cannot exceed {limit:.4g} tok/s per stream with the same bytes per "
            "token"
        )
    return make_advice(Level.INFO, "promise.sum", text, fix=fix)
