"""Servers outlive the program that started them: adoption, a lost link, logs that flood, keys, a
port that moves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support import fake_engine
from support.fake_runs import READY_S, Make, ready, start, tell
from support.procs import alive
from support.serving import eventually, free_port, processes_of, supervised

from workbench import engines
from workbench.hosts.base import HostUnreachable
from workbench.hosts.local import LocalHost
from workbench.model.flags import FlagSetting
from workbench.model.plan import Command, LaunchPlan
from workbench.model.server_run import LogBatch, ServerState
from workbench.server.run_directory import ReadyFacts, RunRecord
from workbench.server.supervisor import ServerEvent, Supervisor
from workbench.server.watched_run import WatchedRun

# ---- adoption


def test_another_supervisor_adopts_with_state_and_log(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        first = await ready(supervisor, make("flood=50"))
        await supervisor.close()
        seen: list[ServerEvent] = []
        other = Supervisor(LocalHost(), seen.append)
        try:
            (adopted,) = await other.runs()
            assert (adopted.state, adopted.adopted, adopted.pid) == (
                ServerState.READY,
                True,
                first.pid,
            )
            assert (adopted.served_model, adopted.ready_after_s) == (
                first.served_model,
                first.ready_after_s,
            )
            began, kept = supervisor.record(first.run_id), other.record(first.run_id)
            # The file is written before the start: it may wait for an image.
            assert kept.created_unix_s <= began.created_unix_s
            assert replace(began, created_unix_s=kept.created_unix_s) == kept
            ring = other.log(first.run_id)
            await eventually(lambda: len(ring) >= 53, what="its log from byte 0")
            assert "non-default args" in ring.lines(0, 1)[0]
            assert (await other.stop(first.run_id)).state is ServerState.STOPPED
        finally:
            await other.close()
        (listed,) = await supervisor.runs()
        assert listed.state is ServerState.STOPPED

    supervised(scenario)


def test_a_run_that_was_listed_before_its_start_was_recorded_is_listed_ready_later(
    make: Make,
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run = await ready(supervisor, make())
        await supervisor.close()
        recorded = ("pid", "starttime", "sid", "sid_starttime", "ready.json")
        directory = Path(run.run_dir or "")
        for name in recorded:
            (directory / name).rename(directory / f"{name}.later")
        other = Supervisor(LocalHost())
        try:
            (early,) = await other.runs()
            assert early.state is ServerState.FAILED
            assert await other.has_unread_runs(), "an open screen must look again"
            for name in recorded:
                (directory / f"{name}.later").rename(directory / name)
            (later,) = await other.runs()
            assert (later.state, later.pid) == (ServerState.READY, run.pid)
            assert not await other.has_unread_runs()
            assert (await other.stop(run.run_id)).state is ServerState.STOPPED
        finally:
            await other.close()

    supervised(scenario)


def test_the_reason_of_a_failure_is_found_again_by_the_next_one(
    make: Make,
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await supervisor.wait_ready(await start(supervisor, make("exit=2")), READY_S)
        other = Supervisor(LocalHost())
        (again,) = await other.runs()
        assert (again.state, again.exit_code, again.reason) == (
            ServerState.FAILED,
            2,
            status.reason,
        )
        await other.close()

    supervised(scenario)


def test_the_log_of_a_run_that_others_outlive_is_read_at_once(make: Make) -> None:
    """The server has ended, and one of its processes lives still: nobody has read the log yet, and
    `load_log` does."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("worker"))
        await supervisor.close()
        # as the watch of a rank writes it
        Path(status.run_dir or "", "stop.json").write_text('{"unix_s": 1.0}')
        os.kill(status.pid or 0, signal.SIGKILL)
        other = Supervisor(LocalHost())
        try:
            await eventually(
                lambda: not psutil.pid_exists(status.pid or 0), what="the end of the server"
            )
            (left,) = await other.runs()
            assert left.outlived  # one, or more while a process of the launcher ends
            assert (
                "INFO:     Application startup complete."
                in (await other.load_log(status.run_id)).lines()
            )
        finally:
            await other.close()
        await supervisor.runs()

    supervised(scenario)


def test_the_log_of_a_server_that_writes_all_the_time_is_read_once(make: Make) -> None:
    reads: list[int] = []

    class BusyHost(LocalHost):
        async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
            if path.endswith("/log"):
                reads.append(offset)
                with Path(path).open("a") as file:
                    file.write(f"line {len(reads)}\n")
            return await super().read_file(path, offset=offset, limit=limit)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        await supervisor.close()
        other = Supervisor(BusyHost())
        try:
            await other.runs()
            async with asyncio.timeout(10):
                ring = await other.load_log(status.run_id)
            assert "line 1" in ring.lines() and len(reads) <= 2
            await eventually(lambda: len(reads) > 5, what="further reads")
            assert reads == sorted(set(reads)), "no bytes are read twice"
        finally:
            await other.close()
        await supervisor.runs()

    supervised(scenario)


