"""Tells a start whose GPUs only spin from a slow start that works.

A kernel that waits for another GPU, such as a hanging collective operation, keeps its GPU at full
utilization and draws hardly any power. Nothing else changes: no memory is taken, and no line of the
log is written. A start that works changes at least one of these within three minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.server.start_times import format_earlier_start

if TYPE_CHECKING:
    from workbench.model.gpu import GpuSample

SPINNING_AFTER_S = 180.0  # without any change until a start counts as spinning
_BUSY_UTILIZATION_PCT = 50.0  # utilization of a GPU on which a kernel waits
_MAX_WAITING_POWER_SHARE = 0.25  # share of the power limit that a waiting kernel stays below
_EQUAL_WITHIN_PCT = (
    3.0  # utilization and power, the latter of the limit, that differ by less are equal
)
_EQUAL_WITHIN_BYTES = 2 * 1024 * 1024
_MAX_READING_GAP_S = 15.0  # longer without a reading, something may have changed unseen


@dataclass(frozen=True, slots=True)
class UnchangedPeriod:
    """A period in which nothing changed on one GPU. `util_pct` and `power_pct` are the lowest and
    the highest value in it; the latter is in percent of the power limit. Times are monotonic."""

    since_s: float
    last_s: float
    util_pct: tuple[float, float]
    power_pct: tuple[float, float]
    power_w: float
    limit_w: float
    memory_bytes: int

    @property
    def is_spinning(self) -> bool:
        """Whether the GPU was as busy as one on which a kernel waits, and drew little power."""
        return self.util_pct[0] >= _BUSY_UTILIZATION_PCT and not self.draws_power

    @property
    def draws_power(self) -> bool:
        """Whether the GPU drew more power than one on which a kernel only waits."""
        return self.power_pct[1] >= 100 * _MAX_WAITING_POWER_SHARE

    @property
    def text(self) -> str:
        low, high = (f"{value:.0f}" for value in self.util_pct)
        util = low if low == high else f"{low} to {high}"
        return f"{util} % utilization, {self.power_w:.0f} W of {self.limit_w:.0f} W"


class SpinWatch:
    """Finds, in successive readings of a host's GPUs, since when nothing has changed on each of
    them."""

    def __init__(self) -> None:
        self._still: dict[int, UnchangedPeriod] = {}

    def add_reading(self, samples: Sequence[GpuSample], at_s: float) -> None:
        """Add a reading of all GPUs, made at the monotonic time `at_s`. A GPU that is not in it, or
        lacks a value that is needed, begins anew."""
        still: dict[int, UnchangedPeriod] = {}
        for sample in samples:
            period = _continue_period(self._still.get(sample.index), sample, at_s)
            if period is not None:
                still[sample.index] = period
        self._still = still

    def find_spinning_gpus(self, gpus: Collection[int] | None) -> Mapping[int, UnchangedPeriod]:
        """Return the spinning GPUs among `gpus`, None for all, by index, with the periods without a
        change. {} if one of `gpus` draws power, has changed within SPINNING_AFTER_S, or is not
        read."""
        wanted = set(self._still if gpus is None else gpus)
        if not wanted <= self._still.keys():
            return {}
        spinning: dict[int, UnchangedPeriod] = {}
        for index in sorted(wanted):
            still = self._still[index]
            # An idle GPU waits too; one with power works.
            if still.last_s - still.since_s < SPINNING_AFTER_S or still.draws_power:
                return {}
            if still.is_spinning:
                spinning[index] = still
        return spinning


def _continue_period(
    before: UnchangedPeriod | None, sample: GpuSample, at_s: float
) -> UnchangedPeriod | None:
    """Return the period without a change to which `sample`, a reading at `at_s`, belongs: `before`
    with it, or a new one. None if the GPU does not report what is needed to know."""
    util, power, limit = sample.gpu_util_pct, sample.power_w, sample.limit_w
    memory = sample.memory_used_bytes
    if not sample.has_readings or not limit:
        return None
    if util is None or power is None or memory is None:
        return None
    share = 100 * power / limit
    new = UnchangedPeriod(
        since_s=at_s,
        last_s=at_s,
        util_pct=(util, util),
        power_pct=(share, share),
        power_w=power,
        limit_w=limit,
        memory_bytes=memory,
    )
    if before is None or at_s - before.last_s > _MAX_READING_GAP_S:
        return new
    utils = min(before.util_pct[0], util), max(before.util_pct[1], util)
    powers = min(before.power_pct[0], share), max(before.power_pct[1], share)
    widest_pct = max(high - low for low, high in (utils, powers))
    moved_bytes = abs(memory - before.memory_bytes)
    if widest_pct > _EQUAL_WITHIN_PCT or moved_bytes > _EQUAL_WITHIN_BYTES:
        return new
    return replace(before, last_s=at_s, util_pct=utils, power_pct=powers, power_w=power)


def spinning_finding(
    gpus: Mapping[int, UnchangedPeriod],
    phase: str | None,
    minutes: int,
    earlier_start_s: float | None,
) -> Finding:
    """Return the finding about a start whose GPUs only spin. `gpus` has them by index, and nothing
    has changed on them for `minutes`. `phase` is the start-up phase that the log reported last, and
    `earlier_start_s` how long the start before took; None if unknown."""
    evidence = "; ".join(f"GPU {index}: {still.text}" for index, still in sorted(gpus.items()))
    usual = format_earlier_start(earlier_start_s)
    text = (
        f"spinning, not working, for {minutes} min in the phase “{phase or 'starting'}”: no new line "
        f"in the log, no change of GPU memory, and constant utilization without power{usual}"
    )
    several = (
        "a kernel waits for another GPU that never answers: stop it, and start with "
        "NCCL_P2P_DISABLE=1 or without custom all-reduce (P2P through an IOMMU hangs; then set "
        "iommu=pt), and with NCCL_DEBUG=INFO; py-spy dump --pid of each rank shows where it waits"
    )
    one = (
        "a kernel does not end: stop it, delete the caches of FlashInfer and Triton on the host, and "
        "start once without CUDA graphs or with another attention backend; py-spy dump --pid shows "
        "where the server waits"
    )
    fix = several if len(gpus) > 1 else one
    source = "NVIDIA/nccl#1999; vllm-project/vllm#33041"
    return Finding(Level.WARN, "start.spinning", text, fix=fix, source=source, evidence=evidence)
