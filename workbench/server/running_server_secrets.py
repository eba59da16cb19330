"""API keys and other secrets of running servers. A key gives access to the server's endpoints; all secrets are masked
in its log.

Secrets are kept in memory only. Those of an adopted server are read from its process, or from the file that its engine
writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.hosts.base import FileError, Host
from workbench.model.plan import Command

if TYPE_CHECKING:
    from workbench.engines.base import Engine


def api_key_of(command: Command, engine: Engine | None) -> str | None:
    """Return the API key that the server's command sets in its arguments or environment; None if it sets none."""
    following = (*command.argv[1:], "")
    for argument, after in zip(command.argv, following, strict=True):
        name, equals, value = argument.partition("=")
        if name == "--api-key":
            return value if equals else after
    return command.env.get(engine.api_key_env) if engine and engine.api_key_env else None


async def command_of_process(host: Host, pid: int) -> Command | None:
    """Return the arguments and environment of process `pid`. None if the process has ended, or if this user may not
    read them."""
    try:
        argv = _words(await host.read_file(f"/proc/{pid}/cmdline"))
        pairs = [word.partition("=") for word in _words(await host.read_file(f"/proc/{pid}/environ"))]
    except FileError:
        return None
    return Command(tuple(argv), {name: value for name, found, value in pairs if found})


async def key_from_file(host: Host, engine: Engine, workdir: str | None) -> str | None:
    """Return the API key in the file that the engine writes to its working directory. None if the engine writes none,
    or if the file cannot be read."""
    if engine.key_file is None or engine.key_file_pattern is None or not workdir:
        return None
    try:
        text = (await host.read_file(f"{workdir}/{engine.key_file}", limit=65536)).decode("utf-8", "replace")
    except FileError:
        return None
    found = engine.key_file_pattern.search(text)
    return found.group(1) if found else None


def _words(data: bytes) -> list[str]:
    return [word.decode("utf-8", "replace") for word in data.split(b"\0") if word]
