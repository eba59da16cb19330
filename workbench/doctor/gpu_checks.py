"""Checks of the driver, and of each GPU: its PCIe link, its persistence mode, and the processes
that use its memory."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.examination import Examination
from workbench.doctor.host_checks import hypervisor_name
from workbench.doctor.table import (
    known_architectures,
    load_doctor_table,
    threshold_and_source,
)
from workbench.engines import gpu_table
from workbench.engines.catalog import parse_version_numbers
from workbench.model.findings import Finding, Level
from workbench.model.gpu import DriverStatus, GpuProcess

_VGPU = {"vgpu": "vGPU", "host vgpu": "vGPU host", "host vsga": "vSGA host"}
_BUSY_PSTATE = 2  # at P2 and below the GPU works, and its link runs at full speed


def check_driver(seen: Examination) -> Iterator[Finding]:
    """Report a driver that does not answer, and then also the kernel module nouveau, which prevents
    NVIDIA's driver from using the GPU."""
    found = seen.driver
    if found.status is DriverStatus.OK or not seen.was_driver_read:
        return
    code = "driver." + found.status.replace(" ", "-")
    missing = found.status is DriverStatus.NO_LIBRARY
    fix = "sudo dmesg | grep -i nvrm shows the driver's own messages"
    if missing:
        fix = "`workbench demo` needs no GPU"
    yield Finding(Level.WARN, code, found.message or str(found.status), fix=fix)
    if seen.values.nouveau:
        text = "the module nouveau is loaded: it keeps NVIDIA's driver from the GPU"
        fix = (
            "put `blacklist nouveau` into /etc/modprobe.d/, run update-initramfs -u, and "
            "restart the host"
        )
        yield Finding(
            Level.ERROR, "driver.nouveau", text, fix=fix, evidence="nouveau in /proc/modules"
        )


def check_driver_version(seen: Examination) -> Iterator[Finding]:
    """Report a driver that is too old for a GPU of this host, and known problems of this driver
    version with these GPUs."""
    have = seen.driver.driver_version
    if not have:
        return
    for row in known_architectures(seen.compute_capabilities):
        if parse_version_numbers(have) < parse_version_numbers(row.driver):
            text = (
                f"driver {have} is older than {row.name}, which needs branch {row.driver} or newer"
            )
            fix = f"install driver {row.driver} or newer, with the open kernel modules"
            yield Finding(
                Level.ERROR,
                "driver.old",
                text,
                fix=fix,
                source=row.source,
                evidence=f"driver {have}",
            )
    for note in load_doctor_table()["driver_notes"]:
        if parse_version_numbers(have)[:1] == parse_version_numbers(note["driver"]) and any(
            g.name in note["gpus"] for g in seen.gpus
        ):
            yield Finding(
                Level.HINT,
                "driver.known",
                note["text"],
                fix=note["fix"],
                source=note["source"],
                evidence=f"driver {have}",
            )


def check_lost_gpus(seen: Examination) -> Iterator[Finding]:
    for _, sample in seen.gpus_with_readings:
        if not sample.has_readings:
            text = (
                f"GPU {sample.index} cannot be read ({sample.state}): "
                f"{sample.message or 'no reason given'}"
            )
            fix = (
                "sudo dmesg | grep -i xid names the cause; a GPU that is lost comes back after "
                "a restart of the host"
            )
            yield Finding(Level.ERROR, "gpu.lost", text, fix=fix, evidence=str(sample.state))


def check_virtualization(seen: Examination) -> Iterator[Finding]:
    """Report that the host is a virtual machine or a container that uses GPUs of another machine,
    and which settings can only be changed on that machine."""
    guest, modes = hypervisor_name(seen), {gpu.virtualization for gpu in seen.gpus} - {None, "none"}
    evidence = (
        f"virtualization {seen.facts.virtualization}, GPU "
        f"{', '.join(sorted(map(str, modes))) or 'none'}"
    )
    if "passthrough" in modes:
        text = (
            f"the GPUs are passed through to this virtual machine ({guest or 'hypervisor unknown'})"
        )
        fix = (
            "change CPU governor, idle states and PCIe slots on the hypervisor; `workbench gpu "
            "verify` shows "
            "whether a clock lock has an effect here"
        )
        yield Finding(
            Level.INFO,
            "host.passthrough",
            text,
            fix=fix,
            evidence=evidence,
            source="NVML virtualization mode",
        )
    elif modes:
        named = ", ".join(_VGPU.get(str(mode), str(mode)) for mode in sorted(map(str, modes)))
        text = (
            f"the GPUs are shared by a hypervisor ({named}): their power limit and clocks "
            "belong to it"
        )
        fix = "change them on the hypervisor; memory and speed depend on the vGPU profile"
        yield Finding(
            Level.HINT,
            "host.vgpu",
            text,
            fix=fix,
            evidence=evidence,
            source="NVML virtualization mode",
        )
    elif seen.facts.container and seen.gpus:
        yield _container_finding(seen.facts.container)


