"""Where commands run: the protocol Host, the class BaseHost with defaults for all kinds of hosts,
and the errors.

A host is this machine, a machine behind ssh, a container, a cluster or a simulated host. Code
outside of hosts/ uses all of them through the protocol alone. Commands are lists of arguments,
never shell strings.

HostError
├── HostUnreachable     there is no connection, or it was lost (servers on the host keep running)
│   ├── HostKeyUnknown  the host's key is not in known_hosts: ask the user, then `accept_host_key`
│   ├── HostKeyChanged  the host's key differs from the one in known_hosts
│   └── AuthFailed      the host accepted no key, agent identity, or password
├── CommandNotFound     the executable is not on the host's PATH
├── CommandFailed       the command ran and exited with an error (`completed` is its result)
├── CommandTimeout      the command did not end in time, and was killed
├── OutputTooLarge      the command printed more than OUTPUT_MAX_BYTES, and was killed
└── FileError           a file on the host could not be read or written (missing, disk full)
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from workbench.hosts.line_splitter import OUTPUT_MAX_BYTES
from workbench.hosts.login_question import Ask
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_text

if TYPE_CHECKING:
    from typing import TypeGuard

    from workbench.hosts.cluster import ClusterHost

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command that has ended. `returncode` is the exit code, or -n if signal n
    ended the command."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        """What the command printed on stdout, as text. Bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def err(self) -> str:
        """What the command printed on stderr, as text without control characters."""
        return clean_text(self.stderr, lines=True)

    @property
    def command(self) -> str:
        """The command as a line that a POSIX shell reads."""
        return shlex.join(self.argv)

    @property
    def problem(self) -> str:
        """The last line that the command printed on stderr; "exit code N" if it printed nothing
        there. Also set for a command that succeeded."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else f"exit code {self.returncode}"


class HostUnreachable(HostError):
    pass


class HostKeyUnknown(HostUnreachable):
    """The error for a host whose key is not in known_hosts. `fingerprint` and `key_type` describe
    the key, so that the user can be asked whether to trust it.
    """

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


class OutputTooLarge(HostError):
    pass


class FileError(HostError):
    pass


def raise_if_argv_invalid(argv: Sequence[str], host: str) -> None:
    """Raise CommandNotFound if `argv` is empty, or begins with an empty word or an option. Raise
    HostError if a word contains a NUL byte."""
    if not argv or not argv[0] or argv[0].startswith("-"):
        raise CommandNotFound(
            f"{list(argv)!r} does not begin with the name of a program", host=host
        )
    if any("\0" in a for a in argv):
        raise HostError("an argument of the command contains a NUL byte", host=host)


def command_not_found_error(
    argv: Sequence[str], host: str, command: str | None = None
) -> CommandNotFound:
    """Return the error for a command whose program, `argv[0]`, is not on the host's PATH. `command`
    is the command line that the message shows; None shows none."""
    step = "install it on that host, add it to PATH, or give its full path"
    if "/" in argv[0]:
        step = "check the path"
    return CommandNotFound(
        f"{argv[0]}: no such executable", host=host, command=command, next_step=step
    )


def command_timeout_error(argv: Sequence[str], timeout_s: float, host: str) -> CommandTimeout:
    """Return the error for a command that was killed after `timeout_s` seconds."""
    words = [word for word in argv if word not in ("sudo", "-n", "env", "--")]
    program = words[0].rpartition("/")[2] if words else ""
    named = "" if program in ("", "sh", "bash") else f"{program} "
    return CommandTimeout(
        f"{named}did not end within {timeout_s:g} s and was killed",
        host=host,
        command=format_command_for_message(argv),
    )


def container_program_timeout_error(program: str, timeout_s: float, host: str) -> CommandTimeout:
    """Return the error for a program of containers, such as docker, that has not answered within
    `timeout_s` seconds."""
    return CommandTimeout(
        f"{program} did not answer within {timeout_s:g} s",
        host=host,
        command=f"{program} ps",
        next_step=f"run this on that host: if it hangs there as well, restart {program}",
    )


def format_command_for_message(argv: Sequence[str]) -> str:
    """Return a command for a message. "..." replaces each word of several lines, which is one of
    Workbench's own scripts."""
    return " ".join("..." if "\n" in word else shlex.quote(word) for word in argv)


def output_too_large_error(argv: Sequence[str], host: str) -> OutputTooLarge:
    """Return the error for a command that was killed because its output exceeded
    OUTPUT_MAX_BYTES."""
    return OutputTooLarge(
        f"printed more than {OUTPUT_MAX_BYTES >> 20} MiB and was killed",
        host=host,
        command=format_command_for_message(argv),
        next_step=f"check which program {argv[0]} is on that host: it prints without end",
    )


