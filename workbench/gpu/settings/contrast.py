"""What clocks a GPU showed under a load with one lock, another lock, or none. A lock is in force only by contrast:
inside the range that the card would choose anyway, a clock proves nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import median
from typing import Any

from workbench.gpu.telemetry.history import BenchmarkReading, Moment
from workbench.hosts.base import FileError, Host
from workbench.model.gpu import Telemetry
from workbench.model.settings import Alteration

FILE = "gpu/clocks.json"  # beside the journal; only numbers and names that are compared, nothing that is run
LOADED_PCT = 50.0  # utilization from which a reading says something: an idle GPU lowers its clocks whatever is locked
SLACK_MHZ = 30  # clocks move in steps of 15 MHz (GeForce and RTX PRO) or less
ENOUGH = 5  # readings under load
BINDS_SHARE = 0.5  # of the readings that name a limiter
FREE_SHARE = 0.1  # of the readings may name a limiter, and the clock is still one that nothing held down
POWER, UNTOLD = "power", "what the driver does not tell"
CONTRAST_MHZ = 60  # apart; a clock that power limits wanders by less under one load
KEPT_S = 86_400.0  # a room, and with it a clock that power limits, is another one after a day
MOST_KEPT = 64
LOCKS = ("gpu_clocks", "memory_clocks")
CAPS = {
    "SW power cap": POWER,
    "HW power brake slowdown": POWER,
    "SW thermal slowdown": "temperature",
    "HW thermal slowdown": "temperature",
    "HW slowdown": "a hardware slowdown",
    "sync boost": "sync boost",
    "display clock setting": "the display",
}


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of one GPU under `load`, with a Workbench's `lock` ("2500,3000") or none.

    `circumstances` is what else moves a clock: the power limit, the other lock and the driver."""

    gpu_uuid: str
    setting: str
    lock: str | None
    load: str
    circumstances: str
    mhz: int
    limiter: str | None = None  # what may have lowered it: "power", or unknown
    unix_s: float = 0.0

    def beside(self, other: Clock) -> bool:
        """Whether only the lock differs."""
        mine, theirs = ((c.gpu_uuid, c.setting, c.load, c.circumstances) for c in (self, other))
        return mine == theirs and self.lock != other.lock

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.gpu_uuid, self.setting, self.load, self.circumstances, self.lock)


@dataclass(frozen=True, slots=True)
class ContrastEvidence:
    """`clocks`: the newest of each kind. `shown`: locks that a contrast has proved, as (GPU, setting, value, since)."""

    clocks: tuple[Clock, ...] = ()
    shown: tuple[tuple[Any, ...], ...] = ()
    load: str = field(default="", compare=False)  # that is judged now
    others: tuple[Alteration, ...] = field(default=(), compare=False)  # what other Workbenches changed, now

    def with_clocks(self, found: Iterable[Clock]) -> ContrastEvidence:
        new = {clock.key: clock for clock in (*self.clocks, *found)}
        return replace(self, clocks=tuple(sorted(new.values(), key=lambda c: c.unix_s))[-MOST_KEPT:])

    def with_shown(self, found: Iterable[Alteration]) -> ContrastEvidence:
        return replace(self, shown=tuple(dict.fromkeys([*self.shown, *map(_key, found)]))[-MOST_KEPT:])

    def has_shown(self, one: Alteration) -> bool:
        return _key(one) in self.shown


def _key(one: Alteration) -> tuple[Any, ...]:
    return (one.gpu_uuid, one.setting, str(one.now), one.extra.get("set_unix_s", one.since_unix_s))


# -- what a load has shown -------------------------------------------------------------------------------------------


def loaded(moments: Sequence[Moment], gpu_index: int) -> list[BenchmarkReading]:
    """The readings of one GPU under load."""
    return [r for m in moments for r in m.gpus if r.gpu_index == gpu_index and (r.gpu_util_pct or 0.0) >= LOADED_PCT]


def clock_of(reading: BenchmarkReading, setting: str) -> int | None:
    return reading.memory_mhz if setting == "memory_clocks" else reading.sm_mhz


def caps(reading: BenchmarkReading) -> set[str]:
    return {CAPS[name] for name in reading.event_reasons or () if name in CAPS}


def clocks_of(
    alterations: Sequence[Alteration], moments: Sequence[Moment], telemetry: Telemetry, load: str
) -> tuple[Clock, ...]:
    """Of every GPU that the load kept busy. `alterations`: whoever made them. A clock that heat held down, or during
    which the power limit changed, is of no use to another run."""
    locks = {(a.gpu_uuid, a.setting): str(a.now) for a in alterations if "," in str(a.now)}
    found: list[Clock] = []
    for info in telemetry.infos:
        readings = loaded(moments, info.index)
        limits, limiter = {r.power_limit_w for r in readings}, _held_by(readings)
        if len(limits) != 1 or limiter not in (None, POWER, UNTOLD):
            continue
        for setting, other in (LOCKS, LOCKS[::-1]):
            mhz = [value for r in readings if (value := clock_of(r, setting)) is not None]
            if len(mhz) < ENOUGH:
                continue
            around = f"{limits}|{locks.get((info.uuid, other))}|{telemetry.driver.driver_version}"
            lock = locks.get((info.uuid, setting))
            found.append(Clock(info.uuid, setting, lock, load, around, round(median(mhz)), limiter, time.time()))
    return tuple(found)


