"""GPU settings: the table of all settings, and the Python types of their values.

`SETTINGS` is the list of settings; command-line options, forms, sweeps and checks iterate over it.
The command, the label, the text and the comparison of each setting are in setting_commands.py,
which programs on a host use too.

A setting has three names: the user enters `name` ("power-limit") and reads `label` ("power limit").
Files and results contain `key`, with the unit ("power_limit_w").
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from workbench.model import core_values, setting_commands
from workbench.model.errors import InputError
from workbench.model.gpu import GpuInfo, GpuSample, Telemetry
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import is_number

HOST = setting_commands.HOST  # `gpu_uuid` of a setting of the host itself
HOST_INDEX = -1


# -- values ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockRange:
    """A clock lock in MHz. `str` gives "210,2400", the form that nvidia-smi, the journal and the
    results use."""

    min_mhz: int
    max_mhz: int

    def __str__(self) -> str:
        return f"{self.min_mhz},{self.max_mhz}"


class SpecialValue(StrEnum):
    """A value that is not a number: DEFAULT is the driver's default, UNKNOWN a clock lock of
    another program, whose clocks cannot be read."""

    DEFAULT = setting_commands.DEFAULT
    UNKNOWN = setting_commands.UNKNOWN


DEFAULT, UNKNOWN = SpecialValue.DEFAULT, SpecialValue.UNKNOWN
Watts: TypeAlias = float
CoreValue: TypeAlias = str  # "powersave", or "powersave=0-3 performance=4-7" if the cores differ
SettingValue: TypeAlias = bool | Watts | ClockRange | CoreValue | SpecialValue


def value_to_store(value: SettingValue | None) -> Any:
    """Return a setting's value in the form in which Workbench writes it to files: as a bool, a
    number, a string or None."""
    if isinstance(value, ClockRange | SpecialValue):
        return str(value)
    return value


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(ABC):
    """One GPU setting: its names and texts, and how its value is parsed, read and checked under
    load.

    `reading` is the field of GpuSample (of HostSample if `of_host`) with the current value; None if
    the driver cannot report it. `proof` says which reading shows that the setting has its effect:
    "power" or "clock" under load, or "reading", the current value itself. `preset_field` is its
    name in a preset's `[[gpu_settings]]`.
    """

    name: str
    key: str
    help: str
    metavar: str
    unit: str = ""
    choices: tuple[str, ...] = ()  # all values that the user can type, if there are few
    aliases: tuple[str, ...] = ()  # further names of the option
    # names in earlier versions, still accepted in an experiment's arms
    former: tuple[str, ...] = ()
    # option that resets the setting to the driver's default; "" if there is none
    reset_name: str = ""
    of_host: bool = False
    reading: str | None = None
    proof: Literal["power", "clock", "reading"] = "reading"
    preset_field: str = ""
    sweep_values: str = ""  # suggested values of a sweep; "" if the setting cannot be swept
    # lost when the last program that uses the GPU ends, without persistence mode
    needs_persistence: bool = False

    @property
    def command_line_names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases, *self.former)

    @property
    def label(self) -> str:
        return setting_commands.setting_label(self.key)

    def parse(self, text: str) -> SettingValue:
        """Parse a value that the user entered. "reset" gives DEFAULT if the setting can be reset.
        Raises InputError if `text` is not a value of this setting."""
        if self.reset_name and text.strip().lower() in ("reset", DEFAULT):
            return DEFAULT
        return self.parse_value(text)

    @abstractmethod
    def parse_value(self, text: str) -> SettingValue:
        """Parse a value that the user entered, other than "reset". Raises InputError if `text` is
        not a value of this setting."""

    def from_stored(self, value: Any) -> SettingValue:
        """Convert a value from a journal, result or preset to its Python type, such as ClockRange.
        Raises ValueError or TypeError if it is not a value of this setting."""
        if self.reset_name and value in (DEFAULT, UNKNOWN):
            return SpecialValue(value)
        return self.value_from_stored(value)

    @abstractmethod
    def value_from_stored(self, value: Any) -> SettingValue:
        """Convert a value from a journal, result or preset, other than "default" and "unknown", to
        its Python type, such as ClockRange. Raises ValueError or TypeError if it is not a value of
        this setting."""

    def format(self, value: SettingValue | None) -> str:
        """Return `value` as the user reads it, for example "400 W", "210-2400 MHz" or "on"; "none"
        for None."""
        if value is None:
            return "none"
        return setting_commands.value_text(self.key, value)

    def input_text(self, value: SettingValue) -> str:
        """Return `value` as the user enters it, for example "400", "210-2400" or "reset"."""
        return "reset" if isinstance(value, SpecialValue) else str(value)

    def allowed_values_text(self, infos: Sequence[GpuInfo]) -> str | None:
        """Return the values of this setting that all these GPUs accept, such as "300..600 W". None
        if no GPU reports them."""
        return self.metavar

    def driver_default(self, info: GpuInfo | None) -> SettingValue | None:
        """Return the driver's default for this setting on one GPU. None if the driver does not
        report it, and for a setting of the CPU cores."""
        return DEFAULT

    def current_value(self, telemetry: Telemetry, uuid: str) -> SettingValue | None:
        """Return the current value of this setting on the GPU whose UUID is `uuid`. For a setting
        of the host, return the host's value. None if the value cannot be read, as for a clock lock.
        """
        if self.reading is None:
            return None
        source: object = (
            telemetry.host if self.of_host else find_readable_gpu_sample(telemetry, uuid)
        )
        found: SettingValue | None = getattr(source, self.reading, None)
        return found

    def value_in_force(self, sample: GpuSample) -> SettingValue | None:
        """Return the value of this setting that applies on a GPU now. None if it cannot be read, as
        for a clock lock."""
        if self.reading is None:
            return None
        found: SettingValue | None = getattr(sample, self.reading)
        return found

    def input_error(self, text: str, problem: str) -> InputError:
        return InputError(
            f"{self.label}: {text!r} is not valid, {problem}",
            next_step=f"give a value, for example {self.name} {self.example}",
        )

    @property
    def example(self) -> str:
        """Return a valid value of this setting, in the form in which the user types it."""
        return self.sweep_values.partition(",")[0] or self.metavar.partition("|")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSetting(Setting):
    """A setting that is on or off."""

    metavar: str = "on|off"
    choices: tuple[str, ...] = ("on", "off")

    def parse_value(self, text: str) -> bool:
        found = {"on": True, "off": False}.get(text.strip().lower())
        if found is None:
            raise self.input_error(text, "expected on or off")
        return found

    def value_from_stored(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError(f"{self.key}: {value!r}")
        return value

    def input_text(self, value: SettingValue) -> str:
        return self.format(value)

    def allowed_values_text(self, infos: Sequence[GpuInfo]) -> str | None:
        return "on or off"

    def driver_default(self, info: GpuInfo | None) -> SettingValue | None:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberSetting(Setting):
    """A setting whose value is a number. `lowest`, `highest` and `initial` are the fields of
    GpuInfo with the driver's minimum, maximum and default."""

    unit_name: str  # "watts"
    most: float
    lowest: str
    highest: str
    initial: str
    enforced: str = ""  # field of GpuSample with the value after all other limits of the driver

    def parse_value(self, text: str) -> float:
        bare = text.strip().lower().removesuffix(self.unit.lower()).strip()
        is_decimal = re.fullmatch(r"\d{1,6}(\.\d{1,6})?", bare, re.ASCII)
        if not is_decimal or not 0 < float(bare) < self.most:
            raise self.input_error(text, f"expected {self.unit_name}")
        return float(bare)

    def value_from_stored(self, value: Any) -> float:
        if not is_number(value):
            raise TypeError(f"{self.key}: {value!r}")
        return float(value)

    def input_text(self, value: SettingValue) -> str:
        if not isinstance(value, int | float):
            return Setting.input_text(self, value)
        return f"{value:g}"

    def value_in_force(self, sample: GpuSample) -> SettingValue | None:
        """Return the value of this setting that the driver enforces on a GPU, which can be lower
        than the requested value. If the driver reports no enforced value, return the requested one;
        None if it reports neither."""
        enforced: SettingValue | None = getattr(sample, self.enforced, None)
        return enforced or Setting.value_in_force(self, sample)

    def driver_limits(self, info: GpuInfo) -> tuple[float, float] | None:
        """Return the (lowest, highest) value of this setting that the driver accepts on a GPU. None
        if the driver does not report both."""
        low, high = getattr(info, self.lowest), getattr(info, self.highest)
        if None in (low, high):
            return None
        return low, high

    def allowed_values_text(self, infos: Sequence[GpuInfo]) -> str | None:
        known = list(filter(None, map(self.driver_limits, infos)))
        if not known:
            return None
        lowest, highest = zip(*known, strict=True)
        low, high = max(lowest), min(highest)
        if low > high:
            return "no common value: choose one GPU"
        text = f"{low:.0f}..{high:.0f} {self.unit}"
        if self.reset_name:
            text += ", reset"
        return text

    def driver_default(self, info: GpuInfo | None) -> SettingValue | None:
        return None if info is None else getattr(info, self.initial)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSetting(Setting):
    """A setting that locks a clock. `clock` names the field of GpuSample with the locked clock.
    `highest` and `supported` name the fields of GpuInfo with the highest clock and with all
    supported clocks."""

    clock: str
    clock_name: str  # "SM"
    highest: str
    supported: str
    needs_highest: bool = False  # a GPU whose highest clock is unknown has no such clock
    unit: str = "MHz"
    metavar: str = "MHZ|MIN-MAX|reset"
    proof: Literal["power", "clock", "reading"] = "clock"
    needs_persistence: bool = True

    def parse_value(self, text: str) -> ClockRange:
        """Parse a clock lock in MHz: "1500", "210-2400" or "210,2400". Raises InputError for other
        texts."""
        bare = text.strip().lower().replace("mhz", "").strip()
        found = re.fullmatch(r"(\d{1,5})(?:\s*[-,]\s*(\d{1,5}))?", bare, re.ASCII)
        if found is None:
            raise self.input_error(text, "expected a clock or a range MIN-MAX in MHz, or reset")
        clocks = ClockRange(int(found[1]), int(found[2] or found[1]))
        if clocks.min_mhz > clocks.max_mhz:
            raise self.input_error(text, "expected a range whose minimum is not above its maximum")
        return clocks

    def value_from_stored(self, value: Any) -> ClockRange:
        if isinstance(value, Mapping):  # an experiment's arm, as dataclasses.asdict wrote it
            return ClockRange(int(value["min_mhz"]), int(value["max_mhz"]))
        if isinstance(value, list | tuple):  # a preset
            return ClockRange(*value)
        low, high = str(value).split(",")
        return ClockRange(int(low), int(high))

    def input_text(self, value: SettingValue) -> str:
        if not isinstance(value, ClockRange):
            return Setting.input_text(self, value)
        low, high = value.min_mhz, value.max_mhz
        return str(low) if low == high else f"{low}-{high}"

    def allowed_values_text(self, infos: Sequence[GpuInfo]) -> str | None:
        known = known_values(getattr(info, self.highest) for info in infos)
        if not known:
            return None
        return f"to {min(known)}, reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSetting(Setting):
    """A setting of all CPU cores. It applies to the whole host, whichever GPU the user names. A
    host can report values that a user cannot enter, for example a different value for each core
    (core_values.py)."""

    of_host: bool = True

    def parse_value(self, text: str) -> CoreValue:
        """Parse a value that the user entered: one of `choices`, or if there are no choices, a word
        of lower-case letters. Raises InputError for other texts."""
        value = text.strip()
        if self.choices and value not in self.choices:
            raise self.input_error(text, f"expected {' or '.join(self.choices)}")
        if not re.fullmatch(r"[a-z_]{1,32}", value):
            raise self.input_error(text, "expected the name of a governor such as performance")
        return value

    def value_from_stored(self, value: Any) -> CoreValue:
        return str(value)

    def allowed_values_text(self, infos: Sequence[GpuInfo]) -> str | None:
        return " or ".join(self.choices) or "performance, …"

    def driver_default(self, info: GpuInfo | None) -> SettingValue | None:
        return None

    @property
    def example(self) -> str:
        return next(iter(self.choices), "performance")


