"""Measure what the port of `workbench trace capture` costs, and check what it passes on and keeps.

    python tests/benchmarks/bench_capture.py [--requests 500] [--turn 25] [--pauses 0,0.02]
        [--beside TREE]... [--words 10000] [--first] [--seconds N]

A server answers each request after 20 to 40 ms, the same time for the same request on each way, with a
stream of known bytes. Requests go to it directly, through a relay in C, through a bare relay in Python
and through the port, one at a time, and every byte is compared on each way. The relays only receive
and send: what the one in C adds is the machine's own, and the one in Python is the least that Python
can do. --beside adds the port of another checkout. The ways take short turns, forwards and then
backwards, so a drift of the machine hits all of them, and what the port does after an answer falls
into its own turn. The requests contain planted words. At the end the command is killed, and its file
must have all requests, as whole lines, and none of the words.

Each of `--pauses` is a case: the seconds between an answer and the next request. Without a pause, what
the port does after an answer meets the next request; with one, requests come as from a person.

The time of a request is that until the first byte of the answer's body, less the time that the
server says it took itself: what is left is added by the way, at its full weight. (The server's times
differ by 20 ms, so p99 of the whole time is that of the slowest answers, and hides rare delays of the
way.) The interval of a difference is that of 95 % of 2,000 samples of the turns, drawn with
replacement. The verdict compares its upper end with the goal of 0.3 ms.

With --first, all processes of this script get priority over other work, which needs root. No turn
begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "benchmarks")]

from support.procs import eventually  # noqa: E402
from terminal import load_1m  # noqa: E402

from workbench.bench import trace_file  # noqa: E402

EVENTS = 8  # of an answer
EVENT_S = 0.0005  # between them
FIRST_S = (0.020, 0.040)  # until the first one
CHAT = "/v1/chat/completions"
DIRECT = "directly"
C_RELAY, BARE, PORT = "C relay", "bare relay", "port"
GOAL_MS = 0.3
FEWEST_TURNS = 10  # with fewer, their samples are too much alike
SAMPLES = 2000
C_SOURCE = Path(__file__).parent / "clients" / "relay.c"
RR_PRIORITY = 20
USAGE = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":8}}'
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"x-sha: %s\r\nx-took-ns: %d\r\n\r\n"
)


def events(number: int) -> list[bytes]:
    """Return the chunks of the answer to a request."""
    said = [
        b'data: {"choices":[{"delta":{"content":"%d.%d"}}]}\n\n' % (number, n)
        for n in range(EVENTS)
    ]
    parts = [*said, b"data: " + USAGE % 700 + b"\n\n", b"data: [DONE]\n\n"]
    return [b"%x\r\n%s\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]


def header(head: bytes, name: bytes) -> int:
    return int(head.partition(name + b": ")[2].partition(b"\r\n")[0] or 0)


def serve() -> None:
    """Answer the requests of each connection in a thread, with the digest of each request and with
    events. A blocking call wakes at its time; asyncio's timers are exact to 1 ms."""
    gc.disable()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection = listener.accept()[0]
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answer_requests, args=(connection,), daemon=True).start()


