"""API keys and other secrets of running servers. An API key is needed for requests to the server,
and all secrets are masked in its log.

Secrets are kept in memory only, except those of a scheduler's job, which are in the file `server`
of the run directory while the job lives. The secrets of an adopted server are read from its
process, from that file, or from the file into which its engine writes its key.
"""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import TYPE_CHECKING

from workbench.hosts.base import FileError, Host
from workbench.model.errors import InputError
from workbench.model.plan import Command
from workbench.server.process_command import read_command

if TYPE_CHECKING:
    from workbench.engines.base import Engine


def api_key_of(command: Command, engine: Engine | None) -> str | None:
    """Return the API key on the command line, or else in the environment, of a server's `command`;
    None if neither has one. `engine` names the environment variable."""
    for argument, after in pairwise((*command.argv, "")):
        name, equals, value = argument.partition("=")
        if name == "--api-key":
            return value if equals else after
    return command.env.get(engine.api_key_env) if engine and engine.api_key_env else None


async def read_process_command(host: Host, pid: int) -> Command | None:
    """Return the command line and environment of the process `pid`; None if it has ended, or if
    this user may not read its environment. Raises HostError if the host cannot be queried."""
    try:
        process = await read_command(host, pid)
    except InputError:
        return None
    if process.env is None:
        return None
    return Command(process.argv, process.env)


async def read_run_command(host: Host, run_dir: str, pid: int | None) -> Command | None:
    """Return the command line and environment of a run's server: from its process `pid`, None if
    unknown, or for a job on another node from the file `server` of the run directory. None if
    neither can be read. Raises HostError."""
    found = await read_process_command(host, pid) if pid else None
    if found is not None:
        return found
    try:
        return parse_command_text(
            (await host.read_file(f"{run_dir}/server")).decode("utf-8", "replace")
        )
    except FileError:
        return None


def parse_command_text(text: str) -> Command:
    """Return the command in `text`, that of the file `server` of a job (server/launchers/jobs.py),
    shell code with `export NAME=value` for the environment and `set -- WORDS` for the command line.
    Raises ValueError if a quote is not closed."""
    words = shlex.split(text)
    pairs = (after.partition("=") for word, after in pairwise(words) if word == "export")
    at = next((i for i, pair in enumerate(pairwise(words)) if pair == ("set", "--")), len(words))
    return Command(tuple(words[at + 2 :]), {name: value for name, _, value in pairs})


async def read_key_from_file(host: Host, engine: Engine, workdir: str | None) -> str | None:
    """Return the API key in the file that the engine writes to `workdir`, its working directory.
    None if the engine writes no such file, if `workdir` is unknown, or if the file cannot be read
    or has no key."""
    if engine.key_file is None or engine.key_file_pattern is None:
        return None
    if not workdir:
        return None
    try:
        text = (await host.read_file(f"{workdir}/{engine.key_file}", limit=65536)).decode(
            "utf-8", "replace"
        )
    except FileError:
        return None
    found = engine.key_file_pattern.search(text)
    if not found:
        return None
    return found.group(1)
