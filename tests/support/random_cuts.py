"""Servers that launchers, containers and clusters run, cut at random moments: what the next
Workbench makes of it.

python random_cuts.py PLACE DIRECTORY FIRST COUNT SEED      one JSON line for each cut: see `Cut`

A screen (another process) starts a server in a PLACE, follows it, and perhaps stops it. At a random
moment of that, something is killed or cut. Then a new Workbench has `SOON_S` to report the state
that the server has: READY if it answers, else why it has ended. It stops the server, and nothing
may be left. The log must have each line once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.cut_places import START_S, Place, place_called  # noqa: E402
from support.killing import descendants  # noqa: E402
from support.procs import eventually, state_of  # noqa: E402

from workbench.gpu.telemetry.source import TelemetrySource  # noqa: E402
from workbench.model.errors import WorkbenchError  # noqa: E402
from workbench.model.gpu import Telemetry  # noqa: E402
from workbench.model.server_run import ServerState, ServerStatus  # noqa: E402
from workbench.server.cluster_state import NEVER_STARTED_AFTER_S, NOT_STARTED_TEXT  # noqa: E402
from workbench.server.supervisor import Supervisor  # noqa: E402

SOON_S = 30.0
PATIENCE_S = 60.0  # for what is no subject here: the machine may be busy
MOMENTS = ("start", "start", "serve", "stop")
ENDED = frozenset({ServerState.FAILED, ServerState.CRASHED, ServerState.STOPPED})


@dataclass
class Cut:
    number: int
    place: str
    what: str
    moment: str
    after_s: float
    screen_dies: bool
    state: str = ""  # that the next Workbench reported; "none": the run had not begun
    reason: str | None = None
    exit_code: int | None = None
    took_s: float = 0.0  # until that state was reported
    telemetry_s: float | None = None  # until the screen that lived had a new reading
    problem: str | None = None


# ---- the screen


class Screen:
    """A process that starts a server, follows it, and stops it if it is to. It reports what it does
    in a pipe."""

    def __init__(self, place: Place, stops: bool) -> None:
        self.heard: list[str] = []
        self.sources: list[TelemetrySource] = []
        self._text = b""
        self._hears, self._tells = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                os.closerange(3, self._tells)  # the links of the sshds, which the parent cuts
                os.closerange(self._tells + 1, 1024)
                asyncio.run(self._work(place, stops))
            except BaseException as error:
                self._tell(f"failed {type(error).__name__} {error}")
            finally:
                os._exit(0)
        os.close(self._tells)
        os.set_blocking(self._hears, False)

    def _tell(self, text: str) -> None:
        os.write(self._tells, " ".join(text.split()).encode()[:500] + b"\n")

    def _tell_read(self, at: int, reading: Telemetry) -> None:
        self._tell(f"telemetry {at}")

    async def _work(self, place: Place, stops: bool) -> None:
        def hear(event: Any) -> None:
            if isinstance(event, ServerStatus):
                self._tell(f"state {event.state.value} {event.reason or ''}")

        supervisor = place.supervisor(hear)
        await supervisor.host.connect()
        if place.telemetry:
            for at, host in enumerate(getattr(supervisor.host, "nodes", None) or [supervisor.host]):
                node = getattr(host, "host", host)
                source = TelemetrySource(node, on_telemetry=partial(self._tell_read, at))
                self.sources.append(source)
                await source.start()
        self._tell("starting")
        try:
            await self._serve(place, supervisor, stops)
        except (WorkbenchError, TimeoutError) as error:  # a real screen says so, and lives on
            self._tell(f"failed {type(error).__name__} {error}")
        while True:
            await asyncio.sleep(1)
            for source in self.sources:
                if source.problem:
                    self._tell(f"unread {source.problem}")

    async def _serve(self, place: Place, supervisor: Supervisor, stops: bool) -> None:
        status = await place.start(supervisor)
        self._tell(f"started {status.run_id}")
        await supervisor.wait_ready(status.run_id, PATIENCE_S)
        self._tell("serving")
        if stops:
            await asyncio.sleep(0.2)
            self._tell("stopping")
            await supervisor.stop(status.run_id)
            self._tell("stopped")

    def hear(self) -> list[str]:
        with suppress(BlockingIOError):
            while data := os.read(self._hears, 65536):
                *lines, self._text = (self._text + data).split(b"\n")
                self.heard += [line.decode() for line in lines]
        return self.heard

    def wait(self, word: str, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if any(line.split()[0] in (word, "failed") for line in self.hear()):
                return True
            time.sleep(0.01)
        return False

    def last_state(self) -> str:
        return next(
            (line.split()[1] for line in reversed(self.hear()) if line.startswith("state ")), ""
        )

    def kill(self, children: bool = False) -> None:
        below = descendants(self.pid) if children else []
        for pid in (self.pid, *below):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            os.waitpid(self.pid, 0)

    def close(self) -> None:
        if state_of(self.pid) is not None:
            self.kill()
        with suppress(OSError):
            os.close(self._hears)


# ---- one cut


def cut_now(place: Place, screen: Screen, cut: Cut, dice: random.Random) -> None:
    keeper = place.keeper()
    if cut.what == "server":
        victims = place.servers()[:1]
    elif cut.what == "keeper":
        victims = [keeper] if keeper else []
    elif cut.what == "keeper and its children":
        victims = [*descendants(keeper), keeper] if keeper else []
    elif cut.what == "child":
        below = descendants(keeper) if keeper else []
        victims = [dice.choice(below)] if below else []
    elif cut.what.startswith("screen"):
        screen.kill(children=cut.what != "screen")
        return
    else:
        place.outside(cut.what, dice)
        victims = []
    for pid in victims:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if cut.screen_dies:
        screen.kill()


async def judge(place: Place, cut: Cut, screen: Screen) -> None:
    began = time.monotonic()
    supervisor = place.supervisor()
    try:
        while True:
            try:
                await supervisor.host.connect()
                break
            except WorkbenchError:
                assert time.monotonic() - began < SOON_S, "a new Workbench cannot connect"
                await asyncio.sleep(0.5)
        found = await supervisor.runs()
        end = time.monotonic() + SOON_S
        while (
            not found
            and not cut.screen_dies
            and time.monotonic() < end
            and not screen_failed(screen)
        ):
            await asyncio.sleep(0.3)
            found = await supervisor.runs()
        if found:
            await settled(place, cut, supervisor, found[0].run_id, began)
            await end_of(place, cut, supervisor, found[0].run_id, screen)
        else:
            cut.state, cut.took_s = "none", time.monotonic() - began
    finally:
        with suppress(WorkbenchError):
            await supervisor.close()
            await supervisor.host.close()


def screen_failed(screen: Screen) -> bool:
    return any(line.startswith("failed") for line in screen.hear())


async def settled(
    place: Place, cut: Cut, supervisor: Supervisor, run_id: str, began: float
) -> None:
    """Wait until the state is right, and has been for a second."""
    right_since: float | None = None
    while True:
        status = supervisor.status(run_id)
        serves, servers = (
            await asyncio.to_thread(place.serves),
            await asyncio.to_thread(place.servers),
        )
        now = time.monotonic()
        right = (
            (status.state is ServerState.READY and serves)
            or (
                status.state in ENDED
                and not servers
                and bool(status.reason or status.state is ServerState.STOPPED)
            )
            or (status.state is ServerState.STOPPING and cut.moment == "stop" and now - began > 5)
            or (
                status.state is ServerState.STARTING
                and "PENDING" in (status.launcher_state or "")
                and not servers
            )
        )
        if not right:
            right_since = None
        elif right_since is None:
            right_since = now
        elif now - right_since > 1.0:
            cut.state, cut.reason, cut.exit_code = (
                status.state.value,
                status.reason,
                status.exit_code,
            )
            cut.took_s = right_since - began
            return
        limit = SOON_S + (START_S + 10 if servers else 0)
        limit += (
            NEVER_STARTED_AFTER_S
            if any(rank.state == NOT_STARTED_TEXT for rank in status.ranks)
            else 0
        )
        assert now - began < limit, (
            f"after {limit:.0f} s: reported {status.state.value} ({status.reason}; "
            f"{status.launcher_state}; alive="
            f"{status.alive}), serves={serves}, server processes={servers}"
        )
        await asyncio.sleep(0.2)


async def end_of(
    place: Place, cut: Cut, supervisor: Supervisor, run_id: str, screen: Screen
) -> None:
    status = supervisor.status(run_id)
    if status.state is ServerState.READY:
        await whole_log(place, status)
    if cut.telemetry_s is None and place.telemetry and not cut.screen_dies:
        await telemetry_back(cut, screen)
    if status.state in ENDED:
        with suppress(AssertionError):
            await asyncio.to_thread(eventually, lambda: not place.left_of_server(), "", 12.0)
        assert not (left := place.left_of_server()), (
            f"{status.state.value} ({status.reason}), and left: {left}"
        )
    stopped = await supervisor.stop(run_id)
    assert stopped.state in ENDED, f"a stop ended in {stopped.state.value}: {stopped.reason}"
    if not cut.screen_dies:
        wanted = {state.value for state in ENDED}
        with suppress(AssertionError):
            await asyncio.to_thread(eventually, lambda: screen.last_state() in wanted, "", SOON_S)
        failed = [line for line in screen.hear() if line.startswith("failed")]
        assert failed or screen.last_state() in wanted, (
            f"the screen says {screen.last_state()} after the stop"
        )


async def whole_log(place: Place, status: ServerStatus) -> None:
    """Compare the log with the launcher's own."""
    log = Path(status.run_dir or "", "log")
    for last in (False,) * 40 + (True,):
        own = await asyncio.to_thread(place.own_log, status)
        if own is None:
            return
        lines = log.read_text(errors="replace").splitlines()
        engines_own = [line for line in lines if line in set(own)]
        if own == engines_own[-len(own) :] and len(engines_own) == len(own):
            return
        assert not last, (
            f"the log has {len(engines_own)} lines of the server, the launcher "
            f"{len(own)}: {lines[-3:]}"
        )
        await asyncio.sleep(0.25)


