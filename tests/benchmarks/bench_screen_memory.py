"""Measure what the memory of the screen of this machine and its agent consists of, beside the least
that a Textual application and a Python agent take.

    python tests/benchmarks/bench_screen_memory.py [--rounds 2] [--beside TREE] [--tries]

Each screen is started twice with the stand-in for the driver, and measured 8 s after its second
figures. "private" is the memory that no other process maps. --beside measures another checkout in
the same turns, and --tries the screen with settings of the allocator of the C library.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from bench_ready import MAIN
from bench_screen import BARE
from speed_home import LAST_ROW, ROOT, STUB_FIGURES, driver, new_home
from terminal import Terminal, load_1m

SETTLED_S = 8.0
READY = b"ready"
# what a telemetry agent needs of Python: a driver's library, JSON, a thread, lines on stdout
AGENT = f"""
import ctypes, json, os, sys, threading, time
threading.Thread(target=sys.stdin.read, daemon=True).start()
while True:
    os.write(1, json.dumps({{"t": time.monotonic(), "state": "{READY.decode()}"}}).encode() + b"\\n")
    time.sleep(1)
"""
WAIT = f"import os, time; os.write(1, b'{READY.decode()}'); time.sleep(60)"
TRIES = {
    "one arena": {"MALLOC_ARENA_MAX": "1"},
    "trimmed early": {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"},
    "no pymalloc": {"PYTHONMALLOC": "malloc"},
    "no lines of code": {"PYTHONNODEBUGRANGES": "1"},
}
PEERS = {
    "Textual with one word": ([sys.executable, "-c", BARE], LAST_ROW),
    "an agent in Python that reads nothing": ([sys.executable, "-I", "-S", "-c", AGENT], READY),
    "Python that does nothing": ([sys.executable, "-I", "-S", "-c", WAIT], READY),
    "Python with asyncio": ([sys.executable, "-I", "-S", "-c", f"import asyncio; {WAIT}"], READY),
}


def parts_of(pid: int) -> Counter[str]:
    """Return the memory of a process in KiB: its proportional set size, its private part, and the
    proportional set sizes of what it maps."""
    found: Counter[str] = Counter()
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *words = line.split()
        if not first.endswith(":"):
            name = _kind(words[4:])
        elif first == "Pss:":
            found["PSS"] += int(words[0])
            found[name] += int(words[0])
        elif first in ("Private_Clean:", "Private_Dirty:"):
            found["private"] += int(words[0])
    return found


def _kind(words: list[str]) -> str:
    """Return what a mapping is, by the words after its inode in smaps."""
    path = words[0] if words else ""
    name = path.rpartition("/")[2]
    if path in ("", "[heap]") or path.startswith("[anon"):
        return "objects and heap"
    if path.startswith("["):
        return "stack and kernel"
    return "python and libpython" if name.startswith(("python", "libpython")) else "libraries"


def settled(terminal: Terminal, wanted: bytes) -> tuple[Counter[str], Counter[str]]:
    """Return the parts of the program, and of the processes below it."""
    terminal.until(wanted)
    terminal.drain(SETTLED_S)
    below: Counter[str] = Counter()
    for pid in terminal.children():
        below += parts_of(pid)
    return parts_of(terminal.child.pid), below


def screen(tree: Path, env: Mapping[str, str]) -> tuple[Counter[str], Counter[str]]:
    argv = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tree)!r}); {MAIN}"]
    with new_home() as home:
        wanted = STUB_FIGURES if driver() else LAST_ROW
        whole = {**home.env, **env}
        with Terminal(argv, env=whole) as first:  # compiles, and keeps what the next one uses
            first.until(wanted)
            first.drain(4.0)
        with Terminal(argv, env=whole) as second:
            return settled(second, wanted)


def told(parts: Counter[str]) -> str:
    whole, private = parts["PSS"] / 1024, parts["private"] / 1024
    others = {name: n for name, n in parts.items() if name not in ("PSS", "private")}
    rest = ", ".join(f"{name} {n / 1024:.1f}" for name, n in sorted(others.items()))
    return f"{whole:.1f} MiB PSS, {private:.1f} private ({rest})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--beside", metavar="TREE", help="another checkout of Workbench")
    parser.add_argument("--tries", action="store_true")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    cases: dict[str, tuple[Path, Mapping[str, str]]] = {"Workbench": (ROOT, {})}
    if chosen.beside:
        cases["beside"] = Path(chosen.beside).resolve(), {}
    if chosen.tries:
        cases |= {f"Workbench, {name}": (ROOT, env) for name, env in TRIES.items()}
    together: dict[str, list[float]] = defaultdict(list)
    for number in range(chosen.rounds):
        for name, (tree, env) in cases.items():
            own, below = screen(tree, env)
            together[name].append((own["PSS"] + below["PSS"]) / 1024)
            print(f"{number + 1}: {name}: screen {told(own)}; agent {told(below)}", flush=True)
    for name, (argv, wanted) in PEERS.items():
        with Terminal(argv) as terminal:
            print(f"{name}: {told(settled(terminal, wanted)[0])}", flush=True)
    for name, found in together.items():
        each = ", ".join(f"{one:.1f}" for one in found)
        print(f"{name}: {statistics.median(found):.1f} MiB PSS of screen and agent ({each})")
    print(f"load {load_1m():.1f}")


if __name__ == "__main__":
    main()
