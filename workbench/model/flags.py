"""Launch flags as data: the flags that an engine version knows, and the flags that a plan sets.

The canonical name of a flag is the engine's long name without leading dashes ("max-num-seqs"). A
value is plain JSON data: bool, int, float, str, list (of a flag with several values) or dict (of a
flag that takes JSON).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from workbench.model.lazy_dataclass import dataclass

MOST_USED = "most used"
FlagValue = Any  # bool | int | float | str | list[FlagValue] | dict[str, FlagValue]


class FlagKind(StrEnum):
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STR = "str"
    JSON = "json"


class Origin(StrEnum):
    PRESET = "preset"
    EDITED = "edited"
    HOST = "hosts.toml"  # what the user has written about the host
    INHERITED = "environment"  # what a server inherits from the host's own environment
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class FlagSpec:
    """One flag of one engine version: its names, type, default, limits and help."""

    name: str
    kind: FlagKind
    aliases: tuple[str, ...] = ()  # other spellings with dashes, e.g. "-tp", "--tp"
    # e.g. "--no-enforce-eager" or "--disable-x"; None: cannot be negated
    negation: str | None = None
    choices: tuple[str, ...] = ()
    default: FlagValue | None = None
    repeatable: bool = False  # can be given several times, or has several values
    # "+", "*", "?", a count, or "," (a list joined by commas into one argument)
    nargs: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    human_readable_int: bool = False  # accepts 1k = 1000, 1K = 1024
    json_fields: tuple[str, ...] = ()
    group: str = ""  # section in the engine's own help or configuration file
    area: str = ""  # group of Workbench, such as "memory": the same names for all engines
    most_used: int = 0  # place in the list of the engine's most used flags, from 1; 0: not in it
    help: str = ""
    deprecated: bool = False
    required: bool = False
    env: str | None = None  # environment variable with the same effect
    value_takes_bool_word: bool = False  # TabbyAPI: booleans need True or False as a value
    # accepted beside numbers (INT, FLOAT); well-known values, others are accepted (STR)
    words: tuple[str, ...] = ()
    words_are_all: bool = False  # STR: Workbench knows no other value, and warns of one
    multiple_of: int | None = None
    # where the default comes from if it is not a constant, e.g. "the model's own"
    default_note: str = ""

    @property
    def is_on_off(self) -> bool:
        """Whether the flag takes the words "on" and "off"."""
        return {"on", "off"} <= set(self.choices)

    @property
    def words_beside_type(self) -> tuple[str, ...]:
        """The words that the flag accepts although they do not have its type, such as "auto" in
        place of a number."""
        return () if self.kind == FlagKind.STR else self.words

    @property
    def may_lack_value(self) -> bool:
        return self.nargs == "?" or self.is_on_off


@dataclass(frozen=True, slots=True)
class EnvSpec:
    name: str
    type: str = "str"
    default: str | None = None
    choices: tuple[str, ...] = ()
    help: str = ""


@dataclass(frozen=True)
class FlagCatalog:
    """All flags and environment variables of one engine version. `version` is the engine version
    from which the data was extracted."""

    engine: str
    version: str
    flags: Mapping[str, FlagSpec] = field(default_factory=dict)
    env: Mapping[str, EnvSpec] = field(default_factory=dict)
    accepts_prefixes: bool = False  # the engine accepts any unambiguous beginning of a flag
    asked: str | None = None  # the program that listed its own flags; None for a shipped catalog


@dataclass(frozen=True, slots=True)
class FlagSetting:
    name: str
    value: FlagValue
    origin: Origin = Origin.EDITED


@dataclass(frozen=True, slots=True)
class FlagRow:
    """One line of the flag editor: a flag with its value, its default, its specification and the
    finding about it."""

    name: str
    value: FlagValue | None
    default: FlagValue | None
    origin: Origin
    spec: FlagSpec | None  # None: unknown to this catalog
    finding: str | None = None
    level: str | None = None
    is_env: bool = False

    @property
    def editor_section(self) -> str:
        """The title of the section of the flag editor in which this flag is shown: "environment",
        "most used", or the flag's area."""
        if self.is_env:
            return "environment"
        if self.spec is None:
            return "not in the list of this version"
        return MOST_USED if self.spec.most_used else self.spec.area
