"""The measurement lock of a host: only one Workbench at a time measures there, whichever user runs
it."""

from __future__ import annotations

import json
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from workbench.gpu import measurement_lock_holder, remote_programs
from workbench.hosts.base import CommandNotFound, Host, HostUnreachable
from workbench.model.errors import BenchError, HostError
from workbench.model.measurement_owner import MeasurementOwner
from workbench.model.untrusted_text import clean

_LOOK_S = 10.0


@asynccontextmanager
async def locked_for_measurement(
    host: Host, what: str, *, wait: bool, tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Hold the host's measurement lock while the block runs. If another Workbench has the lock,
    raise BenchError, or with `wait`, name that Workbench through `tell` and wait for its end. If
    the host can have no lock, because it lacks python3 or a common directory, report that through
    `tell` and run the block without a lock."""
    orders = {"what": what, "machine": platform.node(), "wait": wait}
    try:
        stream = await remote_programs.MEASUREMENT_LOCK.stream(host, orders)
    except HostUnreachable:
        raise
    except (CommandNotFound, HostError) as error:
        tell(f"it is unknown whether others measure on this host: {error.message}")
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
            text = f"is being measured: {_owner(answer.get('by')) or 'by an unknown user'}"
            if not wait:
                next_step = "wait until that measurement ends; on the command line use --wait"
                raise BenchError(f"this host {text}", host=host.name, next_step=next_step)
            tell(f"{host.name} {text}; waiting for its end")
        if problem is not None:
            tell(f"it is unknown whether others measure on this host: {problem}")
        yield
    finally:
        await stream.close()


async def holder(host: Host, directory: str) -> MeasurementOwner | None:
    """Return the Workbench that holds the host's measurement lock, None if none does. `directory`
    is the directory of the host's register. Start python3 on the host only if that directory has a
    file that may name a holder."""
    names = (await host.run(["ls", "-1", "--", directory])).out.split()
    if not any(
        name.startswith(measurement_lock_holder.PREFIX) and name.endswith(".json") for name in names
    ):
        return None
    done = await remote_programs.MEASUREMENT_LOCK.run(host, {"look": True}, timeout_s=_LOOK_S)
    try:
        return _owner(json.loads(done.out).get("by"))
    except (ValueError, TypeError, KeyError, RecursionError):  # no usable python3
        return None


def _problem(line: bytes) -> str | None:
    try:
        answer = json.loads(line)
        return clean(str(answer["problem"])) if "problem" in answer else None
    except (ValueError, TypeError):
        return "its program gave an invalid answer"


def _owner(by: Any) -> MeasurementOwner | None:
    if not isinstance(by, dict):
        return None
    return MeasurementOwner(
        clean(by["what"]), clean(by["user"]), clean(by["machine"]), by["since_unix_s"], by["pid"]
    )
