"""Measure the memory of the screen over an hour of readings and a 200 MB log, and how soon it
answers a key meanwhile.

    python tests/benchmarks/bench_memory.py [telemetry] [log] [keys]

The whole screen runs in a pseudo-terminal with the real session, supervisor, telemetry source and
agent stream. `telemetry`: an agent that sends in 72 s the readings of four GPUs in two hours.
`log`: a server process that writes 200 MB as fast as it can be followed. `keys`: a server that
writes 2,000 lines per second while keys are pressed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "tests")]

from bench_screen import FIGURES, own_directories  # noqa: E402
from terminal import Terminal, load_1m, memory_mib  # noqa: E402

READINGS, PER_S = 7200, 100
LOG_MB = 200
LINE = (
    "(EngineCore pid=7) INFO 11-21 03:15:{:02d} [loggers.py:123] Engine 000: {} requests, KV "
    "cache usage 12.3%"
)


# ---- in the child: the screen with a fast agent or a talking server


def quick_agent(template: str) -> None:
    """Write the stream of an agent: one second of its clock per line, with other values in each."""
    documents = [json.loads(line) for line in Path(template).read_text().splitlines()]
    for document in documents[:-1]:
        print(json.dumps(document), flush=True)
    reading = documents[-1]
    for n in range(READINGS):
        reading["t"], reading["u"] = 1000.0 + n, 1.8e9 + n
        for gpu in reading["gpus"]:
            gpu |= {
                "power_w": random.uniform(40, 250),
                "gpu_util_pct": random.randrange(101),
                "energy_j": 200.0 * n,
            }
            gpu |= {
                "temperature_c": random.randrange(30, 80),
                "sm_mhz": random.randrange(210, 1410, 15),
            }
        print(json.dumps(reading), flush=True)
        time.sleep(1 / PER_S)
    sys.stdin.read()


def talking_server(port: int, lines_per_s: float, megabytes: float) -> None:
    """Run a server that is ready and writes `lines_per_s` lines per second without end, or, if that
    is 0, the given number of MB at 4 MB per second."""
    from support.fake_engine import Handler

    def talk() -> None:
        written, n = 0, 0
        while not megabytes or written < megabytes * 1e6:
            batch = "\n".join(
                LINE.format(n // 2000 % 60, n + i) for i in range(int(lines_per_s or 40_000) // 20)
            )
            n += int(lines_per_s or 40_000) // 20
            written += len(batch) + 1
            sys.stdout.write(batch + "\n")
            sys.stdout.flush()
            time.sleep(0.05)

    threading.Thread(target=talk, daemon=True).start()
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def child(what: str, *words: str) -> int:
    from workbench.hosts.base import Stream
    from workbench.session.session import Session
    from workbench.sim.simulated_host import SimulatedHost

    class Quick(SimulatedHost):
        async def stream(
            self,
            argv: Sequence[str],
            *,
            input: bytes = b"",
            env: Mapping[str, str] | None = None,
        ) -> Stream:
            return await self.inner.stream([sys.executable, __file__, "--agent", words[0]])

    class Talking(Session):
        async def _begin(self) -> None:
            await super()._connect_and_start_readings()
            from workbench import engines
            from workbench.model.plan import Command, LaunchPlan

            port, *rest = words
            command = Command((sys.executable, __file__, "--server", port, *rest), port=int(port))
            plan = LaunchPlan(engine="vllm", model="fake-model")
            status = await self.servers.supervisor.start(
                plan, command, engines.get_engine("vllm"), simulated=True
            )
            await self.servers.select(status.run_id)

        async def close(self) -> None:
            await self.servers.stop()
            await super().close()

    import workbench.tui
    from workbench.session.hosts.names import open_host_by_name

    host = open_host_by_name(None, "four-pcie")
    if what == "telemetry" and isinstance(host, SimulatedHost):
        host = Quick(host.inner, host.simulated, host._state_dir)
        return workbench.tui.run_screen(Session(host), mouse=False)
    return workbench.tui.run_screen(Talking(host), mouse=False)


# ---- outside


async def template(path: Path) -> None:
    """Return the messages of a real agent of the simulated host: driver, infos, one whole reading."""
    from workbench.gpu import remote_programs
    from workbench.session.hosts.names import open_host_by_name

    host = open_host_by_name(None, "four-pcie")
    await host.connect()
    options: dict[str, Any] = {"interval_s": 0.2}
    stream = await remote_programs.AGENT_PROGRAM.stream(host, options)
    found: dict[str, bytes] = {}
    async for line in stream.lines():
        document = json.loads(line)
        found[next(name for name in ("driver", "infos", "t") if name in document)] = line
        if len(found) == 3:
            break
    await stream.close()
    path.write_bytes(b"\n".join(found[name] for name in ("driver", "infos", "t")))


def screen(what: str, *words: str, env: Mapping[str, str]) -> Terminal:
    environment = {
        **env,
        "TEXTUAL_FPS": "40",
        "TEXTUAL_ANIMATIONS": "none",
        "TEXTUAL_SMOOTH_SCROLL": "0",
    }
    return Terminal([sys.executable, __file__, "--child", what, *words], env=environment)


def over_time(terminal: Terminal, seconds: float, every_s: float, label: str) -> None:
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        terminal.drain(min(every_s, seconds - passed))
        resident, own = memory_mib(terminal.child.pid)
        print(
            f"{label} {time.monotonic() - start:5.0f} s: {resident:.1f} MiB RSS, {own:.1f} PSS",
            flush=True,
        )


def telemetry(env: Mapping[str, str]) -> None:
    path = Path(env["XDG_STATE_HOME"]) / "template.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(template(path))
    with screen("telemetry", str(path), env=env) as terminal:
        terminal.until(FIGURES)
        over_time(terminal, READINGS / PER_S * 1.15, 8.0, f"{PER_S} readings/s,")


def free_port() -> int:
    from support.serving import free_port

    return free_port()


def log(env: Mapping[str, str]) -> None:
    with screen("log", str(free_port()), "0", str(LOG_MB), env=env) as terminal:
        terminal.until(b"Engine")
        over_time(terminal, LOG_MB / 4 * 1.3, 8.0, "log at 4 MB/s,")
        logs = list(Path(env["XDG_STATE_HOME"]).rglob("log"))
        print(f"log file: {max(p.stat().st_size for p in logs) / 1e6:.0f} MB; load {load_1m():.1f}")


def keys(env: Mapping[str, str]) -> None:
    with screen("keys", str(free_port()), "2000", "0", env=env) as terminal:
        terminal.until(b"Engine")
        terminal.drain(6.0)
        letters, pages = [], []
        terminal.ask(b"1/", b"\x1b")
        terminal.drain(1.0)
        for _ in range(30):
            terminal.drain(0.23)
            letters.append(1000 * terminal.ask(b"@", b"@"))
            terminal.drain(0.1)
            terminal.ask(b"\x7f", b"\x1b[")
        terminal.ask(b"\x1b", b"\x1b[")
        terminal.drain(1.0)
        for _ in range(15):
            terminal.drain(0.31)
            pages.append(1000 * terminal.ask(b"\x1bOP", b"pick a preset"))
            terminal.drain(0.2)
            terminal.ask(b"q", b"\x1b[")
    for name, found in (("letter in a search", letters), ("help page", pages)):
        found.sort()
        print(
            f"{name}: median {statistics.median(found):.0f} ms, 90 % "
            f"{found[int(len(found) * 0.9)]:.0f} ms, "
            f"worst {found[-1]:.0f} ms; load {load_1m():.1f}"
        )


def main() -> int:
    match sys.argv[1:]:
        case ["--agent", path]:
            quick_agent(path)
        case ["--server", port, lines_per_s, megabytes]:
            talking_server(int(port), float(lines_per_s), float(megabytes))
        case ["--child", what, *words]:
            return child(what, *words)
        case wanted:
            os.chdir(ROOT)
            for work in (telemetry, log, keys):
                if not wanted or work.__name__ in wanted:
                    with own_directories() as env:
                        os.environ.update(env)
                        work(env)
    return 0


if __name__ == "__main__":
    sys.exit(main())
