"""The whole loop over a real sshd, with the link cut in the middle of each step and restored.

Everything but the GPU is real: OpenSSH's sshd, its sessions and forwards, a detached server process
behind it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.serving import eventually
from support.ssh_box import PROFILE, SOON_S, Box, box, ready, started

from workbench.gpu.settings import journal
from workbench.model.server_run import ServerState
from workbench.model.setting_records import InForce
from workbench.model.settings import ClockRange, GpuSettings
from workbench.session.session import Session

ROOT = Path(__file__).resolve().parents[2]
WANTED = GpuSettings(power_limit_w=450.0, gpu_clocks=ClockRange(1000, 2000))
AT_FIRST = (600.0, None)  # as the profile has it
STARTER = """
import asyncio, sys
sys.path[:0] = [{tests!r}, {root!r}]
from pathlib import Path
from support.ssh_box import ready
from workbench.hosts.ssh import SshHost
from workbench.session.session import Session
from workbench.sim.simulated_host import SimulatedHost
async def main():
    session = Session(SimulatedHost(SshHost("box", ssh_config={config!r}), {profile!r}, {state!r}))
    await session.open()
    while session.state.telemetry is None:
        await asyncio.sleep(0.02)
    print((await ready(session)).run_id, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path) as one:
        yield one


def run(far: Box, scenario: Callable[[Session], Awaitable[None]]) -> None:
    async def go() -> None:
        async with far.session() as session:
            await scenario(session)

    asyncio.run(go())


def state_of(session: Session) -> ServerState | None:
    return session.state.server.state if session.state.server else None


def log_of(session: Session) -> list[str]:
    return list(session.log.lines(0, len(session.log)))


@pytest.mark.slow
def test_start_cut_while_it_loads(tmp_path: Path) -> None:
    """It becomes READY with nobody watching; then that is seen, the log is whole, the benchmark
    that waited runs."""

    async def scenario(session: Session) -> None:
        run_id = await started(session)
        assert (
            await session.bench.benchmark_selected_run(
                requests=8, concurrency=2, max_tokens=16, warmup=0
            )
            is None
        )
        await eventually(lambda: len(session.log) > 3, what="its log")
        assert state_of(session) is ServerState.STARTING
        await far.cut(session)
        since = session.state.host.lost_since_unix_s
        assert since is not None and abs(time.time() - since) < SOON_S
        await eventually(lambda: state_of(session) is ServerState.UNKNOWN, SOON_S, "UNKNOWN")
        assert session.state.server is not None
        # "lost", or why a new connection failed, if one was tried already
        assert "(last seen" in (session.state.server.reason or "")
        assert "starting)" in (session.state.server.reason or "")
        await eventually(
            lambda: any("startup complete" in line for line in far.lines(run_id)),
            SOON_S,
            "its start",
        )
        assert state_of(session) is ServerState.UNKNOWN
        await eventually(lambda: session.state.host.retries > 1, SOON_S, "retries that show")
        assert session.state.host.lost_since_unix_s == since
        await far.restore(session)
        status = await session.servers.wait_ready(run_id, SOON_S)
        assert (status.state, status.reason) == (ServerState.READY, None)
        # stored even if it is refused: on a busy machine the streams of so short a run may be idle
        await eventually(lambda: session.state.bench.stored_id, SOON_S, "the benchmark that waited")
        stored = await session.results.get(session.state.bench.stored_id or 0)
        assert stored.summary.requests_ok == 8
        await eventually(lambda: log_of(session) == far.lines(run_id), what="the same log")

    with box(tmp_path, start_s=3.0) as far:
        run(far, scenario)


@pytest.mark.slow
def test_the_log_goes_on_at_the_right_byte(far: Box) -> None:
    """Two cuts while the server writes 500 lines a second: none is lost, none comes twice."""

    async def scenario(session: Session) -> None:
        run_id = (await ready(session)).run_id
        file = far.state_dir / "runs" / run_id / "log"
        begun, over = threading.Event(), threading.Event()

        def write() -> None:
            with file.open("a") as log:
                for number in range(2000):
                    log.write(f"INFO line {number} of many ü{'.' * (number % 90)}\n")
                    if number % 10 == 9:
                        log.flush()
                        begun.set()
                        over.wait(0.02)

        writer = asyncio.create_task(asyncio.to_thread(write))
        await eventually(begun.is_set)
        for _ in range(2):
            seen = len(session.log)
            await eventually(lambda seen=seen: len(session.log) > seen + 100, SOON_S, "lines")  # type: ignore[misc]
            await far.cut(session)
            assert not writer.done()
            await far.restore(session)
        over.set()
        await writer
        await eventually(lambda: log_of(session) == far.lines(run_id), SOON_S, "the same log")
        assert len(session.log) > 2000

    run(far, scenario)


