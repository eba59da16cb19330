"""Where commands run. Three kinds of host, one protocol; everything above it is written once, as argv lists.

HostError
├── HostUnreachable    no connection, or it was lost (the server on the other side lives on)
│   ├── HostKeyUnknown     the host's key is not in known_hosts: ask the person, then `accept_host_key`
│   ├── HostKeyChanged     the key differs from known_hosts: refused
│   └── AuthFailed         no key or agent identity was accepted
├── CommandNotFound    the executable is not on that host's PATH
├── CommandFailed      ran and exited non-zero (carries `completed`)
├── CommandTimeout     did not end in time
└── FileError          a file on the host could not be read or written (missing, permission, disk full)
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from workbench.model.errors import HostError
from workbench.model.untrusted_text import clean

# Asks the user for a passphrase, password or code; returns None when they decline.
Ask = Callable[[str], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended. `returncode` is negative for a signal, as in subprocess."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes
    duration_s: float = 0.0

    @property
    def out(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def err(self) -> str:
        """For people: without what a terminal would obey."""
        return clean(self.stderr, lines=True)

    @property
    def command(self) -> str:
        return shlex.join(self.argv)


class HostUnreachable(HostError):
    pass


class HostKeyUnknown(HostUnreachable):
    """`fingerprint` and `key_type` are for the question to the person."""

    def __init__(self, message: str, *, fingerprint: str, key_type: str, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.fingerprint = fingerprint
        self.key_type = key_type


class HostKeyChanged(HostUnreachable):
    pass


class AuthFailed(HostUnreachable):
    pass


class CommandNotFound(HostError):
    pass


class CommandFailed(HostError):
    def __init__(self, message: str, completed: Completed, **kw: Any) -> None:
        super().__init__(message, command=completed.command, **kw)
        self.completed = completed


class CommandTimeout(HostError):
    pass


class FileError(HostError):
    pass


def state_dir_missing(host: str, reason: str | None, path: str = "") -> FileError:
    """Return the error for a state directory that cannot be made: a read-only or full home."""
    named = f"the state directory {path}" if path else "the state directory"
    return FileError(
        f"cannot make {named}: {reason}",
        host=host,
        next_step="set XDG_STATE_HOME on that host to the absolute path of a directory that you can write",
    )


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known of a host, gathered by one script. None where it could not be told."""

    name: str
    kind: str  # "local", "ssh", "container"
    user: str | None = None
    uid: int | None = None
    hostname: str | None = None
    os: str | None = None
    kernel: str | None = None
    arch: str | None = None
    boot_id: str | None = None
    cpu_count: int | None = None
    memory_total_bytes: int | None = None
    python3: str | None = None  # path of python3 on that host, None: not there
    python3_version: str | None = None
    nvidia_smi: str | None = None
    sudo_without_password: bool | None = None
    initial_user_namespace: bool | None = None  # False in an unprivileged container: uid 0 there is not root
    container: str | None = None  # "lxc", "docker", "podman", …
    virtualization: str | None = None  # "vmware", "kvm", "none", …
    home: str | None = None
    path: tuple[str, ...] = ()
    latency_ms: float | None = None
    simulated: str | None = None  # profile name when this is a simulated host
    extra: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Stream(Protocol):
    """A running command whose stdout is read as it comes. Leaving it ends the remote process too."""

    def lines(self) -> AsyncIterator[bytes]:
        """Complete lines without their newline; ends when the command ends."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Bytes as they come, up to 64 KiB at a time."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def wait(self) -> int: ...

    async def stderr_tail(self) -> str: ...

    async def close(self) -> None: ...


@runtime_checkable
class Forward(Protocol):
    """A TCP port on this machine that leads to a port on the host's loopback (itself for a local host)."""

    local_port: int

    async def close(self) -> None: ...


@runtime_checkable
class Host(Protocol):
    """`name` is how the person calls it. `state_dir` is an absolute path on that host, 0700, made on first use:
    $XDG_STATE_HOME/workbench or ~/.local/state/workbench (run directories, journal)."""

    name: str
    kind: str

    async def connect(self) -> None:
        """Make the link (no-op locally). Raises HostUnreachable and its kinds."""
        ...

    async def state_dir(self) -> str: ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout_s: float = 30.0,
        env: Mapping[str, str] | None = None,
        check: bool = False,
    ) -> Completed:
        """Run to the end. `env` is added to the host's own. `check` raises CommandFailed on non-zero."""
        ...

    async def stream(
        self, argv: Sequence[str], *, input: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> Stream:
        """Start and read as it comes. `input` is written to its stdin, which then stays open until `close`:
        end of file on stdin tells the other side to end."""
        ...

    async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Bytes from `offset`; FileError when missing or not allowed."""
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Atomic: temporary name in the same directory, fsync of file and directory, rename. Makes parents (0700)."""
        ...

    async def forward(self, port: int) -> Forward: ...

    async def facts(self) -> HostFacts: ...

    async def close(self) -> None: ...

    @property
    def connected(self) -> bool: ...
