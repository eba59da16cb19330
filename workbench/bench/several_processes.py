"""One run of the load client in several processes, so that one CPU core does not limit a large
load.

The worker forks one process for each share of the load and collects the messages of all processes.
Each process reports its warm-up, and the worker replies to all of them with the combined values and
a common start of the measured part. If a process ends before its report, the run fails. All
processes end when the worker ends, because the worker holds the pipes to their stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import asdict
from itertools import chain
from typing import Any

from workbench.bench.client import Client
from workbench.bench.client_process import WorkerOutput, create_stop_signal_fd, run_client
from workbench.bench.client_report import ClientReport, final_message, first_stop_reason
from workbench.bench.connection import Endpoint
from workbench.bench.load_share import Share, WarmupValues
from workbench.bench.own_command_watcher import die_with_parent
from workbench.bench.poller import HUNG_UP, READABLE, open_poller
from workbench.bench.records import ENDED_BY_SIGNAL, RequestRecord
from workbench.bench.steady_window import request_end_s
from workbench.model.bench import BenchSpec
from workbench.model.known_values import known_values

_PROGRESS_INTERVAL_S = 0.2
_START_DELAY_NS = 20_000_000  # all processes have read the agreed begin by then
_PHASES = ("connecting", "warming up", "measuring", "done")
_LARGEST_VALUE_FIELDS = ("elapsed_s",)
_SMALLEST_VALUE_FIELDS = ("silent_s",)


class _ClientProcess:
    """One client process of a run, as its parent process sees it: its process id, the pipes to it,
    and the messages that it has sent."""

    def __init__(self, pid: int, output: int, control: int) -> None:
        self.pid, self.output, self.control = pid, output, control
        self.progress: dict[str, Any] = {}
        self.steady = False
        self.warmed: WarmupValues | None = None
        self.report: ClientReport | None = None
        self.status: int | None = (
            None  # None until `wait_for_exit_code`, so the process id is still its own
        )
        self.rest = b""

    def send_message(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the end of its output tells
            os.write(self.control, json.dumps(message).encode() + b"\n")

    def send_signal(self, number: int) -> None:
        if self.status is None:
            os.kill(self.pid, number)

    def wait_for_exit_code(self) -> int:
        """Wait until the process has ended. Return its exit code, or the negative number of the
        signal that ended it."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status


class SharedRun:
    """A run of the load client in `count` processes. `run` starts the processes and returns the
    message that ends the run: a summary, an error, or the reason why the run was stopped."""

    def __init__(
        self,
        spec: BenchSpec,
        endpoint: Endpoint,
        key: str | None,
        count: int,
        output: WorkerOutput,
        partial_result_reasons: Collection[str] = (ENDED_BY_SIGNAL,),
    ) -> None:
        self._spec, self._output, self._partial_result_reasons = (
            spec,
            output,
            partial_result_reasons,
        )
        self._records: list[bytes] = []
        self._stopped: str | None = None
        self._ending_warmup = False
        self._shown_s = 0.0
        began_ns = time.monotonic_ns() + _START_DELAY_NS
        self._processes: list[_ClientProcess] = []
        for first in range(count):
            others = [fd for one in self._processes for fd in (one.output, one.control)]
            self._processes.append(
                _fork_client(spec, endpoint, key, Share(first, count), began_ns, others)
            )
        self._poller = open_poller()
        self._watched: dict[int, Callable[[int], None]] = {}

    # -- the loop

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        self._poller.register(fd, events)
        self._watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None):
            self._poller.unregister(fd)

    def stop(self, reason: str) -> None:
        """End the run early for the given reason. The client processes still report what they have
        measured so far."""
        if self._stopped is None:
            self._stopped = reason
            for process in self._processes:
                process.send_signal(signal.SIGTERM)

    def run(self) -> dict[str, Any]:
        """Wait for all processes, and return the message that ends the run."""
        self._output.attach_to_loop(self)
        for process in self._processes:
            self.watch(process.output, READABLE, self._create_line_reader(process))
        failure: str | None = None
        living = dict.fromkeys(process.output for process in self._processes)
        try:
            while living and failure is None:
                for fd, events in self._poller.poll(1.0):
                    if fd in self._watched:
                        self._watched[fd](events)
                    if fd in living and fd not in self._watched:
                        del living[fd]
                        failure = failure or self._describe_process_failure(fd)
        finally:
            for process in self._processes:
                process.send_signal(signal.SIGKILL)
                process.wait_for_exit_code()
        if failure:
            return {"type": "error", "error": failure, "next_step": "run the benchmark again"}
        return self._combine_into_final_message()

    def _describe_process_failure(self, fd: int) -> str | None:
        """Return a sentence on how the process that has closed its output `fd` failed. None if it
        had sent its report."""
        number, process = next(
            (n, p) for n, p in enumerate(self._processes, start=1) if p.output == fd
        )
        if process.report is not None:
            return None
        code = process.wait_for_exit_code()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return (
            f"process {number} of {len(self._processes)} of the load client ended {how} "
            "before it had a result"
        )

    def _combine_into_final_message(self) -> dict[str, Any]:
        reports = known_values(process.report for process in self._processes)
        stopped = self._stopped or first_stop_reason(reports)
        counted: list[RequestRecord] = []
        warmups: list[RequestRecord] = []
        for line in self._records:
            for record in map(RequestRecord.from_json, json.loads(line)["records"]):
                if record.warmup:
                    warmups.append(record)
                else:
                    counted.append(record)
        counted.sort(key=request_end_s)
        reasons = self._partial_result_reasons
        return final_message(self._spec, reports, counted, warmups, stopped, reasons)

    # -- what the processes write

    def _create_line_reader(self, process: _ClientProcess) -> Callable[[int], None]:
        def process_available_lines(events: int) -> None:
            data = os.read(process.output, 1 << 20) if events & (READABLE | HUNG_UP) else b""
            if not data:
                self.unwatch(process.output)
                return
            *lines, process.rest = (process.rest + data).split(b"\n")
            for line in lines:
                self._handle_process_message(process, line)

        return process_available_lines

    def _handle_process_message(self, process: _ClientProcess, line: bytes) -> None:
        if line.startswith(b'{"type":"requests"'):  # most bytes; parsed when the run is over
            self._records.append(line)
            self._output.write_raw_line(line)
            return
        message = json.loads(line)
        kind = message.pop("type")
        if kind == "progress":
            process.progress = message
            self._write_merged_progress()
        elif kind == "steady":
            process.steady = True
            if all(one.steady for one in self._processes):
                self._end_warmup()
        elif kind == "warmed up":
            process.warmed = WarmupValues.from_json(message | {"begin_ns": 0})
            self._end_warmup()
            self._start_load_in_all_processes()
        elif kind == "report":
            process.report = ClientReport.from_json(message)

    def _end_warmup(self) -> None:
        """End the warm-up of all processes. Called when all of them are steady, or when one of them
        may send no more warm-up requests."""
        if not self._ending_warmup:
            self._ending_warmup = True
            if self._spec.until_steady:
                for process in self._processes:
                    process.send_message({"type": "end of warm-up"})

    def _start_load_in_all_processes(self) -> None:
        warmed = [process.warmed for process in self._processes if process.warmed]
        if len(warmed) < len(self._processes):
            return
        agreed = WarmupValues(
            tuple(chain.from_iterable(one.prompt_tokens for one in warmed)),
            tuple(chain.from_iterable(one.durations_s for one in warmed)),
            time.monotonic_ns() + _START_DELAY_NS,
        )
        for process in self._processes:
            process.send_message({"type": "begin", **asdict(agreed)})

    def _write_merged_progress(self) -> None:
        each = [process.progress for process in self._processes]
        if not all(each) or time.monotonic() - self._shown_s < _PROGRESS_INTERVAL_S:
            return
        self._shown_s = time.monotonic()
        merged: dict[str, Any] = {
            "line": "",
            "phase": min((one["phase"] for one in each), key=_PHASES.index),
        }
        for name in each[0].keys() - merged.keys():
            values = [one[name] for one in each]
            if name in _LARGEST_VALUE_FIELDS:
                merged[name] = max(values)
            elif name in _SMALLEST_VALUE_FIELDS:
                merged[name] = min(values)
            else:
                merged[name] = sum(values)
        self._output.write_line({"type": "progress", **merged})


