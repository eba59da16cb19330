"""Each check of `cluster check`: silent on two nodes that fit together, and firing on the fault
that it looks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from workbench.doctor import cluster_checks
from workbench.doctor.cluster_facts import ClusterReport, Connection, NodeReport
from workbench.doctor.engine_packages import EnginePackages
from workbench.doctor.examination import Examination
from workbench.hosts.base import HostFacts
from workbench.model.findings import Finding, Level
from workbench.model.gpu import DriverInfo, DriverStatus, GpuInfo, GpuSample
from workbench.model.node_network import Interface, NodeAddress, NodeNetwork, RdmaDevice
from workbench.server.engine_probe import InstalledEngine
from workbench.server.model_fingerprint import ModelFingerprint

GIB = 1 << 30
STACK = EnginePackages(
    "vllm",
    "/opt/vllm/bin/python3",
    "3.12.11",
    {"vllm": "0.33.0", "torch": "2.14.0", "nvidia-nccl-cu13": "2.28.9"},
)


def node(number: int) -> NodeReport:
    name, address = f"spark-0{number}", f"10.0.0.{number}"
    network = NodeNetwork(
        (
            Interface("lo", ("127.0.0.1/8",), up=True, mtu=65536),
            Interface("enp1s0f0np1", (f"{address}/24",), up=True, mtu=9000, speed_mbit_s=200_000),
        ),
        (RdmaDevice("rocep1s0f0", "enp1s0f0np1", True, "200 Gb/sec (4X HDR)", "Ethernet"),),
    )
    seen = Examination(
        HostFacts(name, "ssh"),
        driver=DriverInfo(
            DriverStatus.OK, driver_version="580.95.05", cuda_version="13.0", source="nvml"
        ),
        gpus=(GpuInfo(0, f"GPU-{number}", "NVIDIA GB10", unified_memory=True),),
        samples=(GpuSample(0, f"GPU-{number}"),),
        engines=(InstalledEngine("vllm", "/opt/vllm/bin/vllm", "0.33.0"),),
        packages=(STACK,),
    )
    look = {
        "hostname": name,
        "names": {"spark-01": ["10.0.0.1"], "spark-02": ["10.0.0.2"]},
        "taken": [],
        "memory": {"MemTotal": 120 * GIB, "MemAvailable": 110 * GIB, "SwapTotal": 0},
        "memlock_bytes": None,
        "engines": [],
        "ray": [],
        "segments": [],
    }
    return NodeReport(
        NodeAddress(name, address, "enp1s0f0np1", ("rocep1s0f0",)),
        network,
        seen,
        look,
        clock_ahead_s=0.01,
        clock_error_s=0.001,
        model=ModelFingerprint("abcd", "30 files, 141 GB"),
    )


GOOD = ClusterReport(
    (node(1), node(2)),
    (
        Connection("spark-01", "spark-02", "10.0.0.2", 0.1),
        Connection("spark-02", "spark-01", "10.0.0.1", 0.1),
    ),
    engine="vllm",
    model="meta-llama/Llama-3.3-70B-Instruct",
    need_bytes=90 * GIB,
    reserve_bytes=8 * GIB,
)


def with_second(**changes: Any) -> ClusterReport:
    """Return the good report with other fields of the second node. `look` and `seen` change single
    values."""
    second = GOOD.nodes[1]
    changes["look"] = {**second.look, **changes.get("look", {})}
    changes["seen"] = replace(second.seen, **changes.get("seen", {}))
    return replace(GOOD, nodes=(GOOD.nodes[0], replace(second, **changes)))


def interface(**changes: Any) -> NodeNetwork:
    network = GOOD.nodes[1].network
    return replace(
        network, interfaces=(network.interfaces[0], replace(network.interfaces[1], **changes))
    )


def stack(**versions: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return {"packages": (replace(STACK, versions={**STACK.versions, **named}),)}


PROCESS = {
    "pid": 4242,
    "kind": "engine",
    "name": "VLLM::Worker",
    "uid": 1000,
    "age_s": 60,
    "run": False,
}
FAULTS: dict[str, tuple[ClusterReport, Level, str]] = {
    "unreached": (
        with_second(problem="no connection: refused"),
        Level.ERROR,
        "spark-02 cannot be reached",
    ),
    "unlooked": (
        with_second(look={}, unlooked="it has no python3"),
        Level.WARN,
        "it has no python3",
    ),
    "one-node": (replace(GOOD, nodes=GOOD.nodes[:1]), Level.ERROR, "at least two nodes"),
    "address-unknown": (
        with_second(place=NodeAddress("spark-02", problem="`ip -j addr` failed")),
        Level.ERROR,
        "the address of spark-02 is not known: `ip -j addr` failed",
    ),
    "address-foreign": (
        with_second(place=NodeAddress("spark-02", "10.0.0.9", "enp1s0f0np1", ("rocep1s0f0",))),
        Level.ERROR,
        "spark-02 does not have the address 10.0.0.9",
    ),
    "address-twice": (
        with_second(
            place=replace(GOOD.nodes[1].place, address="10.0.0.1"),
            network=replace(GOOD.nodes[1].network, interfaces=()),
        ),
        Level.ERROR,
        "the same address 10.0.0.1",
    ),
    "name-loopback": (
        with_second(look={"names": {"spark-01": ["10.0.0.1"], "spark-02": ["127.0.1.1"]}}),
        Level.HINT,
        "its own name spark-02 is 127.0.1.1",
    ),
    "name-foreign": (
        with_second(look={"names": {"spark-01": ["192.168.7.7"], "spark-02": ["10.0.0.2"]}}),
        Level.WARN,
        "on spark-02 the name spark-01 is 192.168.7.7",
    ),
    "connection": (
        replace(
            GOOD,
            connections=(
                Connection("spark-01", "spark-02", "10.0.0.2", problem="no answer within 3 s"),
            ),
        ),
        Level.ERROR,
        "spark-01 cannot connect to 10.0.0.2 of spark-02: no answer within 3 s",
    ),
    "interface-missing": (
        with_second(
            network=replace(
                GOOD.nodes[1].network, interfaces=(Interface("eth0", ("10.0.0.2/24",), True),)
            )
        ),
        Level.ERROR,
        "spark-02 has no interface enp1s0f0np1",
    ),
    "interface-down": (
        with_second(network=interface(up=False)),
        Level.ERROR,
        "enp1s0f0np1 of spark-02 is down",
    ),
    "interface-slow": (
        with_second(network=interface(speed_mbit_s=1000)),
        Level.WARN,
        "runs at 1 Gbit/s",
    ),
    "interface-speed": (
        with_second(network=interface(speed_mbit_s=100_000)),
        Level.WARN,
        "different speeds",
    ),
    "interface-mtu": (
        with_second(network=interface(mtu=1500)),
        Level.WARN,
        "different MTUs: spark-01 9000 bytes",
    ),
    "rdma-missing": (
        with_second(network=replace(GOOD.nodes[1].network, rdma=())),
        Level.ERROR,
        "spark-02 has no RDMA device rocep1s0f0",
    ),
    "rdma-down": (
        with_second(
            network=replace(
                GOOD.nodes[1].network, rdma=(RdmaDevice("rocep1s0f0", "enp1s0f0np1", False),)
            )
        ),
        Level.ERROR,
        "rocep1s0f0 of spark-02 is not active: NCCL would use sockets",
    ),
    "rdma-memlock": (with_second(look={"memlock_bytes": 8 << 20}), Level.WARN, "may lock 8 MiB"),
    "rdma-uneven": (
        with_second(place=replace(GOOD.nodes[1].place, rdma=())),
        Level.WARN,
        "no RDMA device is active on spark-02",
    ),
    "unequal-vllm": (
        with_second(seen={"engines": (InstalledEngine("vllm", "/v", "0.32.0"),)}),
        Level.ERROR,
        "different versions of vllm",
    ),
    "engine-missing": (
        with_second(seen={"engines": ()}),
        Level.ERROR,
        "vllm was not found on spark-02",
    ),
    "unequal-torch": (
        with_second(seen=stack(torch="2.13.0")),
        Level.ERROR,
        "different versions of torch of vllm",
    ),
    "unequal-nccl": (
        with_second(seen=stack(nvidia_nccl_cu13="2.27.3")),
        Level.ERROR,
        "different versions of NCCL of vllm",
    ),
    "unequal-driver": (
        with_second(seen={"driver": replace(GOOD.nodes[1].seen.driver, driver_version="575.57")}),
        Level.WARN,
        "different versions of driver",
    ),
    "unequal-gpus": (
        with_second(seen={"gpus": (GpuInfo(0, "GPU-2", "NVIDIA GH200", unified_memory=True),)}),
        Level.WARN,
        "different GPUs",
    ),
    "model-missing": (
        with_second(model=ModelFingerprint(None, "no model files were found; searched /hub")),
        Level.WARN,
        "was not found on spark-02: no model files were found; searched /hub",
    ),
    "model-differs": (
        with_second(model=ModelFingerprint("ffff", "29 files, 140 GB")),
        Level.ERROR,
        "different files",
    ),
    "port-taken": (
        with_second(look={"taken": [8000, 29501]}),
        Level.ERROR,
        "listen on port 8000, port 29501",
    ),
    "clocks": (with_second(clock_ahead_s=-4.2), Level.WARN, "are 4.2 s apart"),
    "memory": (
        with_second(look={"memory": {"MemAvailable": 95 * GIB}}),
        Level.ERROR,
        "spark-02 has 95.0 GiB of memory, which GPU and system share, free; the plan needs 90.0 "
        "GiB there and 8.0 GiB",
    ),
    "swap": (
        with_second(look={"memory": {"MemAvailable": 110 * GIB, "SwapTotal": GIB}}),
        Level.HINT,
        "spark-02 has swap",
    ),
    "left-engines": (
        with_second(look={"engines": [PROCESS]}),
        Level.WARN,
        "1 process of an engine still lives",
    ),
    "left-ray": (
        with_second(look={"ray": [{**PROCESS, "kind": "ray", "name": "raylet", "run": True}]}),
        Level.WARN,
        "1 process of Ray still lives",
    ),
    "left-memory": (
        with_second(look={"segments": [{"name": "psm_1", "bytes": 200 << 20}]}),
        Level.WARN,
        "no process uses 1 segment of shared memory, 200 MiB",
    ),
}


def fired(report: ClusterReport) -> dict[str, Finding]:
    return {f.code.removeprefix("cluster."): f for f in cluster_checks.cluster_findings(report)}


def test_two_nodes_that_fit_together_have_no_finding() -> None:
    assert fired(GOOD) == {}
    assert fired(replace(GOOD, engine=None, model=None, need_bytes=None)) == {}


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_is_found_and_has_a_fix(code: str) -> None:
    report, level, text = FAULTS[code]
    found = fired(report)
    assert code in found, found
    assert found[code].level is level and text in found[code].text, found[code].text
    assert found[code].fix


def test_a_missing_model_is_copied_from_a_node_that_has_it_or_downloaded() -> None:
    missing = ModelFingerprint(None, "no model files were found")
    one = with_second(model=missing)
    assert fired(one)["model-missing"].fix == (
        f"workbench models copy {one.model} --from spark-01 --to spark-02"
    )
    both = replace(one, nodes=tuple(replace(node, model=missing) for node in one.nodes))
    fixes = {
        f.fix for f in cluster_checks.cluster_findings(both) if f.code == "cluster.model-missing"
    }
    assert fixes == {
        f"workbench --host {name} models download {one.model}" for name in ("spark-01", "spark-02")
    }


def test_a_missing_model_that_no_start_downloads_is_an_error() -> None:
    missing = with_second(model=ModelFingerprint(None, "no model files were found"))
    assert fired(replace(missing, model="/models/llama"))["model-missing"].level is Level.ERROR


def test_an_engine_without_a_version_was_found_all_the_same() -> None:
    wrapper = InstalledEngine("vllm", "/usr/local/bin/vllm", None, how="no metadata")
    assert fired(with_second(seen={"engines": (wrapper,)})) == {}


def test_nodes_on_one_machine_may_share_its_loopback_address() -> None:
    place = NodeAddress("spark", "127.0.0.1", "lo")
    nodes = tuple(
        replace(node, place=replace(place, host=node.name), network=NodeNetwork())
        for node in GOOD.nodes
    )
    assert "address-twice" not in fired(replace(GOOD, nodes=nodes))


def test_a_fault_is_told_once_and_alone() -> None:
    """What follows from a fault may be told too; nothing else."""
    beside = {
        "unreached": {"unreached"},
        "rdma-missing": {"rdma-missing"},
        "interface-speed": {"interface-speed"},
        "memory": {"memory"},
        "clocks": {"clocks"},
        "unequal-torch": {"unequal-torch"},
        "connection": {"connection"},
    }
    for code, expected in beside.items():
        assert set(fired(FAULTS[code][0])) == expected, code


def test_memory_of_gpus_that_have_their_own() -> None:
    gpus = tuple(
        GpuInfo(i, f"GPU-{i}", "NVIDIA H100", memory_total_bytes=80 * GIB) for i in range(2)
    )
    samples = tuple(
        GpuSample(i, f"GPU-{i}", memory_used_bytes=used * GIB) for i, used in enumerate((1, 30))
    )
    report = replace(with_second(seen={"gpus": gpus, "samples": samples}), need_bytes=60 * GIB)
    assert (
        "spark-02 has 50.0 GiB of memory on a GPU free; the plan needs 60.0 GiB "
        "there" in fired(report)["memory"].text
    )
    assert "memory" not in fired(replace(report, need_bytes=40 * GIB))


def test_an_unknown_value_is_no_finding() -> None:
    """A driver that reports nothing, an interface without a speed, and a node without a clock are
    not compared."""
    report = with_second(
        network=interface(speed_mbit_s=None, mtu=None),
        clock_ahead_s=None,
        seen={
            "driver": DriverInfo(DriverStatus.NO_LIBRARY, source="nothing"),
            "gpus": (),
            "packages": (),
        },
        look={"memory": {}, "names": {}, "memlock_bytes": None},
        model=None,
    )
    assert fired(report) == {}


def test_a_command_to_paste_runs_nothing_else() -> None:
    """Every user of a node can name a segment of shared memory."""
    (found,) = fired(
        with_second(look={"segments": [{"name": "psm_1;touch $(id)", "bytes": 200 << 20}]})
    ).values()
    assert found.fix == "remove these segments on spark-02: rm '/dev/shm/psm_1;touch $(id)'"
