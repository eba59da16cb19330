"""What a GPU setting is in words, what its command answers, and how it is given back. Pure: nothing is run here.

Used by control.py, and sent to the host with the guard: standard library only, Python 3.8, nothing of workbench.

A value is as SettingCommand.value and the journal keep it: True/False, watts, "MIN,MAX" in MHz, "default" (no lock),
"unknown" (someone else's lock), and for the CPU governor one name for all cores ("powersave") or, where the cores
differ, "powersave=0-3 performance=4-7".
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

HOST = "host"  # as model/settings.py: in place of a UUID
DEFAULT = "default"
UNKNOWN = "unknown"
LOCKS = ("gpu_clocks", "memory_clocks")
# Locks first and persistence after them, so that each is still held up while it matters; the host's own last.
ORDER = (*LOCKS, "power_limit_w", "persistence", "governor")
WATTS_EQUAL = 0.5
SYSFS = "/sys"
GOVERNOR_FILES = "{root}/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
FAILED = re.compile(
    r"treating as warning|not supported|insufficient permissions|does not have permission|terminating early|"
    r"unable to|failed|invalid|is not a valid|gpu is lost|unknown error|no devices were found|password is required|"
    r"incorrect password|not allowed to",
    re.IGNORECASE,
)


_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/_-]{1,80}")
_CLOCKS = re.compile(r"\d{1,5},\d{1,5}|default|unknown", re.ASCII)
_GOVERNOR = re.compile(r"[a-z_]{1,32}(=\d{1,4}([-,]\d{1,4})*)?", re.ASCII)
_OWNER = re.compile(r"[A-Za-z0-9_-]*")
_MOST_W = 10_000


class SettingStep(NamedTuple):
    """One command, without sudo. `value` is what this one sets; `stdin` is what it reads."""

    argv: tuple[str, ...]
    value: Any
    stdin: str | None = None


def change_of(setting: str, value: Any) -> tuple[str, ...]:
    """nvidia-smi's words for one change, after `-i UUID`."""
    if setting == "persistence":
        return ("-pm", "1" if value else "0")
    if setting == "power_limit_w":
        return ("-pl", f"{value:.2f}".rstrip("0").rstrip("."))
    which = {"gpu_clocks": "gpu", "memory_clocks": "memory"}[setting]
    if value == DEFAULT:
        return (f"--reset-{which}-clocks",)
    return (f"--lock-{which}-clocks={value}",)


def steps(
    uuid: str,
    setting: str,
    value: Any,
    *,
    nvidia_smi: str = "nvidia-smi",
    tee: str = "tee",
    cores: Sequence[int] = (),
    sysfs: str = SYSFS,
) -> tuple[SettingStep, ...]:
    """The commands that set one value, by UUID since indices move: one, but for governors that differ between cores.

    `cores`: those that have a governor now, for a value that names none.
    """
    if setting != "governor":
        return (SettingStep((nvidia_smi, "-i", uuid, *change_of(setting, value)), value),)
    made = []
    for name, named in split_governor(value).items():
        files = [GOVERNOR_FILES.format(root=sysfs, cpu=cpu) for cpu in (named or cores)]
        part = f"{name}={_ranges(named)}" if named else name
        made.append(SettingStep((tee, *files), part, name + "\n"))
    return tuple(made)


def wanted_back(before: Any) -> Any:
    """What restoring sets: of a lock that nobody knows only the driver's default can be given back."""
    return DEFAULT if before == UNKNOWN else before


def order(setting: str) -> int:
    """Sort by this to give settings back."""
    return ORDER.index(setting) if setting in ORDER else len(ORDER)


def failure(returncode: int, said: str, program: str = "nvidia-smi") -> str | None:
    """Why a command did not do it; None when it says that it did. nvidia-smi exits 0 where a setting is not supported
    ("Treating as warning and moving on"), so its text decides as well."""
    said = " ".join(said.split())
    if returncode != 0:
        return said or f"{program} ended with {returncode}"
    return said if program == "nvidia-smi" and FAILED.search(said) else None


