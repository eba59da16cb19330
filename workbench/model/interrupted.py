"""The end of work that was interrupted and says what it has left."""

from __future__ import annotations

import asyncio


class Interrupted(asyncio.CancelledError):
    """Raised in place of CancelledError by work that was cancelled and has tidied up. `left` says what
    it reverted and what stays, as a clause for the user."""

    def __init__(self, left: str) -> None:
        super().__init__(left)
        self.left = left
