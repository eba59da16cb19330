"""Graphs on the time axis: what is drawn for given cells, and that the past never changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_session import FakeSession

from workbench.model.engine_live import EngineView
from workbench.model.timeline import ENGINE, Event, EventKind, History, Key, ReadingIntervals
from workbench.server.engine_rates import MAX_READING_GAP_S
from workbench.tui.cells import Row, merge_runs, row_width
from workbench.tui.widgets.gpu_strip import GpuStrip
from workbench.tui.widgets.graph import Graph, draw_graph
from workbench.tui.widgets.graph_cache import GraphCache
from workbench.tui.widgets.strip_layout import arrange_strip, max_strip_rows
from workbench.tui.widgets.time_axis import (
    ZOOMS,
    AxisCache,
    Label,
    TimeView,
    Window,
    axis_row,
    label_row,
)

NOW = 1_795_000_000
VALUES = st.lists(st.none() | st.floats(0, 600), min_size=1, max_size=30)
HEIGHTS = st.integers(1, 6)


def text(row: Row) -> str:
    return "".join(text for text, _ in row)


def cells(rows: list[Row], count: int) -> list[tuple[tuple[str, str], ...]]:
    """Return each column of a graph as its characters with their roles, from the top."""
    flat = [[(c, role) for run, role in row for c in run] for row in rows]
    return [tuple(row[i] for row in flat) for i in range(count)]


def power(values: list[float | None], limits: list[float | None]) -> Graph:
    return Graph("power", "", values, 600.0, lines=(limits,), role="power")


@given(VALUES, VALUES, st.floats(100, 600), st.floats(100, 600), HEIGHTS)
def test_a_drawn_cell_never_changes(
    past: list[float | None], later: list[float | None], limit: float, new_limit: float, height: int
) -> None:
    """Neither a new limit nor later readings change what has been drawn."""
    before = draw_graph(power(past, [limit] * len(past)), height)
    limits = [limit] * len(past) + [new_limit] * len(later)
    after = draw_graph(power([*past, *later], limits), height)
    assert cells(after, len(past)) == cells(before, len(past))


@settings(max_examples=30)
@given(
    st.lists(st.floats(0, 600), min_size=40, max_size=80),
    st.sampled_from(ZOOMS),
    st.sampled_from([1, 2]),
    st.integers(13, 40),
)
def test_cells_of_the_past_stay_while_time_goes_on(
    values: list[float], value_s: int, per_cell: int, count: int
) -> None:
    history, view, seen = History(), TimeView(), dict[int, float | None]()
    view.value_s, view.per_cell = value_s, per_cell
    for second, value in enumerate(values, NOW):
        history.add((0, "power_w"), second, value)
        window = view.window(second, count)
        drawn = window.metric_values(history, (0, "power_w"))
        assert len(drawn) == count * per_cell
        assert window.first_cell <= window.now <= window.end
        for number, drawn_value in enumerate(drawn, window.first_cell * per_cell):
            if number < window.now * per_cell:
                assert seen.setdefault(number, drawn_value) == drawn_value


def test_the_last_value_of_a_window_is_the_one_of_its_last_seconds() -> None:
    history = History()
    for second in range(NOW - 99, NOW + 2):
        history.add((0, "power_w"), second, float(second - NOW))
    view = Window(2, NOW // 2, 4, NOW // 2, per_cell=2)
    assert view.metric_values(history, (0, "power_w")) == [
        -6.0,
        -5.0,
        -4.0,
        -3.0,
        -2.0,
        -1.0,
        0.0,
        1.0,
    ]


def test_two_values_share_a_cell() -> None:
    graph = Graph("util", "", [0.0, 100.0, 50.0, None, None, None], 100.0, per_cell=2)
    assert [text(row) for row in draw_graph(graph, 1)] == ["⣸⡄ "]
    assert [text(row) for row in draw_graph(graph, 2)] == ["⢸  ", "⣸⡇ "]


@given(VALUES, st.floats(100, 600), HEIGHTS)
def test_dots_have_the_size_of_the_graph(
    values: list[float | None], limit: float, height: int
) -> None:
    pairs = values * 2
    graph = Graph("power", "", pairs, 600.0, lines=([limit] * len(pairs),), per_cell=2)
    assert [row_width(row) for row in draw_graph(graph, height)] == [len(values)] * height


def test_a_limit_is_a_step_at_its_true_value_in_a_graph_of_dots() -> None:
    limits = [250.0] * 4 + [170.0] * 4
    graph = Graph("power", "", [30.0] * 8, 250.0, lines=(limits,), role="power", per_cell=2)
    assert [text(row) for row in draw_graph(graph, 2)] == ["  ──", "⣀⣀⣀⣀"]
    held = Graph("power", "", [169.0, 30.0], 250.0, lines=([170.0] * 2,), role="p", per_cell=2)
    assert [role for _, role in draw_graph(held, 1)[0]] == ["limited"]


def test_the_rows_above_the_lowest_gpu_are_faint_in_a_graph_of_dots() -> None:
    graph = Graph("util", "", [90.0] * 2, 100.0, low=[40.0] * 2, role="util", per_cell=2)
    assert [row[0][1] for row in draw_graph(graph, 3)] == ["band", "util", "util low"]


def test_a_gap_is_blank_and_zero_is_not() -> None:
    for height in (1, 2, 5):
        rows = draw_graph(Graph("util", "", [None, 0.0, 100.0], 100.0), height)
        assert [text(row)[0] for row in rows] == [" "] * height
        assert text(rows[-1])[1] == "▁" and text(rows[-1])[2] == "█"


def test_a_limit_is_a_line_where_it_is_in_force() -> None:
    rows = draw_graph(power([100.0] * 4, [600.0, 600.0, 350.0, 350.0]), 4)
    assert text(rows[1]) == "  ──" and text(rows[0]).strip() == ""
    held = draw_graph(power([348.0, 200.0], [350.0, 350.0]), 1)
    assert [role for _, role in held[0]] == ["limited", "power"]


def test_equal_gpus_are_solid_to_the_lowest_and_faint_to_the_highest() -> None:
    rows = draw_graph(Graph("util", "", [90.0], 100.0, low=[40.0], role="util"), 3)
    assert [row[0][1] for row in rows] == ["band", "util on band", "util"]


def window(count: int = 30, cell_s: int = 1, cursor: int | None = None) -> Window:
    now = NOW // cell_s
    return Window(cell_s, now, count, now, None if cursor is None else now + cursor)


def event(seconds: float, kind: EventKind) -> Event:
    return Event(NOW + seconds, kind, kind.value)


def test_the_axis_has_times_and_marks() -> None:
    marks = [
        event(-29, EventKind.SERVER_START),
        event(-25, EventKind.SERVER_READY),
        event(-20, EventKind.BENCH_BEGIN),
        event(-15, EventKind.THROTTLE),
        event(-12, EventKind.BENCH_END),
        event(-6, EventKind.SETTING_MADE),
        event(-3.5, EventKind.SETTING_REVERTED),
    ]
    row = axis_row(window(), marks)
    assert text(row) == "S···R    [run=!==] set g r now" and row_width(row) == 30
    assert text(axis_row(window(), [])) == "         -20s      -10s    now"


def test_the_newest_mark_of_each_kind_is_a_word_where_there_is_room() -> None:
    marks = [
        event(-68, EventKind.SETTING_MADE),
        event(-56, EventKind.SERVER_END),
        event(-55, EventKind.SERVER_START),
        event(-50, EventKind.SERVER_READY),
        event(-44, EventKind.BENCH_BEGIN),
        event(-37, EventKind.BENCH_END),
        event(-34, EventKind.QUEUEING),
        event(-24, EventKind.QUEUEING),
        event(-18, EventKind.SETTING_MADE),
        event(-5, EventKind.SETTING_REVERTED),
    ]
    row = axis_row(window(70), marks)
    said = text(row)
    assert " g  " in said and "ES····Ready [bench=]  q   " in said and row_width(row) == 70, said
    assert "queue gpu reverted r" in said and said.endswith(" r  now"), said
    close = [
        event(-27, EventKind.SERVER_START),
        event(-24, EventKind.SERVER_READY),
        event(-22, EventKind.BENCH_BEGIN),
        event(-17, EventKind.BENCH_END),
        event(-8, EventKind.SETTING_MADE),
        event(-6, EventKind.BENCH_BEGIN),
        event(-2, EventKind.BENCH_END),
    ]
    assert text(axis_row(window(), close)) == "  S··R [run=]    set g [===]  "
    # what is read at once is not run together: a mark behind the word needs a blank between
    beside = [event(-20, EventKind.SERVER_READY), event(-15, EventKind.QUEUEING)]
    assert "R    queue" in text(axis_row(window(), beside))


def test_two_marks_of_one_cell_show_the_more_important_one() -> None:
    both = [
        event(-5, EventKind.THROTTLE),
        event(-5, EventKind.BENCH_BEGIN),
        event(-5, EventKind.SETTING_MADE),
    ]
    assert text(axis_row(window(), both))[24] == "!"
    whole = [
        Event(NOW - 200.0, EventKind.BENCH_BEGIN, ""),
        Event(NOW - 190.0, EventKind.BENCH_END, ""),
    ]
    assert text(axis_row(window(30, 60), whole)).split() == ["-20m", "-10m", "="]


def test_a_benchmark_whose_end_is_not_known_is_drawn_to_now_only_while_one_runs() -> None:
    begun = [event(-10, EventKind.BENCH_BEGIN)]
    assert text(axis_row(window(), begun, is_measuring=True)).endswith("[bench=====")
    assert "=" not in text(axis_row(window(), begun))
    before = [event(-100, EventKind.BENCH_BEGIN), event(-20, EventKind.BENCH_END)]
    assert text(axis_row(window(), before)).startswith("=========]")


def test_a_lost_link_is_drawn_until_it_is_back() -> None:
    lost = [event(-10, EventKind.LINK_LOST), event(-5, EventKind.LINK_BACK)]
    assert "x????c" in text(axis_row(window(), lost))


def test_the_cursor_stays_in_the_window_and_ends_at_now() -> None:
    view = TimeView()
    assert view.window(NOW, 20).end == NOW
    view.move_cursor(-1, NOW)
    assert not view.is_live and view.window(NOW, 20).cursor_column == 18
    view.move_cursor(-40, NOW)
    shown = view.window(NOW + 7, 20)
    assert shown.cursor == NOW - 41 and shown.cursor_column == 0
    view.move_cursor(10, NOW + 7)
    assert view.window(NOW + 7, 20).cursor_column == 10  # the window stands still
    view.move_cursor(100, NOW + 7)
    assert view.is_live


def test_the_axis_at_a_cursor_shows_times_of_day() -> None:
    shown = text(axis_row(window(40, cursor=-15), []))
    assert shown[24] == "▲" and shown.count(":") == 4


@given(
    st.integers(20, 220),
    st.integers(3, 70),
    st.integers(1, 16),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
def test_a_layout_fits_its_terminal(
    width: int, height: int, count: int, unfolded: bool | None, header: bool
) -> None:
    made = arrange_strip(
        [tuple(range(count))],
        width,
        max_strip_rows(height),
        block_per_gpu=unfolded,
        needs_header=header,
    )
    extra = count + 1 if unfolded else 1
    assert not made.stacked or made.columns.graph_count == 1
    assert made.groups and made.row_count <= max(max_strip_rows(height), 1) + extra
    assert made.columns.graph_starts[-1] + made.columns.cells <= width or width < 57


def test_small_and_large_terminals_have_the_graphs_of_the_design() -> None:
    def made(
        count: int, width: int, height: int, unfolded: bool | None = None
    ) -> tuple[int, tuple[int, ...], int]:
        layout = arrange_strip(
            [tuple(range(count))],
            width,
            max_strip_rows(height),
            block_per_gpu=unfolded,
            needs_header=False,
        )
        return len(layout.groups), layout.heights, layout.row_count

    # equal GPUs share one block: a graph a line, one time axis, over the whole width
    assert [made(n, 80, 24) for n in (1, 2, 4, 8)] == [(1, (1, 1, 1), 5)] * 4
    assert [made(n, 120, 40) for n in (1, 2, 4, 8)] == [(1, (1, 2, 1), 6)] * 4
    assert made(4, 120, 44) == (1, (2, 2, 2), 8)
    assert [made(n, 200, 60) for n in (1, 4, 8)] == [(1, (4, 4, 4), 14)] * 3
    # with a row or more for each of them, as many graphs beside each other as fit
    assert [made(n, 80, 24, True) for n in (2, 4, 8)] == [
        (2, (2,), 5),
        (4, (1,), 5),
        (8, (1,), 9),
    ]
    assert [made(n, 120, 40, True) for n in (2, 4, 8)] == [
        (2, (1, 1, 1), 8),
        (4, (2,), 10),
        (8, (1,), 10),
    ]


def test_the_axis_covers_three_minutes_at_120_columns_and_two_at_80() -> None:
    for width, height, least_s in ((80, 24, 120), (120, 40, 180)):
        layout = arrange_strip(
            [tuple(range(4))], width, max_strip_rows(height), block_per_gpu=None, needs_header=False
        )
        view = TimeView()
        view.per_cell = 2
        window = view.window(NOW, layout.columns.cells)
        assert layout.columns.graph_count == 1
        assert window.count * window.cell_s >= least_s


def test_labels_stand_where_there_is_room() -> None:
    def label(column: int, *texts: str) -> Label:
        return Label(column, tuple(((text, "text"),) for text in texts))

    first = label(2, "#1 baseline 420 tok/s", "#1 420", "420")
    second = label(12, "#2 eager off 1,402 +234 %", "1,402 +234 %", "+234 %")
    assert text(label_row([second, first], 50)) == "  #1 420    #2 eager off 1,402 +234 %"
    assert text(label_row([first, second], 25)) == "  #1 420    1,402 +234 %"
    # at the right end it begins a little earlier, with a form that tells enough
    whole = Label(12, second.texts, telling=2)
    assert text(label_row([whole], 20)) == "        1,402 +234 %"
    assert text(label_row([label(2, "long text"), label(4, "x")], 6)) == "    x"
    assert text(label_row([], 20)) == ""


@settings(max_examples=30)
@given(
    st.lists(st.none() | st.floats(0, 300), min_size=60, max_size=150),
    st.integers(1, 3),
    st.sampled_from([ZOOMS[0], ZOOMS[1]]),
)
def test_kept_cells_are_those_that_would_be_drawn_again(
    values: list[float | None], height: int, value_s: int
) -> None:
    history, view, top = History(), TimeView(), 250.0
    cache = GraphCache(history)
    view.value_s, view.per_cell = value_s, 2
    drawn: list[int] = []
    of_heads: list[int] = []

    def make(window_part: Window, earlier_rows: Sequence[Row]) -> Graph:
        drawn.append(window_part.count)
        cells = window_part.metric_values(history, (0, "power_w"))
        limits = [170.0] * len(cells)
        lines = (limits,)
        return Graph(
            "power",
            "",
            cells,
            top,
            lines=lines,
            role="power",
            per_cell=2,
            earlier_rows=earlier_rows,
        )

    for second, value in enumerate(values, NOW):
        history.add((0, "power_w"), second, value)
        top = 250.0 if second < NOW + 40 else 500.0
        window = view.window(second, 60)
        began = len(drawn)
        kept = draw_graph(cache.make_graph("power", make, window, height, [(0, "power_w")]), height)
        of_heads += drawn[began:]
        assert kept == draw_graph(make(window, ()), height)
    # whole only at first and with another scale, not when the window moves
    assert of_heads.count(60) <= 2


def test_a_kept_axis_is_the_one_that_would_be_drawn_again() -> None:
    history, view = History(), TimeView()
    kept = AxisCache(history)
    happened = {
        5: EventKind.BENCH_BEGIN,
        20: EventKind.BENCH_END,
        40: EventKind.LINK_LOST,
        60: EventKind.LINK_BACK,
    }
    for second in range(100):
        if second in happened:
            history.add_event_if_new(Event(NOW + second - 0.5, happened[second], f"{second}"))
        shown, measuring = view.window(NOW + second, 40), 5 <= second < 20
        assert kept.row(shown, measuring) == axis_row(shown, history.events, measuring)


def test_a_past_that_was_read_later_is_drawn() -> None:
    history, view = History(), TimeView()
    cache = GraphCache(history)
    view.per_cell = 2

    def make(window_part: Window, earlier_rows: Sequence[Row]) -> Graph:
        return Graph(
            "util",
            "",
            window_part.metric_values(history, (0, "u")),
            100.0,
            per_cell=2,
            earlier_rows=earlier_rows,
        )

    window = view.window(NOW, 30)
    history.add((0, "u"), NOW, 50.0)
    keys = [(0, "u")]
    assert text(draw_graph(cache.make_graph("u", make, window, 1, keys), 1)[0]).strip() != ""
    history.add_stored_mean((0, "u"), NOW - 40, 100.0, 1)
    assert "⢸" in text(draw_graph(cache.make_graph("u", make, window, 1, keys), 1)[0]).replace(
        "⡇", "⢸"
    )


@given(st.lists(st.tuples(st.text(max_size=3), st.sampled_from(["text", "dim", ""])), max_size=12))
def test_merged_runs_have_the_same_characters_and_no_equal_neighbours(runs: list[Any]) -> None:
    def characters(row: Any) -> list[tuple[str, str]]:
        return [(char, role) for text, role in row for char in text]

    row = merge_runs(runs)
    assert characters(row) == characters(runs)
    assert all(before != after for (_, before), (_, after) in pairwise(row))


def test_a_limit_is_the_same_in_a_part_of_a_window() -> None:
    """The mean of a cell in which the limit changed is a value that it never had. Which limit it
    was depends on the cell before it."""
    session, history, view = FakeSession(1), History(), TimeView()
    view.per_cell, view.value_s = 2, 5
    for second in range(NOW, NOW + 100):
        history.add((0, "limit_w"), second, 600.0 if second < NOW + 53 else 400.0)
    window, strip = view.window(NOW + 99, 12), GpuStrip(history, session.state)
    (sample,) = session.telemetry().gpus
    whole = strip._limit_values_in_window(sample, "limit_w", window)
    assert set(whole) == {600.0, 400.0, None}
    for count in range(12):
        assert (
            strip._limit_values_in_window(sample, "limit_w", window.drop_first_cells(count))
            == whole[2 * count :]
        )


@pytest.mark.parametrize(
    ("seed", "gpus", "interval_s", "value_s"),
    [(0, 1, 1, 1), (6, 1, 1, 1), (2, 2, 2, 5), (8, 3, 5, 1)],
)
def test_a_strip_with_kept_cells_equals_one_that_is_drawn_whole(
    seed: int, gpus: int, interval_s: int, value_s: int
) -> None:
    """Readings with gaps, limits that change, counters that come late, a clock that is set back."""
    luck = random.Random(seed)
    session = FakeSession(gpus)
    history, pace = History(), ReadingIntervals()
    strip = GpuStrip(history, session.state)
    telemetry = session.telemetry()
    state = replace(
        session.state,
        telemetry=telemetry,
        engine=EngineView("r1", "vllm :8000", {"generation_tok_s": 400.0}),
    )
    strip.state = state
    strip.arranged = arrange_strip(
        [tuple(range(gpus))],
        120,
        max_strip_rows(40),
        block_per_gpu=None,
        needs_header=False,
        has_labels=True,
    )
    strip.view.per_cell, strip.view.value_s = 2, value_s
    strip.arrange_and_count_rows(120, 40)
    limit_w, now_s, late = 600.0, float(NOW), list[int]()
    for number in range(45 * value_s):
        now_s += interval_s + luck.choice([0.0, 0.0, 0.01, -0.01])
        if luck.random() < 0.02:
            now_s -= 4.0  # the clock is set back
        if luck.random() < 0.3:
            limit_w = luck.choice([100.0, 250.0, 590.0])
        values: dict[Key, float | None] = {}
        for gpu in range(gpus):
            known = luck.random() < 0.95
            values[gpu, "gpu_util_pct"] = luck.uniform(0, 100) if known else None
            values[gpu, "power_w"] = luck.uniform(0, 620) if known else None
            values[gpu, "sm_mhz"] = luck.uniform(200, 3000)
            values[gpu, "limit_w"] = limit_w
            values[gpu, "sm_lock_max_mhz"] = luck.choice([500.0, 2000.0])
        if luck.random() < 0.9:
            history.add_reading_to_seconds(
                values, pace.seconds_covered_by_reading(now_s, interval_s)
            )
        late = [second for second in late if second > now_s - MAX_READING_GAP_S] + [int(now_s) - 1]
        if luck.random() < 0.5:  # otherwise the engine answers later, for all these seconds
            for second in late:
                history.add((ENGINE, "generation_tok_s"), second, luck.uniform(0, 900))
            late = []
        if number % value_s:
            continue
        strip._read_s = now_s
        history.clock = lambda now_s=now_s: now_s
        kept = strip.rows(120, 20)
        cache, tops = strip.graph_cache, strip.engine._graph_cache
        strip.graph_cache, strip.engine._graph_cache = GraphCache(history), GraphCache(history)
        assert kept == strip.rows(120, 20)
        strip.graph_cache, strip.engine._graph_cache = cache, tops
