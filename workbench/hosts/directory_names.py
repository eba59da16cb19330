"""The names in a directory of a host. On this machine no program is started for them, because a
screen asks for them every few seconds."""

# ruff: noqa: PTH208
# (pathlib makes an object of each name)

from __future__ import annotations

import os

from workbench.hosts.base import Host


async def list_directory_names(host: Host, directory: str) -> list[str]:
    """Return the names in `directory` of `host`, in any order; [] if it cannot be read."""
    if host.is_local:
        try:
            return os.listdir(directory)
        except OSError:
            return []
    listed = await host.run(["ls", "-1", "--", directory])
    return [name for name in listed.out.split("\n") if name]
