"""The settings in the plan of a running server, compared with its settings in force."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

NOT_REPORTED = "not reported"


@dataclass(frozen=True, slots=True)
class InForceRow:
    """One setting of a running server. `asked` is the value in its plan, None if the plan does not set it. `in_force`
    is the value that the engine or its process has, None if nothing reports it. `where` says where that was read.
    `differs` is true if both are known and do not agree."""

    kind: str  # "engine", "flag", "env"
    name: str
    asked: str | None
    in_force: str | None
    where: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class InForceReport:
    """The settings of a running server: those that the engine reports, then the other flags, then the environment.
    `notes` names the sources that could not be read, and why."""

    run_id: str
    rows: tuple[InForceRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def differing(self) -> int:
        return sum(row.differs for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "differing": self.differing}