@pytest.mark.long
@pytest.mark.slow
def test_adopt_after_kill_9_cut_in_the_middle(far: Box) -> None:
    text = STARTER.format(
        tests=str(ROOT / "tests"),
        root=str(ROOT),
        config=str(far.server.ssh_config_path),
        profile=PROFILE,
        state=str(far.state_dir),
    )
    starter = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter.stdout:
        run_id = starter.stdout.readline().strip()
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    assert run_id, "nothing was started"

    async def go() -> None:
        session = Session(far.host())
        try:
            await session.open()
            await eventually(lambda: session.state.host.link == "connected", SOON_S, "the link")
            await far.cut(session)  # while it lists what runs there
            assert state_of(session) is not ServerState.READY
            await far.restore(session)
            await eventually(
                lambda: state_of(session) is ServerState.READY, SOON_S, "the adopted server"
            )
            status = session.state.server
            assert status is not None and (status.run_id, status.adopted) == (run_id, True)
            assert status.pid is not None and psutil.Process(status.pid).is_running()
            await eventually(
                lambda: log_of(session) == far.lines(run_id), SOON_S, "its log from byte 0"
            )
            await eventually(
                lambda: session.state.plan is not None, SOON_S, "what runs as the plan"
            )
            assert await session.bench.benchmark_selected_run(
                requests=4, concurrency=1, max_tokens=16, warmup=0
            )
            await session.servers.stop()
            assert far.processes() == []
        finally:
            far.server.restore()
            await session.close()

    asyncio.run(go())


@pytest.mark.long
@pytest.mark.slow
def test_a_benchmark_through_the_tunnel_cut_in_the_middle(far: Box) -> None:
    async def scenario(session: Session) -> None:
        run_id = (await ready(session)).run_id
        shape = {"requests": 28, "concurrency": 4, "max_tokens": 256, "warmup": 0, "client": "here"}
        running = asyncio.create_task(session.bench.benchmark_selected_run(**shape))
        await eventually(lambda: (p := session.state.bench.progress) and p.done > 4, SOON_S)
        await far.cut(session)
        await asyncio.sleep(0.3)
        assert not running.done()
        await far.restore(session)
        first = await session.results.get(await asyncio.wait_for(running, SOON_S) or 0)
        summary = first.summary
        assert summary.requests_ok + summary.requests_failed == 28
        # Those in flight failed; one that had no byte of its answer yet was asked again, and what
        # came during the outage waited for the link.
        assert 2 <= summary.requests_failed < 10 and set(summary.errors) == {"reset"}
        assert (first.conditions.client, first.conditions.host) == ("tunnel", f"box/sim:{PROFILE}")
        assert first.conditions.simulated
        assert session.state.bench.running is False
        second = await session.results.get(
            await asyncio.wait_for(
                session.bench.benchmark_selected_run(**shape | {"requests": 8}), SOON_S
            )
            or 0
        )
        assert (second.summary.requests_ok, second.summary.errors) == (8, {})
        assert session.state.server is not None and session.state.server.run_id == run_id

    run(far, scenario)


@pytest.mark.long
def test_a_benchmark_whose_link_does_not_come_back_ends(far: Box) -> None:
    async def scenario(session: Session) -> None:
        await ready(session)
        running = asyncio.create_task(
            session.bench.benchmark_selected_run(
                requests=5000, concurrency=4, max_tokens=32, warmup=0, client="here"
            )
        )
        await eventually(lambda: (p := session.state.bench.progress) and p.done > 8, SOON_S)
        await far.cut(session)
        result = await session.results.get(await asyncio.wait_for(running, 40) or 0)
        assert 0 < result.summary.requests_ok < 5000
        assert any("were not sent" in note for note in result.summary.notes)
        assert result.summary.power_w is not None or "power_w" in result.summary.absent

    run(far, scenario)


