"""CPU time of the whole command `workbench bench`, in turns with the C client (clients/sse_client.c) and
with the least that Python can do (clients/bare_client.py), which is called "bare Python".

    python tests/benchmarks/bench_client_cpu.py [--rows paced,drain] [--rounds 3] [--against DIR]
        [--peer NAME=COMMAND …]

Rows: "paced" has 64 streams of 100 tokens/s, "drain" 64 streams as fast as the server writes, "one",
"one long" and "one longest" one-token answers, "million" the end of a run of 1M tokens. CPU time is user and
system time of the command and of all programs that it starts. `--against` names another checkout of
Workbench that is measured in the same turns, and `--peer` another load generator (peers.py). The
order is reversed in every other round: what ran just before changes the speed of what runs next.

The server has core 1 and the clients core 0, before other programs where that is allowed, so other
load of the machine disturbs less. It still fills the caches: read the ratios, and the load.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "benchmarks")]

from peers import children_cpu_s, parsed  # noqa: E402
from speed_home import built  # noqa: E402
from truth_server import TruthProcess  # noqa: E402

AT_ONCE = ("--ttft-ms", "0", "--itl-ms", "0")
EACH = (*AT_ONCE, "--write-each")
ROWS = {  # options of the server, streams, requests, warm-up, tokens of an answer
    "paced": (("--ttft-ms", "50", "--itl-ms", "10", "--exact"), 64, 704, 64, 128),
    "drain": (EACH, 64, 3008, 64, 256),
    "one": (EACH, 64, 5936, 64, 1),
    "one long": (EACH, 64, 29_936, 64, 1),
    "one longest": (EACH, 64, 99_936, 64, 1),
    "million": (AT_ONCE, 64, 3904, 64, 256),
}


BARE = "bare Python"
PEERS: dict[str, list[str]] = {}  # commands with places for what is asked, by name


def to_core(core: int, priority: int) -> None:
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))


def command(name: str, url: str, row: str, folder: str) -> tuple[list[str], dict[str, str]]:
    _, streams, requests, warmup, tokens = ROWS[row]
    if name == "C":
        program = built(
            ROOT / "tests/benchmarks/clients/sse_client.c", "cc", "-O2", "-D_GNU_SOURCE"
        )
        assert program, "there is no C compiler"
        return [str(program), url, str(streams), str(requests + warmup), str(tokens)], {}
    if name in PEERS:
        out = f"{folder}/result.json"
        asked = {"streams": streams, "requests": requests + warmup, "tokens": tokens}
        return [one.format(url=url, model="m", out=out, **asked) for one in PEERS[name]], {}
    if name == BARE:
        program = ROOT / "tests/benchmarks/clients/bare_client.py"
        argv = [sys.executable, "-I", "-S", str(program), url]
        return [*argv, *map(str, (streams, requests + warmup, tokens))], {}
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {f"XDG_{what}_HOME": f"{folder}/{what}" for what in ("STATE", "DATA", "CONFIG", "CACHE")}
    argv = [sys.executable, "-P", "-m", "workbench", "bench", "--url", url, "--model", "m"]
    argv += ["--concurrency", str(streams), "--requests", str(requests)]
    # --anyway: nobody else who measures on this machine can stop it
    argv += ["--warmup", str(warmup), "--max-tokens", str(tokens), "--anyway"]
    return argv, env | {"PYTHONPATH": name}


def measured(name: str, row: str) -> dict[str, float]:
    with TruthProcess(*ROWS[row][0]) as server, tempfile.TemporaryDirectory() as folder:
        pid = server._process.pid
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(pid, {1})
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(20))
        argv, env = command(name, server.url, row, folder)
        before = children_cpu_s()
        subprocess.run(
            argv,
            env=env or None,
            capture_output=True,
            check=name == BARE,
            preexec_fn=lambda: to_core(0, 10),
        )
        ended_ns, cpu_s = time.monotonic_ns(), children_cpu_s() - before
        server.stop()
    records = server.records
    tokens = sum(len(one["sent_ns"]) for one in records)
    asked = min(one["request_ns"] for one in records)
    answered = max(one["done_ns"][-1] for one in records)
    return {
        "CPU s": cpu_s,
        "CPU s per 1M tokens": 1e6 * cpu_s / tokens,
        "CPU us per request": 1e6 * cpu_s / len(records),
        "tok/s": 1e9 * tokens / (answered - asked),
        "s after the last answer": (ended_ns - answered) / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", action="append", default=[], metavar="DIR")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    asked = parser.parse_args()
    PEERS.update(map(parsed, asked.peer))
    trees = [str(ROOT), *asked.against]
    names = ["C", BARE, *trees, *PEERS]
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for name in trees:
        measured(name, "one")  # compiles the modules
    for number in range(asked.rounds):
        for row in asked.rows.split(","):
            for name in names if number % 2 == 0 else reversed(names):
                found[row, name].append(measured(name, row))
        print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
    for (row, name), rounds in found.items():
        print(f"{row}: {name}")
        for figure in rounds[0]:
            middle = median(each[figure] for each in rounds)
            of_c = median(each[figure] for each in found[row, "C"])
            least, most = (pick(each[figure] for each in rounds) for pick in (min, max))
            print(
                f"    {figure:24} {middle:12,.3f} ({least:,.3f} to {most:,.3f})"
                f"   {middle / of_c:8.2f} x C"
            )


if __name__ == "__main__":
    main()
