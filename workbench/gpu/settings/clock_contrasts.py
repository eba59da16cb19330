"""Contrasts: comparisons of a GPU's clocks under the same load with a lock, with another lock, or
with none. Only a contrast proves that a lock has an effect, because the GPU might choose a clock
inside the lock's range anyway."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from statistics import median
from typing import Any

from workbench.gpu.telemetry.reading_buffer import (
    BenchmarkReading,
    Moment,
    known_values_of_field,
)
from workbench.model.gpu import Telemetry
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_records import Alteration
from workbench.model.settings import LOCKS, MEMORY_CLOCKS, ClockRange, ClockSetting

# utilization from which a reading counts: an idle GPU lowers its clocks whatever the lock
MIN_LOADED_UTILIZATION_PCT = 50.0
CLOCK_TOLERANCE_MHZ = 30  # clocks move in steps of 15 MHz (GeForce and RTX PRO) or less
MIN_READINGS = 5  # readings under load
BINDING_LIMITER_SHARE = 0.5  # share of the readings that name a limiter
# if at most this share of the readings names a limiter, nothing held the clock down
UNLIMITED_SHARE = 0.1
POWER, UNNAMED = "power", "a limiter that the driver does not name"
# distance of two different clocks; a power limit moves a clock by less under one load
MIN_CONTRAST_MHZ = 60
MAX_KEPT_CLOCKS = 64
LIMITER_OF_REASON = {
    "SW power cap": POWER,
    "HW power brake slowdown": POWER,
    "SW thermal slowdown": "temperature",
    "HW thermal slowdown": "temperature",
    "HW slowdown": "a hardware slowdown",
    "sync boost": "sync boost",
    "display clock setting": "the display",
}


@dataclass(frozen=True, slots=True)
class MeasuredClock:
    """A measured clock of one GPU under `load`, while `lock` was set (None: no lock).
    `circumstances` is a text that names everything else that affects the clock: the power limit,
    the lock of the other clock, and the driver."""

    gpu_uuid: str
    setting: str
    lock: ClockRange | None
    load: str
    circumstances: str
    mhz: int
    limiter: str | None = None  # what may have lowered the clock: "power", or UNNAMED
    unix_s: float = 0.0

    @property
    def is_above_lock(self) -> bool:
        return self.lock is not None and self.mhz > self.lock.max_mhz + CLOCK_TOLERANCE_MHZ

    def differs_only_in_lock(self, other: MeasuredClock) -> bool:
        """Return whether the two clocks were measured on the same GPU, under the same load and
        circumstances, but with different locks."""
        *mine, lock = self.measurement_conditions
        *theirs, other_lock = other.measurement_conditions
        return mine == theirs and lock != other_lock

    @property
    def measurement_conditions(self) -> tuple[Any, ...]:
        return (self.gpu_uuid, self.setting, self.load, self.circumstances, self.lock)


@dataclass(frozen=True, slots=True)
class ContrastEvidence:
    """The clocks measured so far, and what they have proved. `clocks` has the newest clock of each
    GPU, load and lock. `shown` has the locks that were proved to work, and `refuted` those that
    were proved to have no effect, as (GPU UUID, setting, value, Unix time of the change)."""

    clocks: tuple[MeasuredClock, ...] = ()
    shown: tuple[tuple[Any, ...], ...] = ()
    refuted: tuple[tuple[Any, ...], ...] = ()
    load: str = field(default="", compare=False)  # the load under judgement
    # the present changes of other Workbenches
    others: tuple[Alteration, ...] = field(default=(), compare=False)

    def with_clocks(self, found: Iterable[MeasuredClock]) -> ContrastEvidence:
        new = {clock.measurement_conditions: clock for clock in (*self.clocks, *found)}
        return replace(
            self, clocks=tuple(sorted(new.values(), key=lambda c: c.unix_s))[-MAX_KEPT_CLOCKS:]
        )

    def with_shown_effects(self, found: Iterable[Alteration]) -> ContrastEvidence:
        return replace(self, shown=_add_identities_of_changes(self.shown, found))

    def with_refuted_effects(self, found: Iterable[Alteration]) -> ContrastEvidence:
        return replace(self, refuted=_add_identities_of_changes(self.refuted, found))

    def is_effect_shown(self, one: Alteration) -> bool:
        return _identity_of_change(one) in self.shown

    def is_effect_refuted(self, one: Alteration) -> bool:
        return _identity_of_change(one) in self.refuted


def _add_identities_of_changes(
    known: Sequence[tuple[Any, ...]], found: Iterable[Alteration]
) -> tuple[tuple[Any, ...], ...]:
    every = dict.fromkeys([*known, *map(_identity_of_change, found)])
    return tuple(every)[-MAX_KEPT_CLOCKS:]


def _identity_of_change(one: Alteration) -> tuple[Any, ...]:
    return (one.gpu_uuid, one.setting, str(one.now), one.changed_unix_s)


# -- readings under a load -------------------------------------------------------------------------


def select_readings_under_load(moments: Sequence[Moment], gpu_index: int) -> list[BenchmarkReading]:
    """Return the readings of one GPU that were made under load, with a utilization of at least
    MIN_LOADED_UTILIZATION_PCT percent."""
    return [
        r
        for m in moments
        for r in m.gpus
        if r.gpu_index == gpu_index and (r.gpu_util_pct or 0.0) >= MIN_LOADED_UTILIZATION_PCT
    ]


def clock_mhz_limited_by_lock(reading: BenchmarkReading, setting: ClockSetting) -> int | None:
    """Return the clock in MHz that the lock `setting` limits (SM or memory clock). None if the
    driver did not report it."""
    found: int | None = getattr(reading, setting.clock)
    return found


def causes_of_lower_clock(reading: BenchmarkReading) -> set[str]:
    """Return the causes that lower the clock according to the driver, such as {"power",
    "temperature"}. It is empty if the driver names none or reports no reasons."""
    return {
        LIMITER_OF_REASON[name] for name in reading.event_reasons or () if name in LIMITER_OF_REASON
    }


def collect_measured_clocks(
    alterations: Sequence[Alteration], moments: Sequence[Moment], telemetry: Telemetry, load: str
) -> tuple[MeasuredClock, ...]:
    """Return the measured clocks of every GPU that was busy under the load named `load`.
    `alterations` are the settings that apply, whoever made them. A clock is left out if it cannot
    be compared, because heat lowered it or the power limit changed meanwhile."""
    locks = {(a.gpu_uuid, a.setting): a.now for a in alterations if isinstance(a.now, ClockRange)}
    found: list[MeasuredClock] = []
    for info in telemetry.infos:
        readings = select_readings_under_load(moments, info.index)
        limits, limiter = {r.limit_w for r in readings}, _most_frequent_limiter(readings)
        if len(limits) != 1 or limiter not in (None, POWER, UNNAMED):
            continue
        for setting, other in (LOCKS, LOCKS[::-1]):
            mhz = known_values_of_field(readings, setting.clock)
            if len(mhz) < MIN_READINGS:
                continue
            around = (
                f"{limits}|{locks.get((info.uuid, other.key))}|{telemetry.driver.driver_version}"
            )
            lock = locks.get((info.uuid, setting.key))
            found.append(
                MeasuredClock(
                    info.uuid,
                    setting.key,
                    lock,
                    load,
                    around,
                    round(median(mhz)),
                    limiter,
                    time.time(),
                )
            )
    return tuple(found)


def _most_frequent_limiter(readings: Sequence[BenchmarkReading]) -> str | None:
    named = [causes_of_lower_clock(r) for r in readings]
    if sum(map(bool, named)) > UNLIMITED_SHARE * len(readings):
        return next((word for words in named for word in sorted(words) if word != POWER), POWER)
    return UNNAMED if any(r.event_reasons is None for r in readings) else None


def is_within_lock(mhz: float, lock: ClockRange) -> bool:
    """Return whether a clock is inside the range of `lock`, or at most CLOCK_TOLERANCE_MHZ
    outside."""
    return lock.min_mhz - CLOCK_TOLERANCE_MHZ <= mhz <= lock.max_mhz + CLOCK_TOLERANCE_MHZ


def find_clock_that_proves_lock(
    clock: MeasuredClock, known: Iterable[MeasuredClock]
) -> MeasuredClock | None:
    """Return a clock of `known` that proves, together with `clock`, that a lock has an effect: the
    two were measured under the same circumstances with different locks or one without, and differ
    as the locks demand. None if there is no such clock."""
    for other in filter(clock.differs_only_in_lock, known):
        if _clock_proves_lock(clock, other):
            return other
    return None


def find_lower_clock_without_lock(
    clock: MeasuredClock, known: Iterable[MeasuredClock]
) -> MeasuredClock | None:
    """Return a clock of `known`, measured without a lock, which proves that the lock raised
    `clock`, although not up to the lock's minimum. None if there is no such clock."""
    if clock.lock is None or clock.mhz >= clock.lock.min_mhz:
        return None
    for other in filter(clock.differs_only_in_lock, known):
        is_lower = clock.mhz - other.mhz >= MIN_CONTRAST_MHZ
        if is_lower and other.lock is None and other.limiter is None:
            return other
    return None


