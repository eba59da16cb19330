"""GPU settings as data: what was, what is asked for, what the driver says afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

    @property
    def empty(self) -> bool:
        return self == GpuSettings()


class InForce(StrEnum):
    """Whether a setting holds. A lock cannot be read back from NVML, so it is NOT_CHECKED until seen under load."""

    YES = "yes"
    CAPPED = "capped"
    NO_EFFECT = "no effect"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class SettingCommand:
    """One command that changes one thing on one GPU; `right` says what it needs when it is not allowed."""

    gpu_index: int
    gpu_uuid: str
    setting: str  # "persistence", "power_limit_w", "gpu_clocks", "memory_clocks"
    argv: tuple[str, ...]
    right: str | None = None
    value: Any = None  # True/False, watts, "MIN,MAX" or "default": what `argv` asks for, as the journal keeps it


@dataclass(frozen=True, slots=True)
class SettingOutcome:
    command: SettingCommand
    ok: bool
    before: Any = None  # value before, or "unknown (…)" for someone else's lock, "default"
    requested: Any = None
    read_back: Any = None
    in_force: InForce = InForce.NOT_CHECKED
    message: str = ""  # what nvidia-smi said, or why it failed, and the next step


@dataclass(frozen=True, slots=True)
class SettingsReport:
    """What an apply or a revert did. `journal` is the path on the host of the record of previous values."""

    outcomes: tuple[SettingOutcome, ...] = ()
    journal: str | None = None
    dry_run: bool = False

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
