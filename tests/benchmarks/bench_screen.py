"""Measure the cost of Workbench while it shows a host: `workbench demo` in a pseudo-terminal
(screen, agent, simulated driver), at the same time as nvitop on the same simulated NVML library.

    python tests/benchmarks/bench_screen.py [--seconds 30] [--rounds 3] [--interval 1 0.5]
    [--profile four-pcie|eight]
        [--size 120x40] [--server] [--busy] [--no-nvitop] [--starts 10]

--busy: the simulated GPUs work, so every value changes at each tick. --server: a simulated server
is READY and watched. --starts: measure only the time from exec to the first frame, this many times.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(ROOT))

from terminal import Terminal, load_1m, memory_mib, run_s  # noqa: E402

LAST_ROW = b"palette"  # the footer, drawn last
FIGURES = b"A100"
WARM_S = 6.0  # adopting, results, presets; and one slow reading
PRESET = "vllm-qwen3-vl-2b-dp4"


@contextmanager
def own_directories() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="workbench-bench-") as folder:
        names = ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
        compiled = f"{tempfile.gettempdir()}/workbench-bench-bytecode"  # kept for the next time
        yield {
            "PYTHONPYCACHEPREFIX": compiled,
            **{name: f"{folder}/{name.lower()}" for name in names},
        }


def workbench(*words: str) -> list[str]:
    return [sys.executable, str(HERE / "eight_gpus.py"), *words]


def demo(profile: str, interval_s: float) -> list[str]:
    if profile == "four-pcie":
        return [
            sys.executable,
            "-m",
            "workbench",
            "demo",
            "--host-profile",
            profile,
            "--interval",
            f"{interval_s:g}",
        ]
    return workbench("demo", "--host-profile", profile, "--interval", f"{interval_s:g}")


def driver_state(env: Mapping[str, str], profile: str) -> str:
    return f"{env['XDG_STATE_HOME']}/workbench/sim/{profile}/driver"


@contextmanager
def busy_gpus(env: Mapping[str, str], profile: str) -> Iterator[None]:
    """Publish work whose share changes every 0.4 s, as an engine would."""
    import eight_gpus  # noqa: F401

    from workbench.sim import driver_state as state
    from workbench.sim import profiles

    driver = state.SimState(
        driver_state(env, profile), profiles.get_profile(profile.partition("@")[0])
    )
    ended = threading.Event()

    def work() -> None:
        turn = 0
        while not ended.wait(0.4):
            turn += 1
            part = {
                "busy": 0.5 + 0.05 * (turn % 9),
                "memory": 0.4 + 0.06 * (turn % 7),
                "compute": 0.3,
            }
            gpus = {
                i: {**part, "memory_bytes": (20 + turn % 5) * 1e9}
                for i in range(driver.profile.count)
            }
            driver.publish_load(os.getpid(), gpus, active_unix_s=time.time())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        driver.withdraw_load(os.getpid())


@contextmanager
def server(env: Mapping[str, str], profile: str) -> Iterator[None]:
    """Run a simulated server that is READY, on a port of its own."""
    base = [sys.executable, "-m", "workbench", "--simulate", profile]
    whole = {**os.environ, **env}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*base, "start", PRESET, "--set", f"port={port}", "--wait"]
    started = subprocess.run(command, env=whole, cwd=ROOT, check=True, capture_output=True)
    run_id = started.stdout.decode().split()[0]
    try:
        yield
    finally:
        subprocess.run(
            [*base, "stop", run_id], env=whole, cwd=ROOT, check=True, capture_output=True
        )


class Parts:
    """CPU seconds of the screen with all processes below it, and of a peer."""

    def __init__(self, screen: Terminal, peer: Terminal | None) -> None:
        self.screen, self.peer = screen, peer
        self.below = list(screen.children())

    def now(self) -> tuple[float, float, float, float]:
        agent = 0.0
        for pid in self.below:
            with contextlib.suppress(OSError):
                agent += run_s(pid)
        return (
            time.monotonic(),
            run_s(self.screen.child.pid),
            agent,
            run_s(self.peer.child.pid) if self.peer else 0.0,
        )


def drain(terminals: list[Terminal], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for terminal in terminals:
            terminal.read(0.02)


def measure(env: dict[str, str], chosen: argparse.Namespace, interval_s: float) -> None:
    profile = chosen.profile
    simulated = {
        **env,
        "WORKBENCH_SIM_PROFILE": profile,
        "WORKBENCH_SIM_STATE": driver_state(env, profile),
    }
    nvitop = [
        sys.executable,
        str(HERE / "nvitop_simulated.py"),
        "--monitor",
        "full",
        "--interval",
        f"{interval_s:g}",
    ]
    with contextlib.ExitStack() as stack:
        columns, rows = map(int, chosen.size.split("x"))
        screen = stack.enter_context(Terminal(demo(profile, interval_s), columns, rows, env=env))
        screen.until(FIGURES)
        peer = (
            stack.enter_context(Terminal(nvitop, columns, rows, env=simulated))
            if chosen.nvitop
            else None
        )
        both = [t for t in (screen, peer) if t is not None]
        drain(both, WARM_S)
        if peer is not None and peer.child.poll() is not None:
            sys.exit("nvitop ended: install it (pip install nvitop), or give --no-nvitop")
        parts = Parts(screen, peer)
        for _ in range(chosen.rounds):
            before, sent, sent_peer = parts.now(), screen.bytes, peer.bytes if peer else 0
            drain(both, chosen.seconds)
            took, own, agent, other = (b - a for a, b in zip(before, parts.now(), strict=True))
            sent, sent_peer = screen.bytes - sent, (peer.bytes if peer else 0) - sent_peer
            whole = own + agent
            ratio = f"ratio {whole / other:5.2f}" if other else ""
            print(
                f"{interval_s:4g} s | screen {own / took:6.2%} agent {agent / took:6.2%} sum "
                f"{whole / took:6.2%} "
                f"| nvitop {other / took:6.2%} {ratio} | {sent / took:6.0f} B/s, nvitop "
                f"{sent_peer / took:5.0f} "
                f"| load {load_1m():.1f}",
                flush=True,
            )
        rss, pss = memory_mib(screen.child.pid)
        below = "; ".join(
            f"{memory_mib(pid)[0]:.0f} RSS {memory_mib(pid)[1]:.0f} PSS" for pid in parts.below
        )
        print(
            f"{interval_s:4g} s | MiB: screen {rss:.1f} RSS {pss:.1f} PSS; below it {below}",
            flush=True,
        )


BARE = """
import os
os.environ.update(TEXTUAL_ANIMATIONS="none")
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("palette")
Bare().run(mouse=False)
"""


def starts(env: dict[str, str], chosen: argparse.Namespace) -> None:
    """Measure the time from exec to the first frame and to the first values, and the CPU seconds
    until then. A Textual application that shows one word gives the share of the machine."""
    found: dict[str, list[float]] = {}
    with Terminal(demo(chosen.profile, 1.0), env=env) as screen:  # compiles what is not compiled
        screen.until(FIGURES)
        screen.drain(3.0)
    for _ in range(chosen.starts):
        with Terminal([sys.executable, "-c", BARE], env=env) as bare:
            took = [1000 * bare.until(LAST_ROW), 1000 * run_s(bare.child.pid)]
        with Terminal(demo(chosen.profile, 1.0), env=env) as screen:
            took += [
                1000 * screen.until(LAST_ROW),
                1000 * run_s(screen.child.pid),
                1000 * screen.until(FIGURES),
            ]
            screen.drain(1.0)
        names = (
            "one word in Textual",
            "CPU by then",
            "first frame",
            "CPU by then, ours",
            "first figures",
        )
        for name, value in zip(names, took, strict=True):
            found.setdefault(name, []).append(value)
    for name, values in found.items():
        print(
            f"{name:20} best {min(values):5.0f} ms, median {statistics.median(values):5.0f} ms "
            f"of {len(values)}"
        )
    print(f"load {load_1m():.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--interval", type=float, nargs="*", default=[1.0, 0.5])
    parser.add_argument("--profile", default="four-pcie")
    parser.add_argument("--size", default="120x40", help="columns x rows of the terminal")
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--nvitop", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--starts", type=int, default=0)
    chosen = parser.parse_args()
    os.chdir(ROOT)
    with own_directories() as env, contextlib.ExitStack() as stack:
        if chosen.server:
            stack.enter_context(server(env, chosen.profile))
        if chosen.busy:
            stack.enter_context(busy_gpus(env, chosen.profile))
        if chosen.starts:
            starts(env, chosen)
            return
        for interval_s in chosen.interval:
            measure(env, chosen, interval_s)


if __name__ == "__main__":
    main()
