"""The capture of traffic with its writer: the file has no text, and what was passed on is in it
whatever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.procs import eventually

from workbench.bench import proxy_process, trace_file
from workbench.bench.traffic_capture import TrafficCapture
from workbench.model.errors import InputError, StoreError

CHAT = "/v1/chat/completions"
WAIT_S = 60.0
pytestmark = pytest.mark.slow
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":3}}'
PLANTED = [f"zebra{number:03d}quux" for number in range(100)]


CLIENT, SERVER = proxy_process.CLIENT_SENT, proxy_process.SERVER_SENT
TOTALS_WANTED = proxy_process.FRAME.pack(0.0, 0, 0, proxy_process.TOTALS_WANTED)


def frame(kind: int, at_s: float, data: bytes) -> bytes:
    return proxy_process.FRAME.pack(at_s, 1, len(data), kind) + data


def exchange(text: str, at_s: float, status: int = 200) -> bytes:
    """Return the frames of a request and its answer."""
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    asked = b"POST %s HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    usage = ANSWER % (len(text) // 4)
    answered = b"HTTP/1.1 %d Is\r\ncontent-length: %d\r\n\r\n" % (status, len(usage))
    return frame(CLIENT, at_s, asked + body) + frame(SERVER, at_s + 0.5, answered + usage)


@contextmanager
def writer(path: Path, began_s: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process that writes the file."""
    command = (sys.executable, "-m", "workbench.bench.trace_writer", str(path), str(began_s))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_file_is_in_order_and_contains_no_text(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    path.touch()
    said = [" ".join(PLANTED[at : at + 50]) for at in (0, 50, 20)]
    frames = [exchange(text, at_s) for text, at_s in zip(said, (9, 7, 8), strict=True)]
    frames.append(exchange("x", 9, status=500))
    with writer(path, began_s=5.0) as process:
        out, _ = process.communicate(b"".join(frames) + exchange("y", 9)[:-3])
    assert process.returncode == 0  # the last frame was cut, so that request has no answer
    written = path.read_text()
    assert [json.loads(line)["timestamp"] for line in written.splitlines()] == [2000, 3000, 4000]
    assert not any(word in written or word in out.decode() for word in PLANTED)
    last = json.loads(out.splitlines()[-1])["totals"]
    assert last["requests"] == 3 and last["seconds"] == 2
    assert last["left_out"] == {"answered with HTTP 500": 1, "ended before the first token": 1}
    assert len(trace_file.read_trace(path).requests) == 3
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_written_stays_whole_if_the_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    path.touch()
    with writer(path) as process:
        assert process.stdin is not None and process.stdout is not None
        for number in range(20):
            process.stdin.write(exchange("w" * 9000, number) + TOTALS_WANTED)
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
        await made.abandon_capture()
        raise
    return made


def test_a_capture_tells_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"

    async def go() -> None:
        async with server() as place:
            made = await capturing(path, place)
            for number in range(5):
                await ask(made.url, f"{' '.join(PLANTED)} {number}")
            await made.stop_accepting_and_drain()
            told = await made.end_capture()
        assert told["requests"] == told["conversations"] == told["passed"]["requests"] == 5
        assert told["reused_tokens"] > 0.7 * told["prompt_tokens"]

    run(go())
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(word in path.read_text() for word in PLANTED)


def test_totals_that_were_asked_for_earlier_do_not_answer_a_later_request(tmp_path: Path) -> None:
    """The end of a capture waited for a request without saying so: the totals from before the request
    arrived late, and had none in flight."""
    path = tmp_path / "made.jsonl"
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
    sent = f"POST {CHAT} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    came, more = asyncio.Event(), asyncio.Event()

    async def wait_to_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(sent))
        came.set()
        await more.wait()
        writer.close()

    async def go() -> None:
        listener = await asyncio.start_server(wait_to_answer, "127.0.0.1", 0)
        made = await capturing(path, listener.sockets[0].getsockname()[:2])
        assert made._writer is not None
        os.kill(made._writer.pid, signal.SIGSTOP)
        earlier = asyncio.create_task(made.request_totals_from_writer())
        await asyncio.sleep(0)  # it has asked, and waits
        earlier.cancel()
        _, writer = await asyncio.open_connection("127.0.0.1", int(made.url.rpartition(":")[2]))
        writer.write(sent)
        await came.wait()
        later = asyncio.create_task(made.request_totals_from_writer())
        await asyncio.sleep(0)
        os.kill(made._writer.pid, signal.SIGCONT)
        assert (await later)["passed"]["in_flight"] == 1
        more.set()
        await made.end_capture()
        writer.close()
        listener.close()
        await listener.wait_closed()

    run(go())


