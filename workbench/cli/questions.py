"""Questions on the terminal: confirmations and passwords. They are printed on stderr, because
stdout is for the command's output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.model.errors import InputError, WorkbenchError
from workbench.model.untrusted_text import clean_text

if TYPE_CHECKING:
    from workbench.hosts.login_question import LoginQuestion
    from workbench.session.session import Session


class Declined(WorkbenchError):
    """Raised if the user answers a question with no. The exit code is 1: the command was used
    correctly, and nothing that it asked about was done."""

    def __init__(self) -> None:
        super().__init__("nothing was done, because you did not answer yes")


def can_prompt(arguments: argparse.Namespace) -> bool:
    """Return whether the command can ask the user: stdin is a terminal, and --json is not given."""
    return sys.stdin.isatty() and not arguments.json


async def require_confirmation(
    arguments: argparse.Namespace, question: str, *, problem: str, next_step: str
) -> None:
    """Ask a question, and return if the user answers yes. With --yes, return without asking. Raises
    Declined if the user does not answer yes, and InputError with `problem` and `next_step` if the
    command cannot ask the user (`can_prompt`)."""
    if arguments.yes:
        return
    if not can_prompt(arguments):
        raise InputError(problem, next_step=next_step)
    await require_yes_answer(question)


async def require_yes_answer(question: str) -> None:
    """Ask a question on the terminal. Raises Declined if the answer is not yes."""
    sys.stdout.flush()  # the text that the question is about comes first
    sys.stderr.write(clean_text(f"{question} [y/N] ", lines=True))
    sys.stderr.flush()
    answer = await _read_in_thread(sys.stdin.readline)
    if answer.strip().lower() not in ("y", "yes"):
        raise Declined


async def prompt_for_login_secret(question: LoginQuestion) -> str | None:
    """Ask for a password, passphrase or code without showing what the user types. Return None if
    the input ends."""
    from getpass import getpass
    from shutil import get_terminal_size

    try:
        return await _read_in_thread(getpass, question.text(get_terminal_size().columns))
    except EOFError:
        return None


async def prompt_for_sudo_password(session: Session, arguments: argparse.Namespace) -> str | None:
    """Return the password for sudo. None if sudo needs no password, or if the user cannot be
    asked."""
    if not session.state.host.sudo_password or not can_prompt(arguments):
        return None
    from getpass import getpass

    prompt = (
        f"[sudo] password for {session.state.host.user} on {session.host.name} (sent to "
        "sudo only): "
    )
    return await _read_in_thread(getpass, prompt) or None


async def _read_in_thread(read: Callable[..., str], *arguments: str) -> str:
    import asyncio  # takes 20 ms to load, and most commands that use this module ask nothing

    return await asyncio.to_thread(read, *arguments)
