"""A user's directories with what collects in them, and programs on this machine with a stand-in for
the driver."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for place in (HERE, HERE.parent, ROOT):
    sys.path.insert(0, str(place))

from support import made_results as made  # noqa: E402
from support.ended_runs import make_ended  # noqa: E402
from terminal import Terminal  # noqa: E402

from workbench.store import recording  # noqa: E402
from workbench.store.results_db import ResultsDb  # noqa: E402

PROFILE, PRESET = "four-pcie", "vllm-qwen3-vl-2b-dp4"
SIMULATED = ("--simulate", PROFILE)
STUB = HERE.parent / "support" / "nvml_stub" / "nvml_stub.c"
LAST_ROW = b"palette"  # the footer, drawn last
FIGURES = b"A100"  # of the simulated host
STUB_FIGURES = b"RTX PRO"
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
_GPU_VALUES = (
    "power_w",
    "gpu_util_pct",
    "sm_mhz",
    "temperature_c",
    "memory_used_bytes",
    "memory_util_pct",
)


class Home:
    """Directories of a user of their own."""

    def __init__(self, folder: Path) -> None:
        self.config, self.state, self.data = folder / "config", folder / "state", folder / "data"
        names = {
            "CONFIG": self.config,
            "STATE": self.state,
            "DATA": self.data,
            "CACHE": folder / "cache",
        }
        self.env = {f"XDG_{name}_HOME": str(path) for name, path in names.items()} | driver()

    @property
    def simulated_runs(self) -> Path:
        return self.state / "workbench" / "sim" / PROFILE / "runs"

    def said(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command, and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "workbench", *words],
            env={**os.environ, **self.env},
            cwd=ROOT,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode not in codes:
            raise SystemExit(
                f"workbench {' '.join(words)}: {done.returncode}\n{done.stderr.decode()}"
            )
        return done.stdout.decode()

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> float:
        """Run a command, and return its milliseconds."""
        began = time.monotonic()
        self.said(*words, codes=codes)
        return 1000 * (time.monotonic() - began)

    def median(self, runs: int, *words: str, codes: tuple[int, ...] = (0,)) -> float:
        self.run(*words, codes=codes)  # compiles, fills caches, marks ended runs
        return statistics.median(self.run(*words, codes=codes) for _ in range(runs))

    def demo(self, *words: str) -> Terminal:
        argv = [sys.executable, "-m", "workbench", "demo", "--host-profile", PROFILE, *words]
        return Terminal(argv, env=self.env)

    def screen(self) -> Terminal:
        """Return the screen of this machine, whose driver is the stand-in."""
        return Terminal([sys.executable, "-m", "workbench"], env=self.env)

    def add_results(self, count: int) -> None:
        db = ResultsDb(self.data / "workbench" / "results.sqlite3")
        one = made.result(
            findings={
                f"gpu{n}.power_limit_w": "requested 500 W, measured 499 W " * 8 for n in range(12)
            }
        )
        db.add(one.spec, one.conditions, one.summary)
        made.multiply(db.path, count - 1)

    def add_presets(self, count: int) -> None:
        folder = self.config / "workbench" / "presets"
        folder.mkdir(parents=True)
        text = (ROOT / "presets" / "vllm-any.toml").read_text()
        for n in range(count):
            (folder / f"mine-{n}.toml").write_text(
                text.replace('id = "vllm-any"', f'id = "mine-{n}"')
            )

    def add_runs(self, count: int, log_mb: int = 0) -> None:
        """Add ended runs of this machine and of the simulated host. The logs of the latter have
        `log_mb` MB in all."""
        make_ended(self.state / "workbench" / "runs", count, days_ago=3)
        ids = make_ended(self.simulated_runs, count, days_ago=3)
        line = (
            b"INFO 11-22 12:00:00 [loggers.py:123] Engine 000: 8 requests, KV cache usage 12.3%\n"
        )
        for run_id in ids[:10] if log_mb else ():
            with (self.simulated_runs / run_id / "log").open("wb") as log:
                for _ in range(log_mb // 10):
                    log.write(line * (10**6 // len(line)))

    def add_history(self, hours: int) -> None:
        """Add the readings of the simulated host's GPUs in the last hours, as its screens have kept
        them."""
        from workbench.session.hosts.names import open_host_by_name
        from workbench.store import history_files

        host, now = open_host_by_name(None, PROFILE), int(time.time())
        name = history_files.history_directory(host.name, simulated=True).name
        folder = self.state / "workbench" / "timeline" / name
        folder.mkdir(parents=True)
        for step_s, length_s in ((1, 3600), (10, hours * 3600)):
            cells = recording.CellWriter(step_s)
            with (folder / f"{now}-1-abc.1.{step_s}s.jsonl").open("w") as file:
                file.write(recording.Header(host.name, True, step_s, float(now)).line())
                for second in range((now - length_s) // step_s * step_s, now, step_s):
                    values = {
                        (gpu, name): 100 + 90 * math.sin(second / (20 + gpu) + place)
                        for gpu in range(4)
                        for place, name in enumerate(_GPU_VALUES)
                    }
                    file.writelines(cells.add_reading(range(second, second + 1), values))

    def add_hosts(self, count: int) -> None:
        """Add hosts to hosts.toml. Nothing listens on their addresses, which are for documentation."""
        (self.config / "workbench").mkdir(parents=True, exist_ok=True)
        entries = "".join(
            f'[hosts.box-{n:03d}]\nssh = "ada@192.0.2.{n % 254 + 1}"\nlabel = "rack {n}"\n\n'
            for n in range(count)
        )
        (self.config / "workbench" / "hosts.toml").write_text(entries)

    @contextmanager
    def talking_server(self, program: str = FLOOD) -> Iterator[None]:
        """Run a process that writes 2,000 log lines a second, or does what `program` says, in a run
        directory of the simulated host."""
        from workbench.hosts import detached_process
        from workbench.hosts.local import LocalHost

        (run_id,) = make_ended(self.simulated_runs, 1)
        run_dir = self.simulated_runs / run_id
        for path in run_dir.iterdir():
            if path.name != "plan.json":
                path.unlink()
        asyncio.run(
            detached_process.start_detached(
                LocalHost(), str(run_dir), [sys.executable, "-c", program]
            )
        )
        try:
            yield
        finally:
            asyncio.run(detached_process.stop_run(LocalHost(), str(run_dir), grace_s=1.0))


@contextmanager
def new_home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="workbench-speed-") as folder:
        yield Home(Path(folder))


_built = tempfile.TemporaryDirectory(prefix="workbench-speed-built-")


def built(source: Path, *command: str) -> Path | None:
    """Return the program or library that a compiler makes of `source`; None without the compiler."""
    out = Path(_built.name) / source.name.replace(".", "_")
    if shutil.which(command[0]) is None:
        return None
    if not out.exists():
        subprocess.run([*command, "-o", str(out), str(source)], check=True)
    return out


@cache
def driver() -> dict[str, str]:
    """Return the environment in which this machine has two GPUs for every program that reads NVML."""
    library = built(STUB, "cc", "-shared", "-fPIC", "-O1")
    if library is None:
        return {}
    (library.parent / "libnvidia-ml.so.1").symlink_to(library)
    return {"LD_LIBRARY_PATH": str(library.parent)}


def nvitop(*words: str, place: str = "") -> tuple[list[str], dict[str, str]] | None:
    """Return the command and the environment of nvitop, from the directory `place` if it is not
    installed here; None without it."""
    if not driver() or not (place or find_spec("nvitop")):
        return None
    return [sys.executable, "-m", "nvitop", *words], {
        **driver(),
        **({"PYTHONPATH": place} if place else {}),
    }
