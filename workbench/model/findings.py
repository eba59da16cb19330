"""Findings: one form for the results of validation, rules, log patterns and fault checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """The severity of a finding. ERROR prevents a start; WARN and HINT never do."""

    ERROR = "error"
    WARN = "warn"
    HINT = "hint"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement about a plan, a preset, a host or a run.

    `code` is stable and dotted ("flag.unknown", "memory.too-large"); tests and scripts match it. `flag` is the flag or
    environment variable concerned, without dashes, or None. `fix` is the next step, as the user would type or press it.
    For findings about a file, `file`, `line` (from 1) and `field` (dotted) give the place; for findings about a log,
    `evidence` is the text that matched.
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

    @property
    def place(self) -> str:
        """ "presets/x.toml:12", "presets/x.toml", or "" if the finding is not about a file."""
        return f"{self.file}:{self.line}" if self.file and self.line else self.file or ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "level": str(self.level)}


def worst(findings: Iterable[Finding]) -> Level | None:
    """Return the most severe level among `findings`, or None if there are none."""
    order = list(Level)
    return min((f.level for f in findings), key=order.index, default=None)
