"""The launch editor without a screen: one plan, its undo history, and everything derived from the
plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from workbench import engines
from workbench.engines.cluster import report_cluster_problems as cluster_findings
from workbench.engines.cluster import report_missing_cluster_memory_reserve, spread_plan_over_nodes
from workbench.engines.host_entries import FILES
from workbench.engines.model_facts import ReadModelFacts, choose_model_facts, must_read_model_files
from workbench.engines.preset_trust import ForeignPresetPart, list_untrusted_parts
from workbench.engines.run_as import set_launcher_row
from workbench.model.errors import InputError, PlanError, WorkbenchError
from workbench.model.findings import Finding, Level, PlanChange, option_texts_of_changes
from workbench.model.flags import FlagCatalog, FlagKind, FlagRow, FlagSpec, Origin
from workbench.model.gpu import GpuInfo
from workbench.model.gpu_allotment import NO_ALLOTMENT, Allotment
from workbench.model.job_request import VISIBLE_TO_CUDA
from workbench.model.lazy_dataclass import dataclass
from workbench.model.node_network import NodeAddress
from workbench.model.plan import Command, LaunchPlan, Node, plan_differences
from workbench.model.run_options import with_launcher_and_options
from workbench.model.secrets import (
    MASK,
    is_secret_name,
    mask_command,
    mask_row,
    mask_secrets_of_difference,
    mask_secrets_of_plan,
    mask_text,
    secret_values,
)
from workbench.server.launchers import launcher_of
from workbench.session.state import PlanView

if TYPE_CHECKING:
    from workbench.server.engine_probe import InstalledEngine

MAX_UNDO_STEPS = 200
# findings: the engine may not have the value of a flag
DOUBTFUL_FINDINGS = ("flag.word", "flag.choice")
_FINDING_IDENTITY = attrgetter("code", "flag", "fix")
RUN_ID, RUN_DIR = "RUN", "RUN_DIRECTORY"  # in the command of a launcher, before they are known


@dataclass(frozen=True, slots=True)
class HostContext:
    """What a plan is checked against: the host's GPUs, the installed engine, what the user has
    trusted, and facts about models."""

    gpus: tuple[GpuInfo, ...] = ()
    installed_version: str | None = None
    installed: str | None = None
    installed_problem: str | None = None
    # what a search for the engine found; it has `installed_version` too
    found: InstalledEngine | None = None
    # the flags that the installed engine has by its own account
    own_catalog: FlagCatalog | None = None
    not_asked: str | None = None  # why the installed engine did not list its flags
    executables: tuple[str, ...] = ()  # of the plan's engine, found on the host
    trusted: frozenset[str] = frozenset()  # digests of what this user agreed to run
    models: ReadModelFacts = field(default_factory=dict)  # facts read from the host
    places: tuple[NodeAddress, ...] = ()  # the nodes of a cluster
    reserve_gib: float | None = None  # of the cluster


class PlanEditor:
    """Edits one LaunchPlan without I/O. An invalid edit raises InputError and changes nothing."""

    def __init__(self, plan: LaunchPlan, title: str = "") -> None:
        self.title = title
        self.engine = engines.get_engine(plan.engine)
        self.base = plan  # before the edits
        self.plan = plan
        self.host_context = HostContext()
        self._undo: list[LaunchPlan] = []
        self._redo: list[LaunchPlan] = []

    @property
    def catalog(self) -> FlagCatalog:
        """The flags of the installed engine as it lists them, or those that Workbench ships for the
        nearest version. Without an installed engine, the newest ones that Workbench ships."""
        return self.host_context.own_catalog or self.engine.catalog(
            self.host_context.installed_version
        )

    @property
    def is_edited(self) -> bool:
        """Whether the plan differs from the one before the edits."""
        return self.plan != self.base

    @property
    def can_undo(self) -> bool:
        return bool(self._undo)

    def clear_located_engine(self) -> None:
        """Drop the engine that the search of the host found, because the plan names another program
        now. Its version and flags count until the host is searched again."""
        self.host_context = replace(
            self.host_context, installed=None, installed_problem=None, found=None
        )

    @property
    def effective_plan(self) -> LaunchPlan:
        """The plan as the engine is started with it: with the installed engine's version and the
        known size of the model."""
        return self._complete_plan_for_start(self.plan)

    def _complete_plan_for_start(self, plan: LaunchPlan) -> LaunchPlan:
        host_context = self.host_context
        version = host_context.installed_version or plan.engine_version
        facts = choose_model_facts(plan, host_context.models)
        plan = self._add_gpus_from_environment(
            replace(plan, engine_version=version, model_facts=facts)
        )
        if not host_context.places:
            return plan
        return spread_plan_over_nodes(plan, self.engine, host_context.places)

    @property
    def allotment(self) -> Allotment:
        """What the host's own environment says of its GPUs; NO_ALLOTMENT before the host was
        searched."""
        found = self.host_context.found
        return NO_ALLOTMENT if found is None else found.allotment

    def _add_gpus_from_environment(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan with the GPUs that the server would inherit from the host's environment,
        so that every launcher and every reader of the plan knows them. The plan stays as it is if
        it names GPUs itself, and on a cluster, where each host has an environment of its own."""
        devices = self.allotment.visible
        if devices is None or self.host_context.places or VISIBLE_TO_CUDA in plan.env_texts:
            return plan
        return plan.with_env(VISIBLE_TO_CUDA, devices, Origin.INHERITED)

    def estimate_memory(self, name: str = "", text: str = "") -> engines.MemoryFit | str:
        """Return the estimate of the GPU memory that the plan needs, or the reason why there is
        none. With `name`, the estimate is for the plan with this flag set to `text`, or unset if
        `text` is empty. Raises InputError for an invalid value."""
        plan = self.plan
        if text:
            plan = engines.apply_assignments(plan, self.catalog, [f"{name}={text}"])
        elif name:
            plan = plan.without_flag(engines.canonical_flag_name(self.catalog, name))
        return engines.estimate_memory_or_reason(
            self._complete_plan_for_start(plan), self.host_context.gpus
        )

    @property
    def is_engine_search_done(self) -> bool:
        """Whether the host's engine was found, or a reason why it cannot be found."""
        host_context = self.host_context
        return host_context.installed is not None or host_context.installed_problem is not None

    @property
    def must_read_model_size(self) -> bool:
        """Whether the size of the plan's model must still be read from the model's files on the
        host."""
        return must_read_model_files(self.plan, self.host_context.models)

    def set_flag(self, name: str, text: str) -> None:
        self._change_plan(engines.apply_assignments(self.plan, self.catalog, [f"{name}={text}"]))

    def unset_flag(self, name: str) -> None:
        """Remove a flag from the plan, or restore the default of the program or of a launcher's
        option. Raises InputError for the model, which every plan has."""
        if name == engines.EXECUTABLE:
            self._change_plan(engines.set_executable(self.plan, ""))
            return
        if engines.is_launcher_row(name):
            self._change_plan(engines.apply_assignments(self.plan, self.catalog, unsets=[name]))
            return
        if engines.canonical_flag_name(self.catalog, name) in self.engine.model_flags:
            raise InputError(
                "the model cannot be removed from a plan",
                next_step=f"set {self.engine.model_flags[0]} to another model",
            )
        self._change_plan(self.plan.without_flag(engines.canonical_flag_name(self.catalog, name)))

    def set_env(self, name: str, value: str) -> None:
        """Set an environment variable of the server. Raises PlanError for a value with a NUL
        byte."""
        if "\0" in value:
            raise PlanError(
                f"the value of {name} contains a NUL byte",
                next_step="remove the NUL byte from the value",
            )
        self._change_plan(
            engines.apply_assignments(self.plan, self.catalog, envs=[f"{name}={value}"])
        )

    def unset_env(self, name: str) -> None:
        self._change_plan(self.plan.without_env(name))

    def apply_assignments(
        self,
        sets: Sequence[str],
        unsets: Sequence[str],
        envs: Sequence[str],
        run_as: str | None = None,
        run_options: Sequence[str] = (),
    ) -> None:
        """Apply the values of `--set flag=value`, `--unset flag`, `--env K=V`, `--as` and
        `--run-option NAME=VALUE` as one step of the undo history. `run_as` None leaves the launcher
        as it is. Raises InputError for an invalid value."""
        plan = with_launcher_and_options(self.plan, run_as, run_options)
        self._change_plan(engines.apply_assignments(plan, self.catalog, sets, unsets, envs))

    def apply_fix_and_return_changes(self, finding: Finding) -> Sequence[PlanChange]:
        """Make the changes that `finding`, one of the plan's findings, proposes, as one step of the
        undo history. Return the changes. Raises InputError if the plan no longer has this finding,
        or the finding proposes nothing."""
        for known in self.findings():
            # the changes of a view have masked secrets
            if known.changes and _FINDING_IDENTITY(known) == _FINDING_IDENTITY(finding):
                self.apply_changes(known.changes)
                return known.changes
        raise InputError(
            f"this finding proposes no change: {finding.text}",
            next_step="edit the plan yourself; the help of a flag describes its values",
        )

    def apply_changes(self, changes: Sequence[PlanChange]) -> None:
        """Make `changes` in the plan as one step of the undo history. Raises InputError for an
        invalid value, and if the plan has all of the changes already."""
        plan = self.plan
        for change in changes:
            plan = self._plan_with_change(plan, change)
        if plan == self.plan:
            text = f"the plan under edit has this already: {option_texts_of_changes(changes)}"
            raise InputError(text, next_step="start the plan again, or read the other findings")
        self._change_plan(plan)

    def _plan_with_change(self, plan: LaunchPlan, change: PlanChange) -> LaunchPlan:
        name, value = change.name, change.value
        if change.env:
            return plan.without_env(name) if value is None else plan.with_env(name, value)
        text = str(value or "")
        if name == engines.EXECUTABLE:
            return engines.set_executable(plan, text)
        if engines.is_launcher_row(name):
            return set_launcher_row(plan, name, text)
        if value is None:
            return plan.without_flag(name)
        return engines.set_flag(plan, self.catalog, name, value)

    def undo(self) -> None:
        if self._undo:
            self._redo.append(self.plan)
            self.plan = self._undo.pop()

    def redo(self) -> None:
        if self._redo:
            self._undo.append(self.plan)
            self.plan = self._redo.pop()

    def change_plan_and_history(self, change: Callable[[LaunchPlan], LaunchPlan]) -> None:
        """Apply `change`, which follows from another host, to the plan, to the plan before the
        edits, and to every plan of the undo history. No undo reverses it."""
        self.base, self.plan = change(self.base), change(self.plan)
        self._undo, self._redo = [*map(change, self._undo)], [*map(change, self._redo)]

    def _change_plan(self, plan: LaunchPlan) -> None:
        # not a flag that was set twice
        if not plan_differences(self.plan, plan) and len(plan.flags) == len(self.plan.flags):
            return
        self._undo = [*self._undo, self.plan][-MAX_UNDO_STEPS:]
        self._redo.clear()
        self.plan = plan

    def launch_command(self) -> Command:
        """Return the command that starts the engine with the plan; with several nodes, that of the
        first node. Raises PlanError if no command can be made."""
        plan = self.effective_plan
        first_node = plan.nodes[0] if plan.nodes else None
        return self.engine.command(plan, first_node, self.catalog)

    def make_launcher_command(self) -> Command | None:
        """Return the command with which the plan's launcher starts the server, with secrets masked.
        RUN stands for the run id, which is not known before the start. None if Workbench starts the
        server as a process without a launcher, for a plan with nodes, or if no command can be
        made."""
        try:
            launcher = launcher_of(self.plan.run_as)
            if launcher is None or self.plan.nodes:
                return None
            command = self.launch_command()
        except WorkbenchError:
            return None
        # loads modules that a process does not need
        from workbench.server.launchers.launcher import launch_from_command

        launch = launch_from_command(RUN_ID, RUN_DIR, self.effective_plan, command)
        shown, values = mask_command(launcher.command(launch)), secret_values(command)
        return replace(
            shown,
            argv=tuple(mask_text(word, values) for word in shown.argv),
            files={name: mask_text(text, values) for name, text in shown.files.items()},
        )

    def node_commands(self) -> tuple[tuple[Node, Command], ...]:
        """Return each node with its command. () for a plan of one host, or if no command can be
        made."""
        found = []
        try:
            plan = self.effective_plan
            for node in plan.nodes:
                found.append((node, self.engine.command(plan, node, self.catalog)))
        except WorkbenchError:
            return ()
        return tuple(found)

    def findings(self) -> tuple[Finding, ...]:
        """Return the problems and hints about the plan, in no order of severity. If no command can
        be made, an error says why."""
        found = []
        try:
            self.launch_command()
        except WorkbenchError as error:
            found = [Finding(Level.ERROR, "plan.command", error.message, fix=error.next_step)]
        for part in self.untrusted_preset_parts():
            found.append(part.finding_with_fix("look at the preset, then start it with --trust"))
        if self.host_context.places:
            found += self._cluster_findings()
        found += self._executable_findings()
        found += engines.validate_plan(
            self.effective_plan,
            self.catalog,
            installed_version=self.host_context.installed_version,
            gpus=self.host_context.gpus,
            allotment=self.allotment,
        )
        return tuple(found)

    def list_flag_value_warnings(self, sets: Sequence[str]) -> tuple[Finding, ...]:
        """Return the warnings that the engine may not have the values of some flags. `sets` are
        assignments such as "kv-cache-dtype=fp8"; only the flags that they name are checked."""
        names = set()
        for assignment in sets:
            flag = assignment.partition("=")[0].strip().lstrip("-")
            names.add(engines.canonical_flag_name(self.catalog, flag))
        found = (finding for finding in self.findings() if finding.flag in names)
        return tuple(finding for finding in found if finding.code in DOUBTFUL_FINDINGS)

    def untrusted_preset_parts(self) -> tuple[ForeignPresetPart, ...]:
        """Return the parts that the plan's preset runs besides its engine and that the user has not
        trusted."""
        return list_untrusted_parts(self.plan, self.host_context.trusted)

    def _cluster_findings(self) -> Iterator[Finding]:
        """Yield findings about a plan on a cluster: problems of its nodes, and a missing reserve of
        memory."""
        yield from cluster_findings(self.effective_plan, self.engine, self.host_context.places)
        yield from report_missing_cluster_memory_reserve(
            self.host_context.gpus, self.host_context.reserve_gib
        )

    def _executable_findings(self) -> Iterator[Finding]:
        """Yield findings about the program that starts the engine, for example that the program is
        missing."""
        plan, title = self.plan, self.engine.title
        if plan.executable_from in FILES:
            text = (
                f"{title} is started by {plan.executable[0]}, which {plan.executable_from} "
                "names for this host"
            )
            yield Finding(
                Level.INFO,
                "engine.executable",
                text,
                engines.EXECUTABLE,
                f"to start another one, {engines.NAME_PROGRAM_STEP}",
            )
        if self.host_context.installed_problem:
            fix = f"install {title}, or "
            if self.host_context.executables:
                fix = f"found here: {', '.join(self.host_context.executables)}; "
            fix += engines.NAME_PROGRAM_STEP
            yield Finding(
                Level.WARN,
                "engine.missing",
                self.host_context.installed_problem,
                engines.EXECUTABLE,
                fix,
            )

        if self.host_context.not_asked:
            text = (
                f"checked against the shipped flag list of {title} {self.catalog.version}: "
                f"{self.host_context.not_asked}"
            )
            yield Finding(Level.INFO, "flags.shipped", text, engines.EXECUTABLE)

    def flag_rows(self, view: str = "changed", query: str = "") -> Sequence[FlagRow]:
        """Return rows of flags. `view` is "changed" (flags that are set) or "all" (the whole
        catalog, the most used first, then group by group). A query searches names, groups and help,
        with the best match first."""
        rows = self._rows_with_findings(self.findings(), "all" if query else view)
        if query:
            return self._search_rows(rows, query)
        if view != "all":
            return rows
        flags = [row for row in rows if not row.is_env]
        flags.sort(key=lambda row: engines.sort_key_of_flag(row.spec))
        return flags + [row for row in rows if row.is_env]

    def _search_rows(self, rows: Sequence[FlagRow], query: str) -> Sequence[FlagRow]:
        """Return the rows that a query finds, the best match first."""
        wanted = query.lower()
        # a catalog may lack these
        own = (self.engine.model_flags[0], engines.EXECUTABLE, engines.RUN_AS)
        names = [name for name in own if name.startswith(wanted)]
        for search in (engines.search_flags, engines.search_variables):
            names += [spec.name for spec in search(self.catalog, query)]
        ranks = {name: rank for rank, name in enumerate(dict.fromkeys(names))}
        found = [row for row in rows if row.name in ranks or wanted in row.name.lower()]
        return sorted(found, key=lambda row: ranks.get(row.name, len(ranks)))

    def _rows_with_findings(self, findings: tuple[Finding, ...], view: str) -> tuple[FlagRow, ...]:
        name = self.engine.model_flags[0]
        rows = engines.make_flag_rows(self.effective_plan, self.catalog, findings, view=view)
        by_name = {row.name: row for row in rows}
        model = by_name.get(name)
        if model is None:
            spec = self.catalog.flags.get(name)
            texts = engines.most_severe_finding_text_and_level(findings, name)
            model = FlagRow(name, self.plan.model, None, Origin.PRESET, spec, *texts)
        origin = Origin.EDITED if self.plan.model != self.base.model else Origin.PRESET
        return (
            replace(model, value=self.plan.model, default=None, origin=origin),
            self._executable_row(findings),
            *engines.make_launcher_rows(self.plan, self.base, view),
            *(row for row in rows if row.name != name),
            *(self._rows_of_removed_settings(findings) if view == "changed" else ()),
        )

    def _rows_of_removed_settings(self, findings: tuple[Finding, ...]) -> Iterator[FlagRow]:
        """Yield a row without a value for each flag and variable that the preset sets and the plan
        no longer has, because that is a change too."""
        for change in plan_differences(self.base, self.plan):
            if change.b is not None or change.kind not in ("flag", "env"):
                continue
            is_env = change.kind == "env"
            spec = None if is_env else self.catalog.flags.get(change.name)
            text, level = engines.most_severe_finding_text_and_level(findings, change.name)
            yield FlagRow(
                name=change.name,
                value=None,
                default=None if spec is None else spec.default,
                origin=Origin.EDITED,
                spec=spec,
                finding=text,
                level=level,
                is_env=is_env,
            )

    def _executable_row(self, findings: tuple[Finding, ...]) -> FlagRow:
        import shlex

        name, own = engines.EXECUTABLE, shlex.join(self.engine.launch[:1])
        about = "Program that starts the engine: on PATH, or a path."
        spec = FlagSpec(name, FlagKind.STR, default=own, help=about, most_used=1)
        value = shlex.join(self.plan.executable) or None
        origin = Origin.PRESET
        if value is None:
            origin = Origin.DEFAULT
        elif self.plan.executable != self.base.executable:
            origin = Origin.EDITED
        return FlagRow(
            name,
            value,
            own,
            origin,
            spec,
            *engines.most_severe_finding_text_and_level(findings, name),
        )

    def view(self) -> PlanView:
        """Return the plan as it is shown, with every secret masked."""
        findings = self.findings()
        command: Command | None = None
        secrets: Sequence[str] = ()
        with suppress(WorkbenchError):
            launch_command = self.launch_command()
            command, secrets = mask_command(launch_command), secret_values(launch_command)
        estimate = self.estimate_memory()
        return PlanView(
            plan=mask_secrets_of_plan(self.effective_plan),
            rows=tuple(map(mask_row, self._rows_with_findings(findings, "changed"))),
            findings=tuple(_mask_finding(finding, secrets) for finding in findings),
            command=command,
            run_command=self.make_launcher_command(),
            catalog_version=self.catalog.version,
            catalog_asked=self.catalog.asked is not None,
            total_flags=len(self.catalog.flags),
            installed=self.host_context.installed,
            installed_problem=self.host_context.installed_problem,
            executables=self.host_context.executables,
            memory=None if isinstance(estimate, str) else estimate.text,
            changes=tuple(map(mask_secrets_of_difference, plan_differences(self.base, self.plan))),
            can_undo=self.can_undo,
            can_redo=bool(self._redo),
            title=self.title,
            nodes=tuple((node, mask_command(its)) for node, its in self.node_commands()),
        )


def _mask_finding(finding: Finding, secrets: Sequence[str]) -> Finding:
    changes = tuple(_mask_change(change, secrets) for change in finding.changes)
    return replace(finding, text=mask_text(finding.text, secrets), changes=changes)


def _mask_change(change: PlanChange, secrets: Sequence[str]) -> PlanChange:
    if change.value is None:
        return change
    is_secret = is_secret_name(change.name) or str(change.value) in secrets
    return replace(change, value=MASK) if is_secret else change