# -- one process -----------------------------------------------------------------------------------


def _fork_client(
    spec: BenchSpec,
    endpoint: Endpoint,
    key: str | None,
    share: Share,
    began_ns: int,
    close: list[int],
) -> _ClientProcess:
    """Fork the process that sends one share of the load. `close` are file descriptors of the
    parent's pipes to earlier processes; the new process closes them, because an inherited copy
    would keep those pipes open."""
    output_read, output_write = os.pipe()
    control_read, control_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(output_write)
        os.close(control_read)
        return _ClientProcess(pid, output_read, control_write)
    status = 1
    try:
        die_with_parent()  # a process that is stopped does not see that its pipe is closed
        os.dup2(control_read, 0)
        os.dup2(output_write, 1)
        for fd in (*close, output_read, output_write, control_read, control_write):
            os.close(fd)
        _run_client_process(spec, endpoint, key, share, began_ns)
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _run_client_process(
    spec: BenchSpec, endpoint: Endpoint, key: str | None, share: Share, began_ns: int
) -> None:
    wake = create_stop_signal_fd()
    output = WorkerOutput(1)
    client = Client(spec, endpoint, key, output.write_record, share=share, began_ns=began_ns)
    control = _ParentConnection(client, output, wake)
    client.agree, client.on_steady = control.agree_on_warmup, control.report_warmup_may_end
    client.watch(0, READABLE, lambda _: control.read_control_messages())
    run_client(client, output, wake)
    output.write_line({"type": "report", **asdict(client.report())})
    output.finish(wait_s=60.0)


class _ParentConnection:
    """The connection of one client process to its parent, the worker. It tells the worker when the
    client is steady, sends the values of the warm-up, and receives the worker's replies."""

    def __init__(self, client: Client, output: WorkerOutput, wake: int) -> None:
        self._client, self._output, self._wake = client, output, wake
        self._said_steady = False
        self._agreed: WarmupValues | None = None
        self._rest = b""

    def report_warmup_may_end(self) -> None:
        if not self._said_steady:
            self._said_steady = True
            self._output.write_line({"type": "steady"})

    def agree_on_warmup(self, warmed: WarmupValues) -> WarmupValues:
        """Send what this process has measured in its warm-up to the worker, and wait for the reply.
        Return the combined values of all processes."""
        self._output.write_line({"type": "warmed up", **asdict(warmed)})
        while self._agreed is None and not self._client.stopped:
            self._output.flush()
            ready, _, _ = select.select([0, self._wake], [], [], 0.1)
            if self._wake in ready:
                self._client.stop(ENDED_BY_SIGNAL)
            elif ready:
                self.read_control_messages()
        return self._agreed or warmed

    def read_control_messages(self) -> None:
        data = os.read(0, 1 << 20)
        if not data:
            self._client.stop("the worker process has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message.pop("type") == "begin":
                self._agreed = WarmupValues.from_json(message)
            else:
                self._client.end_warmup()
