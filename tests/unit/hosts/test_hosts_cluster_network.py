"""The network between the nodes of a cluster, read from what two DGX Sparks would print and from
this machine."""

from __future__ import annotations

import asyncio
import json

import pytest

from workbench.hosts import cluster_network, interfaces
from workbench.hosts.local import LocalHost
from workbench.model.host_entry import ClusterNode
from workbench.model.node_network import NodeNetwork


def spark(number: int) -> NodeNetwork:
    """Return the network of one of two Sparks: Ethernet for people, one cable between the
    ConnectX-7 ports."""

    def entry(name: str, *addresses: str, up: bool = True, mtu: int = 1500) -> dict[str, object]:
        info = [
            {"local": a.split("/")[0], "prefixlen": int(a.split("/")[1]), "scope": "global"}
            for a in addresses
        ]
        return {
            "ifname": name,
            "operstate": "UP" if up else "DOWN",
            "mtu": mtu,
            "flags": [],
            "addr_info": info,
        }

    listed = [
        {**entry("lo", "127.0.0.1/8"), "flags": ["LOWER_UP"]},
        entry("enP7s7", f"192.168.1.1{number}/24"),
        entry("enp1s0f0np0", up=False, mtu=9000),
        entry("enp1s0f1np1", f"10.0.0.{number}/24", mtu=9000),
        entry("enP2p1s0f1np1", f"10.0.1.{number}/24", mtu=9000),
        entry("docker0", "172.17.0.1/16"),
    ]
    text = """net lo unknown 65536 -
net enP7s7 up 1500 10000
net enp1s0f0np0 down 9000 -1
net enp1s0f1np1 up 9000 200000
net enP2p1s0f1np1 up 9000 200000
net docker0 up 1500 -
rdma rocep1s0f0 enp1s0f0np0 DOWN Ethernet 40 Gb/sec (4X QDR)
rdma rocep1s0f1 enp1s0f1np1 ACTIVE Ethernet 200 Gb/sec (4X HDR)
rdma roceP2p1s0f1 enP2p1s0f1np1 ACTIVE Ethernet 200 Gb/sec (4X HDR)
"""
    return interfaces.parse_node_network(text + json.dumps(listed))


NODES = (ClusterNode("spark-01"), ClusterNode("spark-02"))


def test_the_fastest_network_in_common_is_chosen_with_both_rdma_devices_of_the_port() -> None:
    head, worker = cluster_network.choose_node_addresses(NODES, [spark(1), spark(2)])
    assert (head.address, head.interface) == ("10.0.0.1", "enp1s0f1np1")
    assert (worker.address, worker.interface) == ("10.0.0.2", "enp1s0f1np1")
    assert head.rdma == ("rocep1s0f1", "roceP2p1s0f1")
    assert head.origins["interface"] == "the fastest network that all nodes are in, 10.0.0.0/24"
    assert head.origins["address"] == "interface enp1s0f1np1"


def test_a_bridge_without_a_real_port_connects_no_nodes_and_one_with_a_port_does() -> None:
    def node(kind: str) -> NodeNetwork:
        address = {"local": "10.1.0.1", "prefixlen": 24, "scope": "global"}
        other = {"local": "192.168.1.1", "prefixlen": 24, "scope": "global"}
        listed = [
            {"ifname": "incusbr0", "operstate": "UP", "flags": [], "addr_info": [address]},
            {"ifname": "eth0", "operstate": "UP", "flags": [], "addr_info": [other]},
        ]
        lines = f"net incusbr0 up 1500 10000 {kind}\nnet eth0 up 1500 - -\n"
        return interfaces.parse_node_network(lines + json.dumps(listed))

    for kind, chosen in (("inside", "eth0"), ("-", "incusbr0")):
        head, _ = cluster_network.choose_node_addresses(NODES, [node(kind), node(kind)])
        assert head.interface == chosen


def test_what_hosts_toml_names_is_used_as_written() -> None:
    written = (
        ClusterNode("spark-01", "192.168.1.11", rdma=("mlx5_0",)),
        ClusterNode("spark-02", interface="enP7s7"),
    )
    head, worker = cluster_network.choose_node_addresses(written, [spark(1), spark(2)])
    assert (head.address, head.interface, head.rdma) == ("192.168.1.11", "enP7s7", ("mlx5_0",))
    assert head.origins == {
        "address": "hosts.toml",
        "interface": "it has the address 192.168.1.11",
        "rdma": "hosts.toml",
    }
    assert (worker.address, worker.interface) == ("192.168.1.12", "enP7s7")


def test_a_node_that_cannot_be_asked_says_so() -> None:
    silent = NodeNetwork(problem="no connection")
    head, worker = cluster_network.choose_node_addresses(NODES, [spark(1), silent])
    assert head.problem and worker.problem == "no connection" and worker.address is None
    written = cluster_network.choose_node_addresses(
        (NODES[0], ClusterNode("spark-02", "10.0.0.2")), [spark(1), silent]
    )
    assert written[1].problem is None and written[1].address == "10.0.0.2"


def test_the_interfaces_of_this_machine_are_read() -> None:
    async def read() -> NodeNetwork:
        return await interfaces.read_node_network(LocalHost())

    network = asyncio.run(read())
    loopback = network.interface_with_address("127.0.0.1")
    assert network.problem is not None or (loopback is not None and loopback.up)


def test_a_host_without_ip_has_a_problem_and_nothing_else() -> None:
    network = interfaces.parse_node_network("net eth0 up 1500 1000\n", "sh: 1: ip: not found")
    assert network.problem == (
        "`ip -j addr` failed: sh: 1: ip: not found (iproute2 4.14 or newer is needed)"
    )
    assert network.interfaces == ()


def test_a_host_with_many_interfaces_is_read_whole() -> None:
    """Each container has one: the JSON of `ip` is long then."""
    listed = [
        {
            "ifname": f"veth{n}",
            "mtu": 1500,
            "flags": ["UP", "LOWER_UP"],
            "addr_info": [{"local": "10.0.0.1", "prefixlen": 8}],
        }
        for n in range(500)
    ]
    found = interfaces.parse_node_network("net veth7 up 1500 10000\n" + json.dumps(listed))
    assert found.problem is None and len(found.interfaces) == 500
    assert found.interfaces[7].speed_mbit_s == 10000


@pytest.mark.parametrize(
    "text",
    ['[{"ifname": "a", "addr_info": [1]}]', "[" * 100_000, '[{"ifname": 1, "flags": 5}]', "[[]]"],
)
def test_what_is_no_answer_of_ip_is_a_problem(text: str) -> None:
    assert "`ip -j addr` failed" in (interfaces.parse_node_network(text).problem or "")
