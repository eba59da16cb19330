"""Checks and data that all kinds of sweeps share before the first measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from workbench.model.errors import BenchError, HostError, InputError, SettingsError
from workbench.model.lazy_dataclass import dataclass
from workbench.session.conditions import gpu_indices_of_plan

if TYPE_CHECKING:
    from workbench.bench.sweep_knee import Knee
    from workbench.model.sweep import Sweep, SweepKind, SweepPoint, SweepSpec
    from workbench.session.bench.bench import Bench
    from workbench.session.bench.server_load import ServerLoad
    from workbench.session.gpu.control import GpuControl
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.plans.plan_editor import PlanEditor
    from workbench.session.plans.plans import Plans
    from workbench.session.plans.presets import Presets
    from workbench.session.results.results import Results
    from workbench.session.series.conduct import Design
    from workbench.session.series.experiments import Experiments
    from workbench.session.series.sweep_progress import SweepProgress
    from workbench.session.servers.servers import Servers
    from workbench.session.state_holder import StateHolder

MAX_RUNS_PER_VALUE = 8  # of one value
UNKNOWN_VERSION_TEXT = "of an unknown version"


@dataclass(frozen=True, slots=True)
class SweepParts:
    """The parts of the session that a sweep uses."""

    core: StateHolder
    telemetry: TelemetryWatch
    presets: Presets
    plans: Plans
    servers: Servers
    gpu: GpuControl
    load: ServerLoad
    bench: Bench
    results: Results
    experiments: Experiments


@dataclass(frozen=True, slots=True)
class SweepTarget:
    """The server that a sweep measures at every value: the run `run_id`, or the server at `url` if
    others started it."""

    run_id: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedSweep:
    """A checked sweep that is ready to start. `points` has a pair (label, number or None) for each
    value, and `make_design` returns what measures them. `knee` finds the best of the measured
    points, unless that design does it itself."""

    kind: SweepKind
    name: str
    unit: str
    points: Sequence[tuple[str, float | None]]
    spec: SweepSpec
    make_design: Callable[[SweepProgress], Design[Any]]
    knee: Callable[[Sequence[SweepPoint]], Knee] | None = None


async def resolve_sweep_target(
    parts: SweepParts, run_id: str | None, url: str | None
) -> SweepTarget:
    """Return the server that a sweep measures: the one at `url`, or else the run `run_id`, by
    default the selected or newest READY run. Raises BenchError if the run is not READY."""
    return SweepTarget(url=url) if url else SweepTarget(await parts.servers.ready_run_id(run_id))


def validated_runs_per_value(runs: int) -> int:
    """Return `runs`, the number of runs of each value. Raises InputError unless it is from 1 to
    MAX_RUNS_PER_VALUE."""
    if not 1 <= runs <= MAX_RUNS_PER_VALUE:
        raise InputError(
            f"a sweep with {runs} runs of each value is not possible",
            next_step=f"give --runs 1 to {MAX_RUNS_PER_VALUE}",
        )
    return runs


def check_time_limit_minutes(max_minutes: float | None) -> None:
    """Raise InputError for a time limit that no sweep can have. None is no limit."""
    if max_minutes is not None and not 0 < max_minutes < math.inf:
        raise InputError(
            f"a time limit of {max_minutes:g} minutes is not possible",
            next_step="give more than 0 minutes, or leave the limit out",
        )


async def conditions_of_target(
    parts: SweepParts, gpus: Sequence[int], target: SweepTarget, bench: Mapping[str, Any]
) -> dict[str, str]:
    """Return the conditions that must stay the same during a sweep of a running server, as text by
    name: GPUs, driver, the files that the load sends, and the run's engine or the URL's model.
    `bench` has fields of BenchSpec."""
    found: dict[str, str] = {}
    with suppress(SettingsError, HostError):  # no GPU can be read
        found = await _hardware_conditions(parts, gpus)
    found |= _file_names_of_load(parts, bench)
    if target.run_id is not None:
        supervisor = parts.servers.supervisor
        status = supervisor.status(target.run_id)
        version = status.engine_version or supervisor.record(target.run_id).engine_version
        return {**found, "engine": f"{status.engine} {version or UNKNOWN_VERSION_TEXT}"}
    assert target.url is not None
    async with parts.load.open_load_on_url(target.url, dict(bench)) as load:
        return {**found, "model": load.spec.model}


async def conditions_of_plan(
    parts: SweepParts, editor: PlanEditor, bench: Mapping[str, Any]
) -> dict[str, str]:
    """Return the conditions that must not change during a sweep of the plan, as text by name:
    engine, the files that the load sends, GPUs and driver. GPUs and driver are missing if no GPU
    can be read. `bench` has fields of BenchSpec."""
    engine = f"{editor.engine.name} {editor.host_context.installed_version or UNKNOWN_VERSION_TEXT}"
    found = {"engine": engine, **_file_names_of_load(parts, bench)}
    with suppress(SettingsError, HostError):  # no GPU can be read
        infos = (await parts.telemetry.get_recent_reading()).infos
        found |= await _hardware_conditions(parts, gpu_indices_of_plan(editor.plan, infos))
    return found


def _file_names_of_load(parts: SweepParts, bench: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the trace and of the prompts that a load sends from files, by what they
    are ("trace", "prompts file"); {} if it sends none. A name has the digest of the file."""
    of_files = ("trace_file", "first", "speed", "prompts_file")
    spec = parts.load.make_spec(None, {name: bench[name] for name in of_files if bench.get(name)})
    names = {"trace": spec.trace_name, "prompts file": spec.prompts_name}
    return {what: name for what, name in names.items() if name}


