"""The names of hosts: this machine, hosts of hosts.toml, hosts behind SSH, containers, and
simulated hosts."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from workbench import hosts
from workbench.hosts import open_host, split_host_and_container
from workbench.hosts.base import Host, HostUnreachable
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.lazy_dataclass import dataclass
from workbench.store import paths
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.model.host_entry import HostEntry

LOCAL_HOST_NAME = "local"
SIMULATED_PREFIX = "sim:"
CLUSTER_PREFIX = "cluster:"

TWIN_SEPARATOR = "@"  # sim:PROFILE@NAME is one of several simulated hosts with the same GPUs
_TWIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A name of a host that the user can pick. `source` says where the name is written:
    "hosts.toml", "ssh config", or "" for this machine and for simulated hosts. `way` is a text on
    the machine and the container that the name stands for."""

    name: str
    source: str = ""
    label: str = ""
    way: str = ""


def command_options_for_host(name: str) -> str:
    """Return the options with which a command line names the host of a record, quoted for a shell,
    such as "--simulate rtx-pro-6000". "" for this machine."""
    if name.startswith(CLUSTER_PREFIX):
        return shlex.join(("--cluster", name.removeprefix(CLUSTER_PREFIX)))
    machine, simulated, profile = f"/{name}".partition(f"/{SIMULATED_PREFIX}")
    machine = machine.removeprefix("/")
    words = [] if machine in ("", LOCAL_HOST_NAME) else ["--host", machine]
    words += ["--simulate", profile] if simulated else []
    return shlex.join(words)


def open_host_by_name(name: str | None, simulate: str | None = None) -> Host:
    """Return the host with this name: None or "local", a host of hosts.toml, an SSH name, a
    container on one of these ("gpu-box/podman:vllm"), "cluster:NAME" for a cluster of hosts.toml,
    or "sim:PROFILE". `simulate` names a profile whose simulated driver and engines are put on that
    host, as "gpu-box/sim:PROFILE" does; "PROFILE@NAME" has GPUs and servers of its own. Raises
    InputError for an unknown profile, and for a host or cluster of hosts.toml that cannot be used.
    """
    name = name or LOCAL_HOST_NAME
    if name.startswith(CLUSTER_PREFIX):
        from workbench.session.hosts.cluster_hosts import open_cluster

        return open_cluster(name.removeprefix(CLUSTER_PREFIX), simulate, open_host_by_name)
    if name.startswith(SIMULATED_PREFIX):
        simulate, name = name.removeprefix(SIMULATED_PREFIX), LOCAL_HOST_NAME
    elif f"/{SIMULATED_PREFIX}" in name:  # the name that such a host has in records
        name, _, simulate = name.partition(f"/{SIMULATED_PREFIX}")
    is_local = name in ("", LOCAL_HOST_NAME)
    inner = _open_local_host() if is_local else _open_host_or_container(name, name, HostsStore())
    if simulate is None:
        return inner
    from workbench.sim.simulated_host import SimulatedHost

    profile, _, twin = simulate.partition(TWIN_SEPARATOR)
    if TWIN_SEPARATOR in simulate and not _TWIN_NAME.fullmatch(twin):
        raise InputError(
            f"{simulate!r} does not name a simulated host",
            next_step=f"write a name of letters and digits after {TWIN_SEPARATOR}, as in "
            f"{SIMULATED_PREFIX}four-pcie{TWIN_SEPARATOR}2",
        )
    # the GPUs of a simulated host that several users share
    shared = os.environ.get("WORKBENCH_SIM_STATE")
    return SimulatedHost(inner, profile, str(paths.state_dir() / "sim" / simulate), shared, twin)


def _open_local_host() -> Host:
    host = open_host()
    with suppress(WorkbenchError):  # an entry that cannot be used is told where it is used
        entry = HostsStore().host(LOCAL_HOST_NAME)
        host.may_sudo = entry is None or entry.sudo is not False
    return host


def _open_host_or_container(name: str, known_as: str, entries: HostsStore) -> Host:
    """Return the host called `name`, or the container that `name` includes. `known_as` is the
    name that the host gets in Workbench, and `entries` is the content of hosts.toml."""
    around, container = split_host_and_container(name)
    if container is not None:
        inner = _open_host_or_container(around, around, entries) if around else open_host()
        return _open_container(inner, container, known_as, None)
    entry = entries.host(name)
    if entry is None:
        return open_host(name, known_as)
    host = _open_entry(entry, known_as, entries)
    if entry.sudo is not None:
        host.may_sudo = entry.sudo
    return host


