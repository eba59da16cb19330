"""A poller that waits until sockets are readable or writable: epoll where it exists, otherwise
poll(2) under the same interface (macOS)."""

from __future__ import annotations

import select
from typing import Protocol

MAX_READY_EVENTS = (
    1023  # of one poll: `select.epoll` returns no more, and the others in the next poll
)
READABLE, WRITABLE, HUNG_UP = select.POLLIN, select.POLLOUT, select.POLLERR | select.POLLHUP


class Poller(Protocol):
    def register(self, fd: int, events: int, /) -> None: ...
    def modify(self, fd: int, events: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]: ...


class PollPoller:
    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.modify, self.unregister = (
            self._poll.register,
            self._poll.modify,
            self._poll.unregister,
        )

    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]:
        return self._poll.poll(timeout_s * 1000)


def open_poller() -> Poller:
    return select.epoll() if hasattr(select, "epoll") else PollPoller()


def poll_for_exact_time(poller: Poller, timeout_s: float) -> list[tuple[int, int]]:
    """Poll for at most `timeout_s` seconds, without epoll's rounding up to whole milliseconds.
    Return (file descriptor, event mask) of each ready descriptor. Makes two system calls instead of
    one."""
    if timeout_s > 0 and hasattr(select, "epoll") and isinstance(poller, select.epoll):
        select.select([poller], [], [], timeout_s)
        timeout_s = 0
    return poller.poll(timeout_s)
