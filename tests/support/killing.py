"""Processes that change GPU settings on a simulated host and are killed at a random point of it:
what is left, and what the next start makes of it.

python killing.py DIRECTORY FIRST COUNT SEED      one JSON line for each kill: see `Kill`

A victim reports each thing that it asks of its host through a pipe. The point of the kill is one of
these steps, each as likely as the others however short it is, and a moment within it. What is
killed is the process alone ("process"), or with it whatever it started, its guard included ("all"),
or the guard in the middle of giving back ("guard").
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.guarded import FAST, GuardedHost, run  # noqa: E402
from support.procs import alive, eventually  # noqa: E402

from workbench.gpu.guard import client  # noqa: E402
from workbench.gpu.guard.client import GuardTerms  # noqa: E402
from workbench.gpu.settings import alterations, apply, current_values, plan, revert, rights  # noqa: E402
from workbench.gpu.telemetry.source_of_host import read_telemetry_once  # noqa: E402
from workbench.hosts.base import Completed, Stream  # noqa: E402
from workbench.hosts.local import LocalHost  # noqa: E402
from workbench.model.gpu import Telemetry  # noqa: E402
from workbench.model.settings import ClockRange, GpuSettings  # noqa: E402
from workbench.session.gpu.alterations import CUT_CHANGE_OFFER, REVERT_OFFER, revert_offer_texts  # noqa: E402

SCRIPTS = {client.READ_STATUS_SCRIPT: "look at guard"}
REQUESTS = {
    b'{"do": "lock"': "lock and read journal",
    b'{"do": "read"': "read journal",
    b'{"do": "save"': "write journal",
    b'{"do": "unlock"': "unlock",
}
PHASES = ("apply", "hold", "revert", "over")
PART = 2  # settings of a plan
HEARTBEAT_S, TRIAL_S = 1.0, 3.0
HOLD_S = 0.2
OPTIONS = {**FAST, "unfinished_s": HEARTBEAT_S}
PATIENCE_S = 40.0  # for the guard: the machine may be busy
CHOICES: Mapping[str, Any] = {
    "power_limit_w": 450.0,
    "gpu_clocks": ClockRange(1000, 2000),
    "memory_clocks": ClockRange(14001, 14001),
    "persistence": True,
    "governor": "powersave",
}


@dataclass
class Kill:
    number: int
    what: str  # process, all, guard
    terms: str  # heartbeat, trial, none
    settings: Sequence[str]
    phase: str = "over"  # apply, hold, revert, guard's revert; over: nothing was left to kill
    step: str = ""
    altered: int = 0  # how many settings were not as before right after the kill
    by_guard: bool = False  # that it gave them back
    reported: bool = False  # by the next start
    problem: str | None = None


class Telling(LocalHost):
    """This machine as a host that reports each call through a pipe before it makes the call."""

    def __init__(self, tells: int) -> None:
        super().__init__()
        self.tells = tells

    def tell(self, step: str) -> None:
        os.write(self.tells, step.encode() + b"\n")

    async def run(self, argv: Sequence[str], **rest: Any) -> Completed:
        step = SCRIPTS.get(argv[2] if argv[0] == "sh" else "", "")
        if "nvidia-smi" in argv[0] or argv[0] == "tee":
            step = "set"
        elif "guard of GPU settings" in " ".join(argv[:-1]):
            step = "start guard"
        for request, name in REQUESTS.items():
            if request in (rest.get("input") or b""):
                step = name
        if step:
            self.tell(step)
        return await super().run(argv, **rest)

    async def stream(self, argv: Sequence[str], **rest: Any) -> Stream:
        self.tell("read GPUs")
        return await super().stream(argv, **rest)


class Trial:
    def __init__(self, directory: Path, reading: Telemetry, chance: random.Random) -> None:
        self.directory, self.reading, self.chance = directory, reading, chance
        self.box = GuardedHost(directory)
        run(self.box.host.connect())
        self.box.sim.change_setting(
            0, limit_w=chance.choice([None, 500.0]), persistence=chance.random() < 0.5
        )
        self.before = self.now()

    def now(self) -> dict[str, Any]:
        """Read the driver and the cores directly."""
        files = sorted(
            Path(self.box.host.driver_state).glob(
                "sys/devices/system/cpu/*/cpufreq/scaling_governor"
            )
        )
        governors = [file.read_text() for file in files]
        return {**asdict(self.box.sim.settings()[0]), "governor": governors}

    def altered(self) -> int:
        now = self.now()
        return sum(now[name] != self.before[name] for name in now)

    # ---- the victim

    def begin(self, kill: Kill) -> tuple[int, int]:
        """Start a victim. Return its process and the pipe of its reports."""
        hears, tells = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(hears)
                run(self.victim(kill, Telling(tells)))
                os._exit(0)
            except BaseException as error:  # the killer reads it
                os.write(tells, f"failed: {error!r}\n".encode())
                os._exit(1)
        os.close(tells)
        return pid, hears

    async def victim(self, kill: Kill, inner: Telling) -> None:
        box = GuardedHost(self.directory, inner=inner)
        await box.host.connect()
        mine = rights.Rights(f"{box.host.environment()['PATH'].split(':')[0]}/nvidia-smi")
        wanted = GpuSettings(**{name: CHOICES[name] for name in kill.settings})
        cores = await current_values.read_core_settings(box.host)
        commands = plan.plan_commands({"0": wanted}, self.reading, mine, cores)
        terms = GuardTerms(
            mine,
            HEARTBEAT_S if kill.terms == "heartbeat" else None,
            TRIAL_S if kill.terms == "trial" else None,
        )
        signs = asyncio.create_task(box.signs_of_life())
        inner.tell("apply")
        report = await apply.apply_commands(
            box.host,
            commands,
            rights=mine,
            watch=terms.guard_instructions_for,
            guard=lambda journal: client.start_guard(box.host, terms, journal, **OPTIONS),
        )
        inner.tell("hold" if report.ok else f"failed: {report}")
        await asyncio.sleep(HOLD_S)
        inner.tell("revert")
        await revert.revert_settings(box.host, rights=mine)
        inner.tell("over")
        signs.cancel()

    # ---- the kill

    def shoot(self, kill: Kill, at: int, after_s: float) -> list[tuple[str, float]]:
        """Kill `after_s` after step number `at` began. Return the steps until then and the time
        when each began."""
        pid, hears = self.begin(kill)
        steps: list[tuple[str, float]] = []
        text = b""
        while len(steps) <= at and (more := os.read(hears, 4096)):
            *lines, text = (text + more).split(b"\n")
            steps += [(line.decode(), time.monotonic()) for line in lines]
        for step, _ in steps[: at + 1]:
            if step.startswith("failed"):
                kill.problem = step
            kill.phase, kill.step = (step, "") if step in PHASES else (kill.phase, step)
        time.sleep(after_s if len(steps) > at else 0)
        self.end(kill, pid)
        os.close(hears)
        return steps

    def end(self, kill: Kill, pid: int) -> None:
        started = descendants(pid)
        os.kill(pid, signal.SIGKILL)
        if kill.what == "all":
            self.box.kill_guard()
            for child in started:
                with suppress(OSError):
                    os.kill(child, signal.SIGKILL)
        os.waitpid(pid, 0)
        eventually(
            lambda: not any(alive(child) for child in started),
            "what it had begun to end",
            PATIENCE_S,
        )
        kill.altered = self.altered()

    def shoot_guard(self, kill: Kill) -> None:
        """Kill the guard in the middle of a revert."""
        log, home = self.box.gpu / "guard" / "log", self.box.gpu / "guard"
        eventually(lambda: "reverting: " in log.read_text(), "the guard to begin", PATIENCE_S)
        time.sleep(self.chance.random() * 0.6)
        link = Path(f"{self.box.journal}.lock")
        pid = int((home / "pid").read_text().split()[0])
        held, started = link.is_symlink(), descendants(pid)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        if self.chance.random() < 0.5:
            for child in started:
                with suppress(OSError):
                    os.kill(child, signal.SIGKILL)
        eventually(
            lambda: not any(alive(p) for p in (pid, *started)), "the guard to be gone", PATIENCE_S
        )
        kill.altered, kill.phase = self.altered(), "guard's revert"
        kill.step = f"{kill.altered} left" if held else "journal written"

    # ---- what is left

    def judge(self, kill: Kill) -> None:
        """Return the state that a user finds, and how the next start handles it."""
        entries = []
        if self.box.journal.exists():
            entries = json.loads(self.box.journal.read_text())["entries"]
        cut_off = any(entry["state"] == "pending" for entry in entries)
        guarded = kill.terms != "none" or cut_off
        if kill.what == "process" and guarded and self.guard_lives():
            eventually(lambda: not self.guard_lives(), "the guard to end", PATIENCE_S)
            assert not self.altered(), (
                f"the guard has ended and left {self.now()}, before {self.before}"
            )
            kill.by_guard = kill.altered > 0
        run(self.next_start(kill))
        assert not self.altered(), f"reverted, and left {self.now()}, before {self.before}"
        assert (
            json.loads(self.box.journal.read_text())["entries"] == []
            if self.box.journal.exists()
            else True
        )

    def guard_lives(self) -> bool:
        try:
            return alive(self.box.pid)
        except (OSError, IndexError):
            return False

    async def next_start(self, kill: Kill) -> None:
        found, _ = await alterations.read_journal_records_and_log(self.box.host)
        altered = self.altered()
        names = {
            "limit_w": "power_limit_w",
            "gpu_lock_mhz": "gpu_clocks",
            "memory_lock_mhz": "memory_clocks",
        }
        off = {names.get(k, k) for k, v in self.now().items() if v != self.before[k]}
        told = {r.entry.setting for r in found}
        assert off <= told, f"{off - told} is altered, and the next start does not say so"
        is_offered = not {REVERT_OFFER, CUT_CHANGE_OFFER}.isdisjoint(revert_offer_texts(found))
        kill.reported = altered > 0 and is_offered
        assert kill.reported or not altered, f"altered, but nothing is offered: {found}"
        for again in (False, True):
            report = await revert.revert_settings(self.box.host)
            assert report.ok or not report.outcomes, f"revert failed: {report}"
            assert not again or not report.outcomes, "reverting twice does something"


def descendants(pid: int) -> list[int]:
    """Return the processes that the victim started and still owns. The guard has another parent."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


