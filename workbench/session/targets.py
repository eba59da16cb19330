"""What the arms of an experiment are measured on: a configuration that is started for each run, a run that stays as it
is, or a server that others started; each here or on another host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from workbench.model.errors import InputError, PlanError, SettingsError, WorkbenchError
from workbench.model.server_run import ServerState
from workbench.session.conditions import gpus_of
from workbench.session.serving import LIVE
from workbench.session.sweeping import Sweeping

if TYPE_CHECKING:
    from workbench.model.experiment import Arm, Target
    from workbench.model.plan import LaunchPlan
    from workbench.session.editor import PlanEditor
    from workbench.session.session import Session

Bases = Mapping[str, "LaunchPlan"]  # arm -> the plan that it starts from, with its secrets
_LEAST = 4  # characters of a run id that name it


@dataclass(frozen=True, slots=True)
class Side:
    """One arm. `editor`: of the server that is started for it; without one a run or a URL is measured as it is."""

    session: Sweeping
    editor: PlanEditor | None = None
    run_id: str | None = None
    url: str | None = None

    @property
    def standing(self) -> str | None:
        """The server that is there already."""
        return self.run_id or self.url

    @property
    def plan(self) -> LaunchPlan | None:
        if self.editor is not None:
            return self.editor.plan
        return self.session.supervisor.record(self.run_id).plan if self.run_id else None

    async def gpus(self) -> tuple[tuple[int, ...], bool]:
        """Of the server, and whether these are all of the host."""
        infos = (await self.session.reading()).infos
        gpus = gpus_of(self.plan, infos)
        return gpus, len(gpus) == len(infos)


class Targeting(Sweeping):
    _hosts: dict[str, Session] | None = None  # other hosts of an experiment

    async def on_host(self, name: str | None) -> Sweeping:
        """The session of a host: this one, or one that is opened now and closed with this one."""
        if name is None or name == self.host.name:
            return self
        from workbench.session.session import Session

        self._hosts = self._hosts or {}
        if name not in self._hosts:
            other = Session.of_host(name)
            other.ask, other.wait_turn, other.tell_turn = self.ask, self.wait_turn, self.tell_turn
            self._hosts[name] = other
            try:
                await other.connect()
            except BaseException:
                del self._hosts[name]
                await other.close()
                raise
        return self._hosts[name]

    @property
    def all_hosts(self) -> Sequence[Sweeping]:
        """The sessions of this host and of those that were opened for an experiment."""
        return (self, *(self._hosts or {}).values())

    async def leave_hosts(self) -> None:
        hosts, self._hosts = self._hosts or {}, None
        for other in hosts.values():
            await other.close()

    async def look_up(self, a: Arm, b: Arm, variables: Mapping[str, str] | None = None) -> tuple[Arm, Arm, Bases]:
        """Both arms with their targets looked up, and the plans that they start from. An arm without a target beside
        one that has one is the plan under edit. Raises InputError for a name that means nothing."""
        if a.target is None and b.target is None:
            return a, b, {}
        from workbench.model.experiment import Target
        from workbench.model.secrets import mask_plan

        found, bases = [], {}
        for name, arm in (("A", a), ("B", b)):
            if arm.target is None:
                plan: LaunchPlan | None = self.editor.plan
                target = Target(self.editor.title)
            elif arm.target.known:
                found.append(arm)
                continue
            else:
                target, plan = await self._found(arm, arm.target, variables)
            if plan is not None:
                bases[name] = plan
                target = replace(target, plan=asdict(mask_plan(plan)), preset_id=plan.preset_id)
            found.append(replace(arm, target=target))
        return found[0], found[1], bases

    async def _found(
        self, arm: Arm, target: Target, variables: Mapping[str, str] | None
    ) -> tuple[Target, LaunchPlan | None]:
        from workbench.model.secrets import MASK

        there = await self.on_host(target.host)
        if "://" in target.name:
            from workbench.session import addresses

            if arm.relaunches or target.executable:
                raise InputError(
                    f"{target.name} was started by others: its flags cannot be changed",
                    next_step="give a preset or a run that Workbench started",
                )
            return replace(target, url=addresses.parse(target.name).base), None
        statuses = await there.supervisor.runs()
        name = target.name
        exact = [s for s in statuses if s.run_id == name]
        near = [s for s in statuses if len(name) >= _LEAST and (s.run_id.startswith(name) or s.run_id.endswith(name))]
        hits = exact or near
        if not hits:
            return target, _started_by(there.plan_of(name, variables), target.executable)
        if len(hits) > 1:
            raise InputError(f"{len(hits)} runs match {name!r}", next_step="workbench servers lists the runs")
        run = hits[0]
        if arm.relaunches or target.executable:
            plan = there.supervisor.record(run.run_id).plan
            if plan is None or MASK in repr(plan):
                raise InputError(
                    f"run {run.run_id} was started with a key, which is not kept", next_step="give its preset instead"
                )
            if run.state in LIVE:  # it makes room, as the run of a common base does
                await there.select_run(run.run_id)
            return replace(target, name=run.run_id), _started_by(plan, target.executable)
        if run.state is not ServerState.READY:
            raise InputError(
                f"run {run.run_id} is {run.state}, not READY",
                host=there.host.name,
                next_step="workbench servers lists the runs; a preset is started for each run",
            )
        return replace(target, name=run.run_id, run_id=run.run_id), None

    def trust_bases(self, bases: Bases) -> None:
        """Agree to what these plans' presets make run."""
        from workbench.engines.preset_trust import untrusted
        from workbench.store.trusted_presets import trust, trusted

        trust(part.digest for plan in bases.values() for part in untrusted(plan, trusted()))

    async def sides(self, arms: Mapping[str, Arm], bases: Bases) -> dict[str, Side]:
        """What the arms are measured on. Raises PlanError for what an engine would refuse and SettingsError for what a
        GPU cannot be set to, before anything is started."""
        from workbench.session.editor import PlanEditor
        from workbench.store.trusted_presets import trusted

        sides = {}
        for name, arm in arms.items():
            target = arm.target
            there = await self.on_host(target.host if target else None)
            if target is not None and target.plan is None:
                side = Side(there, run_id=target.run_id, url=target.url)
                if target.url is not None:
                    await _answers(name, there, target.url)
            else:
                editor = PlanEditor(bases[name], f"{target.name if target else self.editor.title}, {name}")
                if target is None:
                    editor.around = self.editor.around
                else:
                    editor.around = replace(editor.around, gpus=(await there.reading()).infos, trusted=trusted())
                    await there.survey(editor)
                try:
                    editor.assign(arm.sets, arm.unsets, arm.envs)
                    there._startable(editor.effective, editor)
                except InputError as error:
                    said = f"{name}: {error.message}"
                    raise PlanError(said, next_step=error.next_step, findings=error.findings) from None
                side = Side(there, editor)
            await _settable(name, arm, side)
            sides[name] = side
        return sides


def _started_by(plan: LaunchPlan, executable: str | None) -> LaunchPlan:
    from workbench.engines import with_executable

    return with_executable(plan, executable) if executable is not None else plan


async def _answers(name: str, there: Sweeping, url: str) -> None:
    try:
        async with there.aim_at_url(url, {}):
            pass
    except WorkbenchError as error:
        error.message = f"{name}: {error.message}"
        raise


async def _settable(name: str, arm: Arm, side: Side) -> None:
    """SettingsError where the arm's GPU settings cannot be made: out of the driver's range, or no right to."""
    if arm.gpu.empty:
        return
    gpus, every = await side.gpus()
    for gpu in [None] if every else gpus:
        try:
            commands = await side.session.plan_gpu(arm.gpu, gpu)
        except (InputError, SettingsError) as error:
            error.message = f"{name}: {error.message}"
            raise
        refused = next((c for c in commands if c.right), None)
        if refused is not None:
            raise SettingsError(f"{name}: {refused.where}: {refused.right}", host=side.session.host.name)
