"""Processes of this machine: their start, their end, and the pipes to them.

They replace those of asyncio. Up to Python 3.12, asyncio's `wait` also waits until all pipes are
closed, which a child that holds one can prevent. And a start that is cut off by the end of the
event loop can wait for ever, or leave its pipes open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from typing import IO

_LINE_LIMIT_BYTES = 65536  # asyncio's own


class LocalProcess:
    """A process of this machine, the first of a session of its own. `stdin`, `stdout` and `stderr`
    are None unless they are pipes. A thread waits for its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._process = process
        self._transports: list[asyncio.BaseTransport] = []
        self._ended = asyncio.Event()
        arguments = (process, asyncio.get_running_loop(), self._ended)
        threading.Thread(target=_wait_in_thread, args=arguments, daemon=True).start()

    async def connect_pipes(self, line_limit_bytes: int) -> None:
        """Set `stdin`, `stdout` and `stderr` to the pipes that the process has. If this fails or is
        cancelled, kill the process."""
        try:
            if self._process.stdin is not None:
                self.stdin = await self._connect_input(self._process.stdin)
            if self._process.stdout is not None:
                self.stdout = await self._connect_output(self._process.stdout, line_limit_bytes)
            if self._process.stderr is not None:
                self.stderr = await self._connect_output(self._process.stderr, line_limit_bytes)
        except BaseException:
            self.kill_process_group()
            self.close_pipes()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:  # nothing closes those that were not connected
                    pipe.close()
            raise

    async def _connect_input(self, pipe: IO[bytes]) -> asyncio.StreamWriter:
        loop = asyncio.get_running_loop()
        unused = asyncio.StreamReader()  # the protocol of a connection wants one
        protocol = asyncio.StreamReaderProtocol(unused)
        transport, _ = await loop.connect_write_pipe(lambda: protocol, pipe)
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, loop)

    async def _connect_output(self, pipe: IO[bytes], limit_bytes: int) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit_bytes)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._transports.append(transport)
        return reader

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the number of the signal that ended the process; None while it
        runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        await self._ended.wait()
        return self._process.returncode

    def terminate(self) -> None:
        """Send SIGTERM to the process, unless it has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the process, unless it has ended."""
        self._process.kill()

    def kill_process_group(self) -> None:
        """Send SIGKILL to all processes in the process group of the process, if any is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def wait_then_kill_process_group(self, wait_s: float = 0.0) -> None:
        """Wait up to `wait_s` seconds for the process to end. Then send SIGKILL to its process
        group, which kills the process and a child that outlives it, and close the pipes. Return
        even if the process hangs in the kernel and does not end. A cancellation ends the wait."""
        try:
            if self.returncode is None and wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.wait(), wait_s)
        finally:
            try:
                await self._kill_remaining_process_group()
            finally:
                self.close_pipes()

    async def _kill_remaining_process_group(self) -> None:
        """Send SIGKILL to the process group. Do nothing if the process has ended and its output was
        read to the end."""
        outputs = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        if self.returncode is not None and all(pipe.at_eof() for pipe in outputs):
            return
        self.kill_process_group()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), 1.0)

    def close_pipes(self) -> None:
        """Close the pipes to the process. Input that it has not read is dropped."""
        if self.stdin is not None and self.stdin.transport.get_write_buffer_size():
            self.stdin.transport.abort()
        for transport in self._transports:
            transport.close()


def _wait_in_thread(
    process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, ended: asyncio.Event
) -> None:
    process.wait()
    with contextlib.suppress(RuntimeError):  # the event loop has ended before the process
        loop.call_soon_threadsafe(ended.set)


async def start_process(
    argv: Sequence[str],
    *,
    stdin: int,
    stdout: int = PIPE,
    stderr: int = PIPE,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    line_limit_bytes: int = _LINE_LIMIT_BYTES,
) -> LocalProcess:
    """Start `argv` in a session of its own. `stdin`, `stdout` and `stderr` are PIPE or DEVNULL.
    `env` is the whole environment; None stands for our own. Raises OSError if the program cannot be
    started. `readline` of its output takes lines of up to `line_limit_bytes`."""
    started = subprocess.Popen(  # noqa: ASYNC220 (asyncio starts it in this thread too)
        argv,
        bufsize=0,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    process = LocalProcess(started)
    await process.connect_pipes(line_limit_bytes)
    return process
