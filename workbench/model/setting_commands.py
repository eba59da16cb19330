"""The settings as programs on a GPU host use them: for each setting the commands that change it,
the check and comparison of its values, and their text for the user.

Workbench imports this module and also sends it to hosts, with the guard and the register. So it
uses only the standard library and Python 3.8. model/settings.py has the full table, with options
and forms; a test compares the two.

Functions accept values as objects of model/settings.py or as JSON stores them; `str` gives equal
text for both. A value is True or False, a number, "MIN,MAX" in MHz, "default" (no clock lock) or
"unknown" (a lock of another program). The values of CPU-core settings are described in
core_values.py.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from workbench.model import core_values
from workbench.model.named_tuple import NamedTuple
from workbench.model.untrusted_numbers import (
    MOST_GPUS,
    RANGES,
    integer_or_none,
    is_number,
    number_for_field,
    number_or_none,
    parse_decimal,
    range_of_field,
    why_number_is_impossible,
)

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

# Of the journal's file and of the register's. Raise it if the meaning of a field changes: a program
# does not read a higher number. A new field that older programs may ignore needs no new number,
# because they keep and pass on what they do not know. Since 2, programs do so.
JOURNAL_VERSION = 2
REGISTER_PREFIX = "workbench-gpu."  # of the names of the register's files
RELOADED = "the driver was reloaded"
HOST = "host"  # in place of a UUID, as in model/settings.py
DEFAULT = "default"
UNKNOWN = "unknown"
PENDING = (
    "pending"  # state of an entry while its change is carried out: model/unconfirmed_changes.py
)
APPLIED = "applied"
LEFT_TO = "left to "  # beginning of the state of an entry, before the name of a user
WATTS_EQUAL = 0.5  # drivers round a power limit
MOST_W = 10_000
DIGIT = "[0-9]"
SYSFS = "/sys"
GOVERNOR_FILES = "{root}/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
C_STATE_FILES = "{root}/devices/system/cpu/cpu{cpu}/cpuidle/state{state}/disable"
FAILED = re.compile(
    r"treating as warning|not supported|insufficient permissions|does not have "
    r"permission|terminating early|"
    r"unable to|failed|invalid|is not a valid|gpu is lost|unknown error|no devices were "
    r"found|password is required|"
    r"incorrect password|not allowed to",
    re.IGNORECASE,
)
_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/_-]{1,80}")
_CLOCKS = re.compile(r"\d{1,5},\d{1,5}|default|unknown", re.ASCII)
_CORES = r"(=\d{1,4}([-,]\d{1,4})*)?"
_GOVERNOR = re.compile(r"[a-z_]{1,32}" + _CORES, re.ASCII)
_C_STATES = re.compile(r"(on|off(:\d{1,2}([-,]\d{1,2})*)?)" + _CORES, re.ASCII)
_OWNER = re.compile(r"[A-Za-z0-9_-]*")
_MOST_STATES = 100


class SettingStep(NamedTuple):
    """One command, without sudo, that changes a setting. `value` is the value that the command
    sets, and `stdin` the command's input."""

    argv: tuple[str, ...]
    value: Any
    stdin: str | None = None


# ---- the table


class RemoteSetting:
    """One setting: how it is set, which values are valid, and how they are compared. `query` is the
    field of nvidia-smi's --query-gpu that reads the value back; "" if there is none."""

    label = query = ""
    readable = True
    cools = False  # a low value can keep the GPU cooler
    # a claim may be of a user without the right to set it, and the value does not show it
    easily_forged = False

    def argv(self, value: Any) -> tuple[str, ...]:
        """Return nvidia-smi's arguments after `-i UUID` that set `value`. Raises KeyError for a
        setting that nvidia-smi cannot change."""
        raise KeyError(self.label)

    def sudoers_patterns(self) -> Iterator[str]:
        """Yield a pattern for sudoers(5) for each form that the arguments `argv` can have, and for
        no others. Nothing is yielded for a setting that nvidia-smi cannot change."""
        return iter(())

    def is_valid(self, value: Any) -> bool:
        """Return whether `value` is a valid value of this setting, as a journal of Workbench
        contains it."""
        raise KeyError(self.label)

    def parse_answer(self, text: str) -> Any:
        """Parse the text that nvidia-smi prints for the field `query` to the setting's value; None
        if the text is not a value."""
        return None

    def values_equal(self, found: Any, value: Any) -> bool:
        return bool(found == value)

    def format(self, value: Any) -> str:
        return str(value)

    def allows_more_heat(self, value: Any, other_value: Any, highest_mhz: float) -> bool:
        """Return whether `value` of this setting can make a GPU hotter than `other_value`
        does. `highest_mhz` is the GPU's highest clock."""
        return False


