"""The moments that are kept of a benchmark, and their summary."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.gpu.telemetry.benchmark_readings import summarize_gpu_readings
from workbench.gpu.telemetry.reading_buffer import BenchmarkReading, Moment, MomentBuffer
from workbench.model.bench import PcieDuring
from workbench.model.gpu import DriverInfo, GpuSample, HostSample, Telemetry


def reading_of(*gpus: GpuSample) -> Telemetry:
    return Telemetry(0.0, 0.0, DriverInfo(), HostSample(), (), gpus)


def test_memory_does_not_grow() -> None:
    moments = MomentBuffer(most=20)
    for n in range(200):
        moments.add_reading(reading_of(GpuSample(0, "a", power_w=1.0)), float(n))
    kept = [m.at_s for m in moments.readings_between(-1.0, 1000.0)]
    assert len(kept) <= 21
    assert kept == [*range(0, 199, 16), 199]  # evenly over the whole time, and the newest


def test_a_long_run_keeps_its_beginning_and_its_end() -> None:
    moments = MomentBuffer(most=50)
    for n in range(36_000):  # an hour at 10 Hz
        moments.add_reading(reading_of(GpuSample(0, "a", power_w=200.0, energy_j=20.0 * n)), n / 10)
    got = summarize_gpu_readings(
        moments.readings_between(0.0, 3599.9), [0], 0.0, 3599.9, interval_s=0.1
    )
    assert got.power_w == pytest.approx(200.0)
    assert got.samples > 25


def test_during_has_the_reading_before_and_after() -> None:
    moments = MomentBuffer()
    for n in range(10):
        moments.add_reading(reading_of(GpuSample(0, "a")), float(n))
    assert [m.at_s for m in moments.readings_between(2.5, 4.5)] == [2.0, 3.0, 4.0, 5.0]
    assert [m.at_s for m in moments.readings_between(3.0, 3.0)] == [3.0, 4.0]
    assert [m.at_s for m in moments.readings_between(8.5, 99.0)] == [8.0, 9.0]


def moment(
    at_s: float,
    power_w: float | None = None,
    energy_j: float | None = None,
    sm_mhz: int | None = 2000,
    reasons: tuple[str, ...] | None = (),
    index: int = 0,
) -> Moment:
    return Moment(
        at_s,
        (BenchmarkReading(index, power_w, energy_j, sm_mhz, None, 60.0 + at_s, 50.0, reasons),),
    )


def test_energy_is_the_counters_difference_between_the_ends() -> None:
    moments = [moment(float(t), power_w=999.0, energy_j=1000.0 + 100.0 * t) for t in range(6)]
    got = summarize_gpu_readings(moments, [0], 1.5, 4.0)
    assert got.energy_j == pytest.approx(250.0) and got.power_w == pytest.approx(100.0)
    assert got.samples == 3 and got.temperature_c == 64.0


def test_the_end_beyond_the_last_reading_is_reached_with_its_power() -> None:
    moments = [moment(float(t), power_w=200.0, energy_j=200.0 * t) for t in range(4)]
    assert summarize_gpu_readings(moments, [0], 1.0, 3.5).energy_j == pytest.approx(500.0)
    far = summarize_gpu_readings(moments, [0], 1.0, 30.0)
    assert far.energy_j is None and far.power_w is None and "GPU 0" in far.absent["energy_j"]


@pytest.mark.parametrize("counter", [[500.0, 0.0, 50.0, 100.0], [7.0, 7.0, 7.0, 7.0], [None] * 4])
def test_without_a_usable_counter_power_is_integrated(counter: list[float | None]) -> None:
    """The driver was reloaded, the counter stands still, or there is none."""
    watts = [100.0, 300.0, 300.0, 100.0]
    moments = [moment(float(t), power_w=watts[t], energy_j=counter[t]) for t in range(4)]
    got = summarize_gpu_readings(moments, [0], 0.0, 3.0)
    assert got.energy_j == pytest.approx(200 + 300 + 200) and got.power_w == pytest.approx(700 / 3)


def test_two_gpus_add_up_and_one_without_power_makes_it_absent() -> None:
    def both(at_s: float, second: float | None) -> Moment:
        one = moment(at_s, power_w=100.0).gpus[0]
        return Moment(at_s, (one, one._replace(gpu_index=1, power_w=second)))

    assert summarize_gpu_readings(
        [both(0, 50.0), both(1, 50.0)], [0, 1], 0.0, 1.0
    ).power_w == pytest.approx(150.0)
    assert summarize_gpu_readings(
        [both(0, 50.0), both(1, 50.0)], [0], 0.0, 1.0
    ).power_w == pytest.approx(100.0)
    missing = summarize_gpu_readings([both(0, None), both(1, None)], [0, 1], 0.0, 1.0)
    assert missing.power_w is None and "GPU 1" in missing.absent["power_w"]


def test_the_spread_of_the_sm_clock_is_that_of_each_gpu() -> None:
    """Two GPUs at different steady clocks have no deviation, but a range."""
    moments = [
        Moment(float(t), (moment(0, sm_mhz=2000).gpus[0], moment(0, sm_mhz=2600, index=1).gpus[0]))
        for t in range(4)
    ]
    steady = summarize_gpu_readings(moments, [0, 1], 0.0, 3.0)
    assert (steady.sm_mhz_min, steady.sm_mhz_max, steady.sm_mhz_sd) == (2000, 2600, 0.0)
    swinging = summarize_gpu_readings(
        [moment(float(t), sm_mhz=2000 + 100 * (t % 2)) for t in range(4)], [0], 0.0, 3.0
    )
    assert (swinging.sm_mhz_min, swinging.sm_mhz_max, swinging.sm_mhz_sd) == (2000, 2100, 50.0)
    unread = summarize_gpu_readings([moment(0.0, sm_mhz=None)], [0], 0.0, 1.0)
    assert (unread.sm_mhz_min, unread.sm_mhz_max, unread.sm_mhz_sd) == (None, None, None)


def test_a_gap_in_the_readings_gives_no_power() -> None:
    moments = [moment(0.0, power_w=100.0), moment(20.0, power_w=100.0)]
    assert summarize_gpu_readings(moments, [0], 0.0, 20.0).power_w is None


def test_shares_of_event_reasons() -> None:
    moments = [
        moment(0.0, reasons=("SW power cap",)),
        moment(1.0, reasons=("SW power cap", "GPU idle")),
        moment(2.0),
    ]
    moments.append(moment(3.0, reasons=None))
    got = summarize_gpu_readings(moments, [0], 0.0, 3.0)
    assert got.event_reasons == {
        "GPU idle": pytest.approx(1 / 3),
        "SW power cap": pytest.approx(2 / 3),
    }


def test_nothing_read_is_nothing_told() -> None:
    got = summarize_gpu_readings([], [0], 0.0, 1.0)
    assert (got.power_w, got.energy_j, got.sm_mhz, got.temperature_c, got.samples) == (
        None,
        None,
        None,
        None,
        0,
    )
    assert {"power_w", "energy_j", "sm_mhz", "gpu_util_pct", "event_reasons"} <= set(got.absent)
    assert summarize_gpu_readings([moment(0.0)], [], 0.0, 1.0).absent["power_w"] == "no GPU"


@given(
    st.lists(st.floats(0.0, 1000.0), min_size=2, max_size=40),
    st.floats(0.0, 1.0),
    st.floats(0.01, 1.0),
    st.booleans(),
)
def test_mean_power_lies_between_the_lowest_and_the_highest(
    watts: list[float], start: float, share: float, counted: bool
) -> None:
    """Whatever the readings; with a counter that agrees with them, too."""
    energy = [0.0]
    for a, b in itertools.pairwise(watts):
        energy.append(energy[-1] + (a + b) / 2)
    moments = [
        moment(float(t), power_w=w, energy_j=energy[t] if counted else None)
        for t, w in enumerate(watts)
    ]
    end = len(watts) - 1
    t0 = start * (end - 0.5)
    got = summarize_gpu_readings(moments, [0], t0, t0 + share * (end - t0))
    assert got.power_w is not None and got.energy_j is not None
    assert min(watts) - 1e-3 <= got.power_w <= max(watts) + 1e-3
    assert math.isclose(got.energy_j, got.power_w * share * (end - t0), rel_tol=1e-6, abs_tol=1e-9)


def test_the_traffic_of_each_link_is_kept_with_its_mean_and_its_peak() -> None:
    moments = MomentBuffer()
    for n, rx_mb_s in enumerate((None, 1000.0, 3000.0, 40_000.0)):
        link = {"pcie_gen": 1 if n == 0 else 4, "pcie_width": 16}  # it is slow while it is idle
        why = {"pcie_rx_mb_s": "needs a second reading"} if rx_mb_s is None else {}
        counted = GpuSample(0, "a", pcie_rx_mb_s=rx_mb_s, pcie_tx_mb_s=5.0, absent=why, **link)
        silent = GpuSample(1, "b", absent={"pcie_rx_mb_s": "not supported"})
        moments.add_reading(reading_of(counted, silent), float(n))
    read = moments.readings_between(0.0, 3.0)
    early = summarize_gpu_readings(read, [0, 1], 0.0, 2.5)
    assert early.pcie == (PcieDuring(0, 2000.0, 5.0, 3000.0, 5.0, 31504.0),)
    # no link carries 40 GB/s in one direction: the counter was not renewed at each reading
    (late,) = summarize_gpu_readings(read, [0, 1], 0.0, 3.0).pcie
    assert (late.rx_mb_s, late.rx_peak_mb_s) == (14666.7, None)
    assert summarize_gpu_readings(read, [1], 0.0, 3.0).absent["pcie"] == "not supported"