def test_a_killed_writer_is_named_and_its_file_ends_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"

    async def go() -> None:
        async with server() as place:
            made = await capturing(path, place)
            await ask(made.url, "hello")
            while not (await made.request_totals_from_writer())["requests"]:
                await asyncio.sleep(0.01)
            assert made._writer is not None
            os.kill(made._writer.pid, signal.SIGKILL)
            await made.ended.wait()
            assert (await made.request_totals_from_writer())["requests"] == 1, "the last ones"
            await ask(made.url, "the port still passes on")
            with path.open("a") as file:
                file.write('{"timestamp":')  # what a kill in the middle of a long line leaves
            with pytest.raises(StoreError, match="has ended: exit code -9"):
                await made.end_capture()

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


async def until_closed(port: int) -> None:
    """Wait until nobody accepts connections any more."""
    with contextlib.suppress(ConnectionError):
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()


def test_a_killed_port_is_named_and_what_it_passed_on_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"

    async def go() -> None:
        async with server() as place:
            made = await capturing(path, place)
            for number in range(5):
                await ask(made.url, f"number {number}")
            assert made._port is not None
            os.kill(made._port.pid, signal.SIGKILL)
            await made.ended.wait()
            with pytest.raises(StoreError, match="passes the bytes on has ended: exit code -9"):
                await made.end_capture()

    run(go())
    # the client may have the last answer before it is told
    assert len(trace_file.read_trace(path).requests) >= 4


def test_the_end_waits_for_answers_and_accepts_no_more(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    came, more = asyncio.Event(), asyncio.Event()
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
    sent = f"POST {CHAT} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    async def answer_later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(sent))
        came.set()
        await more.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(ANSWER % 1))
        writer.write(ANSWER % 1)
        await reader.read()
        writer.close()

    async def go() -> None:
        listener = await asyncio.start_server(answer_later, "127.0.0.1", 0)
        made = await capturing(path, listener.sockets[0].getsockname()[:2])
        number = int(made.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(sent)
        await came.wait()
        draining = asyncio.ensure_future(made.stop_accepting_and_drain())
        await until_closed(number)
        assert not draining.done()
        more.set()
        assert (await reader.read()).endswith(ANSWER % 1)  # and then the end of the connection
        await draining
        told = await made.end_capture()
        assert told["requests"] == 1 and not told["cut"] and not told["passed"]["in_flight"]
        writer.close()
        listener.close()
        await listener.wait_closed()

    run(go())


def test_a_request_that_the_end_cuts_is_counted_as_cut(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    came = asyncio.Event()

    async def answer_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}]}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + ANSWER % 1)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        came.set()
        writer.close()

    async def go() -> None:
        listener = await asyncio.start_server(answer_half, "127.0.0.1", 0)
        made = await capturing(path, listener.sockets[0].getsockname()[:2])
        number = int(made.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
        writer.write(f"POST {CHAT} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        await reader.readuntil(b"completion_tokens")
        told = await made.end_capture()
        assert told["requests"] == told["cut"] == 1
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await came.wait()
        writer.close()
        listener.close()
        await listener.wait_closed()

    run(go())


def test_a_taken_port_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"

    async def go() -> None:
        made = TrafficCapture(path)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            number = taken.getsockname()[1]
            with pytest.raises(InputError, match=f"port {number} of 127.0.0.1 cannot be opened"):
                await made.start(("127.0.0.1", 1), number)
            await made.abandon_capture()
        assert not path.exists()

    run(go())


def test_a_server_is_known_by_its_name_or_named(tmp_path: Path) -> None:
    async def go() -> None:
        async with server() as (_, port):
            made = await capturing(tmp_path / "made.jsonl", ("localhost", port))
            await ask(made.url, "hello")
            assert (await made.end_capture())["passed"]["refused"] == 0
        with pytest.raises(InputError, match=r"the address of nowhere\.invalid is not known"):
            await capturing(tmp_path / "none.jsonl", ("nowhere.invalid", 80))

    run(go())


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
            process.kill()
            await process.wait()
            await until_closed(int(url.rpartition(":")[2]))

    run(go())

    def written() -> bool:
        return path.read_bytes().count(b"\n") >= 50

    eventually(written, "50 lines")
    assert len(trace_file.read_trace(path).requests) >= 50


def test_a_capture_whose_writer_cannot_start_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "made.jsonl"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-such-python"))

    async def go() -> None:
        async with server() as place:
            with pytest.raises(FileNotFoundError):
                await capturing(path, place)

    run(go())
    assert not path.exists()
