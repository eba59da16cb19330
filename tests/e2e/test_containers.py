"""Real containers as hosts: podman, Docker's command line in front of podman, and stand-ins for pct
and LXC that enter podman's containers as LXC does. The session above them is the real one, with a
simulated driver and engine inside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from support.container_programs import ContainerPrograms
from support.podman import Podman, podman
from support.procs import alive, with_argument
from support.serving import eventually, free_port
from support.ssh_box import SOON_S, ready

from workbench.gpu.telemetry.source import TelemetrySource
from workbench.hosts import container_kinds, detached_process
from workbench.hosts.base import Host, HostUnreachable
from workbench.hosts.container import list_containers, open_container
from workbench.hosts.local import LocalHost
from workbench.model.server_run import ServerState
from workbench.session.session import Session
from workbench.sim.simulated_host import BIN, SimulatedHost

PROFILE = "rtx-pro-6000"
STATE = "/var/tmp/workbench"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    with podman(tmp_path_factory.mktemp("podman")) as one:
        yield one


@pytest.fixture
def box(engine: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A running container."""
    monkeypatch.setenv("PATH", engine.path)
    name = f"box-{random.randrange(1 << 30)}"
    engine.start(name)
    yield name
    engine("rm", "--force", "--time", "0", name, check=False)


def inside(name: str, kind: str = "podman") -> Host:
    return open_container(LocalHost(), kind, name)


@contextlib.asynccontextmanager
async def session_in(name: str, kind: str = "podman") -> AsyncIterator[Session]:
    session = Session(SimulatedHost(inside(name, kind), PROFILE, STATE))
    try:
        await session.open()
        await eventually(lambda: session.state.telemetry is not None, SOON_S, "the first reading")
        yield session
    finally:
        await session.close()


def leftovers(engine: Podman, name: str) -> list[str]:
    """Return the command lines in the container, besides its main process."""
    return engine.processes(name)


async def nothing_left(engine: Podman, name: str) -> None:
    await eventually(
        lambda: not leftovers(engine, name),
        20.0,
        f"no process in {name}: {leftovers(engine, name)}",
    )


async def whole_loop(engine: Podman, name: str, kind: str) -> None:
    async with session_in(name, kind) as session:
        status = await ready(session)
        await eventually(lambda: len(session.log) > 3, SOON_S, "the log")
        assert await session.bench.benchmark_run(
            status.run_id, requests=8, concurrency=2, max_tokens=16, warmup=0
        )
        async with session_in(name, kind) as second:
            await eventually(
                lambda: second.state.server is not None,
                SOON_S,
                "the second Workbench to see the server",
            )
            assert second.state.server is not None and second.state.server.run_id == status.run_id
            await second.servers.stop(status.run_id)
            await eventually(lambda: state_of(second) is ServerState.STOPPED, SOON_S, "the stop")
        await eventually(
            lambda: state_of(session) is ServerState.STOPPED, SOON_S, "the first to see the stop"
        )
    await nothing_left(engine, name)


def state_of(session: Session) -> ServerState | None:
    return session.state.server.state if session.state.server else None


@pytest.mark.long
def test_the_whole_loop_in_a_podman_container(engine: Podman, box: str) -> None:
    asyncio.run(whole_loop(engine, box, "podman"))


@pytest.mark.long
def test_the_whole_loop_through_dockers_command_line(engine: Podman, box: str) -> None:
    engine.docker()
    asyncio.run(whole_loop(engine, box, "docker"))


