"""The choice of the network over which the nodes of a cluster reach each other. All functions are
pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_interface

from workbench.model.host_entry import ClusterNode
from workbench.model.node_network import Interface, NodeAddress, NodeNetwork

_WRITTEN = "hosts.toml"
_BRIDGES = ("docker", "virbr", "br-", "cni", "podman", "veth", "lxc")  # of containers
# enP2p1s0f1np1 is the second half of the port of enp1s0f1np1 on a DGX Spark
_PCI_DOMAIN = re.compile(r"P\d+(?=p\d)")


def choose_node_addresses(
    nodes: Sequence[ClusterNode], networks: Sequence[NodeNetwork]
) -> tuple[NodeAddress, ...]:
    """Return the address, interface and RDMA devices of each node. `networks` are those of `nodes`,
    in their order. Values in hosts.toml take precedence; the others are those of the fastest
    network that all nodes have in common. A node without an address has the reason in `problem`."""
    shared = _choose_common_network(nodes, networks)
    return tuple(
        _choose_node_address(node, network, shared)
        for node, network in zip(nodes, networks, strict=True)
    )


def _choose_node_address(
    node: ClusterNode, network: NodeNetwork, common_network: str | None
) -> NodeAddress:
    origins: dict[str, str] = {}
    address, name = node.address, node.interface
    if address:
        origins["address"] = _WRITTEN
    found = None
    if name:
        found = network.interface(name)
        origins["interface"] = _WRITTEN
    elif address:
        found = network.interface_with_address(address)
        if found is not None:
            origins["interface"] = f"it has the address {address}"
    elif common_network is not None:
        found = _find_interface_in_network(network, common_network)
        if found is not None:
            origins["interface"] = f"the fastest network that all nodes are in, {common_network}"
    if found is not None:
        name = found.name
        if address is None and found.addresses:
            inside = [a for a in found.addresses if str(ip_interface(a).network) == common_network]
            address = (inside or found.addresses)[0].partition("/")[0]
            origins["address"] = f"interface {name}"
    rdma = node.rdma
    if rdma:
        origins["rdma"] = _WRITTEN
    elif name and (rdma := _rdma_devices_of(name, network)):
        origins["rdma"] = f"active on interface {name}"
    problem = None if address else network.problem or "no network that all nodes are in was found"
    return NodeAddress(node.host, address, name, rdma, origins, problem)


def _rdma_devices_of(interface: str, network: NodeNetwork) -> tuple[str, ...]:
    """Return the names of the active RDMA devices on the same physical port as the network
    interface. A port of the ConnectX-7 in a DGX Spark has two devices, on two PCIe links with half
    of the bandwidth each, and both are returned."""
    bare = _PCI_DOMAIN.sub("", interface)
    return tuple(
        d.name
        for d in network.rdma
        if d.active and d.interface and _PCI_DOMAIN.sub("", d.interface) == bare
    )


def _interfaces_able_to_connect_nodes(network: NodeNetwork) -> list[Interface]:
    """Return the interfaces that can connect nodes: those that are up, have an address, and are no
    bridges of containers or machines, which have the same addresses on every host."""
    found = []
    for interface in network.interfaces:
        is_bridge = interface.inside or interface.name.startswith(_BRIDGES)
        if interface.up and interface.addresses and not is_bridge:
            found.append(interface)
    return found


def _find_interface_in_network(node_network: NodeNetwork, network: str) -> Interface | None:
    """Return the first interface that can connect nodes and has an address in `network`, such as
    "10.0.0.0/24"; None if there is none."""
    for interface in _interfaces_able_to_connect_nodes(node_network):
        if network in _networks_of_interface(interface):
            return interface
    return None


def _networks_of_interface(interface: Interface) -> list[str]:
    return [str(ip_interface(address).network) for address in interface.addresses]


def _choose_common_network(
    nodes: Sequence[ClusterNode], networks: Sequence[NodeNetwork]
) -> str | None:
    """Return the network, such as "10.0.0.0/24", in which every node has an interface; None if
    there is none. Of several, prefer one with RDMA, then the fastest, then the first by name.
    Loopback counts only if there is no other network."""
    options: dict[str, list[tuple[bool, int]]] = {}
    for network in networks:
        own: dict[str, tuple[bool, int]] = {}
        for interface in _interfaces_able_to_connect_nodes(network):
            rank = bool(_rdma_devices_of(interface.name, network)), interface.speed_mbit_s or 0
            for found in _networks_of_interface(interface):
                own[found] = max(rank, own.get(found, (False, 0)))
        for found, rank in own.items():
            options.setdefault(found, []).append(rank)
    common = {found: min(ranks) for found, ranks in options.items() if len(ranks) == len(nodes)}
    if not common:
        return None

    def sort_key_of_network(network: str) -> tuple[bool, bool, bool, int, str]:
        rdma, speed = common[network]
        found = ip_interface(network)
        return found.is_loopback, found.version != 4, not rdma, -speed, network

    return min(common, key=sort_key_of_network)
