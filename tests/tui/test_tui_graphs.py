"""Graphs on the time axis: what is drawn for given cells, and that the past never changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.model.timeline import Event, EventKind, History
from workbench.tui.cells import Row, row_width
from workbench.tui.widgets.graph import Graph, draw
from workbench.tui.widgets.strip_layout import arrange, most_rows
from workbench.tui.widgets.time_axis import ZOOMS, TimeView, Window, axis

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
    before = draw(power(past, [limit] * len(past)), height)
    limits = [limit] * len(past) + [new_limit] * len(later)
    after = draw(power([*past, *later], limits), height)
    assert cells(after, len(past)) == cells(before, len(past))


@settings(max_examples=30)
@given(
    st.lists(st.floats(0, 600), min_size=40, max_size=80),
    st.sampled_from(list(ZOOMS)),
    st.integers(13, 40),
)
def test_cells_of_the_past_stay_while_time_goes_on(
    values: list[float], cell_s: int, count: int
) -> None:
    history, view, seen = History(), TimeView(), dict[int, float | None]()
    view.cell_s = cell_s
    for second, value in enumerate(values, NOW):
        history.add((0, "power_w"), second, value)
        window = view.window(second, count)
        drawn = history.cells((0, "power_w"), window.end_s, window.cell_s, window.count)
        assert window.first <= window.now <= window.end
        for number, drawn_value in enumerate(drawn, window.first):
            if number < window.now:
                assert seen.setdefault(number, drawn_value) == drawn_value


def test_a_gap_is_blank_and_zero_is_not() -> None:
    for height in (1, 2, 5):
        rows = draw(Graph("util", "", [None, 0.0, 100.0], 100.0), height)
        assert [text(row)[0] for row in rows] == [" "] * height
        assert text(rows[-1])[1] == "▁" and text(rows[-1])[2] == "█"


def test_a_limit_is_a_line_where_it_is_in_force() -> None:
    rows = draw(power([100.0] * 4, [600.0, 600.0, 350.0, 350.0]), 4)
    assert text(rows[1]) == "  ──" and text(rows[0]).strip() == ""
    held = draw(power([348.0, 200.0], [350.0, 350.0]), 1)
    assert [role for _, role in held[0]] == ["limited", "power"]


def test_equal_gpus_are_solid_to_the_lowest_and_faint_to_the_highest() -> None:
    rows = draw(Graph("util", "", [90.0], 100.0, low=[40.0], role="util"), 3)
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
    row = axis(window(), marks)
    assert text(row) == "S   R    [====!==]     g r now" and row_width(row) == 30
    assert text(axis(window(), [])) == "         -20s      -10s    now"


def test_two_marks_of_one_cell_show_the_more_important_one() -> None:
    both = [
        event(-5, EventKind.THROTTLE),
        event(-5, EventKind.BENCH_BEGIN),
        event(-5, EventKind.SETTING_MADE),
    ]
    assert text(axis(window(), both))[24] == "!"
    whole = [
        Event(NOW - 200.0, EventKind.BENCH_BEGIN, ""),
        Event(NOW - 190.0, EventKind.BENCH_END, ""),
    ]
    assert text(axis(window(30, 60), whole)).split() == ["-20m", "-10m", "="]


def test_a_benchmark_whose_end_is_not_known_is_drawn_to_now_only_while_one_runs() -> None:
    begun = [event(-10, EventKind.BENCH_BEGIN)]
    assert text(axis(window(), begun, measuring=True)).endswith("[==========")
    assert "=" not in text(axis(window(), begun))
    before = [event(-100, EventKind.BENCH_BEGIN), event(-20, EventKind.BENCH_END)]
    assert text(axis(window(), before)).startswith("=========]")


def test_a_lost_link_is_drawn_until_it_is_back() -> None:
    lost = [event(-10, EventKind.LINK_LOST), event(-5, EventKind.LINK_BACK)]
    assert "x????c" in text(axis(window(), lost))


def test_the_cursor_stays_in_the_window_and_ends_at_now() -> None:
    view = TimeView()
    assert view.window(NOW, 20).end == NOW
    view.move(-1, NOW)
    assert not view.live and view.window(NOW, 20).cursor_column == 18
    view.move(-40, NOW)
    shown = view.window(NOW + 7, 20)
    assert shown.cursor == NOW - 41 and shown.cursor_column == 0
    view.move(10, NOW + 7)
    assert view.window(NOW + 7, 20).cursor_column == 10  # the window stands still
    view.move(100, NOW + 7)
    assert view.live


def test_the_axis_at_a_cursor_shows_times_of_day() -> None:
    shown = text(axis(window(40, cursor=-15), []))
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
    made = arrange(
        [tuple(range(count))], width, most_rows(height), unfolded=unfolded, header=header
    )
    extra = count + 1 if unfolded else 1
    assert made.groups and made.rows <= max(most_rows(height), 1) + extra
    assert made.columns.starts[-1] + made.columns.cells <= width or width < 57


def test_small_and_large_terminals_have_the_graphs_of_the_design() -> None:
    def made(count: int, width: int, height: int) -> tuple[int, tuple[int, ...], int]:
        layout = arrange(
            [tuple(range(count))], width, most_rows(height), unfolded=None, header=False
        )
        return len(layout.groups), layout.heights, layout.rows

    assert [made(n, 80, 24) for n in (1, 2, 4, 8)] == [
        (1, (3,), 5),
        (2, (2,), 5),
        (4, (1,), 5),
        (1, (3,), 5),
    ]
    assert [made(n, 120, 40) for n in (1, 2, 4, 8)] == [
        (1, (6, 4), 12),
        (2, (3, 2), 12),
        (4, (2,), 10),
        (8, (1,), 10),
    ]
    assert [made(n, 200, 60) for n in (1, 4, 8)] == [
        (1, (8, 5), 15),
        (4, (3, 2), 22),
        (8, (2,), 18),
    ]
