"""The only place that draws with plotext 6: throughput and latency of the results, on demand, never on a tick."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.session.state import BenchRow
from workbench.tui.formats import figure as number
from workbench.tui.paint import Row


def plot_rows(results: Sequence[BenchRow], width: int, height: int) -> list[Row]:
    """Two plots over the result numbers: output tok/s above, TTFT p50 below. `hd` markers: fonts have no braille."""
    done = [r for r in sorted(results, key=lambda r: r.id) if r.output_tok_s is not None]
    if not done:
        return [(("Nothing to plot: no result has a throughput yet. b benchmarks.", "dim"),)]
    upper = (height - 1) * 3 // 5
    numbers = [float(r.id) for r in done]
    rows = _one(numbers, [r.output_tok_s or 0.0 for r in done], "output tok/s", width, upper, "spark")
    timed = [r for r in done if r.ttft_p50_ms is not None]
    if timed:
        numbers = [float(r.id) for r in timed]
        rows += _one(numbers, [r.ttft_p50_ms or 0.0 for r in timed], "TTFT p50 ms", width, height - 1 - upper, "warn")
    return [*rows, (("result number".center(width), "dim"),)]


def _one(x: Sequence[float], y: Sequence[float], title: str, width: int, height: int, role: str) -> list[Row]:
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.title(title)
    plotext.terminal.limit(False, False)  # the size is the pane's, not the terminal's that plotext finds
    figure.plot_size(width, max(6, height))
    line = figure.signal(list(x), list(y), marker="hd")
    if len(x) > 1:
        line.lines()
    figure.draw(line)
    levels = sorted({min(y), (min(y) + max(y)) / 2, max(y)})
    figure.ruler("y").ticks(levels, [number(v) for v in levels])
    named = list(x)[:: max(1, len(x) * 8 // max(1, width))]
    figure.ruler("x").ticks(named, [f"#{n:.0f}" for n in named])
    return [((text, role),) for text in plotext.uncolorize(str(figure.build())).splitlines()]
