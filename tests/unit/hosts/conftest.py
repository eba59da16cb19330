"""Local hosts whose shell and tools are dash's and GNU's, bash's, or only busybox's."""

from __future__ import annotations

from support.userland import userland

__all__ = ["userland"]