def _held_by(readings: Sequence[BenchmarkReading]) -> str | None:
    """What may have lowered the clocks: limiters share a load's readings, so what counts is how many name any."""
    named = [caps(r) for r in readings]
    if sum(map(bool, named)) > FREE_SHARE * len(readings):
        return next((word for words in named for word in sorted(words) if word != POWER), POWER)
    return UNTOLD if any(r.event_reasons is None for r in readings) else None


def span(value: object) -> tuple[int, int] | None:
    """The two of "3000,3090"; None for a reset."""
    low, comma, high = str(value).partition(",")
    return (int(low), int(high)) if comma and low.isdecimal() and high.isdecimal() else None


def within(mhz: float, asked: tuple[int, int]) -> bool:
    return asked[0] - SLACK_MHZ <= mhz <= asked[1] + SLACK_MHZ


def contrast(clock: Clock, known: Iterable[Clock]) -> Clock | None:
    """One with another lock, or none, that shows that `clock` is where it is because of its lock; None without."""
    return next((other for other in known if clock.beside(other) and _moved(clock, other)), None)


def raised(clock: Clock, known: Iterable[Clock]) -> Clock | None:
    """One without a lock that shows that the lock raised `clock`, though not as far as it asked."""
    asked = span(clock.lock)
    if asked is None or clock.mhz >= asked[0]:
        return None
    free = (o for o in known if o.lock is None and o.limiter is None and clock.beside(o))
    return next((other for other in free if clock.mhz - other.mhz >= CONTRAST_MHZ), None)


def ignored(clock: Clock, known: Iterable[Clock]) -> Clock | None:
    """One whose lock asked for less than the clock did: nothing holds a clock up, so locks change nothing here."""
    for other in known:
        theirs = span(other.lock)
        above = theirs is not None and other.mhz > theirs[1] + SLACK_MHZ
        if clock.beside(other) and above and abs(clock.mhz - other.mhz) < CONTRAST_MHZ:
            return other
    return None


def _moved(clock: Clock, other: Clock) -> bool:
    asked, theirs = span(clock.lock), span(other.lock)
    if asked is None or abs(clock.mhz - other.mhz) < CONTRAST_MHZ or not within(clock.mhz, asked):
        return False
    if explained(clock, other):
        return False
    if theirs is None:
        return not within(other.mhz, asked)
    return within(other.mhz, theirs) and not (within(other.mhz, asked) and within(clock.mhz, theirs))


def explained(clock: Clock, other: Clock) -> str | None:
    """What explains the lower of the two without a lock. A power limit that holds down both explains no difference of
    the memory's clock, which has few steps and does not wander."""
    if clock.setting == "memory_clocks" and clock.limiter == other.limiter == POWER:
        return None
    return min(clock, other, key=lambda c: c.mhz).limiter


# -- kept ------------------------------------------------------------------------------------------------------------


async def read(host: Host) -> ContrastEvidence:
    """What is kept of the last day; nothing where the file is missing or not one of ours."""
    try:
        kept = json.loads(await host.read_file(f"{await host.state_dir()}/{FILE}"))
        rows, shown = kept["clocks"], kept["shown"]
        now = time.time()
        clocks = tuple(c for c in map(_clock, rows) if c is not None and 0 <= now - c.unix_s < KEPT_S)
        return ContrastEvidence(clocks[-MOST_KEPT:], tuple(tuple(s) for s in shown if isinstance(s, list))[-MOST_KEPT:])
    except (FileError, ValueError, KeyError, TypeError, RecursionError):
        return ContrastEvidence()


def _clock(row: object) -> Clock | None:
    if not isinstance(row, dict):
        return None
    texts = ("gpu_uuid", "setting", "load", "circumstances")
    words = all(isinstance(row.get(name), str) for name in texts)
    numbers = all(type(row.get(name)) in (int, float) for name in ("mhz", "unix_s"))
    optional = all(isinstance(row.get(name), str | None) for name in ("lock", "limiter"))
    return Clock(**{f.name: row[f.name] for f in fields(Clock)}) if words and numbers and optional else None


async def write(host: Host, known: ContrastEvidence) -> None:
    """FileError where it cannot be written."""
    kept = {"clocks": [asdict(c) for c in known.clocks], "shown": known.shown}
    await host.write_file(f"{await host.state_dir()}/{FILE}", json.dumps(kept).encode())
