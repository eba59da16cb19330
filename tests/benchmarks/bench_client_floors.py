"""The floors of the load client's CPU: what each step of its work costs at the least, beside the C client.

    python tests/benchmarks/bench_client_floors.py [--rows paced,drain,one] [--rounds 3] [--kept-apart]

A loop in Python without objects (clients/stepped_client.py) does the work up to one step, then up to
the next. "+ the start of the command" adds the CPU time of a whole `workbench bench` of four requests,
"the command" is the whole `workbench bench` with its load. If a step above it already takes more than
the goal, Python cannot reach the goal with these system calls.

All programs of a round take turns, and each row has the ratios to the C client of the same rounds. The
server has core 1 and the clients core 0, before other programs where that is allowed.

`--kept-apart` asks the kernel: if several chunks of one stream wait, and each is read by itself, has
each its own time? Only then could the client rest for longer than the time between two chunks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from statistics import median

from bench_client_cpu import ROOT, command, to_core
from truth_server import TruthProcess

PACED = ("--ttft-ms", "50", "--itl-ms", "10", "--exact")
EACH = ("--ttft-ms", "0", "--itl-ms", "0", "--write-each")
# options of the server, streams, requests, tokens of an answer, seconds of starts, rest in ms, goal x C
ROWS = {
    "paced": (PACED, 64, 768, 128, 1.3, 2.5, 2.5),
    "drain": (EACH, 64, 3072, 256, 0.0, 0.0, 1.8),
    "one": (EACH, 64, 30_000, 1, 0.0, 0.0, 4.0),
}
COMMAND_ROWS = {"paced": "paced", "drain": "drain", "one": "one long"}  # of bench_client_cpu.py
STEPS = {
    "read": "epoll, recvmsg with the kernel's time",
    "text": "+ the text found, checked and kept",
    "record": "+ a record for each answer",
    "prompt": "+ a prompt for each request",
    "starts": "+ streams that start one after the other",
    "rest": "+ rests between the reads",
}
C, START, WHOLE = "C", "+ the start of the command", "the command"
_FEW = dict.fromkeys(("--concurrency", "--requests", "--warmup", "--max-tokens"), "4")
_GAP_S, _CHUNKS, _CHUNK_BYTES = 0.01, 300, 300


def cpu_us(argv: list[str], env: dict[str, str] | None, url: str) -> float:
    """Return the CPU microseconds of a program and of those that it starts. "" in `argv` is `url`."""
    child = subprocess.Popen(
        [part or url for part in argv],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: to_core(0, 10),
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return 1e6 * (used.ru_utime + used.ru_stime)


def measured(row: str, step: str) -> float:
    """Return the CPU microseconds of `row` up to `step`: for each token, or for each one-token answer."""
    options, streams, requests, tokens, spread_s, rest_ms, _ = ROWS[row]
    with TruthProcess(*options) as server, tempfile.TemporaryDirectory() as folder:
        pid = server._process.pid
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(pid, {1})
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(20))
        name = {C: C}.get(step, str(ROOT))
        argv, env = command(name, server.url, COMMAND_ROWS[row], folder)
        if step == START:
            for option, few in _FEW.items():
                argv[argv.index(option) + 1] = few
        elif step in STEPS:
            client = str(ROOT / "tests/benchmarks/clients/stepped_client.py")
            load = map(str, (streams, requests, tokens, step, spread_s, rest_ms))
            argv, env = [sys.executable, "-I", "-S", client, "", *load], {}
        took_us = cpu_us(argv, env or None, server.url)
        server.stop()
    answered = len(server.records)
    # a command that ends early must not look cheap
    assert answered >= (4 if step == START else requests), f"{step}: {answered} answers"
    return took_us / (requests * tokens)


def steps_of(row: str) -> list[str]:
    """Return the steps that differ in a row: one without spread starts and rests has none of these."""
    *_, spread_s, rest_ms, _ = ROWS[row]
    left_out = {name for name, value in (("starts", spread_s), ("rest", rest_ms)) if not value}
    return [step for step in STEPS if step not in left_out]


def tell_row(row: str, rounds: int) -> None:
    steps = [C, *steps_of(row), START, WHOLE]
    found: dict[str, list[float]] = defaultdict(list)
    measured(row, START)  # compiles the modules
    for _ in range(rounds):
        for step in steps:
            found[step].append(measured(row, step))
    last = steps[-3]
    found[START] = [more + start for more, start in zip(found[last], found[START], strict=True)]
    goal = ROWS[row][-1]
    unit = "request" if row == "one" else "token"
    print(f"{row}, goal {goal:g} x C, {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for step in steps:
        ratios = [us / of_c for us, of_c in zip(found[step], found[C], strict=True)]
        past = "  above the goal" if median(ratios) > goal else ""
        print(
            f"    {STEPS.get(step, step):44} {median(found[step]):7.2f} us a {unit}"
            f"   {median(ratios):5.2f} x C ({min(ratios):.2f} to {max(ratios):.2f}){past}"
        )
    sys.stdout.flush()


def tell_kept_apart(rest_s: float) -> None:
    """Read chunks that come each 10 ms after rests, one by one, and print how many got a wrong time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = socket.create_connection(listener.getsockname())
        reader.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
        writer, _ = listener.accept()
        writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent_ns: list[int] = []

    def write() -> None:
        for _ in range(_CHUNKS):
            sent_ns.append(time.time_ns())
            writer.send(b"x" * _CHUNK_BYTES)
            time.sleep(_GAP_S)

    thread = threading.Thread(target=write)
    thread.start()
    reader.setblocking(False)
    came_ns: list[int] = []
    while len(came_ns) < _CHUNKS:
        time.sleep(rest_s)
        with contextlib.suppress(BlockingIOError):
            while True:
                _, ancillary, _, _ = reader.recvmsg(_CHUNK_BYTES, 64)
                stamp = struct.unpack("@qq", ancillary[0][2]) if ancillary else (0, 0)
                came_ns.append(stamp[0] * 10**9 + stamp[1])
    thread.join()
    reader.close()
    writer.close()
    together = sum(one == before for one, before in zip(came_ns[1:], came_ns, strict=False))
    print(
        f"rests of {1000 * rest_s:g} ms, a chunk each 10 ms: {together} of {_CHUNKS} chunks had the"
        " time of the chunk after them"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept-apart", action="store_true")
    chosen = parser.parse_args()
    if chosen.kept_apart:
        for rest_ms in (5, 15, 25, 45, 100):
            tell_kept_apart(rest_ms / 1000)
        return 0
    for row in chosen.rows.split(","):
        tell_row(row, chosen.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
