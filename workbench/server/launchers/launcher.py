"""The Launcher protocol, what a launcher is given and returns, and the file in which its keeper reports.

A keeper reports `handle` as soon as it knows it, `began_unix_s` (and `pid`, if the process is on the host) once the
server's process runs, and `ended` before it exits because the server has ended. A keeper that is gone without `ended`
was lost: the server may live, and the launcher is asked (server/launched_runs.py). SIGTERM ends a keeper, but not its
server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from workbench.hosts.base import Host
from workbench.model.findings import Finding
from workbench.model.plan import Command, LaunchPlan
from workbench.model.untrusted_text import clean, whole_number

_DIGITS = 11  # of the numbers in it: times until the year 5138, and process ids
FILE = "launched"  # in the run directory; the keeper replaces it as a whole (write to a new file, then `mv`)


@dataclass(frozen=True, slots=True)
class Launch:
    """A server to start, or one that was started. `argv` and `env` are those of the engine: at a start with their
    secrets, later with masks in their place. `run_dir` is the run's directory on the host, which exists when the keeper
    starts."""

    run_id: str
    run_dir: str
    plan: LaunchPlan  # `plan.run_options` are the launcher's own options, `plan.image` is the container image
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    open_files: int | None = None
    address: str = "127.0.0.1"  # what the server binds to
    port: int = 8000
    may_sudo: bool = True  # on its host


def launch_of(run_id: str, run_dir: str, plan: LaunchPlan, command: Command) -> Launch:
    """Return the input of a launcher for a plan and the command of its engine."""
    files, host, port = command.open_files, command.host, command.port
    return Launch(run_id, run_dir, plan, command.argv, command.env, command.workdir, files, host, port)


@dataclass(frozen=True, slots=True)
class Keeper:
    """The command that keeps a server for a launcher. `env` contains the secrets, `files` are written into the run
    directory first (names relative to it)."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launched:
    """The content of the file `launched`, in which a keeper reports: lines of a key, a space and a value. None: not
    reported."""

    handle: str | None = None  # the unit, the container or the job id
    state: str | None = None  # in the launcher's words, such as "PENDING (Resources)" or "pulling the image, 40 %"
    node: str | None = None  # the address at which the server's port is reached from the host; None: the host's own
    pid: int | None = None  # of the server's first process on the host
    restarts: int | None = None  # by the launcher, since the run began
    ends_unix_s: float | None = None  # when the launcher ends the server (walltime)
    image: str | None = None  # with its digest
    gpus: tuple[str, ...] = ()  # indices or UUIDs of the GPUs that the launcher gave to the server
    began_unix_s: float | None = None  # when the server's present process was started; None: it waits (queue, pull)
    ended: str | None = None  # why the server has ended, in the launcher's words, such as "oom-kill" or "TIMEOUT"
    exit_code: int | None = None  # of the server, once it has ended; 128 + n for signal n; None: not known


@dataclass(frozen=True, slots=True)
class Fate:
    """The state of a server whose keeper has ended, as its launcher reports it. `lives` is also true for a server that
    is still waiting to start."""

    lives: bool
    handle: str | None = None
    ended: str | None = None  # in the launcher's words, such as "unit x.service failed: oom-kill"
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Adoptable:
    """A server that somebody else started through a launcher. `argv` are the words of its process, with their
    secrets."""

    handle: str  # in its full form
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # as far as this user may read it
    workdir: str | None = None
    address: str | None = None  # where its port is reached from the host; None: what the server binds to
    port: int | None = None  # None: the one on its command line, or the engine's usual one
    image: str | None = None


class Launcher(Protocol):
    """A program that runs servers on a host in place of Workbench itself. `name` is the word of `--as`."""

    name: str
    start_program: str  # the program on the host that starts a server, such as "sbatch"
    stop_s: float  # `stop` may take this long
    looks_at: frozenset[str]  # of {"files", "port"}: those of the host that the server uses, checked before its start

    async def check(self, host: Host, launch: Launch) -> Sequence[Finding]:
        """Return findings about problems of this start, such as a missing program, image or right. A finding of the
        level ERROR prevents the start."""
        ...

    def command(self, launch: Launch) -> Command:
        """Return the command that starts the server through the launcher's program, to be shown before the start: a
        person could run it. Its `files` are those that it needs, such as a job script."""
        ...

    def keeper(self, launch: Launch) -> Keeper:
        """Return the keeper's command: it starts the server and follows it until its end."""
        ...

    def adopting_keeper(self, launch: Launch, handle: str) -> Keeper:
        """Return the command of a keeper that starts nothing: it follows a server that already runs as `handle`."""
        ...

    async def ask(self, host: Host, launch: Launch, launched: Launched) -> Fate:
        """Ask the launcher's program whether the server of a run lives. The keeper may have been lost before it
        reported anything, so the server is also found by the run id. Raises HostError if the program cannot tell."""
        ...

    async def stop(self, host: Host, launch: Launch, launched: Launched) -> None:
        """Ask the launcher's program to stop the server, and wait up to `stop_s` for its end. The server may be queued
        still, or have ended, or never have been started. Raises HostError or ServerError if the program refuses."""
        ...

    def restart_command(self, launch: Launch, launched: Launched) -> tuple[str, ...]:
        """Return the command that restarts the server in the same unit, container or job; () if there is none."""
        ...

    async def restart(self, host: Host, launch: Launch, launched: Launched) -> None:
        """Run the restart command. Raises HostError or ServerError if the program refuses."""
        ...

    async def uninstall(self, host: Host, launch: Launch, launched: Launched) -> Sequence[str]:
        """Remove what the start of an ended server has installed on the host, such as a unit. Return the paths that
        were removed. Raises ServerError for files that Workbench did not write."""
        ...

    async def find(self, host: Host, handle: str, options: Mapping[str, str]) -> Adoptable:
        """Return the server that runs as `handle`. `options` are run options. Raises ServerError if there is none, or
        it does not run."""
        ...


def parse_launched(data: bytes | None) -> Launched | None:
    """Return the content of the file `launched`; None if there is none. Unknown keys and damaged values are left
    out."""
    if not data:
        return None
    values = dict(line.partition(" ")[::2] for line in clean(data, lines=True).splitlines())

    def text(key: str) -> str | None:
        return values.get(key, "").strip() or None

    def number(key: str) -> int | None:
        return whole_number(text(key), _DIGITS)

    ends, began = number("ends_unix_s"), number("began_unix_s")
    return Launched(
        handle=text("handle"),
        state=text("state"),
        node=text("node"),
        pid=number("pid") or None,
        restarts=number("restarts"),
        ends_unix_s=None if ends is None else float(ends),
        image=text("image"),
        gpus=tuple((text("gpus") or "").replace(",", " ").split()),
        began_unix_s=None if began is None else float(began),
        ended=text("ended"),
        exit_code=number("exit_code"),
    )


def encode_launched(launched: Launched) -> bytes:
    """Return the bytes of the file `launched`."""
    lines = []
    for each in fields(launched):
        value = getattr(launched, each.name)
        if isinstance(value, tuple):
            value = ",".join(value)
        if value not in (None, ""):
            lines.append(f"{each.name} {int(value) if isinstance(value, float) else value}\n")
    return "".join(lines).encode()
