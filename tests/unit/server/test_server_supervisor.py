"""The supervisor against real detached processes that fail in every way a server does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from workbench import engines
from workbench.hosts.base import HostUnreachable
from workbench.hosts.local import LocalHost
from workbench.model.errors import ServerError
from workbench.model.flags import FlagSetting
from workbench.model.plan import Command, LaunchPlan
from workbench.model.run import LogBatch, ServerState, ServerStatus
from workbench.server import readiness
from workbench.server import supervisor as module
from workbench.server.supervisor import Event, Supervisor

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
import fake_engine
from serving import eventually, free_port, processes_of, supervised

VLLM = engines.get("vllm")
READY_S = 30.0


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than a person needs."""
    for name in ("_BUSY_S", "_STARTING_S", "_READY_S", "_LOST_S", "_ASK_STARTING_S"):
        monkeypatch.setattr(module, name, 0.1)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[LaunchPlan, Command]]:
    """A plan and its command for the fake engine, behaving as the words say."""
    launcher = fake_engine.install(tmp_path / "bin")

    def plan(behaviour: str = "", port: int | None = None, **env: str) -> tuple[LaunchPlan, Command]:
        settings = tuple(FlagSetting(k, v) for k, v in {"FAKE_ENGINE": behaviour, **env}.items())
        flags = (FlagSetting("port", port or free_port()),)
        made = LaunchPlan("vllm", "org/model", flags=flags, env=settings, executable=(str(launcher),))
        return made, VLLM.command(made)

    return plan


async def start(supervisor: Supervisor, made: tuple[LaunchPlan, Command], ready_timeout_s: float = READY_S) -> str:
    status = await supervisor.start(*made, VLLM, ready_timeout_s=ready_timeout_s)
    return status.run_id


async def ready(supervisor: Supervisor, made: tuple[LaunchPlan, Command]) -> ServerStatus:
    status = await supervisor.wait_ready(await start(supervisor, made), READY_S)
    assert status.state is ServerState.READY, status.reason
    return status


async def tell(status: ServerStatus, path: str) -> None:
    async with httpx.AsyncClient() as http:
        with contextlib.suppress(httpx.HTTPError):  # it dies while answering, as told
            await http.post(f"{status.url}{path}", timeout=5)


def states(events: list[Event]) -> list[ServerState]:
    """The states in order, each once in a row."""
    every = [e.state for e in events if isinstance(e, ServerStatus)]
    return [s for i, s in enumerate(every) if i == 0 or s is not every[i - 1]]


# ---- before a start


