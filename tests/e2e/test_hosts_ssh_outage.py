"""When the link is cut: what is told, what comes back, what lives on there and what ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.procs import alive, eventually, with_argument
from support.sshd import Sshd, sshd

from workbench.hosts import detached_process, ssh
from workbench.hosts import reconnecting_link as link
from workbench.hosts.base import HostUnreachable
from workbench.hosts.reconnecting_link import LinkEvent
from workbench.hosts.ssh import SshHost


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "sshd") as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Whatever a failed test leaves running would disturb the next."""
    yield
    for pid in (pid for i in range(1, 6) for pid in with_argument(f"72.00{i}")):
        os.kill(pid, signal.SIGKILL)


def on(server: Sshd, work: Callable[[SshHost], Awaitable[None]]) -> None:
    async def main() -> None:
        host = SshHost(server.host_alias, ssh_config=server.ssh_config_path)
        try:
            await work(host)
        finally:
            await host.close()

    asyncio.run(main())


async def until(condition: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        await asyncio.sleep(0.02)


def test_a_cut_is_told_and_the_link_comes_back_by_itself(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        told: list[LinkEvent] = []
        host.on_link(told.append)
        await host.connect()
        await asyncio.to_thread(server.cut)
        await until(lambda: told, "the loss")
        assert not host.connected
        await asyncio.to_thread(server.restore)
        await until(lambda: host.connected, "the link")
        assert [event.connected for event in told if not event.retries] == [False, True]
        assert told[-1].outage_s > 0

    on(server, work)


def test_a_call_during_a_short_outage_waits_for_the_link(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        await host.connect()
        await asyncio.to_thread(server.cut)
        call = asyncio.create_task(host.run(["echo", "after"]))
        await until(lambda: not host.connected, "the loss")
        await asyncio.to_thread(server.restore)
        assert (await call).out == "after\n"

    on(server, work)


def test_a_call_during_a_long_outage_fails_and_says_that_servers_live_on(
    server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "PATIENCE_S", 0.3)

    async def work(host: SshHost) -> None:
        await host.connect()
        await asyncio.to_thread(server.cut)
        await until(lambda: not host.connected, "the loss")
        with pytest.raises(HostUnreachable, match="no connection for") as told:
            await host.run(["true"])
        assert "servers on the host continue to run" in str(told.value.next_step)

    on(server, work)


def test_a_command_cut_in_the_middle_is_unreachable_not_failed(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        call = asyncio.create_task(host.run(["sh", "-c", "echo part; sleep 72.001"]))
        await until(lambda: with_argument("72.001"), "the command")
        await asyncio.to_thread(server.cut)
        with pytest.raises(HostUnreachable, match="lost"):
            await call

    on(server, work)
    assert with_argument("72.001")  # what is not a stream runs to its end there


def test_a_stream_cut_in_the_middle_says_so_and_its_command_ends(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        stream = await host.stream(["sh", "-c", "echo up; sleep 72.002; :"])
        lines = stream.lines()
        assert await anext(lines) == b"up"
        await asyncio.to_thread(server.cut)
        with pytest.raises(HostUnreachable, match="lost"):
            await anext(lines)
        with pytest.raises(HostUnreachable):
            await stream.wait()
        await until(lambda: not with_argument("72.002"), "the remote command to end")
        await stream.close()
        await asyncio.to_thread(server.restore)
        again = await host.stream(["echo", "again"])
        assert [line async for line in again.lines()] == [b"again"]
        await again.close()

    on(server, work)


def test_a_file_cut_off_in_the_middle_of_writing_is_as_before(server: Sshd, tmp_path: Path) -> None:
    path = tmp_path / "files" / "file"
    path.parent.mkdir()
    path.write_bytes(b"old")

    def parts() -> list[Path]:
        return [p for p in path.parent.iterdir() if p.name.startswith(".new") and p.stat().st_size]

    async def work(host: SshHost) -> None:
        call = asyncio.create_task(host.write_file(str(path), b"x" * 50_000_000))
        await until(parts, "a part of it to be there")
        await asyncio.to_thread(server.cut)
        with pytest.raises(HostUnreachable):
            await call

    on(server, work)
    eventually(lambda: [p.name for p in path.parent.iterdir()] == ["file"], "no part to be left")
    assert path.read_bytes() == b"old"


@pytest.mark.slow
def test_a_dead_link_is_noticed_though_nobody_says_so(
    server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ssh.KEEPALIVE_S * (ssh.KEEPALIVE_MISSES + 1) <= 10
    monkeypatch.setattr(ssh, "KEEPALIVE_S", 0.2)

    async def work(host: SshHost) -> None:
        stream = await host.stream(["sh", "-c", "echo up; sleep 72.003"])
        lines = stream.lines()
        assert await anext(lines) == b"up"
        await asyncio.to_thread(server.silence)
        async with asyncio.timeout(60):  # the kernel alone would take a quarter of an hour
            with pytest.raises(HostUnreachable):
                await anext(lines)
        await stream.close()
        await asyncio.to_thread(server.restore)
        await until(lambda: host.connected, "the link")
        await until(lambda: not with_argument("72.003"), "the remote command to end")

    on(server, work)


def test_a_short_silence_loses_nothing(server: Sshd) -> None:
    async def work(host: SshHost) -> None:
        told: list[LinkEvent] = []
        host.on_link(told.append)
        await host.connect()
        await asyncio.to_thread(server.silence)
        call = asyncio.create_task(host.run(["echo", "late"]))
        await asyncio.sleep(0.3)
        assert not call.done()
        await asyncio.to_thread(server.restore)
        assert (await call).out == "late\n"
        assert told == []

    on(server, work)


def test_a_forwarded_port_stays_the_same_over_an_outage(server: Sshd) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        finally:
            writer.close()  # also if the test ends first

    async def work(host: SshHost) -> None:
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        forward = await host.forward(listening.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", forward.local_port)
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        await asyncio.to_thread(server.cut)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await asyncio.to_thread(server.restore)
        reader, writer = await asyncio.open_connection("127.0.0.1", forward.local_port)
        writer.write(b"after")
        assert await reader.readexactly(5) == b"after"
        writer.close()
        listening.close()

    on(server, work)


@pytest.mark.slow
def test_a_detached_server_survives_the_cut_and_is_adopted_and_stopped(
    server: Sshd, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "runs" / "run")

    async def begin(host: SshHost) -> None:
        server_text = "echo up; trap '' TERM; sleep 72.004 & while :; do sleep 72.004; done"
        process = await detached_process.start_detached(
            host, run_dir, ["sh", "-c", server_text], {"TOKEN": "hf_secret"}
        )
        await asyncio.to_thread(server.cut)
        await until(lambda: not host.connected, "the loss")
        assert alive(process.pid)
        await asyncio.to_thread(server.restore)
        assert await detached_process.is_process_alive(host, process)

    async def end(host: SshHost) -> None:
        ((seen,), _) = await detached_process.read_runs_and_unread_names(
            host, str(tmp_path / "runs"), files=["log"]
        )
        assert (seen.alive, seen.run_dir, seen.files["log"]) == (True, run_dir, b"up\n")
        report = await detached_process.stop_run(host, run_dir, grace_s=1)
        assert report.left == ()
        assert report.status is not None
        assert report.status.exit_signal == "SIGKILL"

    on(server, begin)
    on(server, end)
    assert not with_argument("72.004")


@pytest.mark.slow
def test_a_stop_cut_in_the_middle_is_finished_by_the_next(server: Sshd, tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")

    async def work(host: SshHost) -> None:
        await detached_process.start_detached(
            host, run_dir, ["sh", "-c", "trap '' TERM; while :; do sleep 72.005; done"]
        )
        stopping = asyncio.create_task(detached_process.stop_run(host, run_dir, grace_s=30))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.cut)
        with pytest.raises(HostUnreachable):
            await stopping
        await asyncio.to_thread(server.restore)
        assert (await detached_process.stop_run(host, run_dir, grace_s=0.5)).left == ()

    on(server, work)
    assert not with_argument("72.005")


STARTER = """
import asyncio, os, sys
from workbench.hosts import detached_process
from workbench.hosts.ssh import SshHost
async def main():
    host = SshHost("box", ssh_config=sys.argv[1])
    server = 'sleep 72.006 & sh -c "setsid sleep 72.006 & exit"; while :; do sleep 72.006; done'
    await detached_process.start_detached(host, sys.argv[2], ["sh", "-c", server])
    await host.stream(["sh", "-c", "echo up; sleep 72.007; :"])
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


def cycles(server: Sshd, tmp_path: Path, count: int) -> None:
    """Started by one who is killed, found and stopped by another."""
    starter = STARTER.replace("72.006", f"72.{count}06").replace("72.007", f"72.{count}07")

    async def work(host: SshHost) -> None:
        for i in range(count):
            run_dir = str(tmp_path / str(i))
            argv = [sys.executable, "-c", starter, str(server.ssh_config_path), run_dir]
            ended = await asyncio.to_thread(subprocess.run, argv)
            assert ended.returncode == -signal.SIGKILL
            assert (await detached_process.read_status(host, run_dir)).alive
            assert (await detached_process.stop_run(host, run_dir)).left == ()

    on(server, work)
    assert not with_argument(f"72.{count}06")
    eventually(
        lambda: not with_argument(f"72.{count}07"), "the streams of those who were killed to end"
    )


@pytest.mark.slow
def test_starters_killed_stops_nothing_left(server: Sshd, tmp_path: Path) -> None:
    cycles(server, tmp_path, 3)


@pytest.mark.long
def test_twenty_starters_killed_twenty_stops_nothing_left(server: Sshd, tmp_path: Path) -> None:
    cycles(server, tmp_path, 20)
