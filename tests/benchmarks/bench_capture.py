"""Measure what the port of `workbench trace capture` costs, and check what it passes on and keeps.

    python tests/benchmarks/bench_capture.py [--requests 500] [--sets 4] [--turn 25] [--words 10000]
        [--pin] [--first] [--seconds N]

A server answers each request after 20 to 40 ms, the same time for the same request on each way, with a
stream of known bytes. Requests go to it directly, through the port, and through a bare relay, and
every byte is compared on each way. The bare relay is the least that a process in Python can do between
two connections: it receives and sends. The ways take short turns in the order of ABBA (directly,
relay, port, port, relay, directly), so a drift of the machine hits all of them, and what the port does
after an answer falls into its own turn. The requests contain planted words. Then the command is
killed, and its file must have all requests, as whole lines, and none of the words.

The time of a request is that until the first byte of the answer's body, less the time that the
server says it took itself: what is left is added by the way, at its full weight. (The server's times
differ by 20 ms, so p99 of the whole time is that of the slowest answers, and hides rare delays of the
way. It is printed beside.) The interval of a difference is that of 95 % of 2,000 samples of the turns,
drawn with replacement. The verdict compares its upper end with the goal of 0.3 ms.

With --pin, the client and the server run on one core and the port on another. With --first, all
processes of this script get priority over other work, which needs root. No turn begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
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
WAYS = ("directly", "bare relay", "through the port")
DIRECT, BARE, PORT = range(len(WAYS))
CYCLE = (DIRECT, BARE, PORT, PORT, BARE, DIRECT)
GOAL_MS = 0.3
SAMPLES = 2000
CLIENT_CORE, PORT_CORE = 0, 1
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


def field(head: bytes, name: bytes) -> int:
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
        if not found or len(body) < field(head, b"content-length"):
            continue
        began_ns = time.perf_counter_ns()
        digest = hashlib.sha256(came).hexdigest().encode()
        number, came = field(head, b"x-number"), b""
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


def ask(connection: socket.socket, number: int, body: bytes) -> tuple[float, float]:
    """Send a request and check the bytes on both ways. Return the milliseconds until the first byte
    of the answer's body, and without those that the server took."""
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
    took_ns = field(came, b"x-took-ns")
    expected = HEAD % (hashlib.sha256(sent).hexdigest().encode(), took_ns)
    assert came == expected + b"".join(events(number)), "other bytes"
    return first_ns / 1e6, (first_ns - took_ns) / 1e6


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=500, help="of each way, in a set")
    parser.add_argument("--sets", type=int, default=4)
    parser.add_argument("--turn", type=int, default=25, help="requests of a turn")
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--relay", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if options.relay is not None:
        relay(options.relay)
        return
    ahead = go_first if options.first else None
    if ahead is not None:
        ahead()
    cores = sorted(os.sched_getaffinity(0))
    pinned = options.pin and len(cores) > 1
    words = [
        f"planted{hashlib.sha256(str(n).encode()).hexdigest()[:10]}" for n in range(options.words)
    ]
    if pinned:
        os.sched_setaffinity(0, {cores[CLIENT_CORE]})
    server, port = started("--serve", ahead=ahead)
    if pinned:
        os.sched_setaffinity(0, {cores[PORT_CORE]})
    bare, relayed = started("--relay", str(port), ahead=ahead)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "captured.jsonl")
        argv = ["trace", "capture", "--url", f"http://127.0.0.1:{port}", "-o", str(path)]
        capture = subprocess.Popen(
            [sys.executable, "-m", "workbench", *argv],
            env={**os.environ, "XDG_STATE_HOME": directory, "XDG_DATA_HOME": directory},
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=ahead,
        )
        if pinned:
            os.sched_setaffinity(0, {cores[CLIENT_CORE]})
        try:
            assert capture.stderr is not None
            through = int(capture.stderr.readline().split()[0].rpartition(":")[2])
            run(options, (port, relayed, through), words, path, capture)
        finally:
            for process in (capture, bare, server):
                process.kill()


