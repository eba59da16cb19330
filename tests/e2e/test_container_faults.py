"""Servers as containers of real podman when something goes wrong beside them: what copies the log
or what monitors the container is killed, another container has the name of the run's, the disk is
full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.container_servers import (
    ENDED,
    READY_S,
    engine,
    failed,
    fake_plan,
    keeper_of,
    on_path,
    ready,
    started,
    write,
)
from support.killing import descendants
from support.podman import Podman
from support.procs import alive, with_argument
from support.serving import eventually, supervised

from workbench.hosts.local import LocalHost
from workbench.model.errors import HostError
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.supervisor import ServerEvent, Supervisor

__all__ = ["engine", "on_path"]
pytestmark = pytest.mark.slow


@pytest.mark.long
def test_no_line_is_lost_when_what_copies_the_log_is_killed(engine: Podman, tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        log = Path(status.run_dir or "", "log")
        for number in range(3):
            for word in ("logs", "cat")[: 1 + number]:
                for pid in [
                    p.pid for p in psutil.Process(keeper_of(status)).children(recursive=True)
                ]:
                    with contextlib.suppress(psutil.Error):
                        if word in psutil.Process(pid).cmdline():
                            os.kill(pid, signal.SIGKILL)
            await write(status, f"line {number} after a kill")
            await eventually(
                lambda number=number: f"line {number} after a kill" in log.read_text(),
                30,
                "the line",
            )
        own = engine("logs", status.handle or "").splitlines()
        assert len(own) > 5 and log.read_text().splitlines() == own
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED

    supervised(scenario)


# ---- the monitor of a container is killed


def kill_monitor(engine: Podman, status: ServerStatus) -> None:
    os.kill(
        int(engine("inspect", "--format", "{{.State.ConmonPid}}", status.handle or "")),
        signal.SIGKILL,
    )


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("behaviour", "state"), [("never", ServerState.FAILED), ("", ServerState.CRASHED)]
)
def test_a_server_that_ends_after_its_monitor_was_killed(
    behaviour: str, state: ServerState, engine: Podman, tmp_path: Path
) -> None:
    """podman calls such a container running for ever."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await started(supervisor, fake_plan(tmp_path, "podman", behaviour))
        wanted = ServerState.READY if not behaviour else ServerState.STARTING
        status = await supervisor.wait(
            status.run_id, lambda s: s.pid is not None and s.state is wanted, READY_S
        )
        assert status.pid is not None
        await asyncio.to_thread(kill_monitor, engine, status)
        os.kill(status.pid, signal.SIGKILL)
        ended = await supervisor.wait(status.run_id, lambda s: s.state in ENDED, 30)
        assert (ended.state, ended.exit_code) == (state, None)
        assert "the monitor of the container was killed" in (ended.reason or "")
        assert engine("ps", "--all", "--quiet", "--filter", "label=workbench.run") == ""

    supervised(scenario)


@pytest.mark.long
def test_a_server_that_starts_without_its_monitor_fails_and_is_ended(
    engine: Podman, tmp_path: Path
) -> None:
    """It writes into a closed pipe: many programs end then, and others answer no request that they
    would log."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await started(supervisor, fake_plan(tmp_path, "podman", "never"))
        status = await supervisor.wait(status.run_id, lambda s: s.pid is not None, READY_S)
        assert status.pid is not None
        await asyncio.to_thread(kill_monitor, engine, status)
        ended = await supervisor.wait(status.run_id, lambda s: s.state in ENDED, 30)
        assert ended.state is ServerState.FAILED
        assert "the monitor of the container was killed" in (ended.reason or "")
        assert not alive(status.pid), (
            "a process without a parent may be a zombie for a moment, and no more"
        )
        assert engine("ps", "--all", "--quiet", "--filter", "label=workbench.run") == ""

    supervised(scenario)


@pytest.mark.long
def test_a_server_that_outlives_its_monitor_serves_and_is_stopped(
    engine: Podman, tmp_path: Path
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        await asyncio.to_thread(kill_monitor, engine, status)
        assert status.pid is not None
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        assert not alive(status.pid)

    supervised(scenario)


# ---- podman is killed while it creates a container


def held_by(status: ServerStatus) -> list[int]:
    """Return the monitors of a run's container, and what they hold."""
    named = with_argument(status.handle or "")
    monitors = [pid for pid in named if name_of(pid) == "conmon"]
    return [*monitors, *(pid for monitor in monitors for pid in descendants(monitor))]


def name_of(pid: int) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).name()
    return ""


