"""The directory of a run on its host: the files that Workbench writes there, and that any later
version of Workbench can read.

<state_dir>/runs/20261121-031502-vllm-3f2a/
    plan.json    the plan, the command with its secrets masked, versions; written before the start
    ready.json   written when the server has answered the prompts of the probe, and after each later probe:
                 {unix_s, model, ready_after_s, port, pid, text, phases}
    stop.json    written before the first signal to a living server: {unix_s}
    ranks.json   of a server's head: how each rank ended, written when all have ended: {run id: {state, reason}}
    shm          shared memory files that the server's processes had open: "inode path" per line
    launched     written by the launcher's keeper, the process that follows the server: job id, state, end
    log, …       written by `hosts.detached_process`: the output, the process id and start time, the exit code
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import field

from workbench.model.cluster_run import ClusterRun
from workbench.model.errors import ServerError
from workbench.model.json_records import from_json, to_json
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import Command, LaunchPlan
from workbench.model.run_options import PROCESS
from workbench.model.server_run import ServedText, ServerState
from workbench.model.untrusted_text import clean_data, clean_json
from workbench.server.launchers.launcher import LaunchedServer

RECORD_FORMAT = 1
RANK_ENDS_FILE = "ranks.json"
RUN_ID_PATTERN = re.compile(r"\d{8}-\d{6}-[a-z0-9]+-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The content of plan.json: what was started, when, and by which version of Workbench. Secrets
    in `plan` and `command` are masked."""

    run_id: str
    host: str
    plan: LaunchPlan
    command: Command
    created_unix_s: float
    ready_timeout_s: float
    engine_version: str | None = None
    workbench_version: str = ""
    simulated: bool = False
    # handle of a server that others started through the launcher; a stop only unfollows it
    adopts: str | None = None
    cluster: ClusterRun | None = None  # of a rank of a server that spans several hosts
    replaces: str | None = None  # the run that was stopped for this one
    problem: str | None = None  # why plan.json could not be read; such a run is listed nevertheless

    @property
    def engine(self) -> str:
        return self.plan.engine

    @property
    def is_plain_process(self) -> bool:
        """Whether Workbench itself started the server, and not a launcher such as Slurm."""
        return self.plan.run_as == PROCESS

    @property
    def has_port(self) -> bool:
        """Whether the run's server answers requests at a port: of the ranks of a server on several
        hosts, only the head does."""
        return self.cluster is None or self.cluster.server_id == self.run_id


@dataclass(frozen=True, slots=True)
class ReadyFacts:
    """The content of ready.json: when, with which model and on which port the server first answered
    a prompt, and what its text was. If this file exists, a later Workbench need not ask again."""

    unix_s: float
    model: str
    ready_after_s: float
    port: int
    # of the server, if a launcher reported it: one that was restarted is not ready yet
    pid: int | None = None
    # by the launcher until then, for a server on another node, whose pid is not reported
    restarts: int | None = None
    text: ServedText | None = None  # None: written by a version that did not look at the text
    phases: tuple[tuple[str, float], ...] = ()  # of the start, with their seconds; (): unknown


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank of a server on several hosts ended: its last state, and the reason."""

    state: str  # a ServerState
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The state of a run, as read from its directory and the process table. Times are in Unix
    seconds of the host's clock. None means that an event has not happened or a value is unknown."""

    record: RunRecord
    alive: bool  # whether the process that Workbench started is alive
    members: int = 0  # living processes of its session, including that process
    pid: int | None = None
    exit_code: int | None = None
    exit_signal: str | None = None
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    ready: ReadyFacts | None = None
    # whether the server was ready before its launcher restarted it, even if it is not ready now
    was_ready: bool = False
    stop_unix_s: float | None = None
    now_unix_s: float = field(default_factory=time.time)
    lost: str | None = None  # why the end is unknown, e.g. the host was restarted
    # of the head of a server on several hosts whose ranks have all ended, by run id
    rank_ends: Mapping[str, RankEnd] = field(default_factory=dict)
    launched: LaunchedServer | None = (
        None  # what a launcher reported, such as the job id and its node
    )

    @property
    def has_living_processes(self) -> bool:
        """Whether a process of the run is alive, even if the one that Workbench started has
        ended."""
        return self.alive or self.members > 0

    @property
    def stop_requested(self) -> bool:
        return self.stop_unix_s is not None

    @property
    def is_serving(self) -> bool:
        """Whether the server was ready, and nobody has asked it to stop."""
        return self.ready is not None and not self.stop_requested

    @property
    def launch_report(self) -> LaunchedServer:
        """What a launcher reported; a report without any value if none did."""
        return self.launched or LaunchedServer()

    @property
    def server_pid(self) -> int | None:
        """The process id of the server on its host; None if unknown. If a launcher runs the server,
        it is the id that the launcher reported, not that of the run's keeper."""
        if self.record.is_plain_process:
            return self.pid
        return self.launch_report.pid

    @property
    def server_started_unix_s(self) -> float | None:
        """When the server's present process was started, in Unix seconds of the host's clock; None
        while a launcher has not started it yet."""
        if self.record.is_plain_process:
            return self.started_unix_s or self.record.created_unix_s
        return self.launch_report.began_unix_s


