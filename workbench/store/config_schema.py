"""The schema of config.toml: its settings with their defaults, and the check of a document against it.

Plain dataclasses, because a library for schemas takes longer to load than everything else that the first frame needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

THEMES = ("dark", "light", "high-contrast", "256")


@dataclass(frozen=True, slots=True)
class Ui:
    refresh_s: float = 1.0
    theme: str = THEMES[0]


@dataclass(frozen=True, slots=True)
class GpuConfig:
    heartbeat_s: float = 30.0  # the guard reverts GPU settings after this long without a heartbeat


@dataclass(frozen=True, slots=True)
class Remembered:
    value: str
    run: str  # id of the newest READY run with this value


@dataclass(frozen=True, slots=True)
class Config:
    """The contents of config.toml. `executables` maps a host name and an engine to the program that starts the engine
    there, quoted as in a shell. `remembered` maps a host name, a preset id and a variable to the value that was last
    given there."""

    ui: Ui = field(default_factory=Ui)
    gpu: GpuConfig = field(default_factory=GpuConfig)
    executables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    remembered: Mapping[str, Mapping[str, Mapping[str, Remembered]]] = field(default_factory=dict)


class Problem(NamedTuple):
    """A value that cannot be used: its place in the document, and what is wrong; None for an unknown setting."""

    path: tuple[str, ...]
    text: str | None


Kind = Callable[[Any, tuple[str, ...], list[Problem]], Any]
_UNUSABLE = object()


def _wrong(path: tuple[str, ...], text: str, problems: list[Problem]) -> Any:
    problems.append(Problem(path, text))
    return _UNUSABLE


def _text(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    return value if isinstance(value, str) else _wrong(path, "text is expected", problems)


def _choice(*choices: str) -> Kind:
    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        return value if value in choices else _wrong(path, f"one of {', '.join(choices)} is expected", problems)

    return check


def _number(lowest: float, highest: float) -> Kind:
    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if number and lowest <= value <= highest:
            return float(value)
        return _wrong(path, f"a number from {lowest:g} to {highest:g} is expected", problems)

    return check


def _map_of(kind: Kind) -> Kind:
    """Return the check of a table with any keys and values of one kind. Values that are not usable are left out."""

    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        if not isinstance(value, dict):
            return _wrong(path, "a table is expected", problems)
        found = {name: kind(each, (*path, name), problems) for name, each in value.items()}
        return {name: each for name, each in found.items() if each is not _UNUSABLE}

    return check


def _table(made: Callable[..., Any], required: bool = False, **kinds: Kind) -> Kind:
    """Return the check of a table with these keys, which become the arguments of `made`."""

    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        if not isinstance(value, dict):
            return _wrong(path, "a table is expected", problems)
        problems += [Problem((*path, name), None) for name in value if name not in kinds]
        found = {name: kind(value[name], (*path, name), problems) for name, kind in kinds.items() if name in value}
        usable = {name: each for name, each in found.items() if each is not _UNUSABLE}
        missing = [name for name in kinds if name not in value]
        if required and missing:
            return _wrong(path, f"{' and '.join(missing)} is missing", problems)
        return _UNUSABLE if required and len(usable) < len(kinds) else made(**usable)

    return check


_CONFIG = _table(
    Config,
    ui=_table(Ui, refresh_s=_number(0.2, 60), theme=_choice(*THEMES)),
    gpu=_table(GpuConfig, heartbeat_s=_number(1, 3600)),
    executables=_map_of(_map_of(_text)),
    remembered=_map_of(_map_of(_map_of(_table(Remembered, required=True, value=_text, run=_text)))),
)


def checked(document: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """Return the configuration in a document, and its problems. A value that cannot be used has its default."""
    problems: list[Problem] = []
    return _CONFIG(dict(document), (), problems), problems


def setting_names() -> Iterator[str]:
    """Yield the name of each setting and table: those with a fixed name."""
    for name, default in ((f, getattr(Config(), f)) for f in Config.__dataclass_fields__):
        inner = getattr(default, "__dataclass_fields__", None)
        yield from inner if inner is not None else (name,)
