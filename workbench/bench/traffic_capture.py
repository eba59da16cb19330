"""The capture of a server's traffic: the process that passes bytes on, and the one that understands
them and writes the file."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.hosts.base import LOOPBACK
from workbench.hosts.local_process import LocalProcess, start_process
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import InputError, StoreError, error_reason

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_PORT = ("-P", "-S", "-m", "workbench.bench.proxy_process")
_WRITER_ARGUMENTS = ("-P", "-m", "workbench.bench.trace_writer")
_PIPE_BYTES = 1 << 20


class TrafficCapture:
    """A port on loopback in front of a server, whose requests are written to a new file without
    their text."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: LocalProcess | None = None
        self._port: LocalProcess | None = None
        self._reading: asyncio.Task[None] | None = None
        self._file_created = False
        self._totals: dict[str, Any] = {}
        self._asked = self._answered = 0  # the last request for totals, and the last one answered
        self._totals_came = asyncio.Event()
        self.url = ""
        self.ended = asyncio.Event()  # the writer has ended

    async def start(self, server: tuple[str, int], port: int) -> None:
        """Open the port, 0 for any free one. Raises InputError if it is taken, if the server's name
        is not known or the file exists, and StoreError if the file cannot be written."""
        places = await _resolve_server_addresses(server)
        with _open_listener(port) as listener:
            _create_private_file(self._path)
            self._file_created = True
            await self._start_processes(listener, json.dumps(places))
            self.url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"

    async def _start_processes(self, listener: socket.socket, server_addresses: str) -> None:
        package = os.pathsep.join(p for p in (str(_PACKAGE_ROOT), os.getenv("PYTHONPATH", "")) if p)
        env = {**os.environ, "PYTHONPATH": package}
        reads, writes = os.pipe()
        try:
            with suppress(OSError):  # beyond what users may have; what waits in it survives a kill
                fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            began_s = time.monotonic()  # before anything can pass
            written = (sys.executable, *_WRITER_ARGUMENTS, str(self._path.absolute()), str(began_s))
            self._writer = await start_process(written, stdin=reads, env=env)
            self._reading = asyncio.create_task(self._read_writer_output(self._writer))
            number = listener.fileno()
            passed = (sys.executable, *_PORT, str(number), server_addresses)
            self._port = await start_process(
                passed, stdin=PIPE, stdout=writes, env=env, pass_fds=[number]
            )
        finally:
            os.close(reads)
            os.close(writes)
        await self.request_totals_from_writer()  # both are ready

    async def request_totals_from_writer(self) -> dict[str, Any]:
        """Ask the writer what it has written so far, and return its answer. The answer to an
        earlier request, which may come first, does not count."""
        self._asked += 1
        number = self._asked
        self._send_command_to_relay("totals", number)
        while self._answered < number and not self.ended.is_set():
            self._totals_came.clear()
            await self._totals_came.wait()
        return self._totals

    async def stop_accepting_and_drain(self) -> None:
        """Accept no more requests, and wait for those in flight. A connection ends with the answer
        that it carries."""
        if self._port is not None:
            self._send_command_to_relay("drain")
            await self._port.wait()

    def _send_command_to_relay(self, *words: object) -> None:
        commands = self._port.stdin if self._port is not None else None
        if commands is not None and not commands.is_closing():
            commands.write(" ".join(map(str, words)).encode() + b"\n")

    async def end_capture(self) -> dict[str, Any]:
        """Cut what is still in flight, and return the totals of what was written. Raises StoreError
        if one of the processes failed; the file then keeps its whole lines."""
        if self._port is None or self._writer is None or self._reading is None:
            return self._totals
        assert self._port.stdin is not None
        self._port.stdin.close()
        why = await _wait_and_describe_failure(self._port, "passes the bytes on")
        if writer_failed := await _wait_and_describe_failure(self._writer, f"writes {self._path}"):
            _truncate_to_whole_lines(self._path)
        await self._reading
        if why := why or writer_failed:
            raise StoreError(
                why,
                next_step="what was written stays in the file; check the memory of this machine and "
                "that its disk is not full",
            )
        return self._totals

    async def abandon_capture(self) -> None:
        """End a capture that did not start. The new file is removed."""
        for process in (self._port, self._writer):
            if process is not None:
                process.kill_process_group()
                await process.wait()
                process.close_pipes()
        if self._file_created:
            self._path.unlink(missing_ok=True)
        if self._reading is not None:
            await cancel_all([self._reading])

    async def _read_writer_output(self, writer: LocalProcess) -> None:
        assert writer.stdout is not None
        async for line in writer.stdout:
            told = json.loads(line)
            if "idle" in told:
                self._send_command_to_relay("end", *told["idle"])
                continue
            self._totals = told["totals"]
            self._answered = told["answers"]
            self._totals_came.set()
        self.ended.set()
        self._totals_came.set()


async def _resolve_server_addresses(server: tuple[str, int]) -> list[tuple[int, Any]]:
    """Return (family, address) of each address of a server, by its name."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(*server, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(
            f"the address of {server[0]} is not known: {error_reason(error)}",
            next_step="check the name of the server",
        ) from None
    return [(family, place) for family, _, _, _, place in found]


def _open_listener(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise InputError(
            f"port {port} of {LOOPBACK} cannot be opened: {error_reason(error)}",
            next_step="give another --port, or leave it out",
        ) from None


async def _wait_and_describe_failure(process: LocalProcess, what_it_does: str) -> str:
    """Wait for the end of a process. Return why it failed, "" if it did not."""
    code = await process.wait()
    assert process.stderr is not None
    said = (await process.stderr.read()).decode(errors="replace").strip().rpartition("\n")[2]
    process.close_pipes()
    if not code:
        return ""
    return f"the process that {what_it_does} has ended: {said or f'exit code {code}'}"


def _create_private_file(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise InputError(
            f"{path} exists", next_step="give another --output, or move the existing file away"
        ) from None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error_reason(error)}",
            next_step="give an --output in a directory that is writable",
        ) from None


def _truncate_to_whole_lines(path: Path) -> None:
    """Remove the end of a file that is no whole line."""
    with suppress(OSError), path.open("r+b") as file:
        kept = 0
        for line in file:
            kept += len(line) if line.endswith(b"\n") else 0
        file.truncate(kept)