def new_run_id(engine: str, unix_s: float) -> str:
    """Return a new, random run id such as "20261121-031502-vllm-3f2a". It begins with the time
    `unix_s` in UTC, so that sorted ids are in the order of their starts."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(unix_s))}-{engine}-{secrets.token_hex(2)}"


def encode_record(record: RunRecord) -> bytes:
    """Return the record as the content of plan.json."""
    body = to_json(record)
    del body["problem"]
    return (
        json.dumps({"format": RECORD_FORMAT, **body}, indent=1, ensure_ascii=False).encode() + b"\n"
    )


def decode_record(run_id: str, data: bytes) -> RunRecord:
    """Return the record in `data`, the content of plan.json. If that cannot be read, return a
    record whose `problem` says why: the run is listed nevertheless, because its process may
    live."""
    try:
        body = json.loads(data)
        if body["format"] > RECORD_FORMAT:
            raise ServerError(
                f"a newer version of Workbench wrote the file (format {body['format']}, this "
                f"version reads {RECORD_FORMAT})"
            )
        # they are run and compared as they were written
        exact = {"plan": body["plan"], "command": body["command"]}
        rest = {name: clean_data(value) for name, value in body.items() if name not in exact}
        return from_json(RunRecord, {**rest, **exact, "run_id": run_id, "problem": None})
    except (ValueError, KeyError, TypeError, RecursionError, ServerError) as error:
        engine = run_id.split("-")[2] if RUN_ID_PATTERN.fullmatch(run_id) else "unknown"
        problem = f"plan.json of run {run_id} cannot be read: {error or type(error).__name__}"
        return RunRecord(run_id, "", LaunchPlan(engine, ""), Command(()), 0.0, 0.0, problem=problem)


def encode_ready(ready: ReadyFacts) -> bytes:
    """Return `ready` as the content of ready.json."""
    return json.dumps(to_json(ready)).encode() + b"\n"


def decode_ready(data: bytes) -> ReadyFacts | None:
    """Return the content of ready.json; None if the bytes are empty or damaged."""
    try:
        return from_json(ReadyFacts, clean_json(data))
    except ValueError:
        return None


def encode_rank_ends(ends: Mapping[str, RankEnd]) -> bytes:
    """Return `ends`, by run id, as the content of ranks.json."""
    return json.dumps({run_id: to_json(end) for run_id, end in ends.items()}).encode() + b"\n"


def decode_rank_ends(data: bytes) -> Mapping[str, RankEnd]:
    """Return the content of ranks.json by run id; {} if the bytes are empty or damaged."""
    try:
        ends = {run_id: from_json(RankEnd, end) for run_id, end in clean_json(data).items()}
        for end in ends.values():
            ServerState(end.state)
    except (ValueError, TypeError, AttributeError):
        return {}
    return ends
