"""The limit on the number of open files, for processes that Workbench starts on a host and for
processes that already run."""

from __future__ import annotations

import re
from typing import NamedTuple

from workbench.hosts.base import FileError, Host
from workbench.hosts.shell_scripts import shell_argv
from workbench.model.untrusted_numbers import parse_whole_number

UNLIMITED_FILES = 2**62


class FileLimit(NamedTuple):
    """The soft and the hard limit on the number of open files of a process. UNLIMITED_FILES stands
    for no limit. Only root may raise a hard limit."""

    soft: int
    hard: int


async def read_host_file_limit(host: Host) -> FileLimit | None:
    """Return the limit that a process gets when Workbench starts it on the host; None if the host
    does not report a limit."""
    return _parse_limit((await host.run(shell_argv("ulimit -Sn; ulimit -Hn"))).out)


async def can_open_files(host: Host, files: int) -> bool:
    """Return whether a process that Workbench starts on the host can have `files` open files. A
    shell there tries to set this limit, because even root may not raise the hard limit in a
    container."""
    done = await host.run(shell_argv('ulimit -Hn "$1" && ulimit -Sn "$1"', str(files)))
    return done.returncode == 0


async def read_process_file_limit(host: Host, pid: int) -> FileLimit | None:
    """Return the limit on open files of the running process `pid`. None if the process has ended or
    belongs to another user."""
    try:
        limits = await host.read_file(f"/proc/{pid}/limits", limit=8192)
    except FileError:
        return None
    found = re.search(rb"^Max open files\s+(\S+)\s+(\S+)", limits, re.MULTILINE)
    if not found:
        return None
    return _parse_limit(b" ".join(found.groups()).decode())


def _parse_limit(text: str) -> FileLimit | None:
    words = [
        UNLIMITED_FILES if word == "unlimited" else int(word)
        for word in text.split()
        if word == "unlimited" or parse_whole_number(word) is not None
    ]
    if len(words) != 2:
        return None
    return FileLimit(*words)


def format_file_limit(files: int) -> str:
    return "unlimited" if files >= UNLIMITED_FILES else f"{files:,}"
