"""Sweeps of a GPU setting, the concurrency or flags."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from workbench.hosts.base import Host
from workbench.model.errors import BenchError, InputError, SettingsError, WorkbenchError
from workbench.model.sweep import SweepSpec
from workbench.session.conditions import gpus_of
from workbench.session.sweep_run import Ended, SweepRun, TimeUp, planned, runs_checked, stored_shape
from workbench.session.verifying import Verifying

if TYPE_CHECKING:
    from workbench.model.experiment import Arm, Experiment
    from workbench.model.settings import SettingCommand
    from workbench.model.sweep import Sweep
    from workbench.session.editor import PlanEditor
    from workbench.session.sweep_flags import Combination
    from workbench.session.sweep_gpu import Start, Value
    from workbench.store.sweeps import SweepStore

BACK = "back to the start"
RUNS_EACH = "{} at each value: it does not show differences below about 2 %"
UNKNOWN = "of an unknown version"
Work: TypeAlias = "Callable[[SweepRun], Awaitable[None]]"


class Sweeping(Verifying):
    _sweep_stop: asyncio.Event | None = None  # of the sweep that is running
    _sweeps: SweepStore | None = None

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._sweeping = asyncio.Lock()

    @property
    def sweeps(self) -> SweepStore:
        if self._sweeps is None:
            from workbench.store import paths
            from workbench.store.sweeps import SweepStore

            self._sweeps = SweepStore(paths.data_dir() / "sweeps")
        return self._sweeps

    def going_on(self) -> None:
        """BenchCancelled when the sweep is to end."""
        from workbench.bench.runner import BenchCancelled

        if self._sweep_stop is not None and self._sweep_stop.is_set():
            raise BenchCancelled("the sweep was cancelled", next_step="what it has measured is kept")

    async def cancel_sweep(self) -> None:
        """Returns when it has ended, and the GPU is as it was."""
        if self._sweep_stop is not None:
            self._sweep_stop.set()
            await self.stop_experiment()
            await self.cancel_bench()
            async with self._sweeping:
                pass

    # ---- the three kinds

    async def gpu_sweep(
        self,
        setting: str,
        values: Sequence[str],
        gpu: int | str | None = None,
        *,
        run_id: str | None = None,
        url: str | None = None,
        settle_s: float | None = None,
        pairs: int | None = None,
        runs: int = 1,
        password: str | None = None,
        **bench: Any,
    ) -> Sweep:
        """`gpu` None: every GPU that the server uses, as far as that is known. `bench`: fields of BenchSpec."""
        from workbench.bench.experiment import MOST_PAIRS
        from workbench.session.sweep_gpu import NAMES, PAIRS, SETTLE_S, shape_of, start_of, values_of

        wanted, shape = values_of(setting, values), shape_of(bench)
        if pairs is not None and pairs != 0 and not 2 <= pairs <= MOST_PAIRS:
            raise InputError(f"{pairs} pairs", next_step=f"2 to {MOST_PAIRS}, or 0 for none")
        self.spec_of(None, shape)
        target = (None, url) if url else (await self._ready(run_id), None)
        gpus = await self._gpus_to_sweep(gpu, target[0])
        start = await start_of(self, setting, gpus)
        await self._commands_of(wanted, start, password, allowed=True)
        spec = SweepSpec(
            tuple(values),
            stored_shape(shape),
            runs_checked(runs),
            PAIRS if pairs is None else pairs,
            await self._measured_on(gpus, target, shape),
            run_id=target[0],
            url=target[1],
            gpus=tuple(info.uuid for info in (await self.reading()).infos if info.index in gpus),
            settle_s=SETTLE_S if settle_s is None else settle_s,
        )
        name, unit = NAMES[setting]
        work = self._gpu_work(setting, spec, wanted, start, shape, password)
        return await self._swept(setting, name, unit, [(v.label, v.x) for v in wanted], work, spec)

    def _gpu_work(
        self,
        setting: str,
        spec: SweepSpec,
        wanted: Sequence[Value],
        start: Mapping[int, Start],
        shape: Mapping[str, Any],
        password: str | None,
    ) -> Work:
        from workbench.session.sweep_gpu import GpuSweep

        target = spec.run_id, spec.url

        def work(run: SweepRun) -> Awaitable[None]:
            run.note(RUNS_EACH.format("one run" if spec.runs == 1 else f"{spec.runs} runs"))
            self.attend()  # a sweep that is killed is one whose heartbeat stops
            carried = spec.settle_s, spec.pairs, spec.runs, password
            return GpuSweep(self, run, setting, wanted, start, target, shape, *carried).go()

        return work

    async def plan_gpu_sweep(
        self, setting: str, values: Sequence[str], gpu: int | str | None = None, *, run_id: str | None = None
    ) -> Mapping[str, Sequence[SettingCommand]]:
        """What a sweep would run at each value, by its label, and after the last, as BACK. Nothing is changed."""
        from workbench.session.sweep_gpu import start_of, values_of

        wanted = values_of(setting, values)
        gpus = await self._gpus_to_sweep(gpu, run_id)
        return await self._commands_of(wanted, await start_of(self, setting, gpus), None)

    async def concurrency_sweep(
        self,
        levels: Sequence[int],
        *,
        run_id: str | None = None,
        url: str | None = None,
        max_minutes: float | None = None,
        **bench: Any,
    ) -> Sweep:
        """Rising levels; the first that fails, or would not end within `max_minutes`, ends it."""
        from workbench.session.sweep_levels import LevelSweep, levels_of

        rising = levels_of(levels)
        self.spec_of(None, bench)
        target = (None, url) if url else (await self._ready(run_id), None)
        points = [(f"c={level}", float(level)) for level in rising]

        def work(run: SweepRun) -> Awaitable[None]:
            return LevelSweep(self, run, rising, target, bench, max_minutes).go()

        return await self._swept("concurrency", "concurrency", "", points, work, None)

    async def flag_sweep(
        self,
        flags: Mapping[str, Sequence[str]],
        *,
        runs: int = 1,
        pairs: int = 3,
        max_minutes: float | None = None,
        **bench: Any,
    ) -> Sweep:
        """On the plan under edit: one or two flags over values, the best compared with the start in `pairs` pairs (0:
        not at all). A living selected run is stopped meanwhile and started again."""
        from workbench.model.secrets import mask_argv, mask_plan
        from workbench.session.sweep_flags import before_of, combinations_of

        combinations = await self._combinations(lambda: combinations_of(self.editor, flags))
        if pairs < 0:
            raise InputError(f"{pairs} pairs", next_step="0 pairs or more")
        plan = self.editor.effective
        self.spec_of(plan.preset_id, bench)
        before = await before_of(self)
        spec = SweepSpec(
            mask_argv([f"{name}={value}" for name, values in flags.items() for value in values]),
            stored_shape(bench),
            runs_checked(runs),
            pairs,
            await self._measured_by(self.editor),
            plan=asdict(mask_plan(plan)),
            preset_id=plan.preset_id,
            max_minutes=max_minutes,
        )
        names = list(dict.fromkeys(word.partition("=")[0] for c in combinations for word in c.sets))
        work = self._flag_work(spec, combinations, bench, before)
        return await self._swept("flag", " x ".join(names), "", [(c.label, c.x) for c in combinations], work, spec)

    async def _combinations(self, made: Callable[[], Sequence[Combination]]) -> Sequence[Combination]:
        """Of the plan under edit, checked against the engine that is installed, and startable."""
        around = self.editor.around
        if around.installed is None and around.installed_problem is None:
            await self.look_for_engine()
        combinations = made()
        self._startable(self.editor.effective)
        return combinations

    def _flag_work(
        self,
        spec: SweepSpec,
        combinations: Sequence[Combination],
        bench: Mapping[str, Any],
        before: PlanEditor | None,
    ) -> Work:
        from workbench.session.sweep_flags import FlagSweep

        def work(run: SweepRun) -> Awaitable[None]:
            assert self._sweep_stop is not None
            carried = spec.runs, spec.pairs, spec.max_minutes
            return FlagSweep(self, run, combinations, bench, before, self._sweep_stop, *carried).go()

        return work

    # ---- what experiments.py makes, for the pairs of flags

    @abstractmethod
    async def experiment(
        self, a: Arm, b: Arm, *, opened: Callable[[int], Awaitable[None]] | None = None, **options: Any
    ) -> Experiment: ...

    @abstractmethod
    async def experiment_called(self, experiment_id: int) -> Experiment: ...

    @abstractmethod
    async def resume_experiment(
        self, experiment_id: int, *, pairs: int | None = None, max_minutes: float | None = None
    ) -> Experiment: ...

    async def stop_experiment(self) -> None:
        """experiments.py ends it."""

    # ---- before the start

    async def _ready(self, run_id: str | None) -> str:
        from workbench.model.server_run import ServerState

        run_id = run_id or await self.run_at_hand()
        state = self.supervisor.status(run_id).state
        if state is not ServerState.READY:
            raise BenchError(
                f"run {run_id} is {state}, not READY", host=self.host.name, next_step="workbench servers shows the runs"
            )
        return run_id

    async def _measured_on(
        self, gpus: Sequence[int], target: tuple[str | None, str | None], shape: Mapping[str, Any]
    ) -> dict[str, str]:
        """What stays the same from the first value of a sweep to its last: GPUs, driver, engine and model."""
        telemetry = await self.reading()
        found = {f"GPU {info.uuid}": info.name for info in telemetry.infos if info.index in gpus}
        found["driver"] = telemetry.driver.driver_version or UNKNOWN
        run_id, url = target
        if run_id is not None:
            status, record = self.supervisor.status(run_id), self.supervisor.record(run_id)
            return {**found, "engine": f"{status.engine} {status.engine_version or record.engine_version or UNKNOWN}"}
        assert url is not None
        async with self.aim_at_url(url, dict(shape)) as (spec, *_):
            return {**found, "model": spec.model}

    async def _measured_by(self, editor: PlanEditor) -> dict[str, str]:
        """The same of servers that are yet to be started."""
        found = {"engine": f"{editor.engine.name} {editor.around.installed_version or UNKNOWN}"}
        with suppress(SettingsError):  # no GPU can be read
            telemetry = await self.reading()
            gpus = gpus_of(editor.plan, telemetry.infos)
            found |= {f"GPU {info.uuid}": info.name for info in telemetry.infos if info.index in gpus}
            found["driver"] = telemetry.driver.driver_version or UNKNOWN
        return found

    async def _gpus_to_sweep(self, gpu: int | str | None, run_id: str | None) -> tuple[int, ...]:
        from workbench.gpu.settings.plan import select

        telemetry = await self.reading()
        if gpu is not None:
            return tuple(i.index for i in select(str(gpu), telemetry))
        found = gpus_of(self.supervisor.record(run_id).plan if run_id else None, telemetry.infos)
        if not found:
            raise SettingsError(telemetry.driver.message or "no GPU was found", host=self.host.name)
        return found

    async def _commands_of(
        self, wanted: Sequence[Value], start: Mapping[int, Start], password: str | None, *, allowed: bool = False
    ) -> dict[str, Sequence[SettingCommand]]:
        """Every value against every GPU, and the way back, before anything is touched. `allowed`: SettingsError where
        one of them may not be run."""
        rights = await self._rights_with(password)
        by_value = {v.label: {str(gpu): v.wanted for gpu in start} for v in wanted}
        by_value[BACK] = {str(gpu): back.settings for gpu, back in start.items()}
        found = {label: await self.plan_gpus(settings, rights) for label, settings in by_value.items()}
        refused = next((c for commands in found.values() for c in commands if c.right), None)
        if allowed and refused is not None:
            raise SettingsError(f"{refused.where}: {refused.right}", host=self.host.name)
        return found

    # ---- around all of them

    async def _swept(
        self,
        kind: str,
        name: str,
        unit: str,
        points: Sequence[tuple[str, float | None]],
        work: Work,
        spec: SweepSpec | None,
    ) -> Sweep:
        """Make a sweep, keep it, and carry it out."""
        from workbench.store.sweeps import empty

        async with self._only_sweep(f"a sweep of {name}"):
            first = empty(self.host.name, kind, name, unit, planned(points), simulated=self.state.simulated, spec=spec)
            sweep = await asyncio.to_thread(self.sweeps.add, first)
            with self.sweeps.held(sweep.id):
                return await self._run_sweep(sweep, work)

    @asynccontextmanager
    async def _only_sweep(self, what: str) -> AsyncIterator[None]:
        if self._sweeping.locked():
            raise BenchError("a sweep is running", host=self.host.name, next_step="wait for it, or cancel it")
        async with self._sweeping, self.turn(what):
            self._sweep_stop = asyncio.Event()
            try:
                yield
            finally:
                self._sweep_stop = None

    async def _run_sweep(self, sweep: Sweep, work: Work) -> Sweep:
        """Carry a sweep out that is held, and say how it ended. What it has measured is returned, also when it was
        stopped; a cancelled task ends as such, with all written down."""
        from workbench.bench.runner import BenchCancelled

        run = SweepRun(self, sweep, self.sweeps)
        run.change()
        await run.save()
        try:
            with self.busy(f"sweep of {sweep.name}"):
                await work(run)
            self._end(run, "done")
        except Ended as why:
            run.skip_rest(str(why))
            self._end(run, "done" if any(p.state == "done" for p in run.sweep.points) else "failed", str(why))
        except TimeUp as why:
            self._end(run, "stopped", str(why))
        except BenchCancelled:
            self._end(run, "stopped", "cancelled")
        except WorkbenchError as error:
            self._end(run, "failed", error.message)
        except BaseException as error:
            self._end(run, "stopped", "cancelled" if isinstance(error, asyncio.CancelledError) else repr(error))
            raise
        finally:
            await run.save()
        return run.sweep

    def _end(self, run: SweepRun, state: str, why: str | None = None) -> None:
        run.skip_rest(why or "not reached")
        error = "; ".join(dict.fromkeys(filter(None, (run.sweep.error, why if state != "done" else None)))) or None
        if state == "done" and run.sweep.kind == "flag" and all(p.state != "done" for p in run.sweep.points[1:]):
            state, why = "failed", why or "none of the values could be measured"
        if state == "done" and run.sweep.error:
            state = "failed"  # measured, but a GPU is not as it was
        if state == "done" and why:
            run.note(f"ended early: {why}")
        run.change(state=state, left_s=None, error=error, **_knee_of(run.sweep))
        self.record(f"# sweep {run.sweep.id} of {run.sweep.name}", run.sweep.knee_text or error or state)


def _knee_of(sweep: Sweep) -> dict[str, Any]:
    from workbench.bench import knee

    if sweep.kind == "flag":
        return {}
    found = (knee.of_concurrency if sweep.kind == "concurrency" else knee.of_setting)(sweep.points)
    return {"knee": found.index, "knee_text": found.text}
