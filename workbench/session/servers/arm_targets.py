"""The targets of an experiment's arms. A target is a configuration that is started for each run, a
run that is measured as it is, or the URL of a server that others started. The two targets may be on
different hosts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from workbench.bench import experiment as design
from workbench.engines import set_executable
from workbench.engines.preset_trust import list_untrusted_parts
from workbench.model.errors import InputError, PlanError, SettingsError, WorkbenchError
from workbench.model.experiment import Arm, ArmTarget, ExperimentSpec
from workbench.model.json_records import from_json
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan
from workbench.model.secrets import MASK, mask_secrets_of_plan
from workbench.model.server_run import ServerState
from workbench.session.conditions import gpu_indices_of_plan
from workbench.session.plans.plan_editor import PlanEditor
from workbench.session.servers import server_address
from workbench.store.trusted_presets import trust_digests, trusted_digests

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo
    from workbench.model.server_run import ServerStatus
    from workbench.model.setting_records import SettingOutcome
    from workbench.session.bench.benchmark_load import BenchmarkLoad
    from workbench.session.hosts.other_hosts import OtherHosts
    from workbench.session.plans.plans import Plans
    from workbench.session.plans.presets import Presets
    from workbench.session.session import Session

BasePlans = Mapping[str, LaunchPlan]  # arm -> the plan that it starts from, with its secrets
_MIN_RUN_ID_CHARACTERS = 4  # of a part of a run id that names the run


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One of the servers that an experiment compares, with its host. If the experiment starts the
    server, `editor` has the server's plan. If a server is measured as it is, `run_id` or `url`
    names that server and `editor` is None."""

    session: Session
    editor: PlanEditor | None = None
    run_id: str | None = None
    url: str | None = None

    @property
    def measured_run_id_or_url(self) -> str | None:
        """The run id or URL of a server that is measured as it is. None if the experiment starts
        the server itself."""
        return self.run_id or self.url

    @property
    def is_on_session_host(self) -> bool:
        """Whether the server is on the session's host, and not at a URL of another machine."""
        return self.url is None or server_address.parse_server_url(self.url).loopback

    @property
    def plan(self) -> LaunchPlan | None:
        if self.editor is not None:
            return self.editor.plan
        if not self.run_id:
            return None
        return self.session.servers.supervisor.record(self.run_id).plan

    @property
    def effective_plan(self) -> LaunchPlan | None:
        """The plan with which the server is or was started, with the version of the installed
        engine. None for a server at a URL."""
        return self.editor.effective_plan if self.editor is not None else self.plan

    def open_benchmark_load(self, run_id: str) -> AbstractAsyncContextManager[BenchmarkLoad]:
        """Allow requests to the server while the block runs, and yield the load. `run_id` is the
        run of a server that the experiment started."""
        if self.url is not None:
            return self.session.server_load.open_load_on_url(self.url, {})
        return self.session.server_load.open_load_on_run(run_id, {})

    async def gpu_indexes_and_uses_all(self) -> tuple[tuple[int, ...], bool]:
        """Return the indices of the server's GPUs, and whether those are all GPUs of the host."""
        infos = (await self.session.telemetry.get_recent_reading()).infos
        gpus = gpu_indices_of_plan(self.plan, infos)
        return gpus, len(gpus) == len(infos)

    async def gpu_indexes_or_all(self) -> Sequence[int | None]:
        """Return for which GPUs a setting is applied: (None,), which stands for all GPUs of the
        host, if the server uses all of them."""
        gpus, uses_all = await self.gpu_indexes_and_uses_all()
        return (None,) if uses_all else gpus


@asynccontextmanager
async def hold_measurement_locks(
    sides: Mapping[str, ComparedSide], lock_text: str
) -> AsyncIterator[None]:
    """Hold the measurement lock of each side's host while the block runs, so that no other
    Workbench measures there. `lock_text` tells other Workbenches who holds the lock. A server at a
    URL of another machine needs no lock: only the load comes from here."""
    sessions = {
        side.session.host.name: side.session for side in sides.values() if side.is_on_session_host
    }
    async with AsyncExitStack() as stack:
        for name in sorted(sessions):
            await stack.enter_async_context(sessions[name].measurement_lock.hold_lock(lock_text))
        yield


