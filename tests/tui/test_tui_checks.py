"""The list of hosts: the check of a host, and a cluster that is looked at, started and stopped from
another host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.real_screen import RealScreen, shown
from support.serving import free_port

from workbench.session.session import Session

PRESET = "vllm-llama-3.3-70b-2x-spark"
CLUSTER = '[clusters.sparks]\nlabel = "both"\nnodes = ["sim:gb10@spark-01", "sim:gb10@spark-02"]\n'


def hosts_toml(text: str) -> None:
    file = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "hosts.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.slow
def test_the_host_under_the_cursor_is_checked() -> None:
    hosts_toml('[hosts.here]\nssh = "local"\nmodels = ["/not/there"]\nlabel = "my machine"\n')

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.telemetry is not None)
        await s.press("h", *"my mach", "ctrl+t")
        await s.until(
            "Check of here", "the model directory /not/there is not there", "correct `models`"
        )
        assert s.text.splitlines()[-1].startswith(" esc Close  R Again  o Open  p Preset"), (
            "no key of a cluster"
        )
        await s.press("escape", "h")
        await s.until("my machine  1 warning")
        await s.press("escape", "R")  # the key is the page's own no more
        await s.until("is connected")

    shown(scenario)


def test_a_host_that_cannot_be_checked_says_why() -> None:
    hosts_toml('[hosts.gone]\nssh = "nobody@127.0.0.1"\n')

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.telemetry is not None)
        await s.press("h", *"gone", "ctrl+t")
        await s.until("Check of gone: 1 error")
        await s.press("R")
        await s.until("Check of gone: 1 error")

    shown(scenario, size=(80, 24))


@pytest.mark.slow
def test_a_check_needs_a_page_and_a_host_has_no_server_to_stop() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.telemetry is not None)
        await s.press("ctrl+p", *"check: again", "enter")
        await s.until("no page with a check is open")
        await s.press("ctrl+p", *"list of hosts: check", "enter")
        await s.until("Check of sim:four-pcie: ")

    shown(scenario)


async def nothing_left() -> None:
    """Stop the servers of the cluster, which is not the screen's host when a test fails."""
    session = Session.of_host("cluster:sparks")
    await session.link.connect()
    for status in await session.servers.supervisor.runs():
        if status.may_still_be_running:
            await session.servers.supervisor.stop(status.run_id, grace_s=1)
    await session.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param((120, 40), marks=pytest.mark.long), (80, 24)])
@pytest.mark.long
def test_a_cluster_is_started_and_stopped_from_another_host(size: tuple[int, int]) -> None:
    hosts_toml(CLUSTER)

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: any(p.id == PRESET for p in s.state.presets))
        await s.session.plans.load_preset(PRESET)
        env = ["WORKBENCH_SIM_START_S=0.3"]
        s.session.plans.editor.apply_assignments(
            [f"port={free_port()}", f"master-port={free_port()}"], [], env
        )
        s.session.plans.show_plan()
        await s.press("h")
        await s.until("cluster:sparks", "both  no server")
        await s.press(*"cluster:sp", "ctrl+t")
        await s.until(
            "Check of cluster:sparks: ", "spark-01", "spark-02", "1 GPU", "s Start", "x Stop"
        )
        await s.press("x")
        await s.until("no server runs on cluster:sparks")
        assert s.state.host.name == "sim:four-pcie"
        await s.press("s")
        await s.until("enter start", lambda: s.state.host.name == "cluster:sparks")
        await s.press("enter")
        await s.until("READY vllm :", seconds=40)
        await s.press("h")
        await s.until("both  ready vllm :")
        await s.press(*"sim:four-pcie", "enter")
        await s.until(
            lambda: s.state.host.name == "sim:four-pcie" and s.state.telemetry is not None
        )
        await s.press("h")
        await s.until("both  ready vllm :")
        await s.press(*"cluster:sp", "ctrl+t")
        await s.until("Check of cluster:sparks: ready vllm :", "; ")
        await s.press("end")
        await s.until("rank 0", "rank 1", "server")
        await s.press("x")
        await s.until("Stop the server", "rank 1 on ")
        await s.press("y")
        await s.until(" is stopped", seconds=40)
        await s.press("h")
        await s.until("both  no server")

    try:
        shown(scenario, size=size)
    finally:
        asyncio.run(nothing_left())
