"""Several runs of the same benchmark: their middle and how far they scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, mean, stdev

from workbench.model.bench import BenchSummary

_METRICS: tuple[tuple[str, str, Callable[[BenchSummary], float | None]], ...] = (
    ("output_tok_s", "tok/s", lambda s: s.output_tok_s),
    ("request_s", "1/s", lambda s: s.request_s),
    ("ttft_p50_ms", "ms", lambda s: s.ttft_ms.p50 if s.ttft_ms else None),
    ("itl_mean_ms", "ms", lambda s: s.itl_ms.mean if s.itl_ms else None),
    ("tpot_mean_ms", "ms", lambda s: s.tpot_ms.mean if s.tpot_ms else None),
    ("e2e_p50_ms", "ms", lambda s: s.e2e_ms.p50 if s.e2e_ms else None),
    ("power_w", "W", lambda s: s.power_w),
    ("tok_per_joule", "tok/J", lambda s: s.tok_per_joule),
    ("duration_s", "s", lambda s: s.duration_s),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over the runs that have it. `cv_pct`: sample standard deviation over the mean; None of one run."""

    metric: str
    unit: str
    values: tuple[float, ...]
    geometric_mean: float
    cv_pct: float | None


def spread(summaries: Sequence[BenchSummary]) -> tuple[Spread, ...]:
    """Refused runs are left out: their figures may not be used."""
    usable = [s for s in summaries if not s.refused]
    found = []
    for name, unit, pick in _METRICS:
        values = tuple(v for s in usable if (v := pick(s)) is not None and v > 0)
        if values:
            cv = 100 * stdev(values) / mean(values) if len(values) > 1 else None
            middle = round(geometric_mean(values), 4)
            found.append(Spread(name, unit, values, middle, None if cv is None else round(cv, 3)))
    return tuple(found)
