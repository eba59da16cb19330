"""The settings of the session's host in config.toml and hosts.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.engines import registry
from workbench.hosts.base import is_cluster
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.model.host_entry import HostEntry
    from workbench.model.node_network import NodeAddress
    from workbench.session.state_holder import StateHolder
    from workbench.store.config import ConfigStore


class HostSettings:
    """What config.toml and hosts.toml say about the session's host: its entry, and the programs
    that start engines on it."""

    def __init__(self, core: StateHolder, config: ConfigStore) -> None:
        self._core, self._config, self._hosts = core, config, HostsStore()

    @property
    def host_entry(self) -> HostEntry | None:
        """The entry in hosts.toml of the session's host, or of a cluster's first node; None if
        there is no entry. Raises InputError if the entry cannot be used."""
        host = self._core.host
        return self._hosts.host(host.nodes[0].name if is_cluster(host) else host.name)

    def add_entries_to_nodes(self, nodes: Sequence[NodeAddress]) -> tuple[NodeAddress, ...]:
        """Return the nodes `nodes` of a cluster, each with the entry of its host in hosts.toml, or
        None for a host without an entry. Raises InputError if an entry cannot be used."""
        return tuple(replace(place, entry=self._hosts.host(place.host)) for place in nodes)

    def engine_program_and_source_file(self, engine: str) -> tuple[str, str] | None:
        """Return (program, file): the program that starts an engine on the host, quoted as in a
        shell, and the name of the file that sets the program. A choice made on the screen, stored
        in config.toml, has precedence over hosts.toml. None if neither file sets a program."""
        if chosen := self._config.executable_of_engine(self._core.host.name, engine):
            return chosen, "config.toml"
        entry = self.host_entry
        if entry is None or not entry.engines.get(engine):
            return None
        return entry.engines[engine], "hosts.toml"

    def chosen_programs_by_engine(self) -> Mapping[str, str]:
        """Return the programs that the user has chosen for this host, by engine."""
        found = {}
        for engine in registry.engine_names():
            program = self.engine_program_and_source_file(engine)
            if program is not None:
                found[engine] = program[0]
        return found
