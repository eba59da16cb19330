"""Count the bytes that are kept of a benchmark, and the memory of the screen of the demo without a
server, with one that has written one line, and with one that writes 2,000 log lines a second.

    python tests/benchmarks/bench_kept.py [--only benchmarks|log] [--seconds 30] [--rounds 1]

A benchmark has the default content. Its files are those of its requests and of its seconds, and its
rows are what the database grows by. Bytes and memory do not depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from bench_ready import ready_server
from speed_home import FIGURES, FLOOD, ROOT, SIMULATED, Home, new_home
from terminal import Terminal, load_1m, memory_mib

# what is asked, as options of `bench`
BENCHMARKS = (
    ("--requests", "200", "--concurrency", "16", "--max-tokens", "256"),
    ("--requests", "4000", "--concurrency", "64", "--max-tokens", "16"),
    ("--requests", "10000", "--concurrency", "64", "--max-tokens", "1"),
)
ONE_LINE = "import time; print('INFO one line', flush=True); time.sleep(3600)"
REFUSED = (0, 3)  # a benchmark that a busy machine makes invalid is kept too


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def kept(home: Home) -> tuple[int, int, int]:
    """Return the bytes of the requests, of the seconds and of the database."""
    data = home.data / "workbench"
    tables = sum(path.stat().st_size for path in data.glob("results.sqlite3*"))
    return bytes_in(data / "samples"), bytes_in(data / "timelines"), tables


def benchmarks() -> None:
    with new_home() as home, ready_server(home) as run_id:
        before = (0, 0, 0)
        for load in BENCHMARKS:
            home.said(*SIMULATED, "bench", run_id, *load, codes=REFUSED)
            now = kept(home)
            requests, seconds, tables = (new - old for new, old in zip(now, before, strict=True))
            before = now
            print(
                f"{' '.join(load)}: requests {requests / 1000:.1f} KB, seconds "
                f"{seconds / 1000:.1f} KB, database +{tables / 1000:.0f} KB"
            )


def tree_mib(screen: Terminal) -> tuple[float, float]:
    """Return the proportional set sizes of the screen, and of it with what it started."""
    own = memory_mib(screen.child.pid)[1]
    children = 0.0
    for pid in screen.children():
        with contextlib.suppress(OSError):
            children += memory_mib(pid)[1]
    return own, own + children


def log(seconds: float) -> None:
    for name, program in (
        ("no server", ""),
        ("one line", ONE_LINE),
        ("2,000 lines a second", FLOOD),
    ):
        with (
            new_home() as home,
            home.talking_server(program) if program else contextlib.nullcontext(),
            home.demo() as screen,
        ):
            screen.until(FIGURES)
            screen.drain(seconds)
            own, whole = tree_mib(screen)
        print(
            f"{name}, after {seconds:.0f} s: screen {own:.1f}, with its agent {whole:.1f} MiB PSS",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("benchmarks", "log"))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=1)
    chosen = parser.parse_args()
    os.chdir(ROOT)
    for _ in range(chosen.rounds):
        if chosen.only != "log":
            benchmarks()
        if chosen.only != "benchmarks":
            log(chosen.seconds)
    print(f"load {load_1m():.1f}")


if __name__ == "__main__":
    main()
