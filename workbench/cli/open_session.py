"""A session for one command: connected, and let go of at the end whatever happens."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from workbench.model.untrusted_text import clean

if TYPE_CHECKING:
    from workbench.session.session import Session
    from workbench.session.state import SessionState


def session_of(arguments: argparse.Namespace) -> Session:
    from workbench.session.session import Session

    return Session.of_host(getattr(arguments, "target", None) or arguments.host, arguments.simulate)


@asynccontextmanager
async def connected(arguments: argparse.Namespace) -> AsyncIterator[Session]:
    """Connected to the host that the arguments name; an unknown host key is asked about on a terminal."""
    from workbench.hosts.base import HostKeyUnknown

    session = session_of(arguments)
    session.subscribe(_link_teller())
    session.wait_turn, session.tell_turn = getattr(arguments, "wait_turn", False), note
    if sys.stdin.isatty() and not arguments.json:
        session.ask = _asked_secret
    try:
        try:
            await session.connect()
        except HostKeyUnknown as error:
            if not sys.stdin.isatty() or arguments.json:
                raise
            question = f"{error.message}\nTrust this key and go on? [y/N] "
            if not await asked(question):
                raise
            session.trust_host_key()
            await session.connect()
        yield session
    finally:
        await session.close()


def _link_teller() -> Callable[[SessionState, frozenset[str]], None]:
    """Says on stderr when the link is lost and when it is back: a command that waits must not look like one that
    hangs."""
    link = "connecting"

    def tell(state: SessionState, changed: frozenset[str]) -> None:
        nonlocal link
        host, before, link = state.host, link, state.host.link
        if link == "lost" != before:
            note(f"{host.name}: the link is lost ({host.message}); it is tried again, and servers there go on")
        elif before == "lost" != link:
            note(f"{host.name}: {'the link is back' if link == 'connected' else host.message}")

    return tell


async def asked(question: str) -> bool:
    """A yes on the terminal; the question goes to stderr so that stdout stays the command's."""
    sys.stdout.flush()  # what the question is about comes before it
    sys.stderr.write(clean(question, lines=True))
    sys.stderr.flush()
    answer = await asyncio.to_thread(sys.stdin.readline)
    return answer.strip().lower() in ("y", "yes")


async def _asked_secret(prompt: str) -> str | None:
    """Ask for a login secret on the terminal, without an echo. Returns None at the end of input."""
    import getpass

    try:
        return await asyncio.to_thread(getpass.getpass, f"{prompt.rstrip(': ')}: ")
    except EOFError:
        return None


def say(text: str = "") -> None:
    print(clean(text, len(text), lines=True))


def note(text: str) -> None:
    sys.stderr.write(clean(text, lines=True) + "\n")