@pytest.mark.long
def test_the_whole_loop_through_pct(
    engine: Podman, box: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pct enters a container as root without a login, in the process group of its caller, with
    another PATH."""
    engine("rename", box, "101")
    programs = ContainerPrograms(tmp_path, "pct", podman=str(engine.bin / "podman"))
    programs.put("101", "running")
    kind = container_kinds.KINDS["pct"]
    usual = replace(kind, environment=("env", "-i", f"PATH={programs.bin}:{os.environ['PATH']}"))
    monkeypatch.setattr("workbench.hosts.container.KINDS", {"pct": usual})
    monkeypatch.setenv("PATH", f"{programs.bin}:{os.environ['PATH']}")
    try:
        asyncio.run(whole_loop(engine, "101", "pct"))
    finally:
        engine("rename", "101", box)
    assert {call[1] for call in programs.calls()} == {"exec", "status"}


@pytest.mark.long
def test_a_container_is_paused_under_a_session(engine: Podman, box: str) -> None:
    async def main() -> None:
        async with session_in(box) as session:
            status = await ready(session)
            await asyncio.to_thread(engine, "pause", box)
            await eventually(lambda: session.state.host.link == "lost", SOON_S, "the loss")
            assert session.state.host.message == "the container is paused"
            await eventually(lambda: state_of(session) is ServerState.UNKNOWN, SOON_S, "UNKNOWN")
            await asyncio.to_thread(engine, "unpause", box)
            await eventually(lambda: session.state.host.link == "connected", SOON_S, "the return")
            await eventually(lambda: state_of(session) is ServerState.READY, SOON_S, "the server")
            await fresh_telemetry(session)
            await session.servers.stop(status.run_id)
        await nothing_left(engine, box)

    asyncio.run(main())


async def fresh_telemetry(session: Session) -> None:
    assert session.state.telemetry is not None
    seen_s = session.state.telemetry.unix_s
    await eventually(
        lambda: session.state.telemetry.unix_s > max(seen_s, time.time() - 3),
        SOON_S,
        "a new reading",
    )


@pytest.mark.long
def test_a_container_is_stopped_and_started_under_a_session(engine: Podman, box: str) -> None:
    async def main() -> None:
        async with session_in(box) as session:
            await ready(session)
            await asyncio.to_thread(engine, "stop", "--time", "0", box)
            await eventually(lambda: session.state.host.link == "lost", SOON_S, "the loss")
            # for a moment it is "stopping"
            ended = ("the container is stopped", "the container is exited")
            await eventually(
                lambda: session.state.host.message in ended, SOON_S, "the reason of the loss"
            )
            await asyncio.to_thread(engine, "start", box)
            await eventually(lambda: session.state.host.link == "connected", SOON_S, "the return")
            await eventually(
                lambda: state_of(session) is ServerState.CRASHED, SOON_S, "the end of the server"
            )
            assert session.state.server is not None
            assert "the container was restarted" in (session.state.server.reason or "")
            await fresh_telemetry(session)
        await nothing_left(engine, box)

    asyncio.run(main())


@pytest.mark.long
def test_a_container_is_renamed_removed_and_made_again(engine: Podman, box: str) -> None:
    async def main() -> None:
        host = inside(box)
        assert (await host.run(["echo", "here"])).out == "here\n"
        await asyncio.to_thread(engine, "rename", box, f"{box}-2")
        with pytest.raises(HostUnreachable, match=f"is called {box}-2 now") as caught:
            await host.run(["true"])
        assert caught.value.next_step == f"work on the host podman:{box}-2"
        await asyncio.to_thread(engine, "rm", "--force", "--time", "0", f"{box}-2")
        await asyncio.sleep(0)
        await eventually(lambda: "was removed" in str(host._why), 30.0, "the removal")  # type: ignore[attr-defined]
        await asyncio.to_thread(engine.start, box)
        await eventually(lambda: host.connected, 30.0, "the new container")
        assert (await host.run(["echo", "back"])).out == "back\n"
        await host.close()

    asyncio.run(main())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["podman", "docker"])
@pytest.mark.long
def test_programs_that_entered_a_container_are_killed_at_random(
    engine: Podman, box: str, kind: str
) -> None:
    """`docker exec` and `podman exec` leave their command running when they are killed. Workbench
    leaves nothing."""
    if kind == "docker":
        engine.docker()
    dice = random.Random(20261122)
    kills = 50

    async def victim(host: Host) -> None:
        streamed = dice.random() < 0.5
        command = ["sh", "-c", "trap '' TERM HUP; echo up; for i in 1 2 3 4; do sleep 9.125; done"]
        with contextlib.suppress(HostUnreachable):
            if streamed:
                stream = await host.stream(command)
                try:
                    async for _ in stream.lines():
                        pass
                finally:
                    await stream.close()
            else:
                await host.run(command)

    async def main() -> None:
        host = inside(box, kind)
        started = await detached_process.start_detached(
            host, f"{STATE}/runs/kept", ["sleep", "3600.5"]
        )
        for _ in range(kills):
            task = asyncio.create_task(victim(host))
            await asyncio.sleep(dice.random() * 0.6)
            for pid in entering(box):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.wait([task], timeout=0.2)
            task.cancel()
            await asyncio.wait([task])
        assert await detached_process.is_process_alive(host, started), "the detached process lives"
        await host.close()
        await eventually(lambda: not with_argument("9.125"), 30.0, "the commands to end")
        again = inside(box, kind)
        assert (
            await detached_process.stop_run(again, f"{STATE}/runs/kept")
        ).has_ended_all_processes
        await again.close()
        await nothing_left(engine, box)

    asyncio.run(main())


def entering(name: str) -> list[int]:
    """Return the processes of this machine that have entered the container `name`: `podman exec`,
    `docker exec`."""
    return [pid for pid in with_argument("exec") if pid in with_argument(name) and alive(pid)]


@pytest.mark.long
def test_a_server_on_the_containers_own_loopback_is_reached(
    engine: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", engine.path)
    name = f"apart-{random.randrange(1 << 30)}"
    engine.start(name, network="none")
    serve = [
        "python3",
        "-m",
        "http.server",
        "8123",
        "--bind",
        "127.0.0.1",
        "--directory",
        "/usr/share/common-licenses",
    ]

    async def main() -> None:
        host = inside(name)
        await detached_process.start_detached(host, f"{STATE}/runs/web", serve)
        forward = await host.forward(8123)
        async with httpx.AsyncClient(base_url=forward.url, trust_env=False) as http:
            text = ""
            async with asyncio.timeout(20):
                while not text:
                    with contextlib.suppress(httpx.HTTPError):
                        text = (await http.get("/GPL-3")).text
            assert text == Path("/usr/share/common-licenses/GPL-3").read_text()
            answers = await asyncio.gather(*(http.get("/GPL-3") for _ in range(40)))
            assert {answer.text for answer in answers} == {text}
        refused = await host.forward(9)
        async with httpx.AsyncClient(base_url=refused.url, trust_env=False) as http:
            with pytest.raises(httpx.HTTPError):
                await http.get("/")
        assert (await detached_process.stop_run(host, f"{STATE}/runs/web")).has_ended_all_processes
        await host.close()
        await nothing_left(engine, name)

    asyncio.run(main())


def test_with_the_hosts_network_a_port_is_the_hosts(engine: Podman, box: str) -> None:
    async def main() -> None:
        host = inside(box)
        port = free_port()
        assert (await host.forward(port)).url == f"http://127.0.0.1:{port}"
        await host.close()

    asyncio.run(main())


def test_without_python3_telemetry_is_read_with_nvidia_smi(
    engine: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", engine.path)
    name = f"bare-{random.randrange(1 << 30)}"
    engine.start(name)
    engine(
        "exec",
        name,
        "sh",
        "-c",
        "mkdir /few; cd /usr/bin; for f in *; do ln -s /usr/bin/$f /few; done; rm /few/py*",
    )

    async def main() -> None:
        host = SimulatedHost(inside(name), PROFILE, STATE)
        host.environment = lambda: {**SimulatedHost.environment(host), "PATH": f"{BIN}:/few"}  # type: ignore[method-assign]
        source = TelemetrySource(host)
        await source.start()
        reading = await source.wait_for_first_reading()
        assert reading.infos and reading.driver.source == "nvidia-smi"
        await source.close()
        await host.close()

    asyncio.run(main())


def test_facts_of_a_container(engine: Podman, box: str) -> None:
    async def main() -> None:
        host = inside(box)
        facts = await host.facts()
        assert (facts.name, facts.kind, facts.container) == (f"podman:{box}", "container", "podman")
        assert facts.home and facts.latency_ms
        await host.close()

    asyncio.run(main())


@pytest.mark.long
def test_the_hosts_process_ids_become_the_containers(engine: Podman, box: str) -> None:
    async def main() -> None:
        host = inside(box)
        started = await detached_process.start_detached(
            host, f"{STATE}/runs/one", ["sleep", "75.5"]
        )
        outer = with_argument("75.5")
        seen = await host.read_container_host_processes([*outer, os.getpid(), 1 << 22])
        assert (started.pid, "sleep", "") in {(p.pid, p.name, p.place) for p in seen.values()}
        assert (seen[os.getpid()].pid, seen[os.getpid()].place) == (None, "local")
        other = await inside("other").read_container_host_processes(outer)
        assert {p.place for p in other.values()} == {
            f"podman:{engine('inspect', '--format', '{{.Id}}', box)[:12]}"
        }
        await detached_process.stop_run(host, f"{STATE}/runs/one")
        await host.close()

    asyncio.run(main())


def test_the_running_containers_of_a_host(engine: Podman, box: str) -> None:
    found = asyncio.run(list_containers(LocalHost()))
    assert f"podman:{box}" in {one.address for one in found.containers}
    assert f"podman:{box}  localhost/this-machine:1" in found.lines
    assert not [problem for problem in found.problems if "podman" in problem]
