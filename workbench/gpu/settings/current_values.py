"""What a host tells of its settings at one moment: the GPUs' readings, and the CPU governors where they matter."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from workbench.gpu.settings.cpu_governor import Governors, governors_on
from workbench.gpu.settings.revert import LOCKS
from workbench.gpu.telemetry.source import read_once
from workbench.hosts.base import Host
from workbench.model.errors import HostError
from workbench.model.gpu import GpuSample, GpuState, Telemetry

NONE = Governors(problem="not looked at")


@dataclass(frozen=True, slots=True)
class CurrentValues:
    telemetry: Telemetry
    governors: Governors = NONE

    @property
    def energy_j(self) -> dict[str, float]:
        return {s.uuid: s.energy_j for s in self.telemetry.gpus if s.energy_j is not None}

    def sample(self, uuid: str) -> GpuSample | None:
        return next((s for s in self.telemetry.gpus if s.uuid == uuid and s.state is GpuState.LIVE), None)

    def told(self, uuid: str, setting: str) -> Any:
        """The value now; None where it cannot be told (never for a lock)."""
        if setting == "governor":
            return self.governors.value
        sample = self.sample(uuid)
        return None if sample is None or setting in LOCKS else getattr(sample, setting)

    def index(self, uuid: str, otherwise: int) -> int:
        return next((i.index for i in self.telemetry.infos if i.uuid == uuid), otherwise)


async def look(host: Host, settings: Collection[str]) -> CurrentValues:
    """`settings`: by name, those that will be asked about. HostError when the host cannot be asked."""
    telemetry = await read_once(host)
    return CurrentValues(telemetry, await governors_on(host)) if "governor" in settings else CurrentValues(telemetry)


async def look_again(host: Host, settings: Collection[str]) -> CurrentValues | None:
    """After a change; None when the link was lost, and nothing can be told."""
    try:
        return await look(host, settings)
    except HostError:
        return None
