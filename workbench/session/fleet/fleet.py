"""Several hosts at once, each with its GPUs, its servers and their token rates, and its altered
settings.

Each host has tasks of its own with time limits (member.py), so that a slow or unreachable
host does not delay the readings of the other hosts. The state of all hosts is made once a second,
however many readings have arrived."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from workbench.hosts.task_cancellation import cancel_all
from workbench.model.alerts import alert_limits_by_rule
from workbench.model.errors import InputError
from workbench.session.fleet.member import LOOK_INTERVAL_S, FleetMember
from workbench.session.fleet.state import FleetState
from workbench.session.hosts.names import default_fleet_hosts, open_host_by_name
from workbench.store.config import ConfigStore
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.hosts.login_question import Ask

MAX_HOSTS = 16
UPDATE_INTERVAL_S = 1.0

FleetListener = Callable[[FleetState], None]


def fleet_host_names_and_labels(
    named: Sequence[str] = (), cluster: str | None = None
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return (names, labels): the names of a fleet's hosts, and the labels of hosts.toml by host
    name. The hosts are those in `named` and the nodes of `cluster`. If these are none, they are all
    hosts of hosts.toml, or if that file has none, every known host that is not simulated. Raises
    InputError for an unknown cluster."""
    written = HostsStore()
    labels = {entry.name: entry.label for entry in written.content.hosts.values() if entry.label}
    names = list(named)
    if cluster is not None:
        names += [node.host for node in written.cluster(cluster).nodes]
    return names or [host.name for host in default_fleet_hosts()], labels


class Fleet:
    """Reads several hosts from the call of `open` until `close`. `state` is their newest state;
    listeners are called with the state once a second. `labels` has, by host name, a text to
    display."""

    def __init__(
        self,
        names: Sequence[str],
        labels: Mapping[str, str] = MappingProxyType({}),
        open_host: Callable[[str], Host] = open_host_by_name,
    ) -> None:
        names = tuple(dict.fromkeys(names))
        if not 1 <= len(names) <= MAX_HOSTS:
            raise InputError(
                f"a fleet has 1 to {MAX_HOSTS} hosts, got {len(names)}",
                next_step="name the hosts, as in `workbench fleet gpu-box-1 gpu-box-2`",
            )
        apart_s = LOOK_INTERVAL_S / len(names)
        limits = alert_limits_by_rule(ConfigStore().config.alerts.limits)
        self._members: dict[str, FleetMember] = {}
        for number, name in enumerate(names):
            self._members[name] = FleetMember(
                name,
                labels.get(name, ""),
                open_host,
                first_look_s=number * apart_s,
                limits=limits,
            )
        self._listeners: list[FleetListener] = []
        self._ticking: asyncio.Task[None] | None = None
        self._made = asyncio.Event()  # a new state
        self.state = self._make_current_state()

    def subscribe(self, listener: FleetListener) -> Callable[[], None]:
        """Call `listener(state)` once a second. Return a function that unsubscribes the
        listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def open(self) -> None:
        """Begin to read all hosts, in the background."""
        for member in self._members.values():
            member.start_connecting()
        self._ticking = asyncio.create_task(self._update_every_second())

    async def close(self) -> None:
        """Disconnect from all hosts. Their servers and settings stay as they are."""
        await cancel_all([self._ticking])
        await asyncio.gather(*(member.close() for member in self._members.values()))

    def retry_login(self, name: str, ask: Ask | None = None) -> None:
        """Connect again to a host whose login was refused. `ask` asks the user for secrets."""
        self._members[name].start_connecting(ask)

    async def read_once(self, limit_s: float) -> FleetState:
        """Return the state when every host is read or has failed, at the latest after `limit_s`
        seconds."""
        for member in self._members.values():
            member.request_host_scan()
        deadline = time.monotonic() + limit_s
        while not all(member.has_first_reading_ended for member in self._members.values()):
            self._made.clear()
            try:
                await asyncio.wait_for(self._made.wait(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                break
        self.state = self._make_current_state()
        return self.state

    async def _update_every_second(self) -> None:
        """Once a second, start the readings that are due on each host, and publish a new state."""
        due = time.monotonic()
        while True:
            for member in self._members.values():
                member.start_due_readings()
                member.append_graph_values()
            self.state = self._make_current_state()
            self._made.set()
            for listener in tuple(self._listeners):
                listener(self.state)
            due = max(due + UPDATE_INTERVAL_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    def _make_current_state(self) -> FleetState:
        return FleetState(tuple(member.make_fleet_host() for member in self._members.values()))
