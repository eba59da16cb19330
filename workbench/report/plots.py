"""The plots of a run, an experiment and a sweep. A plot for which there is no data is left out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from workbench.model.bench import KEPT_ONE_OF, BenchSummary, MetricChange
from workbench.model.counts import count_of
from workbench.model.distribution import COMPARED_PERCENTILES
from workbench.model.known_values import known_values
from workbench.model.metrics import metric_title
from workbench.model.operating_map import operating_map_from_sweep
from workbench.model.sweep import Sweep, SweepPoint
from workbench.report import svg
from workbench.report.blocks import PlotBlock
from workbench.report.format_values import change_text, number_text

_BINS = 60
_CURVE_POINTS = 400
_SWEEP_PLOTS = (  # unit of the y axis, ((field of SweepPoint, label, colour), …)
    ("tok/s", (("tok_s", "output", svg.BLUE),)),
    ("tok/J", (("tok_per_joule", "tokens per joule", svg.BLUE),)),
    ("ms", (("ttft_p50_ms", "TTFT p50", svg.BLUE), ("ttft_p90_ms", "TTFT p90", svg.ORANGE))),
    ("ms", (("itl_mean_ms", "ITL mean", svg.BLUE),)),
)
Sample = Mapping[str, Any]


def throughput_plot(samples: Sequence[Sample], summary: BenchSummary) -> PlotBlock | None:
    """Return a plot of the output tokens per second over the time of the run. None if fewer than
    ten chunks have a time, or if the run took no time."""
    arrivals = list(chain.from_iterable(map(_arrival_s_and_token_count, samples)))
    if len(arrivals) < 10:
        return None
    begin_s = min(known_values(sample.get("start_s") for sample in samples), default=0.0)
    duration_s = max(arrivals)[0] - begin_s
    if duration_s <= 0:
        return None
    width_s = _round_up_bin_width_s(duration_s / _BINS)
    bins: defaultdict[int, float] = defaultdict(float)
    for at_s, tokens in arrivals:
        bins[int((at_s - begin_s) / width_s)] += tokens
    # The end of the run cuts off the last bin, so its rate would be too low.
    rates = [bins[place] / width_s for place in range(max(1, max(bins)))]
    rates.append(rates[-1])
    points = [(place * width_s, rate) for place, rate in enumerate(rates)]
    title = "Output tokens per second over the run"
    x = svg.SvgAxis("seconds", 0.0, points[-1][0])
    y = svg.SvgAxis("tok/s", 0.0, max(rates) * 1.08)
    caption = f"{title}, in steps of {width_s:g} s"
    if summary.window_s:
        caption += f", {summary.window} window"
    return PlotBlock(svg.curves_svg(title, x, y, [svg.Series(points)]), f"{caption}.")


def is_measured_success(sample: Sample) -> bool:
    """Return whether a request succeeded and was not one of the warm-up."""
    return not sample.get("error") and not sample.get("warmup")


def _arrival_s_and_token_count(sample: Sample) -> Iterator[tuple[float, float]]:
    """Yield (time in s, tokens) for each chunk of the answer to a request, or nothing for a failed
    or warm-up request. The tokens of a request are divided evenly among its chunks, because servers
    report only their total."""
    tokens, start_s = sample.get("output_tokens"), sample.get("start_s")
    # of a large benchmark, only one of several requests is kept, and stands for the others
    stands_for = sample.get(KEPT_ONE_OF, 1)
    if not is_measured_success(sample):
        return
    if not tokens or start_s is None:
        return
    at_s = start_s + sample.get("ttft_us", sample.get("end_us", 0)) / 1e6
    gaps = sample.get("gaps_us", ())
    tokens_of_chunk = stands_for * tokens / (len(gaps) + 1)
    yield at_s, tokens_of_chunk
    for gap in gaps:
        at_s += gap / 1e6
        yield at_s, tokens_of_chunk


def _round_up_bin_width_s(step: float) -> float:
    """Return the least width of at least `step` seconds that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return round(next(m * power for m in (1, 2, 5, 10) if m * power >= step * 0.999), 9)


