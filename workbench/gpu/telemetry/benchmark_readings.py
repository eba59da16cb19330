"""The GPUs' readings over a benchmark, summarized: power, energy, clocks, temperature and
utilization."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from workbench.gpu.telemetry.reading_buffer import (
    BenchmarkReading,
    Moment,
    known_values_of_field,
)
from workbench.model.bench import GpuDuring, PcieDuring
from workbench.model.known_values import (
    mean_or_none,
    round_or_none,
    values_if_all_known,
)

MAX_EXTRAPOLATION_S = (
    3.0  # how far beyond the first or last reading its power is taken to have held
)

_NO_READING_REASON = "no reading in that time"

Point = tuple[float, float]


def summarize_gpu_readings(
    moments: Sequence[Moment],
    gpu_indices: Sequence[int],
    t0_s: float,
    t1_s: float,
    *,
    interval_s: float = 1.0,
) -> GpuDuring:
    """Return the readings of these GPUs between `t0_s` and `t1_s` (time.monotonic() of this
    machine), summarized. Power and energy are summed over the GPUs, clocks and utilization are
    means, and the temperature is the highest.

    The energy of a GPU is the difference of its driver's counter or, without a counter, its power
    integrated with trapezoids. The power is that energy divided by the time. `interval_s` is the
    time between two readings: the counter is extrapolated by at most two of them.

    Energy and power are None if one of the GPUs did not report them. The other values are of those
    GPUs that reported them, and None if none did. `absent` has the reason for each None.
    """
    absent: dict[str, str] = {}
    inside = [m for m in moments if t0_s <= m.at_s <= t1_s]
    readings = [r for m in inside for r in m.gpus if r.gpu_index in gpu_indices]
    max_extrapolation_s = max(MAX_EXTRAPOLATION_S, 2 * interval_s)
    found = [
        _measure_energy(moments, index, t0_s, t1_s, max_extrapolation_s) for index in gpu_indices
    ]
    each = tuple(one.counter_or_integrated_j for one in found)
    energy = _sum_if_all_known(each)
    if energy is None:
        absent["energy_j"] = absent["power_w"] = _why_energy_is_missing(gpu_indices, each)
    seconds = t1_s - t0_s
    by_gpu = [[r for r in readings if r.gpu_index == index] for index in gpu_indices]
    clocks = [known_values_of_field(one, "sm_mhz") for one in by_gpu]
    sm_mhz = list(itertools.chain.from_iterable(clocks))
    spreads_mhz = [pstdev(one) for one in clocks if one]
    pcie = tuple(_summarize_pcie_traffic(one) for one in by_gpu if _has_pcie_traffic_readings(one))
    if not pcie:
        absent["pcie"] = _why_no_pcie_traffic(readings)
    return GpuDuring(
        power_w=_mean_power_w(energy, seconds),
        energy_j=energy,
        sm_mhz=_summarize_known_values(fmean, readings, "sm_mhz", absent),
        memory_mhz=_summarize_known_values(fmean, readings, "memory_mhz", absent),
        temperature_c=_summarize_known_values(max, readings, "temperature_c", absent),
        gpu_util_pct=_summarize_known_values(fmean, readings, "gpu_util_pct", absent),
        event_reasons=_clock_event_reason_fractions(readings, absent),
        samples=len(inside),
        absent=absent,
        gpus=tuple(gpu_indices),
        power_w_each=tuple(_mean_power_w(joules, seconds) for joules in each),
        energy_j_each=each,
        energy_counter_j=_sum_if_all_known([one.counter_j for one in found]),
        energy_integrated_j=_sum_if_all_known([one.integrated_j for one in found]),
        sm_mhz_min=min(sm_mhz, default=None),
        sm_mhz_max=max(sm_mhz, default=None),
        sm_mhz_sd=round_or_none(mean_or_none(spreads_mhz), 1),
        pcie=pcie,
    )


def _has_pcie_traffic_readings(readings: Sequence[BenchmarkReading]) -> bool:
    return bool(
        known_values_of_field(readings, "pcie_rx_mb_s")
        or known_values_of_field(readings, "pcie_tx_mb_s")
    )


def _why_no_pcie_traffic(readings: Sequence[BenchmarkReading]) -> str:
    return next(filter(None, (r.pcie_absent for r in readings)), _NO_READING_REASON)


def _summarize_pcie_traffic(readings: Sequence[BenchmarkReading]) -> PcieDuring:
    """Return the mean and peak traffic of one GPU's PCIe link, given all its readings. The link's
    bandwidth is the highest of the readings, because an idle link may be slower than a busy one."""
    link = max(known_values_of_field(readings, "pcie_link_mb_s"), default=None)
    rx_mean, rx_peak = _mean_and_peak_rates(readings, "pcie_rx_mb_s", link)
    tx_mean, tx_peak = _mean_and_peak_rates(readings, "pcie_tx_mb_s", link)
    return PcieDuring(readings[0].gpu_index, rx_mean, tx_mean, rx_peak, tx_peak, link)


def _mean_and_peak_rates(
    readings: Sequence[BenchmarkReading], name: str, link_mb_s: float | None
) -> tuple[float | None, float | None]:
    """Return (mean, peak) of the field `name`, a rate in MB/s, both None if there are no values.
    The peak is None if it exceeds `link_mb_s`, the link's bandwidth: then the driver renews its
    byte counter less often than it is read."""
    rates = known_values_of_field(readings, name)
    if not rates:
        return None, None
    peak = max(rates)
    if link_mb_s is not None and peak > link_mb_s:
        return round(fmean(rates), 1), None
    return round(fmean(rates), 1), round(peak, 1)


def _mean_power_w(joules: float | None, seconds: float) -> float | None:
    if joules is None or seconds <= 0:
        return None
    return joules / seconds


def _times_and_values_of_field(moments: Sequence[Moment], index: int, name: str) -> list[Point]:
    """Return (time in seconds, value of the field `name`) of each reading of the GPU `index` that
    has the field."""
    points = []
    for moment in moments:
        for reading in moment.gpus:
            value = getattr(reading, name)
            if reading.gpu_index == index and value is not None:
                points.append((moment.at_s, value))
    return points


def _why_energy_is_missing(gpu_indices: Sequence[int], each: Sequence[float | None]) -> str:
    for index, joules in zip(gpu_indices, each, strict=True):
        if joules is None:
            return f"GPU {index} gave neither energy nor power readings over that time"
    return "no GPU"


def _clock_event_reason_fractions(
    readings: Sequence[BenchmarkReading], absent: dict[str, str]
) -> dict[str, float]:
    """Return {clock event reason: fraction (0 to 1) of the readings that have it}. If no reading
    reports reasons, return {} and put the reason for that into `absent`."""
    active = known_values_of_field(readings, "event_reasons")
    if not active:
        absent["event_reasons"] = _NO_READING_REASON
    counts = Counter(name for names in active for name in set(names))
    return {name: counts[name] / len(active) for name in sorted(counts)}


def _summarize_known_values(
    summary: Callable[[list[float]], float],
    readings: Sequence[BenchmarkReading],
    name: str,
    absent: dict[str, str],
) -> float | None:
    """Return `summary`, such as the mean, of the known values of a field. If there are none, return
    None and put the reason into `absent`."""
    values = known_values_of_field(readings, name)
    if not values:
        absent[name] = _NO_READING_REASON
        return None
    return summary(values)


class Energy(NamedTuple):
    """The energy of one GPU during a benchmark in joules, by the driver's counter and by integrated
    power. Each is None if the readings do not give it."""

    counter_j: float | None
    integrated_j: float | None

    @property
    def counter_or_integrated_j(self) -> float | None:
        return self.integrated_j if self.counter_j is None else self.counter_j


def _measure_energy(
    moments: Sequence[Moment], index: int, t0_s: float, t1_s: float, max_extrapolation_s: float
) -> Energy:
    counter = _times_and_values_of_field(moments, index, "energy_j")
    power = _times_and_values_of_field(moments, index, "power_w")
    return Energy(
        _energy_j_from_counter(counter, power, t0_s, t1_s, max_extrapolation_s),
        _energy_j_from_power(power, t0_s, t1_s, max_extrapolation_s),
    )


def _sum_if_all_known(values: Sequence[float | None]) -> float | None:
    known = values_if_all_known(values)
    return sum(known) if known else None


def _energy_j_from_counter(
    counter: Sequence[Point],
    power: Sequence[Point],
    t0_s: float,
    t1_s: float,
    max_extrapolation_s: float,
) -> float | None:
    """Return the energy in joules between t0 and t1 by the driver's counter. If its readings begin
    after t0 or end before t1, up to `max_extrapolation_s` seconds are computed from the power. None
    if more is missing, or if the counter stood still or went back (driver reload)."""
    joules = [value for _, value in counter]
    if joules != sorted(joules):
        return None
    begin = _energy_counter_j_at(counter, power, t0_s, max_extrapolation_s)
    end = _energy_counter_j_at(counter, power, t1_s, max_extrapolation_s)
    if begin is None or end is None or end <= begin:
        return None
    return end - begin


def _energy_counter_j_at(
    counter: Sequence[Point], power: Sequence[Point], at_s: float, max_extrapolation_s: float
) -> float | None:
    between = _interpolate(counter, at_s)
    if between is not None or not counter or not power:
        return between
    end = 0 if at_s < counter[0][0] else -1
    edge_s, joules = counter[end]
    _, watts = power[end]
    if abs(at_s - edge_s) > max_extrapolation_s:
        return None
    return joules + watts * (at_s - edge_s)


def _interpolate(points: Sequence[Point], at_s: float) -> float | None:
    for (t_a, a), (t_b, b) in itertools.pairwise(points):
        if t_a <= at_s <= t_b:
            return a if t_b == t_a else a + (b - a) * (at_s - t_a) / (t_b - t_a)
    if len(points) == 1 and points[0][0] == at_s:
        return points[0][1]
    return None


def _energy_j_from_power(
    power: Sequence[Point], t0_s: float, t1_s: float, max_extrapolation_s: float
) -> float | None:
    """Return the energy in joules between t0 and t1 by integrating the power with trapezoids.
    Before the first and after the last reading, the power counts as constant for up to
    `max_extrapolation_s` seconds. None if there are no readings, or if they have a gap of more than
    twice that time."""
    if not power or t1_s <= t0_s:
        return None
    if max(power[0][0] - t0_s, t1_s - power[-1][0]) > max_extrapolation_s:
        return None
    for (begin_s, _), (end_s, _) in itertools.pairwise(power):
        if end_s - begin_s > 2 * max_extrapolation_s and begin_s < t1_s and end_s > t0_s:
            return None
    inside = [point for point in power if t0_s < point[0] < t1_s]
    points = [(t0_s, _power_w_at(power, t0_s)), *inside, (t1_s, _power_w_at(power, t1_s))]
    return sum(
        (watts + later) / 2 * (t_b - t_a)
        for (t_a, watts), (t_b, later) in itertools.pairwise(points)
    )


def _power_w_at(points: Sequence[Point], at_s: float) -> float:
    between = _interpolate(points, at_s)
    if between is not None:
        return between
    return points[0][1] if at_s < points[0][0] else points[-1][1]