async def _hardware_conditions(parts: SweepParts, gpus: Sequence[int]) -> dict[str, str]:
    telemetry = await parts.telemetry.get_recent_reading()
    found = {f"GPU {info.uuid}": info.name for info in telemetry.infos if info.index in gpus}
    return {**found, "driver": telemetry.driver.driver_version or UNKNOWN_VERSION_TEXT}


async def require_same_target(parts: SweepParts, sweep: Sweep, spec: SweepSpec) -> SweepTarget:
    """Return the server of a stored sweep that is to be resumed. Raises BenchError if the server is
    not READY, and InputError if the conditions of the sweep have changed."""
    target = await resolve_sweep_target(parts, spec.run_id, spec.url)
    now = await conditions_of_target(parts, (), target, spec.bench)
    check_same_conditions(parts, sweep, spec, now)
    return target


def do_known_conditions_differ(stored_condition: str, current_condition: str) -> bool:
    """Return whether two conditions, such as "vllm 0.33.0", are known to differ. False if a version
    is unknown, as on a busy host, and the rest is equal."""
    unknown = [
        one for one in (stored_condition, current_condition) if one.endswith(UNKNOWN_VERSION_TEXT)
    ]
    if not unknown:
        return stored_condition != current_condition
    what = unknown[0].removesuffix(UNKNOWN_VERSION_TEXT)
    return not (stored_condition.startswith(what) and current_condition.startswith(what))


def check_same_conditions(
    parts: SweepParts, sweep: Sweep, spec: SweepSpec, now: Mapping[str, str]
) -> None:
    """Raise InputError if the present conditions `now` differ from those under which the stored
    sweep was measured, and BenchError if its GPUs cannot be read now. Both are texts by name, such
    as "driver"."""
    if "driver" in spec.measured and "driver" not in now:
        # a busy host, which says nothing about its GPUs: they need not be others
        raise BenchError(
            f"sweep {sweep.id} cannot be resumed now: the GPUs cannot be read",
            host=parts.core.host.name,
            next_step="resume it when `workbench gpu status` shows the GPUs",
        )
    for name, before in spec.measured.items():
        present = now.get(name)
        if present is None or do_known_conditions_differ(before, present):
            change = f"{name} is {present} now" if present else f"{name} is not known now"
            raise InputError(
                f"sweep {sweep.id} cannot be resumed: it was measured with {name} {before}, and "
                f"{change}",
                host=parts.core.host.name,
                next_step="start a new sweep, because old and new values could not be compared",
            )