class _ClockLock(RemoteSetting):
    readable = False
    easily_forged = True
    cools = True

    def __init__(
        self, label: str, which: str, low_digits: Sequence[int], high_digits: Sequence[int]
    ) -> None:
        self.label, self.which = label, which
        # of a lock's numbers
        self.digits = list(product(low_digits, high_digits))

    def argv(self, value: Any) -> tuple[str, ...]:
        if value == DEFAULT:
            return (f"--reset-{self.which}-clocks",)
        return (f"--lock-{self.which}-clocks={value}",)

    def sudoers_patterns(self) -> Iterator[str]:
        for low, high in self.digits:
            yield rf"--lock-{self.which}-clocks\={DIGIT * low}\,{DIGIT * high}"
        yield f"--reset-{self.which}-clocks"

    def is_valid(self, value: Any) -> bool:
        return isinstance(value, str) and bool(_CLOCKS.fullmatch(value))

    def values_equal(self, found: Any, value: Any) -> bool:
        return str(found) == str(value)

    def format(self, value: Any) -> str:
        low, comma, high = str(value).partition(",")
        if not comma:
            return str(value)
        return f"{low} MHz" if low == high else f"{low}-{high} MHz"

    def allows_more_heat(self, value: Any, other_value: Any, highest_mhz: float) -> bool:
        return self._highest_and_lowest_mhz(
            other_value, highest_mhz
        ) < self._highest_and_lowest_mhz(value, highest_mhz)

    def _highest_and_lowest_mhz(self, lock: Any, highest_mhz: float) -> tuple[float, float]:
        """Return (highest, lowest) clock of a lock, at most `highest_mhz`. Without a lock, these
        are `highest_mhz` and 0."""
        low, comma, high = str(lock).partition(",")
        if not comma:
            return highest_mhz, 0.0
        return min(float(high), highest_mhz), min(float(low), highest_mhz)


class _PowerLimit(RemoteSetting):
    label, query = "power limit", "power.limit"
    cools = True
    easily_forged = True  # two users may claim an equal limit

    def argv(self, value: Any) -> tuple[str, ...]:
        return ("-pl", f"{value:.2f}".rstrip("0").rstrip("."))

    def sudoers_patterns(self) -> Iterator[str]:
        for digits in (2, 3, 4):
            for part in ("", f".{DIGIT}", f".{DIGIT * 2}"):
                yield f"-pl {DIGIT * digits}{part}"

    def is_valid(self, value: Any) -> bool:
        return is_finite_number(value) and 0 < value < MOST_W

    def parse_answer(self, text: str) -> Any:
        return parse_decimal(text.strip(), 0, MOST_W)

    def values_equal(self, found: Any, value: Any) -> bool:
        if not is_finite_number(found):
            return False
        return is_finite_number(value) and abs(found - value) <= WATTS_EQUAL

    def format(self, value: Any) -> str:
        if not is_finite_number(value):
            return str(value)
        return f"{value:g} W"

    def allows_more_heat(self, value: Any, other_value: Any, highest_mhz: float) -> bool:
        return bool(value - other_value > WATTS_EQUAL)


class _Persistence(RemoteSetting):
    label, query = "persistence mode", "persistence_mode"

    def argv(self, value: Any) -> tuple[str, ...]:
        return ("-pm", "1" if value else "0")

    def sudoers_patterns(self) -> Iterator[str]:
        yield "-pm [01]"

    def is_valid(self, value: Any) -> bool:
        return isinstance(value, bool)

    def parse_answer(self, text: str) -> Any:
        return {"enabled": True, "disabled": False}.get(text.strip().lower())

    def values_equal(self, found: Any, value: Any) -> bool:
        return found is value

    def format(self, value: Any) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        return str(value)


class CoreWrite(NamedTuple):
    """A command that writes `text` to `files` in sysfs. `value` is the part of the setting's value
    that it sets, such as "powersave=0-3"."""

    value: str
    text: str
    files: list[str]