def words_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("stopped", [False, True])
def test_a_podman_that_is_killed_while_it_creates_a_container_leaves_nothing(
    stopped: bool, engine: Podman, tmp_path: Path
) -> None:
    """podman knows nothing of the monitor then, which waits for ever with the process of the
    container."""
    engine.hold.touch()

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await started(supervisor, fake_plan(tmp_path))
        holding = engine.hold.with_name("holding")
        await eventually(holding.exists, 60, "a runtime that creates a container")
        status = await supervisor.wait(status.run_id, lambda s: s.handle is not None, READY_S)
        os.killpg(os.getpgid(keeper_of(status)), signal.SIGKILL)
        engine.hold.unlink()
        holding.unlink()
        await eventually(
            lambda: b"runc\0init\0" in map(words_of, held_by(status)),
            20,
            "a process that waits for ever",
        )
        left = held_by(status)
        if stopped:
            assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        else:
            ended = await supervisor.wait(status.run_id, lambda s: s.state in ENDED, 60)
            assert "was created, but not started" in (ended.reason or "")
        assert not held_by(status) and not any(alive(pid) for pid in left)
        assert engine("ps", "--all", "--quiet", "--filter", "label=workbench.run") == ""

    try:
        supervised(scenario)
    finally:
        engine.hold.unlink(missing_ok=True)


def test_an_image_of_which_podman_says_nothing_is_not_pulled(
    engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    program = killed / "podman"
    line = (
        f'case "$1 $2" in "image inspect") kill -s KILL $$ ;; esac; exec {engine.bin}/podman "$@"'
    )
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{killed}:{os.environ['PATH']}")
    status, log = failed(fake_plan(tmp_path))
    assert (
        status.reason == "podman image inspect does not say whether this-machine:1 is on this host "
        "(it was ended by "
        "signal 9), so nothing was pulled"
    )
    assert log == [f"workbench: {status.reason}"]


# ---- another container has the name of the run's


@contextlib.contextmanager
def forged(engine: Podman, name: str) -> Iterator[str]:
    """Run another container with a run's name and label. It must be there at the end. Yields its
    id."""
    engine.start(name, "--label", f"workbench.run={name.removeprefix('workbench-')}")
    try:
        yield engine("inspect", "--format", "{{.Id}}", name)
        assert engine("inspect", "--format", "{{.State.Running}}", name) == "true"
    finally:
        engine("rm", "--force", "--time", "0", name)


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_container_that_replaces_the_runs_own_is_left_alone(
    word: str, engine: Podman, tmp_path: Path
) -> None:
    """Programs that update containers remove them, and make them again with the same name and
    labels."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, word))
        await supervisor.close()
        os.killpg(os.getpgid(keeper_of(status)), signal.SIGKILL)
        name = status.handle or ""
        engine("rm", "--force", "--time", "0", name)
        with forged(engine, name) as other:
            second = Supervisor(LocalHost())
            await second.runs()
            ended = await second.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 30)
            assert (
                f"another container has its name now, which this run did not start: {other[:12]}"
            ) in (ended.reason or "")
            assert (await second.stop(status.run_id)).state is ServerState.CRASHED
            await second.close()

    supervised(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_container_that_is_replaced_while_it_is_kept(
    word: str, engine: Podman, tmp_path: Path
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path, word))
        engine("rm", "--force", "--time", "0", status.handle or "")
        with forged(engine, status.handle or ""):
            ended = await supervisor.wait(status.run_id, lambda s: s.state in ENDED, 30)
            assert ended.state is ServerState.CRASHED
            await supervisor.stop(status.run_id)

    supervised(scenario)


@pytest.mark.parametrize("word", ["podman", "docker"])
def test_a_name_that_is_taken_at_the_start(
    word: str, engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = "20261122-200000-vllm-0e0e"
    monkeypatch.setattr("workbench.server.supervisor.new_run_id", lambda engine, unix_s: run_id)
    with forged(engine, f"workbench-{run_id}") as other:
        status, lines = failed(fake_plan(tmp_path, word))
        assert "already in use" in (status.reason or ""), lines
        assert other[:12] in "".join(lines)


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of 1 MiB for the run directories."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True
    ).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.long
def test_the_log_fills_the_disk_of_the_host(small_disk: Path, tmp_path: Path) -> None:
    """The server goes on, and its end is known nevertheless."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, fake_plan(tmp_path))
        await write(status, f"{'x' * 1023}\n" * 2000)
        await eventually(lambda: os.statvfs(small_disk).f_bfree == 0, 30, "a full disk")
        assert supervisor.status(status.run_id).state is ServerState.READY
        async with httpx.AsyncClient() as http:
            with contextlib.suppress(httpx.HTTPError):
                await http.post(f"{status.url}/exit?3")
        ended = await supervisor.wait(status.run_id, lambda s: s.state in ENDED, 30)
        assert (ended.state, ended.exit_code) == (ServerState.CRASHED, 3), ended
        assert "disk.full" in {finding.code for finding in ended.findings}
        with pytest.raises(HostError, match="No space left") as refused:
            await started(supervisor, fake_plan(tmp_path))
        assert "free some space" in (refused.value.next_step or "")

    supervised(scenario)
