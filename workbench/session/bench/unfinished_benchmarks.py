"""Keeps what a Workbench has measured whose process was killed during a benchmark."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench.energy import summary_without_energy
from workbench.bench.records import BenchOutcome
from workbench.bench.workers import KeptResult, fetch_kept_result
from workbench.model.bench import BenchSpec, BenchSummary
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.json_records import from_json, to_json
from workbench.session.bench.benchmark_load import BenchmarkLoad, PrestartedClient, ServerUnderTest
from workbench.session.bench.measurement import MeasuredLoad
from workbench.store import unfinished_benchmarks

if TYPE_CHECKING:
    from workbench.session.session import Session
    from workbench.store.unfinished_benchmarks import BenchmarkNote

_CLIENT_END_TIMEOUT_S = 60.0  # for a load client to write its result after its Workbench was killed
_POLL_INTERVAL_S = 0.2
_TIME_FIELDS = ("t0_unix", "t1_unix", "window_t0_unix", "window_t1_unix")
_PAGE_KEY_OF_SERIES = {
    "experiment": "X",
    "sweep": "S",
    "tune": "N",
}  # kind of a series -> key of its page
_KILLED_REASON = "its Workbench was killed"
_NOT_JUDGED_REASON = (
    f"partial result: {_KILLED_REASON} after the load, before the counters of the engine and the text of the "
    "answers were looked at"
)
_MAX_NEWEST_RESULTS = 20  # newest results among which that of a killed Workbench is looked for


def outcome_as_client_message(outcome: BenchOutcome) -> dict[str, Any]:
    """Return the outcome of a load in the form of its load client's final message. The message's
    "salt", which no two runs share, says which run it is of."""
    times = {name: getattr(outcome, name) for name in _TIME_FIELDS}
    return {
        "type": "summary",
        "summary": to_json(outcome.summary),
        "partial": outcome.partial,
        "salt": outcome.spec.salt,
        **times,
    }


async def store_detached_results(session: Session, notes: Iterable[BenchmarkNote]) -> None:
    """Store the results that killed Workbenches have left of the benchmarks in `notes`, their
    records on the session's host. Notify the user of them, and of benchmarks that go on without a
    screen."""
    for left in notes:
        with suppress(InputError):  # another Workbench takes it
            if not left.alive:
                await _store_detached_result(session, left)
            elif left.about.get("alone"):
                session.core.notify(
                    Level.INFO,
                    f"{_detached_benchmark_title(left)} goes on without its screen (process {left.about.get('pid')})",
                    f"its result appears here; `kill {left.about.get('pid')}` ends it and keeps the"
                    " part that is measured",
                )


async def _store_detached_result(session: Session, detached: BenchmarkNote) -> None:
    with unfinished_benchmarks.claim_benchmark_note(detached):
        result_id = None
        with suppress(WorkbenchError, ValueError, TypeError, KeyError):
            message = await _read_final_client_message(session, detached)
            if message is not None and await _is_result_stored(session, message):
                return  # it was killed after that: the result is among the others
            if message is not None:
                result_id = await _store_result_of_message(session, detached.about, message)
    outcome = "nothing was stored, because no request had been measured"
    if result_id is not None:
        outcome = f"what was measured until then is result {result_id}, a partial one"
    session.core.record_command(
        f"# {_detached_benchmark_title(detached)} was cut off: {_KILLED_REASON}", outcome
    )
    text = f"{_detached_benchmark_title(detached)} was cut off, because {_KILLED_REASON}; {outcome}"
    bench = session.state.bench
    if not (bench.running or bench.queued):
        session.core.update(bench=replace(bench, error=text, stored_id=result_id))
    session.core.notify(Level.WARN, text, _next_step_after_cut_off(detached))


def _next_step_after_cut_off(detached: BenchmarkNote) -> str:
    match detached.about.get("series"):
        case [str(kind), int(number)] if kind in _PAGE_KEY_OF_SERIES:
            return f"press {_PAGE_KEY_OF_SERIES[kind]}, then R to resume {kind} {number}"
    return "press b to measure again"


def _detached_benchmark_title(detached: BenchmarkNote) -> str:
    run_id, began = detached.about.get("run_id"), detached.about.get("began_unix_s")
    what = f"a benchmark of run {run_id}" if run_id else "a benchmark"
    at = time.strftime("%H:%M:%S", time.localtime(began)) if isinstance(began, float) else ""
    return f"{what} that began at {at}" if at else what


async def _read_final_client_message(
    session: Session, detached: BenchmarkNote
) -> Mapping[str, Any] | None:
    """Return the final message of the load client; None if it left none. A client on this machine
    that still runs gets up to a minute to write it."""
    if detached.about["client"] == "host" and not detached.result.exists():
        return await fetch_kept_result(session.host, from_json(KeptResult, detached.about["kept"]))
    for _ in range(round(_CLIENT_END_TIMEOUT_S / _POLL_INTERVAL_S)):
        if not _is_client_alive(detached):
            break
        await asyncio.sleep(_POLL_INTERVAL_S)  # it may be writing the result now
    if not detached.result.exists():
        return None
    found = json.loads(await asyncio.to_thread(detached.result.read_bytes))
    return found if isinstance(found, dict) else None


def _is_client_alive(detached: BenchmarkNote) -> bool:
    """Return whether the load client of a benchmark on this machine still runs."""
    try:
        command = Path(f"/proc/{detached.about['kept']['pid']}/cmdline").read_bytes()
    except OSError:
        return False
    return detached.name.encode() in command


async def _is_result_stored(session: Session, message: Mapping[str, Any]) -> bool:
    """Return whether the killed Workbench had stored the result in `message`."""
    salt = message.get("salt")
    if not salt:
        return False
    newest = await asyncio.to_thread(session.results.db.list, _MAX_NEWEST_RESULTS)
    return any(result.spec.salt == salt for result in newest)


async def _store_result_of_message(
    session: Session, about: Mapping[str, Any], message: Mapping[str, Any]
) -> int | None:
    """Store the result in the final message of a load client, and return its id. None if the
    message has no result."""
    if message.get("type") != "summary":
        return None
    summary = from_json(BenchSummary, message["summary"])
    if "salt" in message:  # the load had ended
        summary = replace(summary, refused=(*summary.refused, _NOT_JUDGED_REASON))
    spec = replace(from_json(BenchSpec, about["spec"]), salt=str(message.get("salt", "")))
    times = {name: message[name] for name in _TIME_FIELDS}
    supervisor, run_id = session.servers.supervisor, about["run_id"]
    status = await supervisor.load_status(run_id) if run_id else None
    server = ServerUnderTest(
        about["server_host"],
        status,
        supervisor.record(run_id) if run_id else None,
        simulated=about["simulated"],
        gpus_known=about["gpus_known"],
        address=about["address"],
    )
    outcome = BenchOutcome(spec, summary, [], bool(message.get("partial")), **times)
    measured = MeasuredLoad(
        outcome, summary_without_energy(summary, f"{_KILLED_REASON}, which read the GPUs")
    )
    load = BenchmarkLoad(
        spec, server, {}, asyncio.Event(), PrestartedClient(client=about["client"])
    )
    return await session.bench.store_detached_benchmark(load, measured)