def test_a_taken_port_names_the_one_who_has_it(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(ServerError, match=f"port {port} is taken by process {os.getpid()}") as caught:
                await start(supervisor, make(port=port))
        assert caught.value.next_step and caught.value.command
        assert await supervisor.runs() == ()

    supervised(scenario)


def test_a_port_of_our_own_server_names_the_run_even_while_it_loads(
    make: Callable[..., tuple[LaunchPlan, Command]],
) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        port = free_port()
        run_id = await start(supervisor, make("never", port))
        with pytest.raises(ServerError, match=f"port {port} is taken by vllm run {run_id}") as caught:
            await start(supervisor, make("never", port))
        assert caught.value.next_step == f"workbench stop {run_id}, or set another port"

    supervised(scenario)


def test_what_is_missing_is_said_before_anything_runs(
    make: Callable[..., tuple[LaunchPlan, Command]], tmp_path: Path
) -> None:
    plan, _ = make()
    text = tmp_path / "no-program"
    text.write_text("hello")
    cases = [
        ({"executable": ("nowhere-to-be-found",)}, "nowhere-to-be-found not found; looked in PATH="),
        ({"executable": (f"{tmp_path}/gone/vllm",)}, "gone/vllm does not exist"),
        ({"executable": (str(text),)}, "no-program is not an executable file"),
        ({"executable": (str(tmp_path),)}, "is not an executable file"),
        ({"model": f"{tmp_path}/no-model"}, "no-model does not exist"),
        ({"model": "./no-model", "workdir": str(tmp_path)}, f"no-model does not exist .relative to {tmp_path}"),
        ({"workdir": f"{tmp_path}/no-dir"}, "working directory .*no-dir does not exist"),
    ]

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        from dataclasses import replace

        for change, message in cases:
            changed = replace(plan, **change)  # type: ignore[arg-type]
            with pytest.raises(ServerError, match=message) as caught:
                await supervisor.start(changed, VLLM.command(changed), VLLM)
            assert caught.value.host == "local" and caught.value.next_step
        assert await supervisor.runs() == ()

    supervised(scenario)


def test_files_of_the_command_are_in_its_run_directory_and_nowhere_else(
    make: Callable[..., tuple[LaunchPlan, Command]],
) -> None:
    from dataclasses import replace

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        plan, command = make("never")
        with_file = replace(command, argv=(*command.argv, "--config", "{run_dir}/c.yml"), files={"c.yml": "a: 1\n"})
        status = await supervisor.start(plan, with_file, VLLM)
        assert status.run_dir is not None and status.pid is not None
        assert Path(status.run_dir, "c.yml").read_text() == "a: 1\n"
        assert psutil.Process(status.pid).cmdline()[-1] == f"{status.run_dir}/c.yml"
        for name in ("../c.yml", "/etc/c.yml", "."):
            with pytest.raises(Exception, match="outside of the run directory"):
                await supervisor.start(plan, replace(make()[1], files={name: ""}), VLLM)

    supervised(scenario)


# ---- ways to end


def test_dies_at_once(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await supervisor.wait_ready(await start(supervisor, make("exit=3")), READY_S)
        assert (status.state, status.exit_code, status.exit_signal) == (ServerState.FAILED, 3, None)
        assert status.reason is not None and "the fake engine was told to fail" in status.reason
        lines = [line for e in events if isinstance(e, LogBatch) for line in e.lines]
        assert lines[-1] == "ValueError: the fake engine was told to fail"
        assert states(events) == [ServerState.STARTING, ServerState.FAILED]

    supervised(scenario)


@pytest.mark.parametrize(
    ("path", "code", "by_signal", "reason"),
    [("/exit?7", 7, None, "told to exit with 7"), ("/signal?SIGSEGV", 139, "SIGSEGV", "Segmentation fault")],
)
def test_dies_after_it_was_ready(
    make: Callable[..., tuple[LaunchPlan, Command]], path: str, code: int, by_signal: str | None, reason: str
) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        await tell(status := await ready(supervisor, make()), path)
        crashed = await supervisor.wait(status.run_id, lambda s: s.state is not ServerState.READY, 20)
        assert (crashed.state, crashed.exit_code, crashed.exit_signal) == (ServerState.CRASHED, code, by_signal)
        assert crashed.reason is not None and reason in crashed.reason
        assert crashed.served_model == fake_engine.SERVED
        # Stopping what has crashed changes nothing of that.
        assert (await supervisor.stop(status.run_id)).state is ServerState.CRASHED

    supervised(scenario)


def test_never_ready_is_said_and_the_process_is_left_alone(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await supervisor.wait_ready(await start(supervisor, make("never bar"), ready_timeout_s=1), READY_S)
        assert (status.state, status.exit_code) == (ServerState.FAILED, None)
        assert status.reason is not None and "not ready within 1 s; its process still runs (/health:" in status.reason
        assert status.pid is not None and psutil.pid_exists(status.pid)
        stopped = await supervisor.stop(status.run_id)
        assert stopped.state is ServerState.STOPPED
        assert not psutil.pid_exists(status.pid)

    supervised(scenario)


def test_late_but_ready_after_all(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        run_id = await start(supervisor, make("delay=2.5"), ready_timeout_s=1)
        assert (await supervisor.wait_ready(run_id, READY_S)).state is ServerState.FAILED
        late = await supervisor.wait(run_id, lambda s: s.state is ServerState.READY, READY_S)
        assert (late.state, late.reason) == (ServerState.READY, None)

    supervised(scenario)


def test_answering_health_is_not_ready_without_a_token(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await supervisor.wait_ready(await start(supervisor, make("no-token"), ready_timeout_s=2), READY_S)
        assert status.state is ServerState.FAILED
        assert status.reason is not None and "/v1/completions gave no token (500" in status.reason

    supervised(scenario)


def test_phases_come_from_the_log_and_a_progress_bar_without_an_end(
    make: Callable[..., tuple[LaunchPlan, Command]],
) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        run_id = await start(supervisor, make("never bar"))
        status = await supervisor.wait(run_id, lambda s: s.phase == "loading weights 40 %", READY_S)
        assert status.state is ServerState.STARTING

    supervised(scenario)


def test_a_server_that_stops_answering_is_unresponsive(
    make: Callable[..., tuple[LaunchPlan, Command]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ASK_READY_S", 0.1)
    monkeypatch.setattr(readiness, "ANSWER_S", 0.3)

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        await tell(status := await ready(supervisor, make()), "/hang")
        hanging = await supervisor.wait(status.run_id, lambda s: s.state is not ServerState.READY, 20)
        assert hanging.state is ServerState.UNRESPONSIVE
        assert hanging.pid == status.pid

    supervised(scenario)


# ---- stopping


def test_a_server_that_ignores_term_is_killed(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, make("ignore-term worker"))
        assert status.run_dir is not None
        assert len(processes_of(status.run_dir)) >= 2
        stopped = await supervisor.stop(status.run_id, grace_s=0.5)
        assert (stopped.state, stopped.exit_signal) == (ServerState.STOPPED, "SIGKILL")
        assert processes_of(status.run_dir) == []
        assert states(events)[-2:] == [ServerState.STOPPING, ServerState.STOPPED]

    supervised(scenario)


def test_workers_that_outlive_their_server_are_named_and_stopped(
    make: Callable[..., tuple[LaunchPlan, Command]],
) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, make("worker"))
        assert status.pid is not None and status.run_dir is not None
        os.kill(status.pid, signal.SIGKILL)
        crashed = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 20)
        assert [f.code for f in crashed.findings] == ["run.orphans"]
        assert len(processes_of(status.run_dir)) == 1
        stopped = await supervisor.stop(status.run_id, grace_s=0.5)
        assert (stopped.state, stopped.findings) == (ServerState.CRASHED, ())
        assert processes_of(status.run_dir) == []

    supervised(scenario)


def test_only_our_own_processes_are_ended(make: Callable[..., tuple[LaunchPlan, Command]], tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        mine, other = await ready(supervisor, make()), await ready(supervisor, make())
        await supervisor.stop(mine.run_id)
        assert (await supervisor.wait_ready(other.run_id)).state is ServerState.READY
        assert other.pid is not None and psutil.Process(other.pid).is_running()

    supervised(scenario)


def test_shared_memory_that_a_killed_server_left_is_removed(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    name = f"workbench-test-{os.getpid()}-{free_port()}"
    left = Path("/dev/shm", name)

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, make(f"shm={name}"))
        recorded = Path(status.run_dir or "", "shm")
        await eventually(lambda: recorded.exists() and name in recorded.read_text(), what="the record of it")
        assert left.exists()
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        await supervisor.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 20)
        await eventually(lambda: not left.exists(), what="its removal")

    try:
        supervised(scenario)
    finally:
        left.unlink(missing_ok=True)


def test_stopping_while_it_starts_and_twice_at_once(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        run_id = await start(supervisor, make("never worker"))
        other = Supervisor(LocalHost())
        try:
            await other.runs()
            both = await asyncio.gather(supervisor.stop(run_id, grace_s=1), other.stop(run_id, grace_s=1))
            assert [s.state for s in both] == [ServerState.STOPPED, ServerState.STOPPED]
            assert processes_of(both[0].run_dir or "") == []
        finally:
            await other.close()

    supervised(scenario)


# ---- adoption


def test_another_supervisor_adopts_with_state_and_log(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        first = await ready(supervisor, make("flood=50"))
        await supervisor.close()
        seen: list[Event] = []
        other = Supervisor(LocalHost(), seen.append)
        try:
            (adopted,) = await other.runs()
            assert (adopted.state, adopted.adopted, adopted.pid) == (ServerState.READY, True, first.pid)
            assert (adopted.served_model, adopted.ready_after_s) == (first.served_model, first.ready_after_s)
            assert other.record(first.run_id) == supervisor.record(first.run_id)
            ring = other.log(first.run_id)
            await eventually(lambda: len(ring) >= 53, what="its log from byte 0")
            assert "non-default args" in ring.lines(0, 1)[0]
            assert (await other.stop(first.run_id)).state is ServerState.STOPPED
        finally:
            await other.close()
        (listed,) = await supervisor.runs()
        assert listed.state is ServerState.STOPPED

    supervised(scenario)


def test_the_reason_of_a_failure_is_found_again_by_the_next_one(
    make: Callable[..., tuple[LaunchPlan, Command]],
) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await supervisor.wait_ready(await start(supervisor, make("exit=2")), READY_S)
        other = Supervisor(LocalHost())
        (again,) = await other.runs()
        assert (again.state, again.exit_code, again.reason) == (ServerState.FAILED, 2, status.reason)
        await other.close()

    supervised(scenario)


def test_a_broken_record_is_listed_and_its_process_can_be_stopped(
    make: Callable[..., tuple[LaunchPlan, Command]],
) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
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
from workbench.model.plan import LaunchPlan
from workbench.server.supervisor import Supervisor
from serving import free_port

async def main():
    engine = engines.get("vllm")
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


@pytest.mark.parametrize("cycles", [pytest.param(2), pytest.param(20, marks=pytest.mark.long)])
def test_servers_outlive_a_killed_workbench_and_nothing_outlives_a_stop(
    tmp_path: Path, cycles: int
) -> None:
    """kill -9 of the one who started it: at once after the start, or once ready; the next one adopts and stops it."""
    launcher = fake_engine.install(tmp_path / "bin")
    support = str(Path(__file__).parents[2] / "support")
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
            await eventually(lambda: any("line 19" in line for line in ring.lines()), what="its log")
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


def test_a_lost_link_is_unknown_and_is_picked_up_again(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    host = FlakyHost()

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, make())
        host.cut = True
        unknown = await supervisor.wait(status.run_id, lambda s: s.state is not ServerState.READY, 20)
        assert unknown.state is ServerState.UNKNOWN
        assert unknown.reason is not None and unknown.reason.startswith("connection lost (last seen ")
        assert unknown.reason.endswith(", ready)")
        host.cut = False
        again = await supervisor.wait(status.run_id, lambda s: s.state is not ServerState.UNKNOWN, 20)
        assert (again.state, again.pid) == (ServerState.READY, status.pid)

    supervised(scenario, host)


def test_a_flood_is_skipped_and_its_ends_are_kept(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    lines = 45_000  # 3 MB at once

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await ready(supervisor, make(f"flood={lines}"))
        ring = supervisor.log(status.run_id)
        last = "INFO:     Application startup complete."
        await eventually(lambda: ring.lines(len(ring) - 1)[0] == last, what="its last line")
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


def test_following_a_log_gives_every_line_until_the_end(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
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


def test_a_key_in_the_environment_is_used_and_not_stored(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        made = make("key=schluessel-1", VLLM_API_KEY="schluessel-1")
        status = await ready(supervisor, made)
        record = Path(status.run_dir or "", "plan.json").read_text()
        assert json.loads(record)["command"]["env"]["VLLM_API_KEY"] == "***"

    supervised(scenario)


def test_a_key_that_nobody_knows_is_said(make: Callable[..., tuple[LaunchPlan, Command]]) -> None:
    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        run_id = await start(supervisor, make("key=unknown-to-us"), ready_timeout_s=1)
        status = await supervisor.wait_ready(run_id, READY_S)
        assert status.reason is not None and "asks for an API key" in status.reason

    supervised(scenario)


def test_tabbyapi_moves_to_another_port_by_itself(tmp_path: Path) -> None:
    tabby = engines.get("tabbyapi")
    launcher = fake_engine.install(tmp_path / "bin")
    moved = free_port()
    env = (FlagSetting("FAKE_ENGINE", f"moved={moved}"),)
    flags = (FlagSetting("port", free_port()),)
    plan = LaunchPlan("tabbyapi", "some-model", flags=flags, env=env, executable=(str(launcher),))

    async def scenario(supervisor: Supervisor, events: list[Event]) -> None:
        status = await supervisor.start(plan, tabby.command(plan), tabby)
        status = await supervisor.wait_ready(status.run_id, READY_S)
        assert (status.state, status.port) == (ServerState.READY, moved), status.reason
        assert status.url == f"http://127.0.0.1:{moved}"

    supervised(scenario)