async def telemetry_back(cut: Cut, screen: Screen) -> None:
    began = time.monotonic()
    hosts = {line for line in screen.hear() if line.startswith("telemetry")}
    screen.heard = [line for line in screen.heard if not line.startswith("telemetry")]
    while not hosts <= set(screen.hear()):
        why = [line for line in screen.hear() if line.startswith("unread")]
        assert time.monotonic() - began < SOON_S, (
            f"no reading of {hosts - set(screen.hear())}: {why}"
        )
        await asyncio.sleep(0.1)
    cut.telemetry_s = time.monotonic() - began


def one(place: Place, number: int, seed: int) -> Cut:
    dice = random.Random(f"{seed}/{place.name}/{number}")
    what, moment = place.cuts[number % len(place.cuts)], dice.choice(MOMENTS)
    longest = {"start": START_S + 2.0, "serve": 0.5, "stop": 1.5}[moment]
    cut = Cut(
        number, place.name, what, moment, round(dice.uniform(0, longest), 3), dice.random() < 0.4
    )
    cut.screen_dies = cut.screen_dies or what.startswith("screen")
    place.begin(number)
    screen = Screen(place, moment == "stop")
    try:
        word = {"start": "starting", "serve": "serving", "stop": "stopping"}[moment]
        assert screen.wait(word, PATIENCE_S + SOON_S), (
            f"the screen never said {word}: {screen.heard}"
        )
        assert not screen_failed(screen), screen.heard
        time.sleep(cut.after_s)
        cut_now(place, screen, cut, dice)
        asyncio.run(judge(place, cut, screen))
        screen.close()
        with suppress(AssertionError):
            eventually(lambda: not place.left(), "", 20.0)
        assert not (left := place.left()), (
            f"{cut.state} ({cut.reason}): left after the stop: {left}"
        )
    except Exception as error:  # it is told, and the next one tried
        where = "" if isinstance(error, AssertionError) else traceback.format_exc()[-1500:]
        cut.problem = f"{type(error).__name__}: {error} {where}".strip()
    finally:
        screen.close()
        if cut.problem:
            with suppress(Exception):
                place.clear()
    return cut


def main(name: str, directory: str, first: str, count: str, seed: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with place_called(name, Path(directory)) as place:
        for number in range(int(first), int(first) + int(count)):
            print(json.dumps(asdict(one(place, number, int(seed)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
