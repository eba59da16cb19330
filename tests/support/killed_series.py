"""Tunes and nights of watches that are killed, or whose link is cut, at random moments, and go on.

    python tests/support/killed_series.py DIRECTORY KIND COUNT SEED     one JSON line for each kill

KIND is "tune" or "watch" (SIGKILL for the command) or "link" (a tune over a real sshd whose link is
cut). After each kill the settings of the simulated GPU must be as before within `REVERTED_S`, and the
next command must keep each point, run and result that was stored before. The last command goes on to
the end, and nothing may run afterwards.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.ssh_box import driver_environment  # noqa: E402
from support.sshd import Sshd, free_port, sshd  # noqa: E402

from workbench.sim import profiles  # noqa: E402
from workbench.sim.driver_state import SimState  # noqa: E402
from workbench.sim.physics import GpuSetting  # noqa: E402

PROFILE = "rtx-pro-6000"
REVERTED_S = 120.0  # the guard reverts 10 s after the last heartbeat; the machine may be busy
ENDED_S = 3600.0
MOST_WRITES = 12  # before a kill: a start with its runs makes about five
AFTER_WRITE_S = 3.0  # between the last of them and the kill, at most
UNREAD = ("no telemetry within", "the GPUs cannot be read", "neither energy nor power readings")
KILLS_OF_ONE = 25  # of one tune or night; then it goes on to its end, and a new one begins
# no benchmark measures the idle GPUs before it
_PROGRAM = (
    "import sys; import workbench.session.bench.gpu_meter as meter; meter.IDLE_BEFORE_RUN_S = 0.0; "
    "from workbench.cli import main; sys.exit(main(sys.argv[1:]))"
)
# 3 s, which power readings need, of few tokens: the model is large
_MODEL = ("--var", "model=Qwen/Qwen3-32B")
_LOAD = ("--concurrency", "8", "--requests", "32", "--max-tokens", "24", "--input-tokens", "32")


@dataclass
class Kill:
    """One kill or cut: after how many writes of the command it came, and how many seconds after the
    last, what the command did then, and what was wrong afterwards. `altered` says whether a GPU setting
    was in force at the kill."""

    number: int
    kind: str
    writes: int
    after_s: float
    doing: str = ""
    altered: bool = False
    reverted_s: float = 0.0
    ended: str = ""  # how the command had ended before
    problem: str | None = None


@dataclass
class Kept:
    """What is stored: results by id, measured points and runs by what they are."""

    results: dict[int, str] = field(default_factory=dict)
    measured: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def lost_in(self, later: Kept) -> str | None:
        """Return what `later` has no more, or has otherwise; None if all is there."""
        for number, uid in self.results.items():
            if later.results.get(number) != uid:
                return f"result {number} is lost"
        for name, ids in self.measured.items():
            if later.measured.get(name) != ids:
                return f"{name}: {ids} became {later.measured.get(name)}"
        return None


def _complete_pairs(number: int, runs: Sequence[dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Return the results of the complete pairs of an experiment, by pair. A run without the other one
    of its pair is dropped when the experiment is resumed, because that one would come much later."""
    pairs: dict[int, dict[str, int]] = {}
    for run in runs:
        if run["state"] == "done" and run["result_id"] is not None:
            pairs.setdefault(run["pair"], {})[run["arm"]] = run["result_id"]
    return {
        f"experiment {number} pair {pair}": (arms["A"], arms["B"])
        for pair, arms in pairs.items()
        if arms.keys() == {"A", "B"}
    }


