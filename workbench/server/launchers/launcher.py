"""The Launcher protocol, its inputs and results, and the file in which a keeper reports.

A keeper is the process that follows a server for Workbench. It reports `handle` (unit, container or
job id) as soon as the server has one, `began_unix_s` once the server's process runs, `pid` if that
process is on the host, and `ended` when the server has ended. If a keeper has exited without
reporting `ended`, the server may still live, and Workbench asks the launcher
(server/launched_runs.py). SIGTERM ends a keeper, but not its server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from typing import Protocol

from workbench.hosts.base import Host
from workbench.hosts.shell_scripts import parse_last_values
from workbench.model.findings import Finding
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import Command, LaunchPlan
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import clean_text

_MAX_DIGITS = 11  # of the numbers in it: times until the year 5138, and process ids
# in the run directory; the keeper replaces it as a whole (write to a new file, then `mv`)
LAUNCHED_FILE = "launched"


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher must know about a server to start, or one that was started. `argv` and `env`
    are those of the engine, with their secrets at the start and masked later. `run_dir` is the
    run's directory on the host."""

    run_id: str
    run_dir: str
    # `plan.run_options` are the launcher's own options, `plan.image` is the container image
    plan: LaunchPlan
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    open_files: int | None = None
    address: str = "127.0.0.1"  # what the server binds to
    port: int = 8000
    may_sudo: bool = True  # on its host
    # the unit, container or job of the server that is stopped before the start
    replaced: str | None = None


def launch_from_command(run_id: str, run_dir: str, plan: LaunchPlan, command: Command) -> Launch:
    """Return the launcher's input for the run `run_id` of `plan`, which runs `command`, the
    engine's command."""
    files, host, port = command.open_files, command.host, command.port
    return Launch(
        run_id, run_dir, plan, command.argv, command.env, command.workdir, files, host, port
    )


