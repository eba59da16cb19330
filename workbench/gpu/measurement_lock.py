"""The measurement lock of a host: only one Workbench at a time measures there, whichever user runs
it."""

from __future__ import annotations

import asyncio
import json
import platform
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

from workbench.gpu import measurement_lock_holder, remote_programs
from workbench.hosts.base import CommandNotFound, Host, HostUnreachable
from workbench.hosts.directory_names import names_in
from workbench.model.errors import BenchError, HostError
from workbench.model.measurement_owner import MeasurementOwner
from workbench.model.untrusted_records import record
from workbench.model.untrusted_text import clean

_LOOK_S = 10.0
NEXT_STEP = (
    "wait until that measurement ends (--wait), or measure beside it (--anyway): the result says so"
)


class IfHeld(Enum):
    """What to do if somebody else has the measurement lock."""

    REFUSE = "refuse"
    WAIT = "wait"
    BESIDE = "beside"


class HostOccupied(BenchError):
    """Raised if somebody else measures on the host, and the user has not chosen to wait or to
    measure beside it."""


@asynccontextmanager
async def locked_for_measurement(
    host: Host, what: str, *, if_held: IfHeld = IfHeld.REFUSE, tell: Callable[[str], None]
) -> AsyncIterator[str | None]:
    """Hold the host's measurement lock while the block runs, and yield None. If somebody else has
    the lock, `if_held` decides: raise HostOccupied, report it through `tell` and wait, or run the
    block beside the other measurement. In the last case, yield who holds the lock. If the host can
    have no lock, because it lacks python3 or a common directory, report that through `tell` and run
    the block without a lock."""
    orders = {"what": what, "machine": platform.node(), "wait": if_held is IfHeld.WAIT}
    try:
        stream = await remote_programs.MEASUREMENT_LOCK.stream(host, orders)
    except HostUnreachable:
        raise
    except (CommandNotFound, HostError) as error:
        tell(f"it is unknown whether others measure on this host: {error.message}")
        yield None
        return
    try:
        beside: str | None = None
        problem: str | None = "its program ended"
        async for line in stream.lines():
            answer = _answer(line)
            problem = _problem(answer)
            if problem is not None or answer.get("held"):
                break
            by = str(_owner(answer.get("by")) or "by an unknown user")
            if if_held is IfHeld.REFUSE:
                raise HostOccupied(
                    f"this host is being measured: {by}", host=host.name, next_step=NEXT_STEP
                )
            if if_held is IfHeld.BESIDE:
                beside = by
                tell(f"{host.name} is being measured: {by}; measuring beside it")
                break
            tell(f"{host.name} is being measured: {by}; waiting for its end")
        if problem is not None:
            tell(f"it is unknown whether others measure on this host: {problem}")
        yield beside
    finally:
        await stream.close()


async def holder(host: Host, directory: str) -> MeasurementOwner | None:
    """Return the Workbench that holds the host's measurement lock, None if none does. `directory`
    is the directory of the host's register. Start python3 on another host only if that directory
    has a file that may name a holder, and on this machine never."""
    names = await names_in(host, directory)
    if not any(
        name.startswith(measurement_lock_holder.PREFIX) and name.endswith(".json") for name in names
    ):
        return None
    if host.is_local:
        return await asyncio.to_thread(_holder_here, directory)
    done = await remote_programs.MEASUREMENT_LOCK.run(host, {"look": True}, timeout_s=_LOOK_S)
    return _owner(_answer(done.stdout).get("by"))


def _holder_here(directory: str) -> MeasurementOwner | None:
    try:
        return _owner(measurement_lock_holder.holder_in(directory))
    except OSError:
        return None


def _answer(line: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else {"problem": "its program gave no valid answer"}


def _problem(answer: Mapping[str, Any]) -> str | None:
    return clean(str(answer["problem"])) if "problem" in answer else None


def _owner(by: Any) -> MeasurementOwner | None:
    """Return the owner from the holder's JSON object, None for anything else."""
    try:
        return record(MeasurementOwner, by)
    except ValueError:
        return None