class Place:
    """A user's directories, and the host on which the series runs."""

    def __init__(self, directory: Path, server: Sshd | None) -> None:
        self.directory, self.server = directory, server
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")
        }
        for name in ("CONFIG", "STATE", "CACHE", "DATA"):
            self.environment[f"XDG_{name}_HOME"] = str(directory / name.lower())
        self.environment |= {
            "WORKBENCH_SIM_START_S": "0.2",
            "WORKBENCH_GPU_REGISTER": str(directory / "register"),
            "HOME": str(directory),
        }
        if server is None:
            self.host: tuple[str, ...] = ("--simulate", PROFILE)
            self.driver = directory / "state" / "workbench" / "sim" / PROFILE / "driver"
        else:
            self.host = ("--host", server.host_alias)
            self.driver = directory / "far" / "driver"
            ssh = directory / ".ssh"
            ssh.mkdir()
            (ssh / "config").write_text(server.stanza())

    @property
    def data(self) -> Path:
        return self.directory / "data" / "workbench"

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        log = (self.directory / "log").open("ab")
        with log:
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            argv = [sys.executable, "-c", _PROGRAM, *words]
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
            )

    def settings(self) -> tuple[GpuSetting, ...]:
        return SimState(str(self.driver), profiles.get_profile(PROFILE)).settings()

    def records(self, *parts: str) -> Iterator[dict[str, Any]]:
        for path in sorted(self.data.joinpath(*parts).glob("*.json")):
            with suppress(ValueError):
                record = json.loads(path.read_text())
                if isinstance(record, dict):
                    yield record

    def stamp(self) -> tuple[tuple[str, int], ...]:
        """Return when each record was written last."""
        # new rows are in the second file until SQLite copies them into the first
        paths = [self.data / "results.sqlite3", self.data / "results.sqlite3-wal"]
        paths += [*self.data.glob("sweeps/*.json"), *self.data.glob("watches/*.json")]
        return tuple((str(path), path.stat().st_mtime_ns) for path in paths if path.exists())

    def kept(self) -> Kept:
        found = Kept()
        path = self.data / "results.sqlite3"
        if path.exists():
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60) as db:
                found.results = dict(db.execute("select id, uid from results"))
                tables = {name for (name,) in db.execute("select name from sqlite_master")}
                known = "select id, data from experiments" if "experiments" in tables else ""
                for number, text in db.execute(known):
                    found.measured |= _complete_pairs(number, json.loads(text)["runs"])
        for sweep in self.records("sweeps"):
            for place, point in enumerate(sweep["points"]):
                if point["state"] == "done":
                    name = f"sweep {sweep['id']} point {place}"
                    found.measured[name] = tuple(point["result_ids"])
        return found

    def doing(self) -> str:
        """Return what the newest series does now, for the table of the kills."""
        sweeps = list(self.records("sweeps"))
        if sweeps and sweeps[-1]["experiment_id"] is not None:
            return "final"
        if sweeps:
            blocks = [point["label"].partition(":")[0] for point in sweeps[-1]["points"]]
            return f"block {max(blocks)}"
        nights = list(self.records("watches"))
        return "night" if nights else "start"

    def left(self) -> list[str]:
        """Return the processes of this place that still run."""
        own = str(self.directory)
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                words = process.cmdline()
                if "sshd" in process.name() or not words:
                    continue
                if process.environ().get("HOME") == own or process.environ().get(
                    "XDG_STATE_HOME", ""
                ).startswith(own):
                    found.append(f"{process.pid} {' '.join(words)[:120]}")
        return found


