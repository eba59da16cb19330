"""What the agent, a real child process, tells of each state of the simulated NVML library."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_child import Child, Driver


def test_everything_of_a_gpu(agent: Callable[..., Child], driver: Driver) -> None:
    driver.set(
        "process 0 4242\t5368709120", f"process 0 {os.getpid()}\t1073741824", "uuid 1 GPU-second"
    )
    child = agent()
    said = child.driver("ok")
    assert (said["driver_version"], said["cuda_version"], said["nvml_version"]) == (
        "580.95.05",
        "13.0",
        "13.580.95.05",
    )
    infos = child.infos()
    assert [i["uuid"] for i in infos] == ["GPU-00000000-0000-4000-8000-000000000000", "GPU-second"]
    assert infos[0] == {
        "index": 0,
        "uuid": "GPU-00000000-0000-4000-8000-000000000000",
        "name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "unified_memory": False,
        "pci_bus_id": "00000000:01:00.0",
        "compute_capability": "12.0",
        "sm_max_mhz": 3090,
        "memory_max_mhz": 14001,
        "power_default_w": 600.0,
        "power_min_w": 150.0,
        "power_max_w": 600.0,
        "memory_total_bytes": 100 << 30,
        "memory_reserved_bytes": 1 << 30,
        "pcie_gen_max": 5,
        "pcie_width_max": 16,
        "memory_bus_bits": 512,
        "temperature_slowdown_c": 93.0,
        "virtualization": "none",
        "ecc": True,
    }
    gpu = child.sample()["gpus"][0]
    slow = gpu.pop("slow")
    names = {p.pop("pid"): p for p in slow.pop("processes")}
    assert names[4242]["memory_bytes"] == 5368709120
    assert slow.pop("absent") == {
        "pcie_replays_per_min": "needs a second reading",
        "xid": "the driver does not report errors as events",
    }
    assert slow == {
        "fan_pct": 40,
        "pcie_gen": 5,
        "pcie_width": 16,
        "persistence": True,
        "pcie_replay_count": 0,
        "temperature_margin_c": 26,
    }
    assert gpu.pop("absent") == {
        "pcie_tx_mb_s": "needs a second reading",
        "pcie_rx_mb_s": "needs a second reading",
    }
    assert gpu == {
        "index": 0,
        "uuid": "GPU-00000000-0000-4000-8000-000000000000",
        "sm_mhz": 2790,
        "memory_mhz": 13365,
        "pstate": 1,
        "power_w": 251.0,
        "power_average_w": 249.0,
        "power_limit_w": 600.0,
        "power_limit_enforced_w": 600.0,
        "gpu_util_pct": 97,
        "memory_util_pct": 55,
        "memory_used_bytes": 40 << 30,
        "memory_total_bytes": 100 << 30,
        "temperature_c": 61,
        "memory_temperature_c": 78,
        "event_reasons": ["SW power cap"],
        "energy_j": 5000.0,
    }


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (9, "no driver", "not loaded"),
        (18, "driver/library mismatch", "reboot or reload"),
        (28, "no gpu", "no GPU"),
        (4, "no permission", "/dev/nvidia"),
        (17, "no permission", "cgroup"),
        (999, "error", "revoked"),
        (8, "error", "NVML error 8"),
    ],
)
def test_a_driver_that_cannot_be_used_is_named_and_seen_when_it_comes(
    agent: Callable[..., Child], driver: Driver, code: int, status: str, words: str
) -> None:
    driver.set(f"nvmlInitWithFlags * !{code}")
    child = agent()
    said = child.driver(status)
    assert words in said["message"] and str(code) in said["message"]
    waiting = child.sample(lambda d: True)
    assert waiting["gpus"] == [] and waiting["host"]["memory_total_bytes"] > 0
    driver.clear()
    child.driver("ok")
    assert len(child.sample()["gpus"]) == 2
    driver.set("nvmlDeviceGetClockInfo * !9")  # and goes away again
    child.driver("no driver")


def test_no_library(
    agent: Callable[..., Child], driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORKBENCH_NVML_LIBRARY", str(tmp_path / "libnvidia-ml.so.1"))
    child = agent()
    assert "libnvidia-ml.so.1 was not found" in child.driver("no library")["message"]
    assert child.sample(lambda d: True)["gpus"] == []


def test_a_driver_without_gpus(agent: Callable[..., Child], driver: Driver) -> None:
    driver.set("gpus * 0")
    child = agent()
    child.driver("no gpu")
    driver.set("gpus * 1")
    assert len(child.infos()) == 1


def test_one_lost_gpu_leaves_the_other_live_and_comes_back_with_a_fresh_handle(
    agent: Callable[..., Child], driver: Driver
) -> None:
    child = agent()
    child.sample(lambda d: len(d["gpus"]) == 2 and "sm_mhz" in d["gpus"][1])
    driver.set("lost 1 15")
    lost = child.sample(lambda d: d["gpus"][1].get("state") == "lost")
    assert "XID 79" in lost["gpus"][1]["message"] and "sm_mhz" not in lost["gpus"][1]
    assert lost["gpus"][1]["uuid"].startswith("GPU-00000001") and lost["gpus"][0]["sm_mhz"] == 2790
    driver.set("lost 1 0", "epoch 1 1")  # back, but every handle from before is dead
    back = child.sample(lambda d: "sm_mhz" in d["gpus"][1])
    assert back["gpus"][1]["sm_mhz"] == 2790 and "slow" in back["gpus"][1]


def test_a_gpu_lost_at_the_start_has_a_row(agent: Callable[..., Child], driver: Driver) -> None:
    driver.set("lost 0 15")
    child = agent()
    first = child.sample()
    assert [g.get("state") for g in first["gpus"]] == ["lost", None]
    driver.set("lost 0 0")
    assert child.sample(lambda d: "sm_mhz" in d["gpus"][0])["gpus"][0]["uuid"].startswith(
        "GPU-00000000"
    )


def test_all_lost_then_a_reloaded_driver(agent: Callable[..., Child], driver: Driver) -> None:
    child = agent()
    child.sample(lambda d: "sm_mhz" in d["gpus"][0])
    driver.set("lost * 15")
    child.sample(lambda d: {g.get("state") for g in d["gpus"]} == {"lost"})
    driver.clear([*Driver.FIELDS, "epoch * 2", "gpus * 1"])
    assert (
        len(child.sample(lambda d: len(d["gpus"]) == 1 and "sm_mhz" in d["gpus"][0])["gpus"]) == 1
    )


@pytest.mark.parametrize(
    ("code", "state"), [(4, "no permission"), (17, "no permission"), (16, "error"), (999, "error")]
)
def test_a_gpu_that_may_not_be_opened(
    agent: Callable[..., Child], driver: Driver, code: int, state: str
) -> None:
    driver.set(f"handle 1 !{code}")
    gpus = agent().sample()["gpus"]
    assert gpus[1]["state"] == state and gpus[1]["message"] and gpus[0]["sm_mhz"] == 2790


def test_a_gpu_whose_every_reading_fails_is_in_error(
    agent: Callable[..., Child], driver: Driver
) -> None:
    names = (
        "ClockInfo",
        "PerformanceState",
        "PowerManagementLimit",
        "EnforcedPowerLimit",
        "FieldValues",
        "PowerUsage",
    )
    names += (
        "UtilizationRates",
        "MemoryInfo_v2",
        "MemoryInfo",
        "TemperatureV",
        "Temperature",
        "TotalEnergyConsumption",
    )
    driver.set(*(f"nvmlDeviceGet{name} 1 !999" for name in names))
    gpus = agent().sample()["gpus"]
    assert gpus[1]["state"] == "error" and "999" in gpus[1]["message"] and gpus[0]["sm_mhz"] == 2790


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "not supported"), (4, "no permission"), (26, "deprecated"), (999, "unknown error")],
)
def test_what_is_not_given_is_absent_with_its_reason_and_never_zero(
    agent: Callable[..., Child], driver: Driver, code: int, words: str
) -> None:
    for name in (
        "PowerManagementLimit",
        "UtilizationRates",
        "CurrentClocksEventReasons",
        "FanSpeed",
        "PersistenceMode",
    ):
        driver.set(f"nvmlDeviceGet{name} 0 !{code}")
    driver.set(
        f"nvmlDeviceGetCurrentClocksThrottleReasons 0 !{code}",
        f"field.186 0 !{code}",
        f"field.83 0 !{code}",
    )
    driver.set(
        f"nvmlDeviceGetPowerUsage 0 !{code}", f"nvmlDeviceGetTotalEnergyConsumption 0 !{code}"
    )
    driver.set(
        f"nvmlDeviceGetComputeRunningProcesses_v3 0 !{code}",
        f"nvmlDeviceGetComputeRunningProcesses_v2 0 !{code}",
    )
    gpu = agent().sample()["gpus"][0]
    merged = {**gpu["absent"], **gpu["slow"]["absent"]}
    for field in (
        "power_limit_w",
        "gpu_util_pct",
        "memory_util_pct",
        "event_reasons",
        "power_w",
        "energy_j",
        "fan_pct",
        "persistence",
        "processes",
    ):
        assert merged[field] == words
        assert field not in gpu and field not in gpu["slow"]
    assert gpu["sm_mhz"] == 2790


def test_values_that_mean_not_available(agent: Callable[..., Child], driver: Driver) -> None:
    driver.set("clock.sm 0 4294967295", "nvmlDeviceGetPerformanceState 0 32")
    gpu = agent().sample()["gpus"][0]
    assert (
        gpu["absent"]["sm_mhz"] == "not available"
        and "pstate" in gpu["absent"]
        and "pstate" not in gpu
    )


def test_an_old_driver(
    agent: Callable[..., Child], driver: Driver, old_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No v2 memory, TemperatureV, event reasons, field values or InitWithFlags: the older functions
    answer."""
    monkeypatch.setenv("WORKBENCH_NVML_LIBRARY", str(old_library))
    driver.set("process 0 4242\t1073741824", "reasons * 8")
    child = agent()
    infos = child.infos()
    gpu = child.sample()["gpus"][0]
    assert gpu["memory_used_bytes"] == (40 << 30) + (1 << 30)  # v1: the reserved part is in it
    assert "used bytes" in infos[0]["absent"]["memory_reserved_bytes"]
    assert (gpu["temperature_c"], gpu["power_w"], gpu["energy_j"]) == (61, 250.0, 1.0)
    assert gpu["event_reasons"] == ["HW slowdown"] and gpu["slow"]["processes"][0]["pid"] == 4242
    assert gpu["absent"]["power_average_w"] == "not known to this driver"


