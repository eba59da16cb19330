"""CPU time of the load client's process with one of its duties left out at a time, in turns with the
whole client and with the bare loop (clients/bare_client.py).

    python tests/benchmarks/bench_client_duties.py [--rows warm,paced,one] [--rounds 3] [--duties TEXT]

The difference to the whole client is what a duty costs. It includes what the caches do: a duty that
touches no memory of its own looks free. The start of each process is measured and subtracted. The
last line of a row is the bare loop itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "benchmarks")]

from workbench.bench import client, client_process, connection, text_chunk, worker  # noqa: E402
from workbench.bench.whole_answer import WholeAnswers  # noqa: E402
from workbench.bench.workload import Workload  # noqa: E402
from workbench.model.load_spec import BenchSpec  # noqa: E402

ROWS = {  # options of the server, streams, requests, warm-up, tokens of an answer
    "paced": (("--ttft-ms", "50", "--itl-ms", "10", "--exact"), 64, 256, 64, 128),
    "one": (("--ttft-ms", "0", "--itl-ms", "0", "--write-each"), 64, 29_936, 64, 1),
}
# Recorded answers from a socket, without a server and a load: less is measured, and more exactly.
WARM = "warm"
WARM_ANSWERS, WARM_TURNS = 768, 5
WHOLE, BARE = "the whole client", "bare Python loop"
REST_NS = 2_500_000


def keep_no_text() -> None:
    def is_text_chunk(self: Any, data: bytes) -> bool:
        head, trail = self._heads.get(len(data)), self._trail
        if head is not None and data.startswith(head) and data.endswith(trail):
            text = data[len(head) : len(data) - len(trail)]
            return bool(text) and not text.translate(None, text_chunk.PLAIN_TEXT_BYTES)
        return False

    text_chunk.TextChunk.is_text_chunk = is_text_chunk


def check_no_text() -> None:
    def is_text_chunk(self: Any, data: bytes) -> bool:
        head, trail = self._heads.get(len(data)), self._trail
        return head is not None and data.startswith(head) and data.endswith(trail)

    text_chunk.TextChunk.is_text_chunk = is_text_chunk


def compare_no_bytes() -> None:
    def is_text_chunk(self: Any, data: bytes) -> bool:
        return len(data) < 400 and data.endswith(self._trail)

    text_chunk.TextChunk.is_text_chunk = is_text_chunk
    WholeAnswers.find_answer = lambda self, data: self._by_length.get(len(data))


def trust_each_time() -> None:
    def stamp(self: Any, ancillary: Any) -> int:
        self.reads += 1
        if not ancillary:
            return time.monotonic_ns()
        seconds, nanoseconds = connection._unpack_timespec(ancillary[0][2])
        return int(seconds * 1_000_000_000 + nanoseconds - self.ahead_ns)

    connection.ReceiveClock.receive_time_ns = stamp


def ask_no_kernel_times() -> None:
    def receive(self: Any) -> tuple[bytes | None, int]:
        try:
            data = self.sock.recv(connection.READ_BYTES)
        except BlockingIOError:
            return None, 0
        self._clock.reads += 1
        return data, time.monotonic_ns()

    connection.Connection.receive_data_and_time_ns = receive


def sweep_nothing() -> None:
    def sweep(self: Any, now: int) -> None:
        self._pause.ns = self.clock.rest_ns = REST_NS if self.spec.max_tokens > 1 else 0
        self._whole_answers.renew_store_allowance()

    client.Client._run_periodic_checks = sweep


def send_no_records() -> None:
    client_process.WorkerOutput.write_record = lambda self, record: None


def repeat_the_prompt() -> None:
    bodies: dict[bool, bytes] = {}
    real = Workload.request_body

    def body(self: Any, index: int, *, warmup: bool) -> bytes:
        if warmup not in bodies:
            bodies[warmup] = real(self, index, warmup=warmup)
        return bodies[warmup]

    Workload.request_body = body


def sum_nothing_up() -> None:
    worker.final_message = lambda *_: {"type": "summary", "partial": False}


DUTIES: dict[str, Callable[[], None]] = {
    WHOLE: lambda: None,
    "text of the answers kept": keep_no_text,
    "text kept and checked for escapes": check_no_text,
    "text kept, checked and each byte compared": compare_no_bytes,
    "late reads and a set clock noticed": trust_each_time,
    "the kernel's time of each read": ask_no_kernel_times,
    "limits, progress, rests, CPU log, ten times a second": sweep_nothing,
    "records to the parent": send_no_records,
    "a prompt of its own for each request": repeat_the_prompt,
    "summary": sum_nothing_up,
}


WARM_DUTIES = [
    name for name, duty in DUTIES.items() if duty in (keep_no_text, check_no_text, compare_no_bytes)
]
WARM_DUTIES.append("late reads and a set clock noticed")


def cpu_of(duty: str, row: str, requests: int = 0) -> tuple[float, int, int]:
    """Return the CPU seconds of one process, and its requests and tokens."""
    # not in the process that is measured
    from bench_client_cpu import to_core
    from truth_server import TruthProcess

    options, streams, asked, warmup, tokens = ROWS[row]
    if requests:
        streams, asked, warmup = 1, requests, 0
    with TruthProcess(*options) as server:
        pid = server._process.pid
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(pid, {1})
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(20))
        if duty == BARE:
            program = ROOT / "tests/benchmarks/clients/bare_client.py"
            numbers = map(str, (streams, asked + warmup, tokens))
            argv, line = [sys.executable, "-I", "-S", str(program), server.url, *numbers], b""
        else:
            spec = BenchSpec(server.url, "m", concurrency=streams, requests=asked, salt="s")
            spec = dataclasses.replace(spec, warmup=warmup, max_tokens=tokens)
            fields = {**dataclasses.asdict(spec), "processes": 1}
            line = json.dumps(fields).encode() + b"\n"
            argv = [sys.executable, "-P", __file__, "--without", duty]
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: to_core(0, 10),
        )
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(line)
        child.stdin.flush()
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        server.stop()
    assert child.returncode == 0, said[-500:]
    sent = sum(len(one["sent_ns"]) for one in server.records)
    return used.ru_utime + used.ru_stime, len(server.records), sent


def warm_us() -> float:
    """Return the microseconds that this process takes to read and judge one token of recorded
    answers, whose objects are in the caches: the least of several turns."""
    from bench_text_checks import answer_of, replay

    answers = [answer_of(number, 128) for number in range(WARM_ANSWERS)]
    tokens = 128 * len(answers)
    return min(replay(answers, 128, checks=True) for _ in range(WARM_TURNS)) / 1000 / tokens


def warm_bare_us() -> float:
    """Return the microseconds that the reads and times alone take."""
    from bench_text_checks import answer_of

    pieces = answer_of(0, 128)
    unpack, room = connection._unpack_timespec, socket.CMSG_SPACE(16)
    turns = []
    for _ in range(400):
        server, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader.setsockopt(socket.SOL_SOCKET, connection._SO_TIMESTAMPNS, 1)
        for piece in pieces:
            server.send(piece)
        stamps: list[int] = []
        began = time.thread_time_ns()
        for _ in pieces:
            data, ancillary, _, _ = reader.recvmsg(connection.READ_BYTES, room)
            seconds, nanoseconds = unpack(ancillary[0][2]) if ancillary else (0, len(data))
            stamps.append(seconds * 1_000_000_000 + nanoseconds)
        turns.append(time.thread_time_ns() - began)
        server.close()
        reader.close()
    return min(turns) / 1000 / 128


def told_warm(rounds: int, wanted: str) -> None:
    found: dict[str, list[float]] = defaultdict(list)
    names = [WHOLE, *(name for name in WARM_DUTIES if wanted in name), BARE]
    for _ in range(rounds):
        for name in names:
            argv = [sys.executable, "-P", __file__, "--rows", WARM, "--without", name]
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
            found[name].append(float(done.stdout))
    least = {name: min(each) for name, each in found.items()}
    print(f"{WARM}: {WHOLE} {least[WHOLE]:.2f} us a token, the least of {rounds} processes")
    for name in names[1:]:
        us = least[name] if name == BARE else least[WHOLE] - least[name]
        print(f"    {name}: {us:.2f} us")
    print(f"    load {os.getloadavg()[0]:.1f}", flush=True)


def of_one(duty: str, row: str) -> float:
    """Return the CPU microseconds of one token or request, without the start of the process."""
    start_s = cpu_of(duty, row, 1)[0]
    cpu_s, requests, tokens = cpu_of(duty, row)
    return 1e6 * (cpu_s - start_s) / (tokens if row == "paced" else requests)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join((WARM, *ROWS)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duties", default="", metavar="TEXT", help="only those with this text")
    parser.add_argument("--without", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.without and chosen.rows == WARM:
        DUTIES.get(chosen.without, lambda: None)()
        print(warm_bare_us() if chosen.without == BARE else warm_us())
        return 0
    if chosen.without:
        DUTIES[chosen.without]()
        sys.argv = sys.argv[:1]
        return worker.main()
    for row in chosen.rows.split(","):
        if row == WARM:
            told_warm(chosen.rounds, chosen.duties)
            continue
        per = "token" if row == "paced" else "request"
        names = [name for name in (*DUTIES, BARE) if name != WHOLE and chosen.duties in name]
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for _ in range(chosen.rounds):
            for name in names:  # each beside the whole client, as other work changes both
                found[name].append((of_one(WHOLE, row), of_one(name, row)))
        every = [whole for each in found.values() for whole, _ in each]
        middle = statistics.median(every)
        print(f"{row}: {WHOLE} {middle:.2f} us a {per} ({min(every):.2f} to {max(every):.2f})")
        for name, pairs in found.items():
            share = statistics.median(other / whole for whole, other in pairs)
            least, most = (pick(other / whole for whole, other in pairs) for pick in (min, max))
            us = share * middle if name == BARE else (1 - share) * middle
            print(f"    {name}: {us:.2f} us (ratios {share:.3f}, {least:.3f} to {most:.3f})")
        print(f"    load {os.getloadavg()[0]:.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
