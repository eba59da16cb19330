"""The names in a directory of a host. On this machine no program is started for them, because a
screen asks for them every few seconds."""

from __future__ import annotations

from pathlib import Path

from workbench.hosts.base import Host


async def names_in(host: Host, directory: str) -> list[str]:
    """Return the names in `directory` of `host`; [] if it cannot be read."""
    if host.is_local:
        try:
            return [path.name for path in Path(directory).iterdir()]
        except OSError:
            return []
    return (await host.run(["ls", "-1", "--", directory])).out.split("\n")
