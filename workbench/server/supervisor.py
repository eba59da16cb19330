"""The servers of one host: starts, watches, adopts and stops them.

All state is in the run directories on the host (run_directory.py, hosts/detached_process.py). A
supervisor can therefore be killed at any moment and replaced by another, and two supervisors can
watch the same runs: stopping a run twice does no harm, and both may write the file that proves
readiness.

Watching is cheap while nothing happens: for each run, its process state and its log are read in
parallel. The whole process table is read only every few seconds, and when a process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import posixpath
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Sequence,
)
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from workbench import __version__
from workbench.hosts import detached_process
from workbench.hosts.base import FileError, Host, HostUnreachable
from workbench.hosts.directory_names import list_directory_names
from workbench.hosts.file_signatures import ChangeSignature, read_file_signatures
from workbench.hosts.session_marks import read_session_processes
from workbench.hosts.task_cancellation import cancel_all, is_running
from workbench.model.beat import Beat
from workbench.model.errors import HostError, InputError, ServerError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import Command, LaunchPlan
from workbench.model.secrets import mask_command, mask_secrets_of_plan
from workbench.model.server_run import (
    EngineMetrics,
    LogBatch,
    ServedText,
    ServerState,
    ServerStatus,
)
from workbench.server import (
    launched_runs,
    log_lines,
    log_reading,
    metrics,
    old_runs,
    preflight,
    readiness,
    ready_proof,
    run_start,
    running_server_secrets,
)
from workbench.server.launchers import launcher
from workbench.server.log_lines import LogMatch, LogRing
from workbench.server.run_directory import (
    RANK_ENDS_FILE,
    RUN_ID_PATTERN,
    RunRecord,
    decode_record,
    new_run_id,
)
from workbench.server.watched_run import MAX_FAILED_HEALTH_CHECKS, WatchedRun

_FirstResult = TypeVar("_FirstResult")
_SecondResult = TypeVar("_SecondResult")

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.model.findings import Finding
    from workbench.model.gpu import GpuSample
    from workbench.model.in_force import InForceReport
    from workbench.server.spinning import SpinWatch
    from workbench.server.watched_rank import RankStart

ServerEvent = ServerStatus | LogBatch

READY_TIMEOUT_S = 1800.0  # loading 400 GB of weights from a network disk takes that long
STOP_GRACE_S = 15.0  # from TERM to KILL: ready servers take 2 s (vLLM) to 7 s (SGLang)
_STOP_TRIES = 3  # if the link is lost during a stop
NEWEST_RUNS = 20  # are read even if they have ended
EXPLAINED_RUNS = 10  # newest failed runs whose log is searched for the reason when runs are listed
READ_FILES = ("plan.json", "ready.json", "stop.json", RANK_ENDS_FILE, launcher.LAUNCHED_FILE)

# between two looks at a run: while its log grows, 4 batches a second of a server that starts, and 2
# of one that is READY, as many as the screen draws
_BUSY_INTERVAL_S, _STARTING_INTERVAL_S = 0.25, 0.5
_TALKING_INTERVAL_S, _READY_INTERVAL_S = 0.5, 1.0
_LOST_INTERVAL_S = 2.0
_CHANGING_STATES = (ServerState.STARTING, ServerState.STOPPING)
_FULL_READ_INTERVAL_S = {ServerState.STARTING: 2.0, ServerState.STOPPING: 1.0}
_OTHER_FULL_READ_INTERVAL_S = 15.0  # the end of a process is noticed at once nevertheless
_CLOCK_SET_S = 2.0  # a host's clock that differs more from what is expected was set
_GPU_WORKS_PCT = 5.0  # utilization of a GPU on which something runs
_STARTING_ASK_INTERVAL_S, _READY_ASK_INTERVAL_S = 1.0, 5.0
# limit for /health: while watching (three failures count); for a single check
_HEALTH_TIMEOUT_S, _IMMEDIATE_ASK_TIMEOUT_S, _IMMEDIATE_PROOF_TIMEOUT_S = 5.0, 3.0, 10.0
_UNDECIDED_STATES = frozenset({ServerState.STARTING, ServerState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class PreparedServer:
    """A server whose start has been checked and whose files are on its host, but whose processes do
    not run. The caller calls `launch`, which returns the server's status, or `discard`, which
    removes the files."""

    run_id: str
    launch: Callable[[], Awaitable[ServerStatus]]
    discard: Callable[[], Awaitable[None]]


class Supervisor:
    """Starts, watches and stops the servers of one host. `on_event` is called in the event loop
    with each changed status and each batch of new log lines, and must return quickly."""

    def __init__(
        self,
        host: Host,
        on_event: Callable[[ServerEvent], None] = lambda event: None,
        beat: Beat | None = None,
    ) -> None:
        self.host = host
        self._beat = beat or Beat()  # with which the live runs are checked
        self.pause_s = 0.0  # at least so long between two checks of the live runs
        self._emit = on_event
        self._runs: dict[str, WatchedRun] = {}
        self._watch: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # set, and replaced, at every change
        self._root = ""
        self._starting: set[str] = set()  # runs whose directory this supervisor is creating
        self.older: tuple[str, ...] = ()  # ids of ended runs that were not read
        self._samples: Sequence[GpuSample] = ()  # the last reading of the GPUs
        self._spin_watch: SpinWatch | None = None  # while a server starts and its GPUs are read

    # ---- what is known now, without asking the host

    def status(self, run_id: str) -> ServerStatus:
        """Return the last known status of the run `run_id`, without querying the host. Raises
        ServerError if it is unknown."""
        return self._require_run(run_id).status

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Return the last known statuses of all runs, newest first, without querying the host."""
        return tuple(self._runs[run_id].status for run_id in sorted(self._runs, reverse=True))

    def record(self, run_id: str) -> RunRecord:
        """Return the record of a run: its plan and its command, with secrets masked. Raises
        ServerError if the run is unknown."""
        return self._require_run(run_id).record

    def api_key(self, run_id: str) -> str | None:
        """Return the API key of a run's server; None if the server has none or the key is unknown.
        The key must never be shown, stored or logged."""
        return self._require_run(run_id).api_key

    def host_unix_time_s(self, run_id: str) -> float:
        """Return the present time of the host's clock in Unix seconds, computed from that at the
        last reading of the run `run_id`. Raises ServerError if the run is unknown."""
        return self._require_run(run_id).now_unix_s

    def log(self, run_id: str) -> LogRing:
        """Return the log lines of a run that were read so far and are in memory. Raises ServerError
        if the run is unknown."""
        return self._require_run(run_id).follower.ring

    def watched_runs(self) -> Collection[WatchedRun]:
        """Return the WatchedRun of each run that this supervisor has read."""
        return self._runs.values()

    def get_watched_run(self, run_id: str) -> WatchedRun | None:
        return self._runs.get(run_id)

    def _runs_in_state(self, state: ServerState) -> list[WatchedRun]:
        return [run for run in self._runs.values() if run.status.state is state]

    def _live_runs(self) -> list[WatchedRun]:
        return [run for run in self._runs.values() if not run.is_final]

    def _require_run(self, run_id: str) -> WatchedRun:
        try:
            return self._runs[run_id]
        except KeyError:
            raise ServerError(
                f"there is no run {run_id} on {self.host.name}",
                host=self.host.name,
                next_step="`workbench servers` lists the runs",
            ) from None

    # ---- start

    async def start(
        self, plan: LaunchPlan, command: Command, engine: Engine, **options: Any
    ) -> ServerStatus:
        """Prepare and start a server, and return its status once its process runs. A later event
        reports that the server is ready. The arguments and errors are those of `prepare`, and also
        HostError if the host cannot start the process."""
        return await (await self.prepare(plan, command, engine, **options)).launch()

    async def prepare(
        self,
        plan: LaunchPlan,
        command: Command,
        engine: Engine,
        *,
        ready_timeout_s: float = READY_TIMEOUT_S,
        engine_version: str | None = None,
        simulated: bool = False,
        adopts: str | None = None,
        rank: RankStart | None = None,
        replaces: str | None = None,
    ) -> PreparedServer:
        """Check the start of the plan's server by `command`, and write its files on the host.
        `adopts` is the unit, container or job of a server that runs already: it is followed, not
        started. `rank` is the rank of a server on several nodes, whose start the caller has
        checked; None for any other server. `replaces` is the run that the caller stops before the
        launch, so that its port counts as free. A server that is not ready within `ready_timeout_s`
        becomes FAILED, but its process is left running.

        Raises ServerError for a problem of the start, such as a port in use or a missing model
        path, PlanError if a launcher refuses the plan, and HostError if the files cannot be
        written.
        """
        if rank is None:
            await self.runs()
        known = self._runs.get(replaces or "")  # a further node of a cluster does not know it
        replaced = known.status if known is not None else None
        if rank is not None:
            run_id, cluster = rank.run_id, rank.server
        else:
            run_id, cluster = new_run_id(engine.name, time.time()), None
            if adopts is None:
                freed = preflight.list_freed_ports(replaced)
                await preflight.check_before_start(
                    self.host,
                    plan,
                    command,
                    self.statuses(),
                    simulated=simulated,
                    freed_ports=freed,
                )
        run_dir = posixpath.join(await self.runs_dir(), run_id)
        record = RunRecord(
            run_id,
            self.host.name,
            mask_secrets_of_plan(replace(plan, engine=engine.name)),
            mask_command(command),
            time.time(),
            ready_timeout_s,
            engine_version,
            __version__,
            simulated,
            adopts,
            cluster=cluster,
            replaces=replaces,
        )
        run = WatchedRun(self.host, run_dir, record, engine, adopted=False)
        run.set_secrets_from_command(command)
        prepared = await run_start.prepare_run(self.host, run, command, rank, replaced=replaced)
        return PreparedServer(run_id, lambda: self._launch(prepared), prepared.discard)

    async def _launch(self, prepared: run_start.RunPreparation) -> ServerStatus:
        run = prepared.run
        run_id = run.record.run_id
        self._starting.add(run_id)
        try:
            run.facts = replace(run.facts, pid=await prepared.launch_and_get_pid())
        finally:
            self._starting.discard(run_id)
        run.refresh_and_check_status_change()
        self._runs[run_id] = run
        self._emit(run.status)
        self.ensure_watch()
        return run.status

    async def restart_and_return_command(self, run_id: str, *, dry_run: bool = False) -> str:
        """Restart the server of a run through its launcher, and return the command line for it. The
        run becomes STARTING, and READY once the server answers a prompt. With `dry_run`, only
        return the command line. Raises ServerError if the run has ended, or its launcher cannot
        restart a server."""
        run = await self._find_run(run_id)
        shown = await launched_runs.restart_and_return_command(self.host, run, dry_run=dry_run)
        await self._read_status(run)
        self._publish_changed_status(run)
        return shown

    async def probe(self, run_id: str) -> ServedText:
        """Ask the server of a run for text again, record what it answers, and return that. Raises
        ServerError if the run is not READY, or if its server does not answer."""
        run = await self._find_run(run_id)
        if run.engine is None or run.status.state is not ServerState.READY:
            raise ServerError(
                f"run {run_id} is {run.status.state}, not READY, so it cannot be asked for text",
                host=self.host.name,
                next_step="`workbench servers` lists the runs",
            )
        text = await ready_proof.probe_served_text_again(self.host, run)
        self._publish_changed_status(run)
        return text

    # ---- list and adopt

    async def runs(self, newest: int = NEWEST_RUNS) -> tuple[ServerStatus, ...]:
        """Read the host's runs, and return their statuses, newest first: all that may be alive, and
        the `newest` most recent ones. `self.older` gets the ids of the others. Living runs of other
        Workbench processes are watched from now on. Raises HostError."""
        root = await self.runs_dir()
        read, self.older = await detached_process.read_runs_and_unread_names(
            self.host, root, files=READ_FILES, newest_count=newest
        )
        for process in read:
            self._update_run(process)
        await self._replace_lost_keepers(read)
        self._drop_removed_runs(read)
        await asyncio.gather(
            *map(self._explain_end, self._unexplained_failures()),
            *map(self._read_secrets_of_run, self._runs_without_keys()),
            old_runs.write_end_marks(self.host, root, self._end_mark_texts_by_run(read)),
        )
        self.ensure_watch()
        return self.statuses()

    async def _replace_lost_keepers(self, read: Sequence[detached_process.ProcessStatus]) -> None:
        """Start a keeper for each of the runs `read` that has lost the one that followed it."""
        lost = (
            run
            for _, run in self._processes_with_known_runs(read)
            if launched_runs.has_lost_keeper(run)
        )
        await asyncio.gather(*map(self._replace_keeper, lost))

    def _drop_removed_runs(self, read: Sequence[detached_process.ProcessStatus]) -> None:
        """Drop the runs whose directories are no longer on the host: those that are neither in
        `read`, the processes that were just read, nor in `self.older`."""
        present = {posixpath.basename(process.run_dir) for process in read} | set(self.older)
        self._runs = {run_id: run for run_id, run in self._runs.items() if run_id in present}

    def _unexplained_failures(self) -> list[WatchedRun]:
        """Return those of the newest failed runs whose end is not explained yet."""
        newest_first = sorted(self._runs.values(), key=lambda run: run.record.run_id, reverse=True)
        ended = (run for run in newest_first if not run.facts.alive)
        failed = [run for run in ended if not run.facts.stop_requested]
        return [run for run in failed[:EXPLAINED_RUNS] if run.explained is None]

    def _runs_without_keys(self) -> list[WatchedRun]:
        """Return the living runs whose API keys this process does not know yet."""
        return [run for run in self._runs.values() if run.facts.alive and not run.keys_known]

    def _end_mark_texts_by_run(
        self, read: Sequence[detached_process.ProcessStatus]
    ) -> dict[str, str | None]:
        """Return the text of the end mark of each run in `read`, by run id, None for one that gets
        none. Runs that are not known here, or that lost their keeper, are left out."""
        return {
            run.record.run_id: old_runs.end_mark_text(process, run.status)
            for process, run in self._processes_with_known_runs(read)
            if not launched_runs.has_lost_keeper(run)
        }

    def _processes_with_known_runs(
        self, read: Sequence[detached_process.ProcessStatus]
    ) -> Iterator[tuple[detached_process.ProcessStatus, WatchedRun]]:
        """Yield (process, its run) for those of `read` whose runs are known here."""
        for process in read:
            run = self._runs.get(_run_id_of_process(process))
            if run is not None:
                yield process, run

    def _update_run(self, process: detached_process.ProcessStatus) -> None:
        """Update the run that `process` describes, and publish its status if that changed. A run
        that this supervisor does not know yet is added."""
        run_id = _run_id_of_process(process)
        if run_id in self._starting:
            return
        run = self._runs.get(run_id)
        if run is None or run.may_still_start:
            first = run
            record = decode_record(run_id, process.files.get("plan.json", b""))
            run = WatchedRun(
                self.host, process.run_dir, record, self._get_engine(record.engine), adopted=True
            )
            if first is not None:  # it was read before its start was recorded
                run.seen_unix_s = first.seen_unix_s
            run.update_from_reading(process)
            run.is_final = _has_final_state(run)
            self._runs[run_id] = run
        elif not run.is_final:
            run.update_from_reading(process)
        self._publish_changed_status(run)

    async def _replace_keeper(self, run: WatchedRun) -> None:
        """Start a new keeper, the process that follows the server, for a run that has lost its
        keeper, if the run's launcher still runs the server. Otherwise record the server's end."""
        try:
            await launched_runs.restart_keeper_or_record_end(self.host, run)
            await self._read_status(run)
        except HostError as error:
            run.set_unreachable_reason(error.message)
        else:
            run.set_unreachable_reason(None)
        run.is_final = _has_final_state(run)
        self._publish_changed_status(run)

    async def load_status(self, run_id: str) -> ServerStatus:
        """Return the status of a run. A run that `runs` has not read, because it is older, is first
        read from the host. Raises ServerError if there is no such run."""
        return (await self._find_run(run_id)).status

    async def mark_log_as_read(self, run_id: str) -> None:
        """Record on the host that a user has seen the log of this run. A failed run may be removed
        only after that."""
        with contextlib.suppress(HostError):
            await old_runs.mark_log_as_read(self.host, (await self._find_run(run_id)).run_dir)

    async def _read_secrets_of_run(self, run: WatchedRun) -> None:
        pid, run_dir = run.facts.server_pid, run.run_dir
        command = await running_server_secrets.read_run_command(self.host, run_dir, pid)
        run.set_secrets_from_command(command or run.record.command)

    def _get_engine(self, name: str) -> Engine | None:
        from workbench import engines

        try:
            return engines.get_engine(name)
        except InputError:
            return None

    async def runs_dir(self) -> str:
        """Return the path of the directory on the host that contains the directories of all
        runs."""
        if not self._root:
            self._root = posixpath.join(await self.host.state_dir(), "runs")
        return self._root

    async def _find_run(self, run_id: str) -> WatchedRun:
        if run_id not in self._runs:
            await self.runs()
            if run_id in self.older:
                run_dir = posixpath.join(await self.runs_dir(), run_id)
                self._update_run(
                    await detached_process.read_status(self.host, run_dir, files=READ_FILES)
                )
        return self._require_run(run_id)

    # ---- wait

    async def wait(
        self, run_id: str, until: Callable[[ServerStatus], bool], timeout_s: float | None = None
    ) -> ServerStatus:
        """Wait until `until(status)` is true for the status of the run, or the run has ended, and
        return the status. Raises TimeoutError after `timeout_s` seconds, never for None."""
        run = await self._find_run(run_id)
        async with asyncio.timeout(timeout_s):
            while not until(run.status) and not run.is_final:
                self.ensure_watch()
                await self._changed.wait()
        return run.status

    async def wait_ready(self, run_id: str, timeout_s: float | None = None) -> ServerStatus:
        """Wait until the server is READY, has failed or is being stopped, and return its status.
        Raises TimeoutError after `timeout_s` seconds, never for None."""
        return await self.wait(
            run_id, lambda status: status.state not in _UNDECIDED_STATES, timeout_s
        )

    def _publish_changed_status(self, run: WatchedRun) -> None:
        if run.refresh_and_check_status_change():
            self._emit(run.status)
            self._wake_watchers()

    def _wake_watchers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def record_gpu_samples(self, samples: Sequence[GpuSample]) -> None:
        """Store `samples`, a reading of the host's GPUs, and add a finding to each starting server
        whose GPUs have only been spinning for SPINNING_AFTER_S."""
        self._samples = samples
        starting = [run for run in self._runs.values() if run.is_starting]
        if not starting:
            self._spin_watch = None
            return
        from workbench.server import spinning

        watch = self._spin_watch = self._spin_watch or spinning.SpinWatch()
        watch.add_reading(samples, time.monotonic())
        for run in starting:
            if run.spinning is not None or run.log_silent_s < spinning.SPINNING_AFTER_S:
                continue
            gpus = watch.find_spinning_gpus(_gpu_indices(run, samples))
            if gpus:
                run.spinning = spinning.spinning_finding(
                    gpus,
                    run.status.phase,
                    int(run.log_silent_s // 60),
                    self._earlier_start_duration_s(run),
                )
                self._publish_changed_status(run)

    async def _check_for_idle_start(self, run: WatchedRun) -> None:
        """While the log of a starting server is silent, read every READ_INTERVAL_S what its
        processes do. Set `run.idle` to a finding if none of them has done anything for
        HANGING_AFTER_S. The run is a plain process."""
        if not run.is_starting:
            return
        from workbench.server import idle_start

        now_s = time.monotonic()
        watch = run.idle_watch or idle_start.IdleWatch()
        since_reading_s = now_s - watch.last_reading_at_s
        if (
            run.log_silent_s < idle_start.QUIET_LOG_S
            or since_reading_s < idle_start.READ_INTERVAL_S
        ):
            return
        run.idle_watch = watch
        try:
            watch.add_reading(await idle_start.read_activity(self.host, run.members, now_s))
        except HostError:
            watch.add_reading(None)
        run.idle = None
        if watch.idle_s >= idle_start.HANGING_AFTER_S and not self._uses_gpus(run):
            run.idle = idle_start.idle_finding(
                watch, run.status.phase, run.log_silent_s, self._earlier_start_duration_s(run)
            )

    def _uses_gpus(self, run: WatchedRun) -> bool:
        """Return whether something ran on the run's GPUs at their last reading."""
        own = _gpu_indices(run, self._samples)
        used = (sample for sample in self._samples if own is None or sample.index in own)
        return any((sample.gpu_util_pct or 0.0) >= _GPU_WORKS_PCT for sample in used)

    async def _read_stacks_of_hang(self, run: WatchedRun) -> None:
        """Set `run.stacks` to where the processes of a start that hangs stand, by py-spy if the
        host has it. It is asked once for each hang. The run is a plain process."""
        if run.spinning is None and run.idle is None:
            run.stacks = None
            return
        if run.stacks is not None:
            return
        from workbench.server import python_stacks

        program = run.record.command.argv[0]
        try:
            run.stacks = await python_stacks.read_stacks(self.host, program, run.members)
        except HostError:
            run.stacks = python_stacks.Stacks(installed=True)  # it is not asked again
        self._publish_changed_status(run)

    def _earlier_start_duration_s(self, run: WatchedRun) -> float | None:
        """Return how many seconds the last start before this one with the same engine, model and
        preset took until READY; None if there was none."""
        from workbench.server.start_times import find_earlier_ready_run

        before = find_earlier_ready_run(run.status, self.statuses())
        if before is None:
            return None
        return before.ready_after_s

    # ---- stop

    async def stop(self, run_id: str, *, grace_s: float = STOP_GRACE_S) -> ServerStatus:
        """Stop every process of the run, remove the shared memory that they left, and return the
        final status. The run's process group gets SIGTERM, and SIGKILL after `grace_s` seconds.
        Nothing changes if the run has ended. Raises ServerError if the run is unknown, or with the
        processes that could not be ended, and HostError if the host cannot be reached."""
        run = await self._find_run(run_id)
        for _ in range(_STOP_TRIES - 1):
            # the host waits for its link, and a stop can be repeated
            with contextlib.suppress(HostUnreachable):
                return await self._stop(run, grace_s)
        return await self._stop(run, grace_s)

    async def _stop(self, run: WatchedRun, grace_s: float) -> ServerStatus:
        await self.mark_stopped(run)
        await launched_runs.stop_launched_server(self.host, run)
        report = await detached_process.stop_run(self.host, run.run_dir, grace_s=grace_s)
        # the keeper may have started it meanwhile
        await launched_runs.stop_launched_server(self.host, run, check_alive_first=True)
        await self._read_status(run)
        if report.left:
            self._publish_changed_status(run)
            left = ", ".join(map(str, report.left))
            raise ServerError(
                f"the processes {left} of run {run.record.run_id} could not be ended",
                host=self.host.name,
                command=f"kill -KILL {left.replace(',', '')}",
                next_step="check these processes with ps: they may belong to another user or hang "
                "in the driver",
            )
        await self._explain_end(run)
        await run.close()
        self._mark_run_final(run)
        return run.status

    async def uninstall_and_list_removed(self, run_id: str) -> Sequence[str]:
        """Remove what the start of an ended run has installed on the host, such as a systemd unit,
        and return the removed paths. Raises ServerError if this run or another run of its unit is
        alive, or if Workbench did not start the server or did not write the files."""
        return await launched_runs.uninstall_unit_and_list_removed(
            self.host, await self._find_run(run_id), self.watched_runs()
        )

    def installed_unit_name(self, run_id: str) -> str | None:
        """Return the name of the systemd unit that the start of a run has installed and that stays
        after a stop; None if there is none."""
        return launched_runs.installed_unit_name(self._require_run(run_id))

    async def mark_stopped(self, run: WatchedRun) -> None:
        """Record on the host that the user stops the run's server, unless it has ended. Call this
        before the server gets a signal, so that its end does not count as a failure."""
        await run.close()
        await self._read_status(run)
        may_still_be_running = run.facts.alive or launched_runs.has_lost_keeper(run)
        if may_still_be_running and not run.facts.stop_requested:
            asked = run.facts.now_unix_s
            # a full disk must not prevent a stop; only the mark is lost
            with contextlib.suppress(FileError):
                await self.host.write_file(
                    f"{run.run_dir}/stop.json", json.dumps({"unix_s": asked}).encode()
                )
            run.facts = replace(run.facts, stop_unix_s=asked)
        self._publish_changed_status(run)

    async def _read_status(self, run: WatchedRun) -> detached_process.ProcessStatus:
        """Read the run's files and processes, update the run unless it is final, and return the
        reading. Readings of a run do not overlap, so that no older one replaces a newer one."""
        async with run.reading:
            seen = await detached_process.read_status(self.host, run.run_dir, files=READ_FILES)
            if not run.is_final:
                run.update_from_reading(seen)
            return seen

    def _mark_run_final(self, run: WatchedRun) -> None:
        run.is_final = True
        self._publish_changed_status(run)
        self._wake_watchers()

    # ---- logs and counters

    async def load_log(self, run_id: str) -> LogRing:
        """Return the lines of a run's log in memory: its first and its last part. If nothing of it
        was read yet, read it from the host. Raises ServerError if there is no such run."""
        run = await self._find_run(run_id)
        if not run.follower.offset:
            read = log_reading.read_log_to_end if run.is_final else log_reading.read_missed_log
            await read(self.host, run, self._emit)
        return run.follower.ring

    async def read_log(self, run_id: str, *, follow: bool = False) -> AsyncIterator[LogBatch]:
        """Yield every line of a run's log from its start, in batches, without skipping any. With
        `follow`, continue with new lines until the run has ended."""
        run = await self._find_run(run_id)

        async def pause() -> None:
            self.ensure_watch()
            await asyncio.sleep(_BUSY_INTERVAL_S)

        def ended() -> bool:
            return not follow or run.has_ended

        path, secrets = run.log_path, run.secrets
        async for batch in log_lines.read_log_batches(
            self.host, path, run_id, secrets=secrets, ended=ended, wait=pause
        ):
            yield batch

    def findings_in_log(self, run_id: str) -> tuple[Finding, ...]:
        """Return the findings about the log lines read so far, also those about harmless lines, in
        the order of the lines."""
        return self._require_run(run_id).findings_in_log

    async def read_settings_in_force(self, run_id: str) -> InForceReport:
        """Return the settings in the plan of the run's server, each with the value that the server
        actually uses."""
        from workbench.server import in_force

        await self.load_log(run_id)
        return await in_force.read_settings_in_force(self._require_run(run_id))

    async def search_log(self, run_id: str, text: str, *, limit: int = 500) -> tuple[LogMatch, ...]:
        """Return up to `limit` lines of the run's whole log file that contain `text`, ignoring
        case. The search runs on the host."""
        run = await self._find_run(run_id)
        return await log_lines.search_log(
            self.host, run.log_path, text, secrets=run.secrets, limit=limit
        )

    async def metrics(self, run_id: str, timeout_s: float = metrics.TIMEOUT_S) -> EngineMetrics:
        """Return one reading of the engine's own counters. A value that cannot be read is None, and
        `absent` has the reason. Raises ServerError if there is no such run."""
        run = await self._find_run(run_id)
        if run.has_ended:
            return metrics.metrics_without_values("the server has ended")
        if run.engine is None:
            unknown = f"this Workbench does not know the engine {run.record.engine}"
            return metrics.metrics_without_values(unknown)
        try:
            return await metrics.fetch_metrics((await run.connection()).get, run.engine, timeout_s)
        except HostError as error:
            return metrics.metrics_without_values(error.message)

    async def close(self) -> None:
        """Stop watching all runs and close the connections to them. The servers continue to run."""
        task, self._watch = self._watch, None
        await cancel_all([task])
        await asyncio.gather(*(run.close() for run in self._runs.values()))

    # ---- watching

    def ensure_watch(self) -> None:
        """Start the task that watches all runs that have not ended, unless it is running
        already."""
        if self._watch is not None and self._watch.done():
            self._watch.result()  # raises if watching failed: a defect must not stay silent
            self._watch = None
        if self._watch is None and self._live_runs():
            self._watch = asyncio.create_task(self._keep_watching())

    async def _keep_watching(self) -> None:
        try:
            await self._watch_live_runs()
        finally:
            self._wake_watchers()

    async def _watch_live_runs(self) -> None:
        while live := self._live_runs():
            if len(live) == 1:  # a task costs more than what it does here
                log_grew = [await self._update_and_check_log_growth(live[0])]
            else:
                every = (self._update_and_check_log_growth(run) for run in live)
                log_grew = await asyncio.gather(*every)
            pause_s = max(_seconds_to_next_reading(live, any(log_grew)), self.pause_s)
            await asyncio.sleep(self._beat.seconds_until_beat_near_pause_end(pause_s))

    async def _update_and_check_log_growth(self, run: WatchedRun) -> bool:
        """Read a run's state and log from the host, and return whether its log grew. If the host
        cannot be queried, the state becomes UNKNOWN, and False is returned."""
        try:
            if not self.host.connected:
                run.set_unreachable_reason("the connection to the host is lost")
                self._publish_changed_status(run)
            # waits a moment for the link, which restores itself
            grew = await self._read_state_and_log_growth(run)
        except HostError as error:
            run.set_unreachable_reason(error.message)
            await run.disconnect()
            grew = False
        else:
            run.set_unreachable_reason(None)
        self._publish_changed_status(run)
        return grew

    async def _read_state_and_log_growth(self, run: WatchedRun) -> bool:
        alive, grew = await self._gather_if_remote(
            self._is_alive(run), log_reading.read_log_and_count_bytes(self.host, run, self._emit)
        )
        every_s = _FULL_READ_INTERVAL_S.get(
            run.state_deciding_read_interval, _OTHER_FULL_READ_INTERVAL_S
        )
        due = time.monotonic() - max(run.read_at_s, run.compared_s) > every_s
        must_read = not alive
        if alive and due:
            must_read = await self._needs_full_reading(run)
        if must_read:
            await self._read_status_and_signature(run)
        if launched_runs.has_lost_keeper(run):
            await launched_runs.restart_keeper_or_record_end(self.host, run)
            await self._read_status_and_signature(run)
        if not run.facts.alive and run.explained is None:
            await self._explain_end(run)
        if run.has_ended and not run.is_final:
            await self._finish_run(run)
        elif run.facts.alive and not run.facts.stop_requested:
            self._check_server_when_due(run)
            if run.record.is_plain_process:
                await self._check_for_idle_start(run)
                await self._read_stacks_of_hang(run)
        return grew > 0

    async def _is_alive(self, run: WatchedRun) -> bool:
        pid, start_time = run.facts.pid, run.start_time
        if pid is None or start_time is None:
            return False  # unknown: a full reading is needed
        if not run.facts.alive:
            return False
        process = detached_process.DetachedProcess(pid, pid, start_time)
        return all(
            await self._gather_if_remote(
                detached_process.is_process_alive(self.host, process),
                launched_runs.is_launch_report_current(self.host, run),
            )
        )

    async def _gather_if_remote(
        self, first: Coroutine[Any, Any, _FirstResult], second: Coroutine[Any, Any, _SecondResult]
    ) -> tuple[_FirstResult, _SecondResult]:
        """Return the results of two queries of the host, which run at the same time on a remote
        host and one after the other on this machine. Raises the error of one of them."""
        if not self.host.is_local:
            both: tuple[_FirstResult, _SecondResult] = await asyncio.gather(first, second)
            return both
        try:
            answer = await first
        except BaseException:
            second.close()
            raise
        return answer, await second

    async def _needs_full_reading(self, run: WatchedRun) -> bool:
        """Return whether the run may differ from its last full reading: its files or processes have
        changed or cannot be compared, as on another machine, or the clock was set."""
        marks = await asyncio.to_thread(self._read_state_signature, run)
        run.compared_s = time.monotonic()
        clock_set = abs(time.time() - run.now_unix_s) > _CLOCK_SET_S
        if marks is None or clock_set:
            return True
        return marks != run.marks

    def _read_state_signature(self, run: WatchedRun) -> ChangeSignature | None:
        files = (f"{run.run_dir}/{name}" for name in (*READ_FILES, *detached_process.OWN_FILES))
        marks = read_file_signatures(self.host, files, ())
        # a server that starts leaves shared memory, which only a full reading records
        if not run.facts.is_serving:
            return None
        if marks is None or run.sid is None:
            return None
        return (*marks, read_session_processes(run.sid))

    async def _read_status_and_signature(self, run: WatchedRun) -> None:
        marks = await asyncio.to_thread(self._read_state_signature, run)
        seen = await self._read_status(run)
        run.marks = marks
        if not run.facts.is_serving:
            # A server that is killed while it starts leaves shared memory, whose owner is only
            # known now. SGLang creates a semaphore even while it shuts down, and leaves it.
            await detached_process.record_shared_memory_files(self.host, run.run_dir, seen.members)

    async def _finish_run(self, run: WatchedRun) -> None:
        # the last words of processes that outlived the server
        await log_reading.read_log_to_end(self.host, run, self._emit)
        await detached_process.remove_unused_shared_memory_files(self.host, run.run_dir)
        await run.close()
        self._mark_run_final(run)

    async def _explain_end(self, run: WatchedRun) -> None:
        await log_reading.explain_ended_run(self.host, run, self._emit)
        self._publish_changed_status(run)

    # ---- readiness

    def _check_server_when_due(self, run: WatchedRun) -> None:
        """Start a check of the run's server, of its health if it was ready and of its readiness
        otherwise, unless one is running or the last one is too recent. Raises the error of the
        last one."""
        if not run.can_receive_requests or is_running(run.task):
            return
        is_steady = run.facts.ready is not None and not run.failures
        every_s = _READY_ASK_INTERVAL_S if is_steady else _STARTING_ASK_INTERVAL_S
        if time.monotonic() - run.asked_s < every_s:
            return
        if run.task is not None and not run.task.cancelled():
            run.task.result()  # raises if the request failed: a defect must not stay silent
        run.asked_s = time.monotonic()
        check = self._check_health if run.facts.ready else self._check_readiness
        run.task = asyncio.create_task(check(run))

    async def check_servers_now(self) -> tuple[ServerStatus, ...]:
        """Check the health of every READY server now, ask every starting server whether it is
        ready, read its log, and return the statuses of all runs that this supervisor has read."""
        starting = self._runs_in_state(ServerState.STARTING)
        check_health = partial(
            self._check_health,
            timeout_s=_IMMEDIATE_ASK_TIMEOUT_S,
            failure_weight=MAX_FAILED_HEALTH_CHECKS,
        )
        await asyncio.gather(
            *map(check_health, self._runs_in_state(ServerState.READY)),
            *(log_reading.read_log_to_end(self.host, run, self._emit) for run in starting),
            *map(self._prove_readiness_now, starting),
        )
        for run in starting:
            self._publish_changed_status(run)
        return self.statuses()

    async def _prove_readiness_now(self, run: WatchedRun) -> None:
        """Ask a starting server for its first answers, which make it READY, and wait for them up to
        _IMMEDIATE_PROOF_TIMEOUT_S. A command that only lists servers ends before the watch asks."""
        if not run.can_receive_requests:
            return
        task = run.task
        if not is_running(task):
            run.asked_s = time.monotonic()
            task = run.task = asyncio.create_task(self._check_readiness(run))
        await asyncio.wait([task], timeout=_IMMEDIATE_PROOF_TIMEOUT_S)

    async def has_unread_runs(self) -> bool:
        """Return whether the host has runs that this supervisor has not read, or has read before
        their start was recorded. Takes one round trip. Raises HostError."""
        listed = await list_directory_names(self.host, await self.runs_dir())
        names = set(filter(RUN_ID_PATTERN.fullmatch, listed))
        known = {run_id for run_id, run in self._runs.items() if not run.may_still_start}
        return bool(names - known - self._starting - set(self.older))

    async def _check_health(
        self, run: WatchedRun, timeout_s: float = _HEALTH_TIMEOUT_S, failure_weight: int = 1
    ) -> None:
        if run.engine is None:
            return
        asked_s = time.monotonic()
        try:
            trouble = await readiness.find_readiness_problem(
                (await run.connection()).get, run.engine.alive_path, timeout_s
            )
        except HostError:
            return  # the next update of the run reports the problem
        run.record_health_check(trouble is None, asked_s, failure_weight=failure_weight)
        self._publish_changed_status(run)

    async def _check_readiness(self, run: WatchedRun) -> None:
        try:
            if await ready_proof.check_and_record_readiness(self.host, run):
                self._publish_changed_status(run)
                seen = await self._read_status(run)
                await detached_process.record_shared_memory_files(
                    self.host, run.run_dir, seen.members
                )
        except HostError as error:
            run.unanswered = error.message
        self._publish_changed_status(run)


def _run_id_of_process(process: detached_process.ProcessStatus) -> str:
    return posixpath.basename(process.run_dir)


def _has_final_state(run: WatchedRun) -> bool:
    """Return whether the run has ended, and no launcher may still run its server."""
    return run.has_ended and not launched_runs.has_lost_keeper(run)


def _gpu_indices(run: WatchedRun, samples: Sequence[GpuSample]) -> frozenset[int] | None:
    """Return the indices of the GPUs of `samples` that its launcher or its plan names for a run;
    None if neither names one."""
    visible = run.record.command.env.get("CUDA_VISIBLE_DEVICES", "")
    words = run.status.gpus or tuple(map(str.strip, visible.split(",")))
    uuids = tuple(word for word in words if word.startswith("GPU-"))
    named = frozenset(
        sample.index
        for sample in samples
        if str(sample.index) in words or sample.uuid.startswith(uuids)
    )
    return named or None


def _seconds_to_next_reading(live: Sequence[WatchedRun], log_grew: bool) -> float:
    """Return how many seconds to wait before the next reading of the runs `live`. `log_grew` says
    whether the log of one of them has just grown."""
    if any(run.status.state is ServerState.UNKNOWN for run in live):
        return _LOST_INTERVAL_S
    if any(run.state_deciding_read_interval in _CHANGING_STATES for run in live):
        return _BUSY_INTERVAL_S if log_grew else _STARTING_INTERVAL_S
    return _TALKING_INTERVAL_S if log_grew else _READY_INTERVAL_S