def answer_requests(connection: socket.socket) -> None:
    came = b""
    while data := connection.recv(1 << 16):
        came += data
        head, found, body = came.partition(b"\r\n\r\n")
        if not found or len(body) < header(head, b"content-length"):
            continue
        began_ns = time.perf_counter_ns()
        digest = hashlib.sha256(came).hexdigest().encode()
        number, came = header(head, b"x-number"), b""
        first, *rest = events(number)
        time.sleep(random.Random(number).uniform(*FIRST_S))
        took_ns = time.perf_counter_ns() - began_ns
        connection.sendall(HEAD % (digest, took_ns) + first)
        for part in rest:
            time.sleep(EVENT_S)
            connection.sendall(part)


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
    """Send a request and check the bytes on both ways. Return the milliseconds until the first byte
    of the answer's body, without those that the server took."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer secret-key\r\nx-number: {number}\r\n"
    sent = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    begin_ns = time.perf_counter_ns()
    connection.sendall(sent)
    came, first_ns = b"", 0
    while not came.endswith(b"\r\n0\r\n\r\n"):
        part = connection.recv(1 << 16)
        now_ns = time.perf_counter_ns()
        assert part, "the connection ended"
        came += part
        if not first_ns and came.partition(b"\r\n\r\n")[2]:
            first_ns = now_ns - begin_ns
    took_ns = header(came, b"x-took-ns")
    expected = HEAD % (hashlib.sha256(sent).hexdigest().encode(), took_ns)
    assert came == expected + b"".join(events(number)), "other bytes"
    return (first_ns - took_ns) / 1e6


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of its children, which the command waits for at its end."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(cpu_s(one) for one in (pid, *map(int, children)))


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


Turns = list[list[float]]  # the times of each turn of a way


def difference_ms(way: Turns, less: Turns, share: float) -> tuple[float, float, float]:
    """Return (difference of a percentile, low, high end of its 95 % interval)."""
    rng = random.Random(1)

    def of(turns: Sequence[list[float]]) -> float:
        return percentile(list(chain.from_iterable(turns)), share)

    places = range(len(way))
    drawn = []
    for _ in range(SAMPLES):
        sample = rng.choices(places, k=len(way))
        drawn.append(of([way[n] for n in sample]) - of([less[n] for n in sample]))
    drawn.sort()
    return of(way) - of(less), drawn[int(0.025 * SAMPLES)], drawn[int(0.975 * SAMPLES)]


@dataclass
class Way:
    """A way to the server. `added_ms` has the times of each turn of a case."""

    name: str
    port: int
    capture: Capture | None = None
    added_ms: Turns = field(default_factory=list)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class Capture:
    """The command `trace capture` of a checkout, in front of the server at `port`."""

    def __init__(self, tree: Path, port: int, directory: Path) -> None:
        self.path = directory / "captured.jsonl"
        argv = ("trace", "capture", "--url", f"http://127.0.0.1:{port}", "-o", str(self.path))
        home = {"XDG_STATE_HOME": str(directory), "XDG_DATA_HOME": str(directory)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workbench", *argv],
            cwd=tree,
            env={**os.environ, **home, "PYTHONPATH": str(tree)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.port = int(self.process.stderr.readline().split()[0].rpartition(":")[2])
        self.began_cpu_s = processes_cpu_s(self.process.pid)

    def check_after_kill(self, requests: int, words: list[str]) -> str:
        """Kill the command. Return what its file says."""
        cpu_ms = 1000 * (processes_cpu_s(self.process.pid) - self.began_cpu_s) / requests
        self.process.kill()
        # the last answer may come just before the kill
        eventually(lambda: self.path.read_bytes().count(b"\n") >= requests - 1, "the lines")
        written = self.path.read_text()
        found = [word for word in words if word in written]
        lines = len(trace_file.read_trace(self.path).requests)
        return (
            f"after a kill {lines:,} whole lines of {requests:,} requests; {len(found)} of "
            f"{len(words):,} planted words in the file; {cpu_ms:.2f} ms of CPU for a request of "
            f"{EVENTS} events"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=500, help="of each way and case")
    parser.add_argument("--turn", type=int, default=25, help="requests of a turn")
    parser.add_argument("--pauses", default="0,0.02", help="s between requests, one for a case")
    parser.add_argument("--beside", type=Path, action="append", default=[])
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--relay", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
    elif options.relay is not None:
        relay(options.relay)
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    if options.first:
        go_first()
    own = (sys.executable, __file__)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as started:
        port = start_part(started, *own, "--serve")
        ways = [Way(DIRECT, port)]
        if built := build_c_relay(Path(directory)):
            ways.append(Way(C_RELAY, start_part(started, built, str(port))))
        ways.append(Way(BARE, start_part(started, *own, "--relay", str(port))))
        for number, tree in enumerate((ROOT, *options.beside)):
            home = Path(directory, str(number))
            home.mkdir()
            capture = Capture(tree.resolve(), port, home)
            started.callback(capture.process.kill)
            ways.append(Way(f"{PORT} of {tree}" if number else PORT, capture.port, capture))
        run(options, ways)


def go_first() -> None:
    """Give this process and those that it starts priority over other work."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(RR_PRIORITY))