def test_the_last_words_of_a_process_that_outlived_its_server_are_in_the_log(make: Make) -> None:
    """It writes after the log was read for the last time, and before it is known that it has ended."""
    words: list[Path] = []

    class LateHost(LocalHost):
        async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
            data = await super().read_file(path, offset=offset, limit=limit)
            if path.endswith("/log") and words:
                log = words.pop()
                with log.open("a") as file:
                    file.write("the last words\n")
                for process in processes_of(str(log.parent)):
                    process.kill()
                    # in a container whose first process reaps nobody it stays a zombie
                    await eventually(lambda pid=process.pid: not alive(pid))  # type: ignore[misc]
            return data

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("worker"))
        os.kill(status.pid or 0, signal.SIGKILL)
        await supervisor.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, READY_S)
        words.append(Path(status.run_dir or "", "log"))
        await eventually(
            lambda: not supervisor.status(status.run_id).outlived, what="the end of all processes"
        )
        await eventually(
            lambda: "the last words" in supervisor.log(status.run_id).lines(), 2, "the last line"
        )

    supervised(scenario, LateHost())


def test_a_broken_record_is_listed_and_its_process_can_be_stopped(
    make: Make,
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        Path(status.run_dir or "", "plan.json").write_text("{ half a reco")
        other = Supervisor(LocalHost())
        (listed,) = await other.runs()
        assert [f.code for f in listed.findings] == ["run.record"]
        assert listed.engine == "vllm"
        assert (await other.stop(status.run_id)).state is ServerState.STOPPED
        assert not psutil.pid_exists(status.pid or 0)
        await other.close()

    supervised(scenario)


STARTER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from workbench import engines
from workbench.hosts.local import LocalHost
from workbench.model.flags import FlagSetting
from workbench.model.plan import Command, LaunchPlan
from workbench.server.supervisor import Supervisor
from support.serving import free_port

async def main():
    engine = engines.get_engine("vllm")
    env = (FlagSetting("FAKE_ENGINE", "worker flood=20"),)
    flags = (FlagSetting("port", free_port()),)
    plan = LaunchPlan("vllm", "org/model", flags=flags, env=env, executable=(sys.argv[1],))
    supervisor = Supervisor(LocalHost())
    status = await supervisor.start(plan, engine.command(plan), engine)
    print(status.run_id, flush=True)
    await supervisor.wait_ready(status.run_id, 60)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("cycles", [pytest.param(2), pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.long
def test_servers_outlive_a_killed_workbench_and_nothing_outlives_a_stop(
    tmp_path: Path, cycles: int
) -> None:
    """kill -9 of the starter, at once after the start or once ready; the next Workbench adopts and
    stops the server."""
    launcher = fake_engine.install(tmp_path / "bin")
    support = str(Path(__file__).parents[2])
    shm_before = set(os.listdir("/dev/shm"))

    async def cycle(number: int) -> None:
        starter = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STARTER, str(launcher), support, stdout=asyncio.subprocess.PIPE
        )
        assert starter.stdout is not None
        run_id = (await asyncio.wait_for(starter.stdout.readline(), 60)).decode().strip()
        if number % 2:
            assert await asyncio.wait_for(starter.stdout.readline(), 60) == b"ready\n"
        starter.kill()
        await starter.wait()
        supervisor = Supervisor(LocalHost())
        try:
            status = await supervisor.wait_ready(run_id, READY_S)
            assert (status.state, status.adopted) == (ServerState.READY, True), status.reason
            ring = supervisor.log(run_id)
            await eventually(
                lambda: any("line 19" in line for line in ring.lines()), what="its log"
            )
            assert len(processes_of(status.run_dir or "")) >= 2
            assert (await supervisor.stop(run_id, grace_s=0.5)).state is ServerState.STOPPED
            assert processes_of(status.run_dir or "") == []
        finally:
            await supervisor.close()

    async def go() -> None:
        for number in range(cycles):
            await cycle(number)

    asyncio.run(go())
    assert set(os.listdir("/dev/shm")) <= shm_before


# ---- a lost link, a flood, a key, a port that moved


class FlakyHost(LocalHost):
    """A local host whose link can be cut."""

    cut = False

    async def run(self, *args: object, **kw: object) -> object:  # type: ignore[override]
        self._check()
        return await super().run(*args, **kw)  # type: ignore[arg-type]

    async def read_file(self, *args: object, **kw: object) -> bytes:  # type: ignore[override]
        self._check()
        return await super().read_file(*args, **kw)  # type: ignore[arg-type]

    def _check(self) -> None:
        if self.cut:
            raise HostUnreachable("connection lost", host=self.name)


def test_a_lost_link_is_unknown_and_is_picked_up_again(make: Make) -> None:
    host = FlakyHost()

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        host.cut = True
        unknown = await supervisor.wait(
            status.run_id, lambda s: s.state is not ServerState.READY, 20
        )
        assert unknown.state is ServerState.UNKNOWN
        assert unknown.reason is not None and unknown.reason.startswith(
            "connection lost (last seen "
        )
        assert unknown.reason.endswith(", ready)")
        host.cut = False
        again = await supervisor.wait(
            status.run_id, lambda s: s.state is not ServerState.UNKNOWN, 20
        )
        assert (again.state, again.pid) == (ServerState.READY, status.pid)

    supervised(scenario, host)


def test_a_flood_is_skipped_and_its_ends_are_kept(make: Make) -> None:
    lines = 45_000  # 3 MB at once

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make(f"flood={lines}"))
        ring = supervisor.log(status.run_id)
        last = "INFO:     Application startup complete."
        await eventually(lambda: list(ring.lines(len(ring) - 1)) == [last], what="its last line")
        assert any(e.truncated for e in events if isinstance(e, LogBatch))
        assert "line 0 of" in ring.lines(1, 1)[0]
        assert len(ring) < 25_000
        found = await supervisor.search_log(status.run_id, f"line {lines // 2} OF")
        assert [m.number for m in found] == [lines // 2 + 2]
        count = 0
        async for batch in supervisor.read_log(status.run_id):
            count += len(batch.lines)
        assert count == lines + 3

    supervised(scenario)


def test_following_a_log_gives_every_line_until_the_end(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("flood=10"))
        got: list[str] = []

        async def follow() -> None:
            async for batch in supervisor.read_log(status.run_id, follow=True):
                got.extend(batch.lines)

        following = asyncio.create_task(follow())
        await eventually(lambda: len(got) >= 13, what="what was there")
        assert not following.done()
        await tell(status, "/exit?0")
        await asyncio.wait_for(following, 20)
        assert got[-1] == "RuntimeError: told to exit with 0"

    supervised(scenario)


def test_a_key_in_the_environment_is_used_and_not_stored(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        made = make("key=schluessel-1", VLLM_API_KEY="schluessel-1")
        status = await ready(supervisor, made)
        record = Path(status.run_dir or "", "plan.json").read_text()
        assert json.loads(record)["command"]["env"]["VLLM_API_KEY"] == "***"

    supervised(scenario)


@pytest.mark.slow
def test_an_unknown_key_is_reported(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor, make("key=unknown-to-us"), ready_timeout_s=5)
        status = await supervisor.wait_ready(run_id, READY_S)
        assert status.reason is not None and "requires an API key" in status.reason

    supervised(scenario)


def test_tabbyapi_moves_to_another_port_by_itself(tmp_path: Path) -> None:
    tabby = engines.get_engine("tabbyapi")
    launcher = fake_engine.install(tmp_path / "bin")
    moved = free_port()
    env = (FlagSetting("FAKE_ENGINE", f"moved={moved}"),)
    flags = (FlagSetting("port", free_port()),)
    plan = LaunchPlan("tabbyapi", "some-model", flags=flags, env=env, executable=(str(launcher),))

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await supervisor.start(plan, tabby.command(plan), tabby)
        status = await supervisor.wait_ready(status.run_id, READY_S)
        assert (status.state, status.port) == (ServerState.READY, moved), status.reason
        assert status.url == f"http://127.0.0.1:{moved}"

    supervised(scenario)


def test_the_version_of_an_adopted_ready_server_is_read_from_its_log() -> None:
    """A server in a container: no program on the host tells its version."""
    record = RunRecord(
        "20261122-200000-vllm-abcd", "local", LaunchPlan("vllm", "m"), Command(("vllm",)), 1.0, 60.0
    )
    run = WatchedRun(LocalHost(), "/runs/one", record, engines.get_engine("vllm"), adopted=True)
    run.facts = replace(run.facts, alive=True, ready=ReadyFacts(2.0, "m", 1.0, 8000))
    run.add_log_bytes(
        b"(APIServer pid=1) INFO 11-22 21:10:11 [utils.py:1] vLLM API server version 0.32.0\n", 0
    )
    run.refresh_and_check_status_change()
    assert (run.status.state, run.status.engine_version) == (ServerState.READY, "0.32.0")
