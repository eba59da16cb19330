"""The worker process of a benchmark, started as `python -m workbench.bench.worker`. It imports only the standard
library and plain data.

Input: a line of JSON on stdin, a BenchSpec, with the API key as `api_key` if the environment lacks it. Output: lines of
JSON on stdout, each with a "type": "progress" (at most five per second), "request" (each finished request, including
the warm-up), and at last a "summary" or an "error".

The worker ends at once when its parent has ended, or on SIGTERM, and writes a "stopped" line if it can. On SIGTERM
after at least one measured request has succeeded, it writes a summary marked "partial" instead.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from workbench.bench.client import Client
from workbench.bench.connection import resolve
from workbench.bench.poller import IN, OUT
from workbench.bench.records import RequestRecord
from workbench.bench.result_validity import ClientFacts
from workbench.bench.steady_window import end_s, window_of
from workbench.bench.summary import summarize
from workbench.model.api_key import api_key
from workbench.model.bench import BenchSpec
from workbench.model.errors import BenchError, WorkbenchError
from workbench.model.json_records import to_json, with_tuples

_PROGRESS_NS = 200_000_000
_NICE = -10
TERMINATED = "ended by a signal"


class WorkerOutput:
    """Writes lines to stdout without blocking the event loop. Bytes that the pipe does not accept now are written
    later."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._client: Client | None = None
        self._waiting = bytearray()
        self._watching = False
        self._was_blocking = os.get_blocking(fd)

    def attach(self, client: Client) -> None:
        self._client = client
        os.set_blocking(self.fd, False)

    def line(self, data: dict[str, Any]) -> None:
        self._waiting += json.dumps(data, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self, events: int = 0) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self.fd, self._waiting[:65536])]
        except BlockingIOError:
            if not self._watching and self._client is not None:
                self._client.watch(self.fd, OUT, self.flush)
                self._watching = True
            return
        except OSError:  # the reader is gone
            self._waiting.clear()
            if self._client is not None:
                self._client.stop("nobody reads the output of the worker")
        if self._watching and self._client is not None:
            self._client.unwatch(self.fd)
            self._watching = False

    def finish(self, *, wait_s: float) -> None:
        """Write the remaining bytes. Give up after `wait_s` seconds if nobody reads them."""
        until = time.monotonic() + wait_s
        self.flush()
        while self._waiting and time.monotonic() < until:
            select.select([], [self.fd], [], 0.1)
            self.flush()
        os.set_blocking(self.fd, self._was_blocking)


def main() -> int:
    output = WorkerOutput(1)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        line = _read_line(wake_read)
        if line is None:
            return 143
        client = _client(line, output)
    except WorkbenchError as error:
        output.line({"type": "error", **error.as_json()})
        return 1
    output.attach(client)
    _raise_priority()
    _watch_for_the_end(client, wake_read)
    _report_progress(client, output)
    gc.collect()
    gc.freeze()
    gc.disable()  # a garbage collection during the run would look like a pause of the server
    client.run()
    if client.stopped and (client.stopped != TERMINATED or not any(r.ok for r in client.counted)):
        output.line({"type": "stopped", "reason": client.stopped})
        output.finish(wait_s=0.2)
        return 143
    output.line({"type": "progress", **asdict(client.progress())})
    output.line(_summary(client))
    output.finish(wait_s=60.0)
    return 0


