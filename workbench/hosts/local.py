"""This machine as a host. Every command is a subprocess in a session of its own, so that all its
processes can be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from workbench.hosts import host_facts, shell_scripts
from workbench.hosts.base import (
    LOOPBACK,
    BaseHost,
    Completed,
    FileError,
    HostFacts,
    command_not_found_error,
    command_timeout_error,
    output_too_large_error,
    raise_if_argv_invalid,
    state_dir_error,
)
from workbench.hosts.line_splitter import CHUNK_BYTES, CommandOutput, Tail, TooMuch, split_lines
from workbench.hosts.local_disks import is_on_local_disk
from workbench.hosts.local_process import LocalProcess, start_process
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import HostError, error_reason
from workbench.model.untrusted_text import clean_text

# The guard ends its command within 2 s; a process that remains after that hangs in the kernel and
# is abandoned.
CLOSE_S = 2.5
# the kernel answers at once, without a disk and without the memory of the process
_PROCESS_STATE = re.compile(r"/proc/\d+/stat")
_STATE_BYTES = 4096
# what a URL has between "//" and the port
_ADDRESS = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]")


class LocalForward:
    """The forward of a port of this machine. The port itself is used, because no forwarding is
    needed."""

    def __init__(self, port: int, address: str = LOOPBACK) -> None:
        self.local_port = port
        self.url = f"http://{address}:{port}"

    async def close(self) -> None:
        return


class LocalStream:
    """A running command on this machine. It runs under `shell_scripts.GUARD`, which ends the
    command when Workbench ends for any reason.
    """

    def __init__(self, process: LocalProcess) -> None:
        self._process = process
        self._tail = Tail()
        self._errors = asyncio.create_task(self._drain_stderr())

    async def _drain_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(CHUNK_BYTES):
            self._tail.append(data)

    async def chunks(self) -> AsyncIterator[bytes]:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(CHUNK_BYTES):
            yield data

    def lines(self) -> AsyncIterator[bytes]:
        return split_lines(self.chunks())

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: see `wait`
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    async def wait(self) -> int:
        return await self._process.wait()

    async def stderr_tail(self) -> str:
        if self._process.returncode is not None:
            # `close` may cancel the reading meanwhile, which is no cancellation of the caller
            await asyncio.wait({self._errors}, timeout=1.0)
        return self._tail.text()

    async def close(self) -> None:
        """End the command: close its stdin, wait up to CLOSE_S seconds for its end, then send
        SIGKILL to its process group."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait_then_kill_process_group(CLOSE_S)
        await cancel_all([self._errors])


async def _exchange_with_process(process: LocalProcess, input: bytes) -> CommandOutput:
    """Write `input` to the stdin of `process`, and return what it printed, after its end. Raises
    TooMuch if it printed more than OUTPUT_MAX_BYTES."""
    assert process.stdout is not None
    assert process.stderr is not None
    output = CommandOutput()
    feeding = asyncio.ensure_future(_write_input(process, input))
    try:
        await output.read_both_streams(process.stdout, process.stderr)
        await process.wait()
    finally:
        feeding.cancel()
    return output


async def _write_input(process: LocalProcess, input: bytes) -> None:
    if process.stdin is not None:
        # a process may end without reading its stdin
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(input)
            await process.stdin.drain()
        process.stdin.close()


