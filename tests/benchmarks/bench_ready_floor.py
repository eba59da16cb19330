"""Measure the CPU of the screen of the demo beside a READY server that nobody asks, and beside it the
least that a Textual application has to do for the same picture: the floor.

    python tests/benchmarks/bench_ready_floor.py [--seconds 10] [--rounds 6]

The floor runs the same telemetry agent. It reads the agent's lines, asks the server for its counters
once a second and for its health every 3 s over one connection, reads the state of its process and
the size of its log, and has the timers that the screen has. It understands nothing of what it reads,
makes no texts, and writes frames that the screen has written before, one for each reading. Both
programs run at the same time and swap cores after each window.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

from bench_beside_nvitop import WARM_S, drain
from bench_ready import ready_server, screen, windows
from speed_home import FIGURES, PROFILE, ROOT, Home, new_home
from terminal import Terminal, load_1m, run_s
from textual.widgets import Static

from workbench.gpu import remote_programs
from workbench.hosts.base import Host
from workbench.session.hosts.names import open_host_by_name
from workbench.tui.textual_private import TerminalApp

FRAME_END = b"\x1b[?2026l"  # of a synchronized update; otherwise the move of the cursor at the end
FRAMES_S = 20.0  # of the screen, which the floor writes again and again
HEALTH_S = 3.0
AFTER_S = 0.02  # past the whole second, as the screen asks for counters
REQUEST = "GET {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAccept: */*\r\n\r\n"


class Floor(TerminalApp):
    """A Textual application with one word that reads what the screen reads, and writes `frames`."""

    def __init__(self, frames: list[str], run_dir: Path) -> None:
        super().__init__()
        self.frames, self.run_dir = frames, run_dir
        self.tasks: list[asyncio.Task[None]] = []

    def compose(self):  # type: ignore[no-untyped-def]
        yield Static("READY")

    def on_mount(self) -> None:
        port = json.loads((self.run_dir / "ready.json").read_text())["port"]
        work = (self.gpus(), self.counters(port), self.process(), self.pause(1.0), self.pause(3.0))
        self.tasks = [asyncio.create_task(each) for each in work]

    async def gpus(self) -> None:
        host: Host = open_host_by_name(None, PROFILE)
        await host.connect()
        stream = await remote_programs.AGENT_PROGRAM.stream(
            host, {"interval_s": 1.0, "hung_s": 3.0}
        )
        number = 0
        async for line in stream.lines():
            if line.startswith(b'{"t"') and self._driver is not None:
                self._driver.write(self.frames[number % len(self.frames)])
                number += 1

    async def counters(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked_s = 0.0
        while True:
            await asyncio.sleep(1.0 - (time.time() - AFTER_S) % 1.0)
            paths = ["/metrics"]
            if time.monotonic() - asked_s >= HEALTH_S:
                asked_s = time.monotonic()
                paths.append("/health")
            for path in paths:
                writer.write(REQUEST.format(path, port).encode())
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].split()
                await reader.readexactly(int(length[0]))

    async def process(self) -> None:
        pid = int((self.run_dir / "pid").read_text().split()[0])
        while True:
            await asyncio.sleep(1.0)
            file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
            os.read(file, 1024)
            os.close(file)
            (self.run_dir / "log").stat()

    async def pause(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)


def frames_of(shown: Terminal) -> list[bytes]:
    """Return the frames that a screen writes in some seconds."""
    frames: list[bytes] = []
    end = time.monotonic() + FRAMES_S
    while (left := end - time.monotonic()) > 0:
        data = shown.read(left)
        if data:
            frames.append(data)
    return frames


def floor(home: Home, frames: list[bytes], run_id: str, folder: Path) -> Terminal:
    kept = folder / "frames.json"
    kept.write_text(json.dumps([frame.decode("utf-8", "replace") for frame in frames]))
    argv = [sys.executable, __file__, "--app", str(kept), str(home.simulated_runs / run_id)]
    return Terminal(argv, env=home.env)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--app", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.app:
        frames = json.loads(Path(chosen.app[0]).read_text())
        Floor(frames, Path(chosen.app[1])).run()
        return
    os.chdir(ROOT)
    with new_home() as home, ready_server(home) as run_id, screen(ROOT, home) as shown:
        shown.until(FIGURES)
        shown.drain(WARM_S)
        frames = frames_of(shown)
        with floor(home, frames, run_id, home.state) as least:
            least.until(frames[0][-8:])
            drain([shown, least], 5.0)
            before = shown.bytes, least.bytes
            found = windows([shown, least], chosen.seconds, chosen.rounds)
            took = chosen.seconds * chosen.rounds
            rates = [
                (one.bytes - was) / took for one, was in zip((shown, least), before, strict=True)
            ]
            agents = [sum(map(run_s, one.children())) for one in (shown, least)]
    for name, each, rate, agent in zip(("screen", "floor"), found, rates, agents, strict=True):
        texts = ", ".join(f"{one:.2f}" for one in each)
        print(
            f"{name} with its agent: {statistics.median(each):.2f} % of a core ({texts}); "
            f"{rate:.0f} bytes/s; its agent and what it started took {agent:.2f} s in all"
        )
    ratios = [one / other for one, other in zip(*found, strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} ({', '.join(f'{r:.2f}' for r in ratios)})")
    print(f"{len(frames)} frames in {FRAMES_S:.0f} s; load {load_1m():.1f}")


if __name__ == "__main__":
    main()
