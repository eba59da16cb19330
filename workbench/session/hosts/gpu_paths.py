"""The trial of the paths between the GPUs of the session's host, and what a start says about it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from workbench.doctor import multi_gpu, multi_gpu_checks, multi_gpu_text
from workbench.engines import registry
from workbench.hosts.base import Host
from workbench.model.errors import HostError, InputError
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.session.hosts.settings import HostSettings
from workbench.store.config import ConfigStore

if TYPE_CHECKING:
    from workbench.doctor.multi_gpu import GpuPaths
    from workbench.model.gpu import DriverInfo, GpuInfo
    from workbench.server.engine_probe import InstalledEngine
    from workbench.session.session import Session

MULTI_GPU_COMMAND = "workbench doctor --multi-gpu"


@dataclass(frozen=True, slots=True)
class PathsReport:
    """The outcome of a trial, and the findings about it, the most severe first."""

    paths: GpuPaths
    findings: tuple[Finding, ...]
    simulated: bool

    @property
    def reasons_nothing_was_copied(self) -> tuple[Finding, ...]:
        """The findings that say why nothing was copied. Empty if data was copied."""
        return () if self.paths.was_copy_tried else self.findings

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.paths),
            "findings": [finding.as_json() for finding in self.findings],
            "simulated": self.simulated,
        }


def path_matrix_lines_and_time(
    paths: GpuPaths,
) -> tuple[Sequence[tuple[str, ...]], Sequence[tuple[str, str]], str | None]:
    """Return (rows of the matrix of the paths, (label, text) pairs about them, time of the trial as
    text). The time is None if nothing was tried."""
    tested = None
    if paths.tested_unix_s is not None:
        tested = time.strftime("%Y-%m-%d %H:%M", time.localtime(paths.tested_unix_s))
    return (
        multi_gpu_text.copy_matrix_rows(paths),
        tuple(multi_gpu_text.labels_and_trial_texts(paths)),
        tested,
    )


async def try_copies_between_gpus(session: Session, engine: str | None = None) -> PathsReport:
    """Copy data between the GPUs of the session's host with the torch of `engine`, by default of
    the first engine found, and keep the outcome on the host. If nothing can be copied, the report
    says why. Raises HostOccupied if somebody else measures there, InputError for a cluster and for
    an engine without torch, and HostUnreachable if there is no connection."""
    host = session.host
    if host.kind == "cluster":
        raise InputError(
            "the GPUs of a cluster are on several hosts",
            next_step=f"run it on one node: workbench --host NODE {MULTI_GPU_COMMAND.partition(' ')[2]}",
        )
    candidates = _engine_names_with_torch(engine)
    seen = await multi_gpu.read_topology(host)
    looked = multi_gpu.parse_gpu_paths(seen, (), None)
    whole = [gpu for gpu in looked.gpus if not gpu.mig]
    if len(whole) < 2:
        paths = looked
        if looked.problem is None and len(looked.gpus) > len(whole):
            why = "GPUs that are divided with MIG exchange no data"
            paths = replace(looked, untried=why)
        return _report_of_gpu_paths(host, paths)
    installed = await _find_first_engine_with_torch(session, candidates)
    if installed is None:
        tried = " or ".join(registry.get_engine(name).title for name in candidates)
        paths = replace(looked, untried=f"neither {tried} was found, whose torch would copy")
        return _report_of_gpu_paths(host, paths)
    async with session.measurement_lock.hold_lock("a trial of the paths between GPUs"):
        printed = await multi_gpu.run_gpu_copy_trial(host, installed)
    try:
        await multi_gpu.store_trial_outcome(host, seen, printed, installed.engine)
    except HostError as error:
        session.core.record_command(f"# the outcome is not kept: {error.message}")
    return _report_of_gpu_paths(host, multi_gpu.parse_gpu_paths(seen, printed, installed.engine))


def _engine_names_with_torch(engine: str | None) -> Sequence[str]:
    """Return the engines whose torch can be used. Raises InputError if `engine` is none of them."""
    known = [name for name in registry.engine_names() if registry.get_engine(name).packages]
    if engine is None:
        return known
    if engine not in known:
        raise InputError(
            f"{engine!r} is no engine with torch", next_step=f"use one of {', '.join(known)}"
        )
    return [engine]


async def _find_first_engine_with_torch(
    session: Session, names: Sequence[str]
) -> InstalledEngine | None:
    from workbench.server.engine_probe import probe_engine

    settings = HostSettings(session.core, ConfigStore())
    for name in names:
        chosen = settings.engine_program_and_source_file(name)
        found = await probe_engine(
            session.host, registry.get_engine(name), tuple(chosen[:1]) if chosen else ()
        )
        if found.path and (found.python or session.host.simulated):
            return found
    return None


def _report_of_gpu_paths(host: Host, paths: GpuPaths) -> PathsReport:
    found = tuple(multi_gpu_checks.gpu_path_findings(paths))
    return PathsReport(paths, found, host.simulated is not None)


async def gpu_path_findings_before_start(
    host: Host, driver: DriverInfo, gpus: Sequence[GpuInfo], gpu_indices: Collection[int]
) -> Sequence[Finding]:
    """Return what to know before a start on the GPUs `gpu_indices` about the paths between them:
    that they were never tried with this driver and these GPUs, or the errors of the last trial. ()
    if that trial found no error, for fewer than two GPUs, and for GPUs with unified memory or
    MIG."""
    ends: Mapping[int, GpuInfo] = {gpu.index: gpu for gpu in gpus if gpu.index in gpu_indices}
    if len(ends) < 2:
        return ()
    if any(gpu.unified_memory or gpu.mig for gpu in ends.values()):
        return ()
    paths = await multi_gpu.read_last_trial(host)
    if paths is None or not multi_gpu.trial_matches_driver_and_gpus(paths, driver, gpus):
        text = "the paths between these GPUs were never tried"
        if paths is not None:
            text = "the GPUs or their driver have changed since the paths between them were tried"
        fix = f"{MULTI_GPU_COMMAND} copies between each pair and compares the bytes, in about a minute"
        return (Finding(Level.HINT, "paths.untested", text, fix=fix),)
    pairs = tuple(pair for pair in paths.pairs if {pair.a, pair.b} <= set(ends))
    errors = [
        replace(one, level=Level.WARN)
        for one in multi_gpu_checks.gpu_path_findings(replace(paths, pairs=pairs))
        if one.level is Level.ERROR
    ]
    return tuple(errors)
