"""The Launcher protocol, what a launcher is given, and the file in which its keeper reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from workbench.hosts.base import Host
from workbench.model.findings import Finding
from workbench.model.plan import LaunchPlan
from workbench.model.untrusted_text import clean

FILE = "launched"  # in the run directory; the keeper replaces it as a whole (write to a new file, then `mv`)


@dataclass(frozen=True, slots=True)
class Launch:
    """A server to start. `argv` and `env` are those of the engine, with their secrets; `run_dir` is the run's directory
    on the host, which exists when the keeper starts."""

    run_id: str
    run_dir: str
    plan: LaunchPlan  # `plan.run_options` are the launcher's own options, `plan.image` is the container image
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    open_files: int | None = None
    address: str = "127.0.0.1"  # what the server binds to
    port: int = 8000


@dataclass(frozen=True, slots=True)
class Keeper:
    """The command that keeps a server for a launcher. `env` contains the secrets, `files` are written into the run
    directory first (names relative to it)."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launched:
    """What a keeper reported in the file `launched`: lines of a key, a space and a value. None: not reported."""

    handle: str | None = None  # the unit, the container or the job id
    state: str | None = None  # in the launcher's words, such as "PENDING (Resources)" or "pulling the image, 40 %"
    node: str | None = None  # the address at which the server's port is reached from the host; None: the host's own
    pid: int | None = None  # of the server's first process on the host
    restarts: int | None = None  # by the launcher, since the run began
    ends_unix_s: float | None = None  # when the launcher ends the server (walltime)
    image: str | None = None  # with its digest
    gpus: tuple[str, ...] = ()  # indices or UUIDs of the GPUs that the launcher gave to the server


class Launcher(Protocol):
    """What runs servers on a host in place of Workbench itself. `name` is the word of `--as`."""

    name: str
    stop_s: float  # `stop` has this long; then the keeper gets SIGTERM

    async def check(self, host: Host, launch: Launch) -> Sequence[Finding]:
        """Return what is against this start: a missing program, image or right. An ERROR refuses the start."""
        ...

    def keeper(self, launch: Launch) -> Keeper:
        """Return the command that starts the server and keeps it."""
        ...

    def adopting_keeper(self, launch: Launch, handle: str) -> Keeper:
        """Return the command that keeps a server which already runs as `handle`: it starts nothing."""
        ...

    async def stop(self, host: Host, run_dir: str, launched: Launched) -> None:
        """Ask the launcher's program to stop the server, and wait up to `stop_s` for its end. The server may be queued
        still, or have ended. Raises HostError or ServerError if the program refuses."""
        ...


def parse_launched(data: bytes | None) -> Launched | None:
    """Return the content of the file `launched`; None if there is none. Unknown keys and damaged values are left
    out."""
    if not data:
        return None
    values = dict(line.partition(" ")[::2] for line in clean(data, lines=True).splitlines())

    def text(key: str) -> str | None:
        return values.get(key, "").strip() or None

    pid, restarts, ends = text("pid"), text("restarts"), text("ends_unix_s")
    return Launched(
        handle=text("handle"),
        state=text("state"),
        node=text("node"),
        pid=int(pid) if pid and pid.isdecimal() and int(pid) else None,
        restarts=int(restarts) if restarts and restarts.isdecimal() else None,
        ends_unix_s=float(ends) if ends and ends.isdecimal() else None,
        image=text("image"),
        gpus=tuple((text("gpus") or "").replace(",", " ").split()),
    )
