"""Print the table of the speed of this machine, with the peers that are there, in turns: the accuracy of
the load client, commands, lists, the start of the screen, its output, and the programs that it starts.

    python tests/benchmarks/speed_table.py [--quick] [--week] [--write] [--only TEXT] [--nvitop DIR]
        [--peer NAME=COMMAND …]

It takes 25 minutes on two quiet cores; --quick takes fewer runs and only 10,000 results. --week
prints another table (speed_week.py). --write puts the table into docs/SPEED.md, with its date and
machine; with --only, it replaces the rows with this text and leaves the others as they are. Peers:
clients in C and Rust if `cc` and `rustc` are there, nvitop if it is installed here or in the
directory DIR, and load generators as peers.py describes them. nvitop and the rows "of this machine"
read a stand-in for the driver (tests/support/nvml_stub). A row without a peer has the least that
any program takes there, such as `python -c pass`, or "-".
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import bench_beside_nvitop as beside
import speed_clients as clients
from speed_home import (
    FIGURES,
    LAST_ROW,
    PRESET,
    ROOT,
    SIMULATED,
    STUB_FIGURES,
    driver,
    new_home,
    nvitop,
)
from support.ended_runs import make_ended
from support.serving import free_port
from terminal import Terminal, load_1m, run_s

DOCUMENT = ROOT / "docs" / "SPEED.md"
Chosen = argparse.Namespace
Found = tuple[str, str]  # of the peers, and of Workbench


class Row(NamedTuple):
    what: str
    before: str
    limit: str
    measure: Callable[[Chosen], Found]


# -- lists and commands ----------------------------------------------------------------------------


def results(chosen: Chosen) -> Found:
    found = []
    for count in (10_000,) if chosen.quick else (10_000, 100_000):
        with new_home() as home:
            home.add_results(count)
            found.append(f"{home.median(chosen.runs, 'results', 'list'):.0f} ms")
    return empty_python(chosen.runs), " / ".join(found)


def old_runs(chosen: Chosen) -> Found:
    found = []
    for count in (1, 500):
        with new_home() as home:
            make_ended(home.state / "workbench" / "runs", count)
            found.append(home.median(chosen.runs, "servers"))
    return empty_python(chosen.runs), f"{found[1]:.0f} ms (with one {found[0]:.0f})"


def ready_with_old_runs(chosen: Chosen) -> Found:
    found = []
    for count in (1, 500):
        with new_home() as home:
            make_ended(home.simulated_runs, count, days_ago=1)
            start = (*SIMULATED, "start", PRESET, "--wait", "--set", f"port={free_port()}")
            run_id = home.said(*start).split()[0]
            try:
                times = []
                for _ in range(chosen.runs):
                    with home.demo() as screen:
                        times.append(1000 * screen.until(b"READY"))
                        screen.drain(1.0)
                found.append(statistics.median(times))
            finally:
                home.run(*SIMULATED, "stop", run_id)
    return "", f"{found[1]:.0f} ms (with one {found[0]:.0f})"


def presets(chosen: Chosen) -> Found:
    with new_home() as home:
        home.add_presets(1000)
        return empty_python(chosen.runs), f"{home.median(chosen.runs, 'presets', 'list'):.0f} ms"


def commands(chosen: Chosen) -> Found:
    """`plan` and `gpu status` of this machine, in turns with nvitop and an empty Python program."""
    once = nvitop("-1", place=chosen.nvitop)
    times: dict[str, list[float]] = {}
    with new_home() as home:
        for turn in range(chosen.runs + 1):
            took = {
                "plan": home.run("plan", "vllm-any", "--var", "model=org/model"),
                "plan simulated": home.run(*SIMULATED, "plan", PRESET),
                "gpu status": home.run("gpu", "status"),
                "python": _run_ms([sys.executable, "-c", "pass"], {}),
            }
            if once is not None:
                took["nvitop"] = _run_ms(*once)
            for name, value in took.items() if turn else ():  # the first one compiles
                times.setdefault(name, []).append(value)
    medians = {name: f"{statistics.median(values):.0f}" for name, values in times.items()}
    peer = f", `nvitop -1` {medians['nvitop']}" if once else ""
    own = (
        f"{medians['plan']} (on a simulated host {medians['plan simulated']}) / "
        f"{medians['gpu status']} ms"
    )
    return f"`python -c pass` {medians['python']}{peer} ms", own


@cache
def empty_python(runs: int) -> str:
    """Return what a Python program that does nothing takes: no command of one takes less."""
    argv = [sys.executable, "-c", "pass"]
    median = statistics.median(_run_ms(argv, {}) for _ in range(runs))
    return f"`python -c pass` {median:.0f} ms"


def _run_ms(argv: list[str], env: dict[str, str]) -> float:
    began = time.monotonic()
    subprocess.run(argv, env={**os.environ, **env}, capture_output=True, check=True)
    return 1000 * (time.monotonic() - began)


# -- the screen ------------------------------------------------------------------------------------


def starts(chosen: Chosen) -> Found:
    """The start of the screen of this machine, in turns with nvitop."""
    peer = nvitop("--monitor", "full", place=chosen.nvitop)
    frames, figures, others = [], [], []
    with new_home() as home:
        for turn in range(2 * chosen.runs + 2):
            with home.screen() as screen:
                frame = 1000 * screen.until(LAST_ROW)
                figure = 1000 * screen.until(STUB_FIGURES) if driver() else float("nan")
                screen.drain(0.7)
            other = float("nan")
            if peer is not None:
                with Terminal(peer[0], env=peer[1]) as terminal:
                    other = 1000 * terminal.until(beside.NVITOP_FIGURES)
                    terminal.drain(0.3)
            if turn:  # the first one compiles
                frames.append(frame)
                figures.append(figure)
                others.append(other)
    return f"nvitop {_best(others)}" if peer else "", f"{_best(frames)}; {_best(figures)}"


def _best(values: list[float]) -> str:
    return f"{min(values):.0f} / {statistics.median(values):.0f} ms"


def programs(chosen: Chosen) -> Found:
    """The programs that the screen of this machine starts in a minute, and those of nvitop."""
    found = beside.programs_started(beside.CASES[-1], 12.0, 3, chosen.nvitop)
    texts = {name: _per_minute(counts, 12.0) for name, counts in found.items()}
    missing = "strace or nvitop is missing"
    return f"nvitop {texts.get('nvitop', missing)}", texts.get("Workbench", missing)


def _per_minute(counts: list[int], seconds: float) -> str:
    windows = ", ".join(map(str, counts))
    return (
        f"{sum(counts) * 60 / seconds / len(counts):.0f} ({windows} in windows of {seconds:.0f} s)"
    )


def _nvitop_in_a_terminal(chosen: Chosen) -> Terminal | None:
    command = nvitop("--monitor", "full", "--interval", "60", place=chosen.nvitop)
    return None if command is None else Terminal(command[0], env=command[1])


def _peers_bytes(chosen: Chosen, keys: bytes) -> str:
    """Return the bytes that nvitop sends for each key: `h` opens its help, `q` closes it, `t` shows
    its processes in another way."""
    terminal = _nvitop_in_a_terminal(chosen)
    if terminal is None:
        return "nvitop is missing"
    with terminal:
        terminal.until(beside.NVITOP_FIGURES)
        terminal.drain(3.0)
        sent = []
        for key in keys:
            os.write(terminal.master, bytes([key]))
            sent.append(terminal.drain(1.0))
    return " / ".join(f"{one / 1000:.1f}" for one in sent)


def pane_bytes(chosen: Chosen) -> Found:
    with new_home() as home, home.demo("--interval", "60") as screen:
        screen.until(FIGURES)
        screen.drain(4.0)
        sent = []
        for key in b"123451234":
            os.write(screen.master, bytes([key]))
            sent.append(screen.drain(0.8))
    peer = f"nvitop's tree {_peers_bytes(chosen, b't')} KB"
    return peer, f"{statistics.median(sent[1:]) / 1000:.1f} KB, at most {max(sent[1:]) / 1000:.1f}"


LEAST_BOX_BYTES = 200  # fewer: nothing was drawn in time
BOXES = {"palette": b"\x10", "hosts": b"h", "terms": b"?", "GPU settings": b"g"}


def boxes(chosen: Chosen) -> Found:
    """The KB to open and to close each box over the screen: the most of all rounds."""
    most = {name: [0, 0] for name in BOXES}
    peers = []
    for _ in range(chosen.rounds):
        with new_home() as home, home.demo("--interval", "60") as screen:
            screen.until(FIGURES)
            screen.drain(4.0)
            for name, key in BOXES.items():
                most[name] = list(map(max, most[name], _box_bytes(screen, name, key)))
        peers.append(_peers_bytes(chosen, b"hq"))
    texts = (f"{name} {one / 1000:.1f} / {two / 1000:.1f}" for name, (one, two) in most.items())
    return f"nvitop's help {peers[-1]}", ", ".join(texts)


def _box_bytes(screen: Terminal, name: str, key: bytes) -> list[int]:
    """Return the bytes to open a box with `key`, and to close it."""
    sent = []
    for pressed in (key, b"\x1b"):
        os.write(screen.master, pressed)
        sent.append(screen.drain(1.2))
    if min(sent) < LEAST_BOX_BYTES:
        raise SystemExit(f"{name} did not open and close within 1.2 s: the machine is busy")
    return sent


def log_cpu(chosen: Chosen) -> Found:
    found = []
    for talks in (False, True):
        with (
            new_home() as home,
            home.talking_server() if talks else contextlib.nullcontext(),
            home.demo() as screen,
        ):
            screen.until(FIGURES)
            screen.drain(5.0)
            before, began = _cpu_s(screen), time.monotonic()
            screen.drain(2.0 * chosen.runs)
            found.append(100 * (_cpu_s(screen) - before) / (time.monotonic() - began))
    return "", f"{found[1]:.1f} % ({found[0]:.1f} % without)"


def _cpu_s(screen: Terminal) -> float:
    spent = run_s(screen.child.pid)
    for pid in screen.children():
        with contextlib.suppress(OSError):
            spent += run_s(pid)
    return spent


def key_time(chosen: Chosen) -> Found:
    with new_home() as home, home.demo("--interval", "60") as screen:
        screen.until(FIGURES)
        own = _key_ms(screen, b"12345", chosen.runs)
    terminal = _nvitop_in_a_terminal(chosen)
    if terminal is None:
        return "nvitop is missing", own
    with terminal:
        terminal.until(beside.NVITOP_FIGURES)
        return f"nvitop {_key_ms(terminal, b't', chosen.runs)}", own


def _key_ms(screen: Terminal, keys: bytes, runs: int) -> str:
    screen.drain(4.0)
    times = []
    for turn in range(8 * runs):
        place = turn % len(keys)
        os.write(screen.master, keys[place : place + 1])
        began, before = time.monotonic(), screen.bytes
        while screen.bytes == before and time.monotonic() - began < 2:
            screen.read(0.5)
        times.append(1000 * (time.monotonic() - began))
        screen.drain(0.23)
    times.sort()
    return f"{times[len(times) * 9 // 10]:.0f} ms (median {statistics.median(times):.0f})"


ROWS = (
    Row(
        "streams x 100 tok/s without a refusal",
        "128",
        "256; 0.5 and 2 ms",
        clients.streams_of_a_core,
    ),
    Row(
        "128 streams: error of TTFT mean / gap p99, ms",
        "+0.014 / +0.022",
        "0.05 / 0.1",
        clients.accurate,
    ),
    Row("a benchmark's end after its last answer", "1.3 s", "0.3 s", clients.start_and_end),
    Row("`results list`, 10,000 / 100,000 rows", "3.7 s / > 170 s", "0.3 s", results),
    Row("`servers` with 500 old runs", "3.5 s", "as with one", old_runs),
    Row("READY on a new screen with 500 old runs", "4.0 s", "as with one", ready_with_old_runs),
    Row("`presets list`, 1,000 own presets", "2.75 s", "0.4 s", presets),
    Row(
        "first frame, best / median; GPU figures",
        "427 / 564; 655 / 886 ms",
        "250 / 320; 350 / 450 ms",
        starts,
    ),
    Row("`plan` / `gpu status`", "775 / 506 ms", "300 / 250 ms", commands),
    Row("programs started in a minute while nothing happens", "660", "0", programs),
    Row(
        "KB to open / close a box at 120x40",
        "palette 70 / 45, hosts 46 / 48, terms 19 / 26",
        "8",
        boxes,
    ),
    Row("bytes for a change of pane at 120x40", "24.6 KB", "8 KB", pane_bytes),
    Row("CPU with a log of 2,000 lines/s", "9.8 % (1 % without)", "3 %", log_cpu),
    Row("key to first byte, p90", "63-66 ms", "40 ms", key_time),
)


def table(chosen: Chosen) -> Iterable[str]:
    yield "| what | before | must reach | peers now | now | load, day |"
    yield "|---|---|---|---|---|---|"
    for row in ROWS:
        if chosen.only in row.what:
            peers, now = row.measure(chosen)
            when = f"{load_1m():.1f}, {time.strftime('%Y-%m-%d')}"
            yield f"| {row.what} | {row.before} | {row.limit} | {peers or '-'} | {now} | {when} |"


def told(
    chosen: Chosen, lines: Iterable[str], seconds: Callable[[], float] = time.monotonic
) -> list[str]:
    """Print the lines as they come, between those about the machine. Return all."""
    began, first = seconds(), load_1m()
    found = []
    for line in lines:
        print(line, flush=True)
        found.append(line)
    day, python = time.strftime("%Y-%m-%d"), platform.python_version()
    minutes = f"{(seconds() - began) / 60:.0f} minutes"
    about = [
        f"Measured on {day} on {os.cpu_count()} cores ({platform.machine()}), Python "
        f"{python}, in {minutes}."
    ]
    about.append(
        f"The load was {first:.1f} at the start"
        + (", with fewer runs (--quick)." if chosen.quick else ".")
    )
    print(*about, sep="\n")
    return [*about, "", *found]


def write(name: str, lines: list[str], document: Path = DOCUMENT) -> None:
    """Put the lines between the marks of `name` in the document."""
    text = document.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = text.partition(begin)
    _, ends, after = rest.partition(end)
    if not found or not ends:
        raise SystemExit(f"{document} has no marks {begin.strip()} and {end.strip()}")
    document.write_text(before + begin + "\n".join(lines) + "\n" + end + after)


def with_rows(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """Return the lines `old` of a table with the rows `new` in place of those with the same first
    cell. Rows that the table lacks come at its end."""
    rows = {_first_cell(line): line for line in new if line.startswith("| ")}
    found = [rows.pop(_first_cell(line), line) for line in old]
    return [*found, *rows.values()]


def _first_cell(line: str) -> str:
    return line.split(" | ")[0]


def written(name: str, document: Path = DOCUMENT) -> list[str]:
    """Return the lines between the marks of `name` in the document."""
    _, _, rest = document.read_text().partition(f"<!-- {name} -->\n")
    return rest.partition(f"<!-- end of {name} -->\n")[0].splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--week", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="", help="only the rows with this text")
    parser.add_argument(
        "--nvitop",
        default="",
        metavar="DIR",
        help="where nvitop is, such as `pip install --target`",
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    chosen = parser.parse_args()
    chosen.runs, chosen.rounds = (3, 1) if chosen.quick else (7, 3)
    if chosen.week:
        from speed_week import week

        lines = told(chosen, week(chosen))
    else:
        lines = told(chosen, table(chosen))
    name = "week" if chosen.week else "table"
    if chosen.write:
        write(name, with_rows(written(name), lines) if chosen.only else lines)


if __name__ == "__main__":
    main()
