"""Plots of one run, of an experiment and of a sweep. None where there is nothing to draw."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.model.bench import BenchSummary, MetricChange
from workbench.model.sweep import Sweep, SweepPoint
from workbench.report import svg
from workbench.report.blocks import PlotBlock
from workbench.report.format_values import figure, metric_title, percent

_BINS = 60
_POINTS = 400  # of a distribution's curve
Sample = Mapping[str, Any]


def throughput(samples: Sequence[Sample], summary: BenchSummary) -> PlotBlock | None:
    """Output tokens per second over the run, from the times of the chunks. Tokens within a request are shared out
    evenly over its chunks: the server says how many came, not in which chunk."""
    arrivals: list[tuple[float, float]] = []  # when, tokens
    for one in samples:
        tokens, start_s = one.get("output_tokens"), one.get("start_s")
        if one.get("error") or one.get("warmup") or not tokens or start_s is None:
            continue
        at_s = start_s + (one.get("ttft_us", one.get("end_us", 0)) / 1e6)
        gaps = one.get("gaps_us", ())
        each = tokens / (len(gaps) + 1)
        arrivals.append((at_s, each))
        for gap in gaps:
            at_s += gap / 1e6
            arrivals.append((at_s, each))
    first = min((s["start_s"] for s in samples if s.get("start_s") is not None), default=0.0)
    end = max((at for at, _ in arrivals), default=0.0) - first
    if len(arrivals) < 10 or end <= 0:
        return None
    width = _nice(end / _BINS)
    bins: defaultdict[int, float] = defaultdict(float)
    for at_s, tokens in arrivals:
        bins[int((at_s - first) / width)] += tokens
    last = max(bins)
    # The last bin is cut off by the end: its rate would be too low.
    points = [(i * width, bins[i] / width) for i in range(max(1, last))]
    points.append((points[-1][0] + width, points[-1][1]))
    top = max(v for _, v in points) * 1.08
    drawn = svg.chart(
        "Output tokens per second over the run",
        svg.SvgAxis("seconds", 0.0, points[-1][0]),
        svg.SvgAxis("tok/s", 0.0, top),
        [svg.Series(points, kind="step")],
    )
    window = f", {summary.window} window" if summary.window_s else ""
    return PlotBlock(drawn, f"Output tokens per second over the run, in steps of {width:g} s{window}.")


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return round(next(m * power for m in (1, 2, 5, 10) if m * power >= step * 0.999), 9)


def latencies(samples: Sequence[Sample]) -> list[PlotBlock]:
    """TTFT and gaps of all requests, as the share that is at most so long."""
    good = [s for s in samples if not s.get("error") and not s.get("warmup")]
    found = (
        _shares("Time to first token", [s["ttft_us"] / 1000 for s in good if s.get("ttft_us") is not None], "requests"),
        _shares("Gap between chunks (ITL)", [g / 1000 for s in good for g in s.get("gaps_us", ())], "gaps"),
    )
    return [plot for plot in found if plot is not None]


def _shares(title: str, values: list[float], what: str) -> PlotBlock | None:
    known = sorted(v for v in values if v >= 0)
    if len(known) < 5:
        return None
    count = len(known)
    steps = sorted({min(count - 1, round(i * (count - 1) / _POINTS)) for i in range(_POINTS + 1)})
    low, high = known[0], known[-1]
    wide = low > 0 and high / low > 20
    if not wide:
        low, high = (low - 0.03 * (high - low), high) if high > low else (low * 0.98, high * 1.02 or 1.0)
    marks = [(known[min(count - 1, math.ceil(p * count) - 1)], f"p{p * 100:.0f}") for p in (0.5, 0.9, 0.99)]
    drawn = svg.chart(
        f"{title}: share of {what}",
        svg.SvgAxis("ms" + (", logarithmic" if wide else ""), low, high, log=wide),
        svg.SvgAxis(f"% of {what}", 0.0, 100.0),
        [svg.Series([(known[i], 100 * (i + 1) / count) for i in steps], kind="step")],
        height=220,
        marks=marks,
    )
    return PlotBlock(drawn, f"{title}: share of the {count:,} {what} that took at most so long.")


def changes(metrics: Sequence[MetricChange]) -> PlotBlock | None:
    """The interval of each metric about no change."""
    rows = [
        svg.Interval(
            metric_title(m.metric),
            m.change_pct,
            m.interval_pct,
            f"{percent(m.change_pct, m.interval_pct)}",
            {"better": True, "worse": False}.get(m.verdict),
        )
        for m in metrics
        if m.change_pct is not None and m.interval_pct is not None
    ]
    if not rows:
        return None
    drawn = svg.forest("Change of each metric with its 95 % interval", rows, "change of B against A, %")
    return PlotBlock(drawn, "Change of B against A with its 95 % interval; hollow: no difference is claimed.")


def raw_pairs(metric: MetricChange) -> PlotBlock | None:
    pairs = [(a, b) for a, b in metric.pairs if a is not None and b is not None]
    if not pairs:
        return None
    title = f"{metric_title(metric.metric)}, {metric.unit}".rstrip(", ")
    drawn = svg.dumbbells(f"Raw pairs of {title}", pairs, title)
    return PlotBlock(drawn, f"Raw pairs: {title} of each run, A hollow, B filled.")


_SWEPT = (  # plots of a sweep: (y axis, ((field of SweepPoint, label, colour), …))
    ("tok/s", (("tok_s", "throughput", svg.BLUE),)),
    ("tok/J", (("tok_per_joule", "tokens per joule", svg.BLUE),)),
    ("ms", (("ttft_p50_ms", "TTFT p50", svg.BLUE), ("ttft_p99_ms", "TTFT p99", svg.ORANGE))),
    ("ms", (("itl_mean_ms", "ITL mean", svg.BLUE),)),
)


def sweep(swept: Sweep) -> list[PlotBlock]:
    """Throughput and, where they are known, efficiency and latencies at each point; the knee marked."""
    done = [p for p in swept.points if p.state == "done" and p.tok_s is not None]
    if len(done) < 2:
        return []
    places = _Places(swept, done)
    knee = knee_of(swept)
    marks = [(places.at[knee.label], "knee")] if knee is not None and knee in done else []
    plots: list[PlotBlock] = []
    for unit, lines in _SWEPT:
        series = []
        for name, label, color in lines:
            points = [(places.at[p.label], v) for p in done if (v := getattr(p, name)) is not None]
            if len(points) > 1:
                series.append(svg.Series(points, label if len(lines) > 1 else "", color, kind="dots"))
        if not series:
            continue
        what = " and ".join(label for _, label, _ in lines)
        what = what[0].upper() + what[1:] + f" by {swept.name}"
        top = max(v for s in series for _, v in s.points) * 1.08 or 1.0
        drawn = svg.chart(
            what, places.axis, svg.SvgAxis(unit, 0.0, top), series, height=240, marks=marks, x_names=places.names
        )
        plots.append(PlotBlock(drawn, f"{what}."))
    return plots


def knee_of(swept: Sweep) -> SweepPoint | None:
    return swept.points[swept.knee] if swept.knee is not None and 0 <= swept.knee < len(swept.points) else None


class _Places:
    """Where the points of a sweep lie: by value, on a logarithmic axis where they double, or in order for words."""

    def __init__(self, swept: Sweep, points: Sequence[SweepPoint]) -> None:
        title = f"{swept.name}, {swept.unit}".rstrip(", ")
        values = [p.x for p in points]
        known = [v for v in values if v is not None]
        if len(known) < len(points) or len(set(known)) < len(known):
            self.at = {p.label: float(i) for i, p in enumerate(points)}
            self.axis = svg.SvgAxis(title, -0.3, len(points) - 0.7)
            self.names = [(float(i), p.label[:18]) for i, p in enumerate(points)]
            return
        self.at = {p.label: p.x or 0.0 for p in points}
        low, high = min(known), max(known)
        log = low > 0 and high / low >= 16
        self.axis = svg.SvgAxis(title, low, high, log)
        self.names = [(v, figure(int(v) if v == int(v) else v)) for v in known]
