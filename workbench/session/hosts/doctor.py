"""The examination of the session's host, including what Workbench itself has left behind there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.model.counts import count_of
from workbench.model.errors import WorkbenchError
from workbench.model.findings import Finding, Level, by_severity
from workbench.model.host_commands import insert_host_options_in_fixes
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerState
from workbench.model.unconfirmed_changes import split_altered_and_begun_changes
from workbench.session.hosts.names import command_options_for_host
from workbench.session.hosts.settings import HostSettings
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.doctor.examination import Examination
    from workbench.doctor.multi_gpu import GpuPaths
    from workbench.gpu.settings.rights import Rights
    from workbench.hosts.base import Host
    from workbench.model.server_run import ServerStatus
    from workbench.session.session import Session
    from workbench.store.config import ConfigStore

RIGHTS_TIMEOUT_S = 10.0
RUNS_TIMEOUT_S = 10.0
GPU_PATHS_TIMEOUT_S = 5.0
POWER_OFF_TIMEOUT_S = 12.0


@dataclass(frozen=True, slots=True)
class HostReport:
    """The report on a host: `seen` has what was read from the host, and `findings` the problems,
    with the most severe first. `paths` is the last trial of copies between its GPUs, None if there
    was none with the present GPUs and driver."""

    seen: Examination
    findings: Sequence[Finding]
    can_change_gpus: bool
    paths: GpuPaths | None = None

    @property
    def labels_and_texts(self) -> Sequence[tuple[str, str]]:
        """The properties of the host as pairs (label, text)."""
        from workbench.doctor import facts_text

        return tuple(facts_text.labels_and_fact_texts(self.seen))

    def as_json(self) -> dict[str, Any]:
        seen = self.seen
        return {
            "host": asdict(seen.facts),
            "values": {**asdict(seen.values), "own": sorted(seen.values.own or ()), "stacks": None},
            "driver": asdict(seen.driver),
            "gpus": [asdict(gpu) for gpu in seen.gpus],
            "engines": [asdict(engine) for engine in seen.engines],
            "packages": [asdict(stack) for stack in seen.packages],
            "can_change_gpus": self.can_change_gpus,
            "gpu_paths": None if self.paths is None else asdict(self.paths),
            "findings": [finding.as_json() for finding in self.findings],
            "simulated": seen.facts.simulated is not None,
        }


async def examine_host(session: Session) -> HostReport:
    """Return the report about the session's host and about the user's own files. Raises
    HostUnreachable if there is no connection."""
    from workbench.doctor import examination, multi_gpu_checks
    from workbench.doctor.checks import all_findings
    from workbench.doctor.multi_gpu import read_last_trial, trial_matches_driver_and_gpus
    from workbench.store.config import ConfigStore

    parts, config = examination.TimedParts(), ConfigStore()
    host = session.host
    programs = HostSettings(session.core, config).chosen_programs_by_engine()
    seen, rights, runs, own, tried, power_off = await asyncio.gather(
        examination.examine(host, programs, parts),
        parts.read_part_within_limit(
            "the rights to change GPUs", session.gpu.rights.load_rights(), RIGHTS_TIMEOUT_S, None
        ),
        parts.read_part_within_limit(
            "the runs of Workbench", session.servers.supervisor.runs(), RUNS_TIMEOUT_S, ()
        ),
        _workbench_file_findings(session, config),
        parts.read_part_within_limit(
            "the last trial of GPU paths", read_last_trial(host), GPU_PATHS_TIMEOUT_S, None
        ),
        parts.read_part_within_limit(
            "the end of the boot before", _power_off_finding(host), POWER_OFF_TIMEOUT_S, None
        ),
    )
    paths: GpuPaths | None = None
    found = [*parts.problems, *own, *filter(None, [power_off]), *all_findings(seen)]
    if tried is not None and trial_matches_driver_and_gpus(tried, seen.driver, seen.gpus):
        paths = tried
        found += multi_gpu_checks.gpu_path_findings(paths)
    found += (*_rights_findings(rights), *_stuck_run_findings(runs))
    altered, begun = split_altered_and_begun_changes(
        session.state.alterations, session.state.telemetry
    )
    if altered:
        text = f"{len(altered)} GPU settings changed by Workbench are still in force"
        found.append(Finding(Level.WARN, "gpu.altered", text, fix="workbench gpu revert"))
    for outcome, count in Counter(one.outcome for one in begun).items():
        text = f"{count_of(count, 'change')} of GPU settings by Workbench: {outcome}"
        found.append(Finding(Level.WARN, "gpu.begun", text, fix="workbench gpu revert"))
    can_change = rights is not None and rights.refusal is None
    named = insert_host_options_in_fixes(found, command_options_for_host(host.name))
    return HostReport(seen, by_severity(named), can_change, paths)


async def _workbench_file_findings(session: Session, config: ConfigStore) -> Sequence[Finding]:
    """Return the problems of the journal of GPU settings, of the stored results, of config.toml and
    of hosts.toml."""
    found: list[Finding] = []
    for code, read in (
        ("gpu.journal", session.gpu.alterations.read_altered_settings),
        ("results", session.results.refresh_result_rows),
    ):
        try:
            await read()
        except WorkbenchError as error:  # the other checks go on
            found.append(Finding(Level.ERROR, code, error.message, fix=error.next_step))
    if config.path.exists():
        _ = config.config
        found += config.findings
    return [*found, *HostsStore().findings]


async def _power_off_finding(host: Host) -> Finding | None:
    """Return the finding about the last recorded minute before the host went off without a
    shutdown. None if it was shut down, or if that minute is not recorded."""
    from workbench.doctor.power_off import read_last_power_off_finding
    from workbench.hosts.boot import read_boot_id
    from workbench.store import history_files

    folder = history_files.history_directory(host.name, simulated=host.simulated is not None)
    kept = await asyncio.to_thread(history_files.load_history, folder, host.name, time.time())
    return await read_last_power_off_finding(host, kept, await read_boot_id(host))


def _rights_findings(rights: Rights | None) -> Iterator[Finding]:
    if rights is not None and rights.refusal:
        text = f"GPU settings cannot be changed: {rights.refusal}"
        fix = "every setting can be read; `workbench demo` shows them all"
        if rights.by_sudoers:
            fix = rights.advice
        yield Finding(Level.HINT, "gpu.rights", text, fix=fix)


def _stuck_run_findings(runs: Sequence[ServerStatus]) -> Iterator[Finding]:
    """Yield a finding for each run that has ended but still has processes, and for each live run
    whose server no longer answers requests."""
    for run in runs:
        if run.outlived or (run.alive and run.state.has_ended):
            text = (
                f"run {run.run_id} is {run.state}, and processes of it still live: they may "
                "hold GPU memory"
            )
            evidence = count_of(run.outlived or 1, "process", "processes")
        elif run.state is ServerState.UNRESPONSIVE:
            text = f"the server of run {run.run_id} lives and no longer answers"
            evidence = f"port {run.port}"
        else:
            continue
        yield Finding(
            Level.WARN, "run.leftover", text, fix=f"workbench stop {run.run_id}", evidence=evidence
        )
