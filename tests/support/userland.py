"""A local host with another set of command-line tools."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.hosts.local import LocalHost


class UserlandHost(LocalHost):
    """A LocalHost whose commands all run with a PATH of its own."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.nap = f"62.{zlib.crc32(path.encode())}"  # seconds that no other test sleeps

    async def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **rest: Any) -> Any:
        return await super().run(argv, env={"PATH": self.path, **(env or {})}, **rest)

    async def stream(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **rest: Any) -> Any:
        return await super().stream(argv, env={"PATH": self.path, **(env or {})}, **rest)
