"""Clocks, power and temperature depend on load and settings as in public measurements."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.sim import physics, profiles
from workbench.sim.physics import GpuActivity, GpuSetting, operating_point

DECODE = GpuActivity(1.0, 0.97, 0.03, 0.0)
PRO, PASSED = profiles.get_profile("rtx-pro-6000"), profiles.get_profile("rtx-pro-6000-passthrough")
WARM_C = 60.0
DEFAULT = GpuSetting()


def point(
    profile: profiles.HostProfile,
    setting: GpuSetting = DEFAULT,
    load: GpuActivity = DECODE,
    c: float = WARM_C,
):
    return operating_point(profile, setting, load, c)


def test_decode_on_the_workstation_card():
    now = point(PRO)
    assert (now.sm_mhz, now.memory_mhz, now.pstate, now.reasons) == (2790, 13365, 1, 0)
    assert 483 <= now.power_w <= 522  # bare-metal cards at a 600 W limit


def test_idle_card_sleeps():
    now = point(PRO, load=physics.IDLE_ACTIVITY)
    assert (now.sm_mhz, now.memory_mhz, now.pstate, now.reasons) == (180, 405, 8, physics.IDLE)
    assert now.power_w < 20


def test_clocks_stay_up_for_a_moment_after_the_last_kernel():
    now = point(PRO, load=GpuActivity(idle_s=1.0))
    assert now.sm_mhz == 2790 and now.memory_mhz == 13365 and now.gpu_util_pct == 0


@pytest.mark.parametrize(("watts", "sm_mhz"), [(450, 2661), (350, 2071)])
def test_power_limit_lowers_the_clock_as_measured(watts: int, sm_mhz: int):
    now = point(PRO, GpuSetting(limit_w=watts))
    assert now.sm_mhz == pytest.approx(sm_mhz, rel=0.06)
    assert now.power_w <= watts and now.reasons == physics.SW_POWER_CAP


@pytest.mark.parametrize(("watts", "loss"), [(450, 0.0), (400, 0.011), (350, 0.049), (300, 0.132)])
def test_a_power_limit_slows_one_stream_as_measured(watts: int, loss: float):
    now = point(PRO, GpuSetting(limit_w=watts))
    assert 1 - 1 / physics.memory_slowdown_factor(now.sm_mhz, PRO.gpu) == pytest.approx(
        loss, abs=0.03
    )


@given(
    watts=st.floats(150, 600),
    memory=st.floats(0, 1),
    compute=st.floats(0, 1),
    lock=st.none() | st.integers(210, 3090),
)
def test_power_stays_below_the_limit_for_every_load(watts, memory, compute, lock):
    setting = GpuSetting(limit_w=watts, gpu_lock_mhz=(lock, lock) if lock else None)
    now = point(PRO, setting, GpuActivity(1.0, memory, compute, 0.0))
    assert now.power_w <= watts or now.sm_mhz <= PRO.gpu.sm_compute_mhz / 7
    assert now.sm_mhz <= (lock or PRO.gpu.sm_compute_mhz)
    higher = point(PRO, replace(setting, limit_w=600.0), GpuActivity(1.0, memory, compute, 0.0))
    assert now.sm_mhz <= higher.sm_mhz


def test_locks_are_in_force_on_bare_metal():
    locked = GpuSetting(gpu_lock_mhz=(2100, 2100), memory_lock_mhz=(7001, 7001))
    now = point(PRO, locked)
    assert (now.sm_mhz, now.memory_mhz) == (2100, 7001)
    assert now.power_w < point(PRO).power_w


def test_lock_above_what_voltage_allows_is_capped():
    assert point(PRO, GpuSetting(gpu_lock_mhz=(3090, 3090))).sm_mhz <= PRO.gpu.sm_voltage_mhz < 3090


def test_locks_change_nothing_in_a_passed_through_card():
    locked = GpuSetting(gpu_lock_mhz=(2100, 2100), memory_lock_mhz=(14001, 14001))
    now = point(PASSED, locked)
    assert (now.sm_mhz, now.memory_mhz) == (2790, 13365)
    assert point(PASSED, GpuSetting(limit_w=350)).sm_mhz < 2790


def test_memory_lock_goes_to_the_nearest_step():
    assert point(PRO, GpuSetting(memory_lock_mhz=(13000, 13000))).memory_mhz == 13365


def test_spark_throttles_when_hot_and_a_lock_cools_it():
    spark = profiles.get_profile("gb10")
    prefill = GpuActivity(1.0, 0.3, 1.0, 0.0)
    free, locked = GpuSetting(), GpuSetting(gpu_lock_mhz=(0, 1400))

    def settle(setting: GpuSetting) -> tuple[float, int]:
        celsius, reasons = 40.0, 0
        for second in range(600):
            now = operating_point(spark, setting, prefill, celsius)
            celsius = physics.temperature_after(spark.gpu, celsius, now.power_w, 1.0)
            reasons |= now.reasons if second > 570 else 0
        return celsius, reasons

    hot, cool = settle(free), settle(locked)
    assert hot[0] > 89 and hot[1] & physics.SW_THERMAL
    assert cool[0] < 75 and not cool[1] & physics.SW_THERMAL


def test_warming_does_not_depend_on_the_number_of_steps():
    at_once = physics.temperature_after(PRO.gpu, 30.0, 500.0, 30.0)
    stepwise = 30.0
    for _ in range(300):
        stepwise = physics.temperature_after(PRO.gpu, stepwise, 500.0, 0.1)
    assert stepwise == pytest.approx(at_once, abs=0.01)


@given(st.text(max_size=8), st.floats(0, 1e9), st.floats(0, 5))
def test_noise_is_small_and_the_same_in_all_processes(key, at, amplitude):
    value = physics.half_second_noise(key, at, amplitude)
    assert abs(value) <= amplitude * 1.001
    assert value == physics.half_second_noise(key, at, amplitude)


def test_drift_is_slow_of_the_requested_size_and_the_same_in_all_processes() -> None:
    seen = [physics.relative_speed_drift(0.5e9 + 5.0 * i, 0.01) for i in range(20_000)]
    assert statistics.fmean(seen) == pytest.approx(0.0, abs=5e-4)
    assert statistics.pstdev(seen) == pytest.approx(0.01, rel=0.02)
    assert max(abs(b - a) for a, b in itertools.pairwise(seen)) < 0.01
