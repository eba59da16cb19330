"""Starts a run: writes its directory and files, and starts its process. That is the server itself,
or the keeper, which starts and follows the server through a launcher."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from workbench.hosts import detached_process
from workbench.hosts.base import Host, HostUnreachable
from workbench.model.errors import HostError, PlanError
from workbench.model.findings import Level
from workbench.model.plan import Command
from workbench.model.run_options import PROCESS
from workbench.server.launchers import launcher_of
from workbench.server.launchers.launcher import Keeper
from workbench.server.memory_guard import guarded
from workbench.server.run_directory import encode_record
from workbench.server.watched_rank import RankStart, unwatched
from workbench.server.watched_run import WatchedRun


async def start(
    host: Host, run: WatchedRun, command: Command, rank: RankStart | None = None
) -> int | None:
    """Write the files of the run, start its process, and return the process id. For a `rank` of a
    server on several nodes, start its watch process too. Return None if the connection to the host
    was lost during the start. The process may run nevertheless, so the caller must not try again.

    Raises PlanError if a launcher cannot start the server, and HostError if the process cannot be
    started. In both cases no run directory is left, because it would look like a failed run.
    """
    run_dir = run.run_dir
    keeper = await _keeper(host, run, command, rank)
    # first: the next Workbench then knows what was left
    files = {f"{run_dir}/plan.json": encode_record(run.record)}
    files |= {
        _inside(run_dir, name): text.encode()
        for name, text in {**command.files, **keeper.files}.items()
    }
    own = run.record.plan.run_as == PROCESS
    try:
        for path, data in files.items():
            await host.write_file(path, data)
        workdir, open_files = (command.workdir, command.open_files) if own else (None, None)
        return await _detach(host, run, keeper, workdir, open_files)
    except HostUnreachable:
        raise
    except HostError:
        await host.run(["rm", "-rf", "--", run_dir])
        raise


async def _detach(
    host: Host, run: WatchedRun, keeper: Keeper, workdir: str | None, open_files: int | None
) -> int | None:
    try:
        started = await detached_process.start(
            host, run.run_dir, keeper.argv, keeper.env, workdir, open_files
        )
    except HostUnreachable as error:
        run.set_lost(error.message)
        return None
    return started.pid


async def _keeper(host: Host, run: WatchedRun, command: Command, rank: RankStart | None) -> Keeper:
    """Return the command of the run's process: the server's own command, or that of the keeper,
    which starts and follows the server through a launcher. Raises PlanError if the launcher cannot
    start the server."""
    argv = tuple(word.replace("{run_dir}", run.run_dir) for word in command.argv)
    found = launcher_of(run.record.plan.run_as)
    if found is None:
        return _own_process(run, Keeper(argv, command.env), rank)
    launch = run.launch(replace(command, argv=argv))
    if run.record.adopts is not None:
        return found.adopting_keeper(launch, run.record.adopts)
    against = await found.check(host, launch)
    errors = [finding for finding in against if finding.level is Level.ERROR]
    if errors:
        raise PlanError(errors[0].text, host=host.name, next_step=errors[0].fix, findings=errors)
    run.at_start = tuple(against)
    return found.keeper(launch)


def _own_process(run: WatchedRun, server: Keeper, rank: RankStart | None) -> Keeper:
    """Return the command for a run whose server Workbench starts itself. Without `rank`, it is
    `server`, the server's own command. With `rank`, it also starts the memory guard and the watch
    process of that rank."""
    if rank is None:
        return server
    argv, files = server.argv, server.files
    if rank.server.reserve_gib:
        argv = guarded(argv, rank.server.reserve_gib)
    if rank.watch is None:
        run.at_start = unwatched(rank.server)
    else:
        argv, files = rank.watch.command(run.run_dir, argv), rank.watch.files(rank.own)
    return Keeper(argv, server.env, files)


def _inside(run_dir: str, name: str) -> str:
    path = posixpath.normpath(posixpath.join(run_dir, name))
    if not path.startswith(f"{run_dir}/"):
        raise PlanError(
            f"the plan writes a file {name!r}, which would be outside the run directory",
            next_step="use a file name without `..` and without a leading `/`",
        )
    return path
