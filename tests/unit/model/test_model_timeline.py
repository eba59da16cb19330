"""Tests of the history: cells of both rings, gaps, and the order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workbench.model.timeline import FINE_SLOTS, Event, EventKind, History, Series

T0 = 1_764_000_000


def test_a_cell_is_the_mean_of_its_seconds_and_a_gap_is_none() -> None:
    series = Series()
    for second, value in enumerate((1.0, 3.0, None, None, 5.0, 5.0)):
        if value is not None:
            series.add(T0 + second + 0.4, value)
    assert series.cells(T0 + 5, 2, 4) == [None, 2.0, None, 5.0]
    assert series.at(T0 + 1.9) == 3.0 and series.at(T0 + 2) is None


def test_the_past_beyond_an_hour_is_kept_by_ten_seconds_for_a_day() -> None:
    series = Series()
    for second in range(3 * FINE_SLOTS):
        series.add(T0 + second, float(second // FINE_SLOTS))
    assert series.cells(T0 + 3 * FINE_SLOTS - 1, FINE_SLOTS // 2, 6) == [0, 0, 1, 1, 2, 2]
    assert series.at(T0 + 5) == 0.0


@given(st.lists(st.tuples(st.integers(0, 200_000), st.floats(0, 1e6)), max_size=60), st.integers(1, 600))
def test_a_drawn_cell_never_changes_when_later_values_arrive(values: list[tuple[int, float]], cell_s: int) -> None:
    values.sort(key=lambda pair: pair[0])
    series, drawn = Series(), {}
    for second, value in values:
        end = (T0 + second) // cell_s * cell_s - 1  # the end of the last complete cell
        if T0 + second - end < FINE_SLOTS - 2 * cell_s:
            for back, cell in enumerate(reversed(series.cells(end, cell_s, 3))):
                assert drawn.setdefault(end // cell_s - back, cell) == cell
        series.add(T0 + second, value)


def test_events_are_in_the_order_of_their_times() -> None:
    history = History()
    for second in (5, 1, 3):
        history.add_event(Event(T0 + second, EventKind.THROTTLE, str(second)))
    assert [event.text for event in history.events] == ["1", "3", "5"]
