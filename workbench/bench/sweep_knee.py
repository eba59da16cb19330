"""The knee of a sweep (one benchmark for each of several values of a setting): the value beyond
which more costs much and gains little. All functions are pure.

Methods that look for the strongest bend of a curve find a knee in any curve, even in a straight
line or in noise. The two rules here do not. Both consider only the values that keep nearly all of
the best throughput. A sweep over GPU settings then names the value with the most tok/J, a sweep
over the concurrency the value with the lowest latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from workbench.model.counts import format_four_digits, is_or_are
from workbench.model.lazy_dataclass import dataclass
from workbench.model.sweep import SweepPoint

MIN_MEASURED_POINTS = 3  # measured values: two give a line, not a bend
# of tok/s that a GPU setting may cost: above the 1-2 % by which single runs differ
MAX_SETTING_LOSS_SHARE = 0.05
FLAT_CURVE_SHARE = 0.02  # within this tok/s is called flat: what single runs cannot tell apart
NO_EFFECT = "no effect"  # value of SweepPoint.in_force
NOTHING_LIMITED_TEXT = (
    "no knee: no value limited anything (the driver reported no power cap, and the GPUs drew less "
    "than each value"
    " allows), so the differences between the values are noise"
)
MAX_CONCURRENCY_LOSS_SHARE = 0.10  # throughput grows by doublings there, and latency with it


@dataclass(frozen=True, slots=True)
class Knee:
    """The knee of a sweep, which is the value beyond which more costs much and gains little.
    `index` is its position in the sweep's points, and `text` states the rule and the numbers by
    which it was found. If there is no knee, `index` is None and `text` says why."""

    index: int | None
    text: str


class _MeasuredPoint(NamedTuple):
    """A measured point with its place among all points of the sweep. `x` is the value of the
    setting or the concurrency, and 0 for a point without one; an unknown `tok_per_joule` is 0."""

    place: int
    point: SweepPoint
    x: float
    tok_s: float
    tok_per_joule: float

    @property
    def label(self) -> str:
        return self.point.label

    @property
    def ms_per_token_and_stream(self) -> float:
        return 1000 * self.x / self.tok_s


_setting_value = attrgetter("x")


def find_knee_of_gpu_setting(points: Sequence[SweepPoint]) -> Knee:
    """Return the knee of a sweep over a power limit or a clock. The knee is the value with the most
    tok/J among the values whose tok/s is at most 5 % below the best.

    Values that had no effect are left out. There is no knee if tok/s is equal at all values, or
    still rises at the highest value.
    """
    measured = _points_with_throughput(points)
    known = [p for p in measured if p.point.in_force != NO_EFFECT]
    if known and all(p.point.bound is False for p in known):
        return Knee(None, NOTHING_LIMITED_TEXT)
    found = _find_knee_of_curve(known)
    idle = [p.label for p in measured if p.point.in_force == NO_EFFECT]
    if not idle:
        return found
    return Knee(
        found.index, f"{found.text}; left out, since the setting had no effect: {', '.join(idle)}"
    )


def _find_knee_of_curve(known: Sequence[_MeasuredPoint]) -> Knee:
    if len(known) < MIN_MEASURED_POINTS:
        return Knee(None, _too_few_points_text(known))
    best = _point_with_most_throughput(known)
    if any(p.point.tok_per_joule is None for p in known):
        return Knee(
            None,
            "no knee: tok/J is not known at every value; " + _where_throughput_flattens_text(known),
        )
    first, last = min(known, key=_setting_value), max(known, key=_setting_value)
    efficient = _best_tok_per_joule_text(known, best)
    if len(_points_within_throughput_loss(known, FLAT_CURVE_SHARE)) == len(known):
        text = (
            f"no knee: tok/s is flat within {_format_share_as_percent(FLAT_CURVE_SHARE)} from {first.label} to "
            f"{last.label}"
        )
        return Knee(None, f"{text}, so a knee can only be below them; {efficient}")
    fast = _points_within_throughput_loss(known, MAX_SETTING_LOSS_SHARE)
    if fast == [last]:
        text = (
            f"tok/s still rises up to {last.label}, the highest value measured: the knee "
            "may lie beyond it"
        )
        return Knee(None, f"{text}; {efficient}")
    knee = max(fast, key=lambda p: (p.tok_per_joule, p.tok_s, -p.x))
    text = (
        f"{knee.label}: the most tok/J ({knee.tok_per_joule:.3g}) of the values that lose at most "
        f"{_format_share_as_percent(MAX_SETTING_LOSS_SHARE)} of"
        f" the best tok/s ({format_four_digits(best.tok_s)} at {best.label}; here "
        f"{format_four_digits(knee.tok_s)},"
        f" {_throughput_change_text(knee, best)})"
    )
    if knee == first:
        text += "; this is the lowest value measured, and a lower one may be better"
    return Knee(knee.place, "; ".join([text, _where_throughput_flattens_text(known), efficient]))


def find_knee_of_concurrency(points: Sequence[SweepPoint]) -> Knee:
    """Return the knee of a sweep over the concurrency. The knee is the value with the lowest
    latency among the values with at least 90 % of the best throughput.

    Latency here is the time per token of one stream, concurrency / throughput (Little's law).
    """
    known = [p for p in _points_with_throughput(points) if p.x]
    if len(known) < MIN_MEASURED_POINTS:
        return Knee(None, _too_few_points_text(known))
    best = _point_with_most_throughput(known)
    kept = _points_within_throughput_loss(known, MAX_CONCURRENCY_LOSS_SHARE)
    before, last = sorted(known, key=_setting_value)[-2:]
    if kept == [last]:
        gain = 100 * (last.tok_s / before.tok_s - 1)
        text = (
            f"throughput still rises by {gain:.0f} % from {before.label} to "
            f"{last.label}, the highest level"
        )
        return Knee(None, f"{text} measured: the knee is above it")
    knee = min(kept, key=lambda p: (p.ms_per_token_and_stream, p.x))
    share = knee.tok_s / best.tok_s
    best_text = format_four_digits(best.tok_s)
    text = (
        f"{knee.label}: the lowest latency ({knee.ms_per_token_and_stream:.3g} ms per token and stream) of "
        "the levels that keep "
        f"{_format_share_as_percent(1 - MAX_CONCURRENCY_LOSS_SHARE)} of the best throughput ({best_text} "
        f"tok/s at {best.label};"
        f" here {format_four_digits(knee.tok_s)}, {_format_share_as_percent(share)})"
    )
    return Knee(knee.place, text)


def _points_with_throughput(points: Sequence[SweepPoint]) -> list[_MeasuredPoint]:
    found = []
    for index, p in enumerate(points):
        if p.state == "done" and p.tok_s is not None and p.tok_s > 0:
            found.append(_MeasuredPoint(index, p, p.x or 0.0, p.tok_s, p.tok_per_joule or 0.0))
    return found


def _point_with_most_throughput(known: Sequence[_MeasuredPoint]) -> _MeasuredPoint:
    return max(known, key=lambda p: p.tok_s)


def _points_within_throughput_loss(
    known: Sequence[_MeasuredPoint], most_loss_share: float
) -> list[_MeasuredPoint]:
    """Return the points that lose at most this share of the best tok/s."""
    least = (1 - most_loss_share) * _point_with_most_throughput(known).tok_s
    return [p for p in known if p.tok_s >= least]


def _format_share_as_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _too_few_points_text(known: Sequence[_MeasuredPoint]) -> str:
    return (
        f"no knee: that needs {MIN_MEASURED_POINTS} measured values, and there "
        f"{is_or_are(len(known))} {len(known)}"
    )


def _where_throughput_flattens_text(known: Sequence[_MeasuredPoint]) -> str:
    lowest = min(_points_within_throughput_loss(known, FLAT_CURVE_SHARE), key=_setting_value)
    label, power_w = lowest.label, lowest.point.power_w
    if lowest.x == max(map(_setting_value, known)):
        return f"tok/s over watts does not flatten up to {label}"
    watts = f" ({power_w:.0f} W drawn)" if power_w is not None else ""
    return (
        f"tok/s over watts flattens at {label}{watts}: higher values gain at most "
        f"{_format_share_as_percent(FLAT_CURVE_SHARE)}"
    )


def _best_tok_per_joule_text(known: Sequence[_MeasuredPoint], best: _MeasuredPoint) -> str:
    most = max(known, key=attrgetter("tok_per_joule"))
    least = min(p.tok_per_joule for p in known)
    if least >= (1 - MAX_SETTING_LOSS_SHARE) * most.tok_per_joule:
        return f"tok/J is within {_format_share_as_percent(MAX_SETTING_LOSS_SHARE)} at all values"
    return (
        f"the most tok/J of all values: {most.label} ({most.tok_per_joule:.3g}), "
        f"{_throughput_change_text(most, best)} tok/s"
    )


def _throughput_change_text(point: _MeasuredPoint, best: _MeasuredPoint) -> str:
    if point == best:
        return "the best"
    return f"{100 * (point.tok_s / best.tok_s - 1):+.1f} %"