GOVERNOR = CoreSetting(
    name="governor",
    key="governor",
    help="CPU frequency governor of all cores: performance, powersave, …",
    metavar="NAME",
    reading="cpu_governor",
    preset_field="governor",
)
C_STATES = CoreSetting(
    name="c-states",
    key="c_states",
    help="idle states of all CPU cores: off keeps the cores awake, as `cpupower idle-set -D 0` "
    "does",
    metavar="on|off",
    choices=(core_values.ON, core_values.OFF),
    reading="cpu_c_states",
    preset_field="c_states",
)
PERSISTENCE = SwitchSetting(
    name="persistence",
    key="persistence",
    help="persistence mode: the driver stays loaded while no program uses the GPU",
    reading="persistence",
    preset_field="persistence",
)
POWER_LIMIT = NumberSetting(
    name="power-limit",
    key="power_limit_w",
    help="power limit in watts",
    metavar="W",
    unit="W",
    former=("power",),
    reading="power_limit_w",
    proof="power",
    preset_field="power_limit_w",
    sweep_values="300,400,500",
    needs_persistence=True,
    unit_name="watts",
    most=setting_commands.MOST_W,
    lowest="power_min_w",
    highest="power_max_w",
    initial="power_default_w",
    enforced="power_limit_enforced_w",
)
GPU_CLOCKS = ClockSetting(
    name="gpu-clocks",
    key="gpu_clocks",
    help="lock the SM clock to one value or a range in MHz",
    aliases=("lock-gpu-clocks",),
    former=("sm",),
    reset_name="reset-gpu-clocks",
    preset_field="lock_gpu_clocks_mhz",
    sweep_values="1500,2000,2500",
    clock="sm_mhz",
    clock_name="SM",
    highest="sm_max_mhz",
    supported="supported_sm_mhz",
)
MEMORY_CLOCKS = ClockSetting(
    name="memory-clocks",
    key="memory_clocks",
    help="lock the memory clock to one value or a range in MHz",
    aliases=("lock-memory-clocks",),
    former=("mem",),
    reset_name="reset-memory-clocks",
    preset_field="lock_memory_clocks_mhz",
    sweep_values="7001,9001",
    clock="memory_mhz",
    clock_name="memory",
    highest="memory_max_mhz",
    needs_highest=True,
    supported="supported_memory_mhz",
)
SETTINGS: tuple[Setting, ...] = (
    POWER_LIMIT,
    GPU_CLOCKS,
    MEMORY_CLOCKS,
    PERSISTENCE,
    GOVERNOR,
    C_STATES,
)  # as forms show them
LOCKS: tuple[ClockSetting, ...] = (GPU_CLOCKS, MEMORY_CLOCKS)
SWITCHES: tuple[SwitchSetting, ...] = tuple(s for s in SETTINGS if isinstance(s, SwitchSetting))
SWEPT: tuple[Setting, ...] = tuple(s for s in SETTINGS if s.sweep_values)
_BY_KEY = {s.key: s for s in SETTINGS}
_BY_NAME = {name: s for s in SETTINGS for name in s.command_line_names}