class _CoreSetting(RemoteSetting):
    """A setting of the CPU cores. It is set by writing to files of sysfs with `tee`, not by
    nvidia-smi. The cores of a host are given as {core: number of its idle states}."""

    word = _GOVERNOR  # one value, with or without its cores

    def is_valid(self, value: Any) -> bool:
        if not isinstance(value, str):
            return False
        words = value.split()
        if len(words) > 1 and not all("=" in word for word in words):
            return False
        return bool(words) and all(map(self.word.fullmatch, words))

    def values_equal(self, found: Any, value: Any) -> bool:
        try:
            return core_values.core_values_match(str(found), str(value))
        except ValueError:
            # "mixed: powersave 30, performance 2", as the agent counts values that differ
            return str(found) == str(value)

    def sysfs_files(self, cores: Mapping[int, int], sysfs: str) -> list[str]:
        """Return all files of sysfs that hold the setting."""
        raise KeyError(self.label)

    def list_core_writes(
        self, value: str, cores: Mapping[int, int], sysfs: str
    ) -> Iterator[CoreWrite]:
        """Yield one write for each command that is needed to set the CPU cores to `value`. `cores`
        has the number of idle states of each core, and `sysfs` is the directory of sysfs."""
        raise KeyError(self.label)

    def list_manual_texts_and_files(
        self, value: str, cores: Sequence[object], root: str
    ) -> Iterator[tuple[str, str]]:
        """Yield (text, files) for each shell command that the user can enter to set `value` on
        `cores`: `echo text | sudo tee files`. `cores` are core numbers, or "*" for all cores;
        `root` is the directory of sysfs."""
        raise KeyError(self.label)

    def is_possible_during_change(self, found: str, one: str, other: str) -> bool:
        """Return whether a core can have the value `found` in the middle of a change of this
        setting from the value `one` to the value `other`."""
        return found in (one, other)


class _Governor(_CoreSetting):
    label = "CPU governor"

    def sysfs_files(self, cores: Mapping[int, int], sysfs: str) -> list[str]:
        return [GOVERNOR_FILES.format(root=sysfs, cpu=cpu) for cpu in cores]

    def list_core_writes(
        self, value: str, cores: Mapping[int, int], sysfs: str
    ) -> Iterator[CoreWrite]:
        for name, named in core_values.parse_core_values(value).items():
            part = f"{name}={core_values.format_number_ranges(named)}" if named else name
            yield CoreWrite(part, name, self.sysfs_files(dict.fromkeys(named, 0) or cores, sysfs))

    def list_manual_texts_and_files(
        self, value: str, cores: Sequence[object], root: str
    ) -> Iterator[tuple[str, str]]:
        yield value, " ".join(GOVERNOR_FILES.format(root=root, cpu=cpu) for cpu in cores)


class _CStates(_CoreSetting):
    """The idle states of the CPU cores that the kernel may use, as `cpupower idle-set` sets
    them."""

    label, word = "CPU C-states", _C_STATES

    def sysfs_files(self, cores: Mapping[int, int], sysfs: str) -> list[str]:
        return [
            C_STATE_FILES.format(root=sysfs, cpu=cpu, state=state)
            for cpu, count in cores.items()
            for state in range(count)
        ]

    def list_core_writes(
        self, value: str, cores: Mapping[int, int], sysfs: str
    ) -> Iterator[CoreWrite]:
        by_text: dict[str, list[str]] = {"0": [], "1": []}
        for name, named in core_values.parse_core_values(value).items():
            for cpu in named or cores:
                for state, file in enumerate(self.sysfs_files({cpu: cores.get(cpu, 0)}, sysfs)):
                    is_off = core_values.is_idle_state_off(name, state)
                    by_text[self._disable_file_text(is_off)].append(file)
        written = [CoreWrite(value, text, files) for text, files in by_text.items() if files]
        nothing = CoreWrite(value, self._disable_file_text(value == core_values.OFF), [])
        yield from written or [nothing]

    @staticmethod
    def _disable_file_text(is_off: bool) -> str:
        """Return the text of the file `disable` of an idle state."""
        return "1" if is_off else "0"

    def list_manual_texts_and_files(
        self, value: str, cores: Sequence[object], root: str
    ) -> Iterator[tuple[str, str]]:
        states: Sequence[object] = "*"
        if ":" in value:
            states = core_values.parse_number_ranges(value.partition(":")[2]) or "*"
        if value != core_values.OFF:
            yield "0", self._files_of_states(cores, "*", root)
        if value != core_values.ON:
            yield "1", self._files_of_states(cores, states, root)

    @staticmethod
    def _files_of_states(cores: Sequence[object], states: Sequence[object], root: str) -> str:
        return " ".join(
            C_STATE_FILES.format(root=root, cpu=cpu, state=state)
            for cpu in cores
            for state in states
        )

    def is_possible_during_change(self, found: str, one: str, other: str) -> bool:
        for state in range(_MOST_STATES):
            ends = (
                core_values.is_idle_state_off(one, state),
                core_values.is_idle_state_off(other, state),
            )
            if core_values.is_idle_state_off(found, state) not in ends:
                return False
        return True


