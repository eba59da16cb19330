"""Servers that a launcher (systemd, a container engine or a job scheduler) runs: adoption of a
server that somebody else started, restarts, and the removal of units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from workbench.engines.command_line import parse_plan, recognize_engine_start
from workbench.engines.preset_trust import is_tuning_variable
from workbench.model.errors import InputError, ServerError
from workbench.model.plan import Command, LaunchPlan
from workbench.model.run_options import with_launcher_and_options
from workbench.model.secrets import mask_argv
from workbench.server import preflight
from workbench.server.launchers import launcher_of

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.hosts.base import Host
    from workbench.session.session import Session


async def adopt_and_return_run_id(
    session: Session, run_as: str, handle: str, options: Sequence[str] = ()
) -> str:
    """Adopt a server that somebody else started: record the server as a run of Workbench and select
    that run. `run_as` names the launcher that runs the server, `handle` is the name of its unit,
    container or job, and `options` are options of the launcher, NAME=VALUE. Return the run id; if a
    live run has the server already, the id of that run. Raises ServerError if no known engine runs
    as `handle`."""
    found = await find_adoptable_server(session.host, run_as, handle, options)
    supervisor = session.servers.supervisor
    for run in await supervisor.runs():
        if run.alive and (run.run_as, run.handle) == (run_as, found.handle):
            await session.servers.select(run.run_id)
            return run.run_id
    made = await supervisor.start(found.plan, found.command, found.engine, adopts=found.handle)
    session.core.record_command(f"workbench adopt {run_as}:{found.handle}", f"run {made.run_id}")
    await session.servers.select(made.run_id)
    return made.run_id


async def can_restart_in_place(session: Session, run_id: str) -> bool:
    """Return whether the launcher of a run can restart the run's server in the same unit, container
    or job."""
    status = await session.servers.supervisor.load_status(run_id)
    if not status.alive:
        return False
    try:
        await preview_restart_command(session, run_id)
    except ServerError:
        return False
    return True


async def preview_restart_command(session: Session, run_id: str) -> str:
    """Return the command with which the launcher of a run restarts the run's server. Raises
    ServerError if the launcher cannot restart servers."""
    return await session.servers.supervisor.restart_and_return_command(run_id, dry_run=True)


async def restart_in_place(session: Session, run_id: str) -> None:
    """Restart the server of a run with the launcher (such as systemd) that runs it, in the same
    unit, container or job. Raises ServerError, and leaves the server running, if the program that
    starts the server is missing."""
    session.servers.check_not_reserved()
    record = session.servers.supervisor.record(run_id)
    await preflight.check_files(
        session.host, record.plan, record.command, simulated=record.simulated
    )
    for prepare in session.servers.before_end:
        await prepare(run_id)
    with session.core.show_as_busy("restarting"):
        shown = await session.servers.supervisor.restart_and_return_command(run_id)
    session.core.record_command(shown, f"run {run_id}")


def installed_unit_name(session: Session, run_id: str) -> str | None:
    """Return the name of the systemd unit that Workbench installed for a run and that stays when
    the server is stopped. None if there is no such unit."""
    return session.servers.supervisor.installed_unit_name(run_id)


async def stop_server_and_remove_unit(session: Session, run_id: str) -> Sequence[str]:
    """Stop the server of a run if it is running, and remove the systemd unit that Workbench
    installed for the run. Return the removed paths. Raises ServerError if the unit runs the server
    of another run, or if Workbench did not write its files."""
    status = session.servers.supervisor.status(run_id)
    if status.has_own_processes:
        await session.servers.stop(run_id)
    removed = await session.servers.supervisor.uninstall_and_list_removed(run_id)
    session.core.record_command(
        f"workbench stop {run_id} --uninstall", f"removed {', '.join(removed) or 'nothing'}"
    )
    return removed


class AdoptableServer(NamedTuple):
    """A server that a launcher runs, as Workbench can record it. `handle` is the launcher's
    complete name of the unit, container or job."""

    plan: LaunchPlan
    command: Command
    engine: Engine
    handle: str


async def find_adoptable_server(
    host: Host, run_as: str, handle: str, options: Sequence[str]
) -> AdoptableServer:
    """Return the server that the launcher `run_as` runs as `handle`, the launcher's name of a unit,
    container or job. Raises InputError if `run_as` is "process", and ServerError if there is no
    such server or its command starts no engine that Workbench knows."""
    launcher = launcher_of(run_as)
    if launcher is None:
        raise InputError(
            "a server that runs as a process without a launcher cannot be adopted",
            next_step="run `workbench bench --url URL` to benchmark such a server by its address",
        )
    asked = with_launcher_and_options(LaunchPlan("", ""), run_as, options)
    found = await launcher.find_adoptable(host, handle, asked.run_options)
    start = recognize_engine_start(found.argv)
    if start is None:
        raise ServerError(
            f"{found.handle} runs no engine that Workbench knows: "
            f"{' '.join(mask_argv(found.argv))[:200]}",
            host=host.name,
            next_step="run `workbench bench --url URL` to benchmark any server that speaks the "
            "OpenAI API",
        )
    engine = start.engine
    env = {n: v for n, v in found.env.items() if is_tuning_variable(n) or n == engine.api_key_env}
    read, _ = parse_plan(start, env, found.workdir)
    plan = replace(read, run_as=run_as, run_options=asked.run_options, image=found.image)
    made = engine.command(plan)
    port = found.port if found.port is not None else made.port
    command = Command(
        found.argv, env, workdir=found.workdir, host=found.address or made.host, port=port
    )
    return AdoptableServer(plan, command, engine, found.handle)
