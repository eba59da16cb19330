"""Conversion of the agent's JSON documents to the data of model/gpu.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.model.gpu import (
    DriverInfo,
    DriverStatus,
    GpuInfo,
    GpuProcess,
    GpuSample,
    GpuState,
    HostSample,
    Telemetry,
)


class Decoder:
    """Combines the messages of the telemetry agent into whole readings. The agent sends some values
    rarely (the driver, the properties of the GPUs, slow values), and each reading gets the newest
    of them."""

    def __init__(self) -> None:
        self.driver = DriverInfo()
        self.simulated = False
        self.infos: tuple[GpuInfo, ...] = ()
        self.last: Telemetry | None = None
        self._slow: dict[int, dict[str, Any]] = {}

    def feed(self, document: Mapping[str, Any]) -> Telemetry | None:
        """Process one JSON document of the telemetry agent. Return the reading that it completes,
        or None if it completes none."""
        if "t" in document:
            self.last = Telemetry(
                t_s=document["t"],
                unix_s=document["u"],
                driver=self.driver,
                host=HostSample(**document["host"]),
                infos=self.infos,
                gpus=tuple(self._gpu(gpu) for gpu in document["gpus"]),
                simulated=self.simulated,
            )
            return self.last
        if "driver" in document:
            fields = dict(document["driver"])
            self.driver = DriverInfo(status=DriverStatus(fields.pop("status")), **fields)
            self.simulated = bool(document.get("simulated"))
            if self.driver.status is not DriverStatus.OK:
                self.infos = ()
        elif "infos" in document:
            self.infos = tuple(gpu_info(info) for info in document["infos"])
        return None

    def hung(self, message: str, gpu_index: int | None = None) -> Telemetry:
        """Return the last reading without the values of its GPUs, after a driver call has hung, so
        that old values are not taken for new ones. `message` describes the call. `gpu_index` is the
        GPU whose call hangs, None if the call concerns the whole driver."""

        def sample(gpu: GpuSample) -> GpuSample:
            if gpu_index in (None, gpu.index):
                return GpuSample(
                    index=gpu.index, uuid=gpu.uuid, state=GpuState.ERROR, message=message
                )
            why = f"not read while GPU{gpu_index} does not answer"
            return GpuSample(index=gpu.index, uuid=gpu.uuid, state=GpuState.NOT_READ, message=why)

        before = self.last or Telemetry(0.0, 0.0, self.driver, HostSample(), self.infos, ())
        return replace(
            before,
            driver=replace(self.driver, status=DriverStatus.HUNG, message=message),
            gpus=tuple(sample(gpu) for gpu in before.gpus),
        )

    def _gpu(self, fields: dict[str, Any]) -> GpuSample:
        index = fields["index"]
        if "state" in fields:
            self._slow.pop(index, None)
            return GpuSample(**{**fields, "state": GpuState(fields["state"])})
        slow = fields.pop("slow", None)
        if slow is None:
            slow = self._slow.get(index, {})
        else:
            if "processes" in slow:
                slow["processes"] = processes(slow["processes"])
            self._slow[index] = slow
        if "event_reasons" in fields:
            fields["event_reasons"] = tuple(fields["event_reasons"])
        absent = {**slow.get("absent", {}), **fields.get("absent", {})}
        return GpuSample(**{**slow, **fields, "absent": absent})


def gpu_info(fields: Mapping[str, Any]) -> GpuInfo:
    clocks = {
        name: tuple(fields[name])
        for name in ("supported_sm_mhz", "supported_memory_mhz")
        if name in fields
    }
    return GpuInfo(**{**fields, **clocks})


def processes(rows: Sequence[Mapping[str, Any]]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(**row) for row in rows)