def latency_plots(samples: Sequence[Sample]) -> list[PlotBlock]:
    """Return plots of the cumulative distributions of the TTFT and of the gaps between chunks.
    Failed and warm-up requests do not count. A distribution with too little data is left out."""
    counted = list(filter(is_measured_success, samples))
    ttfts = known_values(sample.get("ttft_us") for sample in counted)
    gaps = chain.from_iterable(sample.get("gaps_us", ()) for sample in counted)
    one_of = max((sample.get(KEPT_ONE_OF, 1) for sample in counted), default=1)
    kept = f" (one of {one_of} requests is kept)" if one_of > 1 else ""
    plots = (
        _cumulative_plot("Time to first token", ttfts, "requests", kept),
        _cumulative_plot("Gap between chunks (ITL)", gaps, "gaps", kept),
    )
    return list(filter(None, plots))


def _cumulative_plot(
    title: str, values_us: Iterable[float], counted_name: str, sampling_note: str
) -> PlotBlock | None:
    """Return a plot of the share of the values that are at most so large; None with fewer than five
    values. `counted_name` names the values in the plural, and `sampling_note` says how many of them
    are kept."""
    ordered = sorted(value / 1000 for value in values_us if value >= 0)
    count = len(ordered)
    if count < 5:
        return None
    y = svg.SvgAxis(f"% of {counted_name}", 0.0, 100.0)
    places = sorted({round(i * (count - 1) / _CURVE_POINTS) for i in range(_CURVE_POINTS + 1)})
    curve = svg.Series([(ordered[i], 100 * (i + 1) / count) for i in places])
    marks = [
        (ordered[math.ceil(each.percent * count / 100) - 1], each.title)
        for each in COMPARED_PERCENTILES
        if each.least_values <= count
    ]
    x = _latency_axis(ordered[0], ordered[-1])
    drawn = svg.curves_svg(
        f"{title}: share of {counted_name}", x, y, [curve], height=220, marks=marks
    )
    which = f"the {count:,} {counted_name}{sampling_note}"
    return PlotBlock(drawn, f"{title}: share of {which} that took at most this long.")


def _latency_axis(low: float, high: float) -> svg.SvgAxis:
    if low > 0 and high / low > 20:
        return svg.SvgAxis("ms, logarithmic", low, high, log=True)
    if high > low:
        return svg.SvgAxis("ms", low - 0.03 * (high - low), high)
    return svg.SvgAxis("ms", low * 0.98, high * 1.02 or 1.0)


def metric_change_plot(metrics: Sequence[MetricChange]) -> PlotBlock | None:
    """Return a plot with the change of each metric and its interval. None if no metric has an
    interval."""
    claims = {"better": True, "worse": False}
    rows = []
    for m in metrics:
        if m.change_pct is None or m.interval_pct is None:
            continue
        title, text = metric_title(m.metric), change_text(m.change_pct, m.interval_pct)
        claim = claims.get(m.verdict)
        rows.append(svg.Interval(title, m.change_pct, m.interval_pct, text, claim))
    if not rows:
        return None
    title = "Change of each metric with its 95 % interval"
    drawn = svg.forest_svg(title, rows, "change of B against A, %")
    caption = "Change of B against A with its 95 % interval; hollow: no difference is claimed."
    return PlotBlock(drawn, caption)


def raw_pairs_plot(metric: MetricChange) -> PlotBlock | None:
    """Return a plot with the values of A and of B in each complete pair of runs; None if no pair is
    complete."""
    pairs = [(a, b) for a, b in metric.pairs if a is not None and b is not None]
    if not pairs:
        return None
    title = f"{metric_title(metric.metric)}, {metric.unit}".rstrip(", ")
    drawn = svg.dumbbells_svg(f"Raw pairs of {title}", pairs, title)
    return PlotBlock(drawn, f"Raw pairs: {title} of each run, A hollow, B filled.")