def test_gb10_memory_is_the_hosts_and_says_so(agent: Callable[..., Child], driver: Driver) -> None:
    driver.set(
        "gpus * 1",
        "name 0 NVIDIA GB10",
        "nvmlDeviceGetMemoryInfo 0 !3",
        "nvmlDeviceGetMemoryInfo_v2 0 !3",
    )
    driver.set("process 0 11\t3000000000", "process 0 12\t2000000000", "graphics 0 12\t2000000000")
    child = agent()
    info = child.infos()[0]
    reading = child.sample()
    gpu = reading["gpus"][0]
    assert info["unified_memory"] is True
    assert (
        info["memory_total_bytes"]
        == gpu["memory_total_bytes"]
        == reading["host"]["memory_total_bytes"]
    )
    assert gpu["memory_used_bytes"] == 5000000000  # a process in both lists counts once
    driver.set(
        "nvmlDeviceGetComputeRunningProcesses_v3 0 !3",
        "nvmlDeviceGetComputeRunningProcesses_v2 0 !3",
    )
    unknown = child.sample(lambda d: "memory_used_bytes" not in d["gpus"][0])
    assert "unified" in unknown["gpus"][0]["absent"]["memory_used_bytes"]


def test_gb10_that_claims_the_hosts_memory_as_its_own(
    agent: Callable[..., Child], driver: Driver
) -> None:
    driver.set("gpus * 1", "name 0 NVIDIA GB10")  # memory calls succeed with nonsense
    assert agent().sample()["gpus"][0]["memory_used_bytes"] == 0  # no process: nothing is used