def _open_entry(entry: HostEntry, known_as: str, entries: HostsStore) -> Host:
    name, machine = entry.name, entry.ssh or entry.name
    if entry.container is None:
        return (
            open_host(name, known_as)
            if machine == name
            else _open_host_or_container(machine, known_as, entries)
        )
    inner = (
        open_host(machine)
        if machine == name
        else _open_host_or_container(machine, machine, entries)
    )
    kind, _, contained = entry.container.partition(":")
    return _open_container(inner, (kind, contained), known_as, entry.sudo)


def _open_container(
    inner: Host, kind_and_name: tuple[str, str], known_as: str, sudo: bool | None
) -> Host:
    from workbench.hosts.container import open_container

    host = open_container(inner, *kind_and_name, sudo=sudo)
    host.name = known_as
    return host


def known_host_names() -> tuple[str, ...]:
    """Return the names of the hosts that the user can pick, as `known_hosts` has them."""
    return tuple(host.name for host in known_hosts())


def known_hosts() -> tuple[KnownHost, ...]:
    """Return the hosts that the user can pick: this machine, the hosts and clusters of hosts.toml,
    the aliases of the SSH config, and the simulated profiles."""
    from workbench.sim.profiles import PROFILES

    return (
        *known_non_simulated_hosts(),
        *_known_clusters(),
        *(KnownHost(SIMULATED_PREFIX + name) for name in PROFILES),
    )


def _known_clusters() -> tuple[KnownHost, ...]:
    found = []
    for cluster in HostsStore().content.clusters.values():
        nodes = ", ".join(node.host for node in cluster.nodes)
        found.append(KnownHost(CLUSTER_PREFIX + cluster.name, "hosts.toml", cluster.label, nodes))
    return tuple(found)


def known_non_simulated_hosts() -> tuple[KnownHost, ...]:
    """Return the hosts that the user can pick and that are not simulated."""
    known = {LOCAL_HOST_NAME: KnownHost(LOCAL_HOST_NAME)}
    for entry in HostsStore().content.hosts.values():
        way = "/".join(filter(None, (entry.ssh, entry.container)))
        known[entry.name] = KnownHost(entry.name, "hosts.toml", entry.label, way)
    for name in hosts.list_configured_host_names():
        known.setdefault(name, KnownHost(name, "ssh config"))
    return tuple(known.values())


def default_fleet_hosts() -> tuple[KnownHost, ...]:
    """Return the hosts of a fleet if the user names none: all hosts of hosts.toml, or if that file
    has none, every known host that is not simulated."""
    found = known_non_simulated_hosts()
    return tuple(host for host in found if host.source == "hosts.toml") or found


def is_host_name_resolvable(name: str) -> bool:
    """Return whether hosts.toml, the SSH config or the name resolver knows the name of a host, or
    of the host of a container. The resolver can take up to one second. Raises InputError for a host
    of hosts.toml that cannot be used."""
    around, container = split_host_and_container(name)
    if container is not None:
        return not around or is_host_name_resolvable(around)
    return HostsStore().host(name) is not None or hosts.can_find_host_name(name)


def nearest_known_name(name: str) -> str | None:
    """Return the known name of a host that is the most like `name`; None if none is similar."""
    import difflib

    return next(iter(difflib.get_close_matches(name, known_host_names(), n=1, cutoff=0.75)), None)


def add_name_suggestion(error: HostUnreachable, name: str) -> None:
    """Add "did you mean …" with the most similar known name to `error`, which says that the host
    `name` was not reached. Do nothing if `name` is a known name."""
    if name in known_host_names():
        return
    other = nearest_known_name(name)
    if other is not None:
        error.next_step = f"did you mean {other}? {error.next_step or ''}"


def check_resumed_on_same_host(series_name: str, ran_on: str, host: str) -> None:
    """Raise InputError if an experiment or a sweep that ran on the host `ran_on` is resumed on
    another one. `series_name` is the name of the experiment or sweep in the message, and `host` is
    where it is resumed."""
    if ran_on != host:
        raise InputError(
            f"{series_name} was run on {ran_on} and can be resumed only there",
            host=host,
            next_step=f"resume {series_name} with `workbench --host {ran_on} …`",
        )