# In the order of reverting. Locks first and persistence after them, so that persistence still keeps
# the driver loaded while the locks matter; the host's own settings last.
SETTINGS: dict[str, RemoteSetting] = {
    "gpu_clocks": _ClockLock("GPU clocks", "gpu", (1, 3, 4), (3, 4)),
    "memory_clocks": _ClockLock("memory clocks", "memory", (1, 3, 4, 5), (3, 4, 5)),
    "power_limit_w": _PowerLimit(),
    "persistence": _Persistence(),
    "governor": _Governor(),
    "c_states": _CStates(),
}
_NO_CORES: Mapping[int, int] = {}
LOCKS = tuple(key for key, setting in SETTINGS.items() if not setting.readable)
OF_CORES = tuple(key for key, setting in SETTINGS.items() if isinstance(setting, _CoreSetting))
COOLING = tuple(key for key, setting in SETTINGS.items() if setting.cools)


def is_clock_lock(key: str) -> bool:
    """Return whether the setting is a clock lock, which cannot be read back from the driver."""
    return key in LOCKS


def value_equals(key: str, found: Any, value: Any) -> bool:
    """Return whether the host's value `found` of the setting `key` equals `value`. False if `found`
    is None. Cores that no longer have the setting are not compared."""
    return found is not None and SETTINGS[key].values_equal(found, value)


def value_text(key: str, value: Any) -> str:
    """Return a value as the user reads it: "400 W", "210-2400 MHz", "on", "unknown"."""
    return SETTINGS[key].format(value)


def setting_label(key: str) -> str:
    return SETTINGS[key].label


def revert_position(key: str) -> int:
    """Return the position of the setting `key` in the order in which settings are reverted. A key
    that is no setting comes last."""
    if key not in SETTINGS:
        return len(SETTINGS)
    return list(SETTINGS).index(key)


# ---- commands and their answers


def commands_to_set_value(
    uuid: str,
    key: str,
    value: Any,
    *,
    nvidia_smi: str = "nvidia-smi",
    tee: str = "tee",
    cores: Mapping[int, int] = _NO_CORES,
    sysfs: str = SYSFS,
) -> tuple[SettingStep, ...]:
    """Return the commands that set the setting `key` to `value`: one command, or several if the
    cores differ.

    The GPU is named by its UUID, because indices change. `cores` are the cores of the host that
    have the setting, each with the number of its idle states.
    """
    setting = SETTINGS[key]
    if not isinstance(setting, _CoreSetting):
        return (SettingStep((nvidia_smi, "-i", uuid, *setting.argv(value)), value),)
    written = setting.list_core_writes(str(value), cores, sysfs)
    return tuple(SettingStep((tee, *files), part, text + "\n") for part, text, files in written)


def list_core_setting_files(key: str, cores: Mapping[int, int], sysfs: str = SYSFS) -> list[str]:
    """Return all files of sysfs that hold a setting of the CPU cores; an empty list for a setting
    of a GPU."""
    setting = SETTINGS[key]
    if not isinstance(setting, _CoreSetting):
        return []
    return setting.sysfs_files(cores, sysfs)


def value_to_restore(before: Any) -> Any:
    """Return the value that a revert sets: `before`, or the driver's default if `before` is
    "unknown", a clock lock that another program had set."""
    if before != UNKNOWN:
        return before
    return type(before)(DEFAULT)


def why_command_failed(returncode: int, output: str, program: str = "nvidia-smi") -> str | None:
    """Return why a command failed, as one line; None if it succeeded. A command with exit code 0
    has failed too if it is nvidia-smi and its `output` says so: nvidia-smi exits 0 for a setting
    that is not supported ("Treating as warning and moving on")."""
    output = " ".join(output.split())
    if returncode != 0:
        return output or f"{program} ended with {returncode}"
    if program == "nvidia-smi" and FAILED.search(output):
        return output
    return None


