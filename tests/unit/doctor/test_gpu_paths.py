"""The paths between GPUs: each way in which a path can be broken is named, with its cause, and the
trial leaves no process behind."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_host import FakeHost
from support.procs import eventually

import workbench
from workbench.doctor import multi_gpu, multi_gpu_text
from workbench.doctor.multi_gpu import FILE, GpuPaths
from workbench.doctor.multi_gpu_checks import gpu_path_findings
from workbench.gpu import topology
from workbench.hosts.local import LocalHost
from workbench.model.findings import Level
from workbench.model.gpu import DriverInfo, DriverStatus, GpuInfo
from workbench.server.engine_probe import InstalledEngine
from workbench.session.hosts.gpu_paths import gpu_path_findings_before_start
from workbench.sim.simulated_host import SimulatedHost

PACKAGE = Path(workbench.__file__).parent
PROGRAM = (PACKAGE / "doctor" / "gpu_trial.py").read_text()
RIGHT = {"wrong_bytes": 0, "gb_s": 27.0}
BROKEN: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"hang": [[0, 1]]}, {"paths.hang"}),
    ({"corrupt": [[1, 0]]}, {"paths.wrong-bytes"}),
    ({"rate": 0.1}, {"paths.slow"}),
    ({"peer": False}, {"paths.off"}),
    ({"reduce": "hang with P2P"}, {"paths.nccl-hang"}),
    ({"reduce": "wrong"}, {"paths.nccl-wrong"}),
    ({"reduce": "unhandled system error"}, {"paths.nccl-error"}),
]


def seen(**of_gpus: Any) -> dict[str, Any]:
    """Return what the topology program prints of two GPUs whose driver offers direct copies."""
    gpus = [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "name": "NVIDIA A100-PCIE-40GB",
            "bus_id": f"0000:{index + 1:02x}:00.0",
            "slot": f"PCIE{index + 3}",
            "pcie_gen_max": 4,
            "pcie_width": 16,
            "acs": {"0000:00:01.0": []},
            **of_gpus,
        }
        for index in range(2)
    ]
    pair = {"a": 0, "b": 1, "ancestor": "one host bridge", "read": "ok", "write": "ok"}
    return {"driver": "580.95.05", "gpus": gpus, "pairs": [pair]}


def tried(
    *,
    there: dict[str, Any] = RIGHT,
    back: dict[str, Any] = RIGHT,
    pair: dict[str, Any] | None = None,
    reductions: Sequence[dict[str, Any]] = ({"wrong_bytes": 0, "mean_us": 55.0},),
    peer: bool = True,
) -> list[dict[str, Any]]:
    """Return what the trial prints of two GPUs."""
    copies = [{"source": 0, "target": 1, **there}, {"source": 1, "target": 0, **back}]
    devices = [{"name": "A100", "uuid": "1"}, {"name": "A100", "uuid": "0"}]  # torch's own order
    return [
        {"torch": "2.14.0", "nccl": "2.28.9", "devices": devices, "peer": [[True, peer]] * 2},
        {"case": "pair", "a": 0, "b": 1, **({"copies": copies} if pair is None else pair)},
        *(
            {"case": "all-reduce", "ranks": 2, "p2p": number == 0, **one}
            for number, one in enumerate(reductions)
        ),
    ]


def codes(paths: GpuPaths) -> set[str]:
    return {one.code for one in gpu_path_findings(paths) if one.code != "paths.numa"}


def text_of(paths: GpuPaths, code: str) -> tuple[str, str]:
    one = next(one for one in gpu_path_findings(paths) if one.code == code)
    return one.text, one.fix or ""


def test_a_host_on_which_all_is_right_has_no_finding() -> None:
    paths = multi_gpu.parse_gpu_paths(seen(), tried(), "vllm")
    assert not gpu_path_findings(paths)
    assert multi_gpu_text.copy_matrix_rows(paths) == [
        ("GPU 0", "·", "27.0"),
        ("GPU 1", "27.0", "·"),
    ]
    lines = dict(multi_gpu_text.labels_and_trial_texts(paths))
    assert lines["all-reduce"] == "1 MiB over 2 GPUs: 55 µs, every byte right"
    assert lines["GPU 0"] == "slot PCIE3, 0000:01:00.0, PCIe 4 x16 (31.5 GB/s), ACS no redirect"


def test_the_devices_of_torch_are_matched_by_uuid_and_not_by_their_place() -> None:
    paths = multi_gpu.parse_gpu_paths(
        seen(), tried(there={"wrong_bytes": 7, "first_wrong": 4096}), "vllm"
    )
    text, _ = text_of(paths, "paths.wrong-bytes")
    assert text.startswith("7 bytes of a copy from GPU 1 to GPU 0 arrived wrong, the first at 4096")
    assert multi_gpu_text.copy_matrix_rows(paths)[1] == ("GPU 1", "? WRONG", "·")


def test_a_slow_path_names_the_slot_of_the_slower_link() -> None:
    said = seen()
    said["gpus"][1]["pcie_width"] = 4
    paths = multi_gpu.parse_gpu_paths(said, tried(there={"wrong_bytes": 0, "gb_s": 2.7}), "vllm")
    text, _ = text_of(paths, "paths.slow")
    assert "from GPU 1 to GPU 0 2.7 GB/s arrive, nominal are 7.9" in text
    assert "PCIe 4 x4 (GPU 1, slot PCIE4, 0000:02:00.0)" in text
    # through the memory of the host, a path may have less than half
    assert codes(
        multi_gpu.parse_gpu_paths(seen(), tried(peer=False, there={"gb_s": 9.0}), "vllm")
    ) == {"paths.off"}


def test_a_gpu_that_gives_back_other_bytes_than_it_got_is_at_fault_itself() -> None:
    wrong = {"wrong_bytes": 5, "first_wrong": 0, "sender_wrong_bytes": 5}
    text, fix = text_of(
        multi_gpu.parse_gpu_paths(seen(), tried(back=wrong), "vllm"), "paths.wrong-bytes"
    )
    assert text.startswith("GPU 0 gave back other bytes") and "another slot" in fix


@pytest.mark.parametrize(
    ("of_gpus", "code", "fix"),
    [
        ({"iommu": "DMA-FQ"}, "paths.iommu", "iommu=pt"),
        ({"acs": {"0000:00:01.0": ["request redirect"]}}, "paths.acs", "switch ACS off"),
    ],
)
def test_a_hang_has_the_fix_for_what_the_host_says(
    of_gpus: dict[str, Any], code: str, fix: str
) -> None:
    paths = multi_gpu.parse_gpu_paths(seen(**of_gpus), tried(pair={"hang": True}), "vllm")
    found = {one.code: one for one in gpu_path_findings(paths)}
    assert fix in (found["paths.hang"].fix or "") and fix in (found[code].fix or "")
    assert found[code].level is Level.WARN and found["paths.hang"].source
    assert [change.option_text for change in found["paths.hang"].changes] == [
        "--env NCCL_P2P_DISABLE=1",
        "--set disable-custom-all-reduce=true",
    ]
    # without a broken path it is no more than a hint
    calm = multi_gpu.parse_gpu_paths(seen(**of_gpus), tried(), "vllm")
    assert [one.level for one in gpu_path_findings(calm)] == [Level.HINT]
    assert codes(multi_gpu.parse_gpu_paths(seen(iommu="identity"), tried(), "vllm")) == set()


def test_a_collective_that_works_without_p2p_says_so() -> None:
    outcomes = {"hang": True}, {"wrong_bytes": 0, "mean_us": 80.0}
    text, _ = text_of(
        multi_gpu.parse_gpu_paths(seen(), tried(reductions=outcomes), "v"), "paths.nccl-hang"
    )
    assert text.endswith("it hangs; without peer-to-peer copies (NCCL_P2P_DISABLE=1) it is right")
    text, fix = text_of(
        multi_gpu.parse_gpu_paths(seen(), tried(reductions=({"hang": True},) * 2), "v"),
        "paths.nccl-hang",
    )
    assert text.endswith("so it does without peer-to-peer copies") and "NCCL_DEBUG=INFO" in fix


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ([{"error": "torch cannot be imported: No module named 'torch'"}], "cannot be imported"),
        ([{"hang": True}], "torch did not find its GPUs within 20 s"),
        ([{"torch": "2.1", "devices": [], "error": "this torch is built without CUDA"}], "CUDA"),
        ([{"torch": "2.1", "devices": []}, {"error": "no more"}], "no more"),
        ([{"torch": "2.1", "devices": []}], "ended before its first case"),
    ],
)
def test_a_trial_that_could_not_begin_says_why(printed: list[dict[str, Any]], said: str) -> None:
    paths = multi_gpu.parse_gpu_paths(seen(), printed, "vllm")
    assert said in text_of(paths, "paths.untried")[0] and not multi_gpu_text.copy_matrix_rows(paths)


@pytest.mark.parametrize("seed", range(20))
def test_no_answer_of_a_program_raises(seed: int) -> None:
    """Whatever stands in place of a value, what remains is shown."""
    chance = random.Random(seed)
    strange: list[Any] = [None, -1, 1e400, "", [], {}, True, [[[]]], {"a": None}, "\x1b[31m", 2**70]

    def spoilt(value: Any) -> Any:
        if chance.random() < 0.1:
            return chance.choice(strange)
        if isinstance(value, dict):
            return {name: spoilt(one) for name, one in value.items()}
        return [spoilt(one) for one in value] if isinstance(value, list) else value

    for _ in range(50):
        first = spoilt(seen())
        printed = [one for one in map(spoilt, tried()) if isinstance(one, dict)]
        paths = multi_gpu.parse_gpu_paths(first if isinstance(first, dict) else {}, printed, "vllm")
        gpu_path_findings(paths)
        shown = [
            *multi_gpu_text.copy_matrix_rows(paths),
            *multi_gpu_text.labels_and_trial_texts(paths),
        ]
        assert "\x1b" not in json.dumps(shown)


# ---- what the kernel says


def test_the_kernels_files_give_slot_numa_node_iommu_and_acs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge, gpu = "0000:00:01.0", "0000:01:00.0"
    device = tmp_path / "devices" / "pci0000:00" / bridge / gpu
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (device / "iommu_group").mkdir()
    (device / "iommu_group" / "type").write_text("DMA-FQ\n")
    space = bytearray(4096)
    space[0x100:0x104] = (0x140 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")  # AER, then ACS
    space[0x140:0x148] = (0x000D).to_bytes(4, "little") + bytes([0, 0, 0b0000_0100, 0])
    (device.parent / "config").write_bytes(space)
    known = tmp_path / "bus" / "pci" / "devices"
    known.mkdir(parents=True)
    (known / gpu).symlink_to(device)
    (known / bridge).symlink_to(device.parent)
    slot = tmp_path / "bus" / "pci" / "slots" / "5"
    slot.mkdir(parents=True)
    (slot / "address").write_text("0000:01:00\n")
    monkeypatch.setattr(topology, "SYSFS", str(tmp_path))
    read = topology.read_pci_topology("00000000:01:00.0")
    assert read["bus_id"] == gpu and read["numa_node"] == 1 and read["iommu"] == "DMA-FQ"
    assert read["slot"] == "5" and read["acs"] == {bridge: ["request redirect"]}
    (device.parent / "config").write_bytes(space[:64])  # all that a user other than root gets
    assert topology.read_pci_topology("00000000:01:00.0")["acs"] == {bridge: None}
    assert "acs" not in topology.read_pci_topology("00000000:99:00.0")


# ---- the trial itself


def environment(tmp_path: Path, profile: str, fault: dict[str, Any]) -> dict[str, str]:
    (tmp_path / "faults.json").write_text(json.dumps({"copies": fault}))
    return {
        **os.environ,
        "WORKBENCH_SIM_PROFILE": profile,
        "WORKBENCH_SIM_STATE": str(tmp_path),
        "PYTHONPATH": str(PACKAGE / "sim" / "stand_in"),
    }


def left_behind(mark: Path) -> list[int]:
    """Return the living processes whose environment names the state directory `mark`."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if f"WORKBENCH_SIM_STATE={mark}\0".encode() in environ and int(entry) != os.getpid():
            found.append(int(entry))
    return found


