"""Runs named on the command line: found by id or by a part of the id."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.output import note
from workbench.model.errors import InputError
from workbench.model.server_run import ServerState, ServerStatus

if TYPE_CHECKING:
    from workbench.session.session import Session


def status_json(status: ServerStatus) -> dict[str, Any]:
    return {**asdict(status), "state": str(status.state), "findings": [f.as_json() for f in status.findings]}


async def find_run(session: Session, run: str) -> ServerStatus:
    """Return the run with this id, or the only run whose id begins or ends with it. Raises InputError if none does."""
    statuses = await session.servers.supervisor.runs()
    exact = [s for s in statuses if s.run_id == run]
    if not exact and run.isdecimal():
        await _reject_external(session, int(run))
    hits = exact or [s for s in statuses if s.run_id.startswith(run) or s.run_id.endswith(run)]
    if len(hits) == 1:
        return hits[0]
    problem = f"{len(hits)} runs match {run!r}: {', '.join(s.run_id for s in hits[:5])}" if hits else f"no run {run!r}"
    raise InputError(problem, host=session.host.name, next_step="`workbench servers` lists the runs")


async def _reject_external(session: Session, number: int) -> None:
    """Raise InputError if the number is the process id or port of a server that Workbench did not start."""
    other = next((o for o in await session.servers.others() if number in (o.pid, o.port)), None)
    if other is not None:
        log = f"its output goes to {other.output}" if other.output else "its output is where it was started"
        raise InputError(
            f"process {other.pid} at {other.url} was not started by Workbench; {log}",
            host=session.host.name,
            command=other.command,
            next_step=f"`{other.bench}` benchmarks it",
        )


async def ready_run(session: Session, run: str | None) -> str | None:
    """Return the id of the named run once it is READY, or None if no run is named."""
    if run is None:
        return None
    status = await find_run(session, run)
    if status.state is ServerState.STARTING:
        note(f"{status.run_id}: waiting for READY")
    return (await session.servers.wait_ready(status.run_id)).run_id
