"""The capture of a server's traffic: a port in front of it, and the process that writes the file."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.bench.captured_traffic import PATHS
from workbench.bench.pass_through import Exchange, PassThrough
from workbench.bench.short_slice import ask_for_short_slice
from workbench.bench.trace_writer import TOTALS_WANTED, encode_exchange
from workbench.hosts.base import LOOPBACK
from workbench.hosts.local_process import LocalProcess, start_process
from workbench.hosts.task_cancellation import end_all
from workbench.model.errors import InputError, StoreError

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_WRITER = ("-P", "-m", "workbench.bench.trace_writer")
_MOST_WAITING = 256 << 20  # bytes that wait for the writer
_LINE_BYTES = _PIPE_BYTES = 1 << 20


class TrafficCapture:
    """A port on loopback in front of a server, whose requests are written to a new file without
    their text. `lost` is the number of requests that came faster than they could be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: LocalProcess | None = None
        self._port: PassThrough | None = None
        self._reading: asyncio.Task[None] | None = None
        self._began_s = 0.0
        self._totals: dict[str, Any] = {}
        self._totals_came = asyncio.Event()
        self.lost = 0
        self.url = ""
        self.ended = asyncio.Event()  # the writer has ended

    async def start(self, server: tuple[str, int], port: int) -> None:
        """Open the port, 0 for any free one. Raises InputError if it is taken or the file exists, and
        StoreError if the file cannot be written."""
        _create(self._path)
        await self._start_writer()
        self._port = PassThrough(server, PATHS, self._send_to_writer)
        number = await self._port.listen(port)
        self.url = f"http://{LOOPBACK}:{number}"
        self._began_s = time.monotonic()
        gc.freeze()  # a collection of all that the command has loaded would delay answers
        ask_for_short_slice()  # a byte would wait until the process on the core has used up its own

    async def _start_writer(self) -> None:
        package = os.pathsep.join(p for p in (str(_PACKAGE_ROOT), os.getenv("PYTHONPATH", "")) if p)
        self._writer = await start_process(
            (sys.executable, *_WRITER, str(self._path.absolute())),
            stdin=PIPE,
            env={**os.environ, "PYTHONPATH": package},
            line_limit_bytes=_LINE_BYTES,
        )
        assert self._writer.stdin is not None and self._writer.stdout is not None
        with suppress(OSError):  # beyond what users may have; what waits in it survives a kill
            pipe = self._writer.stdin.get_extra_info("pipe")
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        await self._writer.stdout.readline()  # it is ready
        self._reading = asyncio.create_task(self._read(self._writer))

    @property
    def requests_in_flight(self) -> int:
        return self._port.passed.in_flight if self._port is not None else 0

    @property
    def counts_of_passed(self) -> dict[str, int]:
        """How many requests of any kind went through, and how many connections were not understood
        or not accepted by the server."""
        if self._port is None:
            return {}
        passed = self._port.passed
        return {"requests": passed.requests, "unread": passed.unread, "refused": passed.refused}

    async def read_totals(self) -> dict[str, Any]:
        """Ask the writer what it has written so far, and return its answer."""
        if self._writer is not None and self._writer.stdin is not None and not self.ended.is_set():
            self._totals_came.clear()
            self._writer.stdin.write(TOTALS_WANTED)
            await self._totals_came.wait()
        return self._totals

    async def drain(self) -> None:
        """Accept no more requests, and wait for those in flight."""
        if self._port is not None:
            await self._port.drain()

    async def end(self) -> dict[str, Any]:
        """Cut what is still in flight, and return what was written. Raises StoreError if the writer
        failed; what it had written stays."""
        if self._port is not None:
            await self._port.close()
        writer = self._writer
        if writer is None or self._reading is None:
            return self._totals
        assert writer.stdin is not None
        writer.stdin.close()
        code = await writer.wait()
        await self._reading
        assert writer.stderr is not None
        said = (await writer.stderr.read()).decode(errors="replace").strip().rpartition("\n")[2]
        writer.close_pipes()
        if code:
            _keep_whole_lines(self._path)
            why = said or f"exit code {code}"
            raise StoreError(
                f"the process that writes {self._path} has ended: {why}",
                next_step="what it had written stays in the file; check the memory of this machine "
                "and that its disk is not full",
            )
        return self._totals

    async def abandon(self) -> None:
        """End a capture that did not start. The new file is removed."""
        if self._port is not None:
            await self._port.close()
        if self._writer is not None:
            self._writer.kill_group()
            await self._writer.wait()
            self._writer.close_pipes()
            self._path.unlink(missing_ok=True)
        if self._reading is not None:
            await end_all([self._reading])

    def _send_to_writer(self, exchange: Exchange) -> None:
        if self._writer is None or self._writer.stdin is None or self.ended.is_set():
            return
        pipe = self._writer.stdin
        size = len(exchange.request) + len(exchange.answer)
        if pipe.transport.get_write_buffer_size() + size > _MOST_WAITING:
            self.lost += 1
            return
        pipe.write(encode_exchange(exchange, self._began_s))

    async def _read(self, writer: LocalProcess) -> None:
        assert writer.stdout is not None
        async for line in writer.stdout:
            with suppress(ValueError):
                self._totals = json.loads(line)
            self._totals_came.set()
        self.ended.set()
        self._totals_came.set()


def _create(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise InputError(
            f"{path} exists", next_step="give another --output, or move the existing file away"
        ) from None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}",
            next_step="give an --output in a directory that is writable",
        ) from None


def _keep_whole_lines(path: Path) -> None:
    """Remove the end of a file that is no whole line."""
    with suppress(OSError), path.open("r+b") as file:
        kept = 0
        for line in file:
            kept += len(line) if line.endswith(b"\n") else 0
        file.truncate(kept)
