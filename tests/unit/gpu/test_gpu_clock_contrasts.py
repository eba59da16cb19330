"""A lock is in force only by contrast: with another clock under the same load where it was not on."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_gpu_proof import lock, moments, told

from workbench.gpu.settings import proof_files
from workbench.gpu.settings.alterations import select_locks_in_force
from workbench.gpu.settings.clock_contrasts import (
    ContrastEvidence,
    MeasuredClock,
    collect_measured_clocks,
)
from workbench.gpu.settings.proof import Proof, assess_effects_of_settings
from workbench.gpu.telemetry.reading_buffer import Moment
from workbench.hosts.local import LocalHost
from workbench.model.setting_records import Alteration, InForce
from workbench.session.gpu.evidence import GpuEvidence


def seen(
    lock_of: str | None,
    mhz: int,
    reasons: tuple[str, ...] = (),
    load: str = "load",
    **fields: object,
) -> MeasuredClock:
    """As a run with that lock leaves it."""
    altered = [] if lock_of is None else [lock(lock_of)]
    found = collect_measured_clocks(
        altered, moments(sm_mhz=mhz, event_reasons=reasons), told(), load
    )
    return replace(next(c for c in found if c.setting == "gpu_clocks"), **fields)  # type: ignore[arg-type]


def judged(asked: str, mhz: int, *known: MeasuredClock, reasons: tuple[str, ...] = ()) -> Proof:
    (proof,) = assess_effects_of_settings(
        [lock(asked)],
        moments(sm_mhz=mhz, event_reasons=reasons),
        told(),
        ContrastEvidence(known, load="load"),
    )
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


def test_another_lock_that_the_clock_followed_shows_it_and_one_that_it_ignored_shows_the_opposite() -> (
    None
):
    followed = judged("180,3090", 2790, seen("2000,2000", 2000))
    assert followed.in_force is InForce.YES and "2000 MHz with a lock of 2000 MHz" in followed.text
    ignored = judged("180,3090", 2790, seen("2000,2000", 2790))
    assert (
        ignored.in_force is InForce.NO_EFFECT
        and ("2790 MHz with a lock of 2000 MHz too") in ignored.text
    )
    assert ignored.short == "▲ lock 180-3090 has no effect"


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
def test_what_differs_in_more_than_the_lock_shows_nothing(other: MeasuredClock) -> None:
    assert judged("2400,2400", 2400, other).in_force is InForce.CONSISTENT


def test_what_power_explains_is_no_contrast() -> None:
    capped = ("SW power cap",)
    assert (
        judged("2000,2600", 2400, seen(None, 2790), reasons=capped).in_force is InForce.CONSISTENT
    )
    assert (
        judged("2700,3000", 2790, seen(None, 2500, reasons=capped)).in_force is InForce.CONSISTENT
    )
    assert judged("1500,1500", 1500, seen(None, 2187, reasons=capped)).in_force is InForce.YES


def test_a_clock_that_heat_held_down_is_not_kept() -> None:
    hot = collect_measured_clocks(
        [], moments(sm_mhz=2100, event_reasons=("SW thermal slowdown",)), told(), "load"
    )
    changed = [m for w in (300.0, 220.0) for m in moments(10, limit_w=w)]
    assert hot == () and collect_measured_clocks([], changed, told(), "load") == ()


@given(
    st.integers(200, 3000),
    st.integers(0, 900),
    st.lists(st.tuples(st.integers(200, 3000), st.integers(0, 900))),
)
def test_no_order_of_locks_on_a_card_that_ignores_them_reads_in_force(
    low: int, width: int, before: list[tuple[int, int]]
) -> None:
    """The pass-through card: 2790 MHz whatever is asked for, a step of 15 more or less."""
    known = [seen(None, 2790)] + [seen(f"{a},{a + b}", 2790 + (a % 3 - 1) * 15) for a, b in before]
    assert judged(f"{low},{low + width}", 2790, *known).in_force in (
        InForce.CONSISTENT,
        InForce.NO_EFFECT,
    )


def test_what_was_shown_stays_shown_until_the_lock_is_set_again() -> None:
    one = lock("180,3090")
    known = ContrastEvidence(load="load").with_shown_effects([one])
    (proof,) = assess_effects_of_settings([one], moments(), told(), known)
    assert proof.in_force is InForce.YES and "as a contrast showed before" in proof.text
    # as the journal has it: what was there before stays since then
    again = replace(one, set_unix_s=5.0)
    assert (
        assess_effects_of_settings([again], moments(), told(), known)[0].in_force
        is InForce.CONSISTENT
    )


@pytest.mark.parametrize(
    ("asked", "before", "verdict"),
    [
        ("2700,3090", ("2000,2000", 2790), InForce.NO_EFFECT),  # as high as under another lock
        ("2700,3090", ("2790,2790", 2790), InForce.CONSISTENT),  # that clock proves nothing
    ],
)
def test_what_was_refuted_stays_refuted_whatever_else_is_set_later(
    asked: str, before: tuple[str, int], verdict: InForce
) -> None:
    """A lock of the memory clock made a proven "no effect" of the GPU clock consistent again."""
    one, memory = lock(asked), lock("13365,13365", "memory_clocks")
    state = SimpleNamespace(alterations=(one,), others=())
    evidence = GpuEvidence(cast(Any, SimpleNamespace(host=LocalHost(), state=state)))
    known = ContrastEvidence((seen(*before),), load="load")

    async def load(known: ContrastEvidence, *altered: Alteration) -> Proof:
        clocks = collect_measured_clocks(altered, moments(), told(), "load")
        proofs = assess_effects_of_settings(altered, moments(), told(), known)
        await evidence.add_and_store_clocks(known, clocks, proofs)
        return next(proof for proof in proofs if proof.setting == "gpu_clocks")

    async def both() -> tuple[Proof, Proof, Proof]:
        first = await load(known, one)
        second = await load(await evidence.read_clocks_of_recent_loads("load"), one, memory)
        again = replace(one, set_unix_s=5.0)
        return (
            first,
            second,
            await load(await evidence.read_clocks_of_recent_loads("load"), again, memory),
        )

    first, second, set_again = asyncio.run(both())
    assert (first.in_force, second.in_force) == (verdict, verdict)
    assert ("no effect, as a contrast showed" in second.text) == (verdict is InForce.NO_EFFECT)
    assert set_again.in_force is InForce.CONSISTENT


def test_clocks_are_kept_on_the_host_for_a_day() -> None:
    async def both() -> tuple[ContrastEvidence, ContrastEvidence, ContrastEvidence]:
        host = LocalHost()
        empty = await proof_files.read_measured_clocks(host)
        old = seen(None, 2500, load="older", unix_s=time.time() - proof_files.KEPT_CLOCKS_S - 1)
        known = (
            ContrastEvidence()
            .with_clocks([old, seen(None, 2600), seen(None, 2790)])
            .with_shown_effects([lock("2400,2400")])
        )
        await proof_files.store_measured_clocks(host, known)
        kept = await proof_files.read_measured_clocks(host)
        await host.write_file(
            f"{await host.state_dir()}/{proof_files.CLOCKS_FILE}",
            b'{"clocks": [7, {"mhz": "x"}], "shown": 3}',
        )
        return empty, kept, await proof_files.read_measured_clocks(host)

    empty, kept, damaged = asyncio.run(both())
    assert empty == damaged == ContrastEvidence()
    assert [c.mhz for c in kept.clocks] == [2790] and kept.is_effect_shown(lock("2400,2400"))


def capped(mhz: int, *shares: tuple[str, int]) -> list[Moment]:
    """Twenty readings, so many of which name that limiter, and the rest none."""
    held = [
        m for reason, count in shares for m in moments(count, sm_mhz=mhz, event_reasons=(reason,))
    ]
    return [*held, *moments(20 - len(held), sm_mhz=mhz)]


POWER, HEAT = "SW power cap", "SW thermal slowdown"


@pytest.mark.parametrize(
    "disturbed",
    [
        capped(2509, (POWER, 9), (HEAT, 9)),  # neither in half of the readings
        capped(2509, (POWER, 5)),  # the flag is read a moment before the clock
        moments(sm_mhz=2509, event_reasons=None),  # the driver does not give it
    ],
    ids=["two limiters", "now and then", "not given"],
)
def test_a_clock_that_something_else_may_have_lowered_is_no_contrast(
    disturbed: list[Moment],
) -> None:
    known = ContrastEvidence(
        collect_measured_clocks([lock("2000,2800")], disturbed, told(), "load"), load="load"
    )
    (proof,) = assess_effects_of_settings([lock("2782,2797")], moments(sm_mhz=2790), told(), known)
    assert proof.in_force is InForce.CONSISTENT and "in force" not in proof.text


def test_the_text_does_not_say_too_of_another_clock() -> None:
    proof = judged("2700,3000", 2790, seen(None, 2500, reasons=(POWER,)))
    assert proof.text.endswith(
        "the clock was 2500 MHz without the lock, and power may explain that"
    )


def test_a_power_limit_neither_hides_nor_explains_the_memory_clock() -> None:
    """It lowers the SMs' clock: the memory's has few steps and stays."""
    bound = {"sm_mhz": 2300, "event_reasons": (POWER,)}
    memory = lock("14001,14001", "memory_clocks")
    known = ContrastEvidence(
        collect_measured_clocks([], moments(**bound), told(), "load"), load="load"
    )
    (followed,) = assess_effects_of_settings(
        [memory], moments(memory_mhz=14001, **bound), told(), known
    )
    assert followed.in_force is InForce.YES and "13365 MHz without the lock" in followed.text
    (ignored,) = assess_effects_of_settings([memory], moments(**bound), told(), known)
    assert ignored.in_force is InForce.NO_EFFECT and "capped" not in ignored.text


def test_a_lock_that_raised_the_clock_but_not_so_far_is_capped() -> None:
    raised = judged("3000,3090", 2865, seen(None, 2790))
    assert raised.in_force is InForce.CAPPED and raised.samples == 20
    assert "not reached: capped by what the driver does not name, observed 2865 MHz" in raised.text
    assert "the clock was 2790 MHz without the lock" in raised.text
    for other in (seen(None, 2860), seen(None, 2790, reasons=(POWER,)), seen("1500,1500", 1500)):
        assert judged("3000,3090", 2865, other).in_force is InForce.NO_EFFECT


@given(
    st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 10), st.integers(0, 3), st.booleans()),
        min_size=2,
    )
)
def test_no_limiter_makes_a_card_that_ignores_locks_read_in_force(
    runs: list[tuple[int, int, int, bool]],
) -> None:
    """Whatever power and heat do to the clock of a pass-through card, and whether its driver tells
    of it."""
    locks, known = [None, "2500,3000", "2790,2790", "180,3090"], ContrastEvidence(load="load")
    for power, heat, which, tells in runs:
        low = moments(power, sm_mhz=2400, event_reasons=(POWER,)) + moments(
            heat, sm_mhz=2200, event_reasons=(HEAT,)
        )
        run = [*low, *moments(20 - len(low), sm_mhz=2790)]
        if not tells:
            run = [
                m._replace(gpus=tuple(r._replace(event_reasons=None) for r in m.gpus)) for m in run
            ]
        altered = [lock(asked)] if (asked := locks[which]) else []
        for proof in assess_effects_of_settings(altered, run, told(), known):
            assert proof.in_force is not InForce.YES, proof.text
        known = known.with_clocks(collect_measured_clocks(altered, run, told(), "load"))


def others(now: str, set_unix_s: float) -> tuple[Alteration, ...]:
    """Another Workbench's lock."""
    return (replace(lock(now), since_unix_s=set_unix_s, by="bob"),)