@dataclass(frozen=True, slots=True)
class Keeper:
    """The command of a keeper, the process that starts and follows a server. `env` is its
    environment, with the server's secrets. `files` has the texts to write into the run directory
    before the start, by relative path."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchedServer:
    """What a keeper, the process that follows a server for Workbench, has reported in the file
    `launched`, whose lines have a key, a space and a value. None, or "" for `handle`, stands for a
    value that was not reported."""

    handle: str = ""  # the unit, the container or the job id; "" if it is not known yet
    # in the launcher's words, such as "PENDING (Resources)" or "pulling the image, 40 %"
    state: str | None = None
    # the address at which the server's port is reached from the host; None: the host's own
    node: str | None = None
    pid: int | None = None  # of the server's first process on the host
    restarts: int | None = None  # by the launcher, since the run began
    ends_unix_s: float | None = None  # when the launcher ends the server (walltime)
    image: str | None = None  # with its digest
    gpus: tuple[str, ...] = ()  # indices or UUIDs of the GPUs that the launcher gave to the server
    # when the server's present process was started; None: it waits (queue, pull)
    began_unix_s: float | None = None
    # why the server has ended, in the launcher's words, such as "oom-kill" or "TIMEOUT"
    ended: str | None = None
    # of the server, once it has ended; 128 + n for signal n; None: not known
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class ServerExitState:
    """What a launcher such as Slurm says about a server that has lost its keeper. `lives` is also
    True for a server that waits to start. `ended` is why it has ended, None if it lives."""

    lives: bool
    handle: str = ""  # as in LaunchedServer
    ended: str | None = None  # in the launcher's words, such as "unit x.service failed: oom-kill"
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class AdoptableServer:
    """A server that was started through a launcher, but not by Workbench. `argv` is the command
    line of its process, `env` its environment. Both contain its secrets."""

    handle: str  # in its full form
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # as far as this user may read it
    workdir: str | None = None
    # where its port is reached from the host; None: what the server binds to
    address: str | None = None
    port: int | None = None  # None: the one on its command line, or the engine's usual one
    image: str | None = None


class Launcher(Protocol):
    """A program that runs servers on a host in place of Workbench itself. `name` is its value for
    the option --as."""

    name: str
    start_program_name: str  # the program on the host that starts a server, such as "sbatch"
    stop_s: float  # `stop` may take this long
    # of {"files", "port"}: those of the host that the server uses, checked before its start
    looks_at: frozenset[str]

    async def check(self, host: Host, launch: Launch) -> Sequence[Finding]:
        """Return the findings about this start, such as a missing program or image, or a lack of
        permission. One of the level ERROR prevents it. Raises HostError without an answer."""
        ...

    async def fetch_image(self, host: Host, launch: Launch) -> None:
        """Fetch the container image that the start needs, if the host lacks it. Called before the
        server that the start replaces is stopped. Raises HostError or ServerError if it cannot be
        fetched."""
        ...

    def command(self, launch: Launch) -> Command:
        """Return the command that starts the server through the launcher's program, for the user to
        read or run. Its `files` are those that it needs, such as a job script."""
        ...

    def make_keeper(self, launch: Launch) -> Keeper:
        """Return the command of the keeper, the process that starts the server and follows it to
        its end."""
        ...

    def make_adopting_keeper(self, launch: Launch, handle: str) -> Keeper:
        """Return the command of a keeper that follows, but does not start, the server that runs
        already as the unit, container or job `handle`."""
        ...

    async def read_exit_state(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> ServerExitState:
        """Ask the launcher's program whether the server of a run lives, and how it ended. The
        server is found by the handle (unit, container or job id) in `launched`, or by the run id if
        that has none. Raises HostError if the program cannot tell."""
        ...

    async def stop(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        """Stop the server through the launcher's program, and wait for its end, about `self.stop_s`
        seconds at most. Do nothing for a server that has ended or was never started. Raises
        HostError or ServerError if the program refuses."""
        ...

    def restart_command(self, launch: Launch, launched: LaunchedServer) -> tuple[str, ...]:
        """Return the command that restarts the server in the same unit, container or job; () if the
        launcher has no such command."""
        ...

    async def restart(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        """Restart the server with the command that `restart_command` returns. Raises HostError or
        ServerError if that fails, or if the launcher restarts no server."""
        ...

    def installed_unit_name(self, launch: Launch) -> str | None:
        """Return the name of the systemd unit that a start of the server installs and that stays
        after a stop; None if there is none."""
        ...

    async def uninstall_and_list_removed(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> Sequence[str]:
        """Remove what the start of an ended server installed on the host, such as a systemd unit,
        and return the removed paths; () if it installed nothing. Raises ServerError for files that
        Workbench did not write."""
        ...

    async def find_adoptable(
        self, host: Host, handle: str, options: Mapping[str, str]
    ) -> AdoptableServer:
        """Return the server that runs as the unit, container or job `handle`. `options` are the
        values of --run-option by name. Raises ServerError if there is no such unit, container or
        job, or if it does not run, and HostError without an answer."""
        ...


def parse_launched(data: bytes | None) -> LaunchedServer | None:
    """Return what a keeper reported in `data`, the content of the file `launched`; None if it is
    empty or missing. Unknown keys and damaged values are left out."""
    if not data:
        return None
    values = parse_last_values(clean_text(data, lines=True).splitlines(), " ")

    def text(key: str) -> str | None:
        return values.get(key, "").strip() or None

    def number(key: str) -> int | None:
        return parse_whole_number(text(key), _MAX_DIGITS)

    ends, began = number("ends_unix_s"), number("began_unix_s")
    return LaunchedServer(
        handle=values.get("handle", "").strip(),
        state=text("state"),
        node=text("node"),
        pid=number("pid") or None,
        restarts=number("restarts"),
        ends_unix_s=None if ends is None else float(ends),
        image=text("image"),
        gpus=tuple(values.get("gpus", "").replace(",", " ").split()),
        began_unix_s=None if began is None else float(began),
        ended=text("ended"),
        exit_code=number("exit_code"),
    )


def encode_launched(launched: LaunchedServer) -> bytes:
    """Return `launched` as the content of the file `launched`, which `parse_launched` reads. Values
    that are None are left out."""
    lines = []
    for each in fields(launched):
        value = getattr(launched, each.name)
        if isinstance(value, tuple):
            value = ",".join(value)
        if value not in (None, ""):
            lines.append(f"{each.name} {int(value) if isinstance(value, float) else value}\n")
    return "".join(lines).encode()
