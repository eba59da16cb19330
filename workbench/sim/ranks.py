"""The links between the ranks of a simulated server on several hosts. A rank is the server's
process on one host. The links are real TCP connections to rank 0, like those of torch's store and
Gloo."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Sequence

from workbench.sim.launch_options import LaunchOptions

LOST_S = 1.0  # from the loss of a rank until the others report it
RETRY_S = 0.2
Load = tuple[float, float, float]  # shares of a GPU's time, memory bandwidth and computing


class RankLinks:
    """The network connections of one rank, which is the process on one host of a server on several
    hosts. `on_load` is called with the load that rank 0 sends.

    `on_lost` is called with a log line after the connection to another rank is lost. The
    environment variable WORKBENCH_SIM_PEER_LOST_S delays this call by that many seconds. With
    "never" it is not made, so that the rank hangs, as vLLM's first rank does between requests.
    """

    def __init__(
        self,
        launch: LaunchOptions,
        on_load: Callable[[list[Load], float | None], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._launch, self._on_load, self._on_lost = launch, on_load, on_lost
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._joined = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect_to_rank_0(self) -> None:
        """Connect this rank to rank 0. Rank 0 waits until all other ranks have connected."""
        address, _, port = self._launch.master.rpartition(":")
        if self._launch.node_rank == 0:
            self._server = await asyncio.start_server(
                self._watch_and_count_rank, address.strip("[]"), int(port)
            )
        else:
            while True:
                try:
                    reader, writer = await asyncio.open_connection(address.strip("[]"), int(port))
                    break
                except OSError:
                    await asyncio.sleep(RETRY_S)
            self._watch_rank_connection(reader, writer)
            self._joined.set()
        await self._joined.wait()

    def forward_load(self, loads: Sequence[Load], active_unix_s: float | None) -> None:
        """If this process is rank 0, send its load to the other ranks, because in tensor
        parallelism all GPUs do the same work; otherwise do nothing. `active_unix_s` is when the
        server last used a GPU; None if it never did."""
        line = json.dumps([list(loads), active_unix_s]).encode() + b"\n"
        if self._launch.node_rank != 0:
            return
        for writer in self._writers:
            writer.write(line)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            self._server.close()

    async def _watch_and_count_rank(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._watch_rank_connection(reader, writer)
        if len(self._writers) == self._launch.nodes - 1:
            self._joined.set()

    def _watch_rank_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._writers.append(writer)
        task = asyncio.get_running_loop().create_task(self._read_loads_until_lost(reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_loads_until_lost(self, reader: asyncio.StreamReader) -> None:
        """Pass on the loads that another rank sends until its connection is lost, and report the
        loss."""
        with contextlib.suppress(OSError):
            async for line in reader:
                loads, active_unix_s = json.loads(line)
                self._on_load(
                    [(busy, memory, compute) for busy, memory, compute in loads], active_unix_s
                )
        delay = os.environ.get("WORKBENCH_SIM_PEER_LOST_S", str(LOST_S))
        if delay != "never":
            await asyncio.sleep(float(delay))
            self._on_lost(
                "torch.distributed.DistBackendError: NCCL error: remote process exited "
                "(simulated ranks)"
            )
