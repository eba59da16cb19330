"""The settings of the session's host in config.toml and hosts.toml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.hosts.cluster import ClusterHost
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.model.host_entry import HostEntry
    from workbench.model.node_network import NodePlace
    from workbench.session.state_holder import StateHolder
    from workbench.store.config import ConfigStore


class HostSettings:
    """The entry of the session's host in hosts.toml, and the programs that start engines there."""

    def __init__(self, core: StateHolder, config: ConfigStore) -> None:
        self._core, self._config, self._hosts = core, config, HostsStore()

    @property
    def entry(self) -> HostEntry | None:
        """The host's entry in hosts.toml; None if there is none. Of a cluster, it is that of its head. Raises
        InputError if the entry cannot be used."""
        host = self._core.host
        return self._hosts.host(host.nodes[0].name if isinstance(host, ClusterHost) else host.name)

    def placed(self, places: Sequence[NodePlace]) -> tuple[NodePlace, ...]:
        """Return the nodes of a cluster with their own entries in hosts.toml. Raises InputError if one cannot be
        used."""
        return tuple(replace(place, entry=self._hosts.host(place.host)) for place in places)

    def program(self, engine: str) -> tuple[str, str] | None:
        """Return the program that starts an engine on the host, quoted as in a shell, and the file that names it; None
        if neither file does. The choice that the screen keeps in config.toml counts before hosts.toml."""
        if chosen := self._config.executable(self._core.host.name, engine):
            return chosen, "config.toml"
        entry = self.entry
        written = entry.engines.get(engine) if entry is not None else None
        return (written, "hosts.toml") if written else None