class ArmTargets:
    """Looks up the servers that an experiment's arms name, and checks them before anything is
    started."""

    def __init__(self, plans: Plans, hosts: OtherHosts) -> None:
        self._plans, self._hosts = plans, hosts

    async def resolve_targets(
        self, a: Arm, b: Arm, variables: Mapping[str, str] | None = None
    ) -> tuple[Arm, Arm, BasePlans]:
        """Return (arm A, arm B, plans): the arms with each target resolved to a host and a server,
        and for each arm the plan to which its changes will be applied. `variables` are values for
        variables of presets. An arm without a target uses the plan under edit. Raises InputError
        for an unknown target."""
        if a.target is None and b.target is None:
            return a, b, {}
        found, bases = [], {}
        for name, arm in (("A", a), ("B", b)):
            plan: LaunchPlan | None
            if arm.target is None:
                target, plan = ArmTarget(self._plans.editor.title), self._plans.editor.plan
            elif arm.target.is_looked_up:
                found.append(arm)
                continue
            else:
                target, plan = await self._find_target(arm, arm.target, variables)
            if plan is not None:
                bases[name] = plan
                target = replace(
                    target, plan=asdict(mask_secrets_of_plan(plan)), preset_id=plan.preset_id
                )
            found.append(replace(arm, target=target))
        return found[0], found[1], bases

    async def _find_target(
        self, arm: Arm, target: ArmTarget, variables: Mapping[str, str] | None
    ) -> tuple[ArmTarget, LaunchPlan | None]:
        """Find what an arm of an experiment names: a URL, a run or a preset. Return (target with
        the full URL or run id, plan to start). The plan is None if a running server is measured as
        it is."""
        name, session = target.name, await self._hosts.get_session(target.host)
        needs_own_server = arm.changes_launch or target.executable
        if "://" in name:
            if needs_own_server:
                raise InputError(
                    f"Workbench did not start {name}, so it cannot change that server's flags",
                    next_step="give a preset or a run that Workbench started",
                )
            return replace(target, url=server_address.parse_server_url(name).base), None
        run = _find_named_run(await session.servers.supervisor.runs(), name)
        if run is None:
            return target, _plan_with_program(
                session.presets.make_plan(name, variables), target.executable
            )
        if needs_own_server:
            plan = session.servers.supervisor.record(run.run_id).plan
            if MASK in repr(plan):
                raise InputError(
                    f"run {run.run_id} was started with a secret, which Workbench does not store",
                    next_step="give the preset from which the run was started",
                )
            # the experiment stops it, like the selected run of a common base
            if run.state.is_alive:
                await session.servers.select(run.run_id)
            return replace(target, name=run.run_id), _plan_with_program(plan, target.executable)
        if run.state is not ServerState.READY:
            raise InputError(
                f"run {run.run_id} is {run.state}, not READY",
                host=session.host.name,
                next_step="give a READY run (`workbench servers` lists the runs), or a preset to "
                "start",
            )
        return replace(target, name=run.run_id, run_id=run.run_id), None

    def trust_preset_parts_of_plans(self, bases: BasePlans) -> None:
        """Trust all programs and code that the presets of these plans run besides their engines.
        `bases` has the plan of each arm of an experiment. The trust is stored, so it also holds for
        later plans."""
        trust_digests(
            part.digest
            for plan in bases.values()
            for part in list_untrusted_parts(plan, trusted_digests())
        )

    async def preview_setting_changes(
        self, arms: Mapping[str, Arm], bases: BasePlans, twin_hosts: Sequence[str] = ()
    ) -> Sequence[SettingOutcome]:
        """Return what an experiment with these arms does to GPU settings, as the outcomes of a dry
        run on `twin_hosts`, or else on the host of each arm. Raises WorkbenchError for a value that
        a GPU does not allow."""
        found: list[SettingOutcome] = []
        for name, arm in arms.items():
            if not arm.gpu:
                continue
            base, target = bases.get(name), arm.target or ArmTarget("")
            editor = PlanEditor(base) if base is not None else None
            for host in twin_hosts or (target.host,):
                session = await self._hosts.get_session(host)
                gpus, _ = await ComparedSide(
                    session, editor, run_id=target.run_id
                ).gpu_indexes_and_uses_all()
                by_gpu = dict.fromkeys(map(str, gpus), arm.gpu)
                found += (await session.gpu.apply_settings_by_gpu(by_gpu, dry_run=True)).outcomes
        return found

    async def make_checked_sides(
        self, spec: ExperimentSpec, arms: Mapping[str, Arm], bases: BasePlans
    ) -> dict[str, ComparedSide]:
        """Return the host and the server of each side of an experiment by name: "A" and "B", or "A
        on HOST" if two hosts with equal hardware (twins) are used. Raises PlanError for a plan that
        an engine would reject, and SettingsError for GPU settings that cannot be applied. Raises
        InputError if the two hosts differ in GPUs, driver or engine."""
        sides = {}
        for name, (arm_name, twin) in design.arm_and_host_by_side(spec).items():
            arm, target = arms[arm_name], arms[arm_name].target
            if target is not None and target.plan is None:
                if twin is not None:
                    raise InputError(
                        f"arm {arm_name} is a server that runs already, but on twins each run "
                        "starts its own server",
                        next_step="give a preset, or a run together with a changed flag",
                    )
                side = await self._side_of_existing_server(name, target)
            else:
                side = await self._side_with_new_server(name, arm, bases[arm_name], twin)
            await _check_settings_can_be_applied(name, arm, side)
            sides[name] = side
        if spec.twins:
            await check_twin_hosts_match(spec.twins, sides)
        return sides

    async def _side_of_existing_server(self, name: str, target: ArmTarget) -> ComparedSide:
        session = await self._hosts.get_session(target.host)
        if target.url is not None:
            await _require_server_reachable(name, session, target.url)
        return ComparedSide(session, run_id=target.run_id, url=target.url)

    async def _side_with_new_server(
        self, name: str, arm: Arm, base: LaunchPlan, twin: str | None
    ) -> ComparedSide:
        """Return a side whose server the experiment starts, on the host `twin` if there is one."""
        target = arm.target or ArmTarget(self._plans.editor.title)
        session = await self._hosts.get_session(twin or target.host)
        editor = PlanEditor(base, f"{target.name}, {name}")
        return ComparedSide(
            session, await self._apply_arm_and_check_plan(name, arm, editor, session, twin)
        )

    async def _apply_arm_and_check_plan(
        self, name: str, arm: Arm, editor: PlanEditor, session: Session, twin: str | None
    ) -> PlanEditor:
        """Apply the changes of an arm to its plan, and check that the plan can be started."""
        current = self._plans.current
        if current is not None and arm.target is None and twin is None:
            editor.host_context = current.host_context
        else:
            infos = (await session.telemetry.get_recent_reading()).infos
            editor.host_context = replace(
                editor.host_context, gpus=infos, trusted=trusted_digests()
            )
            await session.plans.probe_engine_and_model(editor)
        try:
            editor.apply_assignments(arm.sets, arm.unsets, arm.envs)
            session.servers.require_startable_plan(editor.effective_plan, editor)
        except InputError as error:
            text = f"{name}: {error.message}"
            raise PlanError(text, next_step=error.next_step, findings=error.findings) from None
        return editor


