"""The schema of config.toml: its settings with their defaults, and the check of a document against
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from workbench.model.lazy_dataclass import dataclass
from workbench.store.toml_schema import Problem, choice, map_of, number, table, text

THEMES = ("dark", "light", "high-contrast", "256")


@dataclass(frozen=True, slots=True)
class Ui:
    refresh_s: float = 1.0
    theme: str = THEMES[0]


@dataclass(frozen=True, slots=True)
class GpuConfig:
    heartbeat_s: float = 30.0  # the guard reverts GPU settings after this long without a heartbeat


@dataclass(frozen=True, slots=True)
class ResultsConfig:
    keep_samples: int = 2000  # newest results whose requests are kept, at most 20 KB each


@dataclass(frozen=True, slots=True)
class Remembered:
    value: str
    run: str  # id of the newest READY run with this value


@dataclass(frozen=True, slots=True)
class Config:
    """The contents of config.toml. `executables` maps a host name and an engine to the program that
    starts the engine on that host, quoted as for a shell. `remembered` maps a host name, a preset
    id and a variable to the value in the newest run whose server became ready."""

    ui: Ui = field(default_factory=Ui)
    gpu: GpuConfig = field(default_factory=GpuConfig)
    results: ResultsConfig = field(default_factory=ResultsConfig)
    executables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    remembered: Mapping[str, Mapping[str, Mapping[str, Remembered]]] = field(default_factory=dict)


_CONFIG = table(
    Config,
    {
        "ui": table(Ui, {"refresh_s": number(0.2, 60), "theme": choice(*THEMES)}),
        "gpu": table(GpuConfig, {"heartbeat_s": number(1, 3600)}),
        "results": table(ResultsConfig, {"keep_samples": number(0, 1_000_000)}),
        "executables": map_of(map_of(text)),
        "remembered": map_of(
            map_of(map_of(table(Remembered, {"value": text, "run": text}, required=True)))
        ),
    },
)


def checked(document: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """Return the configuration that `document` (parsed TOML) describes, and its problems. A setting
    with an invalid value gets its default value."""
    problems: list[Problem] = []
    return _CONFIG(dict(document), (), problems), problems
