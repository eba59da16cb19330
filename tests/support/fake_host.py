"""A `Host` whose answers a function gives, for tests of code that uses hosts: no process, no file,
no network."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from workbench.hosts.base import (
    LOOPBACK,
    BaseHost,
    CommandNotFound,
    Completed,
    FileError,
    HostFacts,
    HostUnreachable,
    LinkEvent,
)
from workbench.hosts.line_splitter import split_lines
from workbench.hosts.local import LocalForward


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `run` or `stream`, with its arguments."""

    argv: tuple[str, ...]
    input: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)


class FakeStream:
    """A stream that yields its initial pieces, then the pieces that `feed` adds, until `finish`."""

    def __init__(self, pieces: Iterable[bytes] = (), *, open_ended: bool = False) -> None:
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.written: list[bytes] = []
        self.closed = False
        self._ended = asyncio.Event()
        self._code = 0
        self._errors = ""
        for piece in pieces:
            self._queue.put_nowait(piece)
        if not open_ended:
            self.finish()

    def feed(self, data: bytes) -> None:
        self._queue.put_nowait(data)

    def finish(self, code: int = 0, stderr: str = "") -> None:
        """End the command."""
        self._code, self._errors = code, stderr
        self._queue.put_nowait(None)
        self._ended.set()

    def break_off(self, error: Exception) -> None:
        """Lose the link: every reader gets `error`."""
        self._queue.put_nowait(error)
        self._ended.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        while (piece := await self._queue.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def lines(self) -> AsyncIterator[bytes]:
        return split_lines(self.chunks())

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def wait(self) -> int:
        await self._ended.wait()
        return self._code

    async def stderr_tail(self) -> str:
        return self._errors

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.finish(self._code, self._errors)


# What a handler answers: a whole result, its stdout, its exit code, a stream or its pieces, or an
# error to raise.
Answer = Completed | str | bytes | int | FakeStream | Iterable[bytes] | Exception
Handler = Callable[[Call], Answer | Awaitable[Answer]]


def _no_command(call: Call) -> Answer:
    return CommandNotFound(f"{call.argv[0]}: no such executable")


class FakeHost(BaseHost):
    """A host whose commands `handler` answers. `files` are the host's files by path; `calls` and
    `streams` record the calls. `link(False)` cuts the host off; `link(True)` restores the link."""

    def __init__(
        self,
        handler: Handler = _no_command,
        *,
        name: str = "fake",
        kind: str = "local",
        files: Mapping[str, bytes] | None = None,
        facts: HostFacts | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.is_local = kind == "local"
        self.handler = handler
        self.files: dict[str, bytes] = dict(files or {})
        self.calls: list[Call] = []
        self.streams: list[FakeStream] = []
        self.connected = True
        self._facts = facts or HostFacts(name, kind, python3="/usr/bin/python3")
        self._listeners: list[Callable[[LinkEvent], None]] = []

    def link(self, up: bool) -> None:
        self.connected = up
        for listener in tuple(self._listeners):
            listener(LinkEvent(self.name, up, "" if up else "cut"))
        if not up:
            for stream in self.streams:
                stream.break_off(self._unreachable())

    def on_link(self, listener: Callable[[LinkEvent], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _unreachable(self) -> HostUnreachable:
        return HostUnreachable("no connection", host=self.name)

    async def _answer(self, call: Call) -> Answer:
        if not self.connected:
            raise self._unreachable()
        self.calls.append(call)
        answer = self.handler(call)
        result: Answer = await answer if inspect.isawaitable(answer) else answer
        if isinstance(result, Exception):
            raise result
        return result

    async def connect(self) -> None:
        if not self.connected:
            raise self._unreachable()

    async def state_dir(self) -> str:
        return "/state/workbench"

    async def _run(
        self,
        argv: Sequence[str],
        input: bytes,
        timeout_s: float,
        env: Mapping[str, str] | None,
    ) -> Completed:
        return _completed(
            tuple(argv), await self._answer(Call(tuple(argv), input, dict(env or {})))
        )

    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> FakeStream:
        answer = await self._answer(Call(tuple(argv), input, dict(env or {})))
        stream = (
            answer if isinstance(answer, FakeStream) else FakeStream(_pieces(tuple(argv), answer))
        )
        self.streams.append(stream)
        return stream

    async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        await self.connect()
        if path not in self.files:
            raise FileError(f"cannot read {path}: no such file", host=self.name)
        return self.files[path][offset : None if limit is None else offset + limit]

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        await self.connect()
        self.files[path] = data

    async def forward(self, port: int, address: str = LOOPBACK) -> LocalForward:
        return LocalForward(port, address)

    async def facts(self) -> HostFacts:
        await self.connect()
        return self._facts


def _completed(argv: tuple[str, ...], answer: Answer) -> Completed:
    if isinstance(answer, Completed):
        return answer
    if isinstance(answer, int):
        return Completed(argv, answer, b"", b"")
    if isinstance(answer, str):
        return Completed(argv, 0, answer.encode(), b"")
    return Completed(argv, 0, b"".join(_pieces(argv, answer)), b"")


def _pieces(argv: tuple[str, ...], answer: Answer) -> Iterable[bytes]:
    if isinstance(answer, bytes):
        return (answer,)
    if isinstance(answer, (str, int, Completed)):
        return (_completed(argv, answer).stdout,)
    assert not isinstance(answer, (Exception, FakeStream))
    return answer