def _raise_priority() -> None:
    """Raise this process's priority if that is allowed (root), so that other programs do not delay receive times.

    Linux compares whole sessions (autogroup), and nice values only within one. The worker leads a session of its own,
    so it may raise the session's priority too.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        if os.getsid(0) == os.getpid():
            autogroup = os.open("/proc/self/autogroup", os.O_WRONLY)
            try:
                os.write(autogroup, str(_NICE).encode())
            finally:
                os.close(autogroup)


def _read_line(wake: int) -> bytes | None:
    """Return the first line of stdin. None if a signal arrives on the descriptor `wake`, or stdin is empty, before the
    line is complete."""
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            return None
        piece = os.read(0, 65536)
        if not piece:
            break
        data += piece
    return data or None


def _client(line: bytes, output: WorkerOutput) -> Client:
    try:
        asked = json.loads(line)
        key = asked.pop("api_key", None)
        # By hand: this process starts for each run, and msgspec takes 30 ms to import.
        spec = BenchSpec(**with_tuples(asked))
    except (ValueError, TypeError, AttributeError) as error:
        raise BenchError(f"invalid benchmark specification: {error}") from None
    if spec.api_key_env:
        key = api_key(spec.api_key_env, os.environ if key is None else {spec.api_key_env: key})
    check(spec)

    def on_record(record: RequestRecord) -> None:
        output.line({"type": "request", **record.as_json()})

    return Client(spec, resolve(spec), key, on_record)


def check(spec: BenchSpec) -> None:
    """Raise BenchError if a value in `spec` is invalid, so that no benchmark can be run with it."""
    for name, least in (("concurrency", 1), ("requests", 1), ("max_tokens", 1), ("input_tokens", 1), ("warmup", 0)):
        if getattr(spec, name) < least:
            raise BenchError(f"invalid benchmark option: {name} is {getattr(spec, name)}, it must be at least {least}")
    if spec.endpoint not in ("chat", "completions"):
        raise BenchError(f"invalid benchmark option: endpoint is {spec.endpoint!r}, it must be chat or completions")
    if spec.arrival not in ("poisson", "constant"):
        raise BenchError(f"invalid benchmark option: arrival is {spec.arrival!r}, it must be poisson or constant")
    times = {
        "timeout_s": spec.timeout_s,
        "stall_s": spec.stall_s,
        "deadline_s": spec.deadline_s,
        "seconds": spec.seconds,
        "rate": spec.rate,
    }
    for name, value in times.items():
        if value is not None and not 0 < value < math.inf:
            raise BenchError(f"invalid benchmark option: {name} is {value:g}, it must be above 0")
    if not 0 <= spec.length_spread < 1:
        raise BenchError(
            f"invalid benchmark option: length_spread is {spec.length_spread:g}, it must be at least 0 and below 1"
        )


def _watch_for_the_end(client: Client, wake: int) -> None:
    client.watch(wake, IN, lambda _: client.stop(TERMINATED))

    def on_stdin(_: int) -> None:
        if not os.read(0, 65536):
            client.stop("the parent process has ended")

    with contextlib.suppress(OSError):  # stdin is a file, so there is no parent to wait for
        client.watch(0, IN, on_stdin)


def _report_progress(client: Client, output: WorkerOutput) -> None:
    last = 0

    def tick(now_ns: int) -> None:
        nonlocal last
        if now_ns - last >= _PROGRESS_NS:
            last = now_ns
            output.line({"type": "progress", **asdict(client.progress())})

    client.tick = tick


def _first_tokens(warmups: Sequence[RequestRecord]) -> float | None:
    known = [r.first_tokens for r in warmups if r.ok and r.first_tokens]
    return sum(known) / len(known) if known else None


def _summary(client: Client) -> dict[str, Any]:
    spec, counted, began = client.spec, client.counted, client.began_unix
    window = window_of(spec, counted, client.ramp_end_s)
    facts = ClientFacts(
        notes=tuple(client.notes),
        dropped=tuple(client.workload.dropped),
        client_cpu_pct=client.cpu_pct(window.begin_s, window.end_s),
        calibrated=client.workload.calibrated,
        prompt_words=None if spec.prompts else client.workload.words,
        capped=client.capped,
        unsent=client.unsent,
        window=window,
        first_tokens=_first_tokens(client.warmups),
        partial="stopped by the user" if client.stopped else "",
        reads=client.clock.reads,
        unstamped_reads=client.clock.unstamped,
        late_reads=client.clock.late,
        latest_read_ms=client.clock.latest_ns / 1e6,
    )
    summary = summarize(spec, counted, client.warmups, facts)
    return {
        "type": "summary",
        "partial": bool(client.stopped),
        "summary": to_json(summary),
        "t0_unix": began + min((r.start_s for r in counted), default=0.0),
        "t1_unix": began + max(map(end_s, counted), default=0.0),
        "window_t0_unix": began + window.begin_s,
        "window_t1_unix": began + window.end_s,
    }


if __name__ == "__main__":
    sys.exit(main())