# A file of /sys takes a whole write or none; a plain file would be cut off by being opened.
TEE = """IFS= read -r text || exit 0
for file; do printf '%s\\n' "$text" >"$file.new" && mv "$file.new" "$file"; done
"""


def bring_tee(directory: Path) -> None:
    tee = directory / "bin" / "tee"
    tee.parent.mkdir(parents=True)
    tee.write_text("#!/bin/sh\n" + TEE)
    tee.chmod(0o755)
    os.environ["PATH"] = f"{tee.parent}:{os.environ['PATH']}"


def rehearse(directory: Path, reading: Telemetry) -> list[tuple[str, float]]:
    """Return the steps of a victim that is not killed, and the duration of each."""
    trial = Trial(directory, reading, random.Random(0))
    steps = trial.shoot(Kill(0, "process", "heartbeat", sorted(CHOICES)[:PART]), sys.maxsize, 0.0)
    trial.box.kill_guard()
    assert steps[-1][0] == "over", steps
    return [(step, then - now) for (step, now), (_, then) in itertools.pairwise(steps)]


def one(
    number: int, seed: int, directory: Path, reading: Telemetry, steps: Sequence[tuple[str, float]]
) -> Kill:
    chance = random.Random(f"{seed}/{number}")
    kill = Kill(
        number,
        chance.choice(["process", "process", "all", "guard"]),
        chance.choice(["heartbeat", "trial", "none"]),
        chance.sample(sorted(CHOICES), PART),
    )
    trial = Trial(directory / str(number), reading, chance)
    at = chance.randrange(len(steps))
    if kill.what == "guard":
        kill.terms, at = "heartbeat", [step for step, _ in steps].index("hold")
    try:
        trial.shoot(kill, at, chance.random() * steps[at][1])
        if kill.what == "guard":
            trial.shoot_guard(kill)
        trial.judge(kill)
    except Exception as error:  # it is told, and the next one tried
        kill.problem = kill.problem or f"{type(error).__name__}: {error}"
    finally:
        trial.box.kill_guard()
    if kill.problem is None:
        shutil.rmtree(trial.directory, ignore_errors=True)
    return kill


def main(directory: Path, first: int, count: int, seed: int) -> None:
    bring_tee(directory)
    reading = run(read_telemetry_once(GuardedHost(directory / "limits").host))
    steps = rehearse(directory / "rehearsal", reading)
    for number in range(first, first + count):
        print(json.dumps(asdict(one(number, seed, directory, reading, steps))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:5]))
