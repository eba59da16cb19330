"""GPU settings as data: what was, what is asked for, what the driver says afterwards."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class ClockRange:
    min_mhz: int
    max_mhz: int

    def __str__(self) -> str:
        return f"{self.min_mhz},{self.max_mhz}"


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Settings asked for on one GPU. None leaves a setting alone."""

    persistence: bool | None = None
    power_limit_w: float | None = None
    gpu_clocks: ClockRange | None = None
    memory_clocks: ClockRange | None = None
    reset_gpu_clocks: bool = False
    reset_memory_clocks: bool = False
    governor: str | None = None  # CPU frequency governor of all cores: a setting of the host, whatever GPU is named

    @property
    def empty(self) -> bool:
        return self == GpuSettings()

    @property
    def words(self) -> tuple[str, ...]:
        """As `gpu set` calls them: ("power-limit=400", "lock-gpu-clocks=210,2400", "reset-memory-clocks")."""
        on = None if self.persistence is None else "on" if self.persistence else "off"
        watts = None if self.power_limit_w is None else f"{self.power_limit_w:g}"
        values = {
            "persistence": on,
            "power-limit": watts,
            "lock-gpu-clocks": self.gpu_clocks,
            "lock-memory-clocks": self.memory_clocks,
            "governor": self.governor,
        }
        resets = {"reset-gpu-clocks": self.reset_gpu_clocks, "reset-memory-clocks": self.reset_memory_clocks}
        given = (f"{name}={value}" for name, value in values.items() if value is not None)
        return (*given, *(name for name, asked in resets.items() if asked))


def gpu_settings_from(data: Mapping[str, Any]) -> GpuSettings:
    """Return settings as `asdict` gave them; fields that this version does not know are dropped."""
    known = {f.name: data[f.name] for f in fields(GpuSettings) if f.name in data}
    for name in ("gpu_clocks", "memory_clocks"):
        known[name] = ClockRange(**known[name]) if known.get(name) else None
    return GpuSettings(**known)


HOST = "host"  # `gpu_uuid` of a setting of the host itself
HOST_INDEX = -1


class InForce(StrEnum):
    """Whether a setting holds. A lock cannot be read back from NVML, so it is NOT_CHECKED until seen under load, and
    CONSISTENT until a clock without it was seen to differ. CHANGED: it reads as what Workbench did not set."""

    YES = "yes"
    CONSISTENT = "consistent, proves nothing"
    CHANGED = "changed by someone else"
    CAPPED = "capped"
    NO_EFFECT = "no effect"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class SettingCommand:
    """One command that changes one thing on one GPU; `right` says what it needs when it is not allowed."""

    gpu_index: int
    gpu_uuid: str
    setting: str  # "persistence", "power_limit_w", "gpu_clocks", "memory_clocks", "governor" (gpu_index -1, HOST)
    argv: tuple[str, ...]
    right: str | None = None
    value: Any = None  # True/False, watts, "MIN,MAX" or "default": what `argv` asks for, as the journal keeps it
    stdin: str | None = None  # what the command reads (tee into sysfs); never a password
    note: str = ""  # what to know before it is run: "nvidia-smi takes the closest SM clock: 1005 MHz for 1003"

    @property
    def typed(self) -> str:
        """As a person would type it."""
        if self.stdin is None:
            return shlex.join(self.argv)
        return f"echo {shlex.quote(self.stdin.strip())} | {shlex.join(self.argv)}"

    @property
    def where(self) -> str:
        return "host" if self.gpu_uuid == HOST else f"GPU{self.gpu_index}"


@dataclass(frozen=True, slots=True)
class SettingOutcome:
    command: SettingCommand
    ok: bool
    before: Any = None  # value before, or "unknown (…)" for someone else's lock, "default"
    requested: Any = None
    read_back: Any = None
    in_force: InForce = InForce.NOT_CHECKED
    message: str = ""  # what nvidia-smi said, or why it failed, and the next step
    # how: "read" from the driver, "journal" (we had set it), "default" (reset), "unknown", "claim" (another's)
    before_known: str = ""
    foreign: bool = False  # someone else changed it since: only a user can say what is to become of it


@dataclass(frozen=True, slots=True)
class GuardView:
    """The guard of a host: the detached process that gives settings back by itself. Times are Unix seconds of its host
    unless said otherwise. `problem`: why there is none; of a `running` one what it cannot do."""

    running: bool
    pid: int | None = None
    since_unix_s: float | None = None
    heartbeat_s: float | None = None  # reverts when its owner has been silent for so long; None: it waits for none
    heartbeat_age_s: float | None = None
    trial_left_s: float | None = None  # None: no trial is on
    temperature_limits_c: Mapping[str, float] = field(default_factory=dict)  # by GPU UUID
    did: str | None = None  # the last thing that it did: "reverted: no heartbeat for 60 s", …
    did_unix_s: float | None = None
    log: str | None = None  # path on the host
    note: str | None = None  # what it leaves as it is on a GPU that is too hot, and why
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsReport:
    """What an apply or a revert did. `journal` is the path on the host of the record of previous values."""

    outcomes: tuple[SettingOutcome, ...] = ()
    journal: str | None = None
    dry_run: bool = False
    rolled_back: tuple[SettingOutcome, ...] = ()  # what was given back because a later command of the plan failed
    guard: GuardView | None = None  # the guard that watches over this change

    @property
    def ok(self) -> bool:
        return all(o.ok for o in self.outcomes)


@dataclass(frozen=True, slots=True)
class Alteration:
    """A setting that Workbench changed and has not reverted: what the status bar and quit ask about."""

    gpu_index: int
    gpu_uuid: str
    setting: str
    before: Any
    now: Any
    since_unix_s: float
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drift:
    """A setting that Workbench made and the host does not have any more: `now` is what it has."""

    gpu_index: int
    gpu_uuid: str
    setting: str
    now: Any  # None: of a lock, which nobody can read
    text: str  # "set to 400 W by Workbench, now 200 W: changed by someone else"
