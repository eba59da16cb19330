"""The end of work that was interrupted and says what it has left."""

from __future__ import annotations

import asyncio


class Interrupted(asyncio.CancelledError):
    """The CancelledError of work that was cancelled and has tidied up first. `left` says what the
    work has reverted and what stays, as a clause for the user."""

    def __init__(self, left: str) -> None:
        super().__init__(left)
        self.left = left
