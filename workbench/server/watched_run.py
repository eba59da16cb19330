"""What a supervisor knows about one run: its last state, its log, and the HTTP connection to its
server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.hosts.base import Forward, Host
from workbench.hosts.detached_process import ProcessStatus
from workbench.hosts.file_signatures import ChangeSignature
from workbench.hosts.run_processes import signal_name
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.findings import Finding
from workbench.model.plan import Command
from workbench.model.secrets import MASK, secret_values
from workbench.model.server_run import LogBatch, ServerState, ServerStatus
from workbench.model.untrusted_numbers import number_for_field
from workbench.server import readiness
from workbench.server.kept_connection import KeepAliveConnection
from workbench.server.launchers import launcher
from workbench.server.launchers.launcher import (
    Launch,
    LaunchedServer,
    launch_from_command,
    parse_launched,
)
from workbench.server.log_lines import LogFollower
from workbench.server.run_directory import (
    RANK_ENDS_FILE,
    ReadyFacts,
    RunFacts,
    RunRecord,
    decode_rank_ends,
    decode_ready,
)
from workbench.server.run_state import compute_status, ending_finding, server_address_from_host
from workbench.server.running_server_secrets import api_key_of
from workbench.server.start_lines import StartLines
from workbench.server.start_times import FIRST_PHASE, PhaseClock

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.server.idle_start import IdleWatch
    from workbench.server.log_patterns import LogScan
    from workbench.server.python_stacks import Stacks

_SILENT_STEP_S = 3.0
_MAX_BEGIN_DELAY_S = 600.0  # from the record of a run to its start, at most: an image may be pulled
_VERSION_SEARCH_LINES = 2000  # of a log, in which the engine names its version
MAX_FAILED_HEALTH_CHECKS = (
    3  # failed health checks in a row before a ready server counts as unresponsive
)
STUCK_AFTER_S = 120.0  # a starting server without a new log line for so long may be stuck
# vLLM writes this each minute while a worker hangs
_WORKER_HANGS_LINE = "No available shared memory broadcast block"


class WatchedRun:
    """A run that a supervisor watches. `engine` is None if this version of Workbench does not know
    the run's engine: it is listed and can be stopped, but its server gets no requests. `adopted`
    says that another Workbench process started it."""

    def __init__(
        self, host: Host, run_dir: str, record: RunRecord, engine: Engine | None, *, adopted: bool
    ) -> None:
        self.host = host
        self.run_dir = run_dir
        self.record = record
        self.engine = engine
        self.adopted = adopted
        self.facts = RunFacts(
            record, alive=not adopted, started_unix_s=None if adopted else time.time()
        )
        self.follower = LogFollower(record.run_id)
        self._scan: LogScan | None = None  # of its log, once that has been read
        self.started_s = None if adopted else time.monotonic()
        self._ended_s: float | None = None  # monotonic time at which the server ended
        self.seen_unix_s = time.time()  # when it was first listed
        self.start_time: int | None = None  # of its process, in clock ticks since boot
        self.read_at_s = time.monotonic()  # when the facts were read
        self.compared_s = time.monotonic()  # when it was last seen whether they are still true
        self.sid: int | None = None  # of the session of its processes
        self.marks: ChangeSignature | None = (
            None  # of its files and processes when the facts were read
        )
        self.asked_s = float("-inf")  # monotonic time of the last request to the endpoints
        self.reading = asyncio.Lock()
        self.reading_log = asyncio.Lock()
        self.is_final = False  # the run has ended, and there is nothing more to find out
        self.at_start: tuple[Finding, ...] = ()  # what the launcher found before the start
        # reason and findings, after the end
        self.explained: tuple[str | None, tuple[Finding, ...]] | None = None
        self.api_key: str | None = None
        self.secrets: tuple[str, ...] = ()
        self.keys_known = False
        self.task: asyncio.Task[None] | None = None  # the request that is being made
        self.failures = 0  # health checks failed in a row
        self._silent_since_s: float | None = None  # monotonic time when the first of them began
        self.unanswered: str | None = None  # why the last readiness check failed
        # of the log, and when its last bytes were read
        self._last_line, self._last_line_s = "", time.monotonic()
        self.spinning: Finding | None = None  # its GPUs only spin, since the last line of the log
        self.members: tuple[int, ...] = ()  # its living processes at the last full reading
        self.idle_watch: IdleWatch | None = None  # while its log is silent
        self.idle: Finding | None = None  # its processes do nothing, since the last line of the log
        self.stacks: Stacks | None = None  # where its processes stand, if it hangs
        self._clock: PhaseClock | None = (
            None  # of a start that this process sees from its beginning
        )
        self._start = StartLines(engine, record.engine_version)
        self._lost: str | None = None
        self._forward: Forward | None = None
        self._kept: KeepAliveConnection | None = None
        self._reached: tuple[str, int, str | None] | None = None  # address, port and API key
        self._reaching = asyncio.Lock()
        self.status = self._compute_status()

    def record_start(self) -> None:
        """Record that the process of the run is started now, perhaps minutes after its files were
        written."""
        self.record = replace(self.record, created_unix_s=time.time())
        self.facts = replace(self.facts, record=self.record, started_unix_s=time.time())
        self.started_s = self.read_at_s = time.monotonic()
        self._clock = PhaseClock([(FIRST_PHASE, self.started_s)])

    @property
    def log_path(self) -> str:
        return f"{self.run_dir}/log"

    @property
    def port(self) -> int:
        if self.facts.ready:
            return self.facts.ready.port
        return self._start.port or self.record.command.port

    @property
    def address(self) -> str:
        """The address at which the host reaches the server's port: the node that a scheduler chose,
        or the address that the server binds to."""
        return server_address_from_host(self.facts)

    @property
    def state_deciding_read_interval(self) -> ServerState:
        """The state by which the supervisor decides how often it reads the run: that of its status,
        but READY for a starting rank without a port, which never becomes READY."""
        state = self.status.state
        if state is ServerState.STARTING and not self.record.has_port:
            return ServerState.READY
        return state

    @property
    def is_starting(self) -> bool:
        """Whether the server starts and will be READY: a rank without a port never is."""
        return self.status.state is ServerState.STARTING and self.record.has_port

    @property
    def can_receive_requests(self) -> bool:
        """Whether requests can be sent to the server: its launcher has started it, and it is no
        rank without a port."""
        if self.engine is None or not self.record.has_port:
            return False
        return self.facts.server_started_unix_s is not None

    @property
    def may_still_start(self) -> bool:
        """Whether the run of another Workbench process has no process, but is so new that its start
        may not be recorded yet."""
        facts = self.facts
        began = facts.alive or facts.pid is not None or facts.exit_code is not None
        if began or facts.stop_requested or not self.adopted:
            return False
        written_unix_s = self.record.created_unix_s or self.seen_unix_s
        return time.time() - written_unix_s < _MAX_BEGIN_DELAY_S

    @property
    def log_silent_s(self) -> float:
        """Seconds since new bytes of the log were read. Lines that only say that the process waits
        do not count."""
        return time.monotonic() - self._last_line_s

    @property
    def has_ended(self) -> bool:
        return not self.facts.has_living_processes

    @property
    def now_unix_s(self) -> float:
        """The present time of the host's clock in Unix seconds, computed from the host's time at
        the last full reading of the run."""
        return self.facts.now_unix_s + (time.monotonic() - self.read_at_s)

    def update_from_reading(self, seen: ProcessStatus) -> None:
        """Update the facts of the run from `seen`, a full reading of its directory and processes.
        The status follows with `refresh_and_check_status_change`."""
        ready = decode_ready(seen.files.get("ready.json", b"")) or self.facts.ready
        was_ready = ready is not None
        launched = parse_launched(seen.files.get(launcher.LAUNCHED_FILE)) or self.facts.launched
        if ready and launched and _was_restarted_since(ready, launched):
            ready = None
        self.read_at_s = time.monotonic()
        self.start_time, self.sid, self.members = seen.start_time, seen.sid, seen.members
        if seen.ended_ago_s is not None:
            self._ended_s = self.read_at_s - seen.ended_ago_s
        exit_code, exit_signal = seen.exit_code, seen.exit_signal
        if launched is not None and launched.ended:
            exit_code, exit_signal = launched.exit_code, signal_name(launched.exit_code)
        self.facts = RunFacts(
            self.record,
            alive=seen.alive,
            members=len(seen.members),
            pid=seen.pid,
            exit_code=exit_code,
            exit_signal=exit_signal,
            started_unix_s=seen.started_unix_s,
            ended_unix_s=seen.ended_unix_s,
            ready=ready,
            was_ready=was_ready,
            stop_unix_s=_parse_stop_time_unix_s(seen.files.get("stop.json", b""))
            or self.facts.stop_unix_s,
            now_unix_s=seen.now_unix_s,
            lost=seen.lost,
            rank_ends=decode_rank_ends(seen.files.get(RANK_ENDS_FILE, b"")) or self.facts.rank_ends,
            launched=launched,
        )

    def make_launch(self, command: Command | None = None) -> Launch:
        """Return the run as the input of its launcher, with `command`; None stands for the recorded
        command, whose secrets are masked."""
        launch = launch_from_command(
            self.record.run_id, self.run_dir, self.record.plan, command or self.record.command
        )
        return replace(launch, may_sudo=self.host.may_sudo)

    @property
    def ended_ago_s(self) -> float | None:
        """How many seconds ago the server ended; None if it has not ended or the time is
        unknown."""
        if self._ended_s is not None:
            return time.monotonic() - self._ended_s
        ended = self.facts.ended_unix_s
        if ended is None:
            return None
        return self.now_unix_s - ended

    def set_secrets_from_command(self, command: Command) -> None:
        """Take the run's API key, and the secrets that are masked in its log, from `command`, which
        Workbench started or read from the running process."""
        self.secrets = secret_values(command)
        self.follower.set_secrets(self.secrets)
        key = api_key_of(command, self.engine)
        self.api_key = None if key == MASK else key
        self.keys_known = True

    def make_ready_facts(self, model: str) -> ReadyFacts:
        """Return the content of ready.json, without the text, for a server that has just answered
        its first prompts. `model` is the name by which the server lists its model."""
        facts, own = self.facts, self.record.is_plain_process
        began_unix_s = (
            facts.server_started_unix_s or facts.started_unix_s or self.record.created_unix_s
        )
        after_s, now_s = self.now_unix_s - began_unix_s, time.monotonic()
        phases: tuple[tuple[str, float], ...] = ()
        if own:
            if self._clock is not None:
                phases = self._clock.phase_durations(now_s)
            if self.started_s:
                after_s = now_s - self.started_s
        return ReadyFacts(
            round(self.now_unix_s, 3),
            model,
            round(max(0.0, after_s), 3),
            self.port,
            None if own else facts.server_pid,
            facts.launch_report.restarts,
            phases=phases,
        )

    def add_log_bytes(self, data: bytes, offset: int) -> LogBatch | None:
        """Add `data`, the bytes at position `offset` of the log, and return the new lines; None if
        no line is complete. Until the server is ready, its start-up phase, its port and the
        engine's version are taken from them."""
        # A server that another Workbench started may be READY before its version is read.
        first = self._start.version is None and self.follower.ring.total < _VERSION_SEARCH_LINES
        batch = self.follower.feed(data, offset)
        lines = batch.lines if batch is not None else ()
        forms = self._scan_and_return_normalized_lines(lines)
        if not lines or any(_WORKER_HANGS_LINE not in line for line in lines):
            self._last_line_s, self.spinning = time.monotonic(), None
            self.idle_watch, self.idle, self.stacks = None, None, None
        if self.facts.ready is None or first:
            self._start.search_new_lines(lines, forms)
            self._start.update_if_start_fact_found(self.follower.unfinished_line)
            if self._clock is not None:
                self._clock.record_phase(self._start.phase, time.monotonic())
        return batch

    def finish_log(self) -> LogBatch | None:
        """Return the last line of the log, which has no line end; None if the last line was
        complete. Call this after the run has ended."""
        batch = self.follower.finish()
        self._scan_and_return_normalized_lines(batch.lines if batch is not None else ())
        return batch

    def _scan_and_return_normalized_lines(self, lines: Sequence[str]) -> list[str]:
        """Search the new lines of the log for known problems, and store the findings. Return the
        lines without their numbers (see `remove_numbers_from_lines`)."""
        if not lines:
            return []
        from workbench.server import log_patterns  # 0.4 MiB, which no ended run needs

        if self._scan is None:
            self._scan = log_patterns.LogScan(self.record.engine)
        ring, forms = self.follower.ring, log_patterns.remove_numbers_from_lines(lines)
        self._last_line = lines[-1]
        first = None if ring.skipped else ring.total - len(lines) + 1
        self._scan.search_new_lines(lines, forms, first)
        return forms

    @property
    def findings_in_log(self) -> tuple[Finding, ...]:
        """The findings about the log lines read so far, in the order of the lines."""
        if self._scan is None:
            return ()
        return self._scan.found

    def _log_findings_above_info(self) -> tuple[Finding, ...]:
        if self._scan is None:
            return ()
        return self._scan.findings_above_info

    def set_unreachable_reason(self, reason: str | None) -> None:
        """Record that the host cannot be queried, for `reason`; None records that it can be
        again."""
        if reason is None:
            if self._lost is not None:
                self.record_health_check(True, 0.0)
            self._lost = None
        elif self._lost is None:
            self._lost = f"{reason} (last seen {time.strftime('%H:%M:%S')}, {self.status.state})"

    def refresh_and_check_status_change(self) -> bool:
        """Compute the run's status anew, and return whether it has changed. Do nothing, and return
        False, after an unexpected end whose reason will soon be known."""
        if self._awaits_end_reason:
            return False
        before, self.status = self.status, self._compute_status()
        return before != self.status

    @property
    def _awaits_end_reason(self) -> bool:
        """Whether the server has ended unexpectedly, and the reason will soon be known."""
        if self.facts.alive or self.facts.stop_requested:
            return False
        return self.explained is None and self._lost is None and not self.is_final

    def _compute_status(self) -> ServerStatus:
        status = compute_status(
            self.facts,
            now_unix_s=self.now_unix_s,
            silent_s=self._health_checks_unanswered_s(),
            phase=self._start.phase,
        )
        reason, found = self._reason_and_findings_of_status(status)
        at_start = self.at_start if self.facts.alive else ()
        status = replace(
            status,
            host=self.host.name,
            port=self.port,
            url=f"http://{self.address}:{self.port}",
            reason=reason or status.reason,
            findings=(*at_start, *status.findings, *self._hang_findings(status), *found),
            run_dir=self.run_dir,
            engine_version=self._start.version,
            adopted=self.adopted,
        )
        if self._lost and not self.is_final:
            return replace(status, state=ServerState.UNKNOWN, reason=self._lost)
        return status

    def _reason_and_findings_of_status(
        self, status: ServerStatus
    ) -> tuple[str | None, tuple[Finding, ...]]:
        """Return (reason of the state, None if that of `status` holds; findings about the log or
        the end)."""
        if status.state is ServerState.STOPPED:
            return None, ()
        reason, found = self.explained or (None, self._log_findings_above_info())
        if self.facts.alive:
            if status.reason and self.unanswered:
                reason = f"{status.reason} ({self.unanswered})"
        elif ending_finding(self.facts) is not None:
            reason = None  # the error lines of its log follow from that
        return reason, found

    def _hang_findings(self, status: ServerStatus) -> tuple[Finding, ...]:
        """Return the findings about a start whose log has been silent for STUCK_AFTER_S; () for any
        other run."""
        silent_s, is_starting = self.log_silent_s, status.state is ServerState.STARTING
        if not is_starting or not self.record.has_port or silent_s <= STUCK_AFTER_S:
            return ()
        from workbench.server.log_patterns import stuck_start_findings

        stuck = stuck_start_findings(
            self._last_line, self.record.engine, self._start.phase, silent_s
        )
        hangs = map(self._add_python_stacks, filter(None, (self.spinning, self.idle)))
        return (*hangs, *stuck)

    def _add_python_stacks(self, finding: Finding) -> Finding:
        if self.stacks is None:
            return finding
        from workbench.server.python_stacks import add_python_stacks

        return add_python_stacks(finding, self.stacks)

    def record_health_check(
        self, healthy: bool, began_s: float, *, failure_weight: int = 1
    ) -> None:
        """Record the outcome of a health check that began at `began_s` (monotonic seconds). A
        failed check adds `failure_weight` to the number of consecutive failures."""
        if healthy:
            self.failures, self._silent_since_s = 0, None
            return
        self.failures += failure_weight
        if self._silent_since_s is None:
            self._silent_since_s = began_s

    def _health_checks_unanswered_s(self) -> float | None:
        """Return for how many seconds the server has failed its health checks, rounded down to a
        multiple of _SILENT_STEP_S, so that the status changes less often. None with fewer than
        MAX_FAILED_HEALTH_CHECKS failures in a row."""
        if self.failures < MAX_FAILED_HEALTH_CHECKS or self._silent_since_s is None:
            return None
        return max(
            1.0, (time.monotonic() - self._silent_since_s) // _SILENT_STEP_S * _SILENT_STEP_S
        )

    async def connection(self) -> KeepAliveConnection:
        """Return the open connection for requests to the server, through a forwarded port of a
        remote host. Raises HostError if the host cannot forward the port."""
        async with self._reaching:
            forward = await self._forwarded_port()
            if self._kept is None:
                self._kept = readiness.make_request_connection(forward.url, self.api_key)
            return self._kept

    async def _forwarded_port(self) -> Forward:
        """Return the forwarded port of the server's present address. A forwarded port of an earlier
        address is closed."""
        wanted = (self.address, self.port, self.api_key)
        if self._forward is None or self._reached != wanted:
            await self.disconnect()
            self._forward = await self.host.forward(self.port, self.address)
            self._reached = wanted
        return self._forward

    async def disconnect(self) -> None:
        """Close the connection and the forwarded port. The next call of `connection` opens both
        again."""
        forward, self._forward = self._forward, None
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()
        with contextlib.suppress(Exception):
            if forward is not None:
                await forward.close()

    async def close(self) -> None:
        task, self.task = self.task, None
        await cancel_all([task])
        await self.disconnect()


def _was_restarted_since(ready: ReadyFacts, launched: LaunchedServer) -> bool:
    """Return whether the launcher has restarted the server since the server was ready."""
    if ready.pid and launched.pid:
        return launched.pid != ready.pid
    return (launched.restarts or 0) > (ready.restarts or 0)


def _parse_stop_time_unix_s(stop_json: bytes) -> float | None:
    """Return when a stop was requested, by the content of stop.json; None if it does not say."""
    try:
        return number_for_field("unix_s", json.loads(stop_json)["unix_s"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
