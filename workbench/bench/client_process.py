"""Helpers of a load client's process: output that does not block, signals, priority, progress and
the garbage collector."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from workbench.bench.client import Client
from workbench.bench.poller import READABLE, WRITABLE
from workbench.bench.records import ENDED_BY_SIGNAL, OUTPUT_UNREAD, RequestRecord

_PROGRESS_INTERVAL_NS = 200_000_000
_MAX_RECORDS_LINE_BYTES = 32 * 1024  # of one line
_CLIENT_NICENESS = -10
_encode_json = json.JSONEncoder(
    separators=(",", ":")
).encode  # `json.dumps` would make one each time


class EventLoop(Protocol):
    """An event loop to which file descriptors can be added, such as `Client`. `callback` gets the
    event mask of a ready descriptor. `stop` ends the loop, and its argument says why."""

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None: ...
    def unwatch(self, fd: int) -> None: ...
    def stop(self, reason: str) -> None: ...


class WorkerOutput:
    """Writes lines to stdout without blocking the event loop. Bytes that the pipe does not accept
    now are written later. Records wait for the next line, so that a request costs no write of its
    own, and its reader no wake-up."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._loop: EventLoop | None = None
        self._waiting = bytearray()
        self._records: list[str] = []
        self._records_bytes = 0
        self._watching_loop: EventLoop | None = None  # that waits until the pipe accepts bytes
        self._was_blocking = os.get_blocking(fd)

    def attach_to_loop(self, loop: EventLoop) -> None:
        self._loop = loop
        os.set_blocking(self.fd, False)

    def write_line(self, data: dict[str, Any]) -> None:
        self._write_waiting_records()
        self.write_raw_line(_encode_json(data).encode())

    def write_record(self, record: RequestRecord) -> None:
        """Write the record of a request that has ended, with the next line."""
        text = record.json_text()
        self._records.append(text)
        self._records_bytes += len(text)
        if self._records_bytes > _MAX_RECORDS_LINE_BYTES:
            self._write_waiting_records()

    def _write_waiting_records(self) -> None:
        if self._records:
            records, self._records, self._records_bytes = self._records, [], 0
            self.write_raw_line(b'{"type":"requests","records":[%b]}' % ",".join(records).encode())

    def write_raw_line(self, line: bytes) -> None:
        self._waiting += line + b"\n"
        self.flush()

    def flush(self, events: int = 0) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self.fd, self._waiting[:65536])]
        except BlockingIOError:
            if self._watching_loop is None and self._loop is not None:
                self._loop.watch(self.fd, WRITABLE, self.flush)
                self._watching_loop = self._loop
            return
        except OSError:  # the reader is gone
            self._waiting.clear()
            if self._loop is not None:
                self._loop.stop(OUTPUT_UNREAD)
        if self._watching_loop is not None:
            self._watching_loop.unwatch(self.fd)
            self._watching_loop = None

    def finish(self, *, wait_s: float) -> None:
        """Write the bytes that still wait, and make stdout blocking again if it was blocking at the
        start. Give up after `wait_s` seconds if the reader of stdout does not read."""
        until = time.monotonic() + wait_s
        self.flush()
        while self._waiting and time.monotonic() < until:
            select.select([], [self.fd], [], 0.1)
            self.flush()
        os.set_blocking(self.fd, self._was_blocking)


def create_stop_signal_fd() -> int:
    """Handle SIGTERM and SIGINT in this process, so that they do not end it. Return the file
    descriptor of a pipe that becomes readable after such a signal."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return wake_read


def run_client(client: Client, output: WorkerOutput, wake_fd: int) -> None:
    """Run the load client to its end, and write its progress to `output`. A byte on the file
    descriptor `wake_fd` stops the client early."""
    output.attach_to_loop(client)
    _raise_process_priority()
    client.watch(wake_fd, READABLE, lambda _: client.stop(ENDED_BY_SIGNAL))
    _write_progress_periodically(client, output)
    gc.collect()
    gc.freeze()
    gc.disable()  # a garbage collection during the run would look like a pause of the server
    client.run()
    output.write_line({"type": "progress", **asdict(client.progress())})


def _raise_process_priority() -> None:
    """Raise this process's priority if the system allows it (as root), so that other programs do
    not delay receive times.

    Linux first shares CPU time between sessions (autogroup scheduling), and a nice value counts
    only inside its session. If this process leads a session, the priority of that session is raised
    too.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _CLIENT_NICENESS)
        if os.getsid(0) == os.getpid():
            autogroup = os.open("/proc/self/autogroup", os.O_WRONLY)
            try:
                os.write(autogroup, str(_CLIENT_NICENESS).encode())
            finally:
                os.close(autogroup)


def _write_progress_periodically(client: Client, output: WorkerOutput) -> None:
    last = 0

    def write_progress_if_due(now_ns: int) -> None:
        nonlocal last
        if now_ns - last >= _PROGRESS_INTERVAL_NS:
            last = now_ns
            output.write_line({"type": "progress", **asdict(client.progress())})

    client.tick = write_progress_if_due
