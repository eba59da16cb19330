"""A sweep that was stopped, killed or out of time goes on: the values that are missing, then the pairs."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.model.errors import InputError, ServerError, SettingsError, WorkbenchError
from workbench.model.sweep import Sweep, SweepSpec, taken_up
from workbench.session.serving import LIVE
from workbench.session.sweeping import Work
from workbench.session.targets import Targeting

if TYPE_CHECKING:
    from workbench.model.experiment import Arm, ExperimentSpec
    from workbench.model.plan import LaunchPlan
    from workbench.model.settings import SettingCommand
    from workbench.session.sweep_gpu import Start, Value


class SweepResuming(Targeting):
    async def resume_sweep(
        self, sweep_id: int, *, max_minutes: float | None = None, password: str | None = None
    ) -> Sweep:
        """Go on with a sweep in its own record. `max_minutes`: of a flag sweep, from now; None: without end."""
        async with self._only_sweep(f"sweep {sweep_id}"):
            with self.sweeps.taken(sweep_id) as sweep:
                spec = self._resumable(sweep)
                await self.supervisor.runs()
                if sweep.kind == "flag":
                    work = await self._flags_again(sweep, replace(spec, max_minutes=max_minutes))
                else:
                    work = await self._setting_again(sweep, spec, password)
                return await self._run_sweep(taken_up(sweep), work)

    async def plan_sweep_resume(self, sweep_id: int) -> Mapping[str, Sequence[SettingCommand]]:
        """What going on with a sweep of a GPU setting would run, as `plan_gpu_sweep` tells it. Nothing is changed."""
        sweep = await asyncio.to_thread(self.sweeps.get, sweep_id)
        wanted, start = await self._setting_now(sweep, self._resumable(sweep))
        missing = [v for v, p in zip(wanted, sweep.points, strict=True) if p.state != "done"]
        return await self._commands_of(missing or wanted, start, None)

    def _resumable(self, sweep: Sweep) -> SweepSpec:
        """Its inputs. Raises InputError where it cannot go on."""
        from workbench.model.secrets import MASK

        which = f"sweep {sweep.id}"
        if sweep.host != self.host.name:
            raise InputError(
                f"{which} was made on {sweep.host}",
                host=self.host.name,
                next_step=f"resume it there: workbench --host {sweep.host} …",
            )
        if sweep.state == "running":
            raise InputError(f"another Workbench is running {which}", next_step="wait, or stop it there")
        if sweep.spec is None:
            why = "of a concurrency" if sweep.kind == "concurrency" else "of an older Workbench, which kept no inputs"
            raise InputError(f"{which} cannot be resumed: it is {why}", next_step="make a new one")
        if not sweep.resumable:
            raise InputError(f"{which} is finished", next_step="make a new one for other values")
        if MASK in repr(sweep.spec.bench) or MASK in repr(sweep.spec.values):
            raise InputError(
                f"{which} cannot be resumed: its inputs hold a secret, which is not kept", next_step="make a new one"
            )
        return sweep.spec

    def _same(self, sweep: Sweep, spec: SweepSpec, now: Mapping[str, str]) -> None:
        """Values that were measured on something else could not be compared with those that are missing."""
        for name, was in spec.measured.items():
            is_now = now.get(name)
            if is_now != was:
                is_there = f"{name} is {is_now} now" if is_now else f"{name} is not known now"
                raise InputError(
                    f"sweep {sweep.id} cannot be resumed: it was measured with {name} {was}, and {is_there}",
                    host=self.host.name,
                    next_step="make a new sweep: values of both could not be compared",
                )

    # ---- a GPU setting

    async def _setting_again(self, sweep: Sweep, spec: SweepSpec, password: str | None) -> Work:
        wanted, start = await self._setting_now(sweep, spec)
        await self._commands_of(wanted, start, password, allowed=True)
        return self._gpu_work(sweep.kind, spec, wanted, start, spec.bench, password)

    async def _setting_now(self, sweep: Sweep, spec: SweepSpec) -> tuple[Sequence[Value], Mapping[int, Start]]:
        """Its values, and what each GPU goes back to at the end."""
        from workbench.session.sweep_gpu import start_of, values_of

        if sweep.kind == "flag":
            raise InputError(f"sweep {sweep.id} is one of flags", next_step=f"workbench sweep resume {sweep.id}")
        if spec.run_id is not None:
            await self._still_ready(sweep, spec.run_id)
        by_uuid = {info.uuid: info.index for info in (await self.reading()).infos}
        gone = [uuid for uuid in spec.gpus if uuid not in by_uuid]
        if gone:
            raise SettingsError(
                f"sweep {sweep.id} cannot be resumed: {gone[0]}, which it measured, is not there", host=self.host.name
            )
        gpus = tuple(by_uuid[uuid] for uuid in spec.gpus)
        self._same(sweep, spec, await self._measured_on(gpus, (spec.run_id, spec.url), spec.bench))
        start = await start_of(self, sweep.kind, gpus)
        return values_of(sweep.kind, spec.values), {**start, **_left_on(sweep, spec, start)}

    async def _still_ready(self, sweep: Sweep, run_id: str) -> None:
        try:
            await self.supervisor.runs()
            await self._ready(run_id)
        except WorkbenchError as error:
            raise ServerError(
                f"sweep {sweep.id} cannot be resumed: its server is gone ({error.message})",
                host=self.host.name,
                next_step="make a new sweep on another server",
            ) from None

    # ---- flags

    async def _flags_again(self, sweep: Sweep, spec: SweepSpec) -> Work:
        from workbench.model.experiment import Arm, ExperimentSpec
        from workbench.session.sweep_flags import before_of, combinations_of

        flags: dict[str, list[str]] = {}
        for word in spec.values:
            name, _, value = word.partition("=")
            flags.setdefault(name, []).append(value)
        await self._known_here(sweep)
        assert spec.plan is not None
        *_, bases = self._with_secrets(ExperimentSpec(Arm(), Arm(), spec.plan, spec.preset_id))
        self.take_plan(bases["A"], f"sweep {sweep.id}")
        combinations = await self._combinations(lambda: combinations_of(self.editor, flags))
        if [c.label for c in combinations] != [p.label for p in sweep.points]:
            raise InputError(
                f"sweep {sweep.id} cannot be resumed: this version of Workbench makes other values of it",
                next_step="make a new one",
            )
        self._same(sweep, spec, await self._measured_by(self.editor))
        await self._end_leftovers(sweep)
        before = await before_of(self, sweep.before)
        return self._flag_work(spec, combinations, spec.bench, before)

    async def _known_here(self, sweep: Sweep) -> None:
        """Raises ServerError where a run of the sweep is not known: it may be on, and nobody here could end it."""
        known = {s.run_id for s in await self.supervisor.runs()}
        unknown = next((run for run in (sweep.server, sweep.before) if run is not None and run not in known), None)
        if unknown is not None:
            raise ServerError(
                f"sweep {sweep.id} cannot be resumed: its run {unknown} is not known here, and may be on",
                host=self.host.name,
                next_step="resume it with the XDG_STATE_HOME that it was made with, or make a new one",
            )

    async def _end_leftovers(self, sweep: Sweep) -> None:
        """Stop the server that a killed sweep, or its experiment, has left on."""
        left = {sweep.server}
        if sweep.experiment_id is not None:
            left.add((await self.experiment_called(sweep.experiment_id)).server)
        for status in await self.supervisor.runs():
            if status.run_id in left and status.state in LIVE:
                await self._stop(status.run_id)

    @abstractmethod
    def _with_secrets(self, spec: ExperimentSpec) -> tuple[Arm, Arm, dict[str, LaunchPlan]]:
        """experiments.py has it."""


def _left_on(sweep: Sweep, spec: SweepSpec, now: Mapping[int, Start]) -> dict[int, Start]:
    """What the GPUs had at the start, of those on which a killed sweep has left a value of its own."""
    from workbench.session.sweep_gpu import Start

    if sweep.start is None:
        return {}
    stored = sweep.start["gpus"]
    ours = {gpu: one.entry for gpu, one in now.items() if one.entry and dict(one.entry.owner) in sweep.start["owners"]}
    return {gpu: Start.stored(stored[entry.gpu_uuid]) for gpu, entry in ours.items() if entry.gpu_uuid in stored}
