"""The settings in the plan of a running server, compared with the values that the server really
uses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from workbench.model.lazy_dataclass import dataclass

NOT_REPORTED = "not reported"


@dataclass(frozen=True, slots=True)
class InForceRow:
    """One setting of a running server. `asked` is its value in the plan; None if the plan does not
    set it. `in_force` is the value that the engine or its process uses; None if no source reports
    it. `where` names the source of `in_force`. `differs` is true if both values are known and
    disagree."""

    kind: str  # "engine", "flag", "env"
    name: str
    asked: str | None
    in_force: str | None
    where: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class InForceReport:
    """The settings of a running server: first the settings that the engine reports, then the other
    flags of the plan, then environment variables. `notes` has one text for each source that could
    not be read, with the reason."""

    run_id: str
    rows: tuple[InForceRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def differing_setting_count(self) -> int:
        """The number of settings whose value in force is not that of the plan."""
        return sum(row.differs for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "differing": self.differing_setting_count}
