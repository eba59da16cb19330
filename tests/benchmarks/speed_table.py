"""Print the table of the speed of this machine: commands, lists, the start of the screen, its memory, its output and
its CPU. The load client has bench_client.py.

    python tests/benchmarks/speed_table.py [--quick] [--week]

It takes 5 minutes on two quiet cores; --quick takes fewer runs and only 10,000 results. --week prints another table:
each command and the first frame in an empty state, and after a week of use (20,000 results, 500 runs, 300 presets, a
log of 1 GB).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for place in (HERE, HERE.parent, ROOT):
    sys.path.insert(0, str(place))

from support import made_results as made  # noqa: E402
from support.ended_runs import make_ended  # noqa: E402
from support.serving import free_port  # noqa: E402
from terminal import Terminal, load_1m, memory_mib, run_s  # noqa: E402

from workbench.store.results_db import ResultsDb  # noqa: E402

PROFILE, PRESET = "four-pcie", "vllm-qwen3-vl-2b-dp4"
SIMULATED = ("--simulate", PROFILE)
LAST_ROW, FIGURES = b"palette", b"A100"
LOG_LINES_S = 2000
FLOOD = f"""
import sys, time
n = 0
while True:
    for _ in range({LOG_LINES_S} // 50):
        n += 1
        print(f"INFO 11-22 12:00:00 [loggers.py:{{n}}] Engine 000: prompt throughput: {{n % 997}} tokens/s, running: 8")
    sys.stdout.flush()
    time.sleep(1 / 50)
"""


class Home:
    """Directories of a user of their own."""

    def __init__(self, folder: Path) -> None:
        self.config, self.state, self.data = folder / "config", folder / "state", folder / "data"
        names = {"CONFIG": self.config, "STATE": self.state, "DATA": self.data}
        self.env = {f"XDG_{name}_HOME": str(path) for name, path in names.items()}

    @property
    def simulated_runs(self) -> Path:
        return self.state / "workbench" / "sim" / PROFILE / "runs"

    def said(self, *words: str) -> str:
        """Run a command, and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "workbench", *words],
            env={**os.environ, **self.env},
            cwd=ROOT,
            capture_output=True,
        )
        if done.returncode:
            raise SystemExit(done.stderr.decode())
        return done.stdout.decode()

    def run(self, *words: str) -> float:
        """Run a command, and return its milliseconds."""
        began = time.monotonic()
        self.said(*words)
        return 1000 * (time.monotonic() - began)

    def median(self, runs: int, *words: str) -> float:
        self.run(*words)  # compiles, fills caches, marks ended runs
        return statistics.median(self.run(*words) for _ in range(runs))

    def screen(self, *words: str) -> Terminal:
        argv = [sys.executable, "-m", "workbench", "demo", "--host-profile", PROFILE, *words]
        return Terminal(argv, env=self.env)

    def add_results(self, count: int) -> None:
        db = ResultsDb(self.data / "workbench" / "results.sqlite3")
        one = made.result(findings={f"gpu{n}.power_limit_w": "requested 500 W, measured 499 W " * 8 for n in range(12)})
        db.add(one.spec, one.conditions, one.summary)
        made.multiply(db.path, count - 1)

    def add_presets(self, count: int) -> None:
        folder = self.config / "workbench" / "presets"
        folder.mkdir(parents=True)
        text = (ROOT / "presets" / "vllm-any.toml").read_text()
        for n in range(count):
            (folder / f"mine-{n}.toml").write_text(text.replace('id = "vllm-any"', f'id = "mine-{n}"'))

    @contextmanager
    def talking_server(self) -> Iterator[None]:
        """Run a process that writes 2,000 log lines a second, in a run directory of the simulated host."""
        from workbench.hosts import detached_process
        from workbench.hosts.local import LocalHost

        (run_id,) = make_ended(self.simulated_runs, 1)
        run_dir = self.simulated_runs / run_id
        for path in run_dir.iterdir():
            if path.name != "plan.json":
                path.unlink()
        asyncio.run(detached_process.start(LocalHost(), str(run_dir), [sys.executable, "-c", FLOOD]))
        try:
            yield
        finally:
            asyncio.run(detached_process.stop(LocalHost(), str(run_dir), grace_s=1.0))


