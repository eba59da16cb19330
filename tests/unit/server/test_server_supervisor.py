"""The supervisor against real detached processes that fail in every way in which a server does."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support import fake_engine
from support.fake_runs import READY_S, VLLM, Make, ready, start, states, tell
from support.serving import eventually, free_port, processes_of, supervised

from workbench.hosts.base import Host
from workbench.hosts.detached_process import ProcessStatus
from workbench.hosts.local import LocalHost
from workbench.model.errors import ServerError
from workbench.model.findings import Level
from workbench.model.server_run import LogBatch, ServerState
from workbench.server import old_runs
from workbench.server import supervisor as module
from workbench.server.supervisor import ServerEvent, Supervisor
from workbench.server.watched_run import WatchedRun

# ---- before a start


def test_a_port_in_use_names_the_process_that_uses_it(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(
                ServerError, match=f"port {port} is in use by process {os.getpid()}"
            ) as caught:
                await start(supervisor, make(port=port))
        assert caught.value.next_step and caught.value.command
        assert await supervisor.runs() == ()

    supervised(scenario)


def test_a_port_of_our_own_server_names_the_run_even_while_it_loads(
    make: Make,
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        port = free_port()
        run_id = await start(supervisor, make("never", port))
        with pytest.raises(
            ServerError, match=f"port {port} is in use by vllm run {run_id}"
        ) as caught:
            await start(supervisor, make("never", port))
        step = caught.value.next_step or ""
        assert step.startswith(
            f"run workbench stop {run_id}, or set another port: "
        ) and step.endswith(" is free")

    supervised(scenario)


def test_a_run_without_recorded_end_blocks_no_port(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        port = free_port()
        run_id = await start(supervisor, make("never", port))
        assert supervisor.status(run_id).alive
        sid = int(Path(supervisor.status(run_id).run_dir or "", "sid").read_text())
        os.killpg(sid, signal.SIGKILL)  # with the shell that would have recorded the exit
        gone = await supervisor.wait(run_id, lambda status: status.state is ServerState.FAILED, 20)
        assert (gone.ended_unix_s, gone.alive) == (None, False)
        await start(supervisor, make("never", port))

    supervised(scenario)


def test_missing_files_are_reported_before_anything_runs(make: Make, tmp_path: Path) -> None:
    plan, _ = make()
    text = tmp_path / "no-program"
    text.write_text("hello")
    cases = [
        ({"executable": ("nowhere-to-be-found",)}, "nowhere-to-be-found not found; searched PATH="),
        ({"executable": (f"{tmp_path}/gone/vllm",)}, "gone/vllm does not exist"),
        ({"executable": (str(text),)}, "no-program is not an executable file"),
        ({"executable": (str(tmp_path),)}, "is not an executable file"),
        ({"model": f"{tmp_path}/no-model"}, "no-model does not exist"),
        (
            {"model": "./no-model", "workdir": str(tmp_path)},
            f"no-model does not exist .relative to {tmp_path}",
        ),
        ({"workdir": f"{tmp_path}/no-dir"}, "working directory .*no-dir does not exist"),
    ]

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        from dataclasses import replace

        for change, message in cases:
            changed = replace(plan, **change)  # type: ignore[arg-type]
            with pytest.raises(ServerError, match=message) as caught:
                await supervisor.start(changed, VLLM.command(changed), VLLM)
            assert caught.value.host == "local" and caught.value.next_step
            if "executable" in change:
                assert "workbench start PRESET --executable PATH" in caught.value.next_step
        assert await supervisor.runs() == ()

    supervised(scenario)


def test_files_of_the_command_are_in_its_run_directory_and_nowhere_else(
    make: Make,
) -> None:
    from dataclasses import replace

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        plan, command = make("never")
        with_file = replace(
            command, argv=(*command.argv, "--config", "{run_dir}/c.yml"), files={"c.yml": "a: 1\n"}
        )
        status = await supervisor.start(plan, with_file, VLLM)
        assert status.run_dir is not None and status.pid is not None
        assert Path(status.run_dir, "c.yml").read_text() == "a: 1\n"
        assert psutil.Process(status.pid).cmdline()[-1] == f"{status.run_dir}/c.yml"
        for name in ("../c.yml", "/etc/c.yml", "."):
            with pytest.raises(Exception, match="outside the run directory"):
                await supervisor.start(plan, replace(make()[1], files={name: ""}), VLLM)

    supervised(scenario)


# ---- ways to end


def test_dies_at_once(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await supervisor.wait_ready(await start(supervisor, make("exit=3")), READY_S)
        assert (status.state, status.exit_code, status.exit_signal) == (ServerState.FAILED, 3, None)
        assert status.reason is not None and "the fake engine was told to fail" in status.reason
        lines = [line for e in events if isinstance(e, LogBatch) for line in e.lines]
        assert lines[-1] == "ValueError: the fake engine was told to fail"
        assert states(events) == [ServerState.STARTING, ServerState.FAILED]

    supervised(scenario)


@pytest.mark.parametrize(
    ("path", "code", "by_signal", "reason"),
    [
        ("/exit?7", 7, None, "told to exit with 7"),
        ("/signal?SIGSEGV", 139, "SIGSEGV", "SIGSEGV|Segmentation fault"),
    ],
)
def test_dies_after_it_was_ready(
    make: Make, path: str, code: int, by_signal: str | None, reason: str
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        await tell(status := await ready(supervisor, make()), path)
        crashed = await supervisor.wait(
            status.run_id, lambda s: s.state is not ServerState.READY, 20
        )
        assert (crashed.state, crashed.exit_code, crashed.exit_signal) == (
            ServerState.CRASHED,
            code,
            by_signal,
        )
        assert crashed.reason is not None and re.search(reason, crashed.reason)
        assert crashed.served_model == fake_engine.SERVED
        # Stopping what has crashed changes nothing of that.
        assert (await supervisor.stop(status.run_id)).state is ServerState.CRASHED

    supervised(scenario)


@pytest.mark.slow
def test_a_failure_shows_what_caused_it_and_no_hints(make: Make) -> None:
    """A truncated model came with "the engine could not raise its limit of open files"."""
    hint = "WARNING Found ulimit of 1024 and failed to automatically increase"
    cause = "ERROR CUDA out of memory. Tried to allocate 2.00 GiB"

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        async with httpx.AsyncClient() as http:
            await http.post(f"{status.url}/log", content=f"{hint}\n{cause}")
        await eventually(
            lambda: len(supervisor.findings_in_log(status.run_id)) == 2, what="both findings"
        )
        await tell(status, "/exit?1")
        ended = await supervisor.wait(status.run_id, lambda s: s.state is not ServerState.READY, 20)
        assert ended.findings and {one.level for one in ended.findings} == {Level.ERROR}

    supervised(scenario)


@pytest.mark.slow
def test_a_server_that_is_never_ready_fails_and_its_process_is_left_running(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await supervisor.wait_ready(
            await start(supervisor, make("never bar"), ready_timeout_s=3), READY_S
        )
        assert (status.state, status.exit_code) == (ServerState.FAILED, None)
        assert (
            status.reason is not None
            and "not ready within 3 s, but its process still runs (/health:" in status.reason
        )
        assert status.pid is not None and psutil.pid_exists(status.pid)
        stopped = await supervisor.stop(status.run_id)
        assert stopped.state is ServerState.STOPPED
        assert not psutil.pid_exists(status.pid)

    supervised(scenario)


@pytest.mark.slow
def test_late_but_ready_after_all(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor, make("delay=2.5"), ready_timeout_s=1)
        assert (await supervisor.wait_ready(run_id, READY_S)).state is ServerState.FAILED
        late = await supervisor.wait(run_id, lambda s: s.state is ServerState.READY, READY_S)
        assert (late.state, late.reason) == (ServerState.READY, None)

    supervised(scenario)


@pytest.mark.slow
def test_answering_health_is_not_ready_without_a_token(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await supervisor.wait_ready(
            await start(supervisor, make("no-token"), ready_timeout_s=2), READY_S
        )
        assert status.state is ServerState.FAILED
        assert (
            status.reason is not None
            and ("/v1/completions returned no answer (500") in status.reason
        )

    supervised(scenario)


def test_phases_come_from_the_log_and_a_progress_bar_without_an_end(
    make: Make,
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor, make("never bar"))
        status = await supervisor.wait(run_id, lambda s: s.phase == "loading weights 40 %", READY_S)
        assert status.state is ServerState.STARTING

    supervised(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_server_that_stops_answering_is_unresponsive(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_READY_ASK_INTERVAL_S", 0.1)
    monkeypatch.setattr(module, "_HEALTH_TIMEOUT_S", 0.3)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        await tell(status := await ready(supervisor, make()), "/hang")
        hanging = await supervisor.wait(
            status.run_id, lambda s: s.state is not ServerState.READY, 20
        )
        assert hanging.state is ServerState.UNRESPONSIVE
        assert hanging.pid == status.pid

    supervised(scenario)


@pytest.mark.slow
def test_a_ready_server_is_read_again_only_after_a_change(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading starts a shell that surveys all processes of the host."""
    read: list[str] = []
    status_of = module.detached_process.read_status

    async def counted(host: Host, run_dir: str, **options: Any) -> ProcessStatus:
        read.append(run_dir)
        return await status_of(host, run_dir, **options)

    compared: list[bool] = []
    has_changed = Supervisor._needs_full_reading

    async def compare(self: Supervisor, run: WatchedRun) -> bool:
        compared.append(await has_changed(self, run))
        return compared[-1]

    monkeypatch.setattr(module, "_OTHER_FULL_READ_INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "_READY_INTERVAL_S", 0.05)
    monkeypatch.setattr(module.detached_process, "read_status", counted)
    monkeypatch.setattr(Supervisor, "_needs_full_reading", compare)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())

        def quiet() -> bool:
            return len(compared) > 5 and not any(compared[-5:])

        await eventually(quiet)
        read.clear()
        compared.clear()
        await eventually(quiet)
        assert read == []

        os.utime(f"{status.run_dir}/ready.json")
        await eventually(lambda: read)
        await eventually(quiet)
        read.clear()
        (run,) = supervisor.watched_runs()
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        try:
            # other processes are in its session
            run.sid, sid = child.pid, run.sid
            await eventually(lambda: read and run.sid == sid)
        finally:
            child.kill()
            child.wait()

    supervised(scenario)