def setting_of(key: str) -> Setting:
    """Return the setting with this key, for example "power_limit_w". Raises KeyError if there is
    none."""
    return _BY_KEY[key]


def parse_setting_argument(word: str) -> GpuSettings:
    """Parse one argument such as "power-limit=400", "gpu-clocks=210-2400" or "reset-gpu-clocks" to
    a GpuSettings with one setting. Raises InputError if the argument is invalid."""
    name, _, text = word.strip().lstrip("-").partition("=")
    if name in _BY_NAME:
        return GpuSettings({_BY_NAME[name].key: _BY_NAME[name].parse(text)})
    for setting in SETTINGS:
        if setting.reset_name == name:
            return GpuSettings({setting.key: DEFAULT})
    known = ", ".join(s.name for s in SETTINGS)
    raise InputError(f"{name!r} is not a GPU setting", next_step=f"the GPU settings are {known}")


def parse_stored_value(key: str, value: Any) -> Any:
    """Convert a value of the setting `key` from a journal, result or preset to its Python type,
    such as ClockRange. None and values of unknown keys are returned unchanged."""
    if value is None or key not in _BY_KEY:
        return value
    return _BY_KEY[key].from_stored(value)


def label_of(key: str) -> str:
    """Return the label of the setting with this key, for example "power limit"; the key itself if
    it is unknown."""
    if key not in _BY_KEY:
        return key
    return _BY_KEY[key].label