def cut_at(
    far: Box, session: Session, word: str, *, reached: bool, outage_s: float = 0.5
) -> list[asyncio.Task[Any]]:
    """Cut the link at the first command that has `word`: before it is sent, or (`reached`) when its
    answer is due."""
    inner = session.host.inner  # type: ignore[attr-defined]
    real = inner.run
    restoring: list[asyncio.Task[Any]] = []

    async def later() -> float:
        await asyncio.sleep(outage_s)
        return await far.restore(session)

    async def run(argv: Sequence[str], **kw: Any) -> Any:
        if restoring or not any(part.startswith(word) for part in argv):
            return await real(argv, **kw)
        if reached:
            await real(argv, **kw)
        await far.cut(session)
        restoring.append(asyncio.create_task(later()))
        raise inner.connection_lost_error()

    inner.run = run
    return restoring


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "reached"),
    [
        ("-pl", True),
        ("--lock-gpu", False),
        pytest.param("-pl", False, marks=pytest.mark.long),
        pytest.param("--lock-gpu", True, marks=pytest.mark.long),
    ],
)
def test_settings_cut_in_the_middle_of_apply(far: Box, word: str, reached: bool) -> None:
    async def scenario(session: Session) -> None:
        restoring = cut_at(far, session, word, reached=reached)
        report = await asyncio.wait_for(session.gpu.apply_settings(WANTED), SOON_S)
        assert await asyncio.gather(*restoring)
        in_force = far.settings()
        by_setting = {o.command.setting: o for o in report.outcomes}
        hit = by_setting["power_limit_w" if word == "-pl" else "gpu_clocks"]
        assert not report.ok and hit.in_force is InForce.NOT_CHECKED, (
            "a plan is made whole or not at all"
        )
        # the driver tells what the lost answer would have: 450 until it was given back
        if word == "-pl":
            assert hit.read_back == (450.0 if reached else 600.0)
        else:  # a lock cannot be read back: said, not guessed
            assert "connection" in hit.message and hit.read_back is None
        assert in_force == AT_FIRST and all(o.ok for o in report.rolled_back)
        given_back = {"power_limit_w"} if word == "-pl" else {"gpu_clocks", "power_limit_w"}
        assert {o.command.setting for o in report.rolled_back} == given_back, (
            "also where only the answer may be lost"
        )
        assert (await journal.read_journal(session.host)).entries == () == session.state.alterations
        assert (await asyncio.wait_for(session.gpu.revert_settings(), SOON_S)).ok
        assert far.settings() == AT_FIRST
        assert session.state.alterations == ()

    run(far, scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "reached"),
    [
        ("-pl", True),
        ("--reset-gpu", False),
        pytest.param("-pl", False, marks=pytest.mark.long),
        pytest.param("--reset-gpu", True, marks=pytest.mark.long),
    ],
)
def test_settings_cut_in_the_middle_of_revert(far: Box, word: str, reached: bool) -> None:
    async def scenario(session: Session) -> None:
        assert (await session.gpu.apply_settings(WANTED)).ok
        assert far.settings() == (450.0, (1000, 2000))
        restoring = cut_at(far, session, word, reached=reached)
        report = await asyncio.wait_for(session.gpu.revert_settings(), SOON_S)
        assert await asyncio.gather(*restoring)
        left = {e.setting: e.before for e in (await journal.read_journal(session.host)).entries}
        assert {a.setting for a in session.state.alterations} == set(left)
        in_force = far.settings()
        assert in_force[0] == 600.0 or left["power_limit_w"] == 600.0
        assert in_force[1] is None or "gpu_clocks" in left
        assert report.ok == (not left)
        assert (await asyncio.wait_for(session.gpu.revert_settings(), SOON_S)).ok
        assert far.settings() == AT_FIRST
        assert session.state.alterations == ()

    run(far, scenario)


@pytest.mark.long
@pytest.mark.slow
def test_stop_cut_in_the_middle(far: Box) -> None:
    async def scenario(session: Session) -> None:
        status = await ready(session)
        assert far.processes() != []
        stopping = asyncio.create_task(session.servers.stop())
        await eventually(lambda: state_of(session) is ServerState.STOPPING, SOON_S, "STOPPING")
        await far.cut(session)
        await asyncio.sleep(0.3)
        await far.restore(session)
        await asyncio.wait_for(stopping, SOON_S)
        assert state_of(session) is ServerState.STOPPED
        assert far.processes() == [] and not psutil.pid_exists(status.pid or 0)

    run(far, scenario)


