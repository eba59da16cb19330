"""A session on a cluster: a plan on its nodes, a start, a benchmark of all nodes, GPU settings, and
a stop."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from support.clusters import NAMES, PRESET, READY_S, cluster, loaded
from support.fake_host import FakeHost
from support.serving import eventually, free_port

from workbench.engines import ray
from workbench.gpu.telemetry.cluster_source import ClusterTelemetry
from workbench.hosts.base import HostUnreachable
from workbench.hosts.cluster import ClusterHost
from workbench.hosts.local import LocalHost
from workbench.model.errors import ServerError, SettingsError
from workbench.model.findings import Level
from workbench.model.host_entry import ClusterEntry, ClusterNode
from workbench.model.series_state import SeriesState
from workbench.model.server_run import ServerState
from workbench.model.settings import GpuSettings
from workbench.session.bench import gpu_meter
from workbench.session.session import Session
from workbench.store.presets import PresetLibrary


def _presets_with_ray() -> list[str]:
    library = PresetLibrary()
    presets = [library.get(entry.id) for entry in library.list() if entry.origin != "own"]
    backend = "distributed-executor-backend"
    return [preset.id for preset in presets if preset.flags.get(backend) == "ray"]


def test_a_cluster_gives_a_preset_its_hosts_and_addresses(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = Session(cluster(tmp_path))
        await loaded(session)
        plan = session.plans.view()
        assert (
            plan.plan.variables["head_ip"] == "127.0.0.1"
            and plan.plan.sources["head_ip"].kind == "cluster"
        )
        assert plan.plan.variables["interface"] == "lo"
        assert [node.name for node, _ in plan.nodes] == list(NAMES)
        text = plan.shell_command()
        assert (
            "# spark-01 (rank 0)\n" in text
            and ("# spark-02 (rank 1)\n") in text
            and "--headless" in text
        )
        assert plan.nodes[1][0].origins["VLLM_HOST_IP"] == "address of spark-02: hosts.toml"
        await session.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("preset", _presets_with_ray())
def test_a_preset_with_ray_has_no_error_on_a_cluster(tmp_path: Path, preset: str) -> None:
    async def scenario() -> None:
        session = Session(cluster(tmp_path))
        await loaded(session, preset)
        await session.plans.locate_engine()
        view = session.plans.view()
        errors = [f.text for f in view.findings if f.level is Level.ERROR]
        assert errors == []
        assert [node.node_title for node, _ in view.nodes] == ["rank 0", "ray 0", "ray 1"]
        await session.close()

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("preset", _presets_with_ray())
def test_a_preset_with_ray_starts_ray_and_the_server_and_stops_both(
    tmp_path: Path, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "PORT", free_port())

    async def scenario() -> None:
        session = Session(cluster(tmp_path))
        await loaded(session, preset)
        await session.plans.locate_engine()
        run_id = await session.servers.start()
        status = await session.servers.wait_ready(run_id, READY_S)
        assert status.state is ServerState.READY, status.reason
        ranks = [(rank.label, rank.host, rank.alive) for rank in status.ranks]
        assert ranks == [
            ("rank 0", NAMES[0], True),
            ("ray 0", NAMES[0], True),
            ("ray 1", NAMES[1], True),
        ]
        await session.servers.stop(run_id)
        stopped = session.servers.supervisor.status(run_id)
        assert stopped.state is ServerState.STOPPED
        assert not any(rank.alive for rank in stopped.ranks)
        await session.close()

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("preset", [PRESET, _presets_with_ray()[0]])
def test_a_restart_on_a_cluster_stops_the_server_only_if_the_next_can_start(
    tmp_path: Path, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "PORT", free_port())

    async def scenario() -> None:
        session = Session(cluster(tmp_path))
        await loaded(session, preset)
        await session.plans.locate_engine()
        run_id = await session.servers.start()
        await session.servers.wait_ready(run_id, READY_S)
        session.plans.editor.set_flag("executable", "/nonexistent/vllm")
        problem = await session.servers.find_start_problem()
        assert problem is not None and "/nonexistent/vllm does not exist" in problem.text
        with pytest.raises(ServerError, match="/nonexistent/vllm does not exist"):
            await session.servers.start()
        assert session.servers.supervisor.status(run_id).state is ServerState.READY
        session.plans.undo()
        assert await session.servers.find_start_problem() is None  # its own ports become free
        again = await session.servers.start()
        status = await session.servers.wait_ready(again, READY_S)
        assert (status.state, status.replaces) == (ServerState.READY, run_id), status.reason
        await session.servers.stop(again)
        await session.close()

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.slow
def test_one_server_is_started_benchmarked_and_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = Session(cluster(tmp_path))
        await loaded(session)
        run_id = await session.servers.start()
        status = await session.servers.wait_ready(run_id, READY_S)
        assert status.state is ServerState.READY, status.reason
        result_id = await session.bench.benchmark_selected_run(
            requests=12, max_tokens=300, input_tokens=16, warmup=0, concurrency=4
        )
        result = await session.results.get(result_id)
        assert result.conditions.nodes == ("spark-01 (rank 0)", "spark-02 (rank 1)")
        assert [gpu["node"] for gpu in result.conditions.gpus] == list(NAMES)
        gpu = result.summary.gpu
        assert gpu is not None and gpu.gpus == (0, 1) and len(gpu.power_w_each) == 2, (
            result.summary.absent
        )
        assert all(watts is not None and watts > 15 for watts in gpu.power_w_each), gpu.power_w_each
        assert not [
            note for note in result.summary.notes if "another program" in note or "VLLM::" in note
        ]
        await session.servers.stop(run_id)
        assert session.servers.supervisor.status(run_id).state is ServerState.STOPPED
        await session.close()

    asyncio.run(scenario())


def test_a_node_that_cannot_be_reached_is_named_instead_of_its_address() -> None:
    down = FakeHost(name=NAMES[1])
    down.link(False)

    async def scenario() -> None:
        entry = ClusterEntry("sparks", tuple(ClusterNode(name) for name in NAMES))
        session = Session(ClusterHost(entry, [LocalHost(), down]))
        await session.link.connect()
        with pytest.raises(HostUnreachable, match="node spark-02 of the cluster sparks") as caught:
            await session.plans.load_preset(PRESET)
        assert "workbench hosts check spark-02" in (caught.value.next_step or "")
        with pytest.raises(HostUnreachable, match="node spark-02"):
            session.presets.missing_variables(PRESET)
        with pytest.raises(HostUnreachable, match="node spark-02"):
            session.servers.require_nodes_reached()
        await session.close()

    asyncio.run(scenario())


def test_the_findings_of_a_plan_begin_with_the_node_that_cannot_be_reached(tmp_path: Path) -> None:
    down = FakeHost(name=NAMES[1])
    down.link(False)

    async def scenario() -> None:
        session = Session(cluster(tmp_path, (LocalHost(), down)))
        await session.host.connect()
        session.plans.edit_plan(session.presets.make_plan(PRESET), PRESET)
        found = session.plans.view().findings[0]
        assert (found.code, found.level) == ("cluster.unreached", Level.ERROR)
        assert "spark-02" in found.text
        await session.close()

    asyncio.run(scenario())


def test_settings_of_another_node_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = Session(cluster(tmp_path))
        await session.link.connect()
        for gpu in (None, 1):
            with pytest.raises(
                SettingsError, match="these GPU settings concern spark-02"
            ) as caught:
                await session.gpu.plan_setting_commands(GpuSettings({"power-limit": 100}), gpu)
            assert "workbench --host spark-02 gpu set" in (caught.value.next_step or "")
        await session.close()

    asyncio.run(scenario())


def test_a_node_that_is_not_read_is_named_as_long_as_it_is_not_read(tmp_path: Path) -> None:
    """The readings of the head, which go on, do not take the problem off the screen."""

    async def scenario() -> None:
        session = Session(cluster(tmp_path))
        await session.link.connect()
        session.telemetry.interval_s = 0.1
        source = await session.telemetry.start()
        assert isinstance(source, ClusterTelemetry)
        await source.wait_for_first_reading()
        silent = source._nodes[NAMES[1]]
        await silent.close()
        silent._arrived = time.monotonic() - 60
        await eventually(
            lambda: session.state.host.telemetry_problem, 10, "the problem of the node"
        )
        problems: list[str | None] = []
        session.telemetry.on_reading.append(
            lambda reading: problems.append(session.state.host.telemetry_problem)
        )
        await eventually(lambda: len(problems) > 5, 10, "further readings of the head")
        assert all(
            (problem or "").startswith(f"{NAMES[1]}: no reading for ") for problem in problems
        ), problems
        await session.close()

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_tune_on_a_cluster_starts_each_candidate_on_all_nodes_and_writes_a_preset_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_meter, "IDLE_BEFORE_RUN_S", 0.0)

    async def scenario() -> None:
        session = Session(cluster(tmp_path))
        await loaded(session)
        load = {"concurrency": 16, "requests": 32, "max_tokens": 24, "input_tokens": 32}
        planned = await session.sweeps.plan_tune("tok_s", "", starts=14, quality=False, **load)
        assert planned.spec.tune is not None
        names = " ".join(word for one in planned.spec.tune.candidates for word in one.sets)
        assert names and "parallel-size" not in names  # the plan uses both nodes already
        tune = await session.sweeps.run_tune(planned)
        assert tune.state == SeriesState.DONE and tune.confirmed, tune
        runs = await session.servers.supervisor.runs()
        assert {len(one.ranks) for one in runs} == {len(NAMES)}
        written = session.presets.get(f"{PRESET}-tune-{tune.id}")
        assert [node.rank for node in written.nodes] == [0, 1]
        await session.close()

    asyncio.run(scenario())