def equal(setting: str, told: Any, value: Any) -> bool:
    """Whether what the host tells of a setting is `value`. Cores that have no governor any more do not count."""
    if told is None:
        return False
    if setting == "governor":
        return _governors_equal(str(told), str(value))
    if isinstance(told, bool) or isinstance(value, bool):
        return told is value
    if isinstance(told, (int, float)) and isinstance(value, (int, float)):
        return abs(told - value) <= WATTS_EQUAL
    return bool(told == value)


def restored(setting: str, before: Any, told: Any, failed: str | None) -> tuple[bool, str]:
    """Whether a setting is back, and what to say. `told`: what the host tells of it afterwards (None for a lock, which
    no driver tells, or where it could not be asked); `failed`: from `failure`."""
    value = wanted_back(before)
    if failed and not equal(setting, told, value):
        return False, failed
    if setting in LOCKS:
        message = "reset to the driver's default" if value == DEFAULT else "locked again as before"
        if before == UNKNOWN:
            message += ": what was before is not known, since another's lock cannot be read"
        return True, message
    if not equal(setting, told, value):
        return False, no_effect(setting, value, told)
    return True, "as it was before"


def no_effect(setting: str, value: Any, told: Any) -> str:
    """Success was reported and something else is told."""
    says = "nothing" if told is None else shown(told)
    if setting == "governor":
        return f"the write was accepted, but the cores say {says}, not {shown(value)}"
    text = f"nvidia-smi reported success, but the driver says {says}, not {shown(value)}"
    if setting == "persistence":
        text += " (in a container it reads off unless the nvidia-persistenced socket is mounted)"
    return text


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g} W" if isinstance(value, (int, float)) else str(value)


def by_hand(uuid: str, setting: str, value: Any, sysfs: str = SYSFS) -> str:
    """What a person types to set `value`; "unknown" gives the driver's default."""
    typed = []
    for step in steps(uuid, setting, wanted_back(value), cores=(), sysfs=sysfs):
        if step.stdin is None:
            typed.append(shlex.join(("sudo", *step.argv)))
            continue
        files = shlex.join(step.argv[1:]) or _all_cores(sysfs)
        typed.append(f"echo {shlex.quote(step.stdin.strip())} | sudo tee {files}")
    return " && ".join(typed)


def heats(setting: str, now: Any, back: Any, top_mhz: float | None) -> bool:
    """Whether going from `now` to `back` lets a GPU run cooler. `top_mhz`: the highest clock of a lock's kind; where it
    is not known, the driver's default may be higher than any lock."""
    if setting == "power_limit_w":
        return bool(now - back > WATTS_EQUAL)
    if setting not in LOCKS:
        return False
    return _heat_of(wanted_back(back), top_mhz) < _heat_of(now, top_mhz)


def _heat_of(lock: str, top_mhz: float | None) -> tuple[float, float]:
    """Ceiling and floor of a lock, to be compared."""
    top = math.inf if top_mhz is None else top_mhz
    low, _, high = ("0", "", top) if lock in (DEFAULT, UNKNOWN) else lock.partition(",")
    return min(float(high), top), min(float(low), top)


def gone(entry: Mapping[str, Any], boot_id: str, energy_j: float | None = None) -> str | None:
    """Why a journalled setting is no longer in force: settings end with the boot, and with the driver, whose energy
    counter (`energy_j` now) starts again from 0: less than half. A little less is a reading of before the change."""
    if entry["boot_id"] != boot_id:
        return "the host was restarted"
    then = entry.get("energy_j")
    if then is not None and energy_j is not None and energy_j < then / 2:
        return "the driver was reloaded"
    return None


# ---- what stands in a journal