def split_target_and_setting(key: str) -> tuple[str, str]:
    """Split the key of a setting in a result into (GPU or host, key of the setting):
    "gpu0.power_limit_w" gives ("GPU0", "power_limit_w"), and "host.governor" ("host", "governor").
    For a key without a GPU or host, the first element is ""."""
    place, dot, setting = key.partition(".")
    if not dot:
        return "", key
    if place != HOST:
        place = place.upper()
    return place, setting


def format_setting_value(key: str, value: SettingValue | None) -> str:
    """Return a value of the setting `key` as text for the user, for example "400 W", "210-2400 MHz"
    or "on"."""
    if key not in _BY_KEY:
        return str(value)
    return _BY_KEY[key].format(value)


def current_value_text_if_changed(
    key: str, gpu_uuid: str, value: Any, telemetry: Telemetry | None
) -> str:
    """Return the current value of the setting `key` as text if it is known and differs from
    `value`; "" otherwise."""
    if telemetry is None:
        return ""
    live = setting_of(key).current_value(telemetry, gpu_uuid)
    if live is None or setting_commands.value_equals(key, live, value):
        return ""
    return format_stored_value(key, live)


def format_stored_value(key: str, value: Any) -> str:
    """Return a value of the setting `key` (without a GPU) from a journal, result or preset as text
    for the user. A value that this version cannot parse is converted by `str`."""
    try:
        return format_setting_value(key, parse_stored_value(key, value))
    except (TypeError, ValueError):
        return str(value)


