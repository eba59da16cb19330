"""Where settings are tested: a fake nvidia-smi whose state the simulated library reads, and the
journal on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from nvml_child import Driver
from smi_stub import Smi

from workbench.gpu.settings import apply, plan, rights
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.base import Completed, HostFacts
from workbench.hosts.local import LocalHost
from workbench.model.gpu import Telemetry
from workbench.model.setting_records import SettingCommand, SettingsReport
from workbench.model.settings import GpuSettings

UUID = "GPU-00000000-0000-4000-8000-000000000000"


class Box(LocalHost):
    """This machine, where nvidia-smi may be run."""

    async def facts(self) -> HostFacts:
        return HostFacts("box", "local", uid=1000, nvidia_smi="nvidia-smi", simulated="test")


class FullDisk(Box):
    """This machine, whose disk has room for `saves` more journals."""

    def __init__(self, saves: int) -> None:
        super().__init__()
        self.saves = saves

    async def run(self, argv: Sequence[str], **rest: Any) -> Completed:
        if b'{"do": "save"' in (rest.get("input") or b""):
            self.saves -= 1
            if self.saves < 0:
                full = {"error": "No space left on device", "errno": 28, "answered": "save"}
                answer = json.dumps(full).encode()
                return Completed(tuple(argv), 0, answer, b"")
        return await super().run(argv, **rest)


class Bench:
    def __init__(self, smi: Smi, driver: Driver, journal_path: Path) -> None:
        self.smi, self.driver, self.path, self.host = smi, driver, journal_path, Box()
        self.reading: Telemetry | None = None  # for the limits, which do not change

    async def set(
        self, settings: GpuSettings, gpu: str = "0", dry_run: bool = False
    ) -> SettingsReport:
        return await apply.apply_commands(
            self.host, await self.commands(settings, gpu), dry_run=dry_run
        )

    async def commands(self, settings: GpuSettings, gpu: str = "0") -> Sequence[SettingCommand]:
        self.reading = self.reading or await read_telemetry_once(self.host)
        return plan.plan_commands(
            {gpu: settings}, self.reading, await rights.read_rights(self.host)
        )

    def entries(self) -> list[dict[str, Any]]:
        return list(json.loads(self.path.read_text())["entries"])

    def brief(self) -> list[tuple[Any, ...]]:
        return [(e["setting"], e["before"], e["now"], e["state"]) for e in self.entries()]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(main())
