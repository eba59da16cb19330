"""Sessions on hosts that are far away, short of something, or old: behind a real sshd, with the
simulated driver."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.serving import eventually
from support.slow_link import SlowLink
from support.ssh_box import PROFILE, SOON_S, box, driver_environment, ready
from support.sshd import Sshd, sshd

from workbench.hosts.ssh import SshHost
from workbench.model.errors import HostError
from workbench.model.gpu import DriverStatus
from workbench.session.session import Session
from workbench.sim.simulated_host import SimulatedHost

ROUND_TRIP_S = 0.15
MOST_TURNS = 24  # until the first reading: those of a login, then of the agent


async def first_reading(session: Session) -> float:
    """Open the session as a screen does. Return the seconds until the first reading with GPUs."""
    began = time.monotonic()
    await session.open()
    await eventually(
        lambda: (t := session.state.telemetry) and t.gpus and t.infos, SOON_S, "the first reading"
    )
    return time.monotonic() - began


def through(server: Sshd, link: SlowLink) -> SshHost:
    """Return the host as it is reached over the link."""
    key = (server.directory / "host_key.pub").read_text().split()
    server.known_hosts_path.write_text(f"[127.0.0.1]:{link.port} {key[0]} {key[1]}\n")
    server.ssh_config_path.write_text(server.stanza(Port=str(link.port)))
    return SshHost(server.host_alias, ssh_config=server.ssh_config_path)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_readings_come_after_few_turns_over_a_long_link(tmp_path: Path, loss: float) -> None:
    async def once(server: Sshd, link: SlowLink) -> tuple[int, int]:
        session = Session(through(server, link))
        link.reset()
        try:
            await first_reading(session)
            turns, up = link.turns, link.up_bytes
            await eventually(
                lambda: session.gpu.alterations.read_monotonic_s > 0, SOON_S, "the changed settings"
            )
            await eventually(
                lambda: session.state.host.latency_ms is not None, SOON_S, "the latency"
            )
            assert (session.state.host.latency_ms or 0) > 1000 * ROUND_TRIP_S
            return turns, up
        finally:
            await session.close()

    with (
        sshd(tmp_path / "ssh", environment=driver_environment(tmp_path, "four-pcie")) as server,
        SlowLink(server.server_port, ROUND_TRIP_S, loss=loss) as link,
    ):
        first_turns, first_up = asyncio.run(once(server, link))
        later_turns, later_up = asyncio.run(once(server, link))
    assert first_turns <= MOST_TURNS and later_turns <= MOST_TURNS
    assert later_up < first_up - 15_000 and later_up < 35_000  # the agent is there already


@pytest.mark.slow
@pytest.mark.long
def test_a_benchmark_on_the_host_does_not_measure_the_link(tmp_path: Path) -> None:
    async def main(link: SlowLink) -> None:
        session = Session(SimulatedHost(through(far.server, link), PROFILE, str(far.state_dir)))
        try:
            await first_reading(session)
            run_id = (await ready(session)).run_id
            shape = {"requests": 8, "concurrency": 2, "max_tokens": 8, "warmup": 2}
            found = {}
            for client in ("host", "here"):
                result = await session.results.get(
                    await session.bench.benchmark_run(run_id, client=client, **shape)
                )
                took = result.summary.e2e_ms
                assert took is not None and result.summary.requests_ok == 8
                found[result.conditions.client] = took.p50
            assert found["tunnel"] > 1000 * ROUND_TRIP_S > found["host"] + 50
        finally:
            await session.close()

    with box(tmp_path) as far, SlowLink(far.server.server_port, ROUND_TRIP_S) as link:
        asyncio.run(main(link))


def on(
    environment: dict[str, str],
    tmp_path: Path,
    work: Callable[[Session], Awaitable[None]],
    **options: int,
) -> None:
    """Run `work` in a session on a host with that environment of logins."""

    async def main() -> None:
        session = Session(SshHost(server.host_alias, ssh_config=server.ssh_config_path))
        try:
            await first_reading(session)
            await work(session)
        finally:
            await session.close()

    whole = {**driver_environment(tmp_path, "four-pcie"), **environment}
    with sshd(tmp_path / "ssh", environment=whole, **options) as server:
        asyncio.run(main())


@pytest.mark.slow
def test_two_sessions_are_enough_for_a_screen(tmp_path: Path) -> None:
    async def work(session: Session) -> None:
        await eventually(lambda: session.state.host.latency_ms is not None, SOON_S, "the latency")
        await eventually(
            lambda: session.gpu.alterations.read_monotonic_s > 0, SOON_S, "the changed settings"
        )
        at = session.state.telemetry_monotonic_s
        await eventually(
            lambda: session.state.telemetry_monotonic_s != at, SOON_S, "the next reading"
        )
        assert session.state.host.link == "connected"

    on({}, tmp_path, work, max_sessions=2)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("client", ["host", "here"])
def test_a_benchmark_over_two_sessions(tmp_path: Path, client: str) -> None:
    """The readings, the measurement lock and the load client each hold a session, and commands need
    one too."""

    async def main() -> None:
        async with far.session() as session:
            run_id = (await ready(session)).run_id
            shape = {"requests": 8, "concurrency": 2, "max_tokens": 8, "warmup": 2}
            result = await session.results.get(
                await session.bench.benchmark_run(run_id, client=client, **shape)
            )
            assert result.summary.requests_ok == 8 and result.conditions.client == {
                "here": "tunnel"
            }.get(client, client)
            at = session.state.telemetry_monotonic_s
            await eventually(
                lambda: session.state.telemetry_monotonic_s != at, SOON_S, "the next reading"
            )
            assert session.state.host.link == "connected"
            await session.servers.stop_run_quietly(run_id)
            assert far.processes() == []

    with box(tmp_path, max_sessions=2) as far:
        asyncio.run(main())


@pytest.fixture
def tools_without_python(tmp_path: Path) -> Path:
    tools = tmp_path / "tools"
    tools.mkdir()
    for place in (Path("/bin"), Path("/usr/bin")):
        for program in place.iterdir():
            if not program.name.startswith("python") and not (tools / program.name).exists():
                (tools / program.name).symlink_to(program)
    return tools


@pytest.mark.slow
def test_a_host_without_python3_is_read_with_nvidia_smi(
    tmp_path: Path, tools_without_python: Path
) -> None:
    async def work(session: Session) -> None:
        telemetry = session.state.telemetry
        assert telemetry is not None and telemetry.driver.status is DriverStatus.OK
        assert telemetry.driver.source == "nvidia-smi" and len(telemetry.gpus) == 4
        await eventually(
            lambda: session.gpu.alterations.read_monotonic_s > 0, SOON_S, "the changed settings"
        )
        assert "no python3" in (session.state.host.others_problem or "")

    path = driver_environment(tmp_path, "four-pcie")["PATH"].partition(":")[0]
    on({"PATH": f"{path}:{tools_without_python}"}, tmp_path, work)


@pytest.mark.slow
def test_a_host_with_python_3_8_has_an_agent(tmp_path: Path) -> None:
    found = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin"))
    if not found:
        pytest.skip("no Python 3.8 here (pyenv install 3.8)")

    async def work(session: Session) -> None:
        telemetry = session.state.telemetry
        assert (
            telemetry is not None and telemetry.driver.source == "nvml" and len(telemetry.gpus) == 4
        )
        assert (await session.host.facts()).python3_version.startswith("3.8.")  # type: ignore[union-attr]

    path = driver_environment(tmp_path, "four-pcie")["PATH"]
    sim, _, rest = path.partition(":")
    on({"PATH": f"{sim}:{found[0]}:{rest}"}, tmp_path, work)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system without a free block."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs root and the right to mount a tmpfs")
    try:
        with (place / "filler").open("wb") as file, contextlib.suppress(OSError):
            file.write(bytes(1 << 20))
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.mark.slow
def test_a_full_disk_on_the_host_is_said_and_readings_go_on(
    tmp_path: Path, full_disk: Path
) -> None:
    async def work(session: Session) -> None:
        at = session.state.telemetry_monotonic_s
        await eventually(
            lambda: session.state.telemetry_monotonic_s != at, SOON_S, "the next reading"
        )
        with pytest.raises(HostError) as refused:
            await session.host.write_file(f"{await session.host.state_dir()}/file", bytes(100_000))
        assert (
            "No space left on device" in refused.value.message
            and refused.value.next_step is not None
        )
        assert [p.name for p in full_disk.rglob("*") if p.is_file()] == ["filler"]

    on({"XDG_STATE_HOME": str(full_disk)}, tmp_path, work)
