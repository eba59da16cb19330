"""Measure what the memory of the screen of this machine and its agent consists of, beside the least
that a Textual application and a Python agent take.

    python tests/benchmarks/bench_screen_memory.py [--rounds 3] [--nvitop DIR] [--beside TREE] [--tries]

Each screen is started twice with the stand-in for the driver, and measured 8 s after its second
figures, in turns with the other programs. "private" is the memory that no other process maps. --nvitop
and --beside measure nvitop and another checkout in the same turns, and --tries the screen with
settings of the allocator of the C library.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from bench_beside_nvitop import NVITOP_FIGURES
from bench_ready import MAIN
from bench_screen import BARE
from speed_home import LAST_ROW, ROOT, STUB_FIGURES, driver, new_home, nvitop
from terminal import Terminal, load_1m

# its command, its environment, and what it writes when it has begun
Peer = tuple[list[str], Mapping[str, str], bytes]

SETTLED_S, PEER_SETTLED_S = 8.0, 3.0
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
ALONE = sys.executable, "-I", "-S", "-c"
TRIES = {
    "one arena": {"MALLOC_ARENA_MAX": "1"},
    "trimmed early": {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"},
    "no pymalloc": {"PYTHONMALLOC": "malloc"},
    "no lines of code": {"PYTHONNODEBUGRANGES": "1"},
}
FLOORS: dict[str, Peer] = {
    "Textual with one word": ([sys.executable, "-c", BARE], {}, LAST_ROW),
    "an agent in Python that reads nothing": ([*ALONE, AGENT], {}, READY),
    "Python that does nothing": ([*ALONE, WAIT], {}, READY),
    "Python with asyncio": ([*ALONE, f"import asyncio; {WAIT}"], {}, READY),
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


def settled(terminal: Terminal, wanted: bytes, seconds: float) -> tuple[Counter[str], Counter[str]]:
    """Return the parts of the program, and of the processes below it."""
    terminal.until(wanted)
    terminal.drain(seconds)
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
            return settled(second, wanted, SETTLED_S)


def peers(nvitop_place: str) -> dict[str, Peer]:
    """Return the programs beside the screen, by name."""
    found = nvitop("--monitor", "full", place=nvitop_place)
    own = {} if found is None else {"nvitop": (*found, NVITOP_FIGURES)}
    return {**FLOORS, **own}


def told(parts: Counter[str]) -> str:
    whole, private = parts["PSS"] / 1024, parts["private"] / 1024
    others = {name: n for name, n in parts.items() if name not in ("PSS", "private")}
    rest = ", ".join(f"{name} {n / 1024:.1f}" for name, n in sorted(others.items()))
    return f"{whole:.1f} MiB PSS, {private:.1f} private ({rest})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nvitop", default="", metavar="DIR", help="where nvitop is")
    parser.add_argument("--beside", metavar="TREE", help="another checkout of Workbench")
    parser.add_argument("--tries", action="store_true")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    cases: dict[str, tuple[Path, Mapping[str, str]]] = {"screen and agent": (ROOT, {})}
    if chosen.beside:
        cases["beside"] = Path(chosen.beside).resolve(), {}
    if chosen.tries:
        cases |= {f"screen and agent, {name}": (ROOT, env) for name, env in TRIES.items()}
    together: dict[str, list[float]] = defaultdict(list)
    for number in range(1, chosen.rounds + 1):
        for name, (tree, env) in cases.items():
            own, below = screen(tree, env)
            together[name].append((own["PSS"] + below["PSS"]) / 1024)
            print(f"{number}: {name}: screen {told(own)}; agent {told(below)}", flush=True)
        for name, (argv, env, wanted) in peers(chosen.nvitop).items():
            with Terminal(argv, env=env) as terminal:
                own, _ = settled(terminal, wanted, PEER_SETTLED_S)
            together[name].append(own["PSS"] / 1024)
            print(f"{number}: {name}: {told(own)}", flush=True)
    for name, found in together.items():
        each = ", ".join(f"{one:.1f}" for one in found)
        print(f"{name}: {statistics.median(found):.1f} MiB PSS ({each})")
    print(f"load {load_1m():.1f}")


if __name__ == "__main__":
    main()
