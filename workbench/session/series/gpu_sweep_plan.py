"""Plans of sweeps of a GPU setting: the values, the GPUs and the commands are checked before the
first change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.bench.experiment import MAX_PAIRS
from workbench.bench.sweep_knee import find_knee_of_gpu_setting
from workbench.engines import memory_locks
from workbench.gpu.settings.plan import select_gpus
from workbench.model.errors import InputError, ServerError, SettingsError, WorkbenchError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.settings import (
    MEMORY_CLOCKS,
    SWEPT,
    ClockRange,
    GpuSettings,
    Setting,
    setting_of,
)
from workbench.model.sweep import BACK, PointState, Sweep, SweepSpec, make_gpu_setting_sweep_kind
from workbench.session.bench.sustained_load import MAX_REQUESTS
from workbench.session.conditions import gpu_indices_of_plan
from workbench.session.gpu.previous_settings import PreviousValues, read_previous_values
from workbench.session.series.gpu_sweep import DEFAULT_PAIRS, DEFAULT_SETTLE_S, GpuSweep, GpuValue
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    SweepParts,
    SweepTarget,
    check_same_conditions,
    conditions_of_target,
    resolve_sweep_target,
    validated_runs_per_value,
)
from workbench.session.series.sweep_progress import bench_fields_to_store

if TYPE_CHECKING:
    from workbench.model.setting_records import SettingCommand
    from workbench.session.series.sweep_progress import SweepProgress

DEFAULT_MEASURE_S = 10.0  # of each value by default: power is a mean over 1 s


@dataclass(frozen=True, slots=True)
class GpuSweepPlanner:
    parts: SweepParts

    async def plan_new_sweep(
        self,
        setting: str,
        values: Sequence[str],
        gpu: int | str | None,
        *,
        run_id: str | None,
        url: str | None,
        settle_s: float | None,
        pairs: int | None,
        runs: int,
        password: str | None,
        bench: Mapping[str, Any],
    ) -> PlannedSweep:
        """Check a sweep of `setting` over `values` on a GPU, and return it. `gpu` None stands for
        every GPU that the server is known to use. The server is the run `run_id` or the one at
        `url`. None for `settle_s` or `pairs` stands for the default. Raises InputError or
        SettingsError for a sweep that cannot be carried out."""
        parts = self.parts
        wanted, shape = parse_swept_values(setting, values), bench_fields_per_value(bench)
        if pairs and not 2 <= pairs <= MAX_PAIRS:
            raise InputError(
                f"a sweep with {pairs} pairs is not possible",
                next_step=f"give --pairs 2 to {MAX_PAIRS}, or 0 for none",
            )
        parts.load.make_spec(None, shape)
        target = await resolve_sweep_target(parts, run_id, url)
        gpus = await self._gpu_indices_of_sweep(gpu, target.run_id)
        previous = await self._read_previous_values(setting, gpus)
        await self._commands_for_values(wanted, previous, password, require_rights=True)
        spec = SweepSpec(
            tuple(values),
            bench_fields_to_store(shape),
            validated_runs_per_value(runs),
            DEFAULT_PAIRS if pairs is None else pairs,
            await conditions_of_target(parts, gpus, target, shape),
            run_id=target.run_id,
            url=target.url,
            gpus=tuple(
                info.uuid
                for info in (await parts.telemetry.get_recent_reading()).infos
                if info.index in gpus
            ),
            settle_s=DEFAULT_SETTLE_S if settle_s is None else settle_s,
        )
        return await self._planned_sweep(setting, spec, wanted, previous, shape, password)

    async def plan_resumed_sweep(
        self, sweep: Sweep, spec: SweepSpec, password: str | None
    ) -> PlannedSweep:
        """Check that a stored sweep can be resumed, and return the sweep of the values that are not
        measured yet. Raises WorkbenchError if the sweep cannot be resumed."""
        wanted, previous = await self._sweep_values_and_previous_values(sweep, spec)
        await self._commands_for_values(wanted, previous, password, require_rights=True)
        return await self._planned_sweep(sweep.kind, spec, wanted, previous, spec.bench, password)

    async def commands_of_sweep(
        self, setting: str, values: Sequence[str], gpu: int | str | None, run_id: str | None
    ) -> Mapping[str, Sequence[SettingCommand]]:
        """Return the commands that a sweep would run, by value: the key "350 W" has those that set
        that value, and the key BACK those that restore the previous values."""
        wanted = parse_swept_values(setting, values)
        gpus = await self._gpu_indices_of_sweep(gpu, run_id)
        return await self._commands_for_values(
            wanted, await self._read_previous_values(setting, gpus), None
        )

    async def commands_of_resumed_sweep(
        self, sweep: Sweep, spec: SweepSpec
    ) -> Mapping[str, Sequence[SettingCommand]]:
        """Return the commands that a resumed sweep would run, by value: the key "350 W" has those
        that set that value, if it is not measured yet, and the key BACK those that restore the
        previous values."""
        wanted, previous = await self._sweep_values_and_previous_values(sweep, spec)
        missing = [
            v
            for v, point in zip(wanted, sweep.points, strict=True)
            if point.state != PointState.DONE
        ]
        return await self._commands_for_values(missing or wanted, previous, None)

    async def _planned_sweep(
        self,
        setting: str,
        spec: SweepSpec,
        wanted: Sequence[GpuValue],
        previous: Mapping[int, PreviousValues],
        bench: Mapping[str, Any],
        password: str | None,
    ) -> PlannedSweep:
        infos = (await self.parts.telemetry.get_recent_reading()).infos
        swept = [info.name for info in infos if info.index in previous]

        def make_design(progress: SweepProgress) -> GpuSweep:
            return GpuSweep(
                self.parts,
                progress,
                setting,
                wanted,
                previous,
                target=SweepTarget(spec.run_id, spec.url),
                bench=bench,
                settle_s=spec.settle_s,
                pairs=spec.pairs,
                runs=spec.runs,
                password=password,
                warnings=warnings_about_setting(setting, swept),
            )

        entry = setting_of(setting)
        return PlannedSweep(
            make_gpu_setting_sweep_kind(setting),
            entry.label,
            entry.unit,
            [(v.label, v.x) for v in wanted],
            spec,
            make_design,
            find_knee_of_gpu_setting,
        )

    async def _gpu_indices_of_sweep(
        self, gpu: int | str | None, run_id: str | None
    ) -> tuple[int, ...]:
        telemetry = await self.parts.telemetry.get_recent_reading()
        if gpu is not None:
            return tuple(info.index for info in select_gpus(str(gpu), telemetry))
        plan = self.parts.servers.supervisor.record(run_id).plan if run_id else None
        found = gpu_indices_of_plan(plan, telemetry.infos)
        if not found:
            raise SettingsError(
                telemetry.driver.message or "no GPU was found", host=self.parts.core.host.name
            )
        return found

    async def _read_previous_values(
        self, setting: str, gpus: Sequence[int]
    ) -> dict[int, PreviousValues]:
        return await read_previous_values(
            self.parts.core.host, await self.parts.telemetry.get_recent_reading(), setting, gpus
        )

    async def _commands_for_values(
        self,
        wanted: Sequence[GpuValue],
        previous: Mapping[int, PreviousValues],
        password: str | None,
        *,
        require_rights: bool = False,
    ) -> dict[str, Sequence[SettingCommand]]:
        """Return the commands of a sweep, by value: the key "350 W" has those that set that value
        on the GPUs of `previous`, and the key BACK those that restore the previous values. With
        `require_rights`, raise SettingsError if this user may not run one of the commands."""
        gpu = self.parts.gpu
        rights = await gpu.rights.load_rights_with_password(password)
        by_value = {v.label: {str(index): v.wanted for index in previous} for v in wanted}
        by_value[BACK] = {str(index): one.settings for index, one in previous.items()}
        found = {
            label: await gpu.plan_changes_by_gpu(settings, rights)
            for label, settings in by_value.items()
        }
        forbidden = next((c for commands in found.values() for c in commands if c.right), None)
        if require_rights and forbidden is not None:
            raise SettingsError(
                f"{forbidden.gpu_or_host_name}: {forbidden.right}", host=self.parts.core.host.name
            )
        return found

    # ---- resumed

    async def _sweep_values_and_previous_values(
        self, sweep: Sweep, spec: SweepSpec
    ) -> tuple[Sequence[GpuValue], Mapping[int, PreviousValues]]:
        """Return the values of a stored sweep that is to be resumed, and by GPU index the value
        that is restored at the end. Raises WorkbenchError if the sweep cannot be resumed now."""
        if spec.run_id is not None:
            await self._check_server_measurable(sweep, spec.run_id)
        by_uuid = {
            info.uuid: info.index
            for info in (await self.parts.telemetry.get_recent_reading()).infos
        }
        gone = [uuid for uuid in spec.gpus if uuid not in by_uuid]
        if gone:
            raise SettingsError(
                f"sweep {sweep.id} cannot be resumed: its GPU {gone[0]} is not on this host",
                host=self.parts.core.host.name,
            )
        gpus = tuple(by_uuid[uuid] for uuid in spec.gpus)
        now = await conditions_of_target(
            self.parts, gpus, SweepTarget(spec.run_id, spec.url), spec.bench
        )
        check_same_conditions(self.parts, sweep, spec, now)
        previous = await self._read_previous_values(sweep.kind, gpus)
        return parse_swept_values(sweep.kind, spec.values), {
            **previous,
            **_values_before_killed_sweep(sweep, previous),
        }

    async def _check_server_measurable(self, sweep: Sweep, run_id: str) -> None:
        try:
            await self.parts.servers.supervisor.runs()
            await self.parts.servers.ready_run_id(run_id)
        except WorkbenchError as error:
            raise ServerError(
                f"sweep {sweep.id} cannot be resumed: its server cannot be measured any more "
                f"({error.message})",
                host=self.parts.core.host.name,
                next_step="start another server, then start a new sweep on that server",
            ) from None


def _values_before_killed_sweep(
    sweep: Sweep, now: Mapping[int, PreviousValues]
) -> dict[int, PreviousValues]:
    """Return by GPU index the values that GPUs had before `sweep`, if it was killed and left one of
    its own values there. `now` has the present values."""
    if sweep.start is None:
        return {}
    stored, owners = sweep.start["gpus"], sweep.start["owners"]
    ours = {
        gpu: one.entry for gpu, one in now.items() if one.entry and dict(one.entry.owner) in owners
    }
    return {
        gpu: PreviousValues.from_stored(stored[entry.gpu_uuid])
        for gpu, entry in ours.items()
        if entry.gpu_uuid in stored
    }


def warnings_about_setting(setting: str, names: Sequence[str]) -> Sequence[str]:
    """Return warnings about a sweep of `setting` on GPUs with the product names `names`; () if
    nothing is known."""
    found = memory_locks.warn_of_memory_locks(names) if setting == MEMORY_CLOCKS.key else None
    return () if found is None else (f"{found.text} ({found.source})",)


def parse_swept_values(key: str, texts: Sequence[str]) -> tuple[GpuValue, ...]:
    """Parse the values of a sweep of the setting `key`: watts ("350"), or MHz as one clock or a
    range ("1500", "210-1500"). Raises InputError if a value is invalid or given twice, or if there
    are fewer than two values."""
    setting = next((s for s in SWEPT if s.key == key), None)
    if setting is None:
        raise InputError(
            f"{key!r} is not a GPU setting that can be swept",
            next_step=f"give one of the settings {', '.join(s.key for s in SWEPT)}",
        )
    found = tuple(_parse_value(setting, text) for text in texts)
    if len(found) < 2:
        raise InputError(
            "a sweep needs at least two values",
            next_step=f"give two or more values, such as {setting.sweep_values}",
        )
    labels = [value.label for value in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise InputError(f"the value {twice} is given twice", next_step="give each value once")
    return found


def _parse_value(setting: Setting, text: str) -> GpuValue:
    value = setting.parse(text)
    number = value.max_mhz if isinstance(value, ClockRange) else value
    if not isinstance(number, int | float):
        raise InputError(
            f"a sweep needs numbers, and {text!r} is not one",
            next_step=f"give numbers, such as {setting.sweep_values}",
        )
    return GpuValue(setting.format(value), float(number), GpuSettings({setting.key: value}))


def bench_fields_per_value(bench: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of BenchSpec for the benchmark at each value of a sweep. Unless the user
    gave a number of requests or a command, the benchmark is limited by time, so that slow values
    take no longer than fast ones."""
    given = {name: value for name, value in bench.items() if value is not None}
    if "requests" in given or "command" in given:
        return given
    return {**given, "seconds": given.get("seconds", DEFAULT_MEASURE_S), "requests": MAX_REQUESTS}