@contextmanager
def new_home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="workbench-speed-") as folder:
        yield Home(Path(folder))


Chosen = argparse.Namespace


def results(chosen: Chosen) -> str:
    found = []
    for count in (10_000,) if chosen.quick else (10_000, 100_000):
        with new_home() as home:
            home.add_results(count)
            found.append(f"{home.median(chosen.runs, 'results', 'list'):.0f} ms")
    return " / ".join(found)


def old_runs(chosen: Chosen) -> str:
    found = []
    for count in (1, 500):
        with new_home() as home:
            make_ended(home.state / "workbench" / "runs", count)
            found.append(home.median(chosen.runs, "servers"))
    return f"{found[1]:.0f} ms (with one {found[0]:.0f})"


def ready_with_old_runs(chosen: Chosen) -> str:
    found = []
    for count in (1, 500):
        with new_home() as home:
            make_ended(home.simulated_runs, count, days_ago=1)
            start = (*SIMULATED, "start", PRESET, "--wait", "--set", f"port={free_port()}")
            run_id = home.said(*start).split()[0]
            try:
                times = []
                for _ in range(chosen.runs):
                    with home.screen() as screen:
                        times.append(1000 * screen.until(b"READY"))
                        screen.drain(1.0)
                found.append(statistics.median(times))
            finally:
                home.run(*SIMULATED, "stop", run_id)
    return f"{found[1]:.0f} ms (with one {found[0]:.0f})"


def presets(chosen: Chosen) -> str:
    with new_home() as home:
        home.add_presets(1000)
        return f"{home.median(chosen.runs, 'presets', 'list'):.0f} ms"


def starts(chosen: Chosen) -> str:
    frames, figures = [], []
    with new_home() as home:
        for turn in range(2 * chosen.runs + 1):
            with home.screen() as screen:
                frame, figure = 1000 * screen.until(LAST_ROW), 1000 * screen.until(FIGURES)
                screen.drain(0.7)
            if turn:  # the first one compiles
                frames.append(frame)
                figures.append(figure)
    parts = (f"{min(each):.0f} / {statistics.median(each):.0f} ms" for each in (frames, figures))
    return "; figures ".join(parts)


def commands(chosen: Chosen) -> str:
    with new_home() as home:
        plan = home.median(chosen.runs, *SIMULATED, "plan", PRESET)
        return f"{plan:.0f} / {home.median(chosen.runs, *SIMULATED, 'gpu', 'status'):.0f} ms"


def memory(chosen: Chosen) -> str:
    found = []
    for text in ("", "[ui]\nrefresh_s = 1.0\n"):
        with new_home() as home:
            if text:
                (home.config / "workbench").mkdir(parents=True)
                (home.config / "workbench" / "config.toml").write_text(text)
            with home.screen() as screen:
                screen.until(FIGURES)
                screen.drain(8.0)
                below = sum(memory_mib(pid)[1] for pid in screen.children())
                found.append(memory_mib(screen.child.pid)[1] + below)
    return f"{found[0]:.1f} MiB, {found[1]:.1f} with config.toml"


def pane_bytes(chosen: Chosen) -> str:
    with new_home() as home, home.screen("--interval", "60") as screen:
        screen.until(FIGURES)
        screen.drain(4.0)
        sent = []
        for key in b"123451234":
            os.write(screen.master, bytes([key]))
            sent.append(screen.drain(0.8))
    return f"{statistics.median(sent[1:]) / 1000:.1f} KB, at most {max(sent[1:]) / 1000:.1f}"


def log_cpu(chosen: Chosen) -> str:
    with new_home() as home, home.talking_server(), home.screen() as screen:
        screen.until(FIGURES)
        screen.drain(5.0)
        before, began = _cpu_s(screen), time.monotonic()
        screen.drain(4.0 * chosen.runs)
        return f"{100 * (_cpu_s(screen) - before) / (time.monotonic() - began):.1f} %"


def _cpu_s(screen: Terminal) -> float:
    spent = run_s(screen.child.pid)
    for pid in screen.children():
        with contextlib.suppress(OSError):
            spent += run_s(pid)
    return spent


