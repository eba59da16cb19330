"""The telemetry of a cluster, which combines the readings of all its nodes. It gives a reading
whenever the head does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from workbench.gpu.telemetry.source import TelemetrySource
from workbench.hosts.cluster import ClusterHost
from workbench.model.errors import HostError
from workbench.model.gpu import GpuSample, GpuState, Telemetry


class ClusterTelemetry(TelemetrySource):
    """The telemetry of a cluster. It reads the head, and adds the newest reading of every other
    node to each reading of the head. The GPUs of the other nodes are numbered after the head's, so
    that the head's GPUs keep their numbers."""

    def __init__(
        self,
        host: ClusterHost,
        interval_s: float = 1.0,
        on_telemetry: Callable[[Telemetry], None] | None = None,
        *,
        agent_options: Mapping[str, float] | None = None,
        keep: bool = True,
    ) -> None:
        super().__init__(host, interval_s, on_telemetry, agent_options=agent_options, keep=keep)
        self._name = host.nodes[0].name
        self._nodes = {
            node.name: TelemetrySource(
                node.host, interval_s, agent_options=agent_options, keep=False
            )
            for node in host.nodes[1:]
        }
        self._own: Telemetry | None = None  # the last reading of the head alone

    async def start(self) -> None:
        await super().start()
        for source in self._nodes.values():
            await source.start()

    async def close(self) -> None:
        await asyncio.gather(super().close(), *(source.close() for source in self._nodes.values()))

    @property
    def problem(self) -> str | None:
        if own := super().problem:
            return own
        for name, source in self._nodes.items():
            if problem := source.problem:
                return f"{name}: {problem}"
        return None

    async def set_interval(self, interval_s: float) -> None:
        await super().set_interval(interval_s)
        for source in self._nodes.values():
            await source.set_interval(interval_s)

    async def request_full_reading(self) -> None:
        await asyncio.gather(
            super().request_full_reading(),
            *(source.request_full_reading() for source in self._nodes.values()),
        )

    async def wait_for_first_reading(self, timeout_s: float = 20.0) -> Telemetry:
        """Return the first reading with the GPUs of all nodes that answer within `timeout_s`.
        Raises HostError if the head does not answer."""

        async def wait_for_node(source: TelemetrySource) -> None:
            with suppress(HostError):  # `problem` says it
                await source.wait_for_first_reading(timeout_s)

        head, _ = await asyncio.gather(
            super().wait_for_first_reading(timeout_s),
            asyncio.gather(*map(wait_for_node, self._nodes.values())),
        )
        whole = self._merge_nodes(self._own) if self._own is not None else head
        self.latest = whole
        return whole

    def _publish(self, reading: Telemetry, at_s: float) -> None:
        self._own = reading
        super()._publish(self._merge_nodes(reading), at_s)

    def _merge_nodes(self, reading: Telemetry) -> Telemetry:
        infos = [replace(info, node=self._name) for info in reading.infos]
        gpus = list(reading.gpus)
        for name, source in self._nodes.items():
            latest = source.latest
            if latest is None:
                continue
            first = max((info.index for info in infos), default=-1) + 1
            late = source.lateness_text
            for info in latest.infos:
                infos.append(replace(info, index=first + info.index, node=name))
            for sample in latest.gpus:
                index = first + sample.index
                if late:
                    gpus.append(GpuSample(index, sample.uuid, GpuState.NOT_READ, late))
                else:
                    gpus.append(replace(sample, index=index))
        return replace(reading, infos=tuple(infos), gpus=tuple(gpus))
