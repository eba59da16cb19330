"""The worker process of a benchmark, started as `python -m workbench.bench.worker`. It imports only
the standard library and data classes, so that it starts fast.

Input: one line of JSON on stdin. The line is a BenchSpec with two optional fields: `api_key`, if
the environment lacks the key, and `processes`, to set the number of client processes. Output: lines
of JSON on stdout, each with a "type": "progress" (at most five per second), "requests" (those that
have ended since the last line, including the warm-up), and at last a "summary" or an "error".

The worker ends early when its parent has ended, on SIGTERM, or on the line "stop", and writes a
"stopped" line if it can. On SIGTERM or "stop" after at least one measured request has succeeded, it
writes a summary marked "partial" instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Collection
from typing import Any

from workbench.bench.client import Client
from workbench.bench.client_process import (
    EventLoop,
    WorkerOutput,
    create_stop_signal_fd,
    run_client,
)
from workbench.bench.client_report import final_message
from workbench.bench.connection import Endpoint, resolve_endpoint
from workbench.bench.load_share import count_processes_for_load
from workbench.bench.poller import READABLE
from workbench.bench.records import ENDED_BY_SIGNAL, OUTPUT_UNREAD, PARENT_ENDED
from workbench.model.api_key import api_key_from_variable
from workbench.model.errors import BenchError, InputError, WorkbenchError
from workbench.model.json_records import field_values_with_tuples
from workbench.model.load_spec import OPTIONS, BenchSpec

_CLOSED_BEFORE_END_S = 1.0


def main() -> int:
    """Run the benchmark whose spec comes on stdin. Return the exit status. argv[1], if given, is
    the file that gets the result if the process that started this one was killed."""
    output = WorkerOutput(1)
    if len(sys.argv) < 2:
        return run_benchmark_request(output)
    parent, path = os.getppid(), sys.argv[1]

    def store_unread_summary(message: dict[str, Any]) -> None:
        if message["type"] == "summary" and _has_parent_ended(parent):
            _write_result_file(path, message)

    return run_benchmark_request(
        output, store_unread_summary, (ENDED_BY_SIGNAL, PARENT_ENDED, OUTPUT_UNREAD)
    )


def _has_parent_ended(parent: int) -> bool:
    """Return whether the parent process has ended. A process that is killed closes its pipes before
    it ends, so if nobody reads stdout, wait for its end for up to a second."""
    until = time.monotonic() + _CLOSED_BEFORE_END_S
    output = select.poll()
    output.register(1, 0)
    while os.getppid() == parent:
        unread = any(events & select.POLLERR for _, events in output.poll(0))
        if not unread or time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _write_result_file(path: str, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk: there is nobody to tell
        handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(message, file)
        os.replace(f"{path}.new", path)  # noqa: PTH105 (pathlib takes long to import)


def run_benchmark_request(
    output: WorkerOutput,
    store_message: Callable[[dict[str, Any]], None] = lambda message: None,
    partial_result_reasons: Collection[str] = (ENDED_BY_SIGNAL,),
) -> int:
    """Read the spec from stdin, send the load, and write the worker's messages to `output`. Return
    the exit status. `store_message` gets the final message (a summary, an error or "stopped")
    before it is written. After an early end for a reason in `partial_result_reasons`, a summary of
    the requests measured so far replaces "stopped"."""
    wake = create_stop_signal_fd()
    try:
        line = _read_request_line(wake)
        if line is None:
            return 143
        spec, key, processes = _parse_spec_key_and_processes(line)
        endpoint = resolve_endpoint(spec)
        processes = processes or count_processes_for_load(spec, endpoint.is_on_this_machine)
    except WorkbenchError as error:
        output.write_line({"type": "error", **error.as_json()})
        return 1
    send = _run_in_one_process if processes == 1 else _run_in_several_processes
    message = send(spec, endpoint, key, output, wake, processes, partial_result_reasons)
    store_message(message)
    output.write_line(message)
    stopped = message["type"] == "stopped"
    output.finish(wait_s=0.2 if stopped else 60.0)
    return {"stopped": 143, "error": 1}.get(message["type"], 0)


def _run_in_one_process(
    spec: BenchSpec,
    endpoint: Endpoint,
    key: str | None,
    output: WorkerOutput,
    wake_fd: int,
    processes: int,
    partial_result_reasons: Collection[str],
) -> dict[str, Any]:
    """Send the load from this process alone. Return the message that ends the run: a summary, or
    the reason why the run was stopped. A signal makes the descriptor `wake_fd` readable and stops
    the run. After a stop for a reason in `partial_result_reasons`, the message is a summary of the
    requests measured so far, if any succeeded."""

    client = Client(spec, endpoint, key, output.write_record)
    _stop_when_parent_ends(client)
    run_client(client, output, wake_fd)
    reports = [client.report()]
    return final_message(
        spec, reports, client.counted, client.warmups, client.stopped, partial_result_reasons
    )


def _run_in_several_processes(
    spec: BenchSpec,
    endpoint: Endpoint,
    key: str | None,
    output: WorkerOutput,
    wake_fd: int,
    processes: int,
    partial_result_reasons: Collection[str],
) -> dict[str, Any]:
    """Send the load from several processes. Return the message that ends the run: a summary, or the
    reason why the run was stopped. A signal makes the descriptor `wake_fd` readable and stops the
    run. After a stop for a reason in `partial_result_reasons`, the message is a summary of the
    requests measured so far, if any succeeded."""
    from workbench.bench.several_processes import SharedRun

    run = SharedRun(spec, endpoint, key, processes, output, partial_result_reasons)
    _stop_when_parent_ends(run)

    def stop_run(_: int) -> None:
        run.unwatch(wake_fd)
        run.stop(ENDED_BY_SIGNAL)

    run.watch(wake_fd, READABLE, stop_run)
    return run.run()


def _read_request_line(wake_fd: int) -> bytes | None:
    """Return the first line of stdin. None if stdin is empty or a signal arrives before the line is
    complete. A signal makes the descriptor `wake_fd` readable."""
    line = bytearray()
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([0, wake_fd], [], [])
        if wake_fd in ready:
            return None
        piece = os.read(0, 65536)
        if not piece:
            break
        line += piece
    return bytes(line) or None


def _parse_spec_key_and_processes(line: bytes) -> tuple[BenchSpec, str | None, int | None]:
    """Return (spec, API key, number of processes or None) from the input line of the worker. Raises
    BenchError if the line is invalid."""
    try:
        asked = json.loads(line)
        key, processes = asked.pop("api_key", None), asked.pop("processes", None)
        # By hand: this process starts for each run, and msgspec takes 30 ms to import.
        spec = BenchSpec(**field_values_with_tuples(asked))
    except (ValueError, TypeError, AttributeError) as error:
        raise BenchError(f"invalid benchmark specification: {error}") from None
    if spec.api_key_env:
        key = api_key_from_variable(
            spec.api_key_env, os.environ if key is None else {spec.api_key_env: key}
        )
    check_request_spec(spec)
    return spec, key, processes


def check_request_spec(spec: BenchSpec) -> None:
    """Raise BenchError if a value in `spec` is invalid."""
    for option in OPTIONS:
        try:
            option.require_valid(getattr(spec, option.field))
        except InputError as error:
            raise BenchError(f"invalid benchmark option: {error.message}") from None
    if spec.has_real_text and not spec.texts:
        raise BenchError("invalid benchmark option: the content is text, but there are no texts")
    if spec.endpoint == "embeddings" and spec.stream:
        raise BenchError(
            "invalid benchmark option: embeddings are not streamed, so stream must be false"
        )


def _stop_when_parent_ends(loop: EventLoop) -> None:
    def stop_on_line_or_end(_: int) -> None:
        data = os.read(0, 65536)
        if not data:
            loop.unwatch(0)
        if not data or b"stop" in data:
            loop.stop(ENDED_BY_SIGNAL if data else PARENT_ENDED)

    with contextlib.suppress(OSError):  # stdin is a file, so there is no parent to wait for
        loop.watch(0, READABLE, stop_on_line_or_end)


if __name__ == "__main__":
    sys.exit(main())
