"""What an experiment does to a host: servers of either arm, GPU settings on and off, benchmarks of what is on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.bench import experiment as design
from workbench.model.errors import ServerError, SettingsError, WorkbenchError
from workbench.model.experiment import Experiment, ExperimentRun, ExperimentSpec
from workbench.model.server_run import ServerState, ServerStatus
from workbench.session.conditions import gpus_of
from workbench.session.conduct import StartFailed, Stopped, Tell
from workbench.session.serving import LIVE

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.model.plan import LaunchPlan
    from workbench.model.settings import Alteration
    from workbench.session.measuring import Measuring
    from workbench.session.targets import Side

SETTLE_S = 300.0  # the longest wait for a temperature
_LOOK_S = 2.0


class Arms:
    """`sides`: "A" and "B"."""

    def __init__(
        self,
        session: Measuring,
        spec: ExperimentSpec,
        sides: Mapping[str, Side],
        *,
        restarts: bool,
        earlier: Sequence[BenchResult] = (),
    ) -> None:
        self._session = session
        self._spec = spec
        self._sides = sides
        self._restarts = restarts
        self._arm = "A"  # the one that is on now, or was last
        self._run: str | None = None  # the server that is on and may be ended
        self._run_of: Side | None = None
        self.started: str | None = None  # the same where it was started here
        self._kept_on = False  # a server ran before, so one is left
        self._gpu_of: str | None = None  # the arm whose GPU settings are on
        self._words = next((r.spec.prompt_words for r in earlier), None)  # of a prompt: the same in all runs

    @property
    def _sessions(self) -> Sequence[Measuring]:
        return list({id(side.session): side.session for side in self._sides.values()}.values())

    async def prepare(self, experiment: Experiment) -> None:
        """Clear what a crash left of this experiment, and see what is there. Raises SettingsError where settings are on
        that are not its own."""
        for session in self._sessions:
            leftover = experiment.server
            statuses = {s.run_id: s for s in await session.supervisor.runs()}
            if leftover is not None and leftover in statuses and statuses[leftover].state in LIVE:
                await session._stop(leftover)
            selected = session.state.server
            if selected is not None and selected.run_id != leftover and self._in_the_way(selected):
                self._kept_on = True
                if selected.state is ServerState.READY and not self._restarts and self._is_arm(selected.run_id):
                    self._run, self._run_of = selected.run_id, self._sides["A"]
        if design.changes_gpus(self._spec):
            for session in self._sessions:
                session.attend()  # an experiment that is killed is one whose heartbeat stops
            await self._no_settings(give_back=experiment.settings_on)

    def _in_the_way(self, status: ServerStatus) -> bool:
        """Whether a server that runs has the place of one that is to be started."""
        starts = any(side.standing is None for side in self._sides.values())
        return starts and status.state in LIVE and status.run_id not in [s.run_id for s in self._sides.values()]

    def _is_arm(self, run_id: str) -> bool:
        from workbench.model.secrets import mask_plan

        side = self._sides["A"]
        plan = self._session.supervisor.record(run_id).plan
        return side.editor is not None and plan is not None and _alike(plan, mask_plan(side.editor.effective))

    async def _no_settings(self, *, give_back: bool) -> None:
        for arm, side in self._sides.items():
            await side.session.read_alterations()
            on = await _altered(side)
            if on and give_back:
                await self._take_off(arm)
                on = await _altered(side)
            if on:
                which = ", ".join(f"GPU{a.gpu_index} {a.setting}" for a in on)
                raise SettingsError(
                    f"GPU settings are on already ({which}), and the arms could not be told from them",
                    host=side.session.host.name,
                    next_step="give them back first: workbench gpu revert",
                )

    # ---- Bench: what Conduct asks for

    async def compiles_first(self, arm: str) -> bool:
        from workbench.model.secrets import mask_plan

        editor = self._sides[arm].editor
        if editor is None or not editor.engine.compiles_at_first_start:
            return False
        plan = mask_plan(editor.effective)
        supervisor = self._sides[arm].session.supervisor
        ready = [s for s in await supervisor.runs() if s.ready_unix_s is not None and s.engine == editor.engine.name]
        return not any(_alike(supervisor.record(s.run_id).plan, plan) for s in ready)

    async def server(self, arm: str) -> str:
        self._arm, side = arm, self._sides[arm]
        if self._run is not None and self._restarts:
            await self.clear()
        if side.standing is not None:
            return side.standing
        if self._run is None:
            await self._make_room(side)
            starting = asyncio.ensure_future(side.session._start(side.editor))
            self._run_of = side
            try:
                status = await asyncio.shield(starting)
            except asyncio.CancelledError:  # it may run by now, and is to be ended
                with suppress(WorkbenchError):
                    self._run = self.started = (await starting).run_id
                raise
            self._run = self.started = status.run_id
        return self._run

    async def _make_room(self, side: Side) -> None:
        """The server that ran before gives its GPUs and port to those of the experiment."""
        selected = side.session.state.server
        if selected is not None and self._in_the_way(selected):
            await side.session._stop(selected.run_id)

    async def ready(self, arm: str, run_id: str) -> None:
        """Settings go on while a server is on, and off before it ends: without persistence mode the driver forgets them
        when nobody uses the GPU."""
        side = self._sides[arm]
        if side.url is None:
            status = await side.session.wait_ready(run_id)
            if status.state is ServerState.STOPPED:
                raise Stopped(f"run {run_id} was stopped")
            if status.state is not ServerState.READY:
                raise _start_failed(status)
        await self._settings(arm)

    async def clear(self) -> None:
        if self._gpu_of is not None:
            await self._take_off(self._gpu_of)
        run_id, self._run = self._run, None
        if run_id is not None and self._run_of is not None:
            await self._run_of.session._stop(run_id)
            self.started = None

    async def settle(self, target_c: float | None, within_c: float, tell: Tell) -> float | None:
        """Waits for cooling only: nothing but the load itself would warm the GPUs."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            now = await self._temperature()
            if now is None or target_c is None or now <= target_c + within_c or time.monotonic() > deadline:
                return now
            tell(f"{now:.0f} °C, waiting for {target_c + within_c:.0f}")
            await asyncio.sleep(_LOOK_S)

    async def _temperature(self) -> float | None:
        """The hottest of the server's GPUs."""
        side = self._sides[self._arm]
        telemetry = await side.session.reading()
        gpus = gpus_of(side.plan, telemetry.infos)
        known = [g.temperature_c for g in telemetry.gpus if g.index in gpus and g.temperature_c is not None]
        return max(known) if known else None

    async def measure(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
        from workbench.bench.runner import BenchCancelled

        side = self._sides[arm]
        session, run_id = side.session, side.run_id or self._run
        shape = {**self._spec.bench, "seed": seed, "prompt_words": self._words}
        try:
            if side.url is not None:
                result_id = await session.bench_url(side.url, **shape)
            elif run_id is not None:
                result_id = await session.bench_run(run_id, **shape)
            else:
                raise ServerError("no server is on", host=session.host.name)
        except BenchCancelled:
            raise Stopped("the benchmark was cancelled") from None
        result = await session.result(result_id)
        self._words = self._words or result.spec.prompt_words
        return result

    async def give_back(self, experiment: Experiment) -> Sequence[str]:
        notes = []
        if self._gpu_of is not None:
            try:
                await self._take_off(self._gpu_of)
            except WorkbenchError as error:
                notes.append(f"GPU settings were not given back: {error.message} (workbench gpu revert)")
        if self.started is not None:
            if self._kept_on:
                arm = experiment.runs[-1].arm if experiment.runs else "A"
                notes.append(f"a server ran before: {self.started} with {arm}'s configuration is left running")
            else:
                try:
                    await self.clear()
                except WorkbenchError as error:
                    notes.append(f"run {self.started} was not ended: {error.message} (workbench stop {self.started})")
        return notes

    # ---- GPU settings

    async def _settings(self, arm: str) -> None:
        """This arm's settings, and none of the other's."""
        wanted, side = design.arm_of(self._spec, arm).gpu, self._sides[arm]
        gpus, every = await side.gpus()
        if self._gpu_of is not None:
            before, other = design.arm_of(self._spec, self._gpu_of).gpu, self._sides[self._gpu_of]
            if wanted == before and other.session is side.session and await other.gpus() == (gpus, every):
                return
            await self._take_off(self._gpu_of)
        if wanted.empty:
            return
        self._gpu_of = arm
        for gpu in [None] if every else gpus:
            report = await side.session.apply_gpu(wanted, gpu)
            failed = next((o for o in report.outcomes if not o.ok), None)
            if failed is not None:
                raise SettingsError(
                    f"{arm}: {failed.command.setting} of GPU{failed.command.gpu_index} was not set: {failed.message}",
                    host=side.session.host.name,
                )

    async def _take_off(self, arm: str) -> None:
        side = self._sides[arm]
        gpus, every = await side.gpus()
        for gpu in [None] if every else gpus:
            report = await side.session.revert_gpu(gpu)
            failed = next((o for o in report.outcomes if not o.ok), None)
            if failed is not None:
                raise SettingsError(
                    f"{failed.command.setting} of GPU{failed.command.gpu_index} was not given back: {failed.message}",
                    host=side.session.host.name,
                )
        self._gpu_of = None


async def _altered(side: Side) -> list[Alteration]:
    """On the arm's GPUs."""
    gpus, every = await side.gpus()
    return [a for a in side.session.state.alterations if every or a.gpu_index in gpus]


def _start_failed(status: ServerStatus) -> StartFailed:
    cause = status.findings[0] if status.findings else None
    why = status.reason or "see its log"
    return StartFailed(
        f"the server did not start: {why}",
        host=status.host,
        next_step=(cause.fix if cause else None) or f"workbench logs {status.run_id}",
    )


def _alike(a: LaunchPlan, b: LaunchPlan) -> bool:
    """The same configuration of the same version, whatever its port."""
    from workbench.model.plan import diff

    same = replace(a, engine_version=b.engine_version) if a.engine_version is None else a
    return same.engine_version == b.engine_version and all(change.name == "port" for change in diff(a, b))
