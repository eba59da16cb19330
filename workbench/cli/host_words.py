"""The host of a command line, or of a record, in the commands that messages propose
(workbench/model/host_commands.py)."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator

from workbench.model.errors import WorkbenchError
from workbench.model.findings import Finding
from workbench.model.host_commands import insert_host_in_fixes, insert_host_words
from workbench.session.hosts.names import words_of_recorded_host

_OPTIONS = ("host", "container", "cluster", "simulate")


def host_words(arguments: argparse.Namespace) -> str:
    """Return the options with which the command line names its host, quoted for a shell, such as
    "--host gpu-box". "" for this machine."""
    given = ((option, getattr(arguments, option, None)) for option in _OPTIONS)
    return shlex.join(word for option, name in given if name for word in (f"--{option}", name))


def name_host(text: str, arguments: argparse.Namespace) -> str:
    """Return the text with the host of the command line in each `workbench` command."""
    return insert_host_words(text, host_words(arguments))


def name_recorded_host(text: str, host: str) -> str:
    """Return the text with the host of a stored sweep or experiment in each `workbench` command."""
    return insert_host_words(text, words_of_recorded_host(host))


def name_recorded_host_in(lines: Iterable[str], host: str) -> Iterator[str]:
    """Yield the lines with the host of a stored sweep or experiment in their commands."""
    for line in lines:
        yield name_recorded_host(line, host)


def name_host_in_fixes(
    findings: Iterable[Finding], arguments: argparse.Namespace
) -> tuple[Finding, ...]:
    """Return the findings with the host of the command line in the commands of their fixes."""
    return insert_host_in_fixes(findings, host_words(arguments))


def name_host_in_error(error: WorkbenchError, arguments: argparse.Namespace) -> None:
    """Name the host of the command line in the message of an error, in its next step and in its
    findings."""
    error.message = name_host(error.message, arguments)
    if error.next_step:
        error.next_step = name_host(error.next_step, arguments)
    error.findings = name_host_in_fixes(error.findings, arguments)
