"""The telemetry of a cluster: the GPUs of all nodes in one reading, and a node that is silent."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from support.clusters import NAMES, cluster

from workbench.gpu.telemetry.source_of_host import create_telemetry_source, read_telemetry_once
from workbench.model.gpu import GpuState


def test_the_gpus_of_all_nodes_are_numbered_through_and_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = cluster(tmp_path)
        await host.connect()
        reading = await read_telemetry_once(host)
        assert [(info.index, info.node) for info in reading.infos] == [(0, NAMES[0]), (1, NAMES[1])]
        assert [(s.index, s.power_w is not None) for s in reading.gpus] == [(0, True), (1, True)]

    asyncio.run(scenario())


def test_a_node_that_says_nothing_costs_the_others_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = cluster(tmp_path)
        await host.connect()
        source = create_telemetry_source(host, 0.1)
        await source.start()
        try:
            await source.wait_for_first_reading()
            silent = source._nodes[NAMES[1]]  # type: ignore[attr-defined]
            await silent.close()
            silent._arrived = time.monotonic() - 60
            deadline = time.monotonic() + 10
            while source.latest is None or source.latest.gpus[1].state is not GpuState.NOT_READ:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert source.latest.gpus[0].has_readings and source.latest.gpus[1].message is not None
            assert source.latest.gpus[1].message.startswith("no reading for ")
        finally:
            await source.close()

    asyncio.run(scenario())