def was_restored_and_message(
    key: str, before: Any, found: Any, error: str | None
) -> tuple[bool, str]:
    """Return (whether a revert has restored the setting `key`, message for the user). `before` is
    the value to restore, and `found` the host's value after the revert; `found` is None for a clock
    lock and if the host did not answer. `error` is why the command failed; None if it succeeded. A
    failed command has restored the setting if `found` is the value to restore."""
    value = value_to_restore(before)
    if error and not value_equals(key, found, value):
        return False, error
    if is_clock_lock(key):
        message = "reset to the driver's default" if value == DEFAULT else "locked again as before"
        if before == UNKNOWN:
            message += (
                ": the previous lock is unknown, since another program's lock cannot be read back"
            )
        return True, message
    if found is None:
        return False, "accepted, but the value cannot be read back now"
    if not value_equals(key, found, value):
        return False, message_of_ineffective_command(key, value, found)
    return True, "as it was before"


def message_of_ineffective_command(key: str, value: Any, found: Any) -> str:
    """Return the message for a command that reported success although the host reports another
    value."""
    says = value_text(key, found)
    if key in OF_CORES:
        return f"the write was accepted, but the cores report {says}, not {value_text(key, value)}"
    text = (
        f"nvidia-smi reported success, but the driver reports {says}, not {value_text(key, value)}"
    )
    if key == "persistence":
        text += " (in a container it reads off unless the nvidia-persistenced socket is mounted)"
    return text


def shell_command_to_set(uuid: str, key: str, value: Any, sysfs: str = SYSFS) -> str:
    """Return the shell command that the user can enter to set `value`: several commands joined by
    "&&" if the CPU cores differ. For the value "unknown", it sets the driver's default."""
    setting, value = SETTINGS[key], value_to_restore(value)
    if not isinstance(setting, _CoreSetting):
        steps = commands_to_set_value(uuid, key, value)
        return " && ".join(shlex.join(("sudo", *step.argv)) for step in steps)
    root, typed = shlex.quote(sysfs), []
    for one, cores in core_values.parse_core_values(str(value)).items():
        for text, files in setting.list_manual_texts_and_files(one, cores or "*", root):
            typed.append(f"echo {shlex.quote(text)} | sudo tee {files}")
    return " && ".join(typed)


def value_allows_more_heat(
    key: str, value: Any, other_value: Any, highest_mhz: float | None
) -> bool:
    """Return whether `value` of a setting can make a GPU hotter than `other_value` does. If so, a
    change from `value` to `other_value` cools the GPU.

    `highest_mhz` is the highest SM clock for a lock of the SM clock, and the highest memory clock
    for a lock of that clock. If it is None, the driver's default counts as higher than any lock.
    """
    if highest_mhz is None:
        highest_mhz = math.inf
    return SETTINGS[key].allows_more_heat(value, value_to_restore(other_value), highest_mhz)


def why_setting_has_no_effect(
    entry: Mapping[str, Any],
    boot_id: str,
    energy_j: float | None = None,
    driver_start: str | None = None,
) -> str | None:
    """Return why a setting in the journal has no effect any more: "the host was restarted" or "the
    driver was reloaded". None if it may still have its effect.

    `driver_start` is the number of the driver's kernel module now (`Journal.driver_start`), which
    is another after a reload; None if unknown. If it is unknown now or in the entry, `energy_j`
    decides: the GPU's energy counter now, None if unknown. A reload of the driver resets the
    counter to 0. So the driver counts as reloaded if the counter is below half of the value in the
    journal.
    """
    if entry["boot_id"] != boot_id:
        return "the host was restarted"
    start, then_j = entry.get("driver_start"), entry.get("energy_j")
    if start is not None and driver_start is not None:
        return RELOADED if start != driver_start else None
    if then_j is not None and energy_j is not None and energy_j < then_j / 2:
        return RELOADED
    return None


# ---- entries of a journal


def user_setting_is_left_to(entry: Mapping[str, Any]) -> str:
    """Return the name of the user to whom a revert has left the setting of the journal entry
    `entry`, because that user claims to have set it since. "" if it is left to nobody."""
    state = str(entry.get("state"))
    if not state.startswith(LEFT_TO):
        return ""
    return state[len(LEFT_TO) :]


