"""Measure the CPU of the screen of the demo, with its telemetry agent: without a server, beside a
READY server that nobody asks, and while `workbench bench` sends it 16 streams.

    python tests/benchmarks/bench_ready.py [--seconds 12] [--rounds 3] [--beside TREE]

With --beside, the screen of another checkout of Workbench shows the same at the same time, and the
two swap cores after each window: compare them, because other work on the machine changes both.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_beside_nvitop import WARM_S, drain, pin, spent_s
from speed_home import FIGURES, PRESET, PROFILE, ROOT, SIMULATED, Home, new_home
from support.serving import free_port
from terminal import Terminal, load_1m

STREAMS = 16
LOADED_S = 3.0  # from the start of a benchmark until its streams run


@contextmanager
def ready_server(home: Home) -> Iterator[str]:
    start = (*SIMULATED, "start", PRESET, "--wait", "--set", f"port={free_port()}")
    run_id = home.said(*start).split()[0]
    try:
        yield run_id
    finally:
        home.run(*SIMULATED, "stop", run_id)


@contextmanager
def benchmark(home: Home, run_id: str) -> Iterator[None]:
    """Send the server 16 streams until the end."""
    load = ("--concurrency", f"{STREAMS}", "--seconds", "3600", "--max-tokens", "256")
    argv = [sys.executable, "-m", "workbench", *SIMULATED, "bench", run_id, *load]
    child = subprocess.Popen(
        argv,
        env={**os.environ, **home.env},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield
        if child.poll() is not None:
            said = child.stderr.read().decode() if child.stderr else ""
            sys.exit(f"the benchmark ended with {child.returncode}: {said}")
    finally:
        child.terminate()
        child.wait()


def screen(tree: Path, home: Home) -> Terminal:
    """Return the screen of the demo, of the checkout `tree`."""
    argv = ["demo", "--host-profile", PROFILE]
    return Terminal(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tree)!r}); {MAIN}", *argv],
        env=home.env,
    )


MAIN = "from workbench.__main__ import main; sys.exit(main())"


def windows(screens: list[Terminal], seconds: float, rounds: int) -> list[list[float]]:
    """Return the CPU of each screen in each window, in % of a core."""
    cores = sorted(os.sched_getaffinity(0))
    found: list[list[float]] = [[] for _ in screens]
    for turn in range(rounds):
        for number, one in enumerate(screens):
            pin(one, cores[(turn + number) % len(cores)])
        began, before = time.monotonic(), [spent_s(one) for one in screens]
        drain(screens, seconds)
        took = time.monotonic() - began
        for each, one, was in zip(found, screens, before, strict=True):
            each.append(100 * (spent_s(one) - was) / took)
    return found


def measure(trees: list[Path], seconds: float, rounds: int) -> dict[str, list[list[float]]]:
    """Return the CPU of the screen of each checkout in each window, by what happens."""
    found = {}
    for what, with_server in (("no server", False), ("READY, nobody asks", True)):
        with contextlib.ExitStack() as stack:
            home = stack.enter_context(new_home())
            run_id = stack.enter_context(ready_server(home)) if with_server else ""
            screens = [stack.enter_context(screen(tree, home)) for tree in trees]
            for one in screens:
                one.until(FIGURES)
            drain(screens, WARM_S)
            found[what] = windows(screens, seconds, rounds)
            if run_id:
                with benchmark(home, run_id):
                    drain(screens, LOADED_S)
                    found[f"READY, `bench` with {STREAMS} streams"] = windows(
                        screens, seconds, rounds
                    )
    return found


def told(what: str, found: list[list[float]]) -> str:
    texts = []
    for name, each in zip(("screen and agent", "beside"), found, strict=False):
        rounds = ", ".join(f"{one:.2f}" for one in each)
        texts.append(f"{name} {statistics.median(each):.2f} % of a core ({rounds})")
    return f"{what}: {'; '.join(texts)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", metavar="TREE", help="another checkout of Workbench")
    chosen = parser.parse_args()
    trees = [ROOT, *([Path(chosen.beside).resolve()] if chosen.beside else [])]
    os.chdir(ROOT)
    for what, found in measure(trees, chosen.seconds, chosen.rounds).items():
        print(told(what, found))
    print(f"load {load_1m():.1f}")


if __name__ == "__main__":
    main()