def arms_and_plans_with_secrets(
    presets: Presets, spec: ExperimentSpec
) -> tuple[Arm, Arm, dict[str, LaunchPlan]]:
    """Return (arm A, arm B, plans) of a stored experiment with its masked secrets filled in;
    `plans` has the plan of each arm by "A" and "B". A secret comes from the environment variable of
    that name in this process, or from the preset. Raises PlanError if a secret is missing."""
    known = dict(os.environ)
    for arm in (spec.a, spec.b):
        preset_id = spec.preset_id if arm.target is None else arm.target.preset_id
        if preset_id is not None and MASK in repr(spec):
            plan = presets.make_plan(preset_id)
            for setting in (*plan.env, *plan.flags):
                if setting.value != MASK:
                    known[setting.name] = str(setting.value)

    def secret(name: str) -> str:
        if name not in known:
            raise PlanError(
                f"{name} is a secret, which Workbench does not store",
                next_step=f"set the environment variable {name}",
            )
        return known[name]

    def unmask(assignment: str) -> str:
        name, _, value = assignment.partition("=")
        return f"{name}={secret(name)}" if value == MASK else assignment

    bases = {}
    for name in ("A", "B"):
        body = design.plan_json_of_arm(spec, name)
        if not body:
            continue
        plan = from_json(LaunchPlan, body)
        for setting in (*plan.env, *plan.flags):
            if setting.value == MASK:
                with_value = plan.with_env if setting in plan.env else plan.with_flag
                plan = with_value(setting.name, secret(setting.name))
        bases[name] = plan

    def unmask_arm(arm: Arm) -> Arm:
        return replace(arm, sets=tuple(map(unmask, arm.sets)), envs=tuple(map(unmask, arm.envs)))

    return unmask_arm(spec.a), unmask_arm(spec.b), bases


