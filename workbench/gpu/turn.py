"""The host's turn to measure: held by one Workbench at a time, of whatever user, for as long as it measures."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from workbench.gpu import bundle
from workbench.hosts.base import CommandNotFound, Host, HostUnreachable
from workbench.model.errors import BenchError, HostError
from workbench.model.foreign_text import clean

_MODULES = ("restore", "register", "turn_holder")


@asynccontextmanager
async def turn_on(host: Host, what: str, *, wait: bool, tell: Callable[[str], None]) -> AsyncIterator[None]:
    """Hold it. Raises BenchError where somebody else does, unless `wait`: `tell` then hears who. Where nobody can be
    asked (no python3, no directory for all users) `tell` hears why, and nothing is held."""
    local = host.kind == "local" and bool(sys.executable)
    orders = {"what": what, "machine": platform.node(), "wait": wait}
    argv = bundle.turn_argv(sys.executable if local else "python3", orders)
    try:
        stream = await host.stream(argv, input=bundle.payload(local, _MODULES))
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
            by = json.loads(line).get("by", None)
            if json.loads(line).get("held"):
                break
            text = f"is being measured: {_named(by)}"
            if not wait:
                next_step = "wait for its end; on the command line --wait does that"
                raise BenchError(f"this host {text}", host=host.name, next_step=next_step)
            tell(f"{host.name} {text}; waiting for its end")
        if problem is not None:
            tell(f"whether others measure on this host is not known: {problem}")
        yield
    finally:
        await stream.close()


def _problem(line: bytes) -> str | None:
    try:
        answer = json.loads(line)
        return clean(str(answer["problem"])) if "problem" in answer else None
    except (ValueError, TypeError):
        return "its program said something else"


def _named(by: Mapping[str, Any] | None) -> str:
    if by is None:
        return "by somebody who does not say who"
    since = time.strftime("%H:%M:%S", time.localtime(by["since_unix_s"]))
    where = "" if by["machine"] == platform.node() else f" from {clean(by['machine'])}"
    return f"{clean(by['what'])}, by {clean(by['user'])}{where} since {since} (process {by['pid']})"
