"""start, servers, logs, stop."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.dispatch import Command, emit
from workbench.cli.open_session import connected, note, say
from workbench.cli.presets import take_plan, variables_json
from workbench.model.errors import InputError
from workbench.model.server_run import ServerState, ServerStatus

if TYPE_CHECKING:
    from workbench.session.session import Session

_MODELS_SHOWN = 5  # of a server that names many


def status_json(status: ServerStatus) -> dict[str, Any]:
    return {**asdict(status), "state": str(status.state), "findings": [f.as_json() for f in status.findings]}


async def start(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        planned = await take_plan(session, arguments)
        if planned.nodes and session.state.host.simulated:
            note(f"simulated: one process stands for all {len(planned.nodes)} nodes")
        for finding in session.editor.findings():
            if finding.code.startswith(("variable.", "bind.", "secret.argv")):
                note(f"{finding.text}{f' — {finding.fix}' if finding.fix else ''}")
        run_id = await session.start()
        status = session.supervisor.status(run_id)
        if arguments.wait:
            note(f"{run_id}: waiting for READY")
            status = await session.wait_ready(run_id, arguments.timeout)
        if arguments.json:
            emit({**status_json(status), "variables": variables_json(planned)})
        else:
            say(run_id)
        return _outcome(status, arguments.wait, arguments.json)


def _outcome(status: ServerStatus, waited: bool, as_json: bool) -> int:
    if status.state in (ServerState.FAILED, ServerState.CRASHED):
        note(f"{status.engine} {status.state}: {status.reason or 'see the log'}")
        for finding in status.findings:
            note(f"  {finding.text}{f' — {finding.fix}' if finding.fix else ''}")
        return 1
    if waited and not as_json:
        after = f" in {status.ready_after_s:.1f} s" if status.ready_after_s else ""
        note(f"{status.state}{after} at {status.url}")
    return 0


async def servers(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        await session.supervisor.runs()
        statuses = await session.supervisor.look_now()
        others = await session.other_servers()
    if arguments.json:
        found = [{**asdict(other), "url": other.url} for other in others]
        return emit({"servers": [status_json(s) for s in statuses], "not_started_by_workbench": found})
    if not statuses and not others:
        note("no runs on this host")
    for status in statuses:
        age = f"{(time.time() - status.started_unix_s) / 60:.0f} min" if status.started_unix_s else ""
        why = status.reason or status.phase or status.url or ""
        simulated = " SIMULATED" if status.simulated else ""
        say(f"{status.run_id}  {status.state:<12} {status.engine:<9} {status.model}  {age}  {why}{simulated}")
    for other in others:
        names = other.models[:_MODELS_SHOWN]
        more = f" and {len(other.models) - len(names)} more" if len(other.models) > len(names) else ""
        what = ", ".join(names) + more or other.note
        say(f"pid {other.pid}, not started by Workbench: {other.engine or 'a server'} {what}  {other.url}")
        say(f"  {other.command}\n  to measure it: {other.bench}")
    return 0


async def found(session: Session, run: str) -> ServerStatus:
    """A run by its id, or by the only one whose id begins or ends so. InputError when there is none."""
    statuses = await session.supervisor.runs()
    exact = [s for s in statuses if s.run_id == run]
    if not exact and run.isdecimal():
        await _not_ours(session, int(run))
    hits = exact or [s for s in statuses if s.run_id.startswith(run) or s.run_id.endswith(run)]
    if len(hits) == 1:
        return hits[0]
    what = f"{len(hits)} runs match {run!r}: {', '.join(s.run_id for s in hits[:5])}" if hits else f"no run {run!r}"
    raise InputError(what, host=session.host.name, next_step="workbench servers lists the runs")


async def _not_ours(session: Session, number: int) -> None:
    """Say what can be done with a server that Workbench did not start, named by its process id or port."""
    other = next((o for o in await session.other_servers() if number in (o.pid, o.port)), None)
    if other is not None:
        log = f"its output goes to {other.output}" if other.output else "its output is where it was started"
        raise InputError(
            f"process {other.pid} at {other.url} was not started by Workbench: {log}",
            host=session.host.name,
            command=other.command,
            next_step=f"{other.bench} measures it",
        )


async def ready_run(session: Session, run: str | None) -> str | None:
    """The run that is named, once it is READY."""
    if run is None:
        return None
    status = await found(session, run)
    if status.state is ServerState.STARTING:
        note(f"{status.run_id}: waiting for READY")
    return (await session.wait_ready(status.run_id)).run_id


async def logs(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        status = await found(session, arguments.run)
        lines: list[str] = []
        async for batch in session.supervisor.read_log(status.run_id, follow=arguments.follow):
            if arguments.json:
                lines += batch.lines
            else:
                for line in batch.lines:
                    say(line)
                sys.stdout.flush()
        if arguments.json:
            emit({"run_id": status.run_id, "lines": lines, "simulated": status.simulated})
    return 0


async def stop(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        status = await found(session, arguments.run)
        await session.stop(status.run_id)
        status = session.supervisor.status(status.run_id)
    if arguments.json:
        return emit(status_json(status))
    say(f"{status.run_id} {status.state}")
    return 0


COMMANDS: dict[str, Command] = {"start": start, "servers": servers, "logs": logs, "stop": stop}
