"""Tests of the history: cells of both rings, gaps, and the order of events."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workbench.model.timeline import (
    FINE_S,
    RINGS,
    Event,
    EventKind,
    History,
    ReadingIntervals,
    Series,
    _Ring,
)

T0 = 1_764_000_000


def test_a_cell_is_the_mean_of_its_seconds_and_a_gap_is_none() -> None:
    series = Series()
    for second, value in enumerate((1.0, 3.0, None, None, 5.0, 5.0)):
        if value is not None:
            series.add(T0 + second + 0.4, value)
    assert series.cell_means(T0 + 5, 2, 4) == [None, 2.0, None, 5.0]
    assert series.value_at(T0 + 1.9) == 3.0 and series.value_at(T0 + 2) is None


def test_the_past_beyond_an_hour_is_kept_by_ten_seconds() -> None:
    series = Series()
    for second in range(3 * FINE_S):
        series.add(T0 + second, float(second // FINE_S))
    assert series.cell_means(T0 + 3 * FINE_S - 1, FINE_S // 2, 6) == [0, 0, 1, 1, 2, 2]
    assert series.value_at(T0 + 5) == 0.0


@example([(381, 0.0), (381, 0.0)], 141)
@given(
    st.lists(st.tuples(st.integers(0, 200_000), st.floats(0, 1e6)), max_size=60),
    st.integers(1, 600),
)
def test_a_drawn_cell_never_changes_when_later_values_arrive(
    values: list[tuple[int, float]], cell_s: int
) -> None:
    values.sort(key=lambda pair: pair[0])
    series, drawn = Series(), {}
    for second, value in values:
        end = (T0 + second) // cell_s * cell_s - 1  # the end of the last complete cell
        if T0 + second - end < FINE_S - 2 * cell_s:
            for back, cell in enumerate(reversed(series.cell_means(end, cell_s, 3))):
                assert drawn.setdefault(end // cell_s - back, cell) == cell
        series.add(T0 + second, value)


def test_a_value_at_the_edge_of_a_ring_is_too_old_for_it() -> None:
    """The second before the oldest one has the place of the newest one."""
    ring = _Ring(1, 4)
    ring.add(T0 + 10, 1.0)
    ring.add(T0 + 6, 100.0)
    ring.add(T0 + 7, 5.0)
    assert list(ring.values()) == [(T0 + 7, 5.0), (T0 + 10, 1.0)]
    assert ring.covers_second(T0 + 7) and not ring.covers_second(T0 + 6)


def test_events_are_in_the_order_of_their_times() -> None:
    history = History()
    for second in (5, 1, 3):
        history.add_event_if_new(Event(T0 + second, EventKind.THROTTLE, str(second)))
    assert [event.text for event in history.events] == ["1", "3", "5"]


def test_an_event_that_two_tell_is_one() -> None:
    history = History()
    assert history.add_event_if_new(Event(T0, EventKind.SERVER_READY, "vllm READY (run 1)"))
    assert not history.add_event_if_new(Event(T0 + 3, EventKind.SERVER_READY, "vllm READY (run 1)"))
    assert not history.add_event_if_new(Event(T0 - 3, EventKind.SERVER_READY, "vllm READY (run 1)"))
    assert history.add_event_if_new(Event(T0, EventKind.SERVER_READY, "vllm READY (run 2)"))
    assert history.add_event_if_new(Event(T0 + 30, EventKind.SERVER_READY, "vllm READY (run 1)"))


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.floats(1, 1000)), max_size=80),
    st.integers(1, 40),
    st.integers(0, 9000),
)
def test_cells_are_the_means_of_what_was_added_in_any_order(
    values: list[tuple[int, float]], cell_s: int, end: int
) -> None:
    series = Series()
    for second, value in values:
        series.add(T0 + second, value)
    newest = max((second for second, _ in values), default=0)
    end = T0 + max(end, newest)
    cells = series.cell_means(end, cell_s, 50)
    begin = (end // cell_s + 1) * cell_s - 50 * cell_s
    if cell_s < 10 and begin > T0 + newest - FINE_S:  # of the ring of seconds
        for index, cell in enumerate(cells):
            start = begin + index * cell_s
            # A value older than the hour before the newest one at its time may be left out.
            inside = [v for s, v in values if start <= T0 + s < start + cell_s]
            assert cell == (pytest.approx(sum(inside) / len(inside), rel=1e-5) if inside else None)


def test_readings_a_little_more_than_a_second_apart_leave_no_gap() -> None:
    pace = ReadingIntervals()
    assert list(pace.seconds_covered_by_reading(T0 + 0.99, 1.0)) == [T0]
    assert list(pace.seconds_covered_by_reading(T0 + 2.01, 1.0)) == [T0 + 1, T0 + 2]
    assert list(pace.seconds_covered_by_reading(T0 + 2.5, 0.5)) == [T0 + 2]
    assert list(pace.seconds_covered_by_reading(T0 + 5.2, 1.0)) == [T0 + 5], (
        "a missing reading is a gap"
    )
    assert list(pace.seconds_covered_by_reading(T0 + 10.2, 5.0)) == list(range(T0 + 6, T0 + 11))


def test_a_day_of_eight_metrics_of_four_gpus_takes_about_one_and_a_half_megabytes() -> None:
    series = Series()
    for second in range(0, 86_400, 1):
        series.add(T0 + second, 1.0)
    rings = series._rings
    size = sum(sys.getsizeof(ring.sums) + sys.getsizeof(ring.counts) for ring in rings)
    assert size * 4 * 8 < 1_700_000
    assert [len(ring.sums) for ring in rings] == [slots for _, slots in RINGS]
    young = Series()
    for second in range(60):
        young.add(T0 + second, 1.0)
    assert (
        sum(sys.getsizeof(ring.sums) + sys.getsizeof(ring.counts) for ring in young._rings) < 3000
    )


class Counted(array):  # type: ignore[type-arg]
    """An array that counts the slots that are read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counted.read += len(found) if isinstance(key, slice) else 1
        return found


@pytest.mark.parametrize(("cell_s", "slots"), [(1, 1), (10, 1), (60, 1), (120, 2)])
def test_drawing_hours_reads_no_more_slots_than_drawing_minutes(cell_s: int, slots: int) -> None:
    """Each cell reads the slots of the coarsest fitting resolution, once."""
    series = Series()
    for second in range(8 * 3600):
        series.add(T0 + second, 1.0)
    for ring in series._rings:
        ring.sums, ring.counts = (Counted(a.typecode, a) for a in (ring.sums, ring.counts))
    Counted.read = 0
    assert series.cell_means(T0 + 8 * 3600 - 1, cell_s, 120) == [1.0] * 120
    assert Counted.read == 2 * slots * 120, "a sum and a count for each slot"