def label_with_gpu(key: str) -> str:
    """Return the label of a setting: "GPU clocks" for "gpu_clocks", "GPU0 GPU clocks" for
    "gpu0.gpu_clocks"."""
    place, setting = split_target_and_setting(key)
    return f"{place} {label_of(setting)}".strip()


def format_stored_setting_value(key: str, value: Any) -> str:
    """Return what `format_stored_value` returns, for a key that may have a GPU or the host in
    front: "gpu0.gpu_clocks"."""
    return format_stored_value(split_target_and_setting(key)[1], value)


def gpu_or_host_name(gpu_uuid: str, gpu_index: int) -> str:
    """Return where a setting applies: "host", or for example "GPU0"."""
    return HOST if gpu_uuid == HOST else f"GPU{gpu_index}"


def find_readable_gpu_sample(telemetry: Telemetry, uuid: str) -> GpuSample | None:
    """Return the reading of the GPU with this UUID; None if the GPU is missing or cannot be
    read."""
    return next((s for s in telemetry.gpus if s.uuid == uuid and s.has_readings), None)


class GpuSettings(dict[str, Any]):
    """The values to set on one GPU, by key. A setting without a value here stays unchanged. An
    instance is never modified."""

    def __init__(
        self,
        values: Mapping[str, SettingValue | None] | Iterable[tuple[str, SettingValue | None]] = (),
        **by_key: SettingValue | None,
    ) -> None:
        super().__init__({k: v for k, v in {**dict(values), **by_key}.items() if v is not None})

    @property
    def command_line_words(self) -> tuple[str, ...]:
        """The settings as arguments of the command `workbench gpu set`, for example
        ("power-limit=400",). The command `experiment` accepts the same words."""
        return tuple(f"{s.name}={s.input_text(self[s.key])}" for s in SETTINGS if s.key in self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GpuSettings:
        """Return the settings in JSON data from a file or result. Unknown keys are ignored. Also
        accepted is the form of older versions: null for a setting that stays unchanged, and
        "reset_gpu_clocks": true for a reset."""
        found = {s.key: parse_stored_value(s.key, data.get(s.key)) for s in SETTINGS}
        reset = {s.key: DEFAULT for s in LOCKS if data.get(f"reset_{s.key}")}
        return cls({**found, **reset})
