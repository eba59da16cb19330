"""The hosts and clusters that the user has described in hosts.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class HostEntry:
    """A host in hosts.toml. `name` is the name of the host's table in the file, which commands use
    for the host."""

    name: str
    # alias of the ssh configuration or USER@HOST; "local": this machine; None: as `name`
    ssh: str | None = None
    container: str | None = None  # on that machine: KIND:NAME, such as "pct:101" or "podman:vllm"
    label: str = ""  # for display
    # engine: the program that starts it, quoted as in a shell
    engines: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)  # for servers that are started there
    run_as: str | None = None  # default of `start --as`, such as "slurm"
    # its options, such as {"partition": "gpu"}
    run_options: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()  # directories with model files
    sudo: bool | None = None  # whether Workbench may use sudo there; None: if it is possible


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A host of a cluster. `address` and `interface` belong to the network that connects the nodes;
    None if Workbench shall detect them."""

    host: str
    address: str | None = None
    interface: str | None = None
    rdma: tuple[str, ...] = ()  # RDMA devices, such as "rocep1s0f0"


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """A cluster of hosts.toml: hosts that serve one model together. The first node is the head."""

    name: str
    nodes: tuple[ClusterNode, ...] = ()
    label: str = ""
    # memory that a server leaves free on each node with unified memory
    reserve_gib: float | None = None


@dataclass(frozen=True, slots=True)
class HostsFile:
    """The content of hosts.toml."""

    hosts: Mapping[str, HostEntry] = field(default_factory=dict)
    clusters: Mapping[str, ClusterEntry] = field(default_factory=dict)
