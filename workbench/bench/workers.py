"""The process of the load client: a child of this process, or a program on the host of the
server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from workbench.hosts.base import CommandNotFound, Host, HostUnreachable, Stream
from workbench.hosts.local_process import LocalProcess, start_process
from workbench.hosts.python_programs import TOO_OLD, PythonProgram
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import shell_argv
from workbench.model.errors import BenchError, HostError
from workbench.model.lazy_dataclass import dataclass

_LINE_LIMIT_BYTES = 64 * 1024 * 1024  # one line holds the gaps of one request
_END_WAIT_S = 2.0
_KEPT_STDERR_BYTES = 8192
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_WORKER = ("-P", "-m", "workbench.bench.worker")  # -P: import no json.py of the current directory
_CLIENT_START_TIMEOUT_S = 30.0  # of the client on a host, its sources included
_LINK_RETURN_TIMEOUT_S = (
    60.0  # for a lost link to come back before the result on the host is given up
)
_RETRY_INTERVAL_S = 1.0

LOAD_CLIENT = PythonProgram(
    "load client",
    (
        "bench.older_python",
        *("model.lazy_dataclass", "model.known_values"),
        *("model.flags", "model.model_shape", "model.open_files", "model.plan"),
        *("model.untrusted_text", "model.answer_text"),
        *("model.counts", "model.findings", "model.errors", "model.slo", "model.think_time"),
        *("model.declared_options", "model.load_spec", "model.distribution", "model.bench"),
        *("bench.records", "bench.client_cpu", "bench.trace_load"),
        *("bench.time_limits", "bench.schedule"),
        *("bench.steady_window", "bench.steadiness", "bench.result_validity"),
        "bench.time_uncertainty",
        *("bench.request_latency", "bench.independent_requests", "bench.slo_attainment"),
        "bench.summary",
        *("model.json_records", "bench.client_report"),
        *("bench.connection", "bench.http1", "bench.kept_text", "bench.reply", "bench.sse"),
        *("bench.text_chunk", "bench.answer_sample", "bench.whole_answer", "bench.exchange"),
        *("bench.poller", "bench.read_pause"),
        *("bench.load_share", "bench.real_text", "bench.trace_text"),
        *("bench.workload", "bench.client"),
        *("bench.client_process", "model.api_key"),
        *("bench.own_command_watcher", "bench.several_processes", "bench.tls"),
        *("bench.worker", "bench.host_client"),
    ),
    options=("-S", "-u"),
    least_python=(3, 10),
)
_FETCH_RESULT_SCRIPT = read_script(__file__, "fetch_result.sh")


class ClientMissingError(BenchError):
    """Raised if the load client cannot run on the host of the server. The text of the exception is
    the reason."""


@dataclass(frozen=True, slots=True)
class KeptResult:
    """Where a load client leaves its result if the process that started it is killed: a file on the
    machine of the client. `pid` is the client's process, and `name` is on the command line of a
    client on a host."""

    path: str
    pid: int | None = None
    name: str = ""


class Worker(Protocol):
    """A started process of the load client, on this machine or a host, that waits for the spec of
    its run."""

    kept: KeptResult | None

    async def send(self, line: bytes) -> None: ...

    def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines that the client writes, until its end."""
        ...

    async def stop(self) -> None:
        """Ask the client process to stop sending requests and to report what it has measured."""
        ...

    async def error_of_ended_client(self) -> BenchError:
        """Return the error to raise for a client process that has ended without a result."""
        ...

    async def end_process(self) -> None:
        """End the client process and all processes that it started."""
        ...


class LocalWorker:
    """The load client as a child process of this process."""

    def __init__(self, process: LocalProcess, kept: KeptResult | None = None) -> None:
        self.process, self.kept = process, kept
        self._stderr = asyncio.ensure_future(_read_stderr_tail(process.stderr))

    @classmethod
    async def start(cls, result_path: Path | None = None) -> LocalWorker:
        """Start the client as a process of this machine. It leaves its result in the file
        `result_path` if this process is killed. Raises BenchError if it cannot be started."""
        words = (*_WORKER, *([str(result_path)] if result_path is not None else []))
        path = os.pathsep.join(
            p for p in (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")) if p
        )
        try:
            process = await start_process(
                (sys.executable, *words),
                stdin=PIPE,
                env={**os.environ, "PYTHONPATH": path},
                line_limit_bytes=_LINE_LIMIT_BYTES,
            )
        except OSError as error:
            raise BenchError(
                f"the benchmark process did not start: {error}",
                command=" ".join((sys.executable, *_WORKER)),
            ) from None
        kept = None
        if result_path is not None:
            kept = KeptResult(str(result_path), process.pid)
        return cls(process, kept)

    async def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):  # the worker died; its exit is examined later
            self.process.stdin.write(line)
            await self.process.stdin.drain()

    async def lines(self) -> AsyncIterator[bytes]:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            yield line

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()

    async def error_of_ended_client(self) -> BenchError:
        code = await self.process.wait()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._stderr), _END_WAIT_S)
        return _client_died_error(
            code, self._stderr.result().decode("utf-8", "replace") if self._stderr.done() else ""
        )

    async def end_process(self) -> None:
        """End the worker's process group with SIGTERM, then SIGKILL. The group id is the worker's
        process id, because the worker leads a session of its own."""
        process = self.process
        if process.stdin is not None:
            process.stdin.close()
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.returncode is not None:
                    break
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(process.wait(), _END_WAIT_S)
        finally:
            process.kill()  # if this was cancelled
            self._stderr.cancel()
            process.close_pipes()


