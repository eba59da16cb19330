"""The names of hosts that the user can pick, and the open sessions of hosts other than the
session's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from workbench.session.hosts.names import KnownHost, known_hosts
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.session.session import Session


class OtherHosts:
    """Names the hosts that the user can pick, and opens the sessions of other hosts when they are
    first needed. `open_session` makes a session from a host's name."""

    def __init__(self, own: Session, open_session: Callable[[str], Session]) -> None:
        self._own, self._open_session = own, open_session
        self._others: dict[str, Session] = {}

    async def get_session(self, name: str | None) -> Session:
        """Return the connected session of the host called `name`; the session is opened if there is
        none yet. None and this session's own host give this session. Raises HostError if the host
        cannot be connected."""
        own = self._own
        if name is None or name == own.host.name:
            return own
        if name not in self._others:
            other = self._open_session(name)
            other.link.ask = own.link.ask
            lock = own.measurement_lock
            other.measurement_lock.if_held, other.measurement_lock.tell = lock.if_held, lock.tell
            self._others[name] = other
            try:
                await other.link.connect()
            except BaseException:
                del self._others[name]
                await other.close()
                raise
        return self._others[name]

    def known_hosts(self) -> Sequence[KnownHost]:
        """Return the hosts that the user can pick, each with the source of its name."""
        return known_hosts()

    def add_host_entry(
        self, name: str, ssh: str = "", container: str = "", label: str = ""
    ) -> None:
        """Write a host to hosts.toml. Raises InputError if a value is not valid, or if the file has
        a host of this name."""
        from workbench.model.host_entry import HostEntry

        HostsStore().add(HostEntry(name, ssh or None, container or None, label))

    @property
    def all_sessions(self) -> Sequence[Session]:
        """This session, then the open sessions of other hosts."""
        return (self._own, *self._others.values())

    async def close(self) -> None:
        """Close the sessions of the other hosts."""
        others, self._others = self._others, {}
        for other in others.values():
            await other.close()
