"""The result type of the advisor's rules: a finding with its expected gain as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.advisor.facts import Facts

SPEED = "tok/s"
THRIFT = "tok/J"
_LEAST_GAIN_PCT = 1.0  # a smaller one is called none
_PLACES_OF_GAINS = {SPEED: 1, THRIFT: 3}  # in the order of advice
_PLACES_WITHOUT_GAIN = {Level.ERROR: 0, Level.WARN: 0, Level.HINT: 2, Level.INFO: 4}


@dataclass(frozen=True, slots=True)
class Gain:
    """The expected gain of a change as a range in percent. A `low_pct` of 0 means "up to
    `high_pct`". `of` is the metric that improves, such as "tok/s". `measured_on` names the model
    and the GPU of the measurement from which the gain is transferred; "" for a calculation about
    the server itself."""

    low_pct: float
    high_pct: float
    of: str = SPEED
    measured_on: str = ""

    @property
    def expected_gain_text(self) -> str:
        source = f" (transferred from {self.measured_on})" if self.measured_on else ""
        return f"{self._expected_range_text}{source}"

    @property
    def _expected_range_text(self) -> str:
        if self.low_pct <= 0:
            return f"up to +{self.high_pct:.0f} % {self.of}"
        if round(self.low_pct) == round(self.high_pct):
            return f"about +{self.high_pct:.0f} % {self.of}"
        return f"+{self.low_pct:.0f} to +{self.high_pct:.0f} % {self.of}"

    @property
    def midpoint_pct(self) -> float:
        return (self.low_pct + self.high_pct) / 2


@dataclass(frozen=True, slots=True)
class Advice:
    """A finding with its expected gain. The gain is None if neither a source nor a calculation
    gives a number."""

    finding: Finding
    gain: Gain | None = None

    @property
    def sort_key(self) -> tuple[int, float]:
        """The sort key of this advice. Warnings and errors come first, then gains in speed from
        large to small, then hints without a known gain, then gains in efficiency, and last plain
        information."""
        gain = self.gain
        if gain is None:
            return _PLACES_WITHOUT_GAIN[self.finding.level], 0.0
        return _PLACES_OF_GAINS[gain.of], -gain.midpoint_pct

    @property
    def finding_with_gain(self) -> Finding:
        """The finding of this advice, with the expected gain added as text."""
        if self.gain:
            return replace(self.finding, expected_gain=self.gain.expected_gain_text)
        return self.finding


Rule = Callable[["Facts"], Iterator[Advice]]
Part = TypeVar("Part")


def rule_about(
    find_part: Callable[[Facts], Part | None],
) -> Callable[[Callable[[Facts, Part], Iterator[Advice]]], Rule]:
    """Return a decorator that makes a rule of a function about one part of the facts, which
    `find_part` returns. The rule gives no advice if the part is unknown (None)."""

    def make_rule(report: Callable[[Facts, Part], Iterator[Advice]]) -> Rule:
        @wraps(report)
        def rule(facts: Facts) -> Iterator[Advice]:
            part = find_part(facts)
            if part is not None:
                yield from report(facts, part)

        return rule

    return make_rule


def format_share_as_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def make_advice(
    level: Level,
    code: str,
    text: str,
    *,
    fix: str = "",
    evidence: str = "",
    source: str = "",
    changes: tuple[PlanChange, ...] = (),
    settings: tuple[str, ...] = (),
    gain: Gain | None = None,
) -> Advice:
    """Return an advice made of a finding with these fields and the expected `gain`. A gain below 1
    % is left out. The finding's flag is that of the first change; None without a change."""
    finding = Finding(
        level,
        code,
        text,
        next((change.name for change in changes), None),
        fix or None,
        source or None,
        evidence=evidence or None,
        changes=changes,
        settings=settings,
    )
    shown = gain is not None and gain.high_pct >= _LEAST_GAIN_PCT
    return Advice(finding, gain if shown else None)
