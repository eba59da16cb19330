"""Requested is not in force: what readings under load say of a lock or a limit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.gpu.settings.proof import (
    CLOCK_TOLERANCE_MHZ,
    MIN_HOLDING_SHARE,
    MIN_LOADED_UTILIZATION_PCT,
    MIN_READINGS,
    Proof,
    assess_effect_under_load,
    assess_effects_of_settings,
)
from workbench.gpu.telemetry.reading_buffer import BenchmarkReading, Moment
from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.setting_records import Alteration, InForce
from workbench.model.settings import DEFAULT, HOST_INDEX, parse_stored_value


def moments(count: int = 20, util: float = 98.0, **fields: object) -> list[Moment]:
    base = {
        "power_w": 500.0,
        "energy_j": None,
        "sm_mhz": 2790,
        "memory_mhz": 13365,
        "temperature_c": 60.0,
        "event_reasons": (),
    }
    return [
        Moment(float(i), (BenchmarkReading(gpu_index=0, gpu_util_pct=util, **{**base, **fields}),))
        for i in range(count)
    ]  # type: ignore[arg-type]


def lock(now: Any, setting: str = "gpu_clocks") -> Alteration:
    """`now` as the journal's file has it."""
    return Alteration(0, "GPU-0", setting, DEFAULT, parse_stored_value(setting, now), 0.0)


def test_a_clock_within_the_lock_proves_nothing_by_itself() -> None:
    proof = assess_effect_under_load(lock("2400,2400"), moments(sm_mhz=2400))
    assert proof is not None and proof.in_force is InForce.CONSISTENT
    assert proof.short == "lock 2400 consistent, proves nothing" and "in force" not in proof.text


def test_a_lock_that_changes_nothing_has_no_effect_and_says_what_was_seen() -> None:
    proof = assess_effect_under_load(lock("3000,3090"), moments())
    assert proof is not None and proof.in_force is InForce.NO_EFFECT
    assert proof.short == "▲ lock 3000-3090 has no effect"
    assert "requested 3000-3090 MHz, observed 2790 MHz for 100 % of 20 readings" in proof.text


def test_a_clock_above_the_lock_is_no_effect_too() -> None:
    proof = assess_effect_under_load(lock("0,2200"), moments())
    assert (
        proof is not None
        and proof.in_force is InForce.NO_EFFECT
        and proof.short.startswith("▲ lock 0-2200 has no effect")
    )


@pytest.mark.parametrize(
    ("reason", "word"), [("SW power cap", "power"), ("SW thermal slowdown", "temperature")]
)
def test_a_limiter_below_the_lock_is_capped_with_its_share(reason: str, word: str) -> None:
    held = moments(12, sm_mhz=2600)
    capped = moments(8, sm_mhz=2100, event_reasons=(reason,))
    proof = assess_effect_under_load(lock("2600,2600"), [*held, *capped])
    assert proof is not None and proof.in_force is InForce.CAPPED
    assert (
        f"not reached: capped by {word} for 40 % of the time"
    ) in proof.text and "in force" not in proof.text


def test_an_idle_gpu_proves_nothing() -> None:
    proof = assess_effect_under_load(lock("3000,3090"), moments(util=3.0, sm_mhz=210))
    assert (
        proof is not None and proof.in_force is InForce.NOT_CHECKED and "not checked" in proof.text
    )
    few = assess_effect_under_load(lock("3000,3090"), moments(MIN_READINGS - 1))
    assert few is not None and few.in_force is InForce.NOT_CHECKED


def test_another_gpu_is_not_taken_for_this_one() -> None:
    other = [Moment(m.at_s, (m.gpus[0]._replace(gpu_index=1),)) for m in moments()]
    proof = assess_effect_under_load(lock("3000,3090"), other)
    assert proof is not None and proof.in_force is InForce.NOT_CHECKED


def test_memory_locks_are_judged_by_the_memory_clock() -> None:
    proof = assess_effect_under_load(lock("14001,14001", "memory_clocks"), moments())
    assert (
        proof is not None
        and proof.in_force is InForce.NO_EFFECT
        and ("observed 13365") in proof.text
    )