def describe_invalid_part_of_entry(entry: Any) -> str | None:
    """Return a description of the first invalid part of a journal entry; None if the entry is
    valid. Workbench never reverts an invalid entry, because the guard may run as root and other
    programs can write the journal."""
    try:
        setting, uuid, owner = entry["setting"], entry["gpu_uuid"], entry["owner"]
        if not _is_target_of_setting(setting, uuid):
            return f"{setting!r} of {uuid!r}"
        values = [(setting, entry["before"]), (setting, entry["now"])]
        values += [("over", value) for value in entry.get("over") or ()]
        for name, value in values:
            if not SETTINGS[setting].is_valid(value):
                return f"{name} {value!r}"
        for part in ("boot_id", "pid", "start"):
            if not _OWNER.fullmatch(str(owner.get(part, ""))):
                return f"owner {owner!r}"
        for name in ("since_unix_s", "set_unix_s", "energy_j"):
            number = entry.get(name)
            if number is not None and number_for_field(name, number) is None:
                return f"{name}: {why_number_is_impossible(number, *range_of_field(name))}"
        if integer_or_none(entry["gpu_index"], -1, MOST_GPUS - 1) is None:
            return "gpu_index"
        if not isinstance(entry["boot_id"], str):
            return "boot_id"
        for name in (
            "state",
            "who",
            "gpu_name",
            "before_known",
            "origin",
            "driver",
            "driver_start",
        ):
            if not isinstance(entry.get(name), (str, type(None))):
                return f"{name} {entry[name]!r}"[:200]
        watch = entry.get("watch") or {}
        if not _is_valid_watch(watch):
            return f"watch {watch!r}"
        for other in filter(None, (watch.get("back"), entry.get("earlier"))):
            whole = {**entry, "earlier": None, **other, "state": other["state"]}
            wrong_part = describe_invalid_part_of_entry(whole)
            if wrong_part is not None:
                return wrong_part
        return None
    except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        return repr(error)


def _is_target_of_setting(setting: Any, uuid: Any) -> bool:
    """Return whether `uuid` can name what has this setting: HOST for a setting of the CPU cores,
    otherwise the UUID of a GPU. False if there is no such setting."""
    if setting in OF_CORES:
        return bool(uuid == HOST)
    return setting in SETTINGS and bool(_UUID.fullmatch(uuid))


def _is_valid_watch(watch: Any) -> bool:
    """Return whether the part `watch` of a journal entry has valid times and a text or nothing as
    its trial."""
    trial, seconds = watch.get("trial"), [watch.get("heartbeat_s")]
    if trial:
        seconds.append(watch["trial_s"])
    if not isinstance(trial, (str, type(None))):
        return False
    return all(s is None or number_or_none(s, 0.0, RANGES["s"][1]) for s in seconds)


def is_finite_number(value: Any) -> bool:
    """Return whether `value` is a finite number, and not an integer too large for a float."""
    return is_number(value) and abs(value) <= sys.float_info.max


def has_only_bounded_numbers(data: Any) -> bool:
    """Return whether every number in the guard's state file is below 1e12. Times, process ids and
    measured values are, but other programs of the user could write larger numbers to the file. The
    field `journal` is not checked, because it is only compared."""
    if isinstance(data, dict):
        return all(
            has_only_bounded_numbers(value) for name, value in data.items() if name != "journal"
        )
    if isinstance(data, list):
        return all(map(has_only_bounded_numbers, data))
    return not isinstance(data, (int, float)) or abs(data) < 1e12


# ---- the CPU cores


def was_core_change_interrupted(key: str, present_value: Any, after: Any, before: Any) -> bool:
    """Return whether a change of a CPU-core setting from `before` to `after`, or its revert, may
    have stopped before it reached all cores: each core has a value that such a change can leave
    behind. `present_value` is the setting's present value, None if it cannot be read. False for
    None and for a setting of a GPU."""
    setting = SETTINGS[key]
    if not isinstance(setting, _CoreSetting) or present_value is None:
        return False
    by_core = {}  # the last value of a core that is named twice: it is also written last
    try:
        for value, cores in core_values.parse_core_values(str(present_value)).items():
            by_core.update(dict.fromkeys(cores, value))
    except ValueError:
        return False
    ends = [core_values.parse_core_values(str(value)) for value in (after, before)]
    for cpu, value in by_core.items():
        if not _is_core_value_during_change(setting, cpu, value, ends):
            return False
    return bool(by_core)


def _is_core_value_during_change(
    setting: _CoreSetting, cpu: int, value: str, ends: Sequence[Mapping[str, Sequence[int]]]
) -> bool:
    """Return whether the core number `cpu` can have `value` in the middle of a change between the
    two `ends`, each as {value: cores}."""
    one, other = ([v for v, cores in end.items() if not cores or cpu in cores] for end in ends)
    return any(
        setting.is_possible_during_change(value, a, b) for a in one or other for b in other or one
    )
