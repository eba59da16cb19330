"""The status of a run, computed from its files and processes. All functions are pure, so that two
Workbench processes with the same data report the same status."""

from __future__ import annotations

from typing import TypedDict

from workbench.model.counts import count_of, is_or_are
from workbench.model.findings import Finding, Level
from workbench.model.server_run import ServedText, ServerState, ServerStatus
from workbench.model.untrusted_text import clean_text
from workbench.server.launchers.endings import finding_of_end_reason
from workbench.server.run_directory import ReadyFacts, RunFacts

RANK_FINDING_CODE = "cluster.rank"  # code of the finding that a run is a part of a server


class _ReadyFields(TypedDict, total=False):
    ready_unix_s: float
    ready_after_s: float
    phases: tuple[tuple[str, float], ...]
    served_model: str
    text: ServedText | None


class _LauncherFields(TypedDict):
    run_as: str
    handle: str | None
    launcher_state: str | None
    node: str | None
    restarts: int | None
    ends_unix_s: float | None
    image: str | None
    gpus: tuple[str, ...]


def compute_status(
    facts: RunFacts, *, now_unix_s: float, silent_s: float | None = None, phase: str | None = None
) -> ServerStatus:
    """Return the status of the run with `facts`. `now_unix_s` is the present time of the host's
    clock. `silent_s` is for how many seconds a ready server has not answered, None if it answers.
    `phase` is the start-up phase by its log, None if unknown. A server that is not ready in time is
    FAILED, and becomes READY when it answers a prompt after all: its process is left running."""
    record = facts.record
    state, reason = _state_and_reason_of_run(facts, now_unix_s, silent_s)
    ready = facts.ready
    port = ready.port if ready else record.command.port
    phase = _current_start_phase(facts, phase) if state is ServerState.STARTING else None
    return ServerStatus(
        run_id=record.run_id,
        engine=record.engine,
        state=state,
        host=record.host,
        model=clean_text(record.plan.model),
        preset_id=record.plan.preset_id,
        bind_host=record.command.host,
        port=port,
        url=f"http://{server_address_from_host(facts)}:{port}",
        pid=facts.server_pid,
        started_unix_s=facts.started_unix_s or record.created_unix_s or None,
        ended_unix_s=facts.ended_unix_s,
        phase=phase,
        exit_code=facts.exit_code,
        exit_signal=facts.exit_signal,
        reason=reason,
        findings=_findings_of_run(facts),
        outlived=0 if facts.alive else facts.members,
        engine_version=record.engine_version,
        simulated=record.simulated,
        alive=facts.alive,
        others=record.adopts is not None,
        replaces=record.replaces,
        **_launcher_fields(facts),
        **_ready_fields(ready),
    )


def _current_start_phase(facts: RunFacts, log_phase: str | None) -> str | None:
    """Return the phase of the start: `log_phase`, that of the server's log, once the server's
    process runs. Before, return the state that the launcher reports, such as "PENDING
    (Resources)"."""
    if facts.server_started_unix_s is not None:
        return log_phase
    return facts.launch_report.state or f"waiting for {facts.record.plan.run_as}"


def _ready_fields(ready: ReadyFacts | None) -> _ReadyFields:
    if ready is None:
        return {}
    return {
        "ready_unix_s": ready.unix_s,
        "ready_after_s": ready.ready_after_s,
        "phases": ready.phases,
        "served_model": ready.model,
        "text": ready.text,
    }


def _launcher_fields(facts: RunFacts) -> _LauncherFields:
    launched = facts.launch_report
    return {
        "run_as": facts.record.plan.run_as,
        "handle": launched.handle or facts.record.adopts,
        "launcher_state": launched.state,
        "node": launched.node,
        "restarts": launched.restarts,
        "ends_unix_s": launched.ends_unix_s,
        "image": launched.image,
        "gpus": launched.gpus,
    }


def server_address_from_host(facts: RunFacts) -> str:
    """Return the address at which the host of a run reaches its server: the node that a launcher
    reported, otherwise `reachable_address` of what the server binds to."""
    return facts.launch_report.node or reachable_address(facts.record.command.host)


def reachable_address(bind_host: str) -> str:
    """Return the address at which a server that binds to `bind_host` is reached from its own host,
    for a URL: an IPv6 address is in brackets."""
    if bind_host in ("", "0.0.0.0", "::", "localhost", "*"):
        return "127.0.0.1"
    return f"[{bind_host}]" if ":" in bind_host else bind_host


