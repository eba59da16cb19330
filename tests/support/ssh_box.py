"""A machine behind a real sshd with a simulated driver: sessions on it, its driver's settings, its
runs, and cuts of the link."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
from support.serving import eventually, processes_of
from support.sshd import Sshd, free_port, sshd

import workbench
from workbench.hosts.local import LocalHost
from workbench.hosts.ssh import SshHost
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.supervisor import Supervisor
from workbench.session.session import Session
from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.sim.simulated_host import SimulatedHost

PROFILE = "rtx-pro-6000"
PRESET = "vllm-any"
SOON_S = 60.0  # long enough for a machine with a load of 10


def settings_in(state_dir: Path) -> tuple[float, tuple[int, int] | None]:
    """Return the settings in force in the simulated driver: power limit in W, graphics clock lock
    in MHz."""
    gpu = SimState(f"{state_dir}/driver", profiles.get_profile(PROFILE)).settings()[0]
    return gpu.limit_w or 600.0, gpu.gpu_lock_mhz


def driver_environment(directory: Path, profile: str) -> dict[str, str]:
    """Return the environment of a login on a host that has the simulated driver, as another host
    has NVIDIA's."""
    sim = Path(workbench.__file__).parent / "sim"
    return {
        "PATH": f"{sim}/bin:/usr/local/bin:/usr/bin:/bin",
        "WORKBENCH_SIM_PROFILE": profile,
        "WORKBENCH_SIM_STATE": str(directory / "driver"),
        "WORKBENCH_SIM_DRIVER": str(sim / "driver.py"),
        "WORKBENCH_SIM_SYSFS": str(directory / "driver" / "sys"),
        "WORKBENCH_GPU_REGISTER": str(directory / "register"),
        "WORKBENCH_SIM_PYTHON": sys.executable,
    }


class Box:
    def __init__(self, server: Sshd, state_dir: Path) -> None:
        self.server = server
        self.state_dir = state_dir
        self.cut_at = 0.0

    def host(self) -> SimulatedHost:
        inner = SshHost(self.server.host_alias, ssh_config=self.server.ssh_config_path)
        return SimulatedHost(inner, PROFILE, str(self.state_dir))

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Open a session as a screen does, and connect it."""
        session = Session(self.host())
        try:
            await session.open()
            await eventually(
                lambda: session.state.telemetry is not None, SOON_S, "the first reading"
            )
            yield session
        finally:
            self.server.restore()
            await session.close()

    async def cut(self, session: Session) -> None:
        await asyncio.to_thread(self.server.cut)
        self.cut_at = time.monotonic()
        await eventually(lambda: session.state.host.link == "lost", SOON_S, "the loss of the link")

    async def restore(self, session: Session) -> float:
        """Restore the link. Return the seconds until it worked again."""
        await asyncio.to_thread(self.server.restore)
        began = time.monotonic()
        await eventually(lambda: session.state.host.link == "connected", SOON_S, "the link")
        return time.monotonic() - began

    def settings(self) -> tuple[float, tuple[int, int] | None]:
        return settings_in(self.state_dir)

    def lines(self, run_id: str) -> list[str]:
        return (self.state_dir / "runs" / run_id / "log").read_text().splitlines()

    def processes(self) -> list[psutil.Process]:
        return [p for run in self.state_dir.glob("runs/*") for p in processes_of(str(run))]

    async def clear(self) -> None:
        """End all remaining processes without using the link."""
        supervisor = Supervisor(SimulatedHost(LocalHost(), PROFILE, str(self.state_dir)))
        for status in await supervisor.runs():
            await supervisor.stop(status.run_id, grace_s=1)
        await supervisor.close()


@contextlib.contextmanager
def box(
    directory: Path, *, start_s: float = 1.0, max_sessions: int = 10, **environment: str
) -> Iterator[Box]:
    """Open such a machine. `start_s` is the time that its engines need to become ready."""
    given = {"WORKBENCH_SIM_START_S": str(start_s), "WORKBENCH_SIM_SEED": "1", **environment}
    with sshd(directory / "ssh", environment=given, max_sessions=max_sessions) as server:
        one = Box(server, directory / "far")
        try:
            yield one
        finally:
            asyncio.run(one.clear())


async def started(session: Session) -> str:
    """Load the preset on a free port and start its server. Return the run id."""
    await session.plans.load_preset(PRESET)
    session.plans.set_flag("port", str(free_port()))
    return await session.servers.start()


async def ready(session: Session) -> ServerStatus:
    status = await session.servers.wait_ready(await started(session), SOON_S)
    assert status.state is ServerState.READY, status.reason
    return status
