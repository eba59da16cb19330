"""The network interfaces and RDMA devices of a host, read from `ip` and from /sys."""

from __future__ import annotations

import json
from typing import Any

from workbench.hosts import shell_scripts
from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.model.errors import HostError
from workbench.model.node_network import Interface, NodeNetwork, RdmaDevice
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import clean_text

_LOOK = read_script(__file__, "list_interfaces.sh")


async def read_node_network(host: Host) -> NodeNetwork:
    """Return the interfaces and the RDMA devices of the host. If the host is out of reach or its
    `ip` prints no JSON, only `problem` is set, to the reason."""
    try:
        done = await host.run(shell_scripts.shell_argv(_LOOK))
    except HostError as error:
        return NodeNetwork(problem=error.message)
    return parse_node_network(done.out, done.err)


def parse_node_network(text: str, errors: str = "") -> NodeNetwork:
    """Return the interfaces and the RDMA devices in `text`, the stdout of the script `_LOOK`. If it
    has no JSON, only `problem` is set, with the last line of its stderr, `errors`."""
    lines = clean_text(text, len(text), lines=True).splitlines()
    rows = [line.split() for line in lines]
    states = {row[1]: row[2:] for row in rows if row[:1] == ["net"] and len(row) in (5, 6)}
    try:
        listed: Any = json.loads(
            "".join(line for line in lines if not line.startswith(("net ", "rdma ")))
        )
        interfaces = tuple(
            _parse_interface(entry, states.get(str(entry["ifname"]), ["-"] * 4)) for entry in listed
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        last = clean_text(errors).strip().splitlines()[-1:] or ["it printed no JSON"]
        return NodeNetwork(
            problem=f"`ip -j addr` failed: {last[0]} (iproute2 4.14 or newer is needed)"
        )
    rdma = tuple(_parse_rdma_device(row) for row in rows if row[:1] == ["rdma"] and len(row) >= 5)
    return NodeNetwork(interfaces, rdma)


def _parse_interface(entry: dict[str, Any], state: list[str]) -> Interface:
    addresses = (
        a for a in entry.get("addr_info", ()) if a.get("scope") != "link" and a.get("local")
    )
    speed = state[2]
    return Interface(
        str(entry["ifname"]),
        tuple(f"{a['local']}/{a['prefixlen']}" for a in addresses),
        up=str(entry.get("operstate", "")).upper() == "UP" or "LOWER_UP" in entry.get("flags", ()),
        inside=state[3:] == ["inside"],
        mtu=entry["mtu"] if isinstance(entry.get("mtu"), int) else None,
        speed_mbit_s=parse_whole_number(speed) or None,  # -1: none
    )


def _parse_rdma_device(words: list[str]) -> RdmaDevice:
    _, name, interface, state, layer, *rate = words
    shown = None if interface == "-" else interface
    return RdmaDevice(name, shown, state == "ACTIVE", " ".join(rate).strip("-"), layer.strip("-"))