def _container_finding(container: str) -> Finding:
    code, text = (
        "host.container",
        f"this is a container ({container}): GPUs, CPU governor and idle states belong to its host",
    )
    if container == "lxc":
        code, text = (
            "host.lxc",
            "this is an LXC container: it uses the driver of its host, whose version must be that "
            "of the libraries here",
        )
    fix = "change GPU settings, governor and idle states on the host of the container"
    return Finding(Level.INFO, code, text, fix=fix, evidence=f"container {container}")


def check_mig(seen: Examination) -> Iterator[Finding]:
    """Report a GPU that is divided with MIG: how, and how a server gets an instance."""
    for gpu in seen.gpus:
        if not gpu.mig:
            continue
        text = f"GPU {gpu.index} is divided: {gpu.mig_text}; the driver reports no utilization then"
        fix = "name an instance in CUDA_VISIBLE_DEVICES; without it, CUDA uses the first one"
        evidence = ", ".join(instance.uuid for instance in gpu.instances) or "no instance"
        if not gpu.instances:
            fix = "create an instance (`nvidia-smi mig -cgi … -C`), or switch MIG off"
        yield Finding(Level.INFO, "gpu.mig", text, fix=fix, evidence=evidence)


def check_persistence(seen: Examination) -> Iterator[Finding]:
    off = [str(s.index) for _, s in seen.gpus_with_readings if s.persistence is False]
    if off:
        text = (
            f"persistence mode is off on GPU {', '.join(off)}: once no process uses it, its "
            "settings are lost"
        )
        fix = "workbench gpu set --persistence on"
        yield Finding(
            Level.HINT, "gpu.persistence", text, fix=fix, evidence=f"off on GPU {', '.join(off)}"
        )


def check_pcie_link(seen: Examination) -> Iterator[Finding]:
    """Report a PCIe link with fewer lanes or a lower generation than the card or the slot supports.
    The present generation is checked only while the GPU works, because an idle GPU lowers it."""
    table = load_doctor_table()["links"]
    for gpu, now in seen.gpus_with_readings:
        kind = gpu_table.find_gpu_type(gpu.name)
        generation, width = table["rows"].get(kind.id if kind else "", (None, None))
        best_width = width or gpu.pcie_width_max
        if gpu.unified_memory or best_width is None:
            continue
        if now.pcie_width and now.pcie_width < best_width:
            text = (
                f"GPU {now.index} has a PCIe link of {now.pcie_width} lanes; the card has "
                f"{best_width}"
            )
            fix = (
                "move the card to a slot with all lanes, or check riser, M.2 sharing and "
                "bifurcation in the BIOS"
            )
            evidence = f"link width {now.pcie_width}, of the card {best_width}"
            yield Finding(
                Level.WARN,
                "gpu.link-width",
                text,
                fix=fix,
                evidence=evidence,
                source=table["source"],
            )
        slot = gpu.pcie_gen_max
        if slot and generation and slot < generation:
            text = (
                f"GPU {now.index} can reach PCIe generation {slot} in its slot; the card has "
                f"{generation}"
            )
            fix = (
                "set the slot's generation in the BIOS; if the board has no more, prefer replicas "
                "to tensor parallelism"
            )
            evidence = f"link generation at most {slot}, of the card {generation}"
            yield Finding(
                Level.HINT,
                "gpu.link-slot",
                text,
                fix=fix,
                evidence=evidence,
                source=table["source"],
            )
        busy = now.pstate is not None and now.pstate <= _BUSY_PSTATE
        if busy and slot and now.pcie_gen and now.pcie_gen < slot:
            text = (
                f"GPU {now.index} works, and its PCIe link runs at generation {now.pcie_gen} "
                f"of {slot}"
            )
            fix = (
                "check riser cable and seating; `sudo dmesg | grep -i pcie` shows errors of "
                "the link"
            )
            evidence = f"P{now.pstate}, link generation {now.pcie_gen}"
            yield Finding(Level.WARN, "gpu.link-speed", text, fix=fix, evidence=evidence)


def check_memory_of_foreign_processes(seen: Examination) -> Iterator[Finding]:
    """Report processes that use much memory of a GPU and were not started by Workbench."""
    least, source = threshold_and_source("held_memory_bytes")
    own = seen.values.own
    if own is None:
        return
    workers = {worker.pid for worker in seen.values.workers}
    for _, sample in seen.gpus_with_readings:
        for process in sample.known_processes:
            held = process.memory_bytes or 0
            if held < least or process.pid in own or process.pid in workers:
                continue
            text = (
                f"{_process_text(process)} uses {held / 2**30:.1f} GiB of GPU {sample.index}, and "
                "Workbench did not start it"
            )
            fix = (
                f"ps -o user,etime,args -p {process.pid}: end it if nobody needs it, or give "
                "the server less memory"
            )
            yield Finding(
                Level.HINT, "gpu.held", text, fix=fix, source=source, evidence=f"{held >> 20} MiB"
            )


def _process_text(process: GpuProcess) -> str:
    known = process.name or process.place
    name = process.title if known else "not visible here: in another container, or of another user"
    return f"process {process.pid} ({name})"


CHECKS = (
    check_driver,
    check_driver_version,
    check_lost_gpus,
    check_virtualization,
    check_mig,
    check_persistence,
    check_pcie_link,
    check_memory_of_foreign_processes,
)
