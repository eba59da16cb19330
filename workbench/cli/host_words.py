"""The host of a command line, or of a record, in the commands that messages propose
(workbench/model/host_commands.py)."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator

from workbench.model.errors import WorkbenchError
from workbench.model.findings import Finding
from workbench.model.host_commands import insert_host_options, insert_host_options_in_fixes
from workbench.session.hosts.names import command_options_for_host

_OPTIONS = ("host", "container", "cluster", "simulate")


def format_host_options(arguments: argparse.Namespace) -> str:
    """Return the options with which the command line names its host, quoted for a shell, such as
    "--host gpu-box". "" for this machine."""
    given = ((option, getattr(arguments, option, None)) for option in _OPTIONS)
    return shlex.join(word for option, name in given if name for word in (f"--{option}", name))


def add_host_options(text: str, arguments: argparse.Namespace) -> str:
    """Return the text with the host of the command line in each `workbench` command."""
    return insert_host_options(text, format_host_options(arguments))


def add_host_options_to_lines(lines: Iterable[str], arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines with the host of the command line in their commands."""
    for line in lines:
        yield add_host_options(line, arguments)


def add_options_of_recorded_host(text: str, host: str) -> str:
    """Return the text with the host of a stored sweep or experiment in each `workbench` command."""
    return insert_host_options(text, command_options_for_host(host))


def add_options_of_recorded_host_to_lines(lines: Iterable[str], host: str) -> Iterator[str]:
    """Yield the lines with the host of a stored sweep or experiment in their commands."""
    for line in lines:
        yield add_options_of_recorded_host(line, host)


def add_host_options_to_fixes(
    findings: Iterable[Finding], arguments: argparse.Namespace
) -> tuple[Finding, ...]:
    """Return the findings with the host of the command line in the commands of their fixes."""
    return insert_host_options_in_fixes(findings, format_host_options(arguments))


def add_host_options_to_error(error: WorkbenchError, arguments: argparse.Namespace) -> None:
    """Name the host of the command line in the message of an error, in its next step and in its
    findings."""
    error.message = add_host_options(error.message, arguments)
    if error.next_step:
        error.next_step = add_host_options(error.next_step, arguments)
    error.findings = add_host_options_to_fixes(error.findings, arguments)