def test_a_discrete_card_whose_memory_fails_is_not_unified(
    agent: Callable[..., Child], driver: Driver
) -> None:
    driver.set("nvmlDeviceGetMemoryInfo 0 !3", "nvmlDeviceGetMemoryInfo_v2 0 !3")
    child = agent()
    assert child.infos()[0]["unified_memory"] is False
    gpu = child.sample()["gpus"][0]
    assert gpu["absent"]["memory_used_bytes"] == "not supported" and "memory_used_bytes" not in gpu


def test_pcie_traffic_from_the_byte_counters(agent: Callable[..., Child], driver: Driver) -> None:
    child = agent(interval_s=0.2)
    child.sample()
    driver.set("field.197 * 50000000", "field.198 * 90000000")
    moved = child.sample(lambda d: d["gpus"][0].get("pcie_tx_mb_s"))["gpus"][0]
    assert moved["pcie_rx_mb_s"] / moved["pcie_tx_mb_s"] == pytest.approx(1.8, rel=1e-4)
    assert 25 < moved["pcie_tx_mb_s"] < 300  # 50 MB in one interval of 0.2 s, late at most by a few
    driver.set("field.197 * 1000")
    reset = child.sample(lambda d: "pcie_tx_mb_s" not in d["gpus"][0])["gpus"][0]
    assert "reset" in reset["absent"]["pcie_tx_mb_s"]


