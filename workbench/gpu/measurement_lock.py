"""The measurement lock of a host: only one Workbench at a time measures there, whichever user runs
it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any

from workbench.gpu import measurement_lock_holder, remote_programs
from workbench.hosts.base import CommandNotFound, Host, HostUnreachable
from workbench.hosts.directory_names import list_directory_names
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import BenchError, HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.measurement_owner import MeasurementOwner
from workbench.model.untrusted_records import read_record
from workbench.model.untrusted_text import clean_text

_LOOK_TIMEOUT_S = 10.0
_RETAKE_INTERVAL_S = 5.0  # between two tries to take a lost lock again
LOCK_HELD_NEXT_STEP = (
    "wait until that measurement ends (--wait), or measure beside it (--anyway): the result says so"
)


class IfHeld(Enum):
    """What to do if somebody else has the measurement lock."""

    REFUSE = "refuse"
    WAIT = "wait"
    BESIDE = "beside"


@dataclass(slots=True)
class OtherMeasurement:
    """A measurement of somebody else on the same host. `ended_s` is when its end was noticed, on
    the clock of `time.monotonic`; infinity while it lasts."""

    who: str
    identity: tuple[str, int] | None  # user and process; None if unknown
    ended_s: float = math.inf


class OtherMeasurements:
    """Who else measures on a host while a measurement runs, and when nobody could know, because the
    measurement had lost its lock."""

    def __init__(self) -> None:
        self._recorded: list[OtherMeasurement] = []
        # when the lock was lost and when it was taken again, on the clock of `time.monotonic`
        self._losses: list[tuple[float, float]] = []
        self._lost_s: float | None = None  # since when the lock is lost now

    @property
    def lock_is_lost(self) -> bool:
        return self._lost_s is not None

    def record_lock_loss(self) -> None:
        self._lost_s = time.monotonic()

    def record_end_of_lock_loss(self) -> None:
        """Record that a lost lock was taken again, or is no longer needed. Do nothing if the lock
        is not lost."""
        if self._lost_s is not None:
            self._losses.append((self._lost_s, time.monotonic()))
            self._lost_s = None

    def duration_without_lock_s(self, start_s: float) -> float | None:
        """Return for how many seconds since `start_s` (`time.monotonic`) the measurement has had no
        lock. None if it has not lost the lock since then."""
        losses = list(self._losses)
        if self._lost_s is not None:
            losses.append((self._lost_s, time.monotonic()))
        found = [end_s - max(lost_s, start_s) for lost_s, end_s in losses if end_s >= start_s]
        return sum(found) if found else None

    def record_start_and_describe_owner(self, owner: MeasurementOwner | None) -> str:
        """Record that somebody else has started to measure. `owner` is who, None if unknown. Return
        a text that names the owner."""
        who = _owner_text(owner)
        self._recorded.append(OtherMeasurement(who, _user_and_pid_of(owner)))
        return who

    def record_end_of_measurement(self, owner: MeasurementOwner) -> None:
        for one in self._recorded:
            if one.identity == _user_and_pid_of(owner):
                one.ended_s = min(one.ended_s, time.monotonic())

    def owner_texts_since(self, start_s: float) -> tuple[str, ...]:
        """Return the texts that name who else measured at any time after `start_s`
        (`time.monotonic`)."""
        lasted = (one for one in self._recorded if one.ended_s >= start_s)
        return tuple(dict.fromkeys(one.who for one in lasted))


def _owner_text(owner: MeasurementOwner | None) -> str:
    return "by an unknown user" if owner is None else str(owner)


def _user_and_pid_of(owner: MeasurementOwner | None) -> tuple[str, int] | None:
    return None if owner is None else (owner.user, owner.pid)


class HostOccupied(BenchError):
    """Raised if somebody else measures on the host, and the user has not chosen to wait or to
    measure beside it."""


@asynccontextmanager
async def locked_for_measurement(
    host: Host, measurement: str, *, if_held: IfHeld = IfHeld.REFUSE, report: Callable[[str], None]
) -> AsyncIterator[OtherMeasurements]:
    """Hold the host's measurement lock while the block runs, and yield who else measures meanwhile.
    If somebody else has the lock, `if_held` decides: raise HostOccupied, report it through `report`
    and wait, or run the block beside the other measurement. If the host can have no lock, because
    it lacks python3 or a common directory, report that through `report` and run the block without a
    lock. If the lock is lost meanwhile, report that through `report`, record it in the object that
    is yielded, and take the lock again."""
    lock_request = {
        "what": measurement,
        "machine": os.uname().nodename,
        "wait": if_held is IfHeld.WAIT,
        "beside": if_held is IfHeld.BESIDE,
    }
    others = OtherMeasurements()
    try:
        stream = await remote_programs.MEASUREMENT_LOCK_PROGRAM.stream(host, lock_request)
    except HostUnreachable:
        raise
    except (CommandNotFound, HostError) as error:
        report(f"it is unknown whether others measure on this host: {error.message}")
        yield others
        return
    watching: asyncio.Task[None] | None = None
    try:
        problem: str | None = "its program ended"
        lines = stream.lines()
        async for line in lines:
            answer = _parse_holder_line(line)
            problem = _problem_in_answer(answer)
            if problem is not None or answer.get("held"):
                break
            owner = _owner_from_json(answer.get("by"))
            if if_held is IfHeld.BESIDE:
                _report_holder(owner, others, host.name, report)
                break
            by = _owner_text(owner)
            if if_held is IfHeld.REFUSE:
                raise HostOccupied(
                    f"this host is being measured: {by}",
                    host=host.name,
                    next_step=LOCK_HELD_NEXT_STEP,
                )
            report(f"{host.name} is being measured: {by}; waiting for its end")
        if problem is not None:
            report(f"it is unknown whether others measure on this host: {problem}")
        else:
            watching = asyncio.create_task(
                _report_others_and_retake_lock(host, lock_request, lines, others, report)
            )
        yield others
    finally:
        if watching is not None:
            await cancel_all([watching])
        others.record_end_of_lock_loss()
        await stream.close()


async def _report_others_and_retake_lock(
    host: Host,
    lock_request: Mapping[str, Any],
    lines: AsyncIterator[bytes],
    others: OtherMeasurements,
    report: Callable[[str], None],
) -> None:
    """Record and report who else measures, from the `lines` of the program that holds the lock. If
    that program ends, the lock is lost: report that, and take the lock again, as often as needed.
    This ends only when it is cancelled."""
    with suppress(HostError):  # the link is lost, and the program ends with it
        await _record_and_report_others(lines, others, host.name, report)
    while True:
        if not others.lock_is_lost:
            others.record_lock_loss()
            report(
                f"{host.name}: the measurement lock is lost, because the program that held it has "
                "ended; taking it again"
            )
        with suppress(CommandNotFound, HostError):
            await _retake_lock(
                host, {**lock_request, "wait": False, "beside": True}, others, report
            )
        await asyncio.sleep(_RETAKE_INTERVAL_S)


async def _retake_lock(
    host: Host,
    lock_request: Mapping[str, Any],
    others: OtherMeasurements,
    report: Callable[[str], None],
) -> None:
    """Take a lost lock again, or measure beside its new holder, and record and report who else
    measures. Return when the program that holds the lock has ended, or if the lock cannot be
    taken."""
    stream = await remote_programs.MEASUREMENT_LOCK_PROGRAM.stream(host, lock_request)
    try:
        lines = stream.lines()
        answer = _parse_holder_line(await anext(lines, b""))
        if _problem_in_answer(answer) is not None:
            return
        others.record_end_of_lock_loss()
        if not answer.get("held"):
            _report_holder(_owner_from_json(answer.get("by")), others, host.name, report)
        await _record_and_report_others(lines, others, host.name, report)
    finally:
        await stream.close()


def _report_holder(
    owner: MeasurementOwner | None,
    others: OtherMeasurements,
    host: str,
    report: Callable[[str], None],
) -> None:
    who = others.record_start_and_describe_owner(owner)
    report(f"{host} is being measured: {who}; measuring beside it")


async def _record_and_report_others(
    lines: AsyncIterator[bytes], others: OtherMeasurements, host: str, report: Callable[[str], None]
) -> None:
    """Record who begins and ends to measure on the host, as the `lines` of the program there say,
    and report each begin through `report`."""
    async for line in lines:
        answer = _parse_holder_line(line)
        joined = _owner_from_json(answer.get("joined"))
        left = _owner_from_json(answer.get("left"))
        if joined is not None:
            who = others.record_start_and_describe_owner(joined)
            report(f"{host} is measured by somebody else at the same time: {who}")
        if left is not None:
            others.record_end_of_measurement(left)


async def read_lock_holder(host: Host, directory: str) -> MeasurementOwner | None:
    """Return the Workbench that holds the host's measurement lock, None if none does or if that
    cannot be read. `directory` is the directory of the host's register. If it has no file that may
    name a holder, no program is started on the host. Raises HostError if the host does not answer.
    """
    names = await list_directory_names(host, directory)
    if not any(
        name.startswith(measurement_lock_holder.PREFIX) and name.endswith(".json") for name in names
    ):
        return None
    if host.is_local:
        return await asyncio.to_thread(_holder_on_this_machine, directory)
    done = await remote_programs.MEASUREMENT_LOCK_PROGRAM.run(
        host, {"look": True}, timeout_s=_LOOK_TIMEOUT_S
    )
    return _owner_from_json(_parse_holder_line(done.stdout).get("by"))


def _holder_on_this_machine(directory: str) -> MeasurementOwner | None:
    try:
        return _owner_from_json(measurement_lock_holder.find_lock_holder(directory))
    except OSError:
        return None


def _parse_holder_line(line: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else {"problem": "its program gave no valid answer"}


def _problem_in_answer(answer: Mapping[str, Any]) -> str | None:
    return clean_text(str(answer["problem"])) if "problem" in answer else None


def _owner_from_json(by: Any) -> MeasurementOwner | None:
    """Return the owner in `by`, a holder's JSON object. None if it is null or invalid."""
    try:
        return read_record(MeasurementOwner, by)
    except ValueError:
        return None
