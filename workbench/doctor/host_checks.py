"""Checks of a host's operating system: limits, memory, disk, CPU, ports and processes."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator

from workbench.doctor.examination import Examination
from workbench.doctor.table import is_known_and_below, threshold_and_source
from workbench.engines import NAME_PROGRAM_STEP, registry
from workbench.model.findings import Finding, Level

_GUESTS = {
    "vmware": "VMware ESXi",
    "kvm": "KVM",
    "xen": "Xen",
    "microsoft": "Hyper-V",
    "oracle": "VirtualBox",
}
_REAPERS = frozenset({"systemd", "init"})  # they take the processes whose parent has ended


def hypervisor_name(seen: Examination) -> str | None:
    """Return the name of the hypervisor if the host is a virtual machine, otherwise None."""
    kind = seen.facts.virtualization
    return None if kind in (None, "none") else _GUESTS.get(kind, kind)


def check_python(seen: Examination) -> Iterator[Finding]:
    facts = seen.facts
    if facts.hostname is None:  # the host did not answer
        return
    if facts.python3 is None:
        text = "python3 is missing, so telemetry is read with nvidia-smi"
        yield Finding(Level.WARN, "host.python3", text, fix="install python3 on the host")
    elif facts.python3_version is None:
        text = f"{facts.python3} does not print its version: it is broken, or not a python3"
        yield Finding(
            Level.ERROR,
            "host.python3",
            text,
            fix=f"repair {facts.python3}, or put the directory of a working python3 first on PATH",
        )


def check_shell_programs(seen: Examination) -> Iterator[Finding]:
    """Report standard programs that Workbench uses and that are missing, for example in a minimal
    container image."""
    missing = str(seen.facts.extra.get("missing_programs", "")).split()
    if not missing:
        return
    level, effect = Level.WARN, "and Workbench uses them to find and stop servers"
    if "setsid" in missing:
        level, effect = Level.ERROR, "so no server can be started"
    text = f"{', '.join(missing)}: no such program, {effect}"
    fix = "install util-linux, coreutils, grep and sed, or busybox"
    if seen.facts.container:
        fix += " in the container"
    yield Finding(level, "host.programs", text, fix=fix, evidence=f"missing {' '.join(missing)}")


def check_container_main_process(seen: Examination) -> Iterator[Finding]:
    """Report a container whose servers all end together with its main process."""
    init = seen.facts.extra.get("init")
    if not init or seen.facts.kind != "container":
        return
    if init.split()[0].rpartition("/")[2] not in _REAPERS:
        text = f"every server in this container ends with its main process: {init}"
        fix = (
            "stop servers before the container is stopped; `--init` gives it a main process "
            "that clears up after them"
        )
        yield Finding(Level.INFO, "host.main-process", text, fix=fix, evidence=f"process 1: {init}")


def check_engines_on_path(seen: Examination) -> Iterator[Finding]:
    if seen.engines and not any(e.path for e in seen.engines):
        text = f"no engine was found on PATH ({', '.join(e.engine for e in seen.engines)})"
        yield Finding(
            Level.WARN,
            "engine.none",
            text,
            fix=f"install an engine, or {NAME_PROGRAM_STEP}",
        )
    for engine in seen.engines:
        for path in engine.elsewhere:
            text = (
                f"{'another' if engine.path else 'not on PATH, but'} {engine.engine} is at {path}"
            )
            section = f"[executables.{json.dumps(seen.facts.name)}]"
            fix = (
                f'write {engine.engine} = "{path}" under {section} in config.toml, or use '
                f"`workbench start PRESET --executable {path}`"
            )
            yield Finding(Level.HINT, "engine.elsewhere", text, fix=fix)


def check_governor(seen: Examination) -> Iterator[Finding]:
    name = seen.host_sample.cpu_governor
    if name not in (None, "", "performance"):
        text = (
            f"the CPU governor is {name}: the engine's scheduler, which runs on one core, "
            "starts each step late"
        )
        fix = "workbench gpu set --governor performance, and measure whether it helps"
        yield Finding(
            Level.HINT, "host.governor", text, fix=fix, evidence=f"scaling_governor: {name}"
        )


def check_idle_states(seen: Examination) -> Iterator[Finding]:
    most_us, source = threshold_and_source("idle_latency_us")
    deep = [s for s in seen.values.idle_states if s.enabled and s.latency_us > most_us]
    if deep and hypervisor_name(seen) is None:
        named = ", ".join(f"{s.name} ({s.latency_us} µs)" for s in deep)
        text = (
            f"the CPU may enter idle states that take longer than {most_us:g} µs to leave: {named}"
        )
        fix = "workbench gpu set --c-states off, and measure whether it helps"
        yield Finding(Level.HINT, "host.idle-states", text, fix=fix, source=source, evidence=named)


def check_open_files(seen: Examination) -> Iterator[Finding]:
    wanted, source = threshold_and_source("open_files")
    hard = seen.values.files_hard
    if is_known_and_below(hard, wanted):
        text = f"a process may open at most {hard} files; a server with many connections needs more"
        fix = (
            f"set LimitNOFILE=1048576 in the service, or `* hard nofile {1 << 20}` in "
            "/etc/security/limits.conf"
        )
        evidence = (
            f"soft limit {seen.values.files_soft}, hard limit {hard}, recommended at "
            f"least {wanted:.0f}"
        )
        yield Finding(
            Level.WARN, "host.open-files", text, fix=fix, source=source, evidence=evidence
        )


def check_locked_memory(seen: Examination) -> Iterator[Finding]:
    wanted, source = threshold_and_source("locked_memory_kib")
    have = seen.values.memlock_kib
    if seen.values.infiniband and have is not None and have < wanted:
        text = (
            f"this host has RDMA network cards, and a process may lock only {have} KiB of memory: "
            "NCCL cannot use RDMA"
        )
        fix = "ulimit -l unlimited (container: --ulimit memlock=-1; service: LimitMEMLOCK=infinity)"
        yield Finding(
            Level.WARN,
            "host.locked-memory",
            text,
            fix=fix,
            source=source,
            evidence=f"ulimit -l: {have}",
        )


def check_memory(seen: Examination) -> Iterator[Finding]:
    share, source = threshold_and_source("free_memory_share")
    free, total = seen.values.memory_available_kib, seen.facts.memory_total_bytes
    if free is not None and total and free * 1024 < share * total:
        text = f"only {free / 2**20:.1f} of {total / 2**30:.0f} GiB of memory are free"
        fix = "end what you do not need (`ps aux --sort -rss | head` lists the largest processes)"
        yield Finding(
            Level.WARN,
            "host.memory",
            text,
            fix=fix,
            source=source,
            evidence=f"MemAvailable: {free} kB",
        )


def check_shared_memory(seen: Examination) -> Iterator[Finding]:
    wanted, source = threshold_and_source("shared_memory_kib")
    free, size = seen.values.shared_memory_free_kib, seen.values.shared_memory_kib
    if not is_known_and_below(free, wanted):
        return
    text = (
        f"/dev/shm has {free / 1024:.0f} MiB left: engines that run on several GPUs pass data "
        "through it"
    )
    fix = "remove files that ended servers left there (ls -l /dev/shm)"
    if is_known_and_below(size, wanted):
        fix = "mount /dev/shm with a larger size"
        if seen.facts.container:
            fix = "start the container with --ipc=host or --shm-size 16g"
    yield Finding(
        Level.WARN,
        "host.shared-memory",
        text,
        fix=fix,
        source=source,
        evidence=f"{free} of {size} KiB free",
    )


def check_disk(seen: Examination) -> Iterator[Finding]:
    wanted, source = threshold_and_source("free_disk_kib")
    free = seen.values.disk_free_kib
    if is_known_and_below(free, wanted):
        text = f"{free / 2**20:.1f} GiB are left on the disk for models ({seen.values.hub})"
        fix = (
            "`hf cache ls` lists the models, so that you can delete some; HF_HOME names a "
            "directory on another disk"
        )
        yield Finding(
            Level.WARN, "host.disk", text, fix=fix, source=source, evidence=f"{free} KiB free"
        )


def check_ports(seen: Examination) -> Iterator[Finding]:
    for engine in map(registry.get_engine, registry.engine_names()):
        port = engine.default_port
        if port in (taken := seen.values.ports or {}):
            pid = taken[port]
            by = f"process {pid}" if pid else "a process of another user"
            text = f"port {port}, the default of {engine.title}, is in use by {by}"
            fix = f"workbench servers shows servers; or start with --set port={_first_free_port_after(port, taken)}"
            yield Finding(
                Level.HINT, "host.port", text, fix=fix, evidence=f"{by} listens on port {port}"
            )


def _first_free_port_after(port: int, taken: Container[int]) -> int:
    return next(p for p in range(port + 1, port + 1000) if p not in taken)


def check_orphaned_engine_workers(seen: Examination) -> Iterator[Finding]:
    for worker in seen.values.workers:
        if (worker.parent == 1 or worker.parent_name in _REAPERS) and worker.pid not in (
            seen.values.own or ()
        ):
            text = (
                f"process {worker.pid} ({worker.name}) has outlived the server that started "
                "it, and keeps its memory"
            )
            fix = f"kill {worker.pid}; if it is still there after 10 s, kill -9 {worker.pid}"
            evidence = f"parent {worker.parent} ({worker.parent_name})"
            yield Finding(Level.WARN, "process.orphan", text, fix=fix, evidence=evidence)


def check_environment_file(seen: Examination) -> Iterator[Finding]:
    names = seen.values.environment_file
    if names:
        text = (
            f"/etc/environment uses $ in {', '.join(names)}: it is not a shell script, so $ "
            "stays as it is"
        )
        fix = (
            "write the whole values there; services and `pct exec` do not read it at all: set the "
            "variable in the unit"
        )
        yield Finding(
            Level.WARN,
            "env.file-semantics",
            text,
            fix=fix,
            source="pam_env(8)",
            evidence=" ".join(names),
        )


CHECKS = (
    check_python,
    check_shell_programs,
    check_container_main_process,
    check_engines_on_path,
    check_open_files,
    check_locked_memory,
    check_memory,
    check_shared_memory,
    check_disk,
    check_orphaned_engine_workers,
    check_environment_file,
    check_governor,
    check_idle_states,
    check_ports,
)
