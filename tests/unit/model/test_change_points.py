"""Change points: found where there is one, and hardly ever where there is none."""

from __future__ import annotations

import random

from workbench.model.change_points import LEAST, find_change_points


def series(*parts: tuple[int, float], seed: int = 1, noise_pct: float = 1.0) -> list[float]:
    """Return a series of parts, each of a number of values around a level."""
    rng = random.Random(seed)
    return [level * (1 + rng.gauss(0, noise_pct / 100)) for n, level in parts for _ in range(n)]


def test_each_step_is_found_with_its_size() -> None:
    found = find_change_points(series((10, 100.0), (8, 95.0), (8, 105.0)))
    assert [one.index for one in found] == [10, 18]
    assert -6 < found[0].change_pct < -4 and 9 < found[1].change_pct < 12


def test_equal_nights_have_no_change_point() -> None:
    """Of 300 series at most 1 % is expected, and chance finds more than 8 in 1 of 200 such tests."""
    wrong = [seed for seed in range(300) if find_change_points(series((20, 100.0), seed=seed))]
    assert len(wrong) <= 8


def test_a_short_series_has_none_and_equal_values_do_not_divide_by_zero() -> None:
    assert find_change_points([]) == [] and find_change_points([1.0, 2.0] * (LEAST - 1)) == []
    assert find_change_points([5.0] * 12) == []
    assert [one.index for one in find_change_points([5.0] * 6 + [4.0] * 6)] == [6]