def raise_on_failure(done: Completed, host: str) -> None:
    """Raise CommandFailed with the last line of stderr if the command did not exit with 0."""
    if done.returncode != 0:
        how = f"exit code {done.returncode}"
        if done.returncode < 0:
            how = f"signal {-done.returncode}"
        last = done.err.strip().splitlines()[-1:]
        raise CommandFailed(": ".join([how, *last]), done, host=host)


def state_dir_error(host: str, reason: str | None, path: str = "") -> FileError:
    """Return the error for Workbench's state directory on the host if it cannot be created.
    `reason` is the message of the host's system. `path` is the directory, "" if it is not known."""
    named = f"the state directory {path}" if path else "the state directory"
    return FileError(
        f"cannot create {named}: {reason}",
        host=host,
        next_step="set XDG_STATE_HOME on that host to the absolute path of a directory that you "
        "can write",
    )


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """A change of the connection to a host. If `connected` is False, the connection was lost for
    `reason`, and `retries` attempts to restore it have failed. If `refused` is set, no further
    attempt follows, because only the user can solve that problem. If `connected` is True, the
    connection is back after `outage_s` seconds."""

    host: str
    connected: bool
    reason: str = ""
    outage_s: float = 0.0
    retries: int = 0
    refused: HostError | None = None


@dataclass(frozen=True, slots=True)
class SshAddress:
    """The address of an sshd. `alias` is the name of the host in this machine's ssh configuration.
    `through` names the ProxyJump hosts by which ssh reaches the host, "" if there are none."""

    host: str
    user: str = ""
    port: int | None = None
    through: str = ""
    alias: str = ""

    @property
    def target(self) -> str:
        """The host as an argument of the command `ssh`, without the port: "USER@HOST", or "HOST" if
        `user` is empty."""
        return f"{self.user}@{self.host}" if self.user else self.host

    @property
    def text(self) -> str:
        """The address for the user, such as "me@10.0.0.5:2222 through gateway"."""
        port = f":{self.port}" if self.port else ""
        through = f" through {self.through}" if self.through else ""
        return f"{self.target}{port}{through}"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The properties of a host: system, user, memory, tools. A property that could not be
    determined is None."""

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
    python3: str | None = None  # path of python3 on that host; None if it is not installed
    python3_version: str | None = None
    nvidia_smi: str | None = None
    # False in an unprivileged container: uid 0 there is not root
    initial_user_namespace: bool | None = None
    container: str | None = None  # "lxc", "docker", "podman", …
    virtualization: str | None = None  # "vmware", "kvm", "none", …; names of systemd-detect-virt
    home: str | None = None
    path: tuple[str, ...] = ()
    latency_ms: float | None = None
    simulated: str | None = None  # profile of a simulated host
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerHostProcess:
    """What the host around a container knows about a process. `pid` is the process id inside the
    container. If the process is not in this container, `pid` is None and `place` names where it
    runs, such as "docker:0123456789ab"."""

    pid: int | None
    name: str | None = None
    place: str = ""


@runtime_checkable
class Stream(Protocol):
    """A running command whose output can be read before its end. `close` ends the command."""

    def lines(self) -> AsyncIterator[bytes]:
        """Yield the complete lines of the command's output, without newlines, until the command
        ends."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the command's output as they arrive, up to 64 KiB at a time."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def wait(self) -> int: ...

    async def stderr_tail(self) -> str: ...

    async def close(self) -> None: ...


@runtime_checkable
class Forward(Protocol):
    """A forwarded TCP port: connections to `local_port` lead to a port of a host, or of a node that
    only this host reaches. `url` is the base URL with which this machine connects to that port."""

    local_port: int
    url: str

    async def close(self) -> None: ...


