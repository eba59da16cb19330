"""Plans on the nodes of a cluster: the flags of each rank, and the environment from the
interfaces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench import engines
from workbench.engines import cluster, ray
from workbench.engines.host_entries import add_host_settings
from workbench.model.findings import Level
from workbench.model.flags import Origin
from workbench.model.gpu import GpuInfo
from workbench.model.host_entry import HostEntry
from workbench.model.node_network import NodeAddress
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import set_launcher
from workbench.store.presets import PresetLibrary

ORIGINS = {"address": "hosts.toml", "interface": "hosts.toml", "rdma": "hosts.toml"}
HEAD = NodeAddress("spark-01", "10.0.0.1", "enp1s0f1np1", ("rocep1s0f1", "roceP2p1s0f1"), ORIGINS)
WORKER = NodeAddress("spark-02", "10.0.0.2", "enp1s0f0np0", ("rocep1s0f0",), ORIGINS)
PLACES = (HEAD, WORKER)
VLLM, SGLANG = engines.get_engine("vllm"), engines.get_engine("sglang")


def plan_with(engine: str = "vllm", **flags: object) -> LaunchPlan:
    plan = LaunchPlan(engine, "m")
    for name, value in flags.items():
        plan = plan.with_flag(name.replace("_", "-"), value)  # type: ignore[arg-type]
    return plan


def lines(plan: LaunchPlan) -> list[str]:
    engine = engines.get_engine(plan.engine)
    return [" ".join(engine.command(plan, node).argv) for node in plan.nodes]


def test_vllm_by_nnodes_has_one_headless_rank_per_further_node() -> None:
    head, worker = lines(
        cluster.spread_plan_over_nodes(plan_with(tensor_parallel_size=2), VLLM, PLACES)
    )
    assert (
        "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29501"
    ) in head and "--headless" not in head
    assert worker.endswith(
        "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29501 --headless"
    )


def test_ports_that_the_plan_sets_stay() -> None:
    plan = cluster.spread_plan_over_nodes(
        plan_with(tensor_parallel_size=2, master_port=4000), VLLM, PLACES
    )
    assert all("--master-port 4000" in line and "29501" not in line for line in lines(plan))


def test_vllm_spreads_replicas_by_their_first_rank() -> None:
    head, worker = lines(
        cluster.spread_plan_over_nodes(plan_with(data_parallel_size=4), VLLM, PLACES)
    )
    assert (
        "--data-parallel-size-local 2 --data-parallel-address 10.0.0.1 "
        "--data-parallel-rpc-port 13345"
    ) in head
    assert "--data-parallel-start-rank 2" in worker and worker.endswith("--headless")


def test_sglang_names_the_first_rank_and_its_port() -> None:
    head, worker = lines(
        cluster.spread_plan_over_nodes(plan_with("sglang", tensor_parallel_size=2), SGLANG, PLACES)
    )
    assert "--nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:20000" in head
    assert "--node-rank 1" in worker


def test_ray_runs_beside_one_server() -> None:
    plan = cluster.spread_plan_over_nodes(
        plan_with(tensor_parallel_size=2, distributed_executor_backend="ray"), VLLM, PLACES
    )
    server, head, worker = lines(plan)
    assert server.startswith("vllm serve m") and "--nnodes" not in server
    assert head == "ray start --head --port 6379 --node-ip-address 10.0.0.1 --block"
    assert worker == "ray start --address 10.0.0.1:6379 --node-ip-address 10.0.0.2 --block"
    assert [node.node_title for node in plan.nodes] == ["rank 0", "ray 0", "ray 1"]
    assert VLLM.command(plan, plan.nodes[2]).env["VLLM_HOST_IP"] == "10.0.0.2"


def test_the_gpus_of_ray_are_those_of_its_status() -> None:
    status = "Resources\n-----\nTotal Usage:\n 0.0/40.0 CPU\n 0.0/2.0 GPU\n 0B/159.83GiB memory\n"
    assert (ray.parse_total_gpu_count(status), ray.parse_total_gpu_count("no cluster")) == (2, 0)


def test_each_node_has_the_environment_of_its_own_interfaces() -> None:
    plan = cluster.spread_plan_over_nodes(plan_with(tensor_parallel_size=2), VLLM, PLACES)
    head, worker = (VLLM.command(plan, node).env for node in plan.nodes)
    assert (head["VLLM_HOST_IP"], worker["VLLM_HOST_IP"]) == ("10.0.0.1", "10.0.0.2")
    assert (head["NCCL_SOCKET_IFNAME"], worker["NCCL_SOCKET_IFNAME"]) == (
        "enp1s0f1np1",
        "enp1s0f0np0",
    )
    assert (head["NCCL_IB_HCA"], worker["NCCL_IB_HCA"]) == ("rocep1s0f1,roceP2p1s0f1", "rocep1s0f0")
    assert head["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1" and head["NCCL_DEBUG"] == "INFO"
    assert plan.nodes[1].origins["VLLM_HOST_IP"] == "address of spark-02: hosts.toml"


def test_a_value_of_the_plan_stays_and_is_reported() -> None:
    plan = plan_with(tensor_parallel_size=2).with_env("NCCL_SOCKET_IFNAME", "eth9", Origin.EDITED)
    spread = cluster.spread_plan_over_nodes(plan, VLLM, PLACES)
    assert all(
        VLLM.command(spread, node).env["NCCL_SOCKET_IFNAME"] == "eth9" for node in spread.nodes
    )
    found = [
        f
        for f in cluster.report_cluster_problems(spread, VLLM, PLACES)
        if f.code == "cluster.environment"
    ]
    assert [f.flag for f in found] == ["NCCL_SOCKET_IFNAME"] * 2
    assert found[1].text == (
        "spark-02 (rank 1): NCCL_SOCKET_IFNAME is eth9 in the plan, "
        "but enp1s0f0np0 is the interface of spark-02: hosts.toml"
    )


def test_a_value_that_the_cluster_gave_to_the_head_does_not_bind_the_others() -> None:
    plan = plan_with(tensor_parallel_size=2).with_env(
        "NCCL_SOCKET_IFNAME", "enp1s0f1np1", Origin.PRESET
    )
    spread = cluster.spread_plan_over_nodes(plan, VLLM, PLACES)
    assert [VLLM.command(spread, node).env["NCCL_SOCKET_IFNAME"] for node in spread.nodes] == [
        "enp1s0f1np1",
        "enp1s0f0np0",
    ]
    assert not list(cluster.report_cluster_problems(spread, VLLM, PLACES))


@pytest.mark.parametrize(("engine", "level"), [("vllm", "info"), ("llamacpp", "warn")])
def test_a_plan_for_one_host_runs_on_the_head_alone(engine: str, level: str) -> None:
    plan = plan_with(engine)
    assert cluster.spread_plan_over_nodes(plan, engines.get_engine(engine), PLACES) == plan
    (found,) = cluster.report_cluster_problems(plan, engines.get_engine(engine), PLACES)
    assert (found.code, str(found.level)) == ("cluster.one-node", level)


def test_unified_memory_without_a_reserve_is_a_risk() -> None:
    gb10 = GpuInfo(0, "u", "NVIDIA GB10", unified_memory=True)
    assert [f.code for f in cluster.report_missing_cluster_memory_reserve([gb10], None)] == [
        "cluster.no-reserve"
    ]
    assert not list(cluster.report_missing_cluster_memory_reserve([gb10], 8.0)) and not list(
        cluster.report_missing_cluster_memory_reserve([GpuInfo(0, "u", "A100")], None)
    )


@pytest.mark.parametrize(
    ("head", "worker", "text"),
    [
        ({}, {"run_as": "podman"}, "spark-01 as process, and on spark-02 as podman"),
        ({"run_as": "systemd"}, {}, "spark-01 as systemd, and on spark-02 as process"),
        (
            {"run_as": "systemd", "run_options": {"scope": "system"}},
            {"run_as": "systemd"},
            "spark-01 as systemd scope=system, and on spark-02 as systemd",
        ),
        ({"run_as": "systemd"}, {"run_as": "systemd"}, ""),
        ({}, {"run_as": "process"}, ""),
    ],
)
def test_nodes_that_start_servers_in_different_ways_are_refused(
    head: dict[str, object], worker: dict[str, object], text: str
) -> None:
    entries = HostEntry("spark-01", **head), HostEntry("spark-02", **worker)  # type: ignore[arg-type]
    places = tuple(
        replace(place, entry=entry) for place, entry in zip(PLACES, entries, strict=True)
    )
    plan = add_host_settings(plan_with(tensor_parallel_size=2), entries[0], None)

    def errors(of: LaunchPlan) -> list[str]:
        found = cluster.report_cluster_problems(
            cluster.spread_plan_over_nodes(of, VLLM, places), VLLM, places
        )
        return [f.text for f in found if f.level is Level.ERROR]

    assert [text in error for error in errors(plan)] == ([True] if text else [])
    chosen = set_launcher(plan, "docker")  # by --as, for all nodes
    assert errors(chosen) == []
    codes = {
        f.code
        for f in cluster.report_cluster_problems(
            cluster.spread_plan_over_nodes(chosen, VLLM, places), VLLM, places
        )
    }
    assert "cluster.unwatched-launcher" in codes


def test_rdma_that_no_node_has_is_reported() -> None:
    plan = plan_with(tensor_parallel_size=2).with_env("NCCL_NET", "IB", Origin.PRESET)
    places = (HEAD, NodeAddress("spark-02", "10.0.0.2", "eth0", (), ORIGINS))
    (found,) = [
        f
        for f in cluster.report_cluster_problems(
            cluster.spread_plan_over_nodes(plan, VLLM, places), VLLM, places
        )
        if f.code != "cluster.environment"
    ]
    assert found.text == "the plan sets NCCL_NET=IB, but spark-02 has no active RDMA device on eth0"


def test_shipped_presets_for_two_sparks_get_their_hosts_from_the_cluster() -> None:
    library = PresetLibrary()
    for path in Path(__file__).resolve().parents[3].joinpath("presets").glob("*2x-spark*.toml"):
        preset = library.load_checked(path)
        values = {n: v.default or v.example or "m" for n, v in preset.variables.items()}
        values |= {"head_ip": "10.0.0.1", "worker_ip": "10.0.0.2", "interface": "enp1s0f1np1"}
        values = {n: v for n, v in values.items() if n in preset.variables}
        plan = engines.plan_from_preset(preset, values)
        spread = cluster.spread_plan_over_nodes(plan, engines.get_engine(plan.engine), PLACES)
        assert {node.name for node in spread.nodes} == {"spark-01", "spark-02"}, preset.id
        commands = [engines.get_engine(plan.engine).command(spread, node) for node in spread.nodes]
        assert commands[-1].env["NCCL_SOCKET_IFNAME"] == "enp1s0f0np0", preset.id


def test_each_node_starts_the_program_of_its_own_host() -> None:
    first = HostEntry(
        "spark-01", engines={"vllm": "/opt/one/bin/vllm"}, env={"HF_HOME": "/one", "A": "1"}
    )
    second = HostEntry(
        "spark-02", engines={"vllm": "'/opt/my two/bin/vllm'"}, env={"HF_HOME": "/two", "B": "2"}
    )
    bare = HostEntry("spark-03")
    places = tuple(
        replace(HEAD, host=entry.name, address=f"10.0.0.{at}", entry=entry)
        for at, entry in enumerate((first, second, bare), 1)
    )
    plan = add_host_settings(
        plan_with(tensor_parallel_size=3), first, ("/opt/one/bin/vllm", "hosts.toml")
    )
    spread = cluster.spread_plan_over_nodes(plan, VLLM, places)
    commands = [VLLM.command(spread, node) for node in spread.nodes]
    assert [command.argv[0] for command in commands] == [
        "/opt/one/bin/vllm",
        "/opt/my two/bin/vllm",
        "vllm",
    ]
    assert [command.env["HF_HOME"] for command in commands[:2]] == ["/one", "/two"] and commands[
        1
    ].env["B"] == "2"
    assert spread.nodes[1].origins["HF_HOME"] == "spark-02 in hosts.toml"
    given = replace(plan, executable=("/mine/vllm",), executable_from="given").with_env(
        "HF_HOME", "/all"
    )
    spread = cluster.spread_plan_over_nodes(given, VLLM, places)
    commands = [VLLM.command(spread, node) for node in spread.nodes]
    # the user's own choice is for all nodes
    assert {command.argv[0] for command in commands} == {"/mine/vllm"}
    assert {command.env["HF_HOME"] for command in commands} == {"/all"}


def test_ray_is_started_from_the_environment_of_each_node() -> None:
    entry = HostEntry("spark-02", engines={"vllm": "/opt/two/bin/vllm"})
    plan = plan_with(tensor_parallel_size=2, distributed_executor_backend="ray")
    spread = cluster.spread_plan_over_nodes(plan, VLLM, (HEAD, replace(WORKER, entry=entry)))
    programs = {(node.name, node.role): VLLM.command(spread, node).argv[0] for node in spread.nodes}
    assert (
        programs[("spark-02", "ray")] == "/opt/two/bin/ray"
        and programs[("spark-01", "ray")] == "ray"
    )
