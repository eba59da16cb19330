"""The status of a run, computed from its files and processes. All functions are pure, so that two
Workbench processes with the same data report the same status."""

from __future__ import annotations

from typing import TypedDict

from workbench.model.counts import count_of
from workbench.model.findings import Finding, Level
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.untrusted_text import clean
from workbench.server.launchers.endings import finding_of
from workbench.server.launchers.launcher import Launched
from workbench.server.run_directory import RunFacts

RANK = "cluster.rank"  # code of the finding that a run is a part of a server


class _LauncherFields(TypedDict):
    run_as: str
    handle: str | None
    launcher_state: str | None
    node: str | None
    restarts: int | None
    ends_unix_s: float | None
    image: str | None
    gpus: tuple[str, ...]


def status_of(
    facts: RunFacts, *, now_unix_s: float, silent_s: float | None = None, phase: str | None = None
) -> ServerStatus:
    """Return the status of a run. `now_unix_s` is the present time of the host's clock. `silent_s`
    is the number of seconds for which a ready server has not answered, None if it answers. `phase`
    is the start-up phase from the server's log.

    A server that is not ready in time is FAILED, but its process is left running, and the reason
    says so: the server may only need more time, and becomes READY when it answers a prompt.
    """
    record = facts.record
    state, reason = _state(facts, now_unix_s, silent_s)
    ready = facts.ready
    port = ready.port if ready else record.command.port
    return ServerStatus(
        run_id=record.run_id,
        engine=record.engine,
        state=state,
        host=record.host,
        model=clean(record.plan.model),
        preset_id=record.plan.preset_id,
        bind_host=record.command.host,
        port=port,
        url=f"http://{status_address(facts)}:{port}",
        pid=facts.server_pid,
        started_unix_s=facts.started_unix_s or record.created_unix_s or None,
        ready_unix_s=ready.unix_s if ready else None,
        ended_unix_s=facts.ended_unix_s,
        ready_after_s=ready.ready_after_s if ready else None,
        phases=ready.phases if ready else (),
        phase=_phase(facts, phase) if state is ServerState.STARTING else None,
        exit_code=facts.exit_code,
        exit_signal=facts.exit_signal,
        reason=reason,
        findings=_findings(facts),
        outlived=0 if facts.alive else facts.members,
        served_model=ready.model if ready else None,
        engine_version=record.engine_version,
        simulated=record.simulated,
        alive=facts.alive,
        text=ready.text if ready else None,
        others=record.adopts is not None,
        replaces=record.replaces,
        **_of_launcher(facts),
    )


def _phase(facts: RunFacts, of_log: str | None) -> str | None:
    """Return the present phase of the start: `of_log`, the phase from the server's log, once the
    server's process runs. Before that, return the state that the launcher reports, such as "PENDING
    (Resources)"."""
    if facts.server_began_unix_s is not None:
        return of_log
    return (facts.launched and facts.launched.state) or f"waiting for {facts.record.plan.run_as}"


def _of_launcher(facts: RunFacts) -> _LauncherFields:
    launched = facts.launched or Launched()
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


def status_address(facts: RunFacts) -> str:
    """Return the address at which the run's server can be reached from its host: the node that a
    launcher reported, otherwise the address that the server binds to."""
    return (
        facts.launched.node
        if facts.launched and facts.launched.node
        else reachable_address(facts.record.command.host)
    )


def reachable_address(bind_host: str) -> str:
    """Return the address at which a server that binds to `bind_host` can be reached from the host
    on which it runs."""
    if bind_host in ("", "0.0.0.0", "::", "localhost", "*"):
        return "127.0.0.1"
    return f"[{bind_host}]" if ":" in bind_host else bind_host


def _state(
    facts: RunFacts, now_unix_s: float, silent_s: float | None
) -> tuple[ServerState, str | None]:
    record = facts.record
    if facts.stop_unix_s is not None:
        kept = f"no longer followed; {record.adopts} was left as it is" if record.adopts else None
        return (
            (ServerState.STOPPING, None)
            if facts.alive or facts.members
            else (ServerState.STOPPED, kept)
        )
    if facts.alive:
        return _alive(facts, now_unix_s, silent_s)
    ended = facts.launched.ended if facts.launched else None
    served = facts.ready is not None or facts.was_ready
    state = ServerState.CRASHED if served else ServerState.FAILED
    return state, ended or facts.lost or _ending(facts)


def _alive(
    facts: RunFacts, now_unix_s: float, silent_s: float | None
) -> tuple[ServerState, str | None]:
    if facts.ready and facts.server_began_unix_s is not None:
        if silent_s is None:
            return ServerState.READY, None
        return ServerState.UNRESPONSIVE, (
            f"the server has not answered for {silent_s:.0f} s, but its process is alive"
        )
    limit_s, began_unix_s = facts.record.ready_timeout_s, facts.server_began_unix_s
    if limit_s and began_unix_s is not None and now_unix_s - began_unix_s > limit_s:
        return ServerState.FAILED, (
            f"the server was not ready within {limit_s:.0f} s, but its process still runs"
        )
    return ServerState.STARTING, None


def _ending(facts: RunFacts) -> str:
    if facts.exit_signal:
        return f"the server's process was killed by {facts.exit_signal}"
    if facts.exit_code is not None:
        return f"the server's process exited with code {facts.exit_code}"
    return "the server's process has ended without an exit code"


def ending_of(facts: RunFacts) -> Finding | None:
    """Return the finding about the reason for which the launcher ended the server. None if the user
    stopped the server, or if it ended by itself."""
    stopped = facts.stop_unix_s is not None
    return finding_of(facts.launched.ended) if facts.launched is not None and not stopped else None


def _of_text(facts: RunFacts) -> list[Finding]:
    """Return the findings about the text of a living server that was ready."""
    text = facts.ready.text if facts.ready and facts.alive else None
    if text is None:
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


def _findings(facts: RunFacts) -> tuple[Finding, ...]:
    found = []
    if facts.record.problem:
        fix = f"run workbench stop {facts.record.run_id}, or end its process with kill"
        found.append(Finding(Level.WARN, "run.record", facts.record.problem, fix=fix))
    restarts = facts.launched.restarts if facts.launched else None
    if restarts and facts.alive:
        text = (
            f"{facts.record.plan.run_as} has restarted the server "
            f"{count_of(restarts, 'time')} since the run began"
        )
        found.append(
            Finding(
                Level.WARN,
                "run.restarted",
                text,
                fix="the last log lines before the restart show why the server ended",
            )
        )
    if not facts.alive and (ending := ending_of(facts)) is not None:
        found.append(ending)
    found += _of_text(facts)
    if (cluster := facts.record.cluster) is not None:
        hosts = ", ".join(dict.fromkeys(rank.host for rank in cluster.ranks))
        text = (
            f"this run is {cluster.label} of one server on {hosts}; if it is stopped, the "
            "others have to be too"
        )
        fix = f"workbench cluster stop {cluster.cluster} {cluster.server_id}"
        found.append(Finding(Level.WARN, RANK, text, fix=fix))
    if facts.members and not facts.alive:
        alive = f"{count_of(facts.members, 'process', 'processes')} of the server"
        text = (
            f"{alive} {'is' if facts.members == 1 else 'are'} still alive and may occupy GPU memory"
        )
        fix = f"run workbench stop {facts.record.run_id}, or press x (Stop) on the screen"
        found.append(Finding(Level.ERROR, "run.orphans", text, fix=fix))
    return tuple(found)
