"""A simulated host whose settings are changed under a guard, for tests. It shows the settings in
force, the journal and the guard's process, and leaves nothing behind at its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from support.procs import alive, eventually

from workbench.gpu.guard import client
from workbench.gpu.guard.client import GuardTerms
from workbench.gpu.settings import apply, plan, rights
from workbench.gpu.settings.journal import Journal
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.base import Host
from workbench.hosts.local import LocalHost
from workbench.model.setting_records import SettingsReport
from workbench.model.settings import ClockRange, GpuSettings
from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.sim.simulated_host import SimulatedHost

T = TypeVar("T")
FAST = {"tick_s": 0.05, "heat_s": 0.2}
WANTED = GpuSettings(power_limit_w=450.0, gpu_clocks=ClockRange(1000, 2000))
WITHIN_S = 20.0  # what the guard has on a busy machine, beside the time that was set


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(limited())


class GuardedHost:
    def __init__(
        self, directory: Path, profile: str = "rtx-pro-6000", inner: Host | None = None
    ) -> None:
        self.host = SimulatedHost(inner or LocalHost(), profile, str(directory))
        self.profile = profiles.get_profile(profile)
        self.gpu = directory / "gpu"
        self.journal = self.gpu / "journal.json"
        self.sim = SimState(self.host.driver_state, self.profile)

    # ---- what is done
    async def change(
        self,
        wanted: GpuSettings = WANTED,
        gpu: str = "0",
        *,
        heartbeat_s: float | None = None,
        trial_s: float | None = None,
        needed: bool = True,
        options: Mapping[str, float] = FAST,
    ) -> SettingsReport:
        """As guarding.Guarding does it."""
        mine = await rights.read_rights(self.host)
        commands = plan.plan_commands({gpu: wanted}, await read_telemetry_once(self.host), mine)
        terms = GuardTerms(mine, heartbeat_s, trial_s)

        async def guard(journal: Journal) -> Any:
            view = await client.start_guard(self.host, terms, journal, **options)
            assert view.running or not needed, view
            return view

        # a loaded machine may take long for the change itself
        signs = asyncio.create_task(self.signs_of_life())
        try:
            return await apply.apply_commands(
                self.host, commands, rights=mine, guard=guard, watch=terms.guard_instructions_for
            )
        finally:
            signs.cancel()

    async def signs_of_life(self) -> None:
        beat = self.gpu / "guard" / "beats" / client.own_heartbeat_file_name()
        while True:
            with suppress(OSError):
                beat.touch()
            await asyncio.sleep(0.05)

    async def beat(self) -> client.GuardStatus:
        return await client.read_guard_status(self.host, client.own_heartbeat_file_name())

    async def look(self) -> client.GuardStatus:
        return await client.read_guard_status(self.host)

    # ---- what is there
    def in_force(self, gpu: int = 0) -> tuple[float | None, tuple[int, int] | None]:
        """Return (power limit, graphics clock lock) of the simulated driver; None means the
        driver's default."""
        setting = self.sim.settings()[gpu]
        return setting.limit_w, setting.gpu_lock_mhz

    @property
    def altered(self) -> list[tuple[str, Any]]:
        return [(e["setting"], e["now"]) for e in json.loads(self.journal.read_text())["entries"]]

    @property
    def log(self) -> str:
        return (self.gpu / "guard" / "log").read_text()

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.gpu / "guard" / "state.json").read_text()))

    @property
    def pid(self) -> int:
        return int((self.gpu / "guard" / "pid").read_text().split()[0])

    # ---- waiting
    def given_back(self, within_s: float, gpu: int = 0) -> float:
        """Seconds until the driver has its defaults again and the journal is empty."""
        began = time.monotonic()
        eventually(
            lambda: self.in_force(gpu) == (None, None) and not self.altered,
            "settings to be given back",
            within_s,
        )
        return time.monotonic() - began

    def stays(self, seconds: float, what: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert what()
            time.sleep(0.02)

    def ended(self, within_s: float = 5.0) -> None:
        eventually(lambda: not alive(self.pid), "the guard to end", within_s)

    def kill_guard(self) -> None:
        with suppress(OSError, ValueError, IndexError):
            pid = self.pid
            if alive(pid) and str(self.gpu).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                eventually(lambda: not alive(pid), "the guard to be gone")


class Bare(LocalHost):
    """A host without python3, as one behind SSH may be; its GPUs can still be read."""

    kind, is_local = "ssh", False

    async def run(self, argv: Any, **rest: Any) -> Any:
        return await super().run(self._without_python3(argv), **rest)

    async def stream(self, argv: Any, **rest: Any) -> Any:
        if "telemetry agent" not in " ".join(argv):
            argv = self._without_python3(argv)
        return await super().stream(argv, **rest)

    def _without_python3(self, argv: Any) -> Any:
        return ["no-such-python3", *argv[1:]] if argv[0] == "python3" else argv


@contextmanager
def guarded(
    directory: Path, profile: str = "rtx-pro-6000", inner: Host | None = None
) -> Iterator[GuardedHost]:
    box = GuardedHost(directory, profile, inner)
    try:
        yield box
    finally:
        box.kill_guard()
