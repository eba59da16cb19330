"""pynvml with the simulated library: return codes, unsupported functions of boards, faults."""

from __future__ import annotations

import os
import runpy
import threading
from collections.abc import Callable, Iterator

import pynvml
import pytest
from sim_process import wait_for

from workbench.sim import driver

WORK = {"busy": 1.0, "memory": 0.97, "compute": 0.03, "memory_bytes": 70 << 30}


@pytest.fixture
def nvml(sim_env, monkeypatch) -> Iterator[Callable[[str], list]]:
    """Return nvml(profile), which gives the handles of pynvml on that host. The agent, too, loads
    driver.py by path."""

    def load(profile: str) -> list:
        for name, value in sim_env(profile).items():
            if name.startswith("WORKBENCH_SIM"):
                monkeypatch.setenv(name, value)
        monkeypatch.setattr(pynvml, "nvmlLib", runpy.run_path(driver.__file__)["library"]())
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    return load


def refused(code: int):
    return pytest.raises(pynvml.NVMLError, check=lambda error: error.value == code)


def fields(handle, *ids: int) -> dict[int, tuple[int, int]]:
    return {
        v.fieldId: (v.nvmlReturn, v.value.uiVal)
        for v in pynvml.nvmlDeviceGetFieldValues(handle, list(ids))
    }


def test_readings_of_a_healthy_card(nvml, sim_state):
    (gpu,) = nvml("rtx-pro-6000")
    sim_state("rtx-pro-6000").publish_load(os.getpid(), {0: WORK})
    assert pynvml.nvmlDeviceGetName(gpu) == "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    assert (
        pynvml.nvmlSystemGetDriverVersion() == "595.45.04"
        and pynvml.nvmlSystemGetCudaDriverVersion() == 13010
    )
    assert pynvml.nvmlDeviceGetCudaComputeCapability(gpu) == (12, 0)
    uuid = pynvml.nvmlDeviceGetUUID(gpu)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
    assert pynvml.nvmlDeviceGetPciInfo(gpu).busId == "00000000:01:00.0"
    assert pynvml.nvmlDeviceGetHandleByPciBusId("00000000:01:00.0")
    clocks = [pynvml.nvmlDeviceGetClockInfo(gpu, kind) for kind in range(4)]
    assert clocks[:3] == [2790, 2790, 13365]
    assert [pynvml.nvmlDeviceGetMaxClockInfo(gpu, kind) for kind in (1, 2)] == [3090, 14001]
    assert pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu >= 97
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    assert memory.total >> 20 == 97887 and memory.used == 70 << 30 and memory.reserved > 0
    assert memory.free == memory.total - memory.used - memory.reserved
    old = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    assert old.used == memory.used + memory.reserved
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert (process.pid, process.usedGpuMemory) == (os.getpid(), 70 << 30)
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu) == []
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu) == [150000, 600000]
    assert 480_000 < pynvml.nvmlDeviceGetPowerUsage(gpu) < 525_000
    got = fields(gpu, 186, 187, 188, 189, 190, 82)
    assert [got[i] for i in (187, 188, 189, 190)] == [
        (0, 150000),
        (0, 600000),
        (0, 600000),
        (0, 600000),
    ]
    assert got[186][0] == 0 and got[82][0] == 3
    assert pynvml.nvmlDeviceGetTemperatureV(gpu, 0) == pynvml.nvmlDeviceGetTemperature(gpu, 0) > 25
    assert pynvml.nvmlDeviceGetSupportedMemoryClocks(gpu)[:2] == [14001, 13365]
    assert pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, 13365)[0] == 3090
    assert pynvml.nvmlDeviceGetVirtualizationMode(gpu) == 0
    with refused(pynvml.NVML_ERROR_DEPRECATED):
        pynvml.nvmlDeviceGetApplicationsClock(gpu, 0)


def test_spark_lacks_memory_and_limits_but_locks_its_clock(nvml):
    (gpu,) = nvml("gb10")
    for ask in (
        lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu),
        lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2),
        lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        lambda: pynvml.nvmlDeviceGetPowerManagementLimit(gpu),
        lambda: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu),
        lambda: pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 100_000),
        lambda: pynvml.nvmlDeviceSetMemoryLockedClocks(gpu, 100, 200),
        lambda: pynvml.nvmlDeviceGetSupportedMemoryClocks(gpu),
        lambda: pynvml.nvmlDeviceGetFanSpeed(gpu),
    ):
        with refused(pynvml.NVML_ERROR_NOT_SUPPORTED):
            ask()
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) > 3000
    assert fields(gpu, 186, 190)[190][0] == pynvml.NVML_ERROR_NOT_SUPPORTED
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 0, 2100)
    pynvml.nvmlDeviceResetGpuLockedClocks(gpu)


def test_a_spark_shares_the_hosts_memory(nvml, sim_state):
    nvml("gb10")
    read = runpy.run_path(driver.__file__)["host_file"]
    assert "MemTotal:       127600748 kB" in read("/proc/meminfo")
    before = int(read("/proc/meminfo").split()[-2])
    sim_state("gb10").publish_load(os.getpid(), {0: WORK})
    wait_for(
        lambda: before - int(read("/proc/meminfo").split()[-2]) == 70 << 20,
        "the load in MemAvailable",
    )
    assert read("/etc/hostname") is None