def go_first() -> None:
    """Give this process priority over all other work. The processes that it starts do not have it:
    the writer of a capture is to stand back behind the port."""
    policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
    os.sched_setscheduler(0, policy, os.sched_param(RR_PRIORITY))


def started(*words: str, ahead: Callable[[], None] | None) -> tuple[subprocess.Popen[str], int]:
    """Start a part of this script as a process. Return it and its port."""
    process = subprocess.Popen(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, preexec_fn=ahead
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
    gc.disable()
    until_s = time.monotonic() + options.seconds
    connections = [socket.create_connection(("127.0.0.1", port)) for port in ports]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    whole: list[Turns] = [[] for _ in WAYS]
    added: list[Turns] = [[] for _ in WAYS]
    before_s = processes_cpu_s(capture.pid)
    for cycle in range(options.sets * options.requests // (2 * options.turn)):
        if time.monotonic() >= until_s:
            break
        begin = 2 * cycle * options.turn
        halves = (
            range(begin, begin + options.turn),
            range(begin + options.turn, begin + 2 * options.turn),
        )
        for place, way in enumerate(CYCLE):
            numbers = halves[place >= len(WAYS)]
            took = [ask(connections[way], n, body_of(n, words)) for n in numbers]
            whole[way].append([ms for ms, _ in took])
            added[way].append([ms for _, ms in took])
    every = sum(map(len, whole[PORT]))
    cpu_ms = 1000 * (processes_cpu_s(capture.pid) - before_s) / every
    capture.kill()
    # the last answer may come just before the kill
    eventually(lambda: path.read_bytes().count(b"\n") >= every - 1, "the lines")
    written = path.read_text()
    found = [word for word in words if word in written]
    read = trace_file.read_trace(path)
    tell_percentiles("TTFT, ms", whole)
    tell_percentiles("without the server's, ms", added)
    tell_differences("TTFT", whole)
    verdict = tell_differences("added", added)
    print(
        f"{every:,} requests each way in turns of {options.turn}, every byte equal; after a "
        f"kill {len(read.requests)} whole lines; {len(found)} of {len(words):,} planted words in the "
        f"file; load {load_1m():.1f}; the port's processes took {cpu_ms:.2f} ms of CPU for a request "
        f"of {EVENTS} events"
    )
    print(f"verdict: {verdict}")


def tell_percentiles(title: str, ways: list[Turns]) -> None:
    print(f"{title:<26}{'p10':>8}{'p50':>8}{'p90':>8}{'p99':>8}")
    for name, turns in zip(WAYS, ways, strict=True):
        values = list(chain.from_iterable(turns))
        figures = [percentile(values, share) for share in (0.1, 0.5, 0.9, 0.99)]
        print(f"{name:<26}" + "".join(f"{one:8.3f}" for one in figures))


def tell_differences(title: str, ways: list[Turns]) -> str:
    """Print what each way adds to p50 and p99. Return what that of the port says about the goal."""
    verdict = ""
    for share in (0.5, 0.99):
        for way, less in ((BARE, DIRECT), (PORT, DIRECT), (PORT, BARE)):
            middle, low, high = difference_ms(ways[way], ways[less], share)
            name = f"{title} p{100 * share:.0f}, {WAYS[way]} minus {WAYS[less]}"
            print(f"{name}: {middle:+.3f} ms ({low:+.3f} to {high:+.3f})")
            if (way, less) == (PORT, DIRECT):
                verdict = verdict_of(middle, low, high)
    return verdict


def verdict_of(middle: float, low: float, high: float) -> str:
    said = (
        f"the port adds {middle:+.3f} ms ({low:+.3f} to {high:+.3f}) to p99; the goal is {GOAL_MS}"
    )
    if high <= GOAL_MS:
        return f"{said}: kept"
    if low > GOAL_MS:
        return f"{said}: not kept"
    return f"{said}: open, the interval contains it"


if __name__ == "__main__":
    main()
