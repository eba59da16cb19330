"""The moment of each second at which the tasks of a screen wake up."""

from __future__ import annotations

import pytest

from workbench.model import beat
from workbench.model.beat import Beat


class Clock:
    """Stands for the module time: its monotonic time is `now_s`."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1_795_000_000.5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(beat, "time", made)
    return made


@pytest.mark.parametrize("interval_s", [0.5, 1.0, 2.0])
def test_pauses_of_a_second_end_together_before_the_next_reading(
    clock: Clock, interval_s: float
) -> None:
    shared = Beat()
    for _ in range(10):
        shared.record_gpu_reading()
        clock.now_s += interval_s
    heard_s = clock.now_s - interval_s
    ends = []
    for began_s in (0.0, 0.2, 0.4):
        clock.now_s = heard_s + began_s
        ends.append(clock.now_s + shared.seconds_until_beat_near_pause_end(1.0))
    assert ends == pytest.approx([heard_s + 1.0 - 0.015] * 3)


def test_a_pause_is_at_most_half_a_second_longer_or_shorter(clock: Clock) -> None:
    shared = Beat()
    shared.record_gpu_reading()
    for tenth in range(10):
        clock.now_s = 101.0 + tenth / 10
        for pause_s in (1.0, 3.0):
            assert abs(shared.seconds_until_beat_near_pause_end(pause_s) - pause_s) <= 0.5
    assert shared.seconds_until_beat_near_pause_end(0.25) == 0.25


def test_without_a_reading_pauses_end_after_the_whole_second(clock: Clock) -> None:
    assert Beat().seconds_until_beat_near_pause_end(1.0) == pytest.approx(0.52)