def _state_and_reason_of_run(
    facts: RunFacts, now_unix_s: float, silent_s: float | None
) -> tuple[ServerState, str | None]:
    if facts.stop_requested:
        if facts.has_living_processes:
            return ServerState.STOPPING, None
        adopted = facts.record.adopts
        kept = f"no longer followed; {adopted} was left as it is" if adopted else None
        return ServerState.STOPPED, kept
    if facts.alive:
        return _state_and_reason_of_live_run(facts, now_unix_s, silent_s)
    served = facts.ready is not None or facts.was_ready
    state = ServerState.CRASHED if served else ServerState.FAILED
    return state, facts.launch_report.ended or facts.lost or _describe_end(facts)


def _state_and_reason_of_live_run(
    facts: RunFacts, now_unix_s: float, silent_s: float | None
) -> tuple[ServerState, str | None]:
    if facts.ready and facts.server_started_unix_s is not None:
        if silent_s is None:
            return ServerState.READY, None
        return ServerState.UNRESPONSIVE, (
            f"the server has not answered for {silent_s:.0f} s, but its process is alive"
        )
    limit_s, began_unix_s = facts.record.ready_timeout_s, facts.server_started_unix_s
    if not limit_s or began_unix_s is None:
        return ServerState.STARTING, None
    if now_unix_s - began_unix_s <= limit_s:
        return ServerState.STARTING, None
    return ServerState.FAILED, (
        f"the server was not ready within {limit_s:.0f} s, but its process still runs"
    )


def _describe_end(facts: RunFacts) -> str:
    if facts.exit_signal:
        return f"the server's process was killed by {facts.exit_signal}"
    if facts.exit_code is not None:
        return f"the server's process exited with code {facts.exit_code}"
    return "the server's process has ended without an exit code"


def ending_finding(facts: RunFacts) -> Finding | None:
    """Return the finding about why the launcher ended the server. None if the user stopped it, if
    it ended by itself, or if it has not ended."""
    if facts.launched is None or facts.stop_requested:
        return None
    return finding_of_end_reason(facts.launched.ended)


def _served_text_findings(facts: RunFacts) -> list[Finding]:
    """Return the findings about the text of a living server, the error first; [] without a text."""
    text = facts.ready.text if facts.ready is not None else None
    if text is None or not facts.alive:
        return []
    again = f"workbench probe {facts.record.run_id}"
    found = [Finding(Level.WARN, "text.doubt", note, fix=again) for note in text.notes]
    if text.unjudged:
        found.append(Finding(Level.INFO, "text.unjudged", text.unjudged, fix=again))
    if text.problem:
        fix = (
            "do not trust its speed before its text is right: check the quantization, the type of "
            "the KV cache, the attention backend and the chat template, then start it again; "
            f"`{again}` asks again"
        )
        found.insert(0, Finding(Level.ERROR, text.code, text.summary, fix=fix))
    return found


def _findings_of_run(facts: RunFacts) -> tuple[Finding, ...]:
    made = (
        _finding_of_unreadable_record(facts),
        _restart_finding(facts),
        None if facts.alive else ending_finding(facts),
        *_served_text_findings(facts),
        _rank_finding(facts),
        _orphan_finding(facts),
    )
    return tuple(filter(None, made))


def _finding_of_unreadable_record(facts: RunFacts) -> Finding | None:
    if not facts.record.problem:
        return None
    fix = f"run workbench stop {facts.record.run_id}, or end its process with kill"
    return Finding(Level.WARN, "run.record", facts.record.problem, fix=fix)


def _restart_finding(facts: RunFacts) -> Finding | None:
    restarts = facts.launch_report.restarts
    if not restarts or not facts.alive:
        return None
    who, often = facts.record.plan.run_as, count_of(restarts, "time")
    text = f"{who} has restarted the server {often} since the run began"
    fix = "the last log lines before the restart show why the server ended"
    return Finding(Level.WARN, "run.restarted", text, fix=fix)


def _rank_finding(facts: RunFacts) -> Finding | None:
    cluster = facts.record.cluster
    if cluster is None:
        return None
    hosts = ", ".join(dict.fromkeys(rank.host for rank in cluster.ranks))
    text = (
        f"this run is {cluster.label} of one server on {hosts}; if it is stopped, the "
        "others have to be too"
    )
    fix = f"workbench cluster stop {cluster.cluster} {cluster.server_id}"
    return Finding(Level.WARN, RANK_FINDING_CODE, text, fix=fix)


def _orphan_finding(facts: RunFacts) -> Finding | None:
    """Return the finding about processes that outlived the server; None if there are none."""
    if not facts.members or facts.alive:
        return None
    processes = f"{count_of(facts.members, 'process', 'processes')} of the server"
    text = f"{processes} {is_or_are(facts.members)} still alive and may occupy GPU memory"
    fix = f"run workbench stop {facts.record.run_id}, or press x (Stop) on the screen"
    return Finding(Level.ERROR, "run.orphans", text, fix=fix)
