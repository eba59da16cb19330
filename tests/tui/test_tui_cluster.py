"""A cluster on the screen: the GPUs of all nodes, one server, the command of each node, and a rank
that ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.clusters import cluster
from support.real_screen import RealScreen, shown
from support.serving import free_port

from workbench.session.session import Session

pytestmark = pytest.mark.slow
PRESET = "vllm-llama-3.3-70b-2x-spark"


@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.long)])
@pytest.mark.long
def test_one_server_on_two_nodes(tmp_path: Path, size: tuple[int, int]) -> None:
    session = Session(cluster(tmp_path, reserve_gib=0.5))

    async def scenario(screen: RealScreen) -> None:
        await screen.until("cluster:sparks")
        if size[0] > 100:
            await screen.until("spark-01", "spark-02")
        await screen.until(lambda: any(p.id == PRESET for p in screen.state.presets))
        await session.plans.load_preset(PRESET)
        env = ["WORKBENCH_SIM_START_S=0.3", "WORKBENCH_SIM_PEER_LOST_S=never"]
        session.plans.editor.apply_assignments(
            [f"port={free_port()}", f"master-port={free_port()}"], [], env
        )
        session.plans.show_plan()
        await screen.press("v")
        await screen.until("# spark-01 (rank 0)")
        await screen.press("escape", "s")
        await screen.until("enter start")
        await screen.press("enter")
        await screen.until("READY vllm :")
        assert {rank.label for rank in screen.state.server.ranks} == {"rank 0", "rank 1"}
        await screen.until(
            lambda: any(line.startswith("[rank 1] ") for line in session.log.lines())
        )
        pid = screen.state.server.ranks[1].pid
        os.kill(pid, signal.SIGKILL)
        await screen.until("CRASHED")
        await screen.until(lambda: not screen.state.server.outlived)
        assert screen.state.server.reason.startswith("rank 1 on spark-02: ")

    shown(scenario, session=session, size=size)
