"""The two sides of a comparison of answers: the servers behind results, and the runs that a
comparison starts anew or stops."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.model.errors import InputError
from workbench.model.server_run import ServerState
from workbench.model.untrusted_numbers import parse_whole_number

if TYPE_CHECKING:
    from workbench.model.experiment import Arm
    from workbench.model.server_run import ServerStatus
    from workbench.session.session import Session

_NEXT_STEP_HINT = "give a preset, a run or a URL"


async def resolve_arms_to_servers(session: Session, a: Arm, b: Arm) -> tuple[Arm, Arm]:
    """Return A and B with the measured servers in place of the numbers of results. Runs that must
    be started anew get their earlier port. Raises InputError if the server of a result is not
    known, or if both results were measured on the same server."""
    found_a, found_b = (
        await resolve_result_to_server(session, a),
        await resolve_result_to_server(session, b),
    )
    known = {status.run_id: status for status in await session.servers.supervisor.runs()}
    status_a, status_b = known.get(_arm_name(found_a)), known.get(_arm_name(found_b))
    a_from_result, b_from_result = found_a != a, found_b != b
    a, b = found_a, found_b
    if a_from_result and b_from_result and a == b:
        raise InputError(
            f"both results were measured on {_arm_name(a)}, so there is nothing to compare",
            next_step="choose results of two configurations",
        )
    # A run that is started anew takes the place of the one that runs, which is then measured anew.
    measured_a = status_a if a_from_result else None
    measured_b = status_b if b_from_result else None
    if _is_not_ready(measured_a) or _is_not_ready(measured_b):
        a, b = _arm_started_anew(a, measured_a), _arm_started_anew(b, measured_b)
    if a.target == b.target and b.changes_launch and not a.changes_launch:
        # B needs the GPUs and the port of that run, which is stopped, and started again at the end.
        a = _arm_started_anew(a, status_a)
    return a, b


def _is_not_ready(status: ServerStatus | None) -> bool:
    return status is not None and status.state is not ServerState.READY


def _arm_name(arm: Arm) -> str:
    return arm.target.name if arm.target is not None else ""


def _arm_started_anew(arm: Arm, status: ServerStatus | None) -> Arm:
    """Return the arm of a run with the run's port as a change, because a changed arm is started
    anew. A URL, a preset or an arm with changes is returned as it is."""
    if status is None or status.port is None or arm.changes_launch:
        return arm
    return replace(arm, sets=(f"port={status.port}",))


async def resolve_result_to_server(session: Session, arm: Arm) -> Arm:
    """Return an arm whose target is the number of a result with the measured run or URL as its
    target. Return any other arm unchanged. Raises InputError if the result does not say which
    server was measured, or was imported."""
    number = parse_whole_number(_arm_name(arm).removeprefix("#"))
    if arm.target is None or number is None:
        return arm
    made = (await session.results.get(number)).conditions
    if made.imported:
        raise InputError(
            f"result {number} was imported, so its server is not known here",
            next_step=_NEXT_STEP_HINT,
        )
    server = made.run_id or made.address
    if not server:
        raise InputError(
            f"result {number} does not say which server was measured", next_step=_NEXT_STEP_HINT
        )
    return replace(arm, target=replace(arm.target, name=server))


def run_ids_to_stop(session: Session, a: Arm, b: Arm) -> list[str]:
    """Return the READY runs that a comparison stops, because it starts a server."""
    targets = list(filter(None, (a.target, b.target)))
    if all(target.plan is None for target in targets):
        return []
    used = [target.run_id for target in targets]
    found = []
    for server in filter(None, (each.state.server for each in session.hosts.all_sessions)):
        if server.state is ServerState.READY and server.run_id not in used:
            found.append(server.run_id)
    return found