def key_time(chosen: Chosen) -> str:
    with new_home() as home, home.screen("--interval", "60") as screen:
        screen.until(FIGURES)
        screen.drain(4.0)
        times = []
        for turn in range(8 * chosen.runs):
            os.write(screen.master, b"12345"[turn % 5 : turn % 5 + 1])
            began, before = time.monotonic(), screen.bytes
            while screen.bytes == before and time.monotonic() - began < 2:
                screen.read(0.5)
            times.append(1000 * (time.monotonic() - began))
            screen.drain(0.23)
    times.sort()
    return f"{times[len(times) * 9 // 10]:.0f} ms (median {statistics.median(times):.0f})"


ROWS: tuple[tuple[str, str, str, Callable[[Chosen], str]], ...] = (
    ("`results list`, 10,000 / 100,000 rows", "3.7 s / > 170 s", "0.3 s", results),
    ("`servers` with 500 old runs", "3.5 s", "as with one", old_runs),
    ("READY on a new screen with 500 old runs", "4.0 s", "as with one", ready_with_old_runs),
    ("`presets list`, 1,000 own presets", "2.75 s", "0.4 s", presets),
    ("first frame, best / median; GPU figures", "427 / 564; 655 / 886 ms", "250 / 320; 350 / 450 ms", starts),
    ("`plan` / `gpu status`", "775 / 506 ms", "300 / 250 ms", commands),
    ("memory of screen and agent (PSS)", "46-48 MB", "42 MB", memory),
    ("bytes for a change of pane at 120x40", "24.6 KB", "8 KB", pane_bytes),
    ("CPU with a log of 2,000 lines/s", "9.8 %", "3 %", log_cpu),
    ("key to first byte, p90", "63-66 ms", "40 ms", key_time),
)


def print_table(chosen: Chosen) -> None:
    print("| what | before | must reach | now |\n|---|---|---|---|", flush=True)
    for what, before, limit, measure in ROWS:
        if chosen.only and chosen.only not in what:
            continue
        print(f"| {what} | {before} | {limit} | {measure(chosen)} |", flush=True)


WEEK = (
    ("--version",),
    ("presets", "list"),
    ("results", "list"),
    ("results", "search", "no-such-word"),
    ("servers",),
    ("config", "print"),
    (*SIMULATED, "gpu", "status"),
    (*SIMULATED, "plan", PRESET),
    (*SIMULATED, "servers"),
)


def print_week(chosen: Chosen) -> None:
    """Print what each command takes in an empty state and after a week of use, in turns."""
    with new_home() as empty, new_home() as used:
        used.add_results(20_000)
        used.add_presets(300)
        for root in (used.state / "workbench" / "runs", used.simulated_runs):
            ids = make_ended(root, 500, days_ago=3)
        with (used.simulated_runs / ids[0] / "log").open("wb") as log:
            for _ in range(1000):
                log.write(b"INFO a line of a log that became long in a week of work\n" * (2**20 // 56))
        print("| command | empty, ms | after a week, ms | ratio |\n|---|---|---|---|", flush=True)
        for words in WEEK:
            for home in (empty, used):
                home.run(*words)
            pairs = [(empty.run(*words), used.run(*words)) for _ in range(chosen.runs)]
            _print_pair(" ".join(words), pairs)
        frames = []
        for _ in range(chosen.runs):
            took = []
            for home in (empty, used):
                with home.screen() as screen:
                    took.append(1000 * screen.until(LAST_ROW))
                    screen.drain(1.0)
            frames.append((took[0], took[1]))
        _print_pair("first frame", frames)


def _print_pair(what: str, pairs: list[tuple[float, float]]) -> None:
    before, after = (statistics.median(each) for each in zip(*pairs, strict=True))
    print(f"| {what} | {before:.0f} | {after:.0f} | {after / before:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--week", action="store_true")
    parser.add_argument("--only", default="", help="only the rows with this text")
    chosen = parser.parse_args()
    chosen.runs = 3 if chosen.quick else 7
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, load {load_1m():.1f}")
    (print_week if chosen.week else print_table)(chosen)
    print(f"load {load_1m():.1f}")


if __name__ == "__main__":
    main()
