"""The host's turn to measure: held by one Workbench at a time, of whatever user, for as long as it measures."""

from __future__ import annotations

import json
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from workbench.gpu import measurement_lock_holder, remote_programs
from workbench.hosts.base import CommandNotFound, Host, HostUnreachable
from workbench.model.errors import BenchError, HostError
from workbench.model.turn import Turn
from workbench.model.untrusted_text import clean

_LOOK_S = 10.0
_MODULES = ("restore", "register", "turn_holder")


@asynccontextmanager
async def turn_on(host: Host, what: str, *, wait: bool, tell: Callable[[str], None]) -> AsyncIterator[None]:
    """Hold it. Raises BenchError where somebody else does, unless `wait`: `tell` then hears who. Where nobody can be
    asked (no python3, no directory for all users) `tell` hears why, and nothing is held."""
    python, local = remote_programs.python_on(host)
    orders = {"what": what, "machine": platform.node(), "wait": wait}
    argv = remote_programs.turn_argv(python, orders)
    try:
        stream = await host.stream(argv, input=remote_programs.payload(local, _MODULES))
    except HostUnreachable:
        raise
    except (CommandNotFound, HostError) as error:
        tell(f"whether others measure on this host is not known: {error.message}")
        yield
        return
    try:
        problem: str | None = "its program ended"
        async for line in stream.lines():
            problem = _problem(line)
            if problem is not None:
                break
            answer = json.loads(line)
            if answer.get("held"):
                break
            text = f"is being measured: {_turn(answer.get('by')) or 'by somebody who does not say who'}"
            if not wait:
                next_step = "wait for its end; on the command line --wait does that"
                raise BenchError(f"this host {text}", host=host.name, next_step=next_step)
            tell(f"{host.name} {text}; waiting for its end")
        if problem is not None:
            tell(f"whether others measure on this host is not known: {problem}")
        yield
    finally:
        await stream.close()


async def holder(host: Host, directory: str) -> Turn | None:
    """Return who holds it, as far as that is said. `directory`: the host's register, whose names tell cheaply that
    nobody does."""
    names = (await host.run(["ls", "-1", "--", directory])).out.split()
    if not any(name.startswith(measurement_lock_holder.PREFIX) and name.endswith(".json") for name in names):
        return None
    python, local = remote_programs.python_on(host)
    argv = remote_programs.turn_argv(python, {"look": True})
    done = await host.run(argv, input=remote_programs.payload(local, _MODULES), timeout_s=_LOOK_S)
    try:
        return _turn(json.loads(done.out).get("by"))
    except (ValueError, TypeError, KeyError, RecursionError):  # no python3 that can tell
        return None


def _problem(line: bytes) -> str | None:
    try:
        answer = json.loads(line)
        return clean(str(answer["problem"])) if "problem" in answer else None
    except (ValueError, TypeError):
        return "its program said something else"


def _turn(by: Any) -> Turn | None:
    if not isinstance(by, dict):
        return None
    return Turn(clean(by["what"]), clean(by["user"]), clean(by["machine"]), by["since_unix_s"], by["pid"])
