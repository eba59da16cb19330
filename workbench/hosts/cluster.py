"""A cluster of hosts as one host: its commands, files and ports are those of its first node, the
head."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from workbench.hosts import interfaces
from workbench.hosts.base import (
    LOOPBACK,
    AuthFailed,
    BaseHost,
    Completed,
    ContainerHostProcess,
    Forward,
    Host,
    HostFacts,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    LinkEvent,
    SshAddress,
    Stream,
)
from workbench.hosts.cluster_network import choose_node_addresses
from workbench.hosts.login_question import Ask
from workbench.model.errors import HostError
from workbench.model.host_entry import ClusterEntry, ClusterNode
from workbench.model.lazy_dataclass import dataclass
from workbench.model.node_network import NodeAddress, NodeNetwork

PREFIX = "cluster:"
# of presets for several nodes: a cluster gives them their values
VARIABLES = ("head_ip", "worker_ip", "interface", "rdma_devices")


@dataclass(frozen=True, slots=True)
class NodeHost:
    """A node of a cluster and its host. `name` is how hosts.toml names the host."""

    entry: ClusterNode
    host: Host

    @property
    def name(self) -> str:
        return self.entry.host


class ClusterHost(BaseHost):
    """The hosts of a cluster as one host. `nodes` contains all of them, the head first. This host
    is reachable if the head is, so a node that cannot be reached does not prevent the use of the
    others."""

    kind = "cluster"

    def __init__(self, entry: ClusterEntry, hosts: Sequence[Host]) -> None:
        self.entry = entry
        self.name = f"{PREFIX}{entry.name}"
        self.nodes = tuple(
            NodeHost(node, host) for node, host in zip(entry.nodes, hosts, strict=True)
        )
        self.head = hosts[0]
        self.is_local = self.head.is_local
        self.simulated = self.head.simulated
        self.may_sudo = self.head.may_sudo
        self.preset_variables = self.head.preset_variables
        # what hosts.toml names; all once connected
        self.places = choose_node_addresses(entry.nodes, [NodeNetwork()] * len(hosts))
        self.cluster_variables = _preset_variables_of_nodes(self.places)
        # node: why it could not be reached when the cluster was opened
        self.unreached: Mapping[str, str] = {}
        self._refused_by: Host | None = None

    @property
    def login_prompt(self) -> Ask | None:
        return self.head.login_prompt

    @login_prompt.setter
    def login_prompt(self, ask: Ask | None) -> None:
        for node in self.nodes:
            node.host.login_prompt = ask

    @property
    def connected(self) -> bool:
        return self.head.connected

    def on_link(self, listener: Callable[[LinkEvent], None]) -> Callable[[], None]:
        return self.head.on_link(listener)

    async def connect(self) -> None:
        """Connect to all nodes at once. Raises the error of the head, or an error of another node
        that the user must solve, such as an unknown host key. Another node that is out of reach is
        ignored."""
        hosts = [node.host for node in self.nodes]
        outcomes = await asyncio.gather(*(host.connect() for host in hosts), return_exceptions=True)
        for host, outcome in zip(hosts, outcomes, strict=True):
            if isinstance(outcome, (AuthFailed, HostKeyChanged, HostKeyUnknown)):
                self._refused_by = host
                raise outcome
            if outcome is not None and (
                host is self.head or not isinstance(outcome, HostUnreachable)
            ):
                raise outcome
        await self.read_network()
        self.unreached = {
            node.name: outcome.message
            for node, outcome in zip(self.nodes, outcomes, strict=True)
            if isinstance(outcome, HostUnreachable)
        }

    def check_nodes_reachable(self) -> None:
        """Raise HostUnreachable if a node could not be reached when the cluster was opened. The
        error names the first such node."""
        for name, why in self.unreached.items():
            raise HostUnreachable(
                f"node {name} of the cluster {self.entry.name} cannot be reached: {why}",
                next_step=f"`workbench hosts check {name}` looks for the cause; "
                "then open the cluster again",
            )

    async def read_network(self) -> None:
        """Find the address, interface and RDMA devices of each node, and store them in `places`. If
        a node does not answer, its `NodeAddress.problem` there has the reason."""
        networks = await asyncio.gather(
            *(interfaces.read_node_network(node.host) for node in self.nodes)
        )
        self.places = choose_node_addresses(self.entry.nodes, networks)
        self.cluster_variables = _preset_variables_of_nodes(self.places)

    def accept_host_key(self, fingerprint: str) -> None:
        (self._refused_by or self.head).accept_host_key(fingerprint)

    async def close(self) -> None:
        for node in self.nodes:
            with suppress(HostError):
                await node.host.close()

    async def state_dir(self) -> str:
        return await self.head.state_dir()

    async def _run(
        self,
        argv: Sequence[str],
        input: bytes,
        timeout_s: float,
        env: Mapping[str, str] | None,
    ) -> Completed:
        return await self.head.run(argv, input=input, timeout_s=timeout_s, env=env)

    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Stream:
        return await self.head.stream(argv, input=input, env=env)

    async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await self.head.read_file(path, offset=offset, limit=limit)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        await self.head.write_file(path, data, mode=mode)

    async def forward(self, port: int, address: str = LOOPBACK) -> Forward:
        return await self.head.forward(port, address)

    async def facts(self) -> HostFacts:
        return await self.head.facts()

    async def ssh_address(self) -> SshAddress | None:
        return await self.head.ssh_address()

    async def read_container_host_processes(
        self, pids: Collection[int]
    ) -> Mapping[int, ContainerHostProcess]:
        return await self.head.read_container_host_processes(pids)


def _preset_variables_of_nodes(nodes: Sequence[NodeAddress]) -> Mapping[str, str]:
    """Return the values of VARIABLES by name. A variable without a value is left out."""
    head, *others = nodes
    found = {
        "head_ip": head.address,
        "interface": head.interface,
        "rdma_devices": ",".join(head.rdma),
    }
    found |= {"worker_ip": others[0].address} if others else {}
    return {name: value for name, value in found.items() if value}
