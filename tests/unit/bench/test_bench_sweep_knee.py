"""Tests of knees: the published power sweep of a bare-metal card, and properties that any curve
must have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bench.sweep_knee import (
    FLAT_CURVE_SHARE,
    MAX_CONCURRENCY_LOSS_SHARE,
    MAX_SETTING_LOSS_SHARE,
    MIN_MEASURED_POINTS,
    find_knee_of_concurrency,
    find_knee_of_gpu_setting,
)
from workbench.model.sweep import SweepPoint


def point(
    x: float, tok_s: float | None, watts: float | None = None, unit: str = " W"
) -> SweepPoint:
    thrift = tok_s / watts if tok_s is not None and watts else None
    return SweepPoint(f"{x:g}{unit}", x, "done", tok_s=tok_s, power_w=watts, tok_per_joule=thrift)


# 27B AWQ, one stream, RTX PRO 6000 (MMBT power sweep 2026-04-29): watts of the limit, tok/s; it
# draws 511 W uncapped
PUBLISHED = [
    point(w, t, min(w, 511))
    for w, t in ((600, 72.1), (450, 72.0), (400, 71.3), (350, 68.6), (300, 62.6))
]


def test_the_published_power_sweep() -> None:
    knee = find_knee_of_gpu_setting(PUBLISHED)
    assert knee.index == 3  # 350 W: 4.9 % are lost; at 300 W 13 %
    assert knee.text.startswith(
        "350 W: the most tok/J (0.196) of the values that lose at most 5 % of the best tok/s"
    )
    assert "72.1 at 600 W; here 68.6, -4.9 %" in knee.text
    assert "flattens at 400 W (400 W drawn): higher values gain at most 2 %" in knee.text
    assert "the most tok/J of all values: 300 W (0.209), -13.2 % tok/s" in knee.text


def test_a_curve_that_still_rises_has_no_knee() -> None:
    rising = find_knee_of_gpu_setting([point(w, w / 10, w) for w in (300, 400, 500)])
    assert rising.index is None and "still rises up to 500 W" in rising.text
    levels = find_knee_of_concurrency([point(c, 20 * c, unit="") for c in (1, 2, 4, 8)])
    assert levels.index is None and "still rises by 100 % from 4 to 8" in levels.text


def test_throughput_that_saturates_and_falls() -> None:
    found = find_knee_of_concurrency(
        [point(c, t, unit="") for c, t in ((1, 25), (8, 190), (32, 560), (64, 600), (128, 480))]
    )
    assert (
        found.index == 2
        and ("57.1 ms per token and stream") in found.text
        and "here 560, 93 %" in found.text
    )


@pytest.mark.parametrize("rule", [find_knee_of_gpu_setting, find_knee_of_concurrency])
def test_an_unmeasured_metric_has_no_value(rule: object) -> None:
    assert callable(rule)
    failed = [replace(p, state="failed", tok_s=None) for p in PUBLISHED[:3]]
    found = rule([*failed, *PUBLISHED[3:]])
    assert (
        found.index is None
        and f"needs {MIN_MEASURED_POINTS} measured values, and there are 2" in found.text
    )
    assert rule([]).index is None


def test_without_power_no_setting_is_called_thrifty() -> None:
    found = find_knee_of_gpu_setting([point(w, 70.0) for w in (300, 400, 500)])
    assert found.index is None and "tok/J is not known" in found.text
    found = find_knee_of_gpu_setting(
        [point(w, t) for w, t in ((300, 60.0), (400, 70.0), (500, 70.0))]
    )
    assert (
        found.index is None
        and "tok/J is not known" in found.text
        and ("flattens at 400 W") in found.text
    )


def test_a_flat_curve_has_no_knee() -> None:
    """Limits that do not bind: the differences are noise, and so is the value with the most tok/J."""
    drawn = find_knee_of_gpu_setting(
        [point(w, t, 370) for w, t in ((400, 712.0), (500, 715.0), (600, 709.0))]
    )
    assert drawn.index is None and "tok/s is flat within 2 % from 400 W to 600 W" in drawn.text
    assert "tok/J is within 5 % at all values" in drawn.text
    saves = find_knee_of_gpu_setting(
        [point(w, t, w) for w, t in ((400, 712.0), (500, 715.0), (600, 709.0))]
    )
    assert saves.index is None and "the most tok/J of all values: 400 W (1.78)" in saves.text


def test_a_value_that_had_no_effect_is_not_a_point_of_the_curve() -> None:
    """Locks up to 3000 MHz on a card that reaches 2790: the highest value is not the best of the
    curve."""
    curve = [
        point(x, t, w, " MHz") for x, t, w in ((1200, 530, 185), (2000, 690, 250), (2400, 700, 300))
    ]
    ignored = replace(point(3000, 900, 430, " MHz"), in_force="no effect")
    found = find_knee_of_gpu_setting([*curve, ignored])
    assert found.index == 1 and "700 at 2400 MHz" in found.text and "3000 MHz: " not in found.text
    assert found.text.endswith("left out, since the setting had no effect: 3000 MHz")
    few = find_knee_of_gpu_setting([*curve[:2], ignored])
    assert few.index is None and "there are 2; left out" in few.text


curves = st.lists(
    st.tuples(st.floats(1, 1000), st.floats(0.1, 1e5), st.floats(10, 1000)),
    min_size=1,
    max_size=12,
    unique_by=lambda t: t[0],
).map(lambda rows: [point(x, t, w) for x, t, w in rows])


@given(curves, st.randoms())
def test_setting_knee_on_any_curve(points: list[SweepPoint], random: object) -> None:
    found = find_knee_of_gpu_setting(points)
    best = max(p.tok_s or 0 for p in points)
    fast = [p for p in points if (p.tok_s or 0) >= (1 - MAX_SETTING_LOSS_SHARE) * best]
    if found.index is None:
        last = max(points, key=lambda p: p.x or 0)
        flat = all((p.tok_s or 0) >= (1 - FLAT_CURVE_SHARE) * best for p in points)
        assert len(points) < MIN_MEASURED_POINTS or fast == [last] or flat
    else:
        knee = points[found.index]
        assert knee in fast and all(
            (knee.tok_per_joule or 0) >= (p.tok_per_joule or 0) for p in fast
        )
        assert found.text.startswith(f"{knee.label}: ")
    shuffled = list(points)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = find_knee_of_gpu_setting(shuffled)
    assert (again.index is None) == (found.index is None)
    if again.index is not None and found.index is not None:
        assert shuffled[again.index] == points[found.index]


@given(curves, st.floats(0.5, 4.0))
def test_concurrency_knee_on_any_curve(points: list[SweepPoint], faster: float) -> None:
    found = find_knee_of_concurrency(points)
    best = max(p.tok_s or 0 for p in points)
    kept = [p for p in points if (p.tok_s or 0) >= (1 - MAX_CONCURRENCY_LOSS_SHARE) * best]
    if found.index is None:
        assert len(points) < MIN_MEASURED_POINTS or kept == [max(points, key=lambda p: p.x or 0)]
        return
    knee = points[found.index]
    assert knee in kept
    assert all((knee.x or 0) / (knee.tok_s or 1) <= (p.x or 0) / (p.tok_s or 1) for p in kept)
    # A server that is faster at every level alike has its knee at the same level (but for rounding
    # at the rule's edge).
    edge = any(abs((p.tok_s or 0) / best - (1 - MAX_CONCURRENCY_LOSS_SHARE)) < 1e-9 for p in points)
    scaled = [replace(p, tok_s=(p.tok_s or 0) * faster) for p in points]
    if not edge:
        latencies = sorted((p.x or 0) / (p.tok_s or 1) for p in kept)
        tied = len(latencies) > 1 and latencies[1] - latencies[0] < 1e-9 * latencies[1]
        assert tied or find_knee_of_concurrency(scaled).index == found.index


def test_where_no_value_limited_anything_none_is_named() -> None:
    """150, 200 and 250 W on cards that draw 99 W each: the differences are noise."""
    points = [
        point(w, t, p) for w, t, p in ((150, 412.2, 382), (200, 390.7, 397), (250, 405.9, 397))
    ]
    free = find_knee_of_gpu_setting([replace(p, bound=False) for p in points])
    assert free.index is None and "no value limited anything" in free.text
    assert (
        find_knee_of_gpu_setting([replace(p, bound=i == 0) for i, p in enumerate(points)]).text
        != free.text
    )
