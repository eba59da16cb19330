"""Starts a run in two steps: `prepare_run` checks the start and writes the files of the run, and
`RunPreparation.launch_and_get_pid` starts its process. Between the two, a server that the run
replaces can be stopped. The process is the server itself, or the keeper, which starts and follows
the server through a launcher."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from workbench.hosts import detached_process
from workbench.hosts.base import Host, HostUnreachable
from workbench.hosts.shell_scripts import shell_argv
from workbench.model.errors import HostError, PlanError
from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import Command
from workbench.model.run_options import PROCESS
from workbench.model.server_run import ServerStatus
from workbench.server import preflight
from workbench.server.launchers import launcher_of
from workbench.server.launchers.launcher import Keeper
from workbench.server.memory_guard import memory_guard_command
from workbench.server.run_directory import encode_record
from workbench.server.watched_rank import RankStart, unwatched_ranks_warning
from workbench.server.watched_run import WatchedRun

PREPARED_PREFIX = ".prepared-"  # before the run id: the directory of a run that is not started yet
_RESERVED_BYTES = 65536  # of the disk, for the small files that the start itself writes
# $1 prepared directory, $2 run directory. Also removes directories of the same user that a killed
# Workbench has prepared and never started.
_MOVE_TO_RUN_DIR_SCRIPT = r"""
rm -f -- "$1/reserved"
mv -- "$1" "$2" || exit 1
find "${2%/*}" -maxdepth 1 -name '.prepared-*' -mmin +60 -exec rm -rf {} + 2>/dev/null
exit 0
"""


@dataclass(frozen=True, slots=True)
class RunPreparation:
    """A start that has been checked, and whose files are on the host, in a directory that no list
    of runs shows: a run directory without a process would look like a failed run."""

    host: Host
    run: WatchedRun
    command: Command
    keeper: Keeper

    @property
    def directory(self) -> str:
        parent, name = posixpath.split(self.run.run_dir)
        return f"{parent}/{PREPARED_PREFIX}{name}"

    async def launch_and_get_pid(self) -> int | None:
        """Start the process of the run, and return its id. None if the connection was lost during
        the start: the process may run, so do not try again. Raises HostError if the process cannot
        be started; no run directory is then left, unless the host is unreachable."""
        run_dir = self.run.run_dir
        self.run.record_start()
        own = self.run.record.plan.run_as == PROCESS
        workdir, open_files = (
            (self.command.workdir, self.command.open_files) if own else (None, None)
        )
        try:
            await self.host.run(
                shell_argv(_MOVE_TO_RUN_DIR_SCRIPT, self.directory, run_dir), check=True
            )
            if self.run.record.cluster is not None and self.run.record.replaces is not None:
                # Its age decides when a rank that is missing counts as never started.
                await self.host.write_file(f"{run_dir}/plan.json", encode_record(self.run.record))
            port = preflight.claimed_port(self.run.record)
            return await _start_detached(
                self.host, self.run, self.keeper, workdir, open_files, port
            )
        except HostUnreachable:
            raise
        except HostError:
            await self.host.run(["rm", "-rf", "--", self.directory, run_dir])
            raise

    async def discard(self) -> None:
        """Remove the files from the host. Do nothing if the run was started. Raises HostError."""
        await self.host.run(["rm", "-rf", "--", self.directory])


async def prepare_run(
    host: Host,
    run: WatchedRun,
    command: Command,
    rank: RankStart | None = None,
    *,
    replaced: ServerStatus | None = None,
) -> RunPreparation:
    """Check the start of a run with its launcher, and write the files of the run. For the `rank` of
    a server on several nodes, the process to start is the rank with its watch. `replaced` is the
    server that the caller stops before the launch: a missing container image is fetched now, while
    that still runs. Raises PlanError if a launcher cannot start the server, and HostError if a file
    cannot be written; no file is then left."""
    keeper = await _make_keeper(host, run, command, rank, replaced)
    prepared = RunPreparation(host, run, command, keeper)
    # first: the next Workbench then knows what was left
    files = {"plan.json": encode_record(run.record), "reserved": bytes(_RESERVED_BYTES)}
    for name, text in {**command.files, **keeper.files}.items():
        files[_path_in_run_dir(run.run_dir, name)] = text.encode()
    try:
        for name, data in files.items():
            await host.write_file(f"{prepared.directory}/{name}", data)
    except HostUnreachable:
        raise
    except HostError:
        await prepared.discard()
        raise
    return prepared


async def _start_detached(
    host: Host,
    run: WatchedRun,
    keeper: Keeper,
    workdir: str | None,
    open_files: int | None,
    port: int | None,
) -> int | None:
    try:
        started = await detached_process.start_detached(
            host, run.run_dir, keeper.argv, keeper.env, workdir, open_files, port
        )
    except HostUnreachable as error:
        run.set_unreachable_reason(error.message)
        return None
    return started.pid


async def _make_keeper(
    host: Host,
    run: WatchedRun,
    command: Command,
    rank: RankStart | None,
    replaced: ServerStatus | None,
) -> Keeper:
    """Return the command of the run's process: that of the server, or of the keeper, which starts
    and follows it through a launcher. Store the launcher's findings in `run.at_start`. Raises
    PlanError if the launcher cannot start the server."""
    argv = tuple(word.replace("{run_dir}", run.run_dir) for word in command.argv)
    found = launcher_of(run.record.plan.run_as)
    if found is None:
        return _make_keeper_without_launcher(run, Keeper(argv, command.env), rank)
    launch = run.make_launch(replace(command, argv=argv))
    if run.record.adopts is not None:
        return found.make_adopting_keeper(launch, run.record.adopts)
    if replaced is not None:
        launch = replace(launch, replaced=replaced.handle)
    against = await found.check(host, launch)
    errors = [finding for finding in against if finding.level is Level.ERROR]
    if errors:
        raise PlanError(errors[0].text, host=host.name, next_step=errors[0].fix, findings=errors)
    run.at_start = tuple(against)
    if replaced is not None:
        await found.fetch_image(host, launch)
    return found.make_keeper(launch)


def _make_keeper_without_launcher(
    run: WatchedRun, server: Keeper, rank: RankStart | None
) -> Keeper:
    """Return the command for a run whose server Workbench starts itself. Without `rank`, it is
    `server`, the server's own command. With `rank`, it also starts the memory guard and the watch
    process of that rank."""
    if rank is None:
        return server
    argv, files = server.argv, server.files
    if rank.server.reserve_gib:
        argv = memory_guard_command(argv, rank.server.reserve_gib)
    if rank.watch is None:
        run.at_start = unwatched_ranks_warning(rank.server)
    else:
        argv, files = (
            rank.watch.watched_start_command(run.run_dir, argv),
            rank.watch.file_texts_by_name(rank.rank_name),
        )
    return Keeper(argv, server.env, files)


def _path_in_run_dir(run_dir: str, name: str) -> str:
    """Return the path of the file `name` relative to `run_dir`. Raises PlanError if it would be
    outside of that."""
    path = posixpath.normpath(posixpath.join(run_dir, name))
    if not path.startswith(f"{run_dir}/"):
        raise PlanError(
            f"the plan writes a file {name!r}, which would be outside the run directory",
            next_step="use a file name without `..` and without a leading `/`",
        )
    return path.removeprefix(f"{run_dir}/")