def find_clock_that_ignores_lock(
    clock: MeasuredClock, known: Iterable[MeasuredClock]
) -> MeasuredClock | None:
    """Return a clock of `known` which proves that locks have no effect on this GPU: it has the same
    MHz as `clock`, although it was measured with another lock and is above that lock's range. None
    if there is no such clock."""
    for other in filter(clock.differs_only_in_lock, known):
        if other.is_above_lock and abs(clock.mhz - other.mhz) < MIN_CONTRAST_MHZ:
            return other
    return None


def does_clock_refute_its_lock(clock: MeasuredClock, known: Iterable[MeasuredClock]) -> bool:
    """Return whether `clock` proves that its lock has no effect: it is above the lock's range, or
    as high as under another lock that forbids it."""
    if clock.lock is None:
        return False
    return clock.is_above_lock or find_clock_that_ignores_lock(clock, known) is not None


def _clock_proves_lock(clock: MeasuredClock, other: MeasuredClock) -> bool:
    asked, theirs = clock.lock, other.lock
    if (
        asked is None
        or abs(clock.mhz - other.mhz) < MIN_CONTRAST_MHZ
        or not is_within_lock(clock.mhz, asked)
    ):
        return False
    if limiter_of_difference(clock, other):
        return False
    if theirs is None:
        return not is_within_lock(other.mhz, asked)
    return is_within_lock(other.mhz, theirs) and not (
        is_within_lock(other.mhz, asked) and is_within_lock(clock.mhz, theirs)
    )


def limiter_of_difference(clock: MeasuredClock, other: MeasuredClock) -> str | None:
    """Return what lowered the slower of two clocks, such as "power". It explains their difference
    without a lock. None if nothing lowered it. None also for two memory clocks that the power limit
    lowered, because memory clocks have few steps."""
    if clock.setting == MEMORY_CLOCKS.key and clock.limiter == other.limiter == POWER:
        return None
    return min(clock, other, key=lambda c: c.mhz).limiter
