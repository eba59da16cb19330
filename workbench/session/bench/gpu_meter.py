"""Readings of the GPUs before, during and after one benchmark. A separate telemetry agent makes
them at 10 Hz, so that the refresh interval of the screen does not affect the measurement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from workbench.bench.energy import IdlePower, add_energy_metrics, summary_without_energy
from workbench.gpu.settings.alterations import select_locks_in_force
from workbench.gpu.settings.clock_contrasts import (
    ContrastEvidence,
    MeasuredClock,
    collect_measured_clocks,
)
from workbench.gpu.settings.disturbance import DisturbanceWatch
from workbench.gpu.settings.proof import Proof, assess_effects_of_settings
from workbench.gpu.telemetry.benchmark_readings import summarize_gpu_readings
from workbench.gpu.telemetry.source_of_host import create_telemetry_source
from workbench.model.counts import count_of
from workbench.model.errors import HostError

if TYPE_CHECKING:
    from workbench.bench.records import BenchOutcome
    from workbench.gpu.telemetry.reading_buffer import Moment
    from workbench.hosts.base import Host
    from workbench.model.bench import BenchSummary, GpuDuring
    from workbench.model.gpu import Telemetry
    from workbench.model.setting_records import Alteration

READ_INTERVAL_S = 0.1
PROGRAMS_INTERVAL_S = (
    1.0  # between two readings of the programs on the GPUs and of persistence mode
)
# Drivers report power as a mean over 1 s (Ampere and later): a shorter run would show the power
# before it.
SHORTEST_POWER_RUN_S = 2.0
UTILIZATION_RISE_S = 1.0  # utilization and clocks are means over up to a second
# of idling before a run: one second until the mean forgets earlier power, and one that counts
IDLE_BEFORE_RUN_S = 2.0
IDLE_UTIL_PCT = 1.0
# power of the first second over that of the second: above it, power was still falling
STEADY_POWER_RATIO = 1.05
_FIRST_READING_TIMEOUT_S = 5.0
_LAST_READING_TIMEOUT_S = 2.5


class RequestCounts(NamedTuple):
    """The requests of a server at one moment. `in_flight` is the number being served or queued, and
    `counted` has the engine's counters of all requests so far. A number is None if the engine does
    not report it."""

    in_flight: int | None
    counted: tuple[int | None, ...] = ()


class Meter:
    """Reads the GPUs of a host at 10 Hz. Use `async with Meter(host) as meter:` around the run,
    then call `reading_after` and `summary_with_gpu_metrics`. If `wait` is False, the block begins
    before the first reading, and the caller must await `wait_until_ready`."""

    def __init__(self, host: Host, *, wait: bool = True) -> None:
        self._source = create_telemetry_source(
            host,
            READ_INTERVAL_S,
            self._record_reading,
            agent_options={"slow_s": PROGRAMS_INTERVAL_S},
        )
        self._wait = wait
        self._watch: DisturbanceWatch | None = None

    async def __aenter__(self) -> Meter:
        await self._source.start()
        if self._wait:
            await self.wait_until_ready()
        return self

    async def wait_until_ready(self) -> None:
        """Wait for the first reading, for a few seconds. Return also if the GPUs cannot be read or
        none has come by then."""
        # without GPUs the run is measured anyway; `absent` has the reason
        with suppress(HostError, TimeoutError):
            await self._source.wait_for_first_reading(_FIRST_READING_TIMEOUT_S)

    async def __aexit__(self, *exc: object) -> None:
        await self._source.close()

    def _record_reading(self, telemetry: Telemetry) -> None:
        if self._watch is not None:
            self._watch.record_telemetry(telemetry)

    def watch_gpus(self, gpus: Sequence[int]) -> DisturbanceWatch:
        """Begin to record what changes on the GPUs with these indices, and return the record."""
        self._watch = DisturbanceWatch(gpus)
        self._watch.record_telemetry(self.latest_reading)
        return self._watch

    @property
    def latest_reading(self) -> Telemetry | None:
        return self._source.latest

    def readings_between(self, t0_s: float, t1_s: float) -> tuple[Moment, ...]:
        """Return the GPUs' readings between two times of this process's time.monotonic(). The last
        reading before and the first one after are included."""
        return self._source.readings_between(t0_s, t1_s)

    async def reading_after(self, unix_s: float) -> Telemetry | None:
        """Return the first reading of the GPUs after `unix_s`, or the newest one if none comes
        within 2.5 s or the host has no GPU. None if there was no reading at all."""
        await (
            self._source.request_full_reading()
        )  # also programs and persistence mode, which are read seldom
        deadline = time.monotonic() + _LAST_READING_TIMEOUT_S
        while time.monotonic() < deadline:
            latest = self._source.latest
            is_newer = (self._source.age_s or 0) < time.time() - unix_s
            if latest is not None and (is_newer or not latest.gpus):
                break
            await asyncio.sleep(READ_INTERVAL_S / 2)
        return self._source.latest

    def assess_settings_in_force(
        self,
        t0_s: float,
        t1_s: float,
        alterations: Sequence[Alteration],
        known_clocks: ContrastEvidence | None = None,
    ) -> tuple[Proof, ...]:
        """Return, for each altered setting that the readings under load can judge, a proof of
        whether it is in force. The load ran from `t0_s` to `t1_s` in this process's
        time.monotonic(), and `known_clocks` has the clocks of earlier loads."""
        return assess_effects_of_settings(
            alterations, self._readings_under_load(t0_s, t1_s), self._source.latest, known_clocks
        )

    def clocks_under_load(
        self,
        t0_s: float,
        t1_s: float,
        alterations: Sequence[Alteration],
        known_clocks: ContrastEvidence,
    ) -> tuple[MeasuredClock, ...]:
        """Return the GPUs' clocks under a load between two times of this process's
        time.monotonic(). Later loads are compared with them to prove which clock locks are in
        force. () without a reading."""
        latest, on = self._source.latest, select_locks_in_force(alterations, known_clocks.others)
        return (
            collect_measured_clocks(
                on, self._readings_under_load(t0_s, t1_s), latest, known_clocks.load
            )
            if latest
            else ()
        )

    def _readings_under_load(self, t0_s: float, t1_s: float) -> list[Moment]:
        """Return the readings between the two times of a load, without its first second, in which
        clocks still rise."""
        return [
            m
            for m in self._source.readings_between(t0_s, t1_s)
            if t0_s + UTILIZATION_RISE_S <= m.at_s <= t1_s
        ]

    async def measure_idle_power(
        self, gpus: Sequence[int], requests: Callable[[], Awaitable[RequestCounts]]
    ) -> IdlePower:
        """Return the summed power of these GPUs before the run, or why it is not known. The server
        must have no requests, which the utilization shows if the engine does not report requests.
        Takes 2 s, or up to 6 s while power still falls."""
        if IDLE_BEFORE_RUN_S <= 0:
            return IdlePower()
        if self._source.latest is None or not self._source.latest.infos or not gpus:
            return IdlePower(why="the GPUs of the server are not known")
        before, began_s = await requests(), time.monotonic()
        if before.in_flight:
            return IdlePower(
                why=f"before the run, {count_of(before.in_flight, 'request')} of other "
                "clients in flight"
            )
        await asyncio.sleep(IDLE_BEFORE_RUN_S)
        while True:
            at_s = time.monotonic()
            first, second = (
                self._summarize_readings_during(
                    gpus, at_s - part * IDLE_BEFORE_RUN_S, IDLE_BEFORE_RUN_S / 2
                )
                for part in (1.0, 0.5)
            )
            falling = (first.power_w or 0.0) > STEADY_POWER_RATIO * (second.power_w or 0.0)
            if not falling or at_s - began_s >= 3 * IDLE_BEFORE_RUN_S:
                break
            await asyncio.sleep(IDLE_BEFORE_RUN_S / 2)
        if (await requests()) != before:
            return IdlePower(why="requests of other clients arrived before the run")
        if second.power_w is None:
            return IdlePower(
                why=second.absent.get("power_w", "the driver reported no power before the run")
            )
        was_idle = second.gpu_util_pct is not None and second.gpu_util_pct <= IDLE_UTIL_PCT
        if before.in_flight is None and not was_idle:
            return IdlePower(why="it is not known whether the server was idle before the run")
        if falling:
            return IdlePower(
                why=f"power was still falling before the run, by then {second.power_w:.0f} W"
            )
        return IdlePower(round(second.power_w, 3), "")

    def _summarize_readings_during(
        self, gpus: Sequence[int], t0_s: float, seconds: float
    ) -> GpuDuring:
        moments = self._source.readings_between(t0_s, t0_s + seconds)
        return summarize_gpu_readings(
            moments, gpus, t0_s, t0_s + seconds, interval_s=READ_INTERVAL_S
        )

    def summary_with_gpu_metrics(
        self, outcome: BenchOutcome, gpus: tuple[int, ...], idle: IdlePower
    ) -> BenchSummary:
        """Return the run's summary with the metrics of the GPUs `gpus` while its rates were
        measured. If the GPUs are not known, the metrics are None and `absent` has the reason."""
        latest = self._source.latest
        if latest is None or not latest.infos:
            why = (latest.driver.message if latest else self._source.problem) or (
                "no GPU on this host"
            )
            return summary_without_energy(outcome.summary, why)
        t0_s, t1_s = rate_window_monotonic_s(outcome)
        seconds = t1_s - t0_s
        during = self._summarize_readings_during(gpus, t0_s, seconds)
        if seconds >= SHORTEST_POWER_RUN_S:
            return add_energy_metrics(outcome.summary, during, idle, seconds=seconds)
        what = "the steady window" if outcome.summary.window == "steady" else "the run"
        short = (
            f"{what} took {seconds:.1f} s, too short for power readings, which are means over 1 s"
        )
        why = f"{short}: run {SHORTEST_POWER_RUN_S:.0f} s or longer"
        return replace(
            summary_without_energy(outcome.summary, why, idle), gpu=_without_power_metrics(during)
        )


def _without_power_metrics(during: GpuDuring) -> GpuDuring:
    return replace(
        during,
        power_w=None,
        energy_j=None,
        power_w_each=(),
        energy_j_each=(),
        energy_counter_j=None,
        energy_integrated_j=None,
    )


def rate_window_unix_s(outcome: BenchOutcome) -> tuple[float, float]:
    """Return (begin, end) in Unix time of the part of a run from which its rates are computed. This
    is the part with a steady load, or all of the run if there is no such part."""
    if outcome.window_t1_unix > outcome.window_t0_unix:
        return outcome.window_t0_unix, outcome.window_t1_unix
    return outcome.t0_unix, outcome.t1_unix


def rate_window_monotonic_s(outcome: BenchOutcome) -> tuple[float, float]:
    """Return (begin, end) of the part of a run from which its rates are computed, in this process's
    time.monotonic()."""
    shift = time.monotonic() - time.time()
    begin, end = rate_window_unix_s(outcome)
    return begin + shift, end + shift
