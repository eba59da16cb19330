"""The properties of an examined host as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.engine_packages import TITLES, EnginePackages
from workbench.doctor.examination import Examination
from workbench.doctor.host_values import HostValues
from workbench.doctor.optional_text import format_unless_empty
from workbench.model.counts import gpus_text
from workbench.model.gpu import NEEDS_SECOND, GpuInfo, GpuSample, reasons_with_missing_values
from workbench.server.file_limit import UNLIMITED_FILES, format_file_limit


def labels_and_fact_texts(seen: Examination) -> Iterator[tuple[str, str]]:
    """Yield each property of the host as (label, text)."""
    facts, values = seen.facts, seen.values
    yield "host", f"{facts.name} ({facts.kind}){'  SIMULATED' if facts.simulated else ''}"
    memory = "unknown memory"
    if facts.memory_total_bytes:
        memory = f"{facts.memory_total_bytes / 2**30:.0f} GiB"
    yield (
        "system",
        f"{facts.os or 'unknown system'}, {facts.kernel or 'unknown kernel'}, "
        f"{facts.arch or 'unknown architecture'}, "
        f"{facts.cpu_count or 'unknown'} CPUs, {memory}, virtualization "
        f"{facts.virtualization or 'unknown'}, "
        f"container {facts.container or 'none'}",
    )
    governor = seen.host_sample.cpu_governor or "not known here"
    yield "CPU", f"governor {governor}, deepest idle state {_deepest_idle_state_text(values)}"
    yield (
        "free",
        f"memory {_size_text(values.memory_available_kib)}, /dev/shm "
        f"{_size_text(values.shared_memory_free_kib)}, "
        f"disk for models {_size_text(values.disk_free_kib)} ({values.hub or 'unknown'})",
    )
    yield (
        "limits",
        f"open files {_file_limit_text(values.files_soft)} (at most {_file_limit_text(values.files_hard)}), "
        f"locked memory {_size_text(values.memlock_kib)}",
    )
    if seen.host_sample.rails_w:
        rails = (f"{name} {watts:.1f} W" for name, watts in seen.host_sample.rails_w.items())
        yield "rails", ", ".join(rails)
    yield "python3", f"{facts.python3 or 'not found'} {facts.python3_version or ''}"
    yield "driver", _driver_text(seen)
    home = format_unless_empty(", CUDA_HOME {}", values.cuda_home)
    yield "toolkit", f"nvcc {values.nvcc_version or ''} {values.nvcc or 'not found'}{home}"
    samples = {sample.uuid: sample for sample in seen.samples}
    for number, gpu in enumerate(seen.gpus):
        yield f"GPU{number}", _gpu_text(gpu, samples.get(gpu.uuid))
    yield from _labels_and_unreported_texts(seen)
    packages = {stack.engine: stack for stack in seen.packages}
    for engine in seen.engines:
        name = engine.engine
        stack = packages.get(name, EnginePackages(name))
        if engine.path:  # the installed package is what the findings are about
            version = stack.versions.get(name) or engine.version_text
            yield "engine", f"{name} {version} at {engine.path}"
        if name in packages:
            yield "", _software_stack_text(stack)


def _deepest_idle_state_text(values: HostValues) -> str:
    if not values.idle_states:
        return "not known here"
    enabled = [state for state in values.idle_states if state.enabled]
    if not enabled:
        return "none: all are off"
    deepest = max(enabled, key=lambda state: state.latency_us)
    return f"{deepest.name} ({deepest.latency_us} µs)"


def _driver_text(seen: Examination) -> str:
    if not seen.was_driver_read:
        return "not read"
    driver = seen.driver
    cuda = format_unless_empty(", CUDA {}", driver.cuda_version)
    module = ", open kernel modules" if seen.values.open_module else ""
    return f"{driver.driver_version or driver.status}{cuda}{module} (read from {driver.source})"


def _gpu_text(gpu: GpuInfo, sample: GpuSample | None) -> str:
    parts = [gpu.name]
    if gpu.compute_capability:
        parts.append(f"compute capability {gpu.compute_capability}")
    if gpu.virtualization not in (None, "none"):
        parts.append(str(gpu.virtualization))
    if sample is None:
        return ", ".join(parts)
    if sample.pcie_width and not gpu.unified_memory:
        parts.append(
            f"PCIe {sample.pcie_gen or '?'} x{sample.pcie_width}, at most {gpu.pcie_gen_max or '?'}"
        )
    if sample.persistence is not None:
        parts.append(f"persistence {'on' if sample.persistence else 'off'}")
    return ", ".join(parts)


def _labels_and_unreported_texts(seen: Examination) -> Iterator[tuple[str, str]]:
    """Yield ("not read", text) about the values that the driver does not report, one for all GPUs
    that lack the same values for the same reason."""
    alike: dict[str, list[int]] = {}
    for gpu, sample in seen.gpus_with_readings:
        absent = {**gpu.absent, **sample.absent}
        lasting = {name: why for name, why in absent.items() if why != NEEDS_SECOND}
        for reason, titles in reasons_with_missing_values(lasting):
            alike.setdefault(f"{titles} ({reason})", []).append(sample.index)
    for text, indexes in alike.items():
        yield "not read", f"{gpus_text(indexes)}: {text}"


def _software_stack_text(stack: EnginePackages) -> str:
    if stack.problem:
        return f"packages unknown: {stack.problem}"
    built = {"none": " (without CUDA)", None: ""}.get(stack.cuda, f" (CUDA {stack.cuda})")
    suffixes = {"torch": built}
    parts = []
    if stack.python_version:
        parts.append(f"Python {stack.python_version}")
    for name, title in TITLES.items():
        if name in stack.versions:
            parts.append(f"{title} {stack.versions[name]}{suffixes.get(name, '')}")
    return ", ".join(parts) or "none of the packages that Workbench knows"


def _size_text(kib: int | None) -> str:
    if kib is None:
        return "unknown"
    if kib >= UNLIMITED_FILES:
        return "unlimited"
    if kib < 2**10:
        return f"{kib} KiB"
    return f"{kib / 2**20:.1f} GiB" if kib >= 2**20 else f"{kib / 2**10:.0f} MiB"


def _file_limit_text(number: int | None) -> str:
    return "unknown" if number is None else format_file_limit(number)
