"""Requested is not in force: what readings under load say of a lock or a limit."""

from __future__ import annotations

import pytest

from workbench.gpu.history import Moment, Reading
from workbench.gpu.proof import ENOUGH, judge
from workbench.model.settings import Alteration, InForce


def moments(count: int = 20, util: float = 98.0, **fields: object) -> list[Moment]:
    base = {"power_w": 500.0, "energy_j": None, "sm_mhz": 2790, "memory_mhz": 13365, "temperature_c": 60.0,
            "event_reasons": ()}  # fmt: skip
    return [Moment(float(i), (Reading(gpu_index=0, gpu_util_pct=util, **{**base, **fields}),)) for i in range(count)]  # type: ignore[arg-type]


def lock(now: object, setting: str = "gpu_clocks") -> Alteration:
    return Alteration(0, "GPU-0", setting, "default", now, 0.0)


def test_a_lock_that_the_clock_obeys_is_in_force() -> None:
    proof = judge(lock("2400,2400"), moments(sm_mhz=2400))
    assert proof is not None and proof.in_force is InForce.YES and "2400 MHz" in proof.text


def test_a_lock_that_changes_nothing_has_no_effect_and_says_what_was_seen() -> None:
    proof = judge(lock("3000,3090"), moments())
    assert proof is not None and proof.in_force is InForce.NO_EFFECT
    assert proof.short == "2790>=3000? lock ▲ no effect"
    assert "requested 3000-3090 MHz, observed 2790 MHz for 100% of 20 readings" in proof.text


def test_a_clock_above_the_lock_is_no_effect_too() -> None:
    proof = judge(lock("0,2200"), moments())
    assert proof is not None and proof.in_force is InForce.NO_EFFECT and proof.short.startswith("2790<=2200?")


@pytest.mark.parametrize(
    ("reason", "word"), [("SW power cap", "power"), ("SW thermal slowdown", "temperature")]
)
def test_a_limiter_below_the_lock_is_capped_with_its_share(reason: str, word: str) -> None:
    held = moments(12, sm_mhz=2600)
    capped = moments(8, sm_mhz=2100, event_reasons=(reason,))
    proof = judge(lock("2600,2600"), [*held, *capped])
    assert proof is not None and proof.in_force is InForce.CAPPED
    assert f"capped by {word} for 40% of the time" in proof.text


def test_an_idle_gpu_proves_nothing() -> None:
    proof = judge(lock("3000,3090"), moments(util=3.0, sm_mhz=210))
    assert proof is not None and proof.in_force is InForce.NOT_CHECKED and "not checked" in proof.text
    few = judge(lock("3000,3090"), moments(ENOUGH - 1))
    assert few is not None and few.in_force is InForce.NOT_CHECKED


def test_another_gpu_is_not_taken_for_this_one() -> None:
    other = [Moment(m.at_s, (m.gpus[0]._replace(gpu_index=1),)) for m in moments()]
    proof = judge(lock("3000,3090"), other)
    assert proof is not None and proof.in_force is InForce.NOT_CHECKED


def test_memory_locks_are_judged_by_the_memory_clock() -> None:
    proof = judge(lock("14001,14001", "memory_clocks"), moments())
    assert proof is not None and proof.in_force is InForce.NO_EFFECT and "observed 13365" in proof.text


def test_power_limits() -> None:
    kept = judge(lock(520.0, "power_limit_w"), moments())
    passed = judge(lock(400.0, "power_limit_w"), moments())
    assert kept is not None and kept.in_force is InForce.YES and "did not bind" in kept.text
    assert passed is not None and passed.in_force is InForce.NO_EFFECT and "500 W drawn" in passed.text


def test_what_load_cannot_show_is_not_judged() -> None:
    assert judge(lock(True, "persistence"), moments()) is None
    assert judge(lock("default"), moments()) is None