def build_c_relay(directory: Path) -> str | None:
    """Build the relay in C. Return its path, None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("no C compiler: without the relay in C")
        return None
    built = str(directory / "relay")
    subprocess.run((compiler, "-O2", "-o", built, str(C_SOURCE)), check=True)
    return built


def start_part(started: ExitStack, *argv: str) -> int:
    """Start a part of this benchmark as a process. Return its port."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    started.callback(process.kill)
    assert process.stdout is not None
    return int(process.stdout.readline())


def run(options: argparse.Namespace, ways: list[Way]) -> None:
    gc.disable()
    words = [
        f"planted{hashlib.sha256(str(n).encode()).hexdigest()[:10]}" for n in range(options.words)
    ]
    until_s = time.monotonic() + options.seconds
    numbers = count()
    for pause_s in map(float, options.pauses.split(",")):
        if time.monotonic() >= until_s:
            print(f"no time was left for a pause of {1000 * pause_s:.0f} ms")
            continue
        run_case(options, ways, pause_s, words, numbers, until_s)
    every = next(numbers)
    for way in ways:
        if way.capture is not None:
            print(f"{way.name}: every byte equal; {way.capture.check_after_kill(every, words)}")


def run_case(
    options: argparse.Namespace,
    ways: list[Way],
    pause_s: float,
    words: list[str],
    numbers: Iterator[int],
    until_s: float,
) -> None:
    """Send the requests of one case on each way, and print what the ways add."""
    connections = {way.name: way.connect() for way in ways}
    for way in ways:
        way.added_ms = []
    stolen_s, began_s = stolen_cpu_s(), time.monotonic()
    for _ in range(options.requests // (2 * options.turn)):
        if time.monotonic() >= until_s:
            break
        for order in (ways, ways[::-1]):
            turn = list(islice(numbers, options.turn))
            for way in order:
                took = []
                for number in turn:
                    time.sleep(pause_s)
                    took.append(ask(connections[way.name], number, body_of(number, words)))
                way.added_ms.append(took)
    for connection in connections.values():
        connection.close()
    each = sum(map(len, ways[0].added_ms))
    print(
        f"## pause {1000 * pause_s:.0f} ms, {each:,} requests each way in turns of {options.turn}; load "
        f"{load_1m():.1f}; {time.monotonic() - began_s:.0f} s, of which the host took the CPUs for "
        f"{stolen_cpu_s() - stolen_s:.2f} s"
    )
    tell_percentiles(ways)
    tell_differences(ways)


def stolen_cpu_s() -> float:
    """Return how long the virtual CPUs wanted to run and the host gave them no core."""
    fields = Path("/proc/stat").read_text().split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def tell_percentiles(ways: list[Way]) -> None:
    print(f"{'ms without the server':<26}{'p10':>8}{'p50':>8}{'p90':>8}{'p99':>8}")
    for way in ways:
        values = list(chain.from_iterable(way.added_ms))
        figures = [percentile(values, share) for share in (0.1, 0.5, 0.9, 0.99)]
        print(f"{way.name:<26}" + "".join(f"{one:8.3f}" for one in figures))


def tell_differences(ways: list[Way]) -> None:
    """Print what each way adds to p50 and p99, and what the port does beyond the others."""
    direct = ways[0]
    for share in (0.5, 0.99):
        for way in ways[1:]:
            tell_difference(way, direct, share)
        port = next(way for way in ways if way.name == PORT)
        for way in ways[1:]:
            if way is not port:
                tell_difference(port, way, share)


def tell_difference(way: Way, less: Way, share: float) -> None:
    middle, low, high = difference_ms(way.added_ms, less.added_ms, share)
    said = f"p{100 * share:.0f}, {way.name} minus {less.name}: {middle:+.3f} ms "
    said += f"({low:+.3f} to {high:+.3f})"
    if (way.name, less.name, share) == (PORT, DIRECT, 0.99):
        said += f"; the goal is {GOAL_MS}: {verdict_of(len(way.added_ms), low, high)}"
    print(said)


def verdict_of(turns: int, low: float, high: float) -> str:
    if turns < FEWEST_TURNS:
        return "too few turns for a verdict"
    if high <= GOAL_MS:
        return "kept"
    if low > GOAL_MS:
        return "not kept"
    return "open, the interval contains it"


if __name__ == "__main__":
    main()
