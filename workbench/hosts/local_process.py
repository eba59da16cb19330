"""Processes of this machine: their start, their end, and the pipes to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence

_LINE_LIMIT_BYTES = 65536  # asyncio's own


class _Exit(SubprocessStreamProtocol):
    """asyncio's own protocol of a process and its pipes, with an event for the exit of the process
    alone."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit, loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        self.exited.set()
        super().process_exited()


class LocalProcess(Process):
    """A process of this machine. `wait` returns when the process has ended. asyncio's own, up to
    Python 3.12, also waits until all its pipes are closed: a child that holds one, input that
    nobody reads, and output that nobody reads keep it waiting."""

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        protocol: _Exit,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(transport, protocol, loop)
        self._pipes = transport
        self._exited = protocol.exited

    async def wait(self) -> int:
        await self._exited.wait()
        assert self.returncode is not None
        return self.returncode

    async def end(self, wait_s: float = 0.0) -> None:
        """Wait up to `wait_s` seconds for the process to end, then send SIGKILL to its process
        group: to the process, and to a child that outlives it and holds its pipes. Returns even if
        the process never ends, because a process can hang in the kernel and Python 3.11 can miss
        the exit of a child. If it is cancelled, as at the end of the event loop, it sends SIGKILL
        without the wait.
        """
        try:
            if self.returncode is None and wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.wait(), wait_s)
        finally:
            try:
                await self._kill_rest()
            finally:
                self.close_pipes()

    async def _kill_rest(self) -> None:
        """Send SIGKILL to the process group unless the process has ended and its output was read."""
        outputs = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        if self.returncode is not None and all(pipe.at_eof() for pipe in outputs):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), 1.0)

    def close_pipes(self) -> None:
        """Close the pipes to the process. A grandchild may keep them open, and the event loop may
        end before it has read their end."""
        if self.stdin is not None and self.stdin.transport.get_write_buffer_size():
            self.stdin.transport.abort()  # input that nobody reads would keep it open
        self._pipes.close()


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
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: _Exit(line_limit_bytes, loop),
        *argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    return LocalProcess(transport, protocol, loop)
