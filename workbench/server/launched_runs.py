"""Stops and restarts servers that a launcher runs, and starts a new keeper for a server that has
lost its keeper.

A keeper is the process on the host that follows such a server for Workbench. It is lost if it was
killed or the host was rebooted, but the launcher may still run the server. If the launcher reports
that the server lives, Workbench starts a new keeper for the same run. Otherwise it writes the
launcher's answer into the file `launched` of the run directory, so that the launcher need not be
queried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from workbench.hosts import detached_process
from workbench.hosts.base import FileError, Host
from workbench.hosts.detached_process import RunDirUsed
from workbench.hosts.run_processes import signal_name
from workbench.model.errors import HostError, InputError, ServerError
from workbench.model.plan import LaunchPlan
from workbench.server.launchers import launcher_of
from workbench.server.launchers.launcher import (
    LAUNCHED_FILE,
    Launcher,
    encode_launched,
    parse_launched,
)
from workbench.server.watched_run import WatchedRun

# The start of a keeper runs about fifty programs, which takes seconds on a busy host.
KEEPER_TIMEOUT_S = 15.0


def launcher_of_plan(plan: LaunchPlan) -> Launcher | None:
    """Return the launcher, such as Slurm, that the plan names. None if Workbench starts the server
    itself, or if this version of Workbench does not know the launcher."""
    try:
        return launcher_of(plan.run_as)
    except InputError:
        return None


def _launcher_that_started(run: WatchedRun) -> Launcher | None:
    """Return the launcher through which Workbench started the run's server. None without a
    launcher, and for a server that others started."""
    if run.record.adopts is not None:
        return None
    return launcher_of_plan(run.record.plan)


def has_lost_keeper(run: WatchedRun) -> bool:
    """Return whether the keeper of a run, the process that follows a server for which a launcher
    such as Slurm is used, has ended without recording the server's end. False for a run without a
    launcher, and for one that is no longer followed."""
    facts = run.facts
    if facts.alive or facts.launch_report.ended is not None:
        return False
    if facts.stop_requested and run.record.adopts is not None:
        return False  # the server was left as it is
    return launcher_of_plan(run.record.plan) is not None


async def is_launch_report_current(host: Host, run: WatchedRun) -> bool:
    """Return whether `run.facts.launched` is what the file `launched` of the run directory has now.
    There, the run's keeper (the process that follows the server) reports what it knows. True for a
    run without a launcher. Raises HostError if the host cannot be reached."""
    if run.record.is_plain_process:
        return True
    try:
        data = await host.read_file(f"{run.run_dir}/{LAUNCHED_FILE}", limit=65536)
    except FileError:
        data = b""
    return parse_launched(data) == run.facts.launched


async def restart_keeper_or_record_end(host: Host, run: WatchedRun) -> None:
    """Ask the launcher of a run that has lost its keeper whether the server lives. If it does,
    start a new keeper for it, or stop it if a stop was requested. If it does not, record its end.
    Raises HostError if the launcher cannot be queried or does not stop the server."""
    launcher = launcher_of_plan(run.record.plan)
    assert launcher is not None
    launched = run.facts.launch_report
    # what the keeper was starting would be in no answer yet
    await detached_process.kill_remaining_session_processes(host, run.run_dir)
    exit_state = await launcher.read_exit_state(host, run.make_launch(), launched)
    handle = exit_state.handle or launched.handle
    if exit_state.lives and run.facts.stop_requested:
        try:
            await launcher.stop(host, run.make_launch(), launched)
        except ServerError as error:
            raise HostError(error.message, host=host.name, next_step=error.next_step) from None
        exit_state = await launcher.read_exit_state(host, run.make_launch(), launched)
    elif exit_state.lives and handle:
        keeper = launcher.make_adopting_keeper(run.make_launch(), handle)
        try:
            await detached_process.restart_in_run_dir(host, run.run_dir, keeper.argv, keeper.env)
        except RunDirUsed as error:
            await _wait_for_live_keeper(host, run, error)
        return
    unknown = f"its keeper was lost, and {launcher.name} no longer knows the server"
    ended = replace(
        launched, handle=handle, ended=exit_state.ended or unknown, exit_code=exit_state.exit_code
    )
    with contextlib.suppress(FileError):  # a full disk: the next Workbench asks again
        await host.write_file(f"{run.run_dir}/{LAUNCHED_FILE}", encode_launched(ended))
    run.facts = replace(
        run.facts,
        launched=ended,
        exit_code=exit_state.exit_code,
        exit_signal=signal_name(exit_state.exit_code),
        lost=None,
    )


async def _wait_for_live_keeper(host: Host, run: WatchedRun, timeout_error: RunDirUsed) -> None:
    """Wait until the keeper of a run, which another Workbench process starts, is alive. Raises
    `timeout_error` if it is not within KEEPER_TIMEOUT_S."""
    deadline = time.monotonic() + KEEPER_TIMEOUT_S
    while not (await detached_process.read_status(host, run.run_dir)).alive:
        if time.monotonic() > deadline:
            raise timeout_error
        await asyncio.sleep(0.1)


async def stop_launched_server(
    host: Host, run: WatchedRun, *, check_alive_first: bool = False
) -> None:
    """Stop the server of a run through its launcher, and wait for its end. With
    `check_alive_first`, ask the launcher before, and stop only a server that lives. Do nothing if
    the server has ended, has no launcher, or was not started by Workbench. Raises HostError or
    ServerError."""
    launcher = _launcher_that_started(run)
    launched = run.facts.launch_report
    if launcher is None or launched.ended:
        return
    launch = run.make_launch()
    if not check_alive_first or (await launcher.read_exit_state(host, launch, launched)).lives:
        await launcher.stop(host, launch, launched)


def installed_unit_name(run: WatchedRun) -> str | None:
    """Return the name of the systemd unit that the start of a run has installed and that stays
    after a stop; None if there is none."""
    launcher = _launcher_that_started(run)
    if launcher is None:
        return None
    return launcher.installed_unit_name(run.make_launch())


async def uninstall_unit_and_list_removed(
    host: Host, run: WatchedRun, runs: Iterable[WatchedRun]
) -> Sequence[str]:
    """Remove what the start of an ended run installed on its host, such as a systemd unit, and
    return the removed paths; () if it installed nothing. `runs` are all runs of the host. Raises
    ServerError if the run's server lives, if its unit now runs the server of another run, or if
    Workbench did not start the server."""
    reason = ""
    if run.record.adopts is not None:
        reason = "follows a server of somebody else"
    elif run.facts.alive:
        reason = "is alive"
    if reason:
        text = f"run {run.record.run_id} {reason}"
        raise ServerError(text, host=host.name, next_step="nothing was removed")
    unit = installed_unit_name(run)
    others = [other for other in runs if other is not run and other.facts.alive]
    for other in others:
        if unit is not None and installed_unit_name(other) == unit:
            run_id = other.record.run_id
            raise ServerError(
                f"{unit} runs the server of run {run_id} now: nothing was removed",
                host=host.name,
                next_step=f"to stop that server too: workbench stop {run_id} --uninstall",
            )
    launcher = launcher_of_plan(run.record.plan)
    if launcher is None:
        return ()
    return await launcher.uninstall_and_list_removed(
        host, run.make_launch(), run.facts.launch_report
    )


async def restart_and_return_command(host: Host, run: WatchedRun, *, dry_run: bool) -> str:
    """Restart the server of a run through its launcher, and return the command line that does it.
    With `dry_run`, only return the command line. Raises ServerError if the run has ended, or if its
    launcher cannot restart a server."""
    launcher = launcher_of_plan(run.record.plan)
    launch, launched = run.make_launch(), run.facts.launch_report
    run_id, words = run.record.run_id, tuple[str, ...]()
    problem = f"run {run_id} has ended"
    if run.facts.alive:
        problem = (
            f"the server of run {run_id} cannot be restarted in place: only units and jobs have a "
            "restart command"
        )
        words = launcher.restart_command(launch, launched) if launcher is not None else ()
    if launcher is None or not words:
        raise ServerError(
            problem,
            host=host.name,
            next_step="start the server again: run `workbench start PRESET`, or press s on the "
            "screen",
        )
    if not dry_run:
        await launcher.restart(host, launch, launched)
    return shlex.join(words)