class HostWorker:
    """The load client on another host. Its times are converted to this machine's clock. The offset
    of the two clocks is their smallest observed difference; it is too large by the travel time of
    one message."""

    def __init__(
        self,
        host: Host,
        stream: Stream,
        name: str,
        first: Mapping[str, Any],
        lines: AsyncIterator[bytes],
    ):
        self._host, self._stream, self._name = host, stream, name
        self._pid, self._path = int(first["pid"]), str(first["path"])
        self.kept: KeptResult | None = KeptResult(self._path, self._pid, name)
        self._ahead_s = time.time() - float(first["unix_s"])
        self._lines = lines

    @classmethod
    async def start(cls, host: Host) -> HostWorker:
        """Start the client on `host`. Raises ClientMissingError if that host cannot run it."""
        name = secrets.token_hex(8)
        try:
            stream = await LOAD_CLIENT.stream(host, {"name": name})
        except CommandNotFound:
            raise _client_missing_error(host, "the host has no python3") from None
        lines = stream.lines()
        try:
            async with asyncio.timeout(_CLIENT_START_TIMEOUT_S):
                async for line in lines:
                    first = _parse_message(line)
                    if first.get("type") == "client":
                        return cls(host, stream, name, first, lines)
                code = await stream.wait()
                said = (await stream.stderr_tail()).splitlines()[-1:]
        except TimeoutError:
            code, said = 0, [f"it did not start within {_CLIENT_START_TIMEOUT_S:.0f} s"]
        except BaseException:
            await stream.close()
            raise
        await stream.close()
        least = ".".join(map(str, LOAD_CLIENT.least_python))
        old = f"the host's python3 is older than {least}"
        why = old if code == TOO_OLD else ": ".join([f"exit code {code}", *said])
        raise _client_missing_error(host, why)

    async def send(self, line: bytes) -> None:
        await self._stream.write(line)

    async def lines(self) -> AsyncIterator[bytes]:
        try:
            async for line in self._lines:
                if b'"summary"' in line[:32]:
                    await self._stream.write(b"received\n")
                    yield self._convert_times_to_local_clock(line)
                else:
                    yield line
        except HostUnreachable as lost:
            yield self._convert_times_to_local_clock(await self._fetch_result_file(lost))

    def _convert_times_to_local_clock(self, line: bytes) -> bytes:
        """Return the final message in `line`, a line of JSON, with its Unix times converted to this
        machine's clock."""
        message = _parse_message(line)
        if "sent_unix_s" in message:
            self._ahead_s = min(self._ahead_s, time.time() - message.pop("sent_unix_s"))
        for key in [key for key in message if key.endswith("_unix")]:
            message[key] += self._ahead_s
        return json.dumps(message).encode()

    async def _fetch_result_file(self, lost: HostUnreachable) -> bytes:
        """Return the result from the file that the client on the host wrote after the link was
        lost. `lost` is the error that broke the link. Raises BenchError if there is no such result.
        """
        until = time.monotonic() + _LINK_RETURN_TIMEOUT_S
        while True:
            try:
                done = await self._host.run(
                    shell_argv(_FETCH_RESULT_SCRIPT, self._path, str(self._pid), self._name),
                    timeout_s=_CLIENT_START_TIMEOUT_S,
                )
                break
            except HostUnreachable as error:
                if time.monotonic() > until:
                    raise self._link_lost_error(error) from None
                await asyncio.sleep(_RETRY_INTERVAL_S)
            except HostError as error:
                raise self._link_lost_error(error) from None
        if done.returncode != 0:
            raise self._link_lost_error(lost)
        return done.stdout

    def _link_lost_error(self, error: HostError) -> BenchError:
        return BenchError(
            "the link was lost while the load client ran there, and it had no result yet "
            f"({error.message})",
            host=self._host.name,
            next_step="no result was stored; run the benchmark again",
        )

    async def stop(self) -> None:
        await self._stream.write(b"stop\n")

    async def error_of_ended_client(self) -> BenchError:
        return _client_died_error(await self._stream.wait(), await self._stream.stderr_tail())

    async def end_process(self) -> None:
        with contextlib.suppress(HostError, OSError):
            await self._stream.close()


async def fetch_kept_result(host: Host, kept: KeptResult) -> dict[str, Any] | None:
    """Return the final message of a load client on `host` whose Workbench was killed, and remove
    its file. None if the client left no result."""
    script = shell_argv(
        _FETCH_RESULT_SCRIPT, kept.path, str(kept.pid or 0), kept.name or "no-such-client"
    )
    done = await host.run(script, timeout_s=_CLIENT_START_TIMEOUT_S)
    return _parse_message(done.stdout) if done.returncode == 0 else None


def _client_missing_error(host: Host, why: str) -> ClientMissingError:
    return ClientMissingError(
        f"the load client cannot run there: {why}",
        host=host.name,
        next_step="give `--client here`: the load client then runs here, and its times include the "
        "SSH tunnel",
    )


def _parse_message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _client_died_error(code: int, stderr: str) -> BenchError:
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    last = "".join(f": {line}" for line in stderr.strip().splitlines()[-1:])
    return BenchError(
        f"the benchmark process ended {how} before it had a result{last}",
        next_step="no result was stored; run the benchmark again",
    )


async def _read_stderr_tail(stream: asyncio.StreamReader | None) -> bytes:
    kept = b""
    while stream is not None and (piece := await stream.read(4096)):
        kept = (kept + piece)[-_KEPT_STDERR_BYTES:]
    return kept