def test_a_32_bit_byte_counter_that_may_wrap_unseen_gives_no_number(
    agent: Callable[..., Child], driver: Driver
) -> None:
    driver.set("type.197 * 1", "type.198 * 1", "nvmlDeviceGetCurrPcieLinkGeneration * 5")
    child = agent(interval_s=0.5)
    gpu = child.sample(
        lambda d: "second" not in d["gpus"][0]["absent"].get("pcie_tx_mb_s", "second")
    )["gpus"][0]
    assert "wrap" in gpu["absent"]["pcie_tx_mb_s"]


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0, []),
        (0x1, ["GPU idle"]),
        (0x64, ["SW power cap", "SW thermal slowdown", "HW thermal slowdown"]),
        (0x1FF, None),
        (0x1004, ["SW power cap", "unknown (0x1000)"]),
    ],
)
def test_event_reasons_by_name(
    agent: Callable[..., Child], driver: Driver, mask: int, names: list[str] | None
) -> None:
    driver.set(f"reasons * {mask}")
    found = agent().sample()["gpus"][0]["event_reasons"]
    assert len(found) == 9 if names is None else found == names


@pytest.mark.parametrize(
    ("mode", "name"),
    list(enumerate(["none", "passthrough", "vgpu", "host vgpu", "host vsga", "mode 5"])),
)
def test_virtualization(agent: Callable[..., Child], driver: Driver, mode: int, name: str) -> None:
    driver.set(f"virtualization * {mode}")
    assert agent().infos()[0]["virtualization"] == name


def test_slowdown_temperature_from_the_margin_where_thresholds_are_relative(
    agent: Callable[..., Child], driver: Driver
) -> None:
    driver.set(
        "field.194 * -2", "type.194 * 5", "margin * 26", "nvmlDeviceGetTemperatureThreshold * !3"
    )
    assert agent().infos()[0]["temperature_slowdown_c"] == 61 + 26 + 2


def test_more_processes_than_there_was_room_for(
    agent: Callable[..., Child], driver: Driver
) -> None:
    driver.set(*(f"process 0 {1000 + n}\t1048576" for n in range(50)))
    assert len(agent().sample()["gpus"][0]["slow"]["processes"]) == 50


