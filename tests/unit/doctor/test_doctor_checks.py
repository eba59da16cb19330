"""Each check of `doctor`: it is silent on a healthy host, and fires on the fault that it looks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import workbench.doctor
from workbench.doctor import facts_text
from workbench.doctor.checks import all_findings
from workbench.doctor.engine_packages import EnginePackages
from workbench.doctor.examination import GPUS_S, READING_S, Examination
from workbench.doctor.host_values import UNLIMITED_FILES, HostValues, IdleState, Worker
from workbench.doctor.table import load_doctor_table
from workbench.gpu.telemetry.source import HUNG_CALL_S
from workbench.hosts.base import HostFacts
from workbench.model.findings import Finding, Level
from workbench.model.gpu import (
    DriverInfo,
    DriverStatus,
    GpuInfo,
    GpuProcess,
    GpuSample,
    GpuState,
    HostSample,
)
from workbench.server.engine_probe import InstalledEngine

GIB = 1 << 30
STACK = EnginePackages(
    "vllm",
    "/opt/vllm/bin/python3",
    "3.12.11",
    {
        "vllm": "0.33.0",
        "torch": "2.14.0+cu130",
        "flashinfer-python": "0.7.2.post1",
        "flashinfer-jit-cache": "0.7.2.post1",
        "nvidia-nccl-cu13": "2.28.9",
    },
    {"vllm": {"torch": ("2.14.0",)}, "torch": {"nvidia-nccl-cu13": ("2.28.9",)}},
    "13.0",
)
HEALTHY = Examination(
    HostFacts(
        "box",
        "local",
        hostname="box",
        python3="/usr/bin/python3",
        python3_version="3.12.3",
        virtualization="none",
        memory_total_bytes=128 * GIB,
    ),
    HostValues(
        files_soft=1024,
        files_hard=1048576,
        memlock_kib=UNLIMITED_FILES,
        memory_available_kib=100 << 20,
        shared_memory_free_kib=60 << 20,
        shared_memory_kib=64 << 20,
        disk_free_kib=500 << 20,
        hub="/data/hub",
        idle_states=(IdleState("C1", 2, True), IdleState("C6", 133, False)),
        nvcc="/usr/local/cuda/bin/nvcc",
        nvcc_version="13.0",
        ports={},
        workers=(Worker(70, 60, "vllm", "VLLM::EngineCore"),),
        own=frozenset({80}),
    ),
    DriverInfo(driver_version="595.45.04", cuda_version="13.1"),
    (
        GpuInfo(
            0,
            "GPU-a",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            compute_capability="12.0",
            pcie_gen_max=5,
            pcie_width_max=16,
            virtualization="none",
        ),
    ),
    (
        GpuSample(
            0,
            "GPU-a",
            pstate=1,
            pcie_gen=5,
            pcie_width=16,
            persistence=True,
            processes=(GpuProcess(80, 40 * GIB, "VLLM::Worker"), GpuProcess(81, 4 << 20, "Xorg")),
        ),
    ),
    HostSample(cpu_governor="performance"),
    (InstalledEngine("vllm", "/opt/vllm/bin/vllm", "0.33.0", "/opt/vllm/bin/python3"),),
    (STACK,),
)
Change = Callable[[Examination], Examination]


def values(**changes: Any) -> Change:
    return lambda seen: replace(seen, values=replace(seen.values, **changes))


def on_host(**changes: Any) -> Change:
    return lambda seen: replace(seen, host_sample=replace(seen.host_sample, **changes))


def facts(**changes: Any) -> Change:
    return lambda seen: replace(seen, facts=replace(seen.facts, **changes))


def gpu(**changes: Any) -> Change:
    return lambda seen: replace(seen, gpus=(replace(seen.gpus[0], **changes),))


def sample(**changes: Any) -> Change:
    return lambda seen: replace(seen, samples=(replace(seen.samples[0], **changes),))


def driver(**changes: Any) -> Change:
    return lambda seen: replace(seen, driver=replace(seen.driver, **changes))


def stack(versions: dict[str, str] | None = None, **changes: Any) -> Change:
    def changed(seen: Examination) -> Examination:
        own = {name: text for name, text in {**STACK.versions, **(versions or {})}.items() if text}
        return replace(seen, packages=(replace(STACK, versions=own, **changes),))

    return changed


def both(*changes: Change) -> Change:
    def changed(seen: Examination) -> Examination:
        for change in changes:
            seen = change(seen)
        return seen

    return changed


NO_GPU = both(
    lambda seen: replace(seen, gpus=(), samples=()),
    driver(status=DriverStatus.NO_LIBRARY, message="none"),
)
FAULTS: tuple[tuple[str, Level, Change], ...] = (
    ("host.python3", Level.WARN, facts(python3=None)),
    ("host.python3", Level.ERROR, facts(python3_version=None)),
    (
        "engine.none",
        Level.WARN,
        lambda seen: replace(seen, engines=(InstalledEngine("vllm", None, problem="?"),)),
    ),
    (
        "engine.elsewhere",
        Level.HINT,
        lambda s: replace(s, engines=(replace(s.engines[0], elsewhere=("/x/vllm",)),)),
    ),
    (
        "host.governor",
        Level.HINT,
        lambda seen: replace(seen, host_sample=HostSample(cpu_governor="powersave")),
    ),
    ("host.idle-states", Level.HINT, values(idle_states=(IdleState("C6", 133, True),))),
    ("host.open-files", Level.WARN, values(files_hard=4096)),
    ("host.locked-memory", Level.WARN, values(memlock_kib=64, infiniband=True)),
    ("host.memory", Level.WARN, values(memory_available_kib=5 << 20)),
    (
        "host.shared-memory",
        Level.WARN,
        values(shared_memory_free_kib=60 << 10, shared_memory_kib=64 << 10),
    ),
    ("host.disk", Level.WARN, values(disk_free_kib=4 << 20)),
    ("host.port", Level.HINT, values(ports={8000: 4711})),
    ("process.orphan", Level.WARN, values(workers=(Worker(70, 1, "systemd", "VLLM::EngineCore"),))),
    ("env.file-semantics", Level.WARN, values(environment_file=("PATH",))),
    ("driver.no-driver", Level.WARN, driver(status=DriverStatus.NO_DRIVER, message="not loaded")),
    ("driver.nouveau", Level.ERROR, both(NO_GPU, values(nouveau=True))),
    ("driver.old", Level.ERROR, driver(driver_version="560.35.03")),
    (
        "driver.known",
        Level.HINT,
        both(driver(driver_version="610.12"), gpu(name="NVIDIA GeForce RTX 5090")),
    ),
    ("gpu.lost", Level.ERROR, sample(state=GpuState.LOST, message="fell off the bus")),
    (
        "host.passthrough",
        Level.INFO,
        both(gpu(virtualization="passthrough"), facts(virtualization="vmware")),
    ),
    ("host.vgpu", Level.HINT, gpu(virtualization="vgpu")),
    ("host.lxc", Level.INFO, facts(container="lxc")),
    ("host.container", Level.INFO, facts(container="docker")),
    ("host.main-process", Level.INFO, facts(kind="container", extra={"init": "sleep infinity"})),
    ("host.programs", Level.ERROR, facts(extra={"missing_programs": "setsid stat"})),
    ("host.programs", Level.WARN, facts(extra={"missing_programs": "du"})),
    ("gpu.mig", Level.INFO, gpu(mig=True)),
    ("gpu.persistence", Level.HINT, sample(persistence=False)),
    ("gpu.link-width", Level.WARN, sample(pcie_width=4)),
    ("gpu.link-slot", Level.HINT, both(gpu(pcie_gen_max=4), sample(pcie_gen=4))),
    ("gpu.link-speed", Level.WARN, sample(pcie_gen=1)),
    ("gpu.held", Level.HINT, sample(processes=(GpuProcess(99, 17 * GIB, "python3"),))),
    ("stack.unread", Level.WARN, stack(problem="it hangs")),
    ("stack.new-gpu", Level.INFO, gpu(compute_capability="13.0")),
    ("stack.cpu-build", Level.ERROR, stack(cuda="none")),
    ("stack.driver", Level.ERROR, driver(driver_version="575.51", cuda_version="12.9")),
    ("stack.driver-minor", Level.HINT, stack(cuda="13.2")),
    (
        "stack.cuda-arch",
        Level.ERROR,
        stack({"nvidia-nccl-cu13": "", "nvidia-nccl-cu12": "2.21"}, cuda="12.1"),
    ),
    ("stack.cuda-partly", Level.WARN, both(stack(cuda="12.8"), gpu(compute_capability="12.1"))),
    ("stack.cuda-dropped", Level.ERROR, gpu(compute_capability="7.0", name="Tesla V100")),
    ("stack.torch-arch", Level.ERROR, stack({"torch": "2.5.1"}, cuda=None)),
    ("stack.flashinfer-arch", Level.WARN, stack({"flashinfer-python": "0.1.5"})),
    ("stack.engine-arch", Level.ERROR, stack({"vllm": "0.8.5"})),
    ("stack.engine-arch", Level.WARN, stack({"vllm": "0.10.1"})),
    ("stack.engine-arch", Level.HINT, stack({"vllm": "0.11.0"})),
    ("stack.pins", Level.WARN, stack({"torch": "2.15.0.dev20261101+cu130"})),
    ("stack.pins", Level.HINT, stack({"nvidia-nccl-cu13": "2.29.1"})),
    ("stack.pins", Level.WARN, stack({"vllm": "0.10.2"}, needs={})),  # by the table
    ("stack.nccl", Level.WARN, stack({"nvidia-nccl-cu13": "", "nvidia-nccl-cu12": "2.27.7"})),
    ("cuda.home", Level.WARN, values(cuda_home="/usr/local/cuda-12.1", cuda_home_missing=True)),
    ("cuda.nvcc", Level.WARN, both(values(nvcc=None), stack({"flashinfer-jit-cache": ""}))),
    ("gpu.slowed", Level.WARN, sample(event_reasons=("HW thermal slowdown",), temperature_c=90)),
    ("gpu.slowed", Level.INFO, sample(event_reasons=("SW power cap",))),
    ("host.prochot", Level.WARN, on_host(prochot=True, rails_w={"dc_input": 96.0})),
    ("host.pressure", Level.WARN, on_host(memory_pressure_pct=20.0)),
    ("host.pressure", Level.WARN, on_host(io_pressure_pct=60.0)),
    ("gpu.pcie-replays", Level.HINT, sample(pcie_replay_count=900)),
    ("gpu.xid", Level.WARN, values(xids=("x NVRM: Xid (PCI:0000:01:00): 79, pid=1, off the bus",))),
    ("gpu.xid", Level.HINT, values(xids=("NVRM: Xid (PCI:0000:01:00): 31, pid=1",))),
    ("gpu.xid", Level.HINT, values(xids=("NVRM: Xid (PCI:0000:01:00): 999, pid=1",))),
    ("cuda.nvcc-arch", Level.WARN, values(nvcc_version="12.6")),
    (
        "cuda.nvcc-torch",
        Level.HINT,
        both(values(nvcc_version="12.9"), stack({"flashinfer-jit-cache": ""})),
    ),
)
STUCK = sample(sm_mhz=611, gpu_util_pct=96.0)
NO_FAULTS: tuple[tuple[str, Change], ...] = (
    ("idle states of a guest", both(values(idle_states=(IdleState("C6", 133, True),)), facts(virtualization="kvm"))),
    ("no network card needs locked memory", values(memlock_kib=64)),
    ("a worker of a run of Workbench", values(workers=(Worker(80, 1, "systemd", "VLLM::EngineCore"),))),
    ("a link repeats a packet now and then", sample(pcie_replay_count=3)),
    ("only GB10 is stuck at such clocks", STUCK),
    ("an idle GPU has a reason", sample(event_reasons=("GPU idle",))),
    ("an idle link slows down", sample(pstate=8, pcie_gen=1)),
    ("GB10 has no link to compare", gpu(unified_memory=True, compute_capability="12.1", pcie_width_max=1)),
    ("nvcc is not needed for compiled kernels", values(nvcc=None)),
    ("what is unknown is no fault", both(lambda seen: replace(seen, values=HostValues()), stack({}, cuda=None))),
    ("one of several pins is for this platform", stack(needs={"vllm": {"torch": ("2.14.0+cpu", "2.14.0")}})),
)  # fmt: skip


def test_a_hidden_cap_is_named_only_without_a_reason() -> None:
    gb10 = both(gpu(name="NVIDIA GB10", unified_memory=True), STUCK)(HEALTHY)
    assert "gb10.hidden-cap" in codes(gb10)
    named = sample(event_reasons=("SW power cap",))(gb10)
    assert "gb10.hidden-cap" not in codes(named) and "gpu.slowed" in codes(named)


def test_each_xid_shows_the_newest_line_of_its_own_gpu_and_number() -> None:
    rows = (("1", 13), ("2", 13), ("1", 137), ("1", 13))
    lines = [f"[{n}] NVRM: Xid (PCI:0000:0{gpu}:00): {x}, a" for n, (gpu, x) in enumerate(rows)]
    found = [f for f in all_findings(values(xids=tuple(lines))(HEALTHY)) if f.code == "gpu.xid"]
    assert [f.evidence for f in found] == [lines[3], lines[1], lines[2]]
    assert "13 of PCI:0000:01:00 2 times" in found[0].text


def codes(seen: Examination) -> set[str]:
    return {finding.code for finding in all_findings(seen)}


def test_a_healthy_host_has_no_finding() -> None:
    assert all_findings(HEALTHY) == []


@pytest.mark.parametrize(
    ("code", "level", "change"), FAULTS, ids=[f"{code} {level}" for code, level, _ in FAULTS]
)
def test_each_check_fires(code: str, level: Level, change: Change) -> None:
    found = [finding for finding in all_findings(change(HEALTHY)) if finding.code == code]
    assert [finding.level for finding in found] == [level]
    assert_says_what_to_do(found[0])


@pytest.mark.parametrize(
    "change", [change for _, change in NO_FAULTS], ids=[name for name, _ in NO_FAULTS]
)
def test_what_is_no_fault_is_silent(change: Change) -> None:
    assert codes(change(HEALTHY)) == set()


def assert_says_what_to_do(finding: Finding) -> None:
    assert (
        finding.fix and "None" not in (f"{finding.text} {finding.fix}") and "{" not in finding.text
    ), finding


def test_every_code_of_the_checks_has_a_row() -> None:
    files = Path(workbench.doctor.__file__).parent.glob("*_checks.py")
    text = "".join(path.read_text() for path in files)
    known = set(
        re.findall(r'"((?:host|gpu|stack|cuda|driver|engine|process|env)\.[a-z0-9-]+)"', text)
    )
    assert known | {"driver.no-driver"} == {code for code, _, _ in FAULTS}


def test_the_fault_of_one_gpu_names_that_gpu() -> None:
    two = replace(HEALTHY, gpus=(*HEALTHY.gpus, replace(HEALTHY.gpus[0], index=1, uuid="GPU-b")))
    two = replace(
        two,
        samples=(
            *HEALTHY.samples,
            replace(HEALTHY.samples[0], index=1, uuid="GPU-b", pcie_width=8),
        ),
    )
    assert [f.text for f in all_findings(two)] == [
        "GPU 1 has a PCIe link of 8 lanes; the card has 16"
    ]


def test_a_driver_that_was_not_read_is_not_called_missing() -> None:
    """Another finding says that the GPUs could not be read in time."""
    unread = Examination(HostFacts("box", "local"))
    assert not any(finding.code.startswith("driver.") for finding in all_findings(unread))
    assert dict(facts_text.labels_and_fact_texts(unread))["driver"] == "not read"
    # the time for a reading ends before that for all of the GPUs, and after the agent's own
    assert 2 * HUNG_CALL_S < READING_S <= GPUS_S - 2


def test_without_a_gpu_no_stack_is_wrong() -> None:
    cpu = both(NO_GPU, stack({"torch": "2.13.0+cpu", "vllm": "0.32.0+cpu"}, needs={}, cuda="none"))(
        HEALTHY
    )
    assert codes(cpu) == {"driver.no-library"}
    assert "torch 2.13.0+cpu (without CUDA)" in dict(facts_text.labels_and_fact_texts(cpu))[""]


@pytest.mark.parametrize(
    ("memlock_kib", "files_hard", "limits"),
    [
        (64, 4096, "(at most 4,096), locked memory 64 KiB"),
        (8192, None, "(at most unknown), locked memory 8 MiB"),
        (UNLIMITED_FILES, UNLIMITED_FILES, "(at most unlimited), locked memory unlimited"),
    ],
)
def test_a_limit_is_shown_in_a_unit_that_fits(
    memlock_kib: int, files_hard: int | None, limits: str
) -> None:
    seen = values(memlock_kib=memlock_kib, files_hard=files_hard)(HEALTHY)
    assert dict(facts_text.labels_and_fact_texts(seen))["limits"].endswith(limits)


def test_every_row_of_the_table_names_its_source() -> None:
    table = load_doctor_table()
    rows = [
        *table["architectures"],
        *table["packages"],
        *table["driver_notes"],
        *table["limits"].values(),
    ]
    rows += [table["oldest_architecture"], table["drivers_of_cuda"], table["pins"], table["links"]]
    assert all(row["source"] for row in rows)
