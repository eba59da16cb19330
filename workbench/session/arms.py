"""What an experiment does to a host: servers of either arm, GPU settings on and off, benchmarks of what is on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.bench import experiment as design
from workbench.bench.diagnosis import COMPILING
from workbench.model.errors import ServerError, SettingsError, WorkbenchError
from workbench.model.experiment import Experiment, ExperimentRun, ExperimentSpec
from workbench.model.run import ServerState, ServerStatus
from workbench.session.conditions import gpus_of
from workbench.session.conduct import StartFailed, Stopped, Tell
from workbench.session.serving import LIVE

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.model.plan import LaunchPlan
    from workbench.model.settings import Alteration
    from workbench.session.editor import PlanEditor
    from workbench.session.measuring import Measuring

SETTLE_S = 300.0  # the longest wait for a temperature
_LOOK_S = 2.0


class Arms:
    """`editors`: the plan of each arm with its secrets, "A" and "B"."""

    def __init__(
        self,
        session: Measuring,
        spec: ExperimentSpec,
        editors: Mapping[str, PlanEditor],
        *,
        restarts: bool,
        earlier: Sequence[BenchResult] = (),
    ) -> None:
        self._session = session
        self._spec = spec
        self._editors = editors
        self._restarts = restarts
        self._run: str | None = None  # the server that is on
        self.started: str | None = None  # the same where it was started here
        self._kept_on = False  # a server ran before, so one is left
        self._gpu_of: str | None = None  # the arm whose GPU settings are on
        self._words = next((r.spec.prompt_words for r in earlier), None)  # of a prompt: the same in all runs

    async def prepare(self, experiment: Experiment) -> None:
        """Clear what a crash left of this experiment, and see what is there. Raises SettingsError where settings are on
        that are not its own."""
        session, leftover = self._session, experiment.server
        statuses = {s.run_id: s for s in await session.supervisor.runs()}
        if leftover is not None and leftover in statuses and statuses[leftover].state in LIVE:
            await session._stop(leftover)
        selected = session.state.server
        if selected is not None and selected.run_id != leftover and selected.state in LIVE:
            self._kept_on = True
            if selected.state is ServerState.READY and not self._restarts and self._is_arm(selected.run_id):
                self._run = selected.run_id
        if design.changes_gpus(self._spec):
            await self._no_settings(give_back=experiment.settings_on)

    def _is_arm(self, run_id: str) -> bool:
        from workbench.model.secrets import mask_plan

        plan = self._session.supervisor.record(run_id).plan
        return plan is not None and _alike(plan, mask_plan(self._editors["A"].effective))

    async def _no_settings(self, *, give_back: bool) -> None:
        await self._session.read_alterations()
        on = await self._on_our_gpus()
        if on and give_back:
            await self._take_off()
            on = await self._on_our_gpus()
        if on:
            which = ", ".join(f"GPU{a.gpu_index} {a.setting}" for a in on)
            raise SettingsError(
                f"GPU settings are on already ({which}), and the arms could not be told from them",
                host=self._session.host.name,
                next_step="give them back first: workbench gpu revert",
            )

    async def _gpus(self) -> tuple[tuple[int, ...], bool]:
        """Of the server, and whether these are all."""
        infos = (await self._session.reading()).infos
        gpus = gpus_of(self._editors["A"].plan, infos)
        return gpus, len(gpus) == len(infos)

    async def _on_our_gpus(self) -> list[Alteration]:
        gpus, every = await self._gpus()
        return [a for a in self._session.state.alterations if every or a.gpu_index in gpus]

    # ---- Bench: what Conduct asks for

    async def compiles_first(self, arm: str) -> bool:
        from workbench.model.secrets import mask_plan

        editor = self._editors[arm]
        if editor.engine.name not in COMPILING:
            return False
        plan = mask_plan(editor.effective)
        supervisor = self._session.supervisor
        ready = [s for s in await supervisor.runs() if s.ready_unix_s is not None and s.engine == editor.engine.name]
        return not any(_alike(supervisor.record(s.run_id).plan, plan) for s in ready)

    async def server(self, arm: str) -> str:
        session = self._session
        if self._run is not None and self._restarts:
            await self.clear()
        if self._run is None:
            await self._make_room()
            starting = asyncio.ensure_future(session._start(self._editors[arm]))
            try:
                status = await asyncio.shield(starting)
            except asyncio.CancelledError:  # it may run by now, and is to be ended
                with suppress(WorkbenchError):
                    self._run = self.started = (await starting).run_id
                raise
            self._run = self.started = status.run_id
        return self._run

    async def _make_room(self) -> None:
        """The server that ran before gives its GPUs and port to those of the experiment."""
        selected = self._session.state.server
        if selected is not None and selected.state in LIVE:
            await self._session._stop(selected.run_id)

    async def ready(self, arm: str, run_id: str) -> None:
        """Settings go on while a server is on, and off before it ends: without persistence mode the driver forgets them
        when nobody uses the GPU."""
        status = await self._session.wait_ready(run_id)
        if status.state is ServerState.STOPPED:
            raise Stopped(f"run {run_id} was stopped")
        if status.state is not ServerState.READY:
            raise _start_failed(status)
        await self._settings(arm)

    async def clear(self) -> None:
        if self._gpu_of is not None:
            await self._take_off()
        run_id, self._run = self._run, None
        if run_id is not None:
            await self._session._stop(run_id)
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
        telemetry = await self._session.reading()
        gpus = gpus_of(self._editors["A"].plan, telemetry.infos)
        known = [g.temperature_c for g in telemetry.gpus if g.index in gpus and g.temperature_c is not None]
        return max(known) if known else None

    async def measure(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
        from workbench.bench.runner import BenchCancelled

        session = self._session
        if self._run is None:
            raise ServerError("no server is on", host=session.host.name)
        try:
            shape = {**self._spec.bench, "seed": seed, "prompt_words": self._words}
            result = await session.result(await session.bench_run(self._run, **shape))
        except BenchCancelled:
            raise Stopped("the benchmark was cancelled") from None
        if self._editors["A"].plan.model == self._editors["B"].plan.model:
            self._words = self._words or result.spec.prompt_words
        return result

    async def give_back(self, experiment: Experiment) -> Sequence[str]:
        notes = []
        if self._gpu_of is not None:
            try:
                await self._take_off()
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
        wanted = design.arm_of(self._spec, arm).gpu
        before = design.arm_of(self._spec, self._gpu_of).gpu if self._gpu_of is not None else None
        if wanted == before or (before is None and wanted.empty):
            return
        if self._gpu_of is not None:
            await self._take_off()
        if wanted.empty:
            return
        self._gpu_of = arm
        gpus, every = await self._gpus()
        for gpu in [None] if every else gpus:
            report = await self._session.apply_gpu(wanted, gpu)
            failed = next((o for o in report.outcomes if not o.ok), None)
            if failed is not None:
                raise SettingsError(
                    f"{arm}: {failed.command.setting} of GPU{failed.command.gpu_index} was not set: {failed.message}",
                    host=self._session.host.name,
                )

    async def _take_off(self) -> None:
        gpus, every = await self._gpus()
        for gpu in [None] if every else gpus:
            report = await self._session.revert_gpu(gpu)
            failed = next((o for o in report.outcomes if not o.ok), None)
            if failed is not None:
                raise SettingsError(
                    f"{failed.command.setting} of GPU{failed.command.gpu_index} was not given back: {failed.message}",
                    host=self._session.host.name,
                )
        self._gpu_of = None


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
