"""Records of changes of GPU settings: the commands of a change, their outcomes, the guard, and the
settings that are altered now."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from enum import StrEnum
from typing import Any

from workbench.model.counts import count_of
from workbench.model.lazy_dataclass import dataclass
from workbench.model.settings import SettingValue, gpu_or_host_name, value_to_store

_CORE_FILE = re.compile(r"(.*/cpu)(\d+)(/[a-z_/]*)(\d*)([a-z_/]*)")  # of sysfs: core, idle state


def join_paths_in_braces(files: Sequence[str]) -> str | None:
    """Return the paths of sysfs `files`, which set CPU cores, as one shell word with braces:
    "/sys/…/cpu{0..3}/cpuidle/state{0..2}/disable". None if there are fewer than three files, or if
    one such word cannot stand for exactly these paths."""
    found = list(map(_CORE_FILE.fullmatch, files))
    if len(files) < 3 or None in found:
        return None
    parts = zip(*(match.groups() for match in found if match), strict=True)
    heads, cores, middles, states, tails = map(tuple, map(dict.fromkeys, parts))
    if len(heads) * len(middles) * len(tails) > 1 or len(files) != len(cores) * len(states):
        return None
    head, middle, tail = heads[0], middles[0], tails[0]
    return f"{shlex.quote(head)}{_brace_numbers(cores)}{middle}{_brace_numbers(states)}{tail}"


def _brace_numbers(numbers: Sequence[str]) -> str:
    if len(numbers) < 2:
        return "".join(numbers)
    low, high = int(numbers[0]), int(numbers[-1])
    if tuple(numbers) == tuple(map(str, range(low, high + 1))):
        return f"{{{low}..{high}}}"
    return f"{{{','.join(numbers)}}}"


class InForce(StrEnum):
    """Whether a setting has its effect on the GPU.

    NVML cannot read a clock lock back. So a lock is NOT_CHECKED until the clocks were read under
    load, and CONSISTENT if these clocks obey the lock but might be the same without it. CAPPED:
    another limit is lower. CHANGED: the driver reports a value that Workbench did not set.
    """

    YES = "yes"
    CONSISTENT = "consistent, proves nothing"
    CHANGED = "changed by someone else"
    CAPPED = "capped"
    NO_EFFECT = "no effect"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class SettingCommand:
    """One command that sets one setting of one GPU, or of the host (`gpu_index` -1, `gpu_uuid`
    HOST). `value` is the value that `argv` sets. If the user may not run the command, `right` names
    the missing right."""

    gpu_index: int
    gpu_uuid: str
    setting: str  # key of the setting
    argv: tuple[str, ...]
    right: str | None = None
    value: SettingValue | None = None
    stdin: str | None = None  # input of the command (tee into sysfs); never a password
    # a warning before the run: "nvidia-smi takes the closest SM clock: 1005 MHz for 1003"
    note: str = ""
    # whether somebody else has set the value that the command would replace
    foreign: bool = False

    @property
    def shell_line(self) -> str:
        """The command as the user would enter it in a shell. If it writes to the files of many CPU
        cores, their paths are one word with braces, which bash and zsh expand."""
        if self.stdin is None:
            return shlex.join(self.argv)
        first = next((n for n, word in enumerate(self.argv) if _CORE_FILE.fullmatch(word)), 0)
        line, files = shlex.join(self.argv), join_paths_in_braces(self.argv[first:])
        if files is not None:
            line = f"{shlex.join(self.argv[:first])} {files}"
        return f"echo {shlex.quote(self.stdin.strip())} | {line}"

    @property
    def gpu_or_host_name(self) -> str:
        """Return where the command applies: "host", or for example "GPU0"."""
        return gpu_or_host_name(self.gpu_uuid, self.gpu_index)


@dataclass(frozen=True, slots=True)
class SettingOutcome:
    """The result of one command that sets a setting. `before` is UNKNOWN for a clock lock that
    another program had set."""

    command: SettingCommand
    ok: bool
    before: SettingValue | None = None
    requested: SettingValue | None = None
    read_back: SettingValue | None = None
    in_force: InForce = InForce.NOT_CHECKED
    message: str = ""  # the answer of nvidia-smi, or why the command failed, and the next step
    # source of `before`: "read" from the driver, "journal" (Workbench had set it), "default"
    # (reset), "unknown", "claim" (another user's Workbench)
    before_known: str = ""
    foreign: bool = False  # another program changed the value since: the user must choose
    # the user who has set the value since and can revert it; the user may choose, as with `foreign`
    left_to: str = ""


@dataclass(frozen=True, slots=True)
class GuardView:
    """The state of a host's guard, a process on that host that reverts settings without Workbench.
    Times are Unix seconds by that host's clock. `problem` says why no guard runs or what the
    running guard cannot do; None if there is no problem."""

    running: bool
    pid: int | None = None
    since_unix_s: float | None = None
    # the guard reverts after this time without a heartbeat; None: no heartbeat is due
    heartbeat_s: float | None = None
    heartbeat_age_s: float | None = None
    trial_left_s: float | None = None  # None if no trial runs
    temperature_limits_c: Mapping[str, float] = field(default_factory=dict)  # by GPU UUID
    # the guard's last act: "reverted GPU0 power limit: no heartbeat for 60 s"
    did: str | None = None
    did_unix_s: float | None = None
    log: str | None = None  # path on the host
    note: str | None = None  # the settings that the guard keeps on a GPU that is too hot, and why
    problem: str | None = None
    # False if the running process guards nothing of this Workbench: it is stopped, fails in each
    # round, or is of an earlier version
    guarding: bool = True


SHOWN = 8  # settings in a text about a recovered journal


@dataclass(frozen=True, slots=True)
class Recovery:
    """A journal whose entries come from the host's register, because its file is missing or damaged
    (`why`). `kept` are these entries as text. `damaged` is the path that the damaged file gets, ""
    if there is no file. A reader only uses the register; a change or a revert also makes the file
    anew, and then the recovery `is_written`."""

    why: str
    kept: tuple[str, ...]
    damaged: str = ""
    is_written: bool = False

    @property
    def text(self) -> str:
        """A sentence for the user: what happened to the journal, which settings the register has
        kept, and the path of the damaged file if there is one."""
        more, shown = len(self.kept) - SHOWN, "; ".join(self.kept[:SHOWN])
        if more > 0:
            shown += f"; and {more} more"
        has = f"which has {count_of(len(self.kept), 'setting')} ({shown})"
        if self.is_written:
            text = f"{self.why}: it was made anew from its copy in the host's register, {has}"
            moved = f"; the damaged file is {self.damaged}"
        else:
            text = (
                f"{self.why}: its copy in the host's register is used, {has}; the next change or "
                "revert makes the journal anew"
            )
            moved = f" and keeps the damaged file as {self.damaged}"
        return f"{text}{moved}" if self.damaged else text


@dataclass(frozen=True, slots=True)
class SettingsReport:
    """The result of applying or reverting settings. `journal` is the path of the host's journal,
    the file with the values from before the change. `recovery` is not None if this file was missing
    or damaged before, and was made anew."""

    outcomes: tuple[SettingOutcome, ...] = ()
    journal: str | None = None
    dry_run: bool = False
    # reverted because a later command of the plan failed
    rolled_back: tuple[SettingOutcome, ...] = ()
    guard: GuardView | None = None  # the guard that watches over this change
    recovery: Recovery | None = None

    @property
    def ok(self) -> bool:
        return all(o.ok for o in self.outcomes)

    @property
    def first_failure(self) -> SettingOutcome | None:
        """The outcome of the first command that failed; None if none did."""
        return next((o for o in self.outcomes if not o.ok), None)


@dataclass(frozen=True, slots=True)
class Alteration:
    """A setting that Workbench changed and that still differs from its value before the change.
    `by` is the user who made the change, "" for the user of this Workbench. For changes of other
    users, the fields from `set_unix_s` on have no values."""

    gpu_index: int
    gpu_uuid: str
    setting: str
    before: SettingValue | None
    now: SettingValue | None
    since_unix_s: float
    by: str = ""
    state: str = "applied"  # "pending", "applied" or "kept"
    set_unix_s: float | None = None  # time of the last change
    before_known: str = ""
    owner_state: str = ""  # of the Workbench that made it: "this", "alive", "dead" or "elsewhere"
    who: str = ""
    origin: str = ""
    # while "pending": the value of the change that this one is to replace, None if it replaces none
    earlier_now: SettingValue | None = None

    @property
    def key(self) -> tuple[str, str]:
        """(UUID of the GPU or HOST, key of the setting), which identify the altered setting."""
        return self.gpu_uuid, self.setting

    @property
    def changed_unix_s(self) -> float:
        """The time of the last change, or if it is not known the time since which the setting
        differs."""
        return self.set_unix_s or self.since_unix_s

    def as_json(self) -> dict[str, Any]:
        """Return this change of a setting as JSON data. The GPU, the setting, its values and the
        time since when it differs are at the top level. All other fields that are not empty are
        under the key "extra"."""
        head = ("gpu_index", "gpu_uuid", "setting", "before", "now", "since_unix_s")
        data = {f.name: value_to_store(getattr(self, f.name)) for f in fields(self)}
        return {
            **{name: data.pop(name) for name in head},
            "extra": {k: v for k, v in data.items() if v},
        }


@dataclass(frozen=True, slots=True)
class Drift:
    """A setting that Workbench changed and that has another value on the host now."""

    gpu_index: int
    gpu_uuid: str
    setting: str
    now: SettingValue | None  # the host's value; None for a clock lock, which nobody can read
    text: str  # "set to 400 W by Workbench, now 200 W: changed by someone else"

    def as_json(self) -> dict[str, Any]:
        return {f.name: value_to_store(getattr(self, f.name)) for f in fields(self)}