@runtime_checkable
class Host(Protocol):
    """A machine on which commands are run. A new kind of host is a subclass of `BaseHost`, which
    has the defaults, and an entry in hosts/__init__.py.
    """

    name: str  # as the user gives it
    kind: str  # for display: "local", "ssh"
    preset_variables: Mapping[str, str]  # values of presets' variables that exist only on this host
    cluster_variables: Mapping[str, str]  # of a cluster; they come before a preset's own defaults
    login_prompt: (
        Ask | None
    )  # asks the user for login secrets; with None, a login that needs one fails
    may_sudo: bool  # whether the user lets Workbench try sudo on it (hosts.toml)

    @property
    def is_local(self) -> bool:
        """Whether the host's commands, files and ports are those of this machine."""
        ...

    @property
    def simulated(self) -> str | None:
        """The name of the profile by which a host is simulated, None for a real host."""
        ...

    @property
    def connected(self) -> bool: ...

    def on_link(self, listener: Callable[[LinkEvent], None]) -> Callable[[], None]:
        """Register `listener`, which is called each time the connection is lost or restored. Return
        a function that unregisters it.
        """
        ...

    def accept_host_key(self, fingerprint: str) -> None:
        """Add the host key with this fingerprint to known_hosts, after `connect` raised
        HostKeyUnknown and the user agreed. Then call `connect` again.
        """
        ...

    async def connect(self) -> None:
        """Connect to the host. Raises HostUnreachable or a subclass of it. On this machine, do
        nothing."""
        ...

    async def state_dir(self) -> str:
        """Return the absolute path of the directory on the host in which Workbench keeps run
        directories and the settings journal.

        The path is $XDG_STATE_HOME/workbench or ~/.local/state/workbench. The directory is created
        with mode 0700 if it is missing.
        """
        ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        timeout_s: float = 30.0,
        env: Mapping[str, str] | None = None,
        check: bool = False,
    ) -> Completed:
        """Run a command and return its result after its end. `input` is written to its stdin, and
        `env` is added to the host's environment. Raises CommandTimeout after `timeout_s` seconds,
        and CommandFailed for an exit code other than 0 if `check` is set.
        """
        ...

    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Stream:
        """Start a command whose output can be read while it runs. `input` is written to its stdin,
        and `env` is added to its environment. Stdin stays open until the stream is closed, so that
        the command can take the end of its stdin as the request to end."""
        ...

    async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Return the file's bytes from position `offset` to the end, but at most `limit` bytes if
        it is not None. Raises FileError if the file cannot be read.
        """
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write the file atomically (temporary file, fsync, rename) and create missing parent
        directories (0700)."""
        ...

    async def forward(self, port: int, address: str = LOOPBACK) -> Forward:
        """Open a port of this machine whose connections lead to `port` at `address`. The host
        resolves and reaches `address`: its own address, or that of a node that only this host
        reaches."""
        ...

    async def facts(self) -> HostFacts: ...

    async def ssh_address(self) -> SshAddress | None:
        """Return the address of the host's sshd from the ssh configuration, without connecting.
        None for a host that is not behind ssh."""
        ...

    async def read_container_host_processes(
        self, pids: Collection[int]
    ) -> Mapping[int, ContainerHostProcess]:
        """Return what the host around this container knows about the processes `pids`, by process
        id. These are ids of the host around it, as the GPU driver reports them; a process that has
        ended is left out. {} if this host is no container."""
        ...

    async def read_job_gpus(self) -> tuple[str, ...] | None:
        """Return the indices or UUIDs of the GPUs that a batch system gave to this host, which is a
        job. None if this host is no job, or may use all GPUs that the driver shows. Raises
        HostError if that cannot be read."""
        ...

    async def close(self) -> None: ...


class BaseHost(ABC):
    """The defaults for all kinds of hosts: those of a real host that needs no login and whose
    connection is never lost."""

    name: str
    is_local = False
    simulated: str | None = None
    preset_variables: Mapping[str, str] = MappingProxyType({})
    cluster_variables: Mapping[str, str] = MappingProxyType({})
    login_prompt: Ask | None = None
    may_sudo = True

    def on_link(self, listener: Callable[[LinkEvent], None]) -> Callable[[], None]:
        return lambda: None

    def accept_host_key(self, fingerprint: str) -> None:
        raise HostError(
            f"cannot accept the key {fingerprint}: the host offered no key with this fingerprint",
            host=self.name,
        )

    async def connect(self) -> None:
        return

    async def ssh_address(self) -> SshAddress | None:
        return None

    async def close(self) -> None:
        return

    async def read_container_host_processes(
        self, pids: Collection[int]
    ) -> Mapping[int, ContainerHostProcess]:
        return {}

    async def read_job_gpus(self) -> tuple[str, ...] | None:
        return None

    async def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        timeout_s: float = 30.0,
        env: Mapping[str, str] | None = None,
        check: bool = False,
    ) -> Completed:
        done = await self._run(argv, input, timeout_s, env)
        if check:
            raise_on_failure(done, self.name)
        return done

    @abstractmethod
    async def _run(
        self,
        argv: Sequence[str],
        input: bytes,
        timeout_s: float,
        env: Mapping[str, str] | None,
    ) -> Completed:
        pass


def is_cluster(host: Host) -> TypeGuard[ClusterHost]:
    """Return whether a host is a cluster, without loading the modules of clusters."""
    return host.kind == "cluster"
