"""The table of a week of use: what each command and the first frame take in an empty state, and
with 20,000 results, 1,000 runs with 1 GB of logs, 300 presets and 24 h of telemetry on disk; and
the memory of the screen in an hour."""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from speed_home import LAST_ROW, PRESET, SIMULATED, Home, new_home
from support.serving import free_port

HERE = Path(__file__).resolve().parent
RESULTS, RUNS, PRESETS, LOG_MB, HOURS = 20_000, 500, 300, 1000, 24
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--version",),
    ("config", "print"),
    ("config", "path"),
    ("completion", "bash"),
    ("hosts", "list"),
    ("presets", "list"),
    ("presets", "path"),
    ("presets", "show", PRESET),
    ("presets", "check", f"presets/{PRESET}.toml"),
    ("flags", "vllm", "--search", "cache"),
    ("explain", "max-num-seqs"),
    ("results", "list"),
    ("results", "search", "no-such-word"),
    ("experiment", "list"),
    ("sweep", "list"),
    ("servers",),
    ("doctor",),
    ("gpu", "status"),
    ("gpu", "journal"),
    (*SIMULATED, "gpu", "status"),
    (*SIMULATED, "plan", PRESET),
    (*SIMULATED, "fit", PRESET),
    (*SIMULATED, "servers"),
    (*SIMULATED, "jobs"),
)
LOAD = ("--concurrency", "4", "--requests", "16", "--warmup", "4", "--max-tokens", "16")
# a machine without GPUs or jobs has no other answer, and that takes its time as well
CODES = (0, 1, 2, 3)


def week(chosen: argparse.Namespace) -> Iterator[str]:
    with new_home() as empty, new_home() as used:
        used.add_results(RESULTS)
        used.add_presets(PRESETS)
        used.add_runs(RUNS, LOG_MB)
        used.add_history(HOURS)
        yield "| command | empty, ms | after a week, ms | ratio |"
        yield "|---|---|---|---|"
        for words in COMMANDS:
            if chosen.only in " ".join(words):
                yield _row(f"`{' '.join(words)}`", _in_turns(chosen.runs, words, empty, used))
        yield from _served(3, empty, used)
        yield _row("first frame", _frames(chosen.runs, empty, used))
    yield f"| memory of the screen, MiB PSS | {_hour()} | | |"


def _in_turns(runs: int, words: tuple[str, ...], *homes: Home) -> list[tuple[float, ...]]:
    for home in homes:
        home.run(*words, codes=CODES)
    return [tuple(home.run(*words, codes=CODES) for home in homes) for _ in range(runs)]


def _served(runs: int, *homes: Home) -> Iterator[str]:
    """Yield the rows of the commands that start, measure and stop a simulated server: the best of
    all rounds, because a run of an experiment takes now 0.6 and now 2.8 s, whatever is on disk."""
    rounds: list[dict[Home, dict[str, float]]] = []
    for turn in range(runs):
        rounds.append({home: _serve(home) for home in (homes if turn % 2 else reversed(homes))})
    for name in rounds[0][homes[0]]:
        found = [tuple(took[home][name] for home in homes) for took in rounds]
        yield _row(f"`{' '.join((*SIMULATED, name))}`", found, min)


def _serve(home: Home) -> dict[str, float]:
    """Return the milliseconds of each command in the life of a server. An experiment has seven
    runs."""
    began = time.monotonic()
    run_id = home.said(
        *SIMULATED, "start", PRESET, "--wait", "--set", f"port={free_port()}"
    ).split()[0]
    took = {f"start {PRESET} --wait": 1000 * (time.monotonic() - began)}
    try:
        took["bench"] = home.run(*SIMULATED, "bench", run_id, *LOAD, codes=CODES)
        arms = ("--a", run_id, "--b", run_id, "--pairs", "3", "--order-seed", "1", "--yes")
        took["experiment"] = home.run(*SIMULATED, "experiment", *arms, *LOAD, codes=CODES)
    finally:
        took["stop"] = home.run(*SIMULATED, "stop", run_id)
    return took


def _frames(runs: int, *homes: Home) -> list[tuple[float, ...]]:
    found = []
    for _ in range(runs + 1):
        took = []
        for home in homes:
            with home.demo() as screen:
                took.append(1000 * screen.until(LAST_ROW))
                screen.drain(1.0)
        found.append(tuple(took))
    return found[1:]


def _row(
    what: str,
    pairs: list[tuple[float, ...]],
    of: Callable[[Iterable[float]], float] = statistics.median,
) -> str:
    before, after = (of(each) for each in zip(*pairs, strict=True))
    return f"| {what} | {before:.0f} | {after:.0f} | {after / before:.2f} |"


def _hour() -> str:
    """Return the memory in each quarter of an hour of readings, a hundred times as fast
    (bench_memory.py)."""
    argv = [sys.executable, str(HERE / "bench_memory.py"), "telemetry"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = [
        (float(s), float(mib))
        for s, mib in re.findall(
            r"(\d+) s: [\d.]+ MiB RSS, ([\d.]+) "
            r"PSS",
            said,
        )
    ]
    return ", ".join(f"{mib:.1f} after {s * 100 / 3600:.1f} h" for s, mib in found)
