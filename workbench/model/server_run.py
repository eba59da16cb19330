"""A server run: its directory on a host, its state, its log and its counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from enum import StrEnum

from workbench.model.cluster_run import RankStatus
from workbench.model.counts import count_of
from workbench.model.findings import Finding
from workbench.model.lazy_dataclass import dataclass
from workbench.model.run_options import PROCESS


class ServerState(StrEnum):
    STARTING = "starting"  # the process is alive and does not answer yet
    READY = "ready"  # the process is alive, health and models answer, and a request was answered
    STOPPING = "stopping"
    STOPPED = "stopped"  # ended on request
    FAILED = "failed"  # ended by itself before it was ready, or was not ready in time
    CRASHED = "crashed"  # ended by itself after it was ready
    UNRESPONSIVE = "unresponsive"  # alive after it was ready, but its endpoints no longer answer
    # the host cannot be queried (link lost); the reason has the last state and its time
    UNKNOWN = "unknown"

    @property
    def has_ended(self) -> bool:
        """Whether the state means that the server has ended. False for the state UNKNOWN."""
        return self in (ServerState.STOPPED, ServerState.FAILED, ServerState.CRASHED)

    @property
    def is_alive(self) -> bool:
        """Whether the state means that the server is starting, serving or stopping. False for the
        state UNKNOWN."""
        return self in (
            ServerState.STARTING,
            ServerState.READY,
            ServerState.STOPPING,
            ServerState.UNRESPONSIVE,
        )


@dataclass(frozen=True, slots=True)
class ServedText:
    """What a server answered when it was probed for text, as ready.json contains it.

    `problem` says why the text is no answer; "" if it is one, or if that is unknown. `notes` are
    doubts that are no proof. `unjudged` says which part of the probe has no answer and why. The
    probe of an embedding server judges its vectors.
    """

    endpoint: str  # "chat", "completions" or "embeddings"
    answers: int  # that came and were judged
    excerpt: str = ""  # of the answer that shows the problem, otherwise of the first one
    problem: str = ""
    code: str = ""  # of the finding about the problem
    notes: tuple[str, ...] = ()
    unjudged: str = ""
    unix_s: float = 0.0  # of the host's clock

    @property
    def kind(self) -> str:
        """The kind of the problem in few words, such as "degenerate output"; "" without one."""
        return self.problem.partition(":")[0]

    @property
    def summary(self) -> str:
        """The outcome in one line, with the excerpt."""
        fine = "its vectors are sound" if self.endpoint == "embeddings" else "its text is an answer"
        text = self.problem or self.unjudged or fine
        if self.excerpt:
            text += f"; it answered {self.excerpt}"
        return text


def format_run_and_start_time(run_id: str) -> str:
    """Return a run id with the time of the run's start in local time: "run 20261121-… on 2026-11-21
    03:15". The time is read from the id; the text is "run ID" if the id does not begin with one."""
    try:
        started = datetime.strptime(run_id[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return f"run {run_id}"
    return f"run {run_id} on {started.astimezone():%Y-%m-%d %H:%M}"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The current state of one server run. Times are Unix seconds by the host's clock. A run id
    looks like "20261121-031502-vllm-3f2a"."""

    run_id: str
    engine: str
    state: ServerState
    host: str
    model: str = ""
    preset_id: str | None = None
    bind_host: str = "127.0.0.1"
    port: int | None = None
    url: str | None = None  # reachable from the server's own host, e.g. http://127.0.0.1:8000
    pid: int | None = None
    started_unix_s: float | None = None
    ready_unix_s: float | None = None
    ended_unix_s: float | None = None
    ready_after_s: float | None = None
    # how long each phase of the start took, in seconds; (): another Workbench saw the start
    phases: tuple[tuple[str, float], ...] = ()
    # while starting: "loading weights 40 %", "capturing graphs", from the log
    phase: str | None = None
    exit_code: int | None = None
    exit_signal: str | None = None
    reason: str | None = None  # first error line of the log, or why the run failed
    findings: tuple[Finding, ...] = ()  # known causes of the failure
    run_dir: str | None = None
    served_model: str | None = None
    engine_version: str | None = None
    adopted: bool = False  # another Workbench or command started the run
    # somebody else started the server through a launcher: a stop only ends following it
    others: bool = False
    simulated: bool = False
    # the process is alive; that of a FAILED run may be, if it was only not ready in time
    alive: bool = False
    run_as: str = PROCESS  # what runs the server on its host, see server/launchers
    handle: str | None = None  # of a launcher: the unit, the container or the job id
    launcher_state: str | None = None  # in the launcher's words, such as "PENDING (Resources)"
    node: str | None = None  # address of the server as its host sees it; None: the host itself
    restarts: int | None = None  # by the launcher, since the run began
    ends_unix_s: float | None = None  # when the launcher ends the server (walltime)
    image: str | None = None  # of a container, with its digest
    # indices or UUIDs of those that the launcher gave to the server; (): it named none
    gpus: tuple[str, ...] = ()
    # processes that are alive although the server's own has ended; they may occupy GPU memory
    outlived: int = 0
    ranks: tuple[RankStatus, ...] = ()  # of a server that spans several hosts
    replaces: str | None = None  # the run that was stopped for this one
    # None: the server was never probed, because it is not READY, or an older Workbench saw its
    # start
    text: ServedText | None = None

    @property
    def title(self) -> str:
        """The engine with its port, such as "vllm :8000"."""
        if self.port is None:
            return self.engine
        return f"{self.engine} :{self.port}"

    @property
    def is_ready(self) -> bool:
        return self.state is ServerState.READY

    @property
    def state_word(self) -> str:
        """The state as it is shown. It is "ready?" for a READY server whose text is no answer: such
        a server can be used and measured, but not trusted."""
        if self.text_problem:
            return f"{self.state}?"
        return str(self.state)

    @property
    def text_problem(self) -> str:
        """Why the text of this READY server is no answer; "" if it is one, or if that is
        unknown."""
        if self.state is not ServerState.READY or self.text is None:
            return ""
        return self.text.problem

    @property
    def suspect_text(self) -> ServedText | None:
        """What this READY server answered, if that is no answer. None if it is one, or if that is
        unknown."""
        return self.text if self.text_problem else None

    @property
    def has_own_processes(self) -> bool:
        """Whether the server starts, serves or stops, or processes of it are alive after its end.
        A start in its place must stop them first."""
        return self.state.is_alive or bool(self.outlived)

    @property
    def model_name(self) -> str:
        """The name under which the server serves its model, or else the name in its plan."""
        return self.served_model or self.model

    @property
    def may_still_be_running(self) -> bool:
        """Whether processes of the server may still be running on the host."""
        return self.alive or bool(self.outlived) or not self.state.has_ended


def living_servers_sentence(servers: Iterable[ServerStatus]) -> str:
    """Return a short list of the servers that may still have processes: "ready vllm :8000", or "no
    server"."""
    living = [
        f"{one.state} {one.engine} :{one.port}" for one in servers if one.may_still_be_running
    ]
    return ", ".join(living) or "no server"


def launcher_and_state_text(status: ServerStatus, now_unix_s: float) -> str:
    """Return the launcher of a server with its state, such as "systemd workbench-….service, active
    (running), restarted 2 times, 3 h 10 min left"; "" for a server that runs without a launcher."""
    if status.run_as == PROCESS:
        return ""
    parts = [f"{status.run_as} {status.handle or ''}".rstrip()]
    if status.launcher_state and status.alive:
        parts.append(status.launcher_state)
    if status.node:
        parts.append(f"on {status.node}")
    if status.restarts:
        parts.append(f"restarted {count_of(status.restarts, 'time')}")
    if status.ends_unix_s is not None and status.alive:
        parts.append(f"{_remaining_time_text(status.ends_unix_s - now_unix_s)} left")
    if status.image:
        parts.append(f"image {status.image}")
    return ", ".join(parts)


def _remaining_time_text(left_s: float) -> str:
    hours, minutes = divmod(max(0, int(left_s)) // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min"


@dataclass(frozen=True, slots=True)
class LogBatch:
    """New complete lines of a run's log, in order. `offset` is the position in bytes after the last
    of these lines."""

    run_id: str
    lines: tuple[str, ...]
    offset: int
    truncated: bool = False  # lines were skipped to keep up


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """The engine's own counters at one moment, summed over all data-parallel replicas. Totals count
    from the engine's start.

    A counter that the engine does not report is None, and `absent` gives the reason by field name.
    """

    running: int | None = None  # requests being processed
    waiting: int | None = None
    kv_use_pct: float | None = None  # 0..100, mean over the parts
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    requests_finished: int | None = None
    prefix_hit_tokens: int | None = None  # prompt tokens answered from the prefix cache
    prefix_query_tokens: int | None = None  # prompt tokens looked up in the prefix cache
    preemptions: int | None = None
    live_prompt_tokens: int | None = None  # like prompt_tokens, but counted while a request runs
    live_generation_tokens: int | None = None
    spec_draft_tokens: int | None = None
    spec_accepted_tokens: int | None = None
    unix_s: float = 0.0  # this machine's clock
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefix_hit_pct(self) -> float | None:
        if self.prefix_hit_tokens is None or not self.prefix_query_tokens:
            return None
        return 100.0 * self.prefix_hit_tokens / self.prefix_query_tokens