def test_a_lock_that_another_workbench_replaced_is_not_in_force_whatever_was_shown() -> None:
    one = lock("2500,3000")
    known = ContrastEvidence((seen("1500,1500", 1500),), load="load").with_shown_effects([one])
    assert (
        assess_effects_of_settings(
            [one], moments(), told(), replace(known, others=others("2000,2900", -1.0))
        )[0].in_force
        is InForce.YES
    )
    (proof,) = assess_effects_of_settings(
        [one], moments(), told(), replace(known, others=others("2000,2900", 1.0))
    )
    assert proof.in_force is InForce.CHANGED and proof.short == "lock ▲ changed"
    assert "set to 2500-3000 MHz by Workbench, now 2000-2900 MHz, set by bob" in proof.text


def test_a_clock_under_anothers_lock_is_none_without_a_lock() -> None:
    under = collect_measured_clocks(
        select_locks_in_force([], others("1500,1500", 1.0)), moments(sm_mhz=1500), told(), "load"
    )
    proof = judged("2500,3000", 2790, *under)
    assert proof.in_force is InForce.YES and "1500 MHz with a lock of 1500 MHz" in proof.text
    own = replace(lock("2500,3000"), set_unix_s=2.0)
    assert [str(a.now) for a in select_locks_in_force([own], others("1500,1500", 1.0))] == [
        "2500,3000"
    ]
    assert [str(a.now) for a in select_locks_in_force([own], others("1500,1500", 3.0))] == [
        "1500,1500"
    ]
