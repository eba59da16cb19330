"""A connection that is restored after a loss. Its users wait some seconds during an outage, then
get an error."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from workbench.hosts.base import (
    AuthFailed,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    LinkEvent,
)
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import HostError

C = TypeVar("C")

PATIENCE_S = 5.0  # how long a call waits for a lost link before it fails
FIRST_RETRY_S = 0.25
LONGEST_RETRY_S = 5.0  # short enough for a user who watches the screen


class Link(Generic[C]):
    """Keeps one connection to a host open. The function `dial` opens the connection. A user of the
    connection that notices its loss calls `report_lost`, and the link opens a new connection."""

    def __init__(
        self,
        host: str,
        dial: Callable[[], Awaitable[C]],
        *,
        longest_retry_s: float = LONGEST_RETRY_S,
    ) -> None:
        self.host = host
        self._dial = dial
        self._longest_retry_s = longest_retry_s
        self._connection: C | None = None
        self._dialing = asyncio.Lock()
        self._lost_at: float | None = None
        self._reason = ""
        self._refused: HostError | None = None  # the login failed: only the user can help
        self._back = asyncio.Event()
        self._retrying: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[LinkEvent], None]] = []
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def current(self) -> C | None:
        """The open connection; None while it is lost, and before it was opened."""
        return self._connection

    @property
    def outage_s(self) -> float | None:
        """Seconds since the connection was lost. None if it is not lost or was never opened."""
        if self._lost_at is None:
            return None
        return time.monotonic() - self._lost_at

    def on_link(self, listener: Callable[[LinkEvent], None]) -> Callable[[], None]:
        """Register `listener`, which is called each time the connection is lost or restored. Return
        a function that unregisters it.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def connect(self) -> C:
        """Return the connection; open it if there is none, even if earlier attempts were refused.
        Raises the errors of `dial`, the function that opens it."""
        self._refused = None
        async with self._dialing:
            if self._connection is None:
                connection = await self._dial()
                self._closed = False
                self._set_connection(connection)
            assert self._connection is not None
            return self._connection

    async def wait_for_connection(self) -> C:
        """Return the connection. Open it if it never was open. During an outage, wait up to
        PATIENCE_S seconds for it, then raise HostUnreachable, or the error with which the host
        refused a new connection."""
        if self._connection is not None:
            return self._connection
        if self._lost_at is None:
            return await self.connect()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._back.wait(), PATIENCE_S)
        if self._connection is not None:
            return self._connection
        if self._refused is not None:
            raise self._refused
        raise self.unreachable_error()

    def unreachable_error(self) -> HostUnreachable:
        """Return the error for a command without a connection: since when, and why it was lost."""
        since = f" for {self.outage_s:.0f} s" if self.outage_s is not None else ""
        reason = f" ({self._reason})" if self._reason else ""
        step = "servers on the host continue to run; Workbench keeps trying to reconnect"
        return HostUnreachable(f"no connection{since}{reason}", host=self.host, next_step=step)

    def report_lost(self, connection: C, reason: str) -> None:
        """Note that `connection` has ended for `reason`, tell the listeners, and begin to
        reconnect. Do nothing if it is not the current connection."""
        if connection is not self._connection:
            return
        self._connection = None
        if self._closed:
            return
        self._lost_at, self._reason = time.monotonic(), reason
        self._back.clear()
        self._notify_listeners(LinkEvent(self.host, False, reason))
        self._retrying = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        pause, retries = FIRST_RETRY_S, 0
        while not self.connected:
            await asyncio.sleep(pause)
            pause, retries = min(pause * 2, self._longest_retry_s), retries + 1
            try:
                await self.connect()
            except (
                HostKeyChanged,
                HostKeyUnknown,
                AuthFailed,
            ) as error:  # more attempts could lock the account
                self._refused = error
                self._back.set()
                self._notify_listeners(
                    LinkEvent(self.host, False, error.message, retries=retries, refused=error)
                )
                return
            except HostError as error:
                self._reason = error.message
                self._notify_listeners(LinkEvent(self.host, False, error.message, retries=retries))

    def _set_connection(self, connection: C) -> None:
        outage = self.outage_s
        self._connection, self._lost_at, self._reason = connection, None, ""
        self._back.set()
        if outage is not None:
            self._notify_listeners(LinkEvent(self.host, True, outage_s=outage))

    def _notify_listeners(self, event: LinkEvent) -> None:
        for listener in tuple(self._listeners):
            listener(event)

    async def stop_and_detach_connection(self) -> C | None:
        """Stop restoring the connection, and return it for the caller to close; None if there is
        none."""
        self._closed = True
        connection, self._connection, self._lost_at = self._connection, None, None
        await cancel_all([self._retrying])
        return connection
