"""The launch editor without a screen: one plan, its history, and everything derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.model.errors import PlanError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagCatalog, FlagRow, Origin
from workbench.model.gpu import GpuInfo
from workbench.model.plan import Command, LaunchPlan, diff
from workbench.session.state import PlanView

HISTORY_KEPT = 200


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a plan is checked against besides the catalog."""

    gpus: tuple[GpuInfo, ...] = ()
    installed_version: str | None = None
    installed: str | None = None
    installed_problem: str | None = None


class PlanEditor:
    """Edits one LaunchPlan. No I/O; each edit that does not hold raises InputError and changes nothing."""

    def __init__(self, plan: LaunchPlan, title: str = "") -> None:
        from workbench import engines

        self.title = title
        self.engine = engines.get(plan.engine)
        self.base = plan  # as the preset gave it
        self.plan = plan
        self._undo: list[LaunchPlan] = []
        self._redo: list[LaunchPlan] = []

    def catalog(self, version: str | None = None) -> FlagCatalog:
        return self.engine.catalog(version or self.plan.engine_version)

    def set_flag(self, name: str, text: str, catalog: FlagCatalog) -> None:
        from workbench import engines

        canonical = engines.canonical_name(catalog, name)
        spec = catalog.flags.get(canonical)
        value = engines.parse_value(spec, text) if spec else text
        self._change(self.plan.with_flag(canonical, value, Origin.EDITED))

    def unset_flag(self, name: str) -> None:
        self._change(self.plan.without_flag(name))

    def set_env(self, name: str, value: str) -> None:
        if not name or "=" in name or "\0" in name + value:
            raise PlanError(f"{name!r} is not a name for an environment variable", next_step="use NAME=value")
        self._change(self.plan.with_env(name, value))

    def unset_env(self, name: str) -> None:
        self._change(self.plan.without_env(name))

    def undo(self) -> None:
        if self._undo:
            self._redo.append(self.plan)
            self.plan = self._undo.pop()

    def redo(self) -> None:
        if self._redo:
            self._undo.append(self.plan)
            self.plan = self._redo.pop()

    def _change(self, plan: LaunchPlan) -> None:
        if plan == self.plan:
            return
        self._undo = [*self._undo, self.plan][-HISTORY_KEPT:]
        self._redo.clear()
        self.plan = plan

    def command(self) -> Command:
        return self.engine.command(self.plan)

    def findings(self, around: Surroundings) -> tuple[Finding, ...]:
        from workbench import engines

        catalog = self.catalog(around.installed_version)
        found = engines.validate(
            self.plan, catalog, installed_version=around.installed_version, gpus=around.gpus
        )
        order = list(Level)
        return tuple(sorted(found, key=lambda f: order.index(f.level)))

    def rows(self, around: Surroundings, view: str = "changed", query: str = "") -> Sequence[FlagRow]:
        from workbench import engines

        catalog = self.catalog(around.installed_version)
        rows = engines.rows(self.plan, catalog, self.findings(around), view="all" if query else view)
        if not query:
            return rows
        ranked = {spec.name: place for place, spec in enumerate(engines.search(catalog, query))}
        wanted = query.lower()
        hits = [r for r in rows if r.name in ranked or (r.spec is None and wanted in r.name.lower())]
        return sorted(hits, key=lambda r: ranked.get(r.name, len(ranked)))

    def view(self, around: Surroundings) -> PlanView:
        """Everything that the screen shows of the plan."""
        findings = self.findings(around)
        command: Command | None = None
        try:
            command = self.command()
        except WorkbenchError as error:
            findings = (Finding(Level.ERROR, "plan.command", error.message, fix=error.next_step), *findings)
        catalog = self.catalog(around.installed_version)
        return PlanView(
            plan=self.plan,
            rows=tuple(self.rows(around)),
            findings=findings,
            command=command,
            catalog_version=catalog.version,
            total_flags=len(catalog.flags),
            installed=around.installed,
            installed_problem=around.installed_problem,
            memory=self._memory(around),
            edited=len(diff(self.base, self.plan)),
            can_undo=bool(self._undo),
            can_redo=bool(self._redo),
            title=self.title,
        )

    def _memory(self, around: Surroundings) -> str | None:
        from workbench.engines.memory import fit

        estimate = fit(self.plan, around.gpus)
        return None if isinstance(estimate, str) else estimate.text