def test_power_limits() -> None:
    kept = assess_effect_under_load(lock(520.0, "power_limit_w"), moments())
    passed = assess_effect_under_load(lock(400.0, "power_limit_w"), moments())
    assert kept is not None and kept.in_force is InForce.YES and "did not bind" in kept.text
    assert (
        passed is not None and passed.in_force is InForce.NO_EFFECT and "500 W drawn" in passed.text
    )


def test_what_load_cannot_show_is_not_judged() -> None:
    assert assess_effect_under_load(lock(True, "persistence"), moments()) is None
    assert assess_effect_under_load(lock("default"), moments()) is None


def test_held_now_and_then_without_a_named_limiter_is_neither_yes_nor_no() -> None:
    proof = assess_effect_under_load(
        lock("2600,2600"), [*moments(12, sm_mhz=2600), *moments(8, sm_mhz=2100)]
    )
    assert proof is not None and proof.in_force is InForce.CAPPED
    assert "capped by what the driver does not name for 40 % of the time" in proof.text
    above = assess_effect_under_load(
        lock("0,2200"), [*moments(12, sm_mhz=2200), *moments(8, sm_mhz=2790)]
    )
    assert above is not None and above.in_force is InForce.NO_EFFECT  # nothing caps upwards


def test_a_limit_passed_now_and_then_is_in_force_and_says_so() -> None:
    proof = assess_effect_under_load(
        lock(400.0, "power_limit_w"), [*moments(15, power_w=398.0), *moments(5, power_w=450.0)]
    )
    assert (
        proof is not None
        and proof.in_force is InForce.YES
        and ("passed in 25 % of the readings") in proof.text
    )


@pytest.mark.parametrize("outside", [1, 199])
def test_what_is_not_all_is_not_called_100_percent(outside: int) -> None:
    proof = assess_effect_under_load(
        lock("2400,2400"), [*moments(200 - outside, sm_mhz=2400), *moments(outside)]
    )
    assert proof is not None and "99 %" in proof.text and "100 %" not in proof.text


# -- traps


PRO = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def told(
    name: str = PRO, virtualization: str = "none", persistence: bool | None = True, **host: object
) -> Telemetry:
    info = GpuInfo(0, "GPU-0", name, virtualization=virtualization)
    sample = GpuSample(0, "GPU-0", persistence=persistence)
    return Telemetry(0.0, 0.0, DriverInfo(), HostSample(**host), (info,), (sample,))  # type: ignore[arg-type]


def proved(alteration: Alteration, telemetry: Telemetry, **fields: object) -> Proof:
    (proof,) = assess_effects_of_settings([alteration], moments(**fields), telemetry)  # type: ignore[arg-type]
    return proof


def ids(proof: Proof) -> list[str]:
    assert all(t.text in proof.text for t in proof.traps if t.id != "persistence.off")
    return [t.id for t in proof.traps]


def test_table_maxima_are_explained_and_the_hypervisor_is_not_blamed_for_them() -> None:
    assert ids(proved(lock("3000,3090"), told())) == ["clock.max-is-not-sustained"]
    guest = proved(lock("3000,3090"), told(virtualization="passthrough"))
    assert ids(guest) == ["clock.max-is-not-sustained", "lock.success-is-a-request"]
    memory = proved(lock("14001,14001", "memory_clocks"), told())
    assert ids(memory) == ["memory.normal-clock", "memory.lock-can-cost"]
    assert (
        "13365 MHz is the normal memory clock" in memory.text
        and ("on bare metal as in a VM") in memory.text
    )
    assert all(t.sources for t in memory.traps)


def test_a_memory_lock_where_the_memory_runs_anyway() -> None:
    proof = proved(lock("13365,13365", "memory_clocks"), told())
    assert proof.in_force is InForce.CONSISTENT
    assert ids(proof) == ["memory.lock-is-where-it-runs", "memory.lock-can-cost"]
    other = proved(lock("6001,6001", "memory_clocks"), told("some other card"), memory_mhz=6001)
    assert other.in_force is InForce.CONSISTENT and ids(other) == []


def test_persistence_off_and_limits_that_do_not_bind() -> None:
    assert ids(proved(lock(520.0, "power_limit_w"), told())) == ["power.not-binding"]
    binding = proved(lock(520.0, "power_limit_w"), told(), event_reasons=("SW power cap",))
    assert ids(binding) == [] and "held the clocks down for 100 % of the time" in binding.text
    assert "persistence.off" in ids(proved(lock("2790,2790"), told(persistence=False)))