class Series:
    """A tune or a night, from its first command to its end."""

    def __init__(self, place: Place, kind: str, dice: random.Random) -> None:
        self.place, self.kind, self.dice = place, kind, dice
        self.port = free_port()
        self.begun = 0  # series that were begun in this place
        self.first: tuple[GpuSetting, ...] = ()

    def words(self) -> Sequence[str]:
        """Return the command that begins the series, or goes on with it."""
        if self.kind == "watch":
            return ("watch", "run", "--yes")
        open_ones = [one for one in self.place.records("sweeps") if one["state"] != "done"]
        if open_ones:
            return ("tune", "resume", str(open_ones[-1]["id"]), "--yes")
        plan = ("vllm-any", *_MODEL, "--set", f"port={self.port}", "--goal", "tok_j")
        return (*self.place.host, "tune", *plan, *_LOAD, "--starts", "16", "--no-quality", "--yes")

    def prepare(self) -> None:
        if self.kind != "watch":
            return
        program = self.place.directory / "venv" / "bin" / "vllm"
        program.parent.mkdir(parents=True)
        sim = Path(profiles.__file__).parent / "bin" / "vllm"
        program.symlink_to(sim)
        candidate = f"venv:{program.parent.parent}"
        words = ("watch", "add", "vllm-any", "--candidate", candidate, "--no-quality")
        sets = (*_MODEL, "--set", f"port={self.port}", "--requests", "16")
        added = self.place.command(*self.place.host, *words, *sets)
        assert added.wait(ENDED_S) == 0, (self.place.directory / "log").read_text()

    def killed(self, number: int) -> Kill:
        """Begin or go on, kill at a random moment, and judge what is left."""
        writes = self.dice.randint(0, MOST_WRITES)
        kill = Kill(number, self.kind, writes, round(self.dice.uniform(0.0, AFTER_WRITE_S), 2))
        before = self.place.kept()
        with self.place.command(*self.words()) as process:
            self._wait_for_writes(process, writes)
            with suppress(subprocess.TimeoutExpired):
                process.wait(kill.after_s)
            ended = process.poll()
            kill.doing = self.place.doing()
            kill.altered = self.place.settings() != self.first
            self._cut(process)
        not_reverted = self._not_reverted(kill)
        kill.problem = before.lost_in(self.place.kept()) or not_reverted
        if ended:
            kill.ended = f"{ended}: {self._last_line()}"
            kill.problem = kill.problem or self._failure()
        return kill

    def _failure(self) -> str | None:
        """Return what is wrong with a command that has ended before its kill. None if the machine was
        so busy that the GPUs could not be read for long: nothing was killed then."""
        log = (self.place.directory / "log").read_text(errors="replace")
        last_command = log.rpartition("\n$ ")[2]
        if any(text in last_command for text in UNREAD):
            return None
        return f"the command had ended: {self._last_line()}"

    def _wait_for_writes(self, process: subprocess.Popen[bytes], count: int) -> None:
        """Wait until the command has changed its files this often, or has ended."""
        last = self.place.stamp()
        while count > 0 and process.poll() is None:
            time.sleep(0.02)
            if (now := self.place.stamp()) != last:
                last, count = now, count - 1

    def _cut(self, process: subprocess.Popen[bytes]) -> None:
        server = self.place.server
        if server is None:
            process.send_signal(signal.SIGKILL)
            return
        server.cut()
        try:
            process.wait(ENDED_S / 10)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)

    def _not_reverted(self, kill: Kill) -> str | None:
        began = time.monotonic()
        while (now := self.place.settings()) != self.first:
            if time.monotonic() > began + REVERTED_S:
                return f"the GPU has {now}, and had {self.first}"
            time.sleep(0.1)
        kill.reverted_s = round(time.monotonic() - began, 1)
        if self.place.server is not None:
            self.place.server.restore()
        return None

    def end(self) -> str | None:
        """Let the series go on to its end. Return what is wrong afterwards."""
        before = self.place.kept()
        code = self.place.command(*self.words()).wait(ENDED_S)
        if code != 0:
            return f"the last command ended with {code}: {self._last_line()}"
        if self.place.settings() != self.first:
            return f"the GPU has {self.place.settings()} at the end"
        for _ in range(600):
            if not (left := self.place.left()):
                break
            time.sleep(0.1)
        return before.lost_in(self.place.kept()) or (f"still runs: {left}" if left else None)

    def _last_line(self) -> str:
        return (self.place.directory / "log").read_text(errors="replace").splitlines()[-1]


def main() -> None:
    directory, kind, count, seed = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5])
    directory.mkdir(parents=True, exist_ok=True)
    dice = random.Random(f"{kind} {seed}")
    with ExitStack() as stack:
        server = None
        if kind == "link":
            given = driver_environment(directory / "far", PROFILE)
            given |= {"WORKBENCH_SIM_START_S": "0.2", "PYTHONDONTWRITEBYTECODE": "1"}
            server = stack.enter_context(sshd(directory / "ssh", environment=given))
        series = Series(Place(directory, server), kind, dice)
        series.prepare()
        series.first = series.place.settings()
        for number in range(1, count + 1):
            kill = series.killed(number)
            if number % KILLS_OF_ONE == 0 or number == count:
                kill.problem = kill.problem or series.end()
            print(json.dumps(asdict(kill)), flush=True)


if __name__ == "__main__":
    main()
