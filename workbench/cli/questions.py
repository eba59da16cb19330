"""Questions on the terminal: confirmations and passwords. They are printed on stderr, because
stdout is for the command's output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.model.errors import InputError
from workbench.model.untrusted_text import clean

if TYPE_CHECKING:
    from workbench.hosts.login_question import LoginQuestion
    from workbench.session.session import Session


def can_ask(arguments: argparse.Namespace) -> bool:
    """Return whether the command can ask the user: stdin is a terminal, and --json is not given."""
    return sys.stdin.isatty() and not arguments.json


async def confirm(
    arguments: argparse.Namespace, question: str, *, problem: str, next_step: str
) -> bool:
    """Ask a question and return whether the user answers yes. With --yes, return True without
    asking. Raises InputError with `problem` and `next_step` if the command cannot ask the user
    (`can_ask`)."""
    if arguments.yes:
        return True
    if not can_ask(arguments):
        raise InputError(problem, next_step=next_step)
    return await ask_yes_no(question)


async def ask_yes_no(question: str) -> bool:
    sys.stdout.flush()  # the text that the question is about comes first
    sys.stderr.write(clean(f"{question} [y/N] ", lines=True))
    sys.stderr.flush()
    answer = await _in_thread(sys.stdin.readline)
    return answer.strip().lower() in ("y", "yes")


async def ask_login_secret(question: LoginQuestion) -> str | None:
    """Ask for a password, passphrase or code without showing what the user types. Return None if
    the input ends."""
    from getpass import getpass
    from shutil import get_terminal_size

    try:
        return await _in_thread(getpass, question.text(get_terminal_size().columns))
    except EOFError:
        return None


async def ask_sudo_password(session: Session, arguments: argparse.Namespace) -> str | None:
    """Return the password for sudo. None if sudo needs no password, or if the user cannot be asked."""
    if not session.state.host.sudo_password or not can_ask(arguments):
        return None
    from getpass import getpass

    prompt = (
        f"[sudo] password for {session.state.host.user} on {session.host.name} (sent to "
        "sudo only): "
    )
    return await _in_thread(getpass, prompt) or None


async def _in_thread(read: Callable[..., str], *arguments: str) -> str:
    import asyncio  # takes 20 ms to load, and most commands that use this module ask nothing

    return await asyncio.to_thread(read, *arguments)