def test_a_reading_that_takes_long_names_the_slowest_call(
    agent: Callable[..., Child], driver: Driver
) -> None:
    child = agent(hung_s=60.0)
    child.sample()
    driver.set("hang 0 nvmlDeviceGetPowerManagementLimit")
    time.sleep(1.2)  # longer than a quick reading
    driver.clear()
    slow = child.sample(lambda d: "took_s" in d)
    assert slow["took_s"] > 1.0
    assert slow["slowest"].startswith("nvmlDeviceGetPowerManagementLimit ")


def test_a_gpu_that_was_removed_is_named_with_the_cause_and_the_new_numbers(
    agent: Callable[..., Child], driver: Driver
) -> None:
    child = agent()
    assert len(child.sample()["gpus"]) == 2
    driver.set("gpus * 1")
    said = child.wait_for(lambda d: "gone since the start" in str(d.get("driver")))["driver"]
    assert said["status"] == "ok" and "dmesg" in said["message"]
    assert "GPU1 (GPU-00000001-0000-4000-8000-000000000000)" in said["message"]
    assert [gpu["index"] for gpu in child.sample()["gpus"]] == [0]
    driver.set("gpus * 2")
    back = child.wait_for(lambda d: "driver" in d)["driver"]
    assert "message" not in back


def test_the_rails_and_prochot_of_a_spark(
    agent: Callable[..., Child], driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The files of the kernel module spark_hwmon, which only a DGX Spark can have."""
    chip = tmp_path / "class" / "hwmon" / "hwmon3"
    chip.mkdir(parents=True)
    other = tmp_path / "class" / "hwmon" / "hwmon0"
    other.mkdir()
    (other / "name").write_text("nvme\n")
    files = {"name": "spbm", "prochot": "1", "pl_level": "2", "power1_label": "sys_total"}
    files |= {"power1_input": "25300000", "power2_label": "dc_input", "power2_input": "96250000"}
    files |= {"power3_label": "gpu", "power3_input": "-1"}
    for name, text in files.items():
        (chip / name).write_text(f"{text}\n")
    monkeypatch.setenv("WORKBENCH_SIM_SYSFS", str(tmp_path))
    host = agent().sample()["host"]
    assert host["rails_w"] == {"sys_total": 25.3, "dc_input": 96.25}
    assert (
        host["prochot"] is True
        and host["power_level"] == 2
        and "io_pressure_pct" in host | host["absent"]
    )
    monkeypatch.setenv("WORKBENCH_SIM_SYSFS", str(tmp_path / "none"))
    host = agent().sample()["host"]
    assert "spark_hwmon" in host["absent"]["prochot"] and "rails_w" not in host


# Which of the readings the drivers of these cards refuse, as reports of owners and the header of NVML
# say (3: not supported, 13: not known to this driver). The numbers are examples, not measured.
RECORDED = {
    "GB10": (
        {"nvmlDeviceGetPcieReplayCounter": "!3", "nvmlDeviceGetFanSpeed": "!3"},
        {"pcie_replay_count": "not supported", "fan_pct": "not supported"},
    ),
    "RTX PRO 6000": ({"nvmlDeviceGetPcieReplayCounter": "12", "margin": "26"}, {}),
    "RTX 5060 Ti": ({"nvmlDeviceGetPcieReplayCounter": "0"}, {}),
    "A100 with MIG, before margins": (
        {"nvmlDeviceGetMarginTemperature": "!13", "nvmlDeviceGetFanSpeed": "!3"},
        {"temperature_margin_c": "not known to this driver", "fan_pct": "not supported"},
    ),
}


@pytest.mark.parametrize("card", RECORDED)
def test_a_reading_that_a_card_lacks_is_absent_with_the_reason(
    agent: Callable[..., Child], driver: Driver, card: str
) -> None:
    answers, absent = RECORDED[card]
    driver.set(*(f"{name} * {answer}" for name, answer in answers.items()))
    slow = agent().sample()["gpus"][0]["slow"]
    said = slow.get("absent", {})
    assert {name: said[name] for name in absent} == absent
    for name in ("pcie_replay_count", "temperature_margin_c"):
        assert (name in slow) != (name in said)