def unfit(entry: Any) -> str | None:
    """What in an entry of a journal no Workbench writes. By such a file nothing is set: root may be who reads it."""
    try:
        setting, uuid, owner, watch = entry["setting"], entry["gpu_uuid"], entry["owner"], entry.get("watch") or {}
        if setting not in ORDER or not (uuid == HOST if setting == "governor" else _UUID.fullmatch(uuid)):
            return f"{setting!r} of {uuid!r}"
        if wrong := [value for value in (entry["before"], entry["now"]) if not fit(setting, value)]:
            return f"{setting} {wrong[0]!r}"
        if not all(_OWNER.fullmatch(str(owner.get(part, ""))) for part in ("boot_id", "pid", "start")):
            return f"owner {owner!r}"
        if wrong := [value for value in entry.get("over") or () if not fit(setting, value)]:
            return f"over {wrong[0]!r}"
        if entry.get("set_unix_s") is not None and not is_number(entry["set_unix_s"]):
            return "set_unix_s"
        if not isinstance(entry["gpu_index"], int) or not isinstance(entry["boot_id"], str):
            return "gpu_index or boot_id"
        trial, seconds = watch.get("trial"), [watch.get("heartbeat_s")]
        seconds += [watch["trial_s"]] if trial else []
        if not isinstance(trial, (str, type(None))) or not all(s is None or (is_number(s) and s > 0) for s in seconds):
            return f"watch {watch!r}"
        back = watch.get("back")
        return unfit({**entry, **back, "state": back["state"]}) if back else None
    except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        return repr(error)


def fit(setting: str, value: Any) -> bool:
    """Whether `value` can be one of `setting`'s."""
    if setting == "persistence":
        return isinstance(value, bool)
    if setting == "power_limit_w":
        return is_number(value) and 0 < value < _MOST_W
    if not isinstance(value, str):
        return False
    if setting == "governor":
        words = value.split()
        whole = len(words) == 1 or all("=" in word for word in words)
        return bool(words) and whole and all(_GOVERNOR.fullmatch(word) for word in words)
    return bool(_CLOCKS.fullmatch(value))


def is_number(value: Any) -> bool:
    """Whether it is a finite number; an integer that no float can hold is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def plain(data: Any) -> bool:
    """Whether the guard's state, which other programs of its user can write, holds only numbers that can be a time, a
    process or a measured value. `journal`, the stamp of a file, is compared and never shown."""
    if isinstance(data, dict):
        return all(plain(value) for name, value in data.items() if name != "journal")
    if isinstance(data, list):
        return all(map(plain, data))
    return not isinstance(data, (int, float)) or abs(data) < 1e12


# ---- the governors of the cores


def governor_value(by_core: Mapping[int, str]) -> str | None:
    """{0: "powersave", 1: "powersave"} as "powersave"; cores that differ are named. None without any."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(by_core):
        cores.setdefault(by_core[cpu], []).append(cpu)
    if len(cores) < 2:
        return next(iter(cores), None)
    return " ".join(f"{name}={_ranges(cores[name])}" for name in sorted(cores))


def split_governor(value: str) -> dict[str, tuple[int, ...]]:
    """The cores of each governor in a value; no cores: all. ValueError when it is none."""
    found: dict[str, tuple[int, ...]] = {}
    for word in str(value).split():
        name, _, cores = word.partition("=")
        found[name] = tuple(_numbers(cores)) if cores else ()
    if not found or (len(found) > 1 and not all(found.values())):
        raise ValueError(f"no governor: {value!r}")
    return found


def cut_off(setting: str, told: Any, now: Any, before: Any) -> bool:
    """Whether a change from `before` to `now`, or its revert, ended between two cores: each has one or the other."""
    if setting != "governor" or told is None:
        return False
    by_core = {cpu: name for name, cores in split_governor(str(told)).items() for cpu in cores}
    ends = [split_governor(str(value)) for value in (now, before)]
    return bool(by_core) and all(
        any(name in end and (not end[name] or cpu in end[name]) for end in ends) for cpu, name in by_core.items()
    )


def _governors_equal(told: str, value: str) -> bool:
    now, wanted = split_governor(told), split_governor(value)
    if len(now) == 1:
        return list(now) == list(wanted)  # all cores have it
    by_core = {cpu: name for name, cores in now.items() for cpu in cores}
    if len(wanted) == 1 and not all(wanted.values()):
        return False
    return all(by_core.get(cpu, name) == name for name, cores in wanted.items() for cpu in cores)


def _all_cores(sysfs: str) -> str:
    root, star, rest = GOVERNOR_FILES.format(root=shlex.quote(sysfs), cpu="*").partition("*")
    return root + star + rest


def _ranges(numbers: Iterable[int]) -> str:
    """0,1,2,5 as "0-2,5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _numbers(ranges: str) -> list[int]:
    found: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found
