"""Readings from a running nvidia-smi, on hosts where the agent cannot run."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from workbench.gpu.telemetry import nvidia_smi
from workbench.hosts.base import Completed, Host
from workbench.model.errors import HostError
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
from workbench.model.untrusted_numbers import MOST_GPUS, parse_whole_number
from workbench.model.untrusted_text import clean_text

SLOW_INTERVAL_S = 10.0  # host memory and process list: a command each


class NvidiaSmiFollower:
    """Runs nvidia-smi on a host and converts its output into readings."""

    def __init__(self, host: Host, interval_s: float, simulated: bool = False) -> None:
        self.host, self.interval_s, self.simulated = host, interval_s, simulated
        self._columns: tuple[str, ...] = nvidia_smi.COLUMNS
        self._host_sample = HostSample()
        self._processes: dict[str, tuple[GpuProcess, ...]] | None = None
        self._uuids: dict[int, str] = {}
        self._slow_at = 0.0

    async def probe(self) -> DriverInfo | None:
        """Find out which columns this nvidia-smi knows. Return the driver's problem if the GPUs
        cannot be read, otherwise None. Raises CommandNotFound if nvidia-smi is missing."""
        for _ in range(len(nvidia_smi.COLUMNS)):
            done = await self.host.run(nvidia_smi.query_argv(self._columns), timeout_s=60)
            text = done.out + done.err
            fewer = nvidia_smi.drop_or_rename_invalid_column(self._columns, text)
            if fewer is None:
                break
            self._columns = fewer
        if any(nvidia_smi.parse_row(self._columns, line) for line in done.out.splitlines()):
            return None
        problem = nvidia_smi.parse_driver_problem(text, done.returncode)
        return problem or _driver_info_of_unreadable_output(done)

    async def readings(self, record_stream: Callable[[object], None]) -> AsyncIterator[Telemetry]:
        """Yield one reading of the GPUs per interval until nvidia-smi ends. If the GPUs cannot be
        read, yield one reading with the driver's problem. `record_stream` gets the Stream of
        nvidia-smi's output, so that the caller can close one that is silent."""
        problem = await self.probe()
        if problem is not None:
            await self._read_host_and_processes()
            yield self._telemetry(problem, [], [])
            return
        stream = await self.host.stream(nvidia_smi.query_argv(self._columns, self.interval_s))
        record_stream(stream)
        rows: dict[int, dict[str, str]] = {}
        lost: list[str] = []
        async for raw in stream.lines():
            line = clean_text(raw)
            row = nvidia_smi.parse_row(self._columns, line)
            if row is None:
                message = nvidia_smi.parse_lost_gpu_message(line)
                if message and len(lost) < MOST_GPUS:
                    lost.append(message)
            else:
                if int(row["index"]) in rows:  # the tick before was short: a GPU went away
                    yield await self._reading_from_rows(rows, lost)
                    rows, lost = {}, []
                rows[int(row["index"])] = row
            counts = (parse_whole_number(row["count"]) for row in rows.values())
            count = next(filter(None, counts), 0)
            if rows and len(rows) + len(lost) >= count:
                yield await self._reading_from_rows(rows, lost)
                rows, lost = {}, []

    async def _reading_from_rows(
        self, rows: dict[int, dict[str, str]], lost: list[str]
    ) -> Telemetry:
        if time.monotonic() >= self._slow_at:
            await self._read_host_and_processes()
        infos: list[GpuInfo] = []
        samples: list[GpuSample] = []
        version = None
        for index in sorted(rows):
            row = rows[index]
            own = used = None
            if self._processes is not None:
                own = self._processes.get(row["uuid"], ())
                used = sum(p.memory_bytes or 0 for p in own)
            info, sample = nvidia_smi.parse_info_and_sample(row, self._host_sample, used)
            infos.append(info)
            samples.append(replace(sample, processes=own))
            self._uuids[index] = row["uuid"]
            version = row["driver_version"]
            if nvidia_smi.reason_of_empty_cell(version):
                version = None
        missing = [index for index in self._uuids if index not in rows]
        for index, message in zip(
            missing, lost + [unlisted_gpu_text()] * len(missing), strict=False
        ):
            samples.append(
                GpuSample(
                    index=index, uuid=self._uuids[index], state=GpuState.LOST, message=message
                )
            )
        samples.sort(key=lambda s: s.index)
        return self._telemetry(
            DriverInfo(driver_version=version, source="nvidia-smi"), infos, samples
        )

    def _telemetry(
        self, driver: DriverInfo, infos: list[GpuInfo], samples: list[GpuSample]
    ) -> Telemetry:
        return Telemetry(
            t_s=time.monotonic(),
            unix_s=time.time(),
            driver=driver,
            host=self._host_sample,
            infos=tuple(infos),
            gpus=tuple(samples),
            simulated=self.simulated,
        )

    async def _read_host_and_processes(self) -> None:
        self._slow_at = time.monotonic() + SLOW_INTERVAL_S
        try:
            text = (await self.host.run(["cat", "/proc/meminfo", "/proc/loadavg"], timeout_s=5)).out
            self._host_sample = nvidia_smi.parse_host_memory_and_load(text)
            done = await self.host.run(nvidia_smi.PROCESS_ARGV, timeout_s=5)
            self._processes = nvidia_smi.parse_processes(done.out) if done.returncode == 0 else None
        except HostError:
            self._processes = None  # the readings themselves go on, without what could not be asked


def unlisted_gpu_text() -> str:
    return "nvidia-smi no longer lists this GPU"


def _driver_info_of_unreadable_output(done: Completed) -> DriverInfo:
    said = " ".join((done.out + done.err).split())[:300]
    return DriverInfo(
        status=DriverStatus.ERROR,
        message=f"nvidia-smi gave no reading: {said or 'its output is empty'}",
        source="nvidia-smi",
    )
