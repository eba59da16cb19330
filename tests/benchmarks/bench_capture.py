"""Measure what the port of `workbench trace capture` costs, and check what it passes on and keeps.

    python tests/benchmarks/bench_capture.py [--requests 500] [--rounds 10] [--words 10000]
        [--streams 1] [--events 40] [--seconds N]

A server answers streams of known bytes. Each request goes to it directly, through the port, and
through a bare relay, in all orders in turn, and every byte is compared on each way. The bare relay is
the least that a process in Python can do between two connections: it receives and sends. The requests
contain planted words. Then the command is killed, and its file must have all requests, as whole lines,
and none of the words. The times are those until the first byte of an answer's body.

Other work on the machine makes single times longer by a whole time slice, on either way, so p99 of
one round is mostly noise. Each round gives the p99 of each way and their differences; the median of
these differences over the rounds is compared with the goal of 0.3 ms, and its interval (of 95 %, by
order statistics) says whether the noise allows an answer. The median of the pairs' differences and
the CPU time of the port's processes for a request depend little on other work. With fewer events in an
answer, a round is shorter. No round begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from itertools import permutations
from math import comb
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "benchmarks")]

from support.procs import eventually  # noqa: E402
from terminal import load_1m  # noqa: E402

from workbench.bench import trace_file  # noqa: E402

EVENTS = int(os.environ.get("EVENTS", "40"))  # of an answer
EVENT_S = 0.0005  # between them
CHAT = "/v1/chat/completions"
WAYS = ("directly", "bare relay", "through the port")
ORDERS = tuple(permutations(range(len(WAYS))))
USAGE = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":8}}'


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


def relay(port: int) -> None:
    """Pass on what each connection sends to the server at `port`, and back, with one epoll."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    far_of: dict[int, tuple[socket.socket, socket.socket]] = {}
    ready = select.epoll()
    ready.register(listener, select.EPOLLIN)
    while True:
        for number, _ in ready.poll():
            if number == listener.fileno():
                client = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", port))
                for near, far in ((client, server), (server, client)):
                    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    far_of[near.fileno()] = near, far
                    ready.register(near, select.EPOLLIN)
                continue
            near, far = far_of[number]
            data = near.recv(1 << 16)
            if data:
                far.sendall(data)
            else:
                ready.unregister(near)
                far.shutdown(socket.SHUT_WR)


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
    ports: tuple[int, ...], numbers: range, words: list[str], took: list[list[float]]
) -> None:
    ways = [socket.create_connection(("127.0.0.1", port)) for port in ports]
    for number in numbers:
        body = body_of(number, words)
        for way in ORDERS[number % len(ORDERS)]:
            took[way].append(ask(ways[way], number, body))
    for way in ways:
        way.close()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of its children, which the command waits for at its end."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(cpu_s(one) for one in (pid, *map(int, children)))


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Return (median, low, high) of the 95 % interval of the median, by order statistics: the whole
    range if there are too few values."""
    ordered, many = sorted(values), len(values)
    out = 0
    while 2 * sum(comb(many, k) for k in range(out + 1)) / 2**many <= 0.05:
        out += 1
    place = max(out - 1, 0)
    return median(ordered), ordered[place], ordered[many - 1 - place]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--relay", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(0)
        return
    if options.relay is not None:
        relay(options.relay)
        return
    if options.events != EVENTS:  # the server's process needs them too
        os.environ["EVENTS"] = str(options.events)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    words = [
        f"planted{hashlib.sha256(str(n).encode()).hexdigest()[:10]}" for n in range(options.words)
    ]
    server, port = started("--serve")
    bare, relayed = started("--relay", str(port))
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
            run(options, (port, relayed, through), words, path, capture)
        finally:
            for process in (capture, bare, server):
                process.kill()


def started(*words: str) -> tuple[subprocess.Popen[str], int]:
    """Start a part of this script as a process. Return it and its port."""
    process = subprocess.Popen(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def run(
    options: argparse.Namespace,
    ports: tuple[int, ...],
    words: list[str],
    path: Path,
    capture: subprocess.Popen[str],
) -> None:
    until_s = time.monotonic() + options.seconds
    rounds: list[list[list[float]]] = []
    before_s = processes_cpu_s(capture.pid)
    for begin in range(0, options.requests * options.rounds, options.requests):
        if time.monotonic() >= until_s:
            break
        took: list[list[float]] = [[] for _ in ports]
        threads = [
            threading.Thread(
                target=stream,
                args=(
                    ports,
                    range(begin + first, begin + options.requests, options.streams),
                    words,
                    took,
                ),
            )
            for first in range(options.streams)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(each) for each in took] == [options.requests] * len(ports), "a stream failed"
        rounds.append(took)
    every = options.requests * len(rounds)
    cpu_ms = 1000 * (processes_cpu_s(capture.pid) - before_s) / every
    capture.kill()
    # the last answers may come just before the kill
    least = every - options.streams
    eventually(lambda: path.read_bytes().count(b"\n") >= least, "the lines")
    written = path.read_text()
    found = [word for word in words if word in written]
    read = trace_file.read_trace(path)
    print(f"{'TTFT, ms':<22}{'p10':>8}{'p50':>8}{'p90':>8}{'p99':>8}")
    for way, name in enumerate(WAYS):
        values = [each for took in rounds for each in took[way]]
        figures = [1000 * percentile(values, share) for share in (0.1, 0.5, 0.9, 0.99)]
        print(f"{name:<22}" + "".join(f"{one:8.3f}" for one in figures))
    for share in (0.99, 0.5):
        for way, less in ((2, 0), (1, 0), (2, 1)):
            name = f"p{100 * share:.0f} of a round, {WAYS[way]} minus {WAYS[less]}"
            tell(name, [difference_ms(took, way, less, share) for took in rounds])
    print(
        f"{every:,} requests each way, {options.streams} at once, every byte equal; after a "
        f"kill {len(read.requests)} whole lines; {len(found)} of {len(words):,} planted words in the "
        f"file; load {load_1m():.1f}; the port's processes took {cpu_ms:.2f} ms of CPU for a request "
        f"of {EVENTS} events"
    )


def difference_ms(took: list[list[float]], way: int, less: int, share: float) -> float:
    return 1000 * (percentile(took[way], share) - percentile(took[less], share))


def tell(name: str, differences_ms: list[float]) -> None:
    middle, low, high = median_interval(differences_ms)
    print(
        f"{name}: median {middle:+.3f} ms ({low:+.3f} to {high:+.3f}), {len(differences_ms)} rounds"
    )


if __name__ == "__main__":
    main()