def test_a_frozen_server_is_not_ready_for_who_looks_first(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`servers` once trusted ready.json half a minute after a SIGSTOP."""
    monkeypatch.setattr(module, "_IMMEDIATE_ASK_TIMEOUT_S", 0.2)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        assert status.pid is not None
        os.kill(status.pid, signal.SIGSTOP)
        try:
            other = Supervisor(LocalHost())
            assert [s.state for s in await other.runs()] == [ServerState.READY]
            (seen,) = await other.check_servers_now()
            assert seen.state is ServerState.UNRESPONSIVE and ("not answered for 1 s") in (
                seen.reason or ""
            )
            os.kill(status.pid, signal.SIGCONT)
            again = await other.wait(status.run_id, lambda s: s.state is ServerState.READY, 20)
            assert again.reason is None
            await other.close()
        finally:
            os.kill(status.pid, signal.SIGCONT)

    supervised(scenario)


def test_a_full_disk_is_named_where_a_log_may_be_cut_off(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        first = await supervisor.wait_ready(await start(supervisor, make("exit=1")), READY_S)
        assert first.state is ServerState.FAILED and "disk.full" not in [
            f.code for f in first.findings
        ]
        monkeypatch.setattr(old_runs, "FULL_DISK_KIB", 2**50)
        failed = await supervisor.wait_ready(await start(supervisor, make("exit=1")), READY_S)
        (full,) = [f for f in failed.findings if f.code == "disk.full"]
        assert failed.run_dir is not None and failed.run_dir in full.text and full.fix

    supervised(scenario)


# ---- stopping


@pytest.mark.slow
def test_a_server_that_ignores_term_is_killed(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("ignore-term worker"))
        assert status.run_dir is not None
        assert len(processes_of(status.run_dir)) >= 2
        stopped = await supervisor.stop(status.run_id, grace_s=0.5)
        assert (stopped.state, stopped.exit_signal) == (ServerState.STOPPED, "SIGKILL")
        assert processes_of(status.run_dir) == []
        assert states(events)[-2:] == [ServerState.STOPPING, ServerState.STOPPED]

    supervised(scenario)


@pytest.mark.slow
def test_workers_that_outlive_their_server_are_named_and_stopped(
    make: Make,
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("worker"))
        assert status.pid is not None and status.run_dir is not None
        os.kill(status.pid, signal.SIGKILL)
        crashed = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 20)
        assert {f.code for f in crashed.findings} == {"run.orphans", "exit.process"}
        assert len(processes_of(status.run_dir)) == 1
        stopped = await supervisor.stop(status.run_id, grace_s=0.5)
        assert stopped.state is ServerState.CRASHED
        assert {f.code for f in stopped.findings} == {"exit.process"}
        assert processes_of(status.run_dir) == []

    supervised(scenario)


def test_only_our_own_processes_are_ended(make: Make, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        mine, other = await ready(supervisor, make()), await ready(supervisor, make())
        await supervisor.stop(mine.run_id)
        assert (await supervisor.wait_ready(other.run_id)).state is ServerState.READY
        assert other.pid is not None and psutil.Process(other.pid).is_running()

    supervised(scenario)


@pytest.mark.parametrize(("kind", "prefix"), [("shm", ""), ("semaphore", "sem.")])
def test_shared_memory_that_a_killed_server_left_is_removed(
    make: Make, kind: str, prefix: str
) -> None:
    name = f"workbench-test-{os.getpid()}-{free_port()}"
    left = Path("/dev/shm", prefix + name)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make(f"{kind}={name}"))
        recorded = Path(status.run_dir or "", "shm")
        await eventually(
            lambda: recorded.exists() and name in recorded.read_text(), what="the record of it"
        )
        assert left.exists()
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        await supervisor.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 20)
        await eventually(lambda: not left.exists(), what="its removal")

    try:
        supervised(scenario)
    finally:
        left.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_stop_that_cannot_be_written_down_is_still_made(make: Make) -> None:
    """A full disk of the state directory once kept the server alive, and its GPU memory occupied."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("worker"))
        assert status.run_dir is not None
        Path(status.run_dir, "stop.json").mkdir()  # no file can be put there: as on a full disk
        assert (await supervisor.stop(status.run_id, grace_s=1)).state is ServerState.STOPPED
        assert processes_of(status.run_dir) == []

    supervised(scenario)


@pytest.mark.slow
def test_stopping_while_it_starts_and_twice_at_once(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor, make("never worker"))
        other = Supervisor(LocalHost())
        try:
            await other.runs()
            both = await asyncio.gather(
                supervisor.stop(run_id, grace_s=1), other.stop(run_id, grace_s=1)
            )
            assert [s.state for s in both] == [ServerState.STOPPED, ServerState.STOPPED]
            assert processes_of(both[0].run_dir or "") == []
        finally:
            await other.close()

    supervised(scenario)


# ---- what is known of its log while it runs


def test_a_known_line_of_a_live_server_is_a_finding_within_two_seconds(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as outside of the tests
    for name, value in (
        ("_BUSY_INTERVAL_S", 0.25),
        ("_TALKING_INTERVAL_S", 0.5),
        ("_STARTING_INTERVAL_S", 0.5),
        ("_READY_INTERVAL_S", 1.0),
    ):
        monkeypatch.setattr(module, name, value)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        assert status.findings == ()
        line = "spark-01:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.1<0>"
        async with httpx.AsyncClient() as http:
            await http.post(
                f"{status.url}/log", content=f"WARNING Triton is not installed. triton-cpu\n{line}"
            )
        found = await supervisor.wait(status.run_id, lambda now: bool(now.findings), 2.0)
        assert found.state is ServerState.READY
        (finding,) = found.findings  # the harmless line is none
        assert (finding.code, finding.evidence) == (
            "log.nccl-socket",
            line,
        ) and "41 µs" in finding.text
        known = supervisor.findings_in_log(status.run_id)
        assert [f.code for f in known] == ["log.triton-missing", "log.nccl-socket"]
        assert supervisor.log(status.run_id).lines()[(finding.line or 0) - 1] == line

    supervised(scenario)


def test_a_start_that_hangs_is_named_with_its_phase(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.server.watched_run.STUCK_AFTER_S", 0.2)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor, make("never"))
        phase = "in the phase “loading weights”"
        # On a busy machine, the start is stuck for 0.2 s before the engine writes its first line.
        stuck = await supervisor.wait(
            run_id, lambda now: any(phase in finding.text for finding in now.findings), 20
        )
        assert stuck.state is ServerState.STARTING and stuck.findings[0].code == "start.stuck"
        assert stuck.findings[0].fix

    supervised(scenario)
