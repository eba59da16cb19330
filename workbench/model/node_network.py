"""The network interfaces of a host, and the addresses at which the nodes of a cluster reach each
other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.model.host_entry import HostEntry


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of a host. `addresses` are written with their prefix length,
    "10.0.0.1/24". A value that the kernel does not report is None."""

    name: str
    addresses: tuple[str, ...] = ()
    up: bool = False
    mtu: int | None = None
    speed_mbit_s: int | None = None
    inside: bool = False  # a bridge that connects nothing but containers and machines of this host


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """A port of an RDMA device. `interface` is the network interface of the same port."""

    name: str
    interface: str | None = None
    active: bool = False
    rate: str = ""  # as the kernel writes it, "200 Gb/sec (4X HDR)"
    link_layer: str = ""  # "Ethernet" (RoCE) or "InfiniBand"


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The network interfaces and RDMA devices that a host reports. `problem` is the reason why it
    reports none."""

    interfaces: tuple[Interface, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    problem: str | None = None

    def interface(self, name: str | None) -> Interface | None:
        return next((i for i in self.interfaces if i.name == name), None)

    def interface_with_address(self, address: str) -> Interface | None:
        """Return the network interface of this host that has the address `address`. None if there
        is none."""
        return next(
            (
                i
                for i in self.interfaces
                if any(a.partition("/")[0] == address for a in i.addresses)
            ),
            None,
        )


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node of a cluster, with the address, interface and RDMA devices at which the other nodes
    reach it. `origins` says by field name where each value comes from, such as "hosts.toml"."""

    host: str
    address: str | None = None
    interface: str | None = None
    rdma: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None  # why the address is not known
    entry: HostEntry | None = None  # what hosts.toml says about the host

    @property
    def address_or_name(self) -> str:
        """The address at which the other nodes reach this one; its name if the address is not
        known."""
        return self.address or self.host
