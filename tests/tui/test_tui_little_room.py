"""What a small terminal must not cut: the memory estimate, the findings of the log, the names of a
cluster's nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.fake_session import FakeSession, fresh

from workbench.model.findings import Finding, Level
from workbench.tui.panes.log_lines import condense_log_line
from workbench.tui.widgets.gpu_metrics import shorten_node_name

ESTIMATE = "est. 97.4/121.7 GiB per GPU, KV fits 24 full-length sequences (196,608 tokens)"
BELOW = "est. 97.4/121.7 GiB per GPU, KV fits 24 sequences"


@pytest.mark.parametrize(
    ("width", "shown"),
    [(80, BELOW), (100, ESTIMATE.partition(" (")[0]), (120, ESTIMATE), (200, ESTIMATE)],
)
def test_the_estimate_has_fewer_words_and_no_cut(drive: Any, width: int, shown: str) -> None:
    async def scenario(d: Any) -> None:
        warned = Finding(Level.WARN, "one", "one warning")
        d.session.push(
            plan=replace(d.session.state.plan, memory=ESTIMATE, findings=(warned, warned))
        )
        await d.until(lambda: "! 2 warnings" in d.text)
        row = next(row for row in d.text.splitlines() if "! 2 warnings" in row)
        assert f"! 2 warnings   {shown}  " in row and " v " in row and "…" not in row
        d.session.push(
            plan=replace(
                d.session.state.plan, installed_problem="vllm not found on a-host-with-a-name"
            )
        )
        await d.until(lambda: "not found" in d.text)
        assert "est. 97.4/121.7 GiB per GPU" in d.text

    drive(scenario, stage="plan", size=(width, 40 if width > 80 else 24))


@pytest.mark.parametrize(
    ("width", "title"), [(120, "3 Log  {run}  1 finding (i)"), (101, "3 Log  1 finding (i)")]
)
def test_the_findings_of_the_log_are_read_whole(drive: Any, width: int, title: str) -> None:
    async def scenario(d: Any) -> None:
        server = replace(
            d.session.state.server, alive=True, findings=(Finding(Level.WARN, "log.x", "a line"),)
        )
        d.session.push(servers=(server,))
        wanted = title.format(run=server.run_id[-4:])
        await d.until(lambda: f" {wanted} " in d.text, d.text)
        await d.press("3", "f")
        await d.until(lambda: "PAUSED" in d.text)
        await d.pilot.resize_terminal(200, 60)
        full = f"3 Log  {server.engine} {server.run_id[-4:]}  1 finding (i)  PAUSED"
        await d.until(lambda: full in d.text, d.text)

    drive(scenario, stage="ready", size=(width, 40))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("machine", ["", "nvidia@", "sim:gb10@", "a-long-proxmox-host/"])
def test_the_nodes_of_a_cluster_are_named_in_front_of_their_graphs(
    drive: Any, size: tuple[int, int], machine: str
) -> None:
    session = FakeSession(2)

    async def scenario(d: Any) -> None:
        telemetry = session.state.telemetry
        infos = tuple(
            replace(info, node=f"{machine}spark-0{info.index + 1}") for info in telemetry.infos
        )
        session.push(
            telemetry=replace(telemetry, t_s=telemetry.t_s + 1, infos=infos),
            telemetry_monotonic_s=fresh(),
        )
        await d.until(lambda: "spark-01" in d.text and "spark-02" in d.text, "the names")
        assert "…spark" not in d.text and "…park" not in d.text

    drive(scenario, session=session, size=size)


def test_the_name_of_a_node_is_what_follows_its_machine_or_user() -> None:
    names = ["spark-01", "nvidia@spark-01", "sim:gb10@spark-01", "proxmox/pct:101"]
    assert [shorten_node_name(name, 9) for name in names] == [
        "spark-01",
        "spark-01",
        "spark-01",
        "pct:101",
    ]
    assert shorten_node_name("proxmox/pct:101", 15) == "proxmox/pct:101"


def test_a_line_of_a_rank_is_shortened_behind_the_rank() -> None:
    line = "[rank 0] (APIServer pid=12) INFO 11-22 12:03:07 [api_server.py:10] Started"
    assert condense_log_line(line) == "r0 12:03:07 Started"
    access = '[rank 1] INFO:     127.0.0.1:40 - "POST /v1/completions HTTP/1.1" 200 OK'
    assert condense_log_line(access) == "r1 POST /v1/completions 200"
    assert condense_log_line("[rank 0] " * 5000) == "r0 " + "[rank 0] " * 4999