def sweep_plots(swept: Sweep) -> list[PlotBlock]:
    """Return the plots of a sweep: throughput, efficiency and latencies at each point, with a mark
    at the knee, beyond which little is gained. Metrics that were not measured are left out."""
    done = [point for point in swept.points if point.state == "done" and point.tok_s is not None]
    if len(done) < 2:
        return []
    axis, x_of, names = _x_axis_positions_and_ticks(swept, done)
    knee = find_knee_point(swept)
    marks = [(x_of[point.label], swept.searched_result_name) for point in done if point is knee]
    plots = _operating_map_plots(swept)
    for unit, lines in _SWEEP_PLOTS:
        series = []
        for field, label, color in lines:
            points = _points_with_values(
                [(x_of[point.label], getattr(point, field)) for point in done]
            )
            if len(points) > 1:
                shown_label = label if len(lines) > 1 else ""  # the title says a single one
                series.append(svg.Series(points, shown_label, color, dots=True))
        if not series:
            continue
        labels = " and ".join(label for _, label, _ in lines)
        title = f"{labels[0].upper()}{labels[1:]} by {swept.name}"
        y = svg.SvgAxis(unit, 0.0, max(map(_highest_value, series)) * 1.08 or 1.0)

        drawn = svg.curves_svg(title, axis, y, series, height=240, marks=marks, x_names=names)
        plots.append(PlotBlock(drawn, f"{title}."))
    return plots


def _points_with_values(values: Sequence[tuple[float, float | None]]) -> list[svg.Point]:
    return [(x, y) for x, y in values if y is not None]


def _highest_value(series: svg.Series) -> float:
    return max(y for _, y in series.points)


def _operating_map_plots(swept: Sweep) -> list[PlotBlock]:
    """Return plots of the tokens per second of a GPU and of the tokens per joule, over the tokens
    per second of a user. Vertical lines show the highest level that keeps the SLO and the lowest
    that breaks it."""
    found = operating_map_from_sweep(swept)
    if found is None or len(found.points) < 2:
        return []
    who = swept.sweep_kind.counts
    most = max(point.user_tok_s for point in found.points)
    axis = svg.SvgAxis(f"tok/s per {who}", 0.0, most * 1.05)
    marks = []
    for end, outcome in ((found.holds, "holds"), (found.fails, "fails")):
        if end:
            marks.append((end.user_tok_s, f"{outcome} {count_of(int(end.users), who)}"))
    few, many = (count_of(int(found.points[n].users), who) for n in (0, -1))
    plots = []
    for unit, title, name in (
        ("tok/s", "Tokens per second of a GPU", "gpu_tok_s"),
        ("tok/J", "Tokens per joule", "tok_per_joule"),
    ):
        known = _points_with_values(
            [(point.user_tok_s, getattr(point, name)) for point in found.points]
        )
        if len(known) < 2:
            continue
        series = svg.Series(known, dots=True)
        up = svg.SvgAxis(unit, 0.0, _highest_value(series) * 1.08)
        caption = f"{title} over tokens per second of a {who}"
        drawn = svg.curves_svg(caption, axis, up, [series], height=240, marks=marks)
        what = f"{caption[0].lower()}{caption[1:]}"
        text = f"Operating map: {what}, from {few} (right) to {many}."
        plots.append(PlotBlock(drawn, text))
    return plots


def find_knee_point(swept: Sweep) -> SweepPoint | None:
    """Return the knee of a sweep, the point beyond which little is gained. None if the sweep has no
    knee."""
    if swept.knee is None or not 0 <= swept.knee < len(swept.points):
        return None
    return swept.points[swept.knee]


def _x_axis_positions_and_ticks(
    swept: Sweep, points: Sequence[SweepPoint]
) -> tuple[svg.SvgAxis, dict[str, float], list[tuple[float, str]]]:
    """Return (x axis of a sweep's plots, {label of a point: x position}, [(position, name) of each
    tick]). Numbers are placed by value, on a logarithmic axis if they span a factor of 16. If a
    value is a word or occurs twice, the points are placed in order."""
    title = f"{swept.name}, {swept.unit}".rstrip(", ")
    values = known_values(point.x for point in points)
    if len(set(values)) < len(points):
        places = {point.label: float(i) for i, point in enumerate(points)}
        names = [(float(i), point.label[:18]) for i, point in enumerate(points)]
        return svg.SvgAxis(title, -0.3, len(points) - 0.7), places, names
    low, high = min(values), max(values)
    axis = svg.SvgAxis(title, low, high, log=low > 0 and high / low >= 16)
    places = {point.label: point.x or 0.0 for point in points}
    return axis, places, [(value, number_text(_int_if_whole(value))) for value in values]


def _int_if_whole(value: float) -> float:
    """Return a number without decimals as an int."""
    return int(value) if value == int(value) else value