def start(tmp_path: Path, profile: str, fault: dict[str, Any], case_s: float) -> Any:
    orders = {"case_s": case_s, "total_s": 60, "words": 1 << 20, "backend": "nccl"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(orders)],
        env=environment(tmp_path, profile, fault),
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def printed_by(process: Any) -> list[dict[str, Any]]:
    out = process.stdout.read()  # its stdin stays open
    process.communicate(timeout=30)
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.slow
@pytest.mark.ci_cases(3)
@pytest.mark.parametrize(("fault", "wanted"), BROKEN)
def test_each_broken_path_is_named_and_leaves_nothing(
    fault: dict[str, Any], wanted: set[str], tmp_path: Path
) -> None:
    """The real program and its real children, with a torch that copies nothing."""
    printed = printed_by(start(tmp_path, "four-pcie", fault, case_s=1.0))
    said = seen()
    said["gpus"] = [
        {**said["gpus"][0], "index": index, "uuid": f"GPU-{device['uuid']}"}
        for index, device in enumerate(printed[0]["devices"])
    ]
    found = codes(multi_gpu.parse_gpu_paths(said, printed, "vllm"))
    assert found == wanted
    assert not left_behind(tmp_path)


TORCH_PYTHON = os.environ.get("WORKBENCH_TORCH_PYTHON") or sys.executable
HAS_TORCH = sys.executable != TORCH_PYTHON or importlib.util.find_spec("torch") is not None


