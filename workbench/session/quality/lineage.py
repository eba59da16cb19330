"""What a configuration was changed from: A, if the user names only B. The record of a run has the
run that it replaced and its preset, and a preset made from another one has it as its baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.engines.answer_settings import list_plan_changes_affecting_answers
from workbench.model.errors import InputError, ServerError
from workbench.model.experiment import Arm, ArmTarget
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerState

if TYPE_CHECKING:
    from workbench.model.plan import LaunchPlan
    from workbench.model.server_run import ServerStatus
    from workbench.session.plans.presets import Presets
    from workbench.session.servers.servers import Servers

_MAX_ANCESTORS = 20
_NAME_A_HINT = "name A too: `workbench quality A B`"


@dataclass(frozen=True, slots=True)
class _Ancestor:
    """A configuration from which another was changed: a run, or else a preset."""

    name: str
    plan: LaunchPlan
    run: ServerStatus | None = None


@dataclass(frozen=True, slots=True)
class ChangedFrom:
    """A and B for a comparison in which the user named only B. `words` says what A is, and
    `variables` are those with which a preset is started."""

    a: Arm
    b: Arm
    words: str
    variables: Mapping[str, str]


class Lineage:
    """Looks up what runs and presets were changed from."""

    def __init__(self, presets: Presets, servers: Servers) -> None:
        self._presets, self._servers = presets, servers

    def find_original_arm(self, b: Arm, variables: Mapping[str, str]) -> ChangedFrom:
        """Return the configuration from which `b` was changed as A, and `b` as B. The runs of the
        host must have been read. Raises InputError if nothing is known from which `b` was changed,
        or if the two differ in no setting that changes the answers."""
        assert b.target is not None
        name = b.target.name
        if b.changes_launch:
            return ChangedFrom(Arm(target=b.target), b, f"{name} without the changes", variables)
        if "://" in name:
            raise InputError(
                f"Workbench did not start {name}, so it does not know what it was changed from",
                next_step=_NAME_A_HINT,
            )
        run = self._find_run_by_name(name)
        if run is None:
            return self._find_original_of_preset(b, name, variables)
        return self._find_original_of_run(b.target, run, variables)

    def _find_run_by_name(self, name: str) -> ServerStatus | None:
        statuses = self._servers.supervisor.statuses()
        exact = [status for status in statuses if status.run_id == name]
        near = [
            s
            for s in statuses
            if len(name) >= 4 and name in (s.run_id[: len(name)], s.run_id[-len(name) :])
        ]
        hits = exact or near
        if len(hits) > 1:
            raise InputError(
                f"{len(hits)} runs match {name!r}", next_step="`workbench servers` lists the runs"
            )
        return hits[0] if hits else None

    # ---- presets

    def _find_original_of_preset(
        self, b: Arm, name: str, variables: Mapping[str, str]
    ) -> ChangedFrom:
        plan = self._presets.make_plan(name, variables)
        found = self._nearest_different_ancestor(
            f"preset {name}", plan, self._baselines_of_preset(name, variables)
        )
        return ChangedFrom(
            Arm(target=ArmTarget(found.name)), b, f"the baseline of {name}", variables
        )

    def _baselines_of_preset(
        self, preset_id: str, variables: Mapping[str, str]
    ) -> Iterator[_Ancestor]:
        """Yield the presets from which a preset was made, the nearest first."""
        baseline = self._presets.get(preset_id).baseline
        while baseline is not None:
            yield self._preset_as_ancestor(baseline, variables)
            baseline = self._presets.get(baseline).baseline

    def _preset_as_ancestor(self, preset_id: str, variables: Mapping[str, str]) -> _Ancestor:
        known = self._presets.get(preset_id).variables
        given = {name: value for name, value in variables.items() if name in known}
        return _Ancestor(preset_id, self._presets.make_plan(preset_id, given))

    # ---- runs

    def _find_original_of_run(
        self, target: ArmTarget, run: ServerStatus, variables: Mapping[str, str]
    ) -> ChangedFrom:
        plan = self._servers.supervisor.record(run.run_id).plan
        variables = {**plan.variables, **variables}
        found = self._nearest_different_ancestor(
            f"run {run.run_id}", plan, self._ancestors_of_run(run.run_id, plan, variables)
        )
        anew = replace(target, name=run.run_id)
        if found.run is None:
            a = Arm(target=ArmTarget(found.name), sets=_port_assignment_of_run(run, plan))
            return ChangedFrom(
                a,
                Arm(_port_assignment_of_run(run, plan), target=anew),
                f"the preset of {run.run_id}",
                variables,
            )
        words = f"which {run.run_id} replaced"
        if found.run.state is ServerState.READY and run.state is ServerState.READY:
            return ChangedFrom(
                Arm(target=ArmTarget(found.name)), Arm(target=anew), words, variables
            )
        # both need the GPUs and the port, so each is started anew
        a = Arm(_port_assignment_of_run(run, plan), target=ArmTarget(found.name))
        return ChangedFrom(
            a, Arm(_port_assignment_of_run(run, plan), target=anew), words, variables
        )

    def _ancestors_of_run(
        self, run_id: str, plan: LaunchPlan, variables: Mapping[str, str]
    ) -> Iterator[_Ancestor]:
        """Yield what a run was changed from, the nearest first: the runs that it and they replaced,
        then its preset and the baselines of it. The first run of another engine or model ends the
        list of runs."""
        supervisor = self._servers.supervisor
        before = supervisor.record(run_id).replaces
        while before is not None:
            try:
                record = supervisor.record(before)
            except ServerError:  # pruned
                break
            if (record.plan.engine, record.plan.model) != (plan.engine, plan.model):
                break
            yield _Ancestor(before, record.plan, supervisor.status(before))
            before = record.replaces
        if plan.preset_id is not None:
            yield self._preset_as_ancestor(plan.preset_id, variables)
            yield from self._baselines_of_preset(plan.preset_id, variables)

    def _nearest_different_ancestor(
        self, subject: str, plan: LaunchPlan, ancestors: Iterator[_Ancestor]
    ) -> _Ancestor:
        """Return the nearest ancestor whose answers may differ from those of `plan`. Raises
        InputError, which names `subject`, if there is none."""
        names = []
        for ancestor, _ in zip(ancestors, range(_MAX_ANCESTORS), strict=False):
            if list_plan_changes_affecting_answers(ancestor.plan, plan):
                return ancestor
            names.append(ancestor.name)
        if not names:
            raise InputError(
                f"nothing is known from which {subject} was changed: it replaced no run, and has no "
                "preset or baseline",
                next_step=_NAME_A_HINT,
            )
        raise InputError(
            f"{subject} differs from {', '.join(names)} in no setting that changes the answers",
            next_step=_NAME_A_HINT,
        )


def _port_assignment_of_run(run: ServerStatus, plan: LaunchPlan) -> tuple[str, ...]:
    """Return the change of a plan that starts its server anew on the port of a run: one assignment
    "port=NUMBER". Raises InputError if the port is not known."""
    port = run.port or plan.flag("port")
    if port is None:
        raise InputError(f"the port of run {run.run_id} is not known", next_step=_NAME_A_HINT)
    return (f"port={port}",)
