"""The link to the session's host: connecting, losing and regaining it, and asking the user for
secrets at login."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from workbench.hosts.base import Host, HostKeyUnknown, HostUnreachable
from workbench.hosts.login_question import Ask
from workbench.model.errors import HostError
from workbench.model.findings import Level
from workbench.session.hosts.names import add_name_suggestion

if TYPE_CHECKING:
    from workbench.hosts.base import LinkEvent
    from workbench.session.state_holder import StateHolder


class HostLink:
    """Connects the host and keeps `state.host` up to date. `on_return` runs in the background when
    a lost link is restored."""

    def __init__(self, core: StateHolder) -> None:
        self._core = core
        self._watched_host: Host | None = None  # the host whose link events arrive here
        # asks the user for a passphrase, password or code; the front end sets it
        self.ask: Ask | None = None
        self.on_return: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def connect(self) -> None:
        """Connect to the host and show the outcome in the session's state. Raises HostUnreachable
        if that fails."""
        host = self._core.host
        if self._watched_host is not host:
            self._watched_host = host
            host.on_link(self._show_link_state)
        host.login_prompt = self.ask
        try:
            await host.connect()
        except HostError as error:
            if isinstance(error, HostUnreachable) and not isinstance(error, HostKeyUnknown):
                add_name_suggestion(error, host.name)
            self._show_failure(error)
            raise
        self._core.update_host(
            link="connected", message=None, unknown_key=None, lost_since_unix_s=None, retries=0
        )

    def _show_failure(self, error: HostError) -> None:
        unknown = error.fingerprint if isinstance(error, HostKeyUnknown) else None
        self._core.update_host(link="failed", message=error.message, unknown_key=unknown)

    def _show_link_state(self, event: LinkEvent) -> None:
        if event.connected:
            self._core.update_host(
                link="connected", message=None, lost_since_unix_s=None, retries=0
            )
            self._core.notify(
                Level.INFO, f"the link to {event.host} is back after {event.outage_s:.0f} s"
            )
            if self.on_return is not None:
                self._core.spawn(self.on_return())
        elif event.refused is not None:
            self._show_failure(event.refused)
        else:
            since = self._core.state.host.lost_since_unix_s if event.retries else time.time()
            reason = event.reason or "the link was lost"
            self._core.update_host(
                link="lost", message=reason, lost_since_unix_s=since, retries=event.retries
            )

    async def measure_and_show_latency(self) -> None:
        """Measure the latency of the link to the host and show it in the session's state. Do
        nothing on this machine."""
        if not self._core.host.is_local:
            self._core.update_host(latency_ms=(await self._core.host.facts()).latency_ms)

    def trust_host_key(self) -> None:
        """Accept the host key whose fingerprint is in `state.host`; the next `connect` uses it.
        Raises HostError if there is no such key."""
        fingerprint = self._core.state.host.unknown_key
        if fingerprint is None:
            raise HostError("there is no unknown host key to accept", host=self._core.host.name)
        self._core.host.accept_host_key(fingerprint)
        self._core.update_host(link="connecting", unknown_key=None, message=None)
