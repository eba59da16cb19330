"""Findings: the common form for results of validation, advice, log patterns and fault checks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from workbench.model.flags import FlagValue
from workbench.model.lazy_dataclass import dataclass


class Level(StrEnum):
    """The severity of a finding. ERROR prevents a start; WARN and HINT never do."""

    ERROR = "error"
    WARN = "warn"
    HINT = "hint"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class PlanChange:
    """One change of a plan that a finding proposes: a new value of a flag or, with `env`, of an
    environment variable. `value` None removes the flag or variable."""

    name: str
    value: FlagValue | None
    env: bool = False

    @property
    def option_text(self) -> str:
        """This change of a plan as an option of `workbench start`, quoted for a shell: "--set
        name=value", "--env NAME=value" or "--unset name"."""
        if self.value is None:
            return f"--unset {self.name}"
        plain = self.value
        if not isinstance(plain, str):
            plain = json.dumps(plain, separators=(",", ":"))
        option = "--env" if self.env else "--set"
        return f"{option} {shlex.quote(f'{self.name}={plain}')}"


def option_texts_of_changes(changes: Iterable[PlanChange]) -> str:
    """Return changes of a plan as the options of `workbench start` that make them; "" without
    changes."""
    return " ".join(change.option_text for change in changes)


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement about a plan, a preset, a host or a run.

    `code` is a stable, dotted identifier ("flag.unknown", "memory.too-large") for tests and
    scripts. `flag` is the flag (without dashes) or the environment variable concerned. `fix` is the
    next step as text for the user, and `changes` are the plan changes that it describes. `settings`
    are proposed GPU settings, as arguments of `workbench gpu set` ("power-limit=400"). A finding
    about a file has its place in `file`, `line` (from 1) and `field` (dotted). `evidence` is the
    matching text of a log, or the measured or planned values behind advice. `expected_gain` is a
    range as text ("+3 to +5 % tok/s").
    """

    level: Level
    code: str
    text: str
    flag: str | None = None
    fix: str | None = None
    source: str | None = None
    file: str | None = None
    line: int | None = None
    field: str | None = None
    evidence: str | None = None
    changes: tuple[PlanChange, ...] = ()
    expected_gain: str | None = None
    settings: tuple[str, ...] = ()

    @property
    def is_error(self) -> bool:
        return self.level is Level.ERROR

    @property
    def file_and_line_text(self) -> str:
        """The file and line that this finding is about, such as "presets/x.toml:12": the file only
        if the line is unknown, and "" if the finding is not about a file."""
        if not self.file:
            return ""
        return f"{self.file}:{self.line}" if self.line else self.file

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "level": str(self.level)}


def error_if_certain(certain: bool) -> Level:
    """Return the level of a fault: Level.ERROR if it is certain, else Level.WARN."""
    return Level.ERROR if certain else Level.WARN


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings sorted by severity, the most severe first. Findings of equal severity
    keep their order."""
    order = list(Level)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.level)))


def most_severe_level(findings: Iterable[Finding]) -> Level | None:
    """Return the most severe level among `findings`, or None if there are none."""
    order = list(Level)
    return min((f.level for f in findings), key=order.index, default=None)
