"""What was read: rings of fixed size for the sparklines, and moments since the start for a benchmark's means."""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

from workbench.model.gpu import GpuSample, Telemetry

METRICS = (
    "gpu_util_pct",
    "memory_util_pct",
    "power_w",
    "sm_mhz",
    "memory_mhz",
    "memory_used_bytes",
    "temperature_c",
)
RING = 600  # readings: ten minutes at 1 s
MOMENTS = 1200  # two minutes of a benchmark at 10 Hz; of a longer one every second, every fourth …


class BenchmarkReading(NamedTuple):
    """The part of one GPU's sample that a benchmark's summary needs."""

    gpu_index: int
    power_w: float | None
    energy_j: float | None
    sm_mhz: int | None
    memory_mhz: int | None
    temperature_c: float | None
    gpu_util_pct: float | None
    event_reasons: tuple[str, ...] | None
    limit_w: float | None = None  # the power limit


class Moment(NamedTuple):
    """One tick. `at_s` is this machine's time.monotonic(), whatever host the reading comes from."""

    at_s: float
    gpus: tuple[BenchmarkReading, ...]


def reading(sample: GpuSample) -> BenchmarkReading:
    return BenchmarkReading(
        sample.index,
        sample.power_w,
        sample.energy_j,
        sample.sm_mhz,
        sample.memory_mhz,
        sample.temperature_c,
        sample.gpu_util_pct,
        None if "event_reasons" in sample.absent or sample.message else sample.event_reasons,
        sample.power_limit_w,
    )


class MetricHistory:
    """Memory does not grow: `ring` values per GPU and metric, and at most `moments` ticks, evenly over the whole time:
    when there are more, every second one goes, and from then on only every second one comes. The newest is there."""

    def __init__(self, ring: int = RING, moments: int = MOMENTS) -> None:
        self._size = ring
        self._rings: dict[int, dict[str, array[float]]] = {}
        self._uuids: dict[int, str] = {}
        self._written = 0
        self._most, self._every = moments, 1
        self._moments: list[Moment] = []
        self._newest: Moment | None = None

    def push(self, telemetry: Telemetry, at_s: float) -> None:
        place = self._written % self._size
        for rings in self._rings.values():  # a GPU that is silent now leaves a gap, not an old value
            for ring in rings.values():
                ring[place] = math.nan
        for sample in telemetry.gpus:
            if self._uuids.get(sample.index) != sample.uuid or sample.index not in self._rings:
                self._uuids[sample.index] = sample.uuid
                self._rings[sample.index] = {name: array("d", [math.nan]) * self._size for name in METRICS}
            for name, ring in self._rings[sample.index].items():
                value = getattr(sample, name)
                ring[place] = math.nan if value is None else value
        self._newest = Moment(at_s, tuple(reading(sample) for sample in telemetry.gpus))
        if self._written % self._every == 0:
            self._moments.append(self._newest)
        if len(self._moments) > self._most:
            del self._moments[1::2]
            self._every *= 2
        self._written += 1

    def series(self, gpu_index: int, metric: str, n: int) -> list[float | None]:
        """The last `n` values, oldest first, None where there was no value; shorter at the beginning."""
        n = min(n, self._written, self._size)
        ring = self._rings.get(gpu_index, {}).get(metric)
        if ring is None:
            return [None] * n
        end = self._written
        values = (ring[i % self._size] for i in range(end - n, end))
        return [None if math.isnan(value) else value for value in values]

    def during(self, t0_s: float, t1_s: float) -> tuple[Moment, ...]:
        """The ticks from t0 to t1 (time.monotonic() here), with the one before and the one after where there are."""
        kept: list[Moment] = []
        newest = [self._newest] if self._newest and self._newest is not self._moments[-1] else []
        for moment in (*self._moments, *newest):
            if moment.at_s <= t0_s:
                kept = [moment]
            else:
                kept.append(moment)
                if moment.at_s >= t1_s:
                    break
        return tuple(kept)
