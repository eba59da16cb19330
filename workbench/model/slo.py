"""Service level objectives (SLO): limits on the latencies of requests, such as
"ttft<=500@p95, tpot<=40@p95".

A limit names a latency, the most milliseconds that it may have, and the percentage of requests that
must keep it. "@p95" and "@95%" mean the same: at least 95 % of the requests keep the limit. The
percentage may also follow the latency: "ttft@p95<=500".
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass

LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_ms"}  # word -> field of BenchSummary
# fields of BenchSummary that only a run with an SLO has
OF_AN_SLO = ("slo_pct", "goodput_request_s", "goodput_tok_s", "users")
_FROM_CHUNKS = ("ttft", "tpot")  # a reply that is not streamed has neither
_MOST_LIMITS = 8
_MOST_MS = 10**9  # 11 days
_EXAMPLE = "for example: ttft<=500@p95, tpot<=40@p95, e2e<=8000@99%"
_LIMIT = re.compile(
    r"(?P<latency>[a-z0-9]+)\s*(?:<=|≤)\s*(?P<most>\d{1,10}(?:\.\d{1,6})?)\s*(?P<unit>ms|s)?"
    r"\s*@\s*(?:p(?P<percentile>\d{1,3}(?:\.\d{1,4})?)|(?P<percent>\d{1,3}(?:\.\d{1,4})?)\s*%)"
)
_SHARE_FIRST = re.compile(
    r"(?P<latency>\w+)\s*@\s*(?P<share>p?[\d.]+(?:\s*%)?)\s*(?:<=|≤)\s*(?P<most>.+)"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """At least `percent` of the requests must have a latency of at most `most_ms` milliseconds.
    `latency` is one of LATENCIES."""

    latency: str
    most_ms: float
    percent: float

    def __str__(self) -> str:
        return f"{self.latency}<={_format_without_exponent(self.most_ms)}@p{_format_without_exponent(self.percent)}"


def _format_without_exponent(number: float) -> str:
    """Return a number without an exponent, so that the text of a limit can be read again."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class LimitAttained:
    """How many of the requests of a run kept one limit. `kept_pct` is None if the latency could not
    be measured. `most_ms` is the limit, and `reached_ms` the latency that `wanted_pct` of the
    requests kept; both are None in results of older versions. `reached_ms` is also None if too many
    requests failed. `independent` is the number of independent requests that would say as much as
    the measured ones (bench/independent_requests.py); None if the requests did not start on a
    schedule."""

    limit: str
    wanted_pct: float
    kept_pct: float | None
    reached_ms: float | None = None
    most_ms: float | None = None
    independent: float | None = None

    @property
    def margin_pct(self) -> float | None:
        """The share of the requests that kept the limit, minus the share that must keep it, in
        percentage points: below 0 if the limit is broken. None if the latency could not be
        measured."""
        if self.kept_pct is None:
            return None
        return self.kept_pct - self.wanted_pct

    @property
    def kept_share(self) -> float:
        """The share of the requests that kept the limit, 0 to 1; 0 if the latency could not be
        measured."""
        return (self.kept_pct or 0.0) / 100

    @property
    def attained_share_text(self) -> str:
        """The share of the requests that kept the limit, as text; "n/a" if the latency could not be
        measured."""
        if self.kept_pct is None:
            return "n/a"
        return share_text(self.kept_pct)


def parse_slo(text: str) -> tuple[Limit, ...]:
    """Return the limits in a text such as "ttft<=500@p95, tpot<=40@p95". Raises InputError if it is
    not a list of 1 to 8 limits, separated by commas."""
    parts = list(map(str.strip, text.split(",")))
    if not any(parts):
        raise InputError("the SLO has no limit", next_step=f"give limits, {_EXAMPLE}")
    if len(parts) > _MOST_LIMITS:
        raise InputError(
            f"the SLO has {len(parts)} limits, at most {_MOST_LIMITS} are possible",
            next_step="give the limits that matter",
        )
    return tuple(map(_parse_limit, parts))


def _parse_limit(part: str) -> Limit:
    shown = part if len(part) <= 40 else f"{part[:40]}…"
    plain = part.lower()
    swapped = _SHARE_FIRST.fullmatch(plain)
    if swapped is not None:
        plain = f"{swapped['latency']}<={swapped['most']}@{swapped['share']}"
    found = _LIMIT.fullmatch(plain)
    if found is None:
        why = "is not a limit"
        if "@" not in part and "<" in part:
            why = "does not say for how many requests"
        raise InputError(f"SLO: {shown!r} {why}", next_step=f"give limits, {_EXAMPLE}")
    latency = found["latency"]
    if latency not in LATENCIES:
        raise InputError(
            f"SLO: {latency!r} is not a latency that can be limited",
            next_step=f"give one of {', '.join(LATENCIES)}",
        )
    most_ms = float(found["most"])
    if found["unit"] == "s":
        most_ms *= 1000
    percent = float(found["percentile"] or found["percent"])
    if not 0 < most_ms <= _MOST_MS or not 0 < percent <= 100:
        raise InputError(
            f"SLO: {shown!r} has a number that is too small or too large",
            next_step=f"give more than 0 and at most {_MOST_MS} milliseconds, and more than 0 and "
            "at most 100 % of the requests",
        )
    return Limit(latency, most_ms, percent)


def require_streaming_for_limits(limits: Sequence[Limit], *, streamed: bool) -> None:
    """Raise InputError if a limit needs streamed answers and they are not streamed."""
    if streamed:
        return
    for limit in limits:
        if limit.latency in _FROM_CHUNKS:
            raise InputError(
                f"SLO: {limit.latency} can only be measured on streamed answers",
                next_step="limit e2e, or measure a streamed endpoint",
            )


def limit_with_smallest_margin(attained: Sequence[LimitAttained]) -> LimitAttained | None:
    """Return the limit that binds: the one with the smallest margin. None if no latency was
    measured."""
    known = [each for each in attained if each.margin_pct is not None]
    return min(known, key=lambda each: each.margin_pct or 0.0, default=None)


def share_text(share_pct: float) -> str:
    """Return a share of requests in percent as text, such as "97.5 %". It is rounded down, and has
    two decimals between 99 and 100 %, so that a share just below a limit does not look like the
    limit."""
    decimals = 2 if 99 < share_pct < 100 else 1
    steps = 10**decimals
    return f"{math.floor(share_pct * steps + 1e-6) / steps:.{decimals}f} %"


def slo_rows(attained: Sequence[LimitAttained]) -> tuple[tuple[str, str], ...]:
    """Return (limit, verdict) for each limit, as texts. The verdict says whether the limit was
    held, how many requests kept it, and of several limits, which one binds."""
    tightest = limit_with_smallest_margin(attained)
    rows = []
    for each in attained:
        verdict = _limit_verdict_text(each)
        if each is tightest and len(attained) > 1:
            verdict += ", the limit that binds"
        rows.append((each.limit, verdict))
    return tuple(rows)


def _limit_verdict_text(attained: LimitAttained) -> str:
    if attained.margin_pct is None:
        return "n/a: this latency has no value"
    verdict = "held" if attained.margin_pct >= 0 else "NOT HELD"
    return f"{verdict}: {attained.attained_share_text} of the requests kept it"
