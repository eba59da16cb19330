"""The GPUs' readings around one benchmark: a telemetry agent of its own at 10 Hz, so that the screen's pace and the
measurement's do not depend on one another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.gpu.during import summarize
from workbench.gpu.proof import Proof, judge_all
from workbench.gpu.source import TelemetrySource
from workbench.model.errors import HostError

if TYPE_CHECKING:
    from workbench.bench.records import BenchOutcome
    from workbench.hosts.base import Host
    from workbench.model.bench import BenchSummary
    from workbench.model.gpu import Telemetry
    from workbench.model.settings import Alteration

INTERVAL_S = 0.1
# Drivers give power as a mean over 1 s (Ampere and later), so a shorter run would read what was before it.
SHORTEST_S = 2.0
RISE_S = 1.0  # utilization and clocks are means over up to a second
_FIRST_READING_S = 5.0
_LAST_READING_S = 2.5


class Meter:
    """`async with Meter(host) as meter:` around the run; then `after` and `with_gpus`."""

    def __init__(self, host: Host) -> None:
        self._source = TelemetrySource(host, INTERVAL_S)

    async def __aenter__(self) -> Meter:
        await self._source.start()
        with suppress(HostError, TimeoutError):  # without GPUs the run is measured all the same; `absent` says why
            await self._source.first(_FIRST_READING_S)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._source.close()

    async def after(self, unix_s: float) -> Telemetry | None:
        """The first reading after `unix_s`, or the last there is when none comes in time."""
        deadline = time.monotonic() + _LAST_READING_S
        while time.monotonic() < deadline:
            latest = self._source.latest
            if latest is not None and (not latest.gpus or (self._source.age_s or 0) < time.time() - unix_s):
                break
            await asyncio.sleep(INTERVAL_S / 2)
        return self._source.latest

    def proofs(self, outcome: BenchOutcome, alterations: Sequence[Alteration]) -> tuple[Proof, ...]:
        """What the load says of each setting that Workbench made. What is not under load in the first second (clocks
        that still rise) is not counted."""
        return self.proofs_between(*_span(outcome), alterations)

    def proofs_between(self, t0_s: float, t1_s: float, alterations: Sequence[Alteration]) -> tuple[Proof, ...]:
        """The same for a load from t0 to t1 (time.monotonic() of this process)."""
        moments = [m for m in self._source.during(t0_s, t1_s) if t0_s + RISE_S <= m.at_s <= t1_s]
        return judge_all(alterations, moments, self._source.latest)

    def with_gpus(self, outcome: BenchOutcome, gpus: tuple[int, ...]) -> BenchSummary:
        """The summary with what these GPUs did meanwhile; None with the reason where that is not known."""
        from workbench.bench.summary import with_gpu

        latest = self._source.latest
        if latest is None or not latest.infos:
            why = (latest.driver.message if latest else self._source.problem) or "no GPU on this host"
            return without_power(outcome.summary, why)
        t0_s, t1_s = _span(outcome)
        during = summarize(self._source.during(t0_s, t1_s), gpus, t0_s, t1_s, interval_s=INTERVAL_S)
        summary = with_gpu(outcome.summary, during)
        if t1_s - t0_s >= SHORTEST_S:
            return summary
        why = f"the run took {t1_s - t0_s:.1f} s, and power is a mean over 1 s: make it {SHORTEST_S:.0f} s or longer"
        return replace(without_power(summary, why), gpu=replace(during, power_w=None, energy_j=None))


def _span(outcome: BenchOutcome) -> tuple[float, float]:
    """Begin and end of the counted requests in this process's time.monotonic()."""
    shift = time.monotonic() - time.time()
    return outcome.t0_unix + shift, outcome.t1_unix + shift


def without_power(summary: BenchSummary, why: str) -> BenchSummary:
    """The summary without power and energy, and why."""
    names = ("power_w", "energy_j", "tok_per_joule")
    absent = {**summary.absent, **dict.fromkeys(names, why)}
    return replace(summary, power_w=None, energy_j=None, tok_per_joule=None, absent=absent)
