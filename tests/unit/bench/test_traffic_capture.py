"""The capture of traffic with its writer: the file has no text, and what was passed on is in it
whatever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.procs import eventually

from workbench.bench import trace_file
from workbench.bench.pass_through import Exchange
from workbench.bench.trace_writer import TOTALS_WANTED, encode_exchange
from workbench.bench.traffic_capture import TrafficCapture
from workbench.model.errors import InputError, StoreError

CHAT = "/v1/chat/completions"
WAIT_S = 30.0
JUST_BEFORE_S = 0.1  # the port reads what it passed on 1 ms later
pytestmark = pytest.mark.slow
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":3}}'
PLANTED = [f"zebra{number:03d}quux" for number in range(100)]


def exchange(text: str, at_s: float, status: int = 200) -> Exchange:
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    return Exchange(
        begin_s=at_s,
        end_s=at_s + 0.5,
        path=CHAT,
        request=body,
        status=status,
        encoding="",
        answer=ANSWER % (len(text) // 4),
        whole=True,
    )


@contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process that writes the file."""
    command = (sys.executable, "-m", "workbench.bench.trace_writer", str(path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_file_is_in_order_and_contains_no_text(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    path.touch()
    said = [" ".join(PLANTED[at : at + 50]) for at in (0, 50, 20)]
    frames = [
        encode_exchange(exchange(text, at_s), 5.0)
        for text, at_s in zip(said, (9, 7, 8), strict=True)
    ]
    frames.append(encode_exchange(exchange("x", 9, status=500), 5.0))
    with writer(path) as process:
        out, _ = process.communicate(b"".join(frames) + encode_exchange(exchange("y", 9), 5.0)[:-3])
    assert process.returncode == 0  # the last frame was cut
    written = path.read_text()
    assert [json.loads(line)["timestamp"] for line in written.splitlines()] == [2000, 3000, 4000]
    assert not any(word in written or word in out.decode() for word in PLANTED)
    last = json.loads(out.splitlines()[-1])
    assert last["requests"] == 3 and last["seconds"] == 2
    assert last["left_out"] == {"answered with HTTP 500": 1}
    assert len(trace_file.read_trace(path).requests) == 3
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_written_stays_whole_if_the_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    path.touch()
    with writer(path) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()  # it is ready
        for number in range(20):
            process.stdin.write(encode_exchange(exchange("w" * 9000, number), 0.0) + TOTALS_WANTED)
            process.stdin.flush()
            process.stdout.readline()
        process.kill()
    assert len(trace_file.read_trace(path).requests) == 20


async def _answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = ANSWER % (len(await reader.readexactly(size)) // 4)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@asynccontextmanager
async def server() -> AsyncIterator[tuple[str, int]]:
    listener = await asyncio.start_server(_answers, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[:2]
    finally:
        listener.close()
        await listener.wait_closed()


async def ask(url: str, text: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        head = f"POST {CHAT} HTTP/1.1\r\nauthorization: Bearer {PLANTED[-1]}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert b"200 OK" in await reader.readuntil(b"completion_tokens")
    finally:
        writer.close()


def run(scenario: Any) -> None:
    async def go() -> None:
        await asyncio.wait_for(scenario, WAIT_S)

    asyncio.run(go())


async def capturing(path: Path, place: tuple[str, int]) -> TrafficCapture:
    made = TrafficCapture(path)
    try:
        await made.start(place, 0)
    except BaseException:
        await made.abandon()
        raise
    return made


def test_a_capture_tells_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"

    async def go() -> None:
        async with server() as place:
            made = await capturing(path, place)
            for number in range(5):
                await ask(made.url, f"{' '.join(PLANTED)} {number}")
            await made.drain()
            told = await made.end()
        assert (
            told["requests"] == told["conversations"] == 5
            and made.counts_of_passed["requests"] == 5
        )
        assert told["reused_tokens"] > 0.7 * told["prompt_tokens"] and not made.lost

    run(go())
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(word in path.read_text() for word in PLANTED)


def test_a_killed_writer_is_named_and_its_file_ends_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"

    async def go() -> None:
        async with server() as place:
            made = await capturing(path, place)
            await ask(made.url, "hello")
            while not (await made.read_totals())["requests"]:
                await asyncio.sleep(0.01)
            assert made._writer is not None
            os.kill(made._writer.pid, signal.SIGKILL)
            await made.ended.wait()
            assert (await made.read_totals())["requests"] == 1, "the last ones"
            await ask(made.url, "the port still passes on")
            with path.open("a") as file:
                file.write('{"timestamp":')  # what a kill in the middle of a long line leaves
            with pytest.raises(StoreError, match="has ended: exit code -9"):
                await made.end()

    run(go())
    assert len(trace_file.read_trace(path).requests) == 1


def test_a_file_that_exists_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("mine")

    async def go() -> None:
        async with server() as place:
            with pytest.raises(InputError, match="exists"):
                await capturing(path, place)
            with pytest.raises(StoreError, match="cannot be written"):
                await capturing(tmp_path / "none" / "x", place)

    run(go())
    assert path.read_text() == "mine"


CAPTURE = """
import asyncio, sys
from pathlib import Path
from workbench.bench.traffic_capture import TrafficCapture
async def go():
    made = TrafficCapture(Path(sys.argv[1]))
    await made.start(("127.0.0.1", int(sys.argv[2])), 0)
    print(made.url, flush=True)
    await asyncio.sleep(60)
asyncio.run(go())
"""


def test_what_was_passed_on_is_in_the_file_although_the_command_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"

    async def go() -> None:
        async with server() as (_, port):
            words = (sys.executable, "-c", CAPTURE, str(path), str(port))
            process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
            assert process.stdout is not None
            url = (await process.stdout.readline()).decode().strip()
            for number in range(50):
                await ask(url, f"number {number} " * 40)
            # the answers just before the kill may be missing
            later_s = time.monotonic() + JUST_BEFORE_S
            while time.monotonic() < later_s:
                await ask(url, "just before the kill")
            process.kill()
            await process.wait()
            with contextlib.suppress(ConnectionError):
                await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
                raise AssertionError("the port is still open")

    run(go())

    def written() -> bool:
        return path.read_bytes().count(b"\n") >= 50

    eventually(written, "50 lines")
    assert len(trace_file.read_trace(path).requests) >= 50