class LocalHost(BaseHost):
    """This machine as a host. `name` is the name by which the user knows it."""

    kind = "local"
    is_local = connected = True
    # the loop that has started a process in this turn
    _starting: asyncio.AbstractEventLoop | None = None

    def __init__(self, name: str = "local") -> None:
        self.name = name
        self._on_local_disk: dict[str, bool] = {}  # by directory of a file that grows

    async def state_dir(self) -> str:
        base = os.environ.get("XDG_STATE_HOME", "")
        path = (Path(base) if base.startswith("/") else Path.home() / ".local/state") / "workbench"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise state_dir_error(self.name, error_reason(error), str(path)) from None
        return str(path)

    async def _spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        argv_for_errors: Sequence[str],
        *,
        stdin: int,
    ) -> LocalProcess:
        environment = {**os.environ, **env} if env else None
        await self._wait_for_command_slot()
        try:
            return await start_process(argv, stdin=stdin, env=environment)
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            raise command_not_found_error(argv_for_errors, self.name) from None
        except OSError as error:
            step = "shorten the command" if error.errno == errno.E2BIG else None
            raise HostError(
                f"{argv_for_errors[0]} could not be started: {error_reason(error)}",
                host=self.name,
                next_step=step,
            ) from None

    async def _wait_for_command_slot(self) -> None:
        """Wait for a turn of the event loop in which no process was started yet. Ten starts in one
        turn take 0.1 s, in which the screen would answer no key."""
        loop = asyncio.get_running_loop()
        while self._starting is loop:  # noqa: ASYNC110 (an Event belongs to one loop)
            await asyncio.sleep(0)
        self._starting = loop
        loop.call_soon(self._release_command_slot)

    def _release_command_slot(self) -> None:
        self._starting = None

    async def _run(
        self,
        argv: Sequence[str],
        input: bytes,
        timeout_s: float,
        env: Mapping[str, str] | None,
    ) -> Completed:
        raise_if_argv_invalid(argv, self.name)
        process = await self._spawn(argv, env, argv, stdin=PIPE if input else DEVNULL)
        try:
            output = await asyncio.wait_for(_exchange_with_process(process, input), timeout_s)
        except TimeoutError:
            raise command_timeout_error(argv, timeout_s, self.name) from None
        except TooMuch:
            raise output_too_large_error(argv, self.name) from None
        finally:
            await process.wait_then_kill_process_group()
        code = process.returncode if process.returncode is not None else -signal.SIGKILL
        return Completed(tuple(argv), code, bytes(output.out), bytes(output.err))

    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> LocalStream:
        raise_if_argv_invalid(argv, self.name)
        path = {**os.environ, **(env or {})}.get("PATH")
        if shutil.which(argv[0], path=path) is None:
            raise command_not_found_error(argv, self.name)
        stream = LocalStream(
            await self._spawn(
                shell_scripts.shell_argv(shell_scripts.GUARD, *argv), env, argv, stdin=PIPE
            )
        )
        try:
            await stream.write(input)
        except BaseException:  # cancelled: nobody else knows of this stream
            await stream.close()
            raise
        return stream

    async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        def read() -> bytes:
            with Path(path).open("rb") as file:
                if offset:
                    file.seek(offset)
                    self._record_if_on_local_disk(path)
                return file.read(-1 if limit is None else limit)

        with self._os_errors_as_file_error("read", path):
            if _PROCESS_STATE.fullmatch(path):
                return _read_proc_file(path, limit)
            if offset and self._has_no_bytes_after(path, offset):
                return b""
            return await asyncio.to_thread(read)

    def _record_if_on_local_disk(self, path: str) -> None:
        """Note whether the directory of a file that grows is on a disk of this machine."""
        folder = path.rpartition("/")[0]
        if folder not in self._on_local_disk:
            self._on_local_disk[folder] = is_on_local_disk(folder)

    def _has_no_bytes_after(self, path: str, offset: int) -> bool:
        """Return whether the file `path` is known to have no bytes after `offset`, as a log that is
        read every second. False if its directory is not known to be on a disk of this machine: the
        size of a file in a network could let the screen wait. Raises OSError."""
        if not self._on_local_disk.get(path.rpartition("/")[0]):
            return False
        return Path(path).stat().st_size <= offset

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        def write() -> None:
            import tempfile  # most screens write no file of a host

            parent = Path(path).parent
            _make_private_directories(parent)
            with tempfile.NamedTemporaryFile(prefix=".new.", dir=parent, delete=False) as file:
                try:
                    os.fchmod(file.fileno(), mode)
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    Path(file.name).replace(path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

        with self._os_errors_as_file_error("write", path):
            await asyncio.to_thread(write)

    @contextlib.contextmanager
    def _os_errors_as_file_error(self, operation: str, path: str) -> Iterator[None]:
        """Raise FileError in place of an OSError in the block. `operation` is what the block does
        with the file `path`: "read" or "write"."""
        try:
            yield
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise FileError(
                f"cannot {operation} {path}: {error_reason(error)}",
                host=self.name,
                next_step="free some space on that disk" if is_full else None,
            ) from None

    async def forward(self, port: int, address: str = LOOPBACK) -> LocalForward:
        # a scheduler or a container told it, and the URL would be another's
        if not _ADDRESS.fullmatch(address):
            raise HostError(f"{clean_text(address)!r} is not the address of a host", host=self.name)
        return LocalForward(port, address)

    async def facts(self) -> HostFacts:
        done = await self.run(shell_scripts.shell_argv(shell_scripts.FACTS, "-"))
        return host_facts.parse_host_facts(done.out, self.name, self.kind, latency_ms=0.0)


def _read_proc_file(path: str, limit: int | None) -> bytes:
    """Return the bytes of a file that the kernel makes, at most `limit`, without a thread. Raises
    OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, limit or _STATE_BYTES)
    finally:
        os.close(file)


def _make_private_directories(directory: Path) -> None:
    """Create `directory` and its missing parents, all with mode 0700. Path.mkdir would set the mode
    of the last directory only. Raises OSError."""
    if not directory.is_dir():
        _make_private_directories(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
