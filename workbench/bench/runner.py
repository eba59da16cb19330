"""Benchmarks in a worker process: starts the process, sends it the spec, and reads its messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.bench.records import BenchOutcome, RequestRecord
from workbench.bench.schedule import Warmup
from workbench.model.bench import BenchProgress, BenchSpec, BenchSummary
from workbench.model.errors import BenchError
from workbench.model.json_records import from_json, to_json

_LINE_LIMIT_BYTES = 64 * 1024 * 1024  # one line holds the gaps of one request
_END_WAIT_S = 2.0
_PARTIAL_WAIT_S = 5.0  # for the summary of a cancelled run
_KEPT_STDERR_BYTES = 8192
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_WORKER = ("-P", "-m", "workbench.bench.worker")  # -P: import no json.py of the current directory


class BenchCancelled(BenchError):
    """Raised when `cancel` ended a run. `result_id` is the id of the stored partial result, or None if nothing was
    measured."""

    result_id: int | None = None


@asynccontextmanager
async def started_worker() -> AsyncIterator[Process]:
    """Start a worker process before its run, to save time, and yield it for the argument `worker` of `run`. The process
    is ended when the block ends."""
    process = await _spawn()
    try:
        yield process
    finally:
        await asyncio.shield(_end(process))


async def run(
    spec: BenchSpec,
    *,
    on_progress: Callable[[BenchProgress], None] | None = None,
    cancel: asyncio.Event | None = None,
    env: Mapping[str, str] | None = None,
    worker: Process | None = None,
    processes: int | None = None,
) -> BenchOutcome:
    """Run one benchmark and return its outcome. Failed requests raise nothing; the summary counts them.

    On `cancel`, the outcome covers the part that was measured; if nothing was measured, BenchCancelled is raised. `env`
    must contain the API key under the name `spec.api_key_env` if this process's environment lacks it. `worker` is a
    process from `started_worker`. `processes` is how many processes send the load; None: as many as it needs.

    The worker and everything that it started are ended on `cancel`, when this task is cancelled, and on any error.
    Raises BenchError if the benchmark could not be run.
    """
    spec = spec if spec.salt else replace(spec, salt=secrets.token_hex(4))
    process = worker or await _spawn()
    key = (env or {}).get(spec.api_key_env or "")
    stderr = asyncio.ensure_future(_tail(process.stderr))
    reading = asyncio.ensure_future(_send_spec_and_read_messages(process, spec, key, processes, on_progress))
    cancelled = asyncio.ensure_future(cancel.wait()) if cancel else None
    try:
        await asyncio.wait([t for t in (reading, cancelled) if t], return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait([reading], timeout=_PARTIAL_WAIT_S)
            if reading.done() and (partial := reading.result()) is not None:
                return partial
            raise BenchCancelled(
                "the benchmark was cancelled, and no result was stored", next_step="run the benchmark again"
            )
        outcome = reading.result()
        if outcome is None:
            raise await _error_of_dead_worker(process, stderr)
        return outcome
    finally:
        for task in (reading, cancelled):
            if task:
                task.cancel()
        await asyncio.shield(_end(process))
        stderr.cancel()


async def _spawn() -> Process:
    path = os.pathsep.join(p for p in (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")) if p)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *_WORKER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
            limit=_LINE_LIMIT_BYTES,
        )
    except OSError as error:
        raise BenchError(
            f"the benchmark process did not start: {error}", command=" ".join((sys.executable, *_WORKER))
        ) from None


async def _send_spec_and_read_messages(
    process: Process,
    spec: BenchSpec,
    key: str | None,
    processes: int | None,
    on_progress: Callable[[BenchProgress], None] | None,
) -> BenchOutcome | None:
    """Send the spec to the worker and read its messages until the summary. Return the outcome, or None if the worker
    ended without one. Raises BenchError for an error that the worker reports."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(ConnectionError):  # the worker died; its exit is examined later
        used = spec.prompts[: max(spec.requests, Warmup(spec).limit)]  # a file may contain a hundred thousand
        message = to_json(replace(spec, prompts=used))
        if key:
            message["api_key"] = key
        if processes:
            message["processes"] = processes
        process.stdin.write(json.dumps(message).encode() + b"\n")
        await process.stdin.drain()
    requests: list[RequestRecord] = []
    while line := await process.stdout.readline():
        message = _message(line)
        kind = message.pop("type", None)
        if kind == "progress" and on_progress is not None:
            on_progress(BenchProgress(**message))
        elif kind == "request":
            record = RequestRecord.of_json(message)
            if not record.warmup:
                requests.append(record)
        elif kind == "error":
            raise BenchError(str(message.get("error")), next_step=message.get("next_step"))
        elif kind == "summary":
            summary = from_json(BenchSummary, message["summary"])
            names = ("t0_unix", "t1_unix", "window_t0_unix", "window_t1_unix")
            partial = bool(message.get("partial"))
            return BenchOutcome(spec, summary, requests, partial, **{name: message[name] for name in names})
    return None


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        said = line[:200].decode("utf-8", "replace").strip()
        raise BenchError(
            f"the benchmark process wrote an invalid message: {said!r}", next_step="run the benchmark again"
        )
    return message


async def _tail(stream: asyncio.StreamReader | None) -> bytes:
    kept = b""
    while stream is not None and (piece := await stream.read(4096)):
        kept = (kept + piece)[-_KEPT_STDERR_BYTES:]
    return kept


async def _error_of_dead_worker(process: Process, stderr: asyncio.Future[bytes]) -> BenchError:
    code = await process.wait()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.shield(stderr), _END_WAIT_S)
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    said = stderr.result().decode("utf-8", "replace").strip().splitlines() if stderr.done() else []
    last = f": {said[-1]}" if said else ""
    return BenchError(
        f"the benchmark process ended {how} before it had a result{last}",
        next_step="no result was stored; run the benchmark again",
    )


async def _end(process: Process) -> None:
    """End the worker's process group with SIGTERM, then SIGKILL. The group id is the worker's process id, because the
    worker leads a session of its own."""
    if process.stdin is not None:
        process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _END_WAIT_S)
