"""A lock is in force only by contrast: with another clock under the same load where it was not on."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_gpu_proof import lock, moments, told

from workbench.gpu import contrast
from workbench.gpu.contrast import Clock, Known, clocks_of
from workbench.gpu.proof import Proof, judge_all
from workbench.hosts.local import LocalHost
from workbench.model.settings import Alteration, InForce


def seen(lock_of: str | None, mhz: int, reasons: tuple[str, ...] = (), load: str = "load", **fields: object) -> Clock:
    """As a run with that lock leaves it."""
    altered = [] if lock_of is None else [lock(lock_of)]
    found = clocks_of(altered, moments(sm_mhz=mhz, event_reasons=reasons), told(), load)
    return replace(next(c for c in found if c.setting == "gpu_clocks"), **fields)  # type: ignore[arg-type]


def judged(asked: str, mhz: int, *known: Clock, reasons: tuple[str, ...] = ()) -> Proof:
    (proof,) = judge_all([lock(asked)], moments(sm_mhz=mhz, event_reasons=reasons), told(), Known(known, load="load"))
    return proof


def test_a_clock_that_was_elsewhere_without_the_lock_shows_it() -> None:
    proof = judged("2400,2400", 2400, seen(None, 2790))
    assert proof.in_force is InForce.YES and proof.short == "lock 2400 ok"
    assert "lock 2400 MHz is in force: 2400 MHz in 100 %" in proof.text
    assert "under the same load the clock was 2790 MHz without the lock" in proof.text


@pytest.mark.parametrize("asked", ["2500,3000", "2790,2790", "180,3090", "2760,2760"])
def test_inside_the_range_that_the_card_would_choose_a_lock_proves_nothing(asked: str) -> None:
    proof = judged(asked, 2790, seen(None, 2790))
    assert proof.in_force is InForce.CONSISTENT and "in force" not in proof.text
    assert "the clock was 2790 MHz without the lock too" in proof.text


def test_another_lock_that_the_clock_followed_shows_it_and_one_that_it_ignored_shows_the_opposite() -> None:
    followed = judged("180,3090", 2790, seen("2000,2000", 2000))
    assert followed.in_force is InForce.YES and "2000 MHz with a lock of 2000 MHz" in followed.text
    ignored = judged("180,3090", 2790, seen("2000,2000", 2790))
    assert ignored.in_force is InForce.NO_EFFECT and "2790 MHz with a lock of 2000 MHz too" in ignored.text
    assert ignored.short == "lock 180-3090 ▲ no effect"


@pytest.mark.parametrize(
    "other",
    [
        seen(None, 2790, load="another load"),
        replace(seen(None, 2790), circumstances="300.0|None|None"),  # another power limit
        replace(seen(None, 2790), gpu_uuid="GPU-1"),
        replace(seen(None, 2790), setting="memory_clocks"),
        seen("2400,2400", 2790),  # the same lock
        seen(None, 2440),  # too near to tell
    ],
)
def test_what_differs_in_more_than_the_lock_shows_nothing(other: Clock) -> None:
    assert judged("2400,2400", 2400, other).in_force is InForce.CONSISTENT


def test_what_power_explains_is_no_contrast() -> None:
    capped = ("SW power cap",)
    assert judged("2000,2600", 2400, seen(None, 2790), reasons=capped).in_force is InForce.CONSISTENT
    assert judged("2700,3000", 2790, seen(None, 2500, reasons=capped)).in_force is InForce.CONSISTENT
    assert judged("1500,1500", 1500, seen(None, 2187, reasons=capped)).in_force is InForce.YES


def test_a_clock_that_heat_held_down_is_not_kept() -> None:
    hot = clocks_of([], moments(sm_mhz=2100, event_reasons=("SW thermal slowdown",)), told(), "load")
    changed = [m for w in (300.0, 220.0) for m in moments(10, power_limit_w=w)]
    assert hot == () and clocks_of([], changed, told(), "load") == ()


@given(st.integers(200, 3000), st.integers(0, 900), st.lists(st.tuples(st.integers(200, 3000), st.integers(0, 900))))
def test_no_order_of_locks_on_a_card_that_ignores_them_reads_in_force(
    low: int, width: int, before: list[tuple[int, int]]
) -> None:
    """The pass-through card: 2790 MHz whatever is asked for, a step of 15 more or less."""
    known = [seen(None, 2790)] + [seen(f"{a},{a + b}", 2790 + (a % 3 - 1) * 15) for a, b in before]
    assert judged(f"{low},{low + width}", 2790, *known).in_force in (InForce.CONSISTENT, InForce.NO_EFFECT)


def test_what_was_shown_stays_shown_until_the_lock_is_set_again() -> None:
    one = lock("180,3090")
    known = Known(load="load").with_shown([one])
    (proof,) = judge_all([one], moments(), told(), known)
    assert proof.in_force is InForce.YES and "as a contrast showed before" in proof.text
    again = Alteration(0, "GPU-0", "gpu_clocks", "default", "180,3090", 5.0)
    assert judge_all([again], moments(), told(), known)[0].in_force is InForce.CONSISTENT


def test_clocks_are_kept_on_the_host_for_a_day() -> None:
    async def both() -> tuple[Known, Known, Known]:
        host = LocalHost()
        empty = await contrast.read(host)
        old = seen(None, 2500, load="older", unix_s=time.time() - contrast.KEPT_S - 1)
        known = Known().with_clocks([old, seen(None, 2600), seen(None, 2790)]).with_shown([lock("2400,2400")])
        await contrast.write(host, known)
        kept = await contrast.read(host)
        await host.write_file(f"{await host.state_dir()}/{contrast.FILE}", b'{"clocks": [7, {"mhz": "x"}], "shown": 3}')
        return empty, kept, await contrast.read(host)

    empty, kept, damaged = asyncio.run(both())
    assert empty == damaged == Known()
    assert [c.mhz for c in kept.clocks] == [2790] and kept.has_shown(lock("2400,2400"))
