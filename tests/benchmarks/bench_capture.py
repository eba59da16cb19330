"""Measure what the port of `workbench trace capture` costs, and check what it passes on and keeps.

    python tests/benchmarks/bench_capture.py [--requests 500] [--words 10000] [--streams 1]

A server answers streams of known bytes. Requests go to it directly and through the port in turn, and
every byte is compared on both ways. The requests contain planted words. Then the command is killed,
and its file must have all requests, as whole lines, and none of the words. The times are those until
the first byte of an answer's body. Other work on the machine changes both ways alike: it is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "benchmarks")]

from support.procs import eventually  # noqa: E402
from terminal import load_1m  # noqa: E402

from workbench.bench import trace_file  # noqa: E402

EVENTS = 40  # of an answer
EVENT_S = 0.0005  # between them
CHAT = "/v1/chat/completions"
USAGE = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":40}}'


def events(number: int) -> list[bytes]:
    """Return the chunks of the answer to a request."""
    said = [
        b'data: {"choices":[{"delta":{"content":"%d.%d"}}]}\n\n' % (number, n)
        for n in range(EVENTS)
    ]
    parts = [*said, b"data: " + USAGE % 700 + b"\n\n", b"data: [DONE]\n\n"]
    return [b"%x\r\n%s\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-sha: %s\r\n\r\n"


class Server(asyncio.Protocol):
    """Answers with the digest of each request, and then with events."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if not found or len(body) < size:
            return
        digest = hashlib.sha256(self.buffer).hexdigest().encode()
        self.buffer = b""
        number = int(head.partition(b"x-number: ")[2].partition(b"\r\n")[0] or 0)
        self.answering = asyncio.ensure_future(self._answer(number, digest))

    async def _answer(self, number: int, digest: bytes) -> None:
        self.transport.write(HEAD % digest)
        for part in events(number):
            self.transport.write(part)
            await asyncio.sleep(EVENT_S)


def serve(port: int) -> None:
    async def go() -> None:
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", port)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.sleep(3600)

    asyncio.run(go())


def body_of(number: int, words: list[str]) -> bytes:
    """Return the request: a system prompt that all share, and words of its own."""
    own = [words[(number * 20 + n) % len(words)] for n in range(20)]
    said = [
        {"role": "system", "content": "You are careful, and you say what you know. " * 50},
        {"role": "user", "content": " ".join(own)},
    ]
    return json.dumps({"messages": said, "stream": True}).encode()


def ask(connection: socket.socket, number: int, body: bytes) -> float:
    """Send a request, check the bytes on both ways, and return the seconds until the first byte of
    the answer's body."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer secret-key\r\nx-number: {number}\r\n"
    sent = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    begin = time.perf_counter()
    connection.sendall(sent)
    expected = HEAD % hashlib.sha256(sent).hexdigest().encode() + b"".join(events(number))
    came, first_s = b"", 0.0
    while len(came) < len(expected):
        part = connection.recv(1 << 16)
        assert part, "the connection ended"
        came += part
        if not first_s and not came.endswith(b"\r\n\r\n"):
            first_s = time.perf_counter() - begin
        first_s = first_s or (time.perf_counter() - begin if b"\r\n\r\n" in came else 0.0)
    assert came == expected, "other bytes"
    return first_s


def stream(
    ports: tuple[int, int], numbers: range, words: list[str], took: list[list[float]]
) -> None:
    ways = [socket.create_connection(("127.0.0.1", port)) for port in ports]
    for number in numbers:
        body = body_of(number, words)
        for way in (0, 1) if number % 2 else (1, 0):
            took[way].append(ask(ways[way], number, body))
    for way in ways:
        way.close()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(0)
        return
    words = [
        f"planted{hashlib.sha256(str(n).encode()).hexdigest()[:10]}" for n in range(options.words)
    ]
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "captured.jsonl")
        argv = ["trace", "capture", "--url", f"http://127.0.0.1:{port}", "-o", str(path)]
        capture = subprocess.Popen(
            [sys.executable, "-m", "workbench", *argv],
            env={**os.environ, "XDG_STATE_HOME": directory, "XDG_DATA_HOME": directory},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert capture.stderr is not None
            through = int(capture.stderr.readline().split()[0].rpartition(":")[2])
            run(options, (port, through), words, path, capture)
        finally:
            capture.kill()
            server.kill()


def run(
    options: argparse.Namespace,
    ports: tuple[int, int],
    words: list[str],
    path: Path,
    capture: subprocess.Popen[str],
) -> None:
    took: list[list[float]] = [[], []]
    threads = [
        threading.Thread(
            target=stream,
            args=(ports, range(first, options.requests, options.streams), words, took),
        )
        for first in range(options.streams)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu_ms = 1000 * cpu_s(capture.pid) / options.requests
    capture.kill()
    assert [len(each) for each in took] == [options.requests] * 2, "a stream failed"
    # the last answers may come just before the kill
    least = options.requests - options.streams
    eventually(lambda: path.read_bytes().count(b"\n") >= least, "the lines")
    written = path.read_text()
    found = [word for word in words if word in written]
    read = trace_file.read(path)
    print(f"{'TTFT, ms':<22}{'p10':>8}{'p50':>8}{'p90':>8}{'p99':>8}")
    for name, values in zip(("directly", "through the port"), took, strict=True):
        figures = [1000 * percentile(values, share) for share in (0.1, 0.5, 0.9, 0.99)]
        print(f"{name:<22}" + "".join(f"{one:8.3f}" for one in figures))
    print(
        f"{options.requests} requests each way, {options.streams} at once, every byte equal; after a "
        f"kill {len(read.requests)} whole lines; {len(found)} of {len(words):,} planted words in the "
        f"file; load {load_1m():.1f}; the port's process took {cpu_ms:.2f} ms of CPU for a request of "
        f"{EVENTS} events, its start included"
    )


if __name__ == "__main__":
    main()
