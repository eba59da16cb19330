"""The estimate of the users that a server serves within limits: its error, and how many runs it takes."""

from __future__ import annotations

import math
import random

import pytest

from workbench.bench.user_estimate import UserEstimate


def estimated(
    capacity: float, first: int = 8, *, noise: float = 0.0, steep: float = 1.0, most: int = 4096
) -> tuple[float, int]:
    """Return the estimate for a server whose latency meets the limit at `capacity` users, and the
    number of its runs. `steep` is the power with which the latency grows."""
    rng, ratios = random.Random(capacity), dict[int, float]()
    while (users := UserEstimate(ratios, first, most).next_level()) is not None:
        assert users not in ratios
        ratios[users] = steep * math.log(users / capacity) + rng.gauss(0, noise)
    return UserEstimate(ratios, first, most).estimated_users(), len(ratios)


@pytest.mark.parametrize("steep", [0.3, 1.0, 30.0])
@pytest.mark.parametrize("capacity", [1.5, 7.0, 22.0, 23.5, 61.0, 300.0])
def test_the_estimate_is_near_and_takes_few_runs(capacity: float, steep: float) -> None:
    users, runs = estimated(capacity, steep=steep)
    assert users == pytest.approx(capacity, rel=0.1, abs=0.6) and runs <= 12
    assert estimated(capacity, first=round(capacity), steep=steep)[1] <= 8


def test_noise_moves_the_estimate_by_no_more_than_itself() -> None:
    found = [estimated(20 + n / 7, noise=0.02)[0] / (20 + n / 7) for n in range(100)]
    assert max(abs(one - 1) for one in found) < 0.1


def test_no_user_and_more_users_than_asked_for() -> None:
    assert estimated(0.5)[0] == 0.0
    assert estimated(1e9, most=64) == (64.0, 4)
