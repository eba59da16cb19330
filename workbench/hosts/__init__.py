"""Hosts: the machines on which Workbench runs commands, all behind the protocol `base.Host`.

base               the Host protocol, defaults for kinds of hosts, errors
local, ssh         the kinds of hosts; ssh is the only module that imports asyncssh
local_process      processes of this machine: their start, their end, and the pipes to them
local_disks        whether a directory is on a disk of this machine
ssh_names          names that ssh knows without a connection
container          a container of another host as a host
container_kinds    the commands that enter a container of each kind, report its state, and list all of them
container_ports    local ports that lead to ports of containers
container_listing  the running containers of a host
cluster            several hosts as one, whose commands run on the first
cluster_network    the network over which the hosts of a cluster reach each other
interfaces         network interfaces and RDMA devices of a host
known_hosts        keys of ssh hosts: known, changed, accepted by the user
login_question     the questions of an SSH login
reconnecting_link  a connection that is restored after a loss
port_relay         a local port that leads to a port of a host
files_via_shell    reads and writes files of a host with commands alone
directory_names    the names in a directory of a host
file_signatures    signatures of files on this machine, which show whether they have changed
session_marks      marks of the processes of a session, which show whether one has started or ended
shell_scripts      the POSIX shell code that runs on hosts; its files are in the folder `scripts`
script_files       reads shell scripts, which lie in a folder `scripts` beside the modules that run them
python_programs    Python programs that Workbench sends to a host, which stores them under their hash
host_facts         properties of a host (user, kernel, memory, GPU tools) from the output of one script
boot               under which boot a host runs
allotment          which GPUs a host gives to the programs that run on it
swept_command      runs a program, then ends all processes that it has left behind
detached_process   processes that outlive Workbench, each in a run directory
run_processes      which processes belong to a run
shared_answers     one request to a host for several callers at the same time
line_splitter      splits the output of commands into lines, and limits its size
task_cancellation  reliable cancellation of asyncio tasks

A new kind of host needs a module here and an entry in KINDS. A new kind of container needs an entry
in container_kinds.KINDS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.hosts.base import Host


_MOST_AROUND = 8  # containers around a container


@dataclass(frozen=True, slots=True)
class HostKind:
    """A kind of host, such as ssh: how its hosts are named and opened. The functions import the
    modules of the kind when they are called: asyncssh takes 0.2 s to load."""

    is_name: Callable[[str], bool]  # whether a name is of this kind; may look it up
    names: Callable[[], Iterable[str]]  # names to offer to the user
    open: Callable[[str, str], Host]  # its name, and the name by which the user knows it


def _open_local(name: str, display_name: str) -> Host:
    from workbench.hosts.local import LocalHost

    return LocalHost(display_name)


def _is_ssh_name(name: str) -> bool:
    from workbench.hosts import ssh_names

    return ssh_names.can_find_ssh_name(name)


def _list_ssh_names() -> Iterable[str]:
    from workbench.hosts import ssh_names

    return ssh_names.list_host_aliases()


def _open_ssh(name: str, display_name: str) -> Host:
    from workbench.hosts.ssh import SshHost

    return SshHost(name, display_name=display_name)


SSH = HostKind(
    _is_ssh_name, _list_ssh_names, _open_ssh
)  # last: opens every name that no other kind has
KINDS = (HostKind("local".__eq__, lambda: ["local"], _open_local), SSH)


def open_host(name: str = "local", display_name: str = "") -> Host:
    """Return the host called `name`; "local" is this machine. The host is not connected until its
    first use. `display_name` is the name that the user sees; "" stands for `name`."""
    kind = next((kind for kind in KINDS if kind is SSH or kind.is_name(name)), SSH)
    return kind.open(name, display_name or name)


def split_host_and_container(name: str) -> tuple[str, tuple[str, str] | None]:
    """Split a container's name `[HOST/]KIND:NAME`. Return (name of the host around the container,
    (kind, name of the container)); the host's name is "" for this machine. For a name of another
    form, return (`name`, None). Raises InputError if the container is inside too many others, or
    is a PBS job, in which no command can be run."""
    around, _, last = name.rpartition("/")
    if around.count("/") > _MOST_AROUND:
        raise InputError(
            f"the host name {name[:80]!r}… names more than {_MOST_AROUND} nested containers"
        )
    kind, colon, container = last.partition(":")
    if not colon or not container or not kind.isalpha():  # as in an IPv6 address
        return name, None
    from workbench.hosts.container_kinds import KINDS as CONTAINERS

    if kind == "pbs":
        raise InputError(
            f"{name} cannot be a host: PBS has no command that enters a job from outside",
            next_step="start servers as jobs with `start --as pbs`, or name the node of the job "
            "with --host if you can "
            "log in there",
        )
    return (around, (kind, container)) if kind in CONTAINERS else (name, None)


def list_configured_host_names() -> tuple[str, ...]:
    """Return the names to offer to the user: this machine and the aliases of the ssh
    configuration."""
    return tuple(name for kind in KINDS for name in kind.names())


def can_find_host_name(name: str) -> bool:
    """Return whether a host called `name` exists, as far as this machine can tell without a
    connection. Asking the name resolver can take up to one second.
    """
    return any(kind.is_name(name) for kind in KINDS)
