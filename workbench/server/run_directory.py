"""A run's directory on its host: what is written there, and how it is read back by any later Workbench.

<state_dir>/runs/20261121-031502-vllm-3f2a/
    plan.json    the plan, the command with its secrets masked, versions; written before the start
    ready.json   written once, when the first token came back: {unix_s, model, ready_after_s, port}
    stop.json    written before the first signal to a living server: {unix_s}
    shm          shared memory files that its processes had open: "inode path" per line
    log, …       what `hosts.detached` keeps there: output, process id and start time, exit code
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from workbench.model.errors import ServerError
from workbench.model.flags import FlagSetting, Origin
from workbench.model.plan import Command, LaunchPlan, ModelFacts, Node, VariableSource
from workbench.model.untrusted_text import clean_data, clean_json

FORMAT = 1
RUN_ID = re.compile(r"\d{8}-\d{6}-[a-z0-9]+-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """plan.json. `command` has its secrets masked, and so has `plan`."""

    run_id: str
    host: str
    plan: LaunchPlan
    command: Command
    created_unix_s: float
    ready_timeout_s: float
    engine_version: str | None = None
    workbench_version: str = ""
    simulated: bool = False
    problem: str | None = None  # plan.json could not be read: the run is listed all the same

    @property
    def engine(self) -> str:
        return self.plan.engine


@dataclass(frozen=True, slots=True)
class ReadyFacts:
    """ready.json: the proof that the server answered, kept so that no later Workbench has to ask for a token again."""

    unix_s: float
    model: str
    ready_after_s: float
    port: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a look at the run directory and the process table gave. Times are the host's clock."""

    record: RunRecord
    alive: bool  # the process that was started
    members: int = 0  # living processes of its session, that one included
    pid: int | None = None
    exit_code: int | None = None
    exit_signal: str | None = None
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    ready: ReadyFacts | None = None
    stop_unix_s: float | None = None
    now_unix_s: float = field(default_factory=time.time)
    lost: str | None = None  # why nothing is known of its end, e.g. the host was restarted


def new_run_id(engine: str, unix_s: float) -> str:
    """ "20261121-031502-vllm-3f2a": UTC, so that runs of all hosts sort in order."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(unix_s))}-{engine}-{secrets.token_hex(2)}"


def encode_record(record: RunRecord) -> bytes:
    """plan.json."""
    body = asdict(record)
    del body["problem"]
    return json.dumps({"format": FORMAT, **body}, indent=1, ensure_ascii=False).encode() + b"\n"


def decode_record(run_id: str, data: bytes) -> RunRecord:
    """plan.json to a record. A broken file gives a record with `problem`, since its process may be alive."""
    try:
        body = json.loads(data)
        if body["format"] > FORMAT:
            raise ServerError(f"written by a newer Workbench (format {body['format']})")
        known = {f.name for f in fields(RunRecord)} - {"plan", "command", "run_id"}
        return RunRecord(
            run_id=run_id,
            plan=decode_plan(body["plan"]),
            command=_command(body["command"]),
            **{k: clean_data(v) for k, v in body.items() if k in known},
        )
    except (ValueError, KeyError, TypeError, ServerError) as error:
        engine = run_id.split("-")[2] if RUN_ID.fullmatch(run_id) else "unknown"
        problem = f"plan.json cannot be read: {error or type(error).__name__}"
        return RunRecord(run_id, "", LaunchPlan(engine, ""), Command(()), 0.0, 0.0, problem=problem)


def decode_plan(body: Mapping[str, Any]) -> LaunchPlan:
    """A plan from its JSON form (`dataclasses.asdict`); fields that this version does not know are left out."""
    known = _known(LaunchPlan, body)
    settings = {
        k: tuple(FlagSetting(s["name"], s["value"], Origin(s["origin"])) for s in known.get(k, ()))
        for k in ("flags", "env")
    }
    facts = known.get("model_facts")
    model = ModelFacts(**_known(ModelFacts, facts)) if facts else None
    nodes = tuple(Node(n["name"], n["rank"], n.get("flags", {}), n.get("env", {})) for n in known.get("nodes", ()))
    executable = tuple(known.get("executable", ()))
    sources = {name: VariableSource(**_known(VariableSource, s)) for name, s in known.get("sources", {}).items()}
    built = {"model_facts": model, "nodes": nodes, "executable": executable, "sources": sources}
    return LaunchPlan(**{**known, **settings, **built})


def _known(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {k: v for k, v in body.items() if k in names}


def _command(body: Mapping[str, Any]) -> Command:
    known = _known(Command, body)
    return Command(**{**known, "argv": tuple(known["argv"])})


def encode_ready(ready: ReadyFacts) -> bytes:
    return json.dumps(asdict(ready)).encode() + b"\n"


def decode_ready(data: bytes) -> ReadyFacts | None:
    """None when it is missing or cut off: then the server is asked again."""
    try:
        body = clean_json(data)
        return ReadyFacts(float(body["unix_s"]), str(body["model"]), float(body["ready_after_s"]), int(body["port"]))
    except (ValueError, KeyError, TypeError):
        return None