def plan_with_secrets(presets: Presets, plan: LaunchPlan) -> LaunchPlan:
    """Return the recorded plan of a run with its masked secrets filled in. A secret comes from the
    environment variable of that name in this process, or from the plan's preset. Raises PlanError
    if a secret is missing."""
    spec = ExperimentSpec(Arm(), Arm(), asdict(plan), plan.preset_id)
    *_, plans = arms_and_plans_with_secrets(presets, spec)
    return plans["A"]


async def check_twin_hosts_match(hosts: Sequence[str], sides: Mapping[str, ComparedSide]) -> None:
    """Raise InputError if two hosts differ in GPUs, driver or engines; the error's message lists
    the differences. `sides` has the sides of the experiment on both hosts by name, "A on HOST"."""
    facts: list[dict[str, str]] = []
    for host in hosts:
        found: dict[str, str] = {}
        for name, side in sides.items():
            if name.endswith(f" on {host}"):
                found |= await _facts_equal_on_twins(name[:1], side)
        facts.append(found)
    first, second = facts
    differing = []
    for what in first:
        if first[what] != second[what]:
            differing.append(f"{what}: {first[what]} and {second[what]}")
    if differing:
        raise InputError(
            f"{hosts[0]} and {hosts[1]} are not twins, so what the machine does cannot be told "
            "from the change: " + "; ".join(differing),
            next_step="use hosts with the same GPUs, driver and engine, or compare both on one "
            "host",
        )


def _find_named_run(statuses: Sequence[ServerStatus], name: str) -> ServerStatus | None:
    """Return the run whose id is `name`, or begins or ends with `name` if that has at least four
    characters. None if there is no such run. Raises InputError if several ids begin or end so."""
    hits = []
    for status in statuses:
        if status.run_id == name:
            return status
        if status.run_id.startswith(name) or status.run_id.endswith(name):
            hits.append(status)
    if len(name) < _MIN_RUN_ID_CHARACTERS:
        return None
    if len(hits) > 1:
        raise InputError(
            f"{len(hits)} runs match {name!r}",
            next_step="give the whole run id; `workbench servers` lists the runs",
        )
    return hits[0] if hits else None


async def _facts_equal_on_twins(arm: str, side: ComparedSide) -> Mapping[str, str]:
    """Return what must be equal on the hosts of twins, by name: the GPUs and the engine of an arm,
    "A" or "B", and the driver."""
    telemetry = await side.session.telemetry.get_recent_reading()
    gpus, _ = await side.gpu_indexes_and_uses_all()
    models = [_gpu_hardware_text(info) for info in telemetry.infos if info.index in gpus]
    installed = side.editor.host_context.installed if side.editor is not None else None
    return {
        f"GPUs of {arm}": ", ".join(models) or "none",
        "driver": telemetry.driver.driver_version or "unknown",
        f"engine of {arm}": installed or "not found",
    }


def _gpu_hardware_text(info: GpuInfo) -> str:
    gib = f" {info.memory_total_bytes / 2**30:.0f} GiB" if info.memory_total_bytes else ""
    limit = f" {info.power_max_w:.0f} W" if info.power_max_w else ""
    return f"{info.name}{gib}{limit}"


def _plan_with_program(plan: LaunchPlan, executable: str | None) -> LaunchPlan:
    return set_executable(plan, executable) if executable is not None else plan


async def _require_server_reachable(name: str, session: Session, url: str) -> None:
    try:
        async with session.server_load.open_load_on_url(url, {}):
            pass
    except WorkbenchError as error:
        error.message = f"{name}: {error.message}"
        raise


async def _check_settings_can_be_applied(name: str, arm: Arm, side: ComparedSide) -> None:
    if not arm.gpu:
        return
    for gpu in await side.gpu_indexes_or_all():
        try:
            commands = await side.session.gpu.plan_setting_commands(arm.gpu, gpu)
        except (InputError, SettingsError) as error:
            error.message = f"{name}: {error.message}"
            raise
        for command in commands:
            if command.right:
                raise SettingsError(
                    f"{name}: {command.gpu_or_host_name}: {command.right}",
                    host=side.session.host.name,
                )