@pytest.mark.slow
def test_readings_get_old_and_come_back(far: Box) -> None:
    async def scenario(session: Session) -> None:
        await eventually(lambda: session.state.host.latency_ms is not None, SOON_S, "the latency")
        assert (session.state.host.latency_ms or 0) > 0
        pid = (await ready(session)).pid
        await far.cut(session)
        at = session.state.telemetry_monotonic_s
        await eventually(
            lambda: session.state.host.telemetry_problem, SOON_S, "a word about stale readings"
        )
        assert "connect" in (session.state.host.telemetry_problem or "")
        # kept, with its age
        assert session.state.telemetry is not None and session.state.telemetry_monotonic_s == at
        await far.restore(session)
        await eventually(lambda: session.state.telemetry_monotonic_s != at, SOON_S, "new readings")
        await eventually(
            lambda: session.state.host.telemetry_problem is None, SOON_S, "no problem any more"
        )
        await eventually(
            lambda: state_of(session) is ServerState.READY, SOON_S, "the server as it was"
        )
        assert session.state.server is not None and session.state.server.pid == pid

    run(far, scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_key_that_changed_meanwhile_is_refused_and_not_tried_again(far: Box) -> None:
    async def scenario(session: Session) -> None:
        await ready(session)
        await far.cut(session)
        await asyncio.to_thread(far.server.new_host_key)
        await asyncio.to_thread(far.server.restore)
        await eventually(lambda: session.state.host.link == "failed", SOON_S, "the refusal")
        assert "differs from the one in known_hosts" in (session.state.host.message or "")
        assert session.state.host.unknown_key is None  # not a question: it is refused
        dialled = far.server.cutter.accepted
        await asyncio.sleep(3)  # the readers ask several times meanwhile
        assert far.server.cutter.accepted == dialled

    run(far, scenario)


@pytest.mark.long
def test_a_link_that_dies_silently_is_noticed(far: Box) -> None:
    async def scenario(session: Session) -> None:
        status = await ready(session)
        await asyncio.to_thread(far.server.silence)
        began = time.monotonic()
        await eventually(lambda: session.state.host.link == "lost", 30, "the loss")
        assert time.monotonic() - began < 15
        await far.restore(session)
        assert (await session.servers.wait_ready(status.run_id, SOON_S)).pid == status.pid
        await eventually(lambda: log_of(session) == far.lines(status.run_id), what="the same log")

    run(far, scenario)


@pytest.mark.long
def test_an_outage_longer_than_an_apply_waits(far: Box) -> None:
    """The lock and the pending entries stay on the host; the same Workbench takes them up again."""

    async def scenario(session: Session) -> None:
        restoring = cut_at(far, session, "--lock-gpu", reached=True, outage_s=45)
        report = await asyncio.wait_for(session.gpu.apply_settings(WANTED), 60)
        assert not report.ok and any(
            "still has the previous values" in o.message for o in report.outcomes
        )
        await asyncio.gather(*restoring)
        await eventually(lambda: len(session.state.alterations) == 2, SOON_S, "what is altered")
        assert (await session.gpu.revert_settings()).ok
        assert far.settings() == AT_FIRST

    run(far, scenario)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_cuts_at_any_moment_of_apply_and_revert(far: Box, seed: int) -> None:
    chance = random.Random(seed)

    async def scenario(session: Session) -> None:
        for _ in range(4):
            for change in (lambda: session.gpu.apply_settings(WANTED), session.gpu.revert_settings):
                doing = asyncio.create_task(change())  # type: ignore[operator]
                await asyncio.sleep(chance.uniform(0, 1.5))
                await asyncio.to_thread(far.server.cut)
                await asyncio.sleep(chance.uniform(0, 2))
                await asyncio.to_thread(far.server.restore)
                await asyncio.wait([doing], timeout=60)
                assert doing.done()
                doing.exception()  # it may have been told that the host cannot be asked
                await eventually(lambda: session.state.host.link == "connected", SOON_S, "the link")
                power, lock = far.settings()
                kept = {
                    e.setting: e.before for e in (await journal.read_journal(session.host)).entries
                }
                assert power == 600.0 or kept["power_limit_w"] == 600.0
                assert lock is None or "gpu_clocks" in kept
            await session.gpu.revert_settings()
            assert far.settings() == AT_FIRST

    run(far, scenario)


@pytest.mark.long
def test_ten_cuts_while_it_serves(far: Box) -> None:
    async def scenario(session: Session) -> None:
        status = await ready(session)
        chance = random.Random(1)
        for _ in range(10):
            running = asyncio.create_task(
                session.bench.benchmark_selected_run(
                    requests=60, concurrency=4, max_tokens=32, warmup=0
                )
            )
            await asyncio.sleep(chance.uniform(0, 2))
            await far.cut(session)
            await asyncio.sleep(chance.uniform(0, 3))
            await far.restore(session)
            await asyncio.wait([running], timeout=60)
            assert running.done()
            running.exception()
            again = await session.servers.wait_ready(status.run_id, SOON_S)
            assert again.pid == status.pid
        assert len(os.listdir(f"/proc/{os.getpid()}/fd")) < 100
        assert await session.bench.benchmark_selected_run(
            requests=8, concurrency=1, max_tokens=8, warmup=0
        )

    run(far, scenario)
