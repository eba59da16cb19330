"""The rows of a sweep's page: its progress, a table of its points, two plots, and the knee, which
is the point beyond which more gains little."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from workbench.model.operating_map import operating_map_from_sweep
from workbench.model.tune_standings import block_label_for_people
from workbench.tui.cells import Row, cut_text, fit_row, justify_row, paragraph_rows, row_width
from workbench.tui.formats import measurement_origin_text, number_text, remaining_time_text
from workbench.tui.glyphs import G
from workbench.tui.widgets.experiment import STATES
from workbench.tui.widgets.plot import (
    KNEE,
    NOW,
    POINT,
    Point,
    curve_rows,
    x_positions_and_can_connect,
)

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment
    from workbench.model.operating_map import OperatingMap
    from workbench.model.sweep import Sweep, SweepPoint

ServerRates = tuple[float, float]  # tok/s of a user, tok/s of a GPU
SIGNS: Mapping[str | None, str] = {
    "holds": POINT,
    "open": G.off,
    "fails": "x",
}  # of the levels on the operating map
LEAST_PLOT_ROWS = 9
_SMALL_PAGE_CELLS = 40
MOST_PLOT_ROWS = 22
FINAL = "the final: the best against the start preset"
CONFIRMING = "comparing the best value with the baseline, in pairs"
REVERTING = "reverting to the previous value"


def sweep_rows(
    s: Sweep,
    width: int,
    height: int,
    *,
    remaining_s: float | None = None,
    bench_progress: str = "",
    draw_plots: Callable[[Sweep, int, int], list[Row]] | None = None,
) -> list[Row]:
    """Return the rows of a sweep's page. `remaining_s` are the seconds left, None if unknown, and
    `bench_progress` is the progress of the running benchmark as text. `draw_plots` makes the plots
    from the sweep, a width and a height."""
    from workbench.report import series_blocks  # not for the first frame
    from workbench.report.blocks import Alert
    from workbench.tui.block_rows import block_rows

    rows = [_state_row(s, width, remaining_s, bench_progress), *_host_and_model_rows(s, width), ()]
    rows += block_rows([series_blocks.points_table(s)], width)
    found = series_blocks.sweep_finding_blocks(s)
    if s.state == "running":  # the first row says so
        found = [block for block in found if not isinstance(block, Alert)]
    if found:
        rows += [(), *block_rows(found, width)]
    rows += block_rows(series_blocks.sweep_note_blocks(s), width)
    # below the last row if there is no room
    room = max(LEAST_PLOT_ROWS, min(MOST_PLOT_ROWS, height - len(rows) - 1))
    return [*rows, (), *(draw_plots or operating_map_rows)(s, width, room)]


def tune_rows(
    s: Sweep,
    final: Experiment | None,
    width: int,
    *,
    remaining_s: float | None = None,
    bench_progress: str = "",
) -> list[Row]:
    """Return the rows of a tune's page, in the blocks of `tune show`. `final` is the experiment
    that runs or ran last, `remaining_s` and `bench_progress` are as for `sweep_rows`."""
    from workbench.report.tune_blocks import tune_blocks
    from workbench.tui.block_rows import block_rows

    state, where = _state_row(s, width, remaining_s, bench_progress), _host_and_model_rows(s, width)
    blocks = block_rows(tune_blocks(s, final), width)
    if width < _SMALL_PAGE_CELLS:  # as few rows too: the result first
        return [state, *blocks, (), *where]
    space: list[Row] = [()] if s.knee_text else []
    return [state, *where, *space, *blocks]


def _host_and_model_rows(s: Sweep, width: int) -> list[Row]:
    model, preset_id = "", None
    if s.spec is not None:
        preset_id = s.spec.preset_id
        planned_model = (s.spec.plan or {}).get("model")
        model = planned_model or s.spec.measured.get("model") or ""
    about = measurement_origin_text(s.host, [str(model)], preset_id, s.unix_s)
    return paragraph_rows(about, width, "dim", "  ")


def current_point_text(s: Sweep, bench_progress: str) -> str:
    """Return what the sweep is doing, as a text to append to its progress: the point that it
    measures, such as "; 400 W: measuring 31/64", or the work after the last point. Return ""
    between two points, and if the sweep has ended. `bench_progress` is the progress of the running
    benchmark as text."""
    now = _point_being_measured(s)
    if now is not None:
        label = now.label
        if s.is_tune:
            label = block_label_for_people(label)
        return f"; {label}: {bench_progress or _preparation_text(s)}"
    if s.state != "running" or any(p.state == "planned" for p in s.points):
        return ""
    if s.is_tune:
        return f"; {FINAL}"
    if s.sweep_kind.sets_gpu and not s.left_s:
        return f"; {REVERTING}"
    return f"; {CONFIRMING}"


def _point_being_measured(s: Sweep) -> SweepPoint | None:
    """Return the point that is being measured; None between two points."""
    return next((p for p in s.points if p.state == "measuring"), None)


def sweep_remaining_time_text(s: Sweep, remaining_s: float | None) -> str:
    """Return the time left of a running sweep as text, or why it is not known yet; "" if only the
    work after the last point is left, whose time is not known."""
    if remaining_s is not None:
        return remaining_time_text(remaining_s)
    if {"done", "failed"}.isdisjoint(p.state for p in s.points):
        return "time left: after the first point"
    return ""


def _preparation_text(s: Sweep) -> str:
    """Return what the sweep does before it measures a value."""
    if s.sweep_kind.starts_servers:
        return "the server starts"
    if s.sweep_kind.sets_gpu:
        return "settling under load"
    return "starting"


def _state_row(s: Sweep, width: int, remaining_s: float | None, bench_progress: str) -> Row:
    sign, word, role = STATES.get(s.state, ("?", s.state, "warn"))

    left: Row = (
        (f"{sign} {word}", role),
        (f"  {s.measured_value_count} of {len(s.points)} {s.points_noun}", "text"),
        (current_point_text(s, bench_progress), "text"),
    )
    right: Row = ()
    if s.simulated:
        right = ((" SIMULATED ", "reverse"),)
    if s.state == "running":
        room = width - row_width((*left, *right))
        right = (*_remaining_time_texts(s, remaining_s, room), *right)
    return justify_row(left, right, width)


def _remaining_time_texts(s: Sweep, remaining_s: float | None, max_cells: int) -> Row:
    """Return the time left of a running sweep. If it is not known, return when it will be; () if
    `max_cells` cells have no room for that, or if neither can be said."""
    text = sweep_remaining_time_text(s, remaining_s)
    if text and remaining_s is not None:
        return ((f"{text} ", "strong"),)
    is_expected = s.left_s or _point_being_measured(s) is not None
    if text and is_expected and len(text) + 1 < max_cells:
        return ((f"{text} ", "dim"),)
    return ()


def user_operating_map(s: Sweep) -> OperatingMap | None:
    """Return the operating map of a search for users. Return None for any other sweep, and if the
    GPUs of the search were not read."""
    if s.sweep_kind.counts != "user":
        return None
    return operating_map_from_sweep(s)


def operating_map_rows(
    s: Sweep, width: int, height: int, server_rates: ServerRates | None = None
) -> list[Row]:
    """Return the operating map of a search for users: a plot of the tokens per second of a GPU over
    those of a user, and beside it one of the tokens per joule. `server_rates` are the present rates
    of the server, drawn as a point; None for no point. For any other sweep, and for a search whose
    GPUs were not read, return the rows of `sweep_plot_rows`."""
    found = user_operating_map(s)
    if found is None:
        return sweep_plot_rows(s, width, height)
    marks = {
        SIGNS["holds"]: "holds",
        KNEE: "the most",
        SIGNS["open"]: "open",
        SIGNS["fails"]: "fails",
    }
    if found.limit_user_tok_s is not None:
        marks[G.rule] = "SLO"
    if server_rates:
        marks[NOW] = "now"
    legend = "".join(f"  {mark} {word}" for mark, word in marks.items())
    last: list[Row] = [((cut_text(legend, width), "dim"),)]
    plot_rates = partial(_operating_map_plot_rows, found, "gpu_tok_s", "tok/s per GPU")
    if all(point.tok_per_joule is None for point in found.points):
        return [*plot_rates(width, height - 1, server_rates), *last]
    half = (width - 3) // 2
    left = plot_rates(half, height - 1, server_rates)
    right = _operating_map_plot_rows(found, "tok_per_joule", "tok/J", half, height - 1)
    return [*_join_side_by_side(left, right, half), *last]


def _operating_map_plot_rows(
    found: OperatingMap,
    field: str,
    title: str,
    width: int,
    height: int,
    server_rates: ServerRates | None = None,
) -> list[Row]:
    points = []
    for p in found.points:
        value = getattr(p, field)
        if value is not None:
            sign = SIGNS.get(p.slo_verdict, POINT)
            if p is found.holds:
                sign = KNEE
            points.append(Point(p.user_tok_s, value, number_text(p.user_tok_s), sign))
    role = "warn"
    if field == "gpu_tok_s":
        role = "spark"
    beside = []
    if server_rates is not None:
        beside.append(Point(*server_rates, "", NOW))
    whole_title = f"{title} over tok/s per user"
    return curve_rows(
        points,
        width,
        height,
        whole_title,
        role=role,
        extra_points=beside,
        limit_x=found.limit_user_tok_s,
    )


def _join_side_by_side(left: list[Row], right: list[Row], half_width: int) -> list[Row]:
    both = zip_longest(left, right, fillvalue=())
    return [(*fit_row(a, half_width), ("   ", "text"), *fit_row(b, half_width)) for a, b in both]


def sweep_plot_rows(s: Sweep, width: int, height: int) -> list[Row]:
    """Return plots of throughput and efficiency, side by side; [] if no point is measured. TTFT
    replaces efficiency in a sweep of the load, or if too few points have a power reading. Failed
    points are not drawn: their values are those of invalid results."""
    done = [n for n, p in enumerate(s.points) if p.state == "done" and p.tok_s is not None]
    if not done:
        return []

    def count_points_with_value(field: str) -> int:
        return sum(getattr(s.points[n], field) is not None for n in done)

    second = ("tok_per_joule", "tok/J")
    few_readings = count_points_with_value("tok_per_joule") < min(
        len(done), count_points_with_value("ttft_p50_ms")
    )
    if s.sweep_kind.varies_load or few_readings:
        second = ("ttft_p50_ms", "TTFT p50 ms")
    if not count_points_with_value(second[0]):
        return _metric_plot_rows(s, done, "tok_s", "tok/s", width, height, "spark")
    half = (width - 3) // 2
    left = _metric_plot_rows(s, done, "tok_s", "tok/s", half, height, "spark")
    right = _metric_plot_rows(s, done, *second, half, height, "warn")
    return _join_side_by_side(left, right, half)


def _metric_plot_rows(
    s: Sweep,
    done_indexes: Sequence[int],
    field: str,
    title: str,
    width: int,
    height: int,
    role: str,
) -> list[Row]:
    places, joined = x_positions_and_can_connect([p.x for p in s.points])
    points = []
    for n in done_indexes:
        value = getattr(s.points[n], field)
        if value is not None:
            sign = POINT
            if n == s.knee:
                sign = KNEE
            points.append(Point(places[n], value, _tick_label(s, s.points[n]), sign))
    named = ""
    if s.knee is not None and s.knee in done_indexes:
        named = f"{s.searched_result_name} {s.points[s.knee].label}"
    whole_title = f"{title} over {s.name} {s.unit}".rstrip()
    if len(whole_title) + len(named) + 5 > width:
        whole_title = title
    return curve_rows(
        points, width, height, whole_title, connect_points=joined, role=role, knee_text=named
    )


def _tick_label(s: Sweep, point: SweepPoint) -> str:
    if point.x is None:
        return point.label.rpartition("=")[2]
    return f"{point.x:g}"