def test_a_spark_that_hangs_at_its_lowest_clock() -> None:
    stuck = proved(lock("2100,2100"), told("NVIDIA GB10"), sm_mhz=750)
    assert ids(stuck) == ["gb10.hidden-cap"]


def test_what_can_be_read_is_judged_by_reading() -> None:
    host = Alteration(HOST_INDEX, "host", "governor", "powersave", "performance", 0.0)
    kept = proved(host, told(cpu_governor="performance"))
    assert kept.in_force is InForce.YES and kept.gpu_or_host_name == "host"
    assert proved(host, told(cpu_governor="powersave")).in_force is InForce.CHANGED
    assert proved(host, told()).in_force is InForce.NOT_CHECKED
    other = proved(lock(True, "persistence"), told(persistence=False))
    assert (
        other.in_force is InForce.CHANGED
        and ("changed by someone else: now off, Workbench set on") in other.text
    )


@pytest.mark.parametrize(("limit_w", "drawn_w"), [(200.0, 199.0), (600.0, 500.0)])
def test_a_limit_that_reads_differently_was_changed_by_someone_else(
    limit_w: float, drawn_w: float
) -> None:
    proof = assess_effect_under_load(
        lock(400.0, "power_limit_w"), moments(power_w=drawn_w, limit_w=limit_w)
    )
    assert proof is not None and proof.in_force is InForce.CHANGED
    assert f"changed by someone else: now {limit_w:g} W, Workbench set 400 W" in proof.text


def test_a_load_that_was_too_light_says_how_light() -> None:
    proof = assess_effect_under_load(lock("2400,2400"), moments(util=34.0))
    assert proof is not None and proof.text.endswith(
        "the GPU was at most 34 % busy, and readings count from 50 %"
    )


seen = st.lists(
    st.tuples(
        st.integers(200, 3100),
        st.sampled_from([(), ("SW power cap",), ("GPU idle",), ("HW thermal slowdown",)]),
        st.sampled_from([0.0, MIN_LOADED_UTILIZATION_PCT, 100.0]),
    ),
    max_size=40,
)


@given(seen, st.integers(200, 3090), st.integers(0, 500))
def test_a_lock_is_judged_by_its_loaded_readings_alone(
    rows: list[tuple[int, tuple[str, ...], float]], low: int, width: int
) -> None:
    """In force only where it held nine times in ten; whose cap it is only where the driver named
    one."""
    made = [moments(1, util=util, sm_mhz=mhz, event_reasons=why)[0] for mhz, why, util in rows]
    proof = assess_effect_under_load(lock(f"{low},{low + width}"), made)
    loaded = [(mhz, why) for mhz, why, util in rows if util >= MIN_LOADED_UTILIZATION_PCT]
    assert proof is not None and proof.samples == len(loaded)
    if len(loaded) < MIN_READINGS:
        assert proof.in_force is InForce.NOT_CHECKED and proof.observed is None
        return
    outside = [
        (m, why)
        for m, why in loaded
        if not low - CLOCK_TOLERANCE_MHZ <= m <= low + width + CLOCK_TOLERANCE_MHZ
    ]
    holds = 1 - len(outside) / len(loaded) >= MIN_HOLDING_SHARE
    assert (
        (proof.in_force is InForce.CONSISTENT) == holds
        and proof.share is not None
        and 0 < proof.share <= 1
    )
    assert ("100 %" in proof.text) == (len(outside) in (0, len(loaded)))
    if proof.in_force is InForce.CAPPED:
        named = any("SW power cap" in why or "HW thermal slowdown" in why for _, why in outside)
        assert (
            named == (proof.limiter in ("power", "temperature"))
            or proof.limiter == "what the driver does not name"
        )
    if proof.in_force is InForce.NO_EFFECT:
        clocks = sorted(m for m, _ in outside)
        assert proof.observed is not None and clocks[0] <= proof.observed <= clocks[-1]
        assert f"observed {proof.observed} MHz" in proof.text and "requested" in proof.text
