"""Names and containers of GPU processes, for a host that is a container. In a container, the driver
reports the process ids of the host around the container, so this module asks that host about them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from workbench.hosts.base import ContainerHostProcess, Host
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import HostError
from workbench.model.gpu import GpuProcess, GpuSample, Telemetry


class OuterProcesses:
    """Asks the host around a container about GPU processes that the container cannot see, and
    stores the answers."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[int, ContainerHostProcess | None] = {}
        self._asking: asyncio.Task[None] | None = None

    def add_names_and_containers(self, reading: Telemetry) -> Telemetry:
        """Return the reading with the names and containers of its processes, as far as the host
        around this container has named them. That host is asked in the background about the others,
        which a later reading then names."""
        unseen = {p.pid for gpu in reading.gpus for p in gpu.known_processes if p.name is None}
        if not unseen:
            return reading
        new = unseen - self._known.keys()
        if new and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._read_outer_processes(frozenset(unseen)))
        return replace(reading, gpus=tuple(map(self._add_names_to_gpu, reading.gpus)))

    def _add_names_to_gpu(self, gpu: GpuSample) -> GpuSample:
        if not gpu.processes:
            return gpu
        return replace(gpu, processes=tuple(map(self._add_name_to_process, gpu.processes)))

    def _add_name_to_process(self, process: GpuProcess) -> GpuProcess:
        known = self._known.get(process.pid)
        if known is None or process.name is not None:
            return process
        if known.pid is not None:
            process = replace(process, pid=known.pid)
        return replace(process, name=known.name, place=known.place)

    async def _read_outer_processes(self, pids: frozenset[int]) -> None:
        try:
            found = await self._host.read_container_host_processes(pids)
        except HostError:
            return  # with the next reading
        self._known = {pid: found.get(pid) for pid in pids}

    async def close(self) -> None:
        await cancel_all([self._asking])
