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


async def sides_to_measure(session: Session, a: Arm, b: Arm) -> tuple[Arm, Arm]:
    """Return the sides with the servers that were measured in place of the numbers of results. Runs
    that must be started anew get their own port. Raises InputError if the server of a result is not
    known."""
    arms = [await arm_of_result(session, arm) for arm in (a, b)]
    of_results = [given != arm for given, arm in zip((a, b), arms, strict=True)]
    known = {status.run_id: status for status in await session.servers.supervisor.runs()}
    if all(of_results) and arms[0] == arms[1]:
        raise InputError(
            f"both results were measured on {_arm_name(arms[0])}, so there is nothing to compare",
            next_step="choose results of two configurations",
        )
    statuses = [known.get(_arm_name(arm)) for arm in arms]
    ended = [status is not None and status.state is not ServerState.READY for status in statuses]
    # A run that is started anew takes the place of the one that runs, which is then measured anew.
    anew = any(ended[i] and of_results[i] for i in (0, 1))
    a, b = (
        _arm_for_new_start(arm, status) if anew and from_result else arm
        for arm, status, from_result in zip(arms, statuses, of_results, strict=True)
    )
    if a.target == b.target and b.changes_launch and not a.changes_launch:
        # B needs the GPUs and the port of that run, which is stopped, and started again at the end.
        a = _arm_for_new_start(a, statuses[0])
    return a, b


def _arm_name(arm: Arm) -> str:
    return arm.target.name if arm.target is not None else ""


def _arm_for_new_start(arm: Arm, status: ServerStatus | None) -> Arm:
    """Return a run so that Workbench starts it anew. A URL, a preset or a changed run stays as it
    is."""
    if status is None or status.port is None or arm.changes_launch:
        return arm
    return replace(arm, sets=(f"port={status.port}",))


async def arm_of_result(session: Session, arm: Arm) -> Arm:
    """Return a side that is the number of a result with the server that was measured in its place.
    Any other side is returned unchanged. Raises InputError for a result without such a server."""
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


def stopped_runs(session: Session, a: Arm, b: Arm) -> list[str]:
    """Return the READY runs that a comparison stops, because it starts a server."""
    targets = [arm.target for arm in (a, b) if arm.target is not None]
    if all(target.plan is None for target in targets):
        return []
    used = {target.run_id for target in targets}
    servers = [each.state.server for each in session.hosts.all_sessions]
    ready = [s.run_id for s in servers if s is not None and s.state is ServerState.READY]
    return [run_id for run_id in ready if run_id not in used]
