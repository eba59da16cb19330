"""Runs a benchmark in a worker process, on this machine or on a host: sends the worker the spec,
and reads its messages."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench.records import BenchOutcome
from workbench.bench.schedule import Warmup
from workbench.bench.workers import HostWorker, LocalWorker, Worker
from workbench.model.bench import BenchProgress, BenchSpec, BenchSummary
from workbench.model.errors import BenchError
from workbench.model.json_records import from_json, to_json
from workbench.quality.texts import shipped_short_contents

if TYPE_CHECKING:
    from workbench.hosts.base import Host

_PARTIAL_RESULT_WAIT_S = 5.0  # for the summary of a cancelled run


class BenchCancelled(BenchError):
    """Raised when `cancel` ended a run. `result_id` is the id of the stored partial result, or None
    if nothing was measured."""

    result_id: int | None = None


@asynccontextmanager
async def open_worker(
    host: Host | None = None, result_path: Path | None = None
) -> AsyncIterator[Worker]:
    """Start a worker before its run, to save time, and yield it for the argument `worker` of
    `run_load`. The worker is a process on `host`, or on this machine if `host` is None. Only a
    local worker leaves its result in the file `result_path` if this process is killed. The worker
    is ended when the context manager ends. Raises ClientMissingError if `host` cannot run the load
    client."""
    worker = await (HostWorker.start(host) if host is not None else LocalWorker.start(result_path))
    try:
        yield worker
    finally:
        await asyncio.shield(worker.end_process())


async def run_load(
    spec: BenchSpec,
    *,
    on_progress: Callable[[BenchProgress], None] | None = None,
    cancel: asyncio.Event | None = None,
    env: Mapping[str, str] | None = None,
    worker: Worker | None = None,
    processes: int | None = None,
) -> BenchOutcome:
    """Run one benchmark and return its outcome. Failed requests raise nothing; the summary counts
    them.

    If `cancel` is set, the outcome covers the part that was measured; if nothing was measured,
    BenchCancelled is raised. `env` must contain the API key under the name `spec.api_key_env` if
    this process's environment lacks the key. `worker` comes from `open_worker`. `processes` is
    the number of processes that send the load; None chooses it from the load.

    The worker and everything that it started are ended on `cancel`, when this task is cancelled,
    and on any error. Raises BenchError if the benchmark could not be run.
    """
    spec = spec if spec.salt else replace(spec, salt=secrets.token_hex(4))
    worker = worker or await LocalWorker.start()
    key = (env or {}).get(spec.api_key_env or "")
    reading = asyncio.ensure_future(
        _send_spec_and_read_messages(worker, spec, key, processes, on_progress)
    )
    try:
        await wait_until_done_or_cancelled(reading, cancel)
        if not reading.done():
            await worker.stop()
            await asyncio.wait([reading], timeout=_PARTIAL_RESULT_WAIT_S)
            if reading.done() and (partial := reading.result()) is not None:
                return partial
            raise BenchCancelled(
                "the benchmark was cancelled, and no result was stored",
                next_step="run the benchmark again",
            )
        outcome = reading.result()
        if outcome is None:
            raise await worker.error_of_ended_client()
        return outcome
    finally:
        reading.cancel()
        await asyncio.shield(worker.end_process())


async def wait_until_done_or_cancelled(
    task: asyncio.Future[Any], cancel: asyncio.Event | None, timeout_s: float | None = None
) -> None:
    """Wait until `task` is done or `cancel` is set, at most for `timeout_s` seconds. The task
    itself goes on."""
    waits: list[asyncio.Future[Any]] = [task]
    if cancel is not None:
        waits.append(asyncio.ensure_future(cancel.wait()))
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiting in waits[1:]:
            waiting.cancel()


async def _send_spec_and_read_messages(
    worker: Worker,
    spec: BenchSpec,
    key: str | None,
    processes: int | None,
    on_progress: Callable[[BenchProgress], None] | None,
) -> BenchOutcome | None:
    """Send the spec to the worker and read its messages until the summary. Return the outcome, or
    None if the worker ended without one. Raises BenchError for an error that the worker reports."""
    # a file may contain a hundred thousand
    used = spec.prompts[: max(spec.requests, Warmup(spec).limit)]
    texts = shipped_short_contents() if spec.has_real_text else ()
    asked = to_json(replace(spec, prompts=used, texts=texts))
    if key:
        asked["api_key"] = key
    if processes:
        asked["processes"] = processes
    await worker.send(json.dumps(asked).encode() + b"\n")
    samples: list[dict[str, Any]] = []
    async for line in worker.lines():
        message = _parse_message(line)
        kind = message.pop("type", None)
        if kind == "progress" and on_progress is not None:
            on_progress(BenchProgress(**message))
        elif kind == "requests":
            samples += [one for one in message["records"] if not one["warmup"]]
        elif kind == "error":
            raise BenchError(str(message.get("error")), next_step=message.get("next_step"))
        elif kind == "summary":
            summary = from_json(BenchSummary, message["summary"])
            names = ("t0_unix", "t1_unix", "window_t0_unix", "window_t1_unix")
            partial = bool(message.get("partial"))
            return BenchOutcome(
                spec, summary, samples, partial, **{name: message[name] for name in names}
            )
    return None


def _parse_message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        said = line[:200].decode("utf-8", "replace").strip()
        raise BenchError(
            f"the benchmark process wrote an invalid message: {said!r}",
            next_step="run the benchmark again",
        )
    return message