def test_setters_change_the_readings(nvml, sim_state):
    (gpu,) = nvml("rtx-pro-6000")
    sim_state("rtx-pro-6000").publish_load(os.getpid(), {0: WORK})
    pynvml.nvmlDeviceSetPersistenceMode(gpu, 1)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 400_000)
    assert pynvml.nvmlDeviceGetPersistenceMode(gpu) == 1
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == 400_000
    assert (
        pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == pynvml.nvmlClocksEventReasonSwPowerCap
    )
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) < 405_000
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 1500, 1500)
    assert pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) == 1500
    pynvml.nvmlDeviceResetGpuLockedClocks(gpu)
    assert pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) > 2000
    for low, high in ((2000, 1000), (pynvml.NVML_CLOCK_LIMIT_ID_TDP, 2000)):
        with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
            pynvml.nvmlDeviceSetGpuLockedClocks(gpu, low, high)
    with refused(pynvml.NVML_ERROR_INVALID_ARGUMENT):
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 601_000)


def test_locks_of_a_passed_through_card_succeed_and_do_nothing(nvml, sim_state):
    (gpu,) = nvml("rtx-pro-6000-passthrough")
    sim_state("rtx-pro-6000-passthrough").publish_load(os.getpid(), {0: WORK})
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 3000, 3090)
    pynvml.nvmlDeviceSetMemoryLockedClocks(gpu, 14001, 14001)
    assert pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) == 2790
    assert pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM) == 13365
    pynvml.nvmlDeviceResetGpuLockedClocks(gpu)
    pynvml.nvmlDeviceResetMemoryLockedClocks(gpu)
    assert (
        pynvml.nvmlDeviceGetVirtualizationMode(gpu)
        == pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
    )


def test_one_lost_gpu_leaves_the_others(nvml, sim_state):
    gpus = nvml("four-pcie")
    sim_state("four-pcie").set_faults(lost=[1])
    ask = pynvml.nvmlDeviceGetPowerUsage

    def lost() -> bool:
        try:
            return not ask(gpus[1])
        except pynvml.NVMLError as error:
            return error.value == pynvml.NVML_ERROR_GPU_IS_LOST

    wait_for(lost, "GPU 1 to be lost")
    assert all(ask(gpus[i]) > 30_000 for i in (0, 2, 3))
    with refused(pynvml.NVML_ERROR_GPU_IS_LOST):
        pynvml.nvmlDeviceGetHandleByIndex(1)


def test_errors_of_a_gpu_are_read_as_the_agent_reads_them(nvml, sim_state):
    from workbench.gpu.telemetry.nvml_library import Nvml
    from workbench.gpu.telemetry.readings import GpuReader

    nvml("four-pcie")
    library = Nvml()
    readers = [GpuReader(library, index, None) for index in range(2)]
    for reader in readers:
        reader.get_handle()
        reader.collect_values(reader.read_static_properties)
    sim_state("four-pcie").set_faults(xid={"1": 79})
    pynvml.nvmlLib._state._faults_moment = 0.0
    assert [reader.collect_values(reader.read_xid) for reader in readers] == [
        {"xid": 0},
        {"xid": 79},
    ]
    readers[0].collect_values(readers[0].read_pcie_replays)
    sim_state("four-pcie").set_faults(replays={"0": 5}, xid=None)
    pynvml.nvmlLib._state._faults_moment = 0.0
    assert readers[0].collect_values(readers[0].read_pcie_replays)["pcie_replays_per_min"] > 0
    assert readers[1].collect_values(readers[1].read_xid) == {"xid": 0}


@pytest.mark.parametrize("code", [4, 9, 17, 18, 28, 999])
def test_a_driver_that_does_not_start(nvml, sim_state, code):
    nvml("gb10")
    sim_state("gb10").set_faults(init=code)
    pynvml.nvmlLib._state._faults_moment = 0.0
    with refused(code):
        pynvml.nvmlInit()


def test_setters_without_permission_and_without_effect(nvml, sim_state):
    (gpu,) = nvml("rtx-pro-6000")
    faults = sim_state("rtx-pro-6000")
    faults.set_faults(no_permission=True)
    pynvml.nvmlLib._state._faults_moment = 0.0
    with refused(pynvml.NVML_ERROR_NO_PERMISSION):
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 400_000)
    faults.set_faults(no_permission=None, ignored=["limit_w"])
    pynvml.nvmlLib._state._faults_moment = 0.0
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 400_000)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu) == 600_000


def test_functions_that_are_missing_fail_or_hang(nvml, sim_state):
    (gpu,) = nvml("rtx-pro-6000")
    with refused(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        pynvml.nvmlDeviceGetBridgeChipInfo(gpu)
    sim_state("rtx-pro-6000").set_faults(
        missing=["nvmlDeviceGetTemperatureV"],
        codes={"nvmlDeviceGetFanSpeed": 999},
        hang="nvmlDeviceGetPowerUsage",
    )
    pynvml.nvmlLib._state._faults_moment = 0.0
    with refused(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
        pynvml.nvmlDeviceGetTemperatureV(gpu, 0)
    with refused(pynvml.NVML_ERROR_UNKNOWN):
        pynvml.nvmlDeviceGetFanSpeed(gpu)
    caller = threading.Thread(target=pynvml.nvmlDeviceGetPowerUsage, args=(gpu,), daemon=True)
    caller.start()
    caller.join(0.3)
    assert caller.is_alive()
    assert pynvml.nvmlDeviceGetTemperature(gpu, 0) > 20
