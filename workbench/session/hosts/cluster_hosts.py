"""Clusters that hosts.toml defines, each opened as one host."""

from __future__ import annotations

from collections.abc import Callable

from workbench.hosts.base import Host
from workbench.hosts.cluster import ClusterHost
from workbench.store import paths
from workbench.store.hosts_file import HostsStore


def open_cluster(name: str, simulate: str | None, open_host: Callable[[str], Host]) -> ClusterHost:
    """Return the cluster of hosts.toml called `name` as one host. `open_host` opens a node by its
    name. With `simulate`, each node gets the simulated GPUs of that profile and a state directory
    of its own. Raises InputError if hosts.toml has no such cluster."""
    from workbench.sim.simulated_host import SimulatedHost

    entry = HostsStore().cluster(name)
    hosts = [open_host(node.host) for node in entry.nodes]
    if simulate is not None:
        directory = paths.state_dir() / "sim" / f"cluster-{name}"
        homes = [str(directory / node.host.replace("/", "_")) for node in entry.nodes]
        hosts = [
            SimulatedHost(host, simulate, home) for host, home in zip(hosts, homes, strict=True)
        ]
    for host in hosts:
        if isinstance(host, SimulatedHost):
            host.of_cluster = True
    return ClusterHost(entry, hosts)