def real_trial(backend: str, case_s: float) -> Any:
    orders = {"case_s": case_s, "total_s": 60, "words": 1 << 20, "backend": backend}
    return subprocess.Popen(
        [TORCH_PYTHON, "-W", "ignore", "-c", PROGRAM, json.dumps(orders)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="no torch here: name a Python in WORKBENCH_TORCH_PYTHON")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_collective_of_the_real_torch_is_right_and_its_hang_is_named(stopped: bool) -> None:
    """Two real processes add up with gloo, in which the CPU stands for the GPUs. A rank that does not
    run is what a GPU that hangs looks like to the others."""
    trial = real_trial("gloo", case_s=5.0 if stopped else 60.0)
    if stopped:
        children = Path(f"/proc/{trial.pid}/task/{trial.pid}/children")
        eventually(children.read_text, "the first rank", 60)
        os.kill(int(children.read_text().split()[0]), signal.SIGSTOP)
    (said,) = printed_by(trial)
    assert said["case"] == "all-reduce" and said["ranks"] == 2
    if stopped:
        assert said["hang"] and said["limit_s"] == 5.0
    else:
        assert said["wrong_bytes"] == 0 and said["mean_us"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="no torch here: name a Python in WORKBENCH_TORCH_PYTHON")
def test_the_real_torch_has_gpus_or_says_why_not() -> None:
    said = printed_by(real_trial("nccl", case_s=60.0))[0]
    assert bool(said["devices"]) is ("error" not in said)


@pytest.mark.slow
def test_a_killed_trial_takes_its_hanging_children_along(tmp_path: Path) -> None:
    process = start(tmp_path, "four-pcie", {"hang": [[0, 1]]}, case_s=60.0)
    assert process.stdout.readline().startswith(b'{"torch"')
    eventually(lambda: len(left_behind(tmp_path)) == 2, "the child that hangs")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    eventually(lambda: not left_behind(tmp_path), "the end of the child")


@pytest.mark.slow
def test_a_trial_ends_with_its_stdin(tmp_path: Path) -> None:
    """A Workbench that is killed, or a link that is lost, closes it."""
    process = start(tmp_path, "four-pcie", {"hang": [[0, 1]]}, case_s=60.0)
    assert process.stdout.readline().startswith(b'{"torch"')
    eventually(lambda: len(left_behind(tmp_path)) == 2, "the child that hangs")
    process.stdin.close()
    process.wait(timeout=10)
    process.stdout.close()
    eventually(lambda: not left_behind(tmp_path), "the end of the child")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_trials_leave_nothing(tmp_path: Path) -> None:
    """Each with another broken path, and each names it."""
    for number in range(100):
        fault, wanted = BROKEN[number % len(BROKEN)]
        state = tmp_path / str(number)
        state.mkdir()
        began = time.monotonic()
        printed = printed_by(start(state, "four-pcie", fault, case_s=1.0))
        assert time.monotonic() - began < 20, (number, fault)
        said = seen()
        said["gpus"] = [
            {**said["gpus"][0], "index": index, "uuid": f"GPU-{device['uuid']}"}
            for index, device in enumerate(printed[0]["devices"])
        ]
        assert codes(multi_gpu.parse_gpu_paths(said, printed, "vllm")) == wanted, (number, fault)
        assert not left_behind(state)


KILLED = """
import asyncio, sys
from workbench.doctor import multi_gpu
from workbench.hosts.local import LocalHost
from workbench.server.engine_probe import InstalledEngine
from workbench.sim.simulated_host import SimulatedHost

async def work():
    host = SimulatedHost(LocalHost(), "rtx-5060ti-x2", sys.argv[1])
    await host.connect()
    print("begins", flush=True)
    await multi_gpu.run_gpu_copy_trial(host, InstalledEngine("vllm", "/usr/bin/vllm"), 60.0)

asyncio.run(work())
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_killed_workbenches_leave_no_trial(tmp_path: Path) -> None:
    """Each is killed at another moment of a trial that hangs for 60 s."""
    chance = random.Random(11)
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "faults.json").write_text('{"copies": {"hang": [[0, 1]]}}')
    for number in range(100):
        argv = [sys.executable, "-c", KILLED, str(tmp_path)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"begins\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0.0, 1.5))
        process.kill()
        process.communicate()
        began = time.monotonic()
        eventually(lambda: not left_behind(driver), f"the end of all, {number}", 10)
        assert time.monotonic() - began < 8, number


@pytest.mark.slow
def test_a_trial_on_a_host_ends_with_its_command(tmp_path: Path) -> None:
    """A trial that is cancelled, as ctrl+C does it, ends its children too."""

    async def work() -> None:
        host = SimulatedHost(LocalHost(), "rtx-5060ti-x2", str(tmp_path))
        await host.connect()
        driver = Path(host.driver_state)
        driver.mkdir(parents=True, exist_ok=True)
        (driver / "faults.json").write_text('{"copies": {"hang": [[0, 1]]}}')
        engine = InstalledEngine("vllm", "/usr/bin/vllm")
        trial = asyncio.create_task(multi_gpu.run_gpu_copy_trial(host, engine, 60.0))
        await asyncio.to_thread(eventually, lambda: len(left_behind(driver)) > 2, "the trial")
        trial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trial
        await asyncio.to_thread(eventually, lambda: not left_behind(driver), "the end of all")

    asyncio.run(work())


# ---- what a start says


def info(index: int) -> GpuInfo:
    return GpuInfo(index=index, uuid=f"GPU-{index}", name="NVIDIA A100-PCIE-40GB")


def test_a_start_on_several_gpus_offers_the_trial_and_tells_its_outcome() -> None:
    host, gpus = FakeHost(), [info(0), info(1)]
    driver = DriverInfo(DriverStatus.OK, driver_version="580.95.05", source="NVML")

    def said(used: Sequence[int] = (0, 1), driver: DriverInfo = driver) -> list[tuple[str, str]]:
        found = asyncio.run(gpu_path_findings_before_start(host, driver, gpus, used))
        return [(str(one.level), one.code) for one in found]

    assert said() == [("hint", "paths.untested")] and said([1]) == []
    asyncio.run(multi_gpu.store_trial_outcome(host, seen(), tried(), "vllm"))
    assert said() == []
    assert said(driver=replace(driver, driver_version="610.1")) == [("hint", "paths.untested")]
    asyncio.run(multi_gpu.store_trial_outcome(host, seen(), tried(pair={"hang": True}), "vllm"))
    assert said() == [("warn", "paths.hang")]
    for broken in (b"", b"[]", b"{}", b'{"tested_unix_s": 1, "seen": 3, "tried": [4]}', b"\xff"):
        host.files[f"/state/workbench/{FILE}"] = broken
        assert said() == [("hint", "paths.untested")]
