"""Storage for the GPU readings of a benchmark, with an upper limit for their number."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from workbench.model.gpu import GpuSample, Telemetry
from workbench.model.known_values import known_values
from workbench.model.pcie_link import pcie_link_mb_s

# two minutes of a benchmark at 10 Hz; of a longer one every second, every fourth … reading
MAX_READINGS = 1200


class BenchmarkReading(NamedTuple):
    """The values of one GPU at one moment, as far as the summary of a benchmark needs them."""

    gpu_index: int
    power_w: float | None
    energy_j: float | None
    sm_mhz: int | None
    memory_mhz: int | None
    temperature_c: float | None
    gpu_util_pct: float | None
    event_reasons: tuple[str, ...] | None
    limit_w: float | None = None  # the requested power limit
    pcie_rx_mb_s: float | None = None
    pcie_tx_mb_s: float | None = None
    pcie_link_mb_s: float | None = None  # nominal, of the link as it is at this moment
    pcie_absent: str = ""  # why the two rates are missing


def known_values_of_field(readings: Sequence[BenchmarkReading], name: str) -> list[Any]:
    """Return the values of the field `name` in those readings that have one."""
    return known_values(map(attrgetter(name), readings))


class Moment(NamedTuple):
    """One reading of all GPUs. `at_s` is this machine's time.monotonic(), whichever host the
    reading comes from."""

    at_s: float
    gpus: tuple[BenchmarkReading, ...]


def benchmark_reading_of_sample(sample: GpuSample) -> BenchmarkReading:
    """Return the values of a GPU's sample that the summary of a benchmark needs."""
    reasons: tuple[str, ...] | None = sample.event_reasons
    if sample.message or "event_reasons" in sample.absent:
        reasons = None
    return BenchmarkReading(
        sample.index,
        sample.power_w,
        sample.energy_j,
        sample.sm_mhz,
        sample.memory_mhz,
        sample.temperature_c,
        sample.gpu_util_pct,
        reasons,
        sample.power_limit_w,
        sample.pcie_rx_mb_s,
        sample.pcie_tx_mb_s,
        pcie_link_mb_s(sample.pcie_gen, sample.pcie_width),
        sample.absent.get("pcie_rx_mb_s", ""),
    )


class MomentBuffer:
    """The readings of a benchmark: at most `most` of them, evenly spread over its whole time, and
    the newest one. When there are more, every second stored one is dropped, and from then on only
    half as many of the new ones are stored."""

    def __init__(self, most: int = MAX_READINGS) -> None:
        self._most, self._every, self._count = most, 1, 0
        self._kept: list[Moment] = []
        self._newest: Moment | None = None

    def add_reading(self, telemetry: Telemetry, at_s: float) -> None:
        """Add a reading that was made at `at_s` (time.monotonic() of this process)."""
        self._newest = Moment(at_s, tuple(map(benchmark_reading_of_sample, telemetry.gpus)))
        if self._count % self._every == 0:
            self._kept.append(self._newest)
        if len(self._kept) > self._most:
            del self._kept[1::2]
            self._every *= 2
        self._count += 1

    def readings_between(self, t0_s: float, t1_s: float) -> tuple[Moment, ...]:
        """Return the stored readings between `t0_s` and `t1_s` (time.monotonic() of this process),
        and also the last one before and the first one after."""
        found: list[Moment] = []
        newest = [self._newest] if self._newest and self._newest is not self._kept[-1] else []
        for moment in (*self._kept, *newest):
            if moment.at_s <= t0_s:
                found = [moment]
            else:
                found.append(moment)
                if moment.at_s >= t1_s:
                    break
        return tuple(found)
