"""Checks of a cluster before a server starts on it. All functions are pure: they read a
ClusterReport and yield findings about problems."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from itertools import combinations
from typing import Any

from workbench.doctor.cluster_facts import ClusterReport, NodeReport, unreached_node_finding
from workbench.doctor.table import is_known_and_below, threshold_and_source
from workbench.engines.model_facts import is_model_path
from workbench.model.counts import count_of
from workbench.model.findings import Finding, Level

_GIB = 1 << 30
_PACKAGES = {
    "torch": Level.ERROR,
    "nvidia-nccl-cu12": Level.ERROR,
    "nvidia-nccl-cu13": Level.ERROR,
    "ray": Level.ERROR,
}
_TITLES = {"nvidia-nccl-cu12": "NCCL", "nvidia-nccl-cu13": "NCCL", "ray": "Ray"}
NCCL_MEMLOCK = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
GLOO = "https://docs.pytorch.org/docs/stable/distributed.html#common-environment-variables"


def check_nodes(report: ClusterReport) -> Iterator[Finding]:
    """Report nodes that cannot be reached or examined, and a cluster that has only one node."""
    for node in report.nodes:
        if node.problem is not None:
            yield unreached_node_finding(node)
        elif node.unlooked is not None:
            text = (
                f"names, ports, processes and the clock of {node.name} are not known: "
                f"{node.unlooked}"
            )
            yield Finding(
                Level.WARN, "cluster.unlooked", text, fix=f"install python3 on {node.name}"
            )
        yield from node.parts
    if len(report.nodes) < 2:
        fix = "write two hosts or more into `nodes` of the cluster in hosts.toml"
        yield Finding(
            Level.ERROR, "cluster.one-node", "a cluster needs at least two nodes", fix=fix
        )


def check_addresses(report: ClusterReport) -> Iterator[Finding]:
    """Report nodes whose address is unknown, does not belong to the node, or is also the address of
    another node. A loopback address is not reported, because the nodes are then on one machine."""
    for node in report.reached_nodes:
        place, fix = node.place, f'write address = "…" of {node.name} into hosts.toml'
        if place.address is None:
            text = (
                f"the address of {node.name} is not known: "
                f"{place.problem or 'no network of all nodes was found'}"
            )
            yield Finding(Level.ERROR, "cluster.address-unknown", text, fix=fix)
        elif _is_loopback(place.address):
            continue  # nodes on one machine
        elif node.network.interfaces and node.network.interface_with_address(place.address) is None:
            own = ", ".join(_interface_addresses(node)) or "none"
            text = f"{node.name} does not have the address {place.address}"
            yield Finding(
                Level.ERROR, "cluster.address-foreign", text, fix=fix, evidence=f"it has {own}"
            )
    for a, b in combinations(report.reached_nodes, 2):
        address = a.place.address
        if address is None or _is_loopback(address):
            continue
        if address == b.place.address:
            text = f"{a.name} and {b.name} have the same address {address}"
            fix = "give each node its own address in hosts.toml"
            yield Finding(Level.ERROR, "cluster.address-twice", text, fix=fix)


def _interface_addresses(node: NodeReport) -> list[str]:
    """Return the addresses of all network interfaces of a node, without prefix lengths such as
    "/24"."""
    return [a.partition("/")[0] for i in node.network.interfaces for a in i.addresses]


def check_host_names(report: ClusterReport) -> Iterator[Finding]:
    """Report nodes on which their own host name resolves to a loopback address, and nodes on which
    the name of another node resolves to an address that the other node does not have."""
    by_name = {node.name: node for node in report.reached_nodes}
    for node in report.reached_nodes:
        known: Mapping[str, Sequence[str]] = node.look.get("names", {})
        hostname = node.look.get("hostname", "")
        own = known.get(hostname, ())
        if own and all(map(_is_loopback, own)):
            text = (
                f"on {node.name} its own name {hostname} is {own[0]}: gloo and Ray may bind "
                "to loopback"
            )
            fix = (
                f"in /etc/hosts of {node.name}, give {hostname} the address "
                f"{node.place.address or 'of the network'}"
            )
            yield Finding(
                Level.HINT,
                "cluster.name-loopback",
                text,
                fix=fix,
                source=GLOO,
                evidence=", ".join(own),
            )
        for name, found in known.items():
            other = by_name.get(name)
            if other is None or not found or other is node or other.place.address in found:
                continue
            theirs = set(_interface_addresses(other))
            if theirs and theirs.isdisjoint(found):
                text = (
                    f"on {node.name} the name {name} is {found[0]}, which is no address of {name}"
                )
                fix = f"correct {name} in /etc/hosts or DNS of {node.name}"
                yield Finding(
                    Level.WARN, "cluster.name-foreign", text, fix=fix, evidence=", ".join(found)
                )


def check_connections(report: ClusterReport) -> Iterator[Finding]:
    """Report each node address to which another node cannot connect."""
    for made in report.connections:
        if made.problem is not None:
            text = (
                f"{made.source} cannot connect to {made.address} of {made.target}: {made.problem}"
            )
            fix = (
                f"open the firewall of {made.target} for {made.source}, and check the cable "
                "and the address"
            )
            yield Finding(Level.ERROR, "cluster.connection", text, fix=fix)


def check_interfaces(report: ClusterReport) -> Iterator[Finding]:
    """Report network interfaces that are missing, down or slow, and speeds or MTUs that differ
    between the nodes."""
    slow_gbit, source = threshold_and_source("cluster_interface_gbit_s")
    found = []
    for node in report.reached_nodes:
        name = node.place.interface
        interface = node.network.interface(name)
        if name is None or not node.network.interfaces:
            continue
        if interface is None:
            has = ", ".join(i.name for i in node.network.interfaces)
            text = f"{node.name} has no interface {name}"
            fix = f"correct interface of {node.name} in hosts.toml"
            yield Finding(
                Level.ERROR, "cluster.interface-missing", text, fix=fix, evidence=f"it has {has}"
            )
            continue
        found.append((node, interface))
        if not interface.up:
            text = f"interface {name} of {node.name} is down"
            fix = f"check the cable, then on {node.name}: sudo ip link set {name} up"
            yield Finding(Level.ERROR, "cluster.interface-down", text, fix=fix)
        elif is_known_and_below(interface.speed_mbit_s, 1000 * slow_gbit):
            text = (
                f"interface {name} of {node.name} runs at {interface.speed_mbit_s / 1000:g} Gbit/s"
            )
            fix = (
                "use the fast port: write its interface into hosts.toml, or look at `ethtool "
                f"{name}`"
            )
            yield Finding(Level.WARN, "cluster.interface-slow", text, fix=fix, source=source)
    for what, title, unit in (("speed_mbit_s", "speeds", "Mbit/s"), ("mtu", "MTUs", "bytes")):
        values: dict[str, int] = {}
        for node, one in found:
            value = getattr(one, what)
            if value is not None:
                values[node.name] = value
        if len(set(values.values())) > 1:
            text = f"the interfaces of the nodes have different {title}: {_value_on_each_node(values, unit)}"
            fix = "use equal ports"
            if what != "speed_mbit_s":
                fix = f"set one MTU: sudo ip link set IFACE mtu {max(values.values())}"
            yield Finding(
                Level.WARN,
                f"cluster.interface-{'speed' if what == 'speed_mbit_s' else what}",
                text,
                fix=fix,
            )


def check_rdma(report: ClusterReport) -> Iterator[Finding]:
    """Report RDMA devices that are missing or not active, and a limit on locked memory that is too
    low for RDMA with NCCL."""
    least_mib, _ = threshold_and_source("rdma_memlock_mib")
    with_rdma = [node for node in report.reached_nodes if node.place.rdma]
    for node in with_rdma:
        devices = {device.name: device for device in node.network.rdma}
        for name in node.place.rdma:
            device = devices.get(name)
            if device is None:
                text = f"{node.name} has no RDMA device {name}"
                fix = (
                    f"correct rdma of {node.name} in hosts.toml; `rdma link` on {node.name} "
                    "lists the devices"
                )
                has = ", ".join(devices) or "none"
                yield Finding(
                    Level.ERROR, "cluster.rdma-missing", text, fix=fix, evidence=f"it has {has}"
                )
            elif not device.active:
                text = f"RDMA device {name} of {node.name} is not active: NCCL would use sockets"
                fix = (
                    f"check the cable and interface {device.interface or 'of the port'}; `rdma "
                    "link` shows the state"
                )
                yield Finding(Level.ERROR, "cluster.rdma-down", text, fix=fix)
        memlock = node.look.get("memlock_bytes")
        if isinstance(memlock, int) and memlock < least_mib * (1 << 20):
            text = f"{node.name} may lock {memlock >> 20} MiB of memory, too little for RDMA"
            fix = (
                f"on {node.name}: `* - memlock unlimited` in /etc/security/limits.conf, then "
                "log in again"
            )
            yield Finding(Level.WARN, "cluster.rdma-memlock", text, fix=fix, source=NCCL_MEMLOCK)
    if 0 < len(with_rdma) < len(report.reached_nodes):
        without = ", ".join(node.name for node in report.reached_nodes if not node.place.rdma)
        text = f"no RDMA device is active on {without}: NCCL uses sockets between all nodes"
        yield Finding(
            Level.WARN,
            "cluster.rdma-uneven",
            text,
            fix="run `rdma link` on each node: it shows the state of the RDMA devices",
        )


def check_versions(report: ClusterReport) -> Iterator[Finding]:
    """Report nodes without the plan's engine, and engines, packages, drivers and GPUs that differ
    between nodes."""
    by_engine: dict[str, dict[str, str]] = {}
    for node in report.reached_nodes:
        for installed in node.seen.engines:
            if installed.version:
                by_engine.setdefault(installed.engine, {})[node.name] = installed.version
    for engine, found in by_engine.items():
        if report.engine in (None, engine):
            yield from _report_unequal_values(
                found, engine, Level.ERROR, f"install the same version of {engine} on every node"
            )
    if report.engine is not None:
        for node in report.reached_nodes:
            if not _was_engine_found(node, report.engine):
                text = f"{report.engine} was not found on {node.name}"
                fix = (
                    f"install {report.engine} on {node.name}, or write its "
                    f"engines.{report.engine} into hosts.toml"
                )
                yield Finding(Level.ERROR, "cluster.engine-missing", text, fix=fix)
    yield from _check_packages(report)
    drivers = {
        n.name: n.seen.driver.driver_version
        for n in report.reached_nodes
        if n.seen.driver.driver_version
    }
    yield from _report_unequal_values(
        drivers, "driver", Level.WARN, "install the same NVIDIA driver on every node"
    )
    gpus = {n.name: _gpu_count_and_names_text(n) for n in report.reached_nodes if n.seen.gpus}
    yield from _report_unequal_values(
        gpus, "GPUs", Level.WARN, "expect the speed of the slowest GPU"
    )


def _was_engine_found(node: NodeReport, engine: str) -> bool:
    """Return whether the engine was found on the node, with a known version or without."""
    found = [installed for installed in node.seen.engines if installed.engine == engine]
    return any(installed.path or installed.version for installed in found)


def _check_packages(report: ClusterReport) -> Iterator[Finding]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for node in report.reached_nodes:
        for stack in node.seen.packages:
            if report.engine not in (None, stack.engine):
                continue
            for package in _PACKAGES.keys() & stack.versions.keys():
                found.setdefault((stack.engine, package), {})[node.name] = stack.versions[package]
            if stack.python_version and "ray" in stack.versions:
                minor = ".".join(stack.python_version.split(".")[:2])
                found.setdefault((stack.engine, "Python"), {})[node.name] = minor
    for (engine, package), each in sorted(found.items()):
        title = _TITLES.get(package, package)
        fix = f"install {engine} from the same lock file on every node"
        yield from _report_unequal_values(
            each, f"{title} of {engine}", _PACKAGES.get(package, Level.ERROR), fix
        )


def _report_unequal_values(
    value_by_node: Mapping[str, str], title: str, level: Level, fix: str
) -> Iterator[Finding]:
    if len(set(value_by_node.values())) > 1:
        code = f"cluster.unequal-{title.split()[0].lower()}"
        text = f"the nodes have different versions of {title}"
        if title == "GPUs":
            text = "the nodes have different GPUs"
        yield Finding(level, code, text, fix=fix, evidence=_value_on_each_node(value_by_node))


def check_model_files(report: ClusterReport) -> Iterator[Finding]:
    """Report nodes without the plan's model files, and model files that differ between nodes. A
    model of a hub is downloaded at the start, so its absence is a warning."""
    missing = Level.ERROR if is_model_path(report.model or "") else Level.WARN
    models = {node.name: node.model for node in report.reached_nodes if node.model is not None}
    digests = {name: model.digest for name, model in models.items() if model.digest}
    source = next(iter(digests), None)
    for name, model in models.items():
        if model.digest is None:
            text = f"the model {report.model} was not found on {name}: {model.basis}"
            fix = f"workbench models copy {report.model} --from {source} --to {name}"
            if source is None:
                fix = f"workbench --host {name} models download {report.model}"
            yield Finding(missing, "cluster.model-missing", text, fix=fix)
    if len(set(digests.values())) > 1:
        bases = {name: models[name].basis for name in digests}
        text = f"the nodes have different files of the model {report.model}"
        on = " ".join(f"--on {name}" for name in digests)
        fix = (
            f"`workbench models check {report.model} {on}` names the files; copy the right "
            "ones to the other nodes"
        )
        yield Finding(
            Level.ERROR, "cluster.model-differs", text, fix=fix, evidence=_value_on_each_node(bases)
        )


def check_ports(report: ClusterReport) -> Iterator[Finding]:
    for node in report.reached_nodes:
        if taken := node.look.get("taken"):
            text = (
                f"on {node.name} other programs listen on "
                f"{', '.join(f'port {port}' for port in taken)}"
            )
            fix = (
                f"`ss -ltnp` on {node.name} names them; stop them, or choose other ports in "
                "the plan"
            )
            yield Finding(Level.ERROR, "cluster.port-taken", text, fix=fix)


def check_clock_differences(report: ClusterReport) -> Iterator[Finding]:
    """Report each pair of nodes whose clocks differ by more than the limit in table.json and the
    errors of both measurements together."""
    most_s, source = threshold_and_source("cluster_clock_s")
    known = [(n, n.clock_ahead_s) for n in report.reached_nodes if n.clock_ahead_s is not None]
    for (a, at), (b, bt) in combinations(known, 2):
        apart_s = abs(at - bt)
        if apart_s > most_s + a.clock_error_s + b.clock_error_s:
            text = (
                f"the clocks of {a.name} and {b.name} are {apart_s:.1f} s apart: their logs "
                "cannot be compared"
            )
            fix = "switch on time synchronization on both: sudo timedatectl set-ntp true"
            yield Finding(Level.WARN, "cluster.clocks", text, fix=fix, source=source)


def check_free_memory(report: ClusterReport) -> Iterator[Finding]:
    """Report nodes with less free memory than the plan needs. On a node whose GPUs share the host's
    memory, the plan's memory and a reserve must be free, and swap is reported too."""
    for node in report.reached_nodes:
        free = _free_memory_bytes(node)
        if free is None:
            continue
        reserve, kind, shares = 0, "memory on a GPU", 1
        if node.has_unified_memory:
            reserve, kind = report.reserve_bytes, "memory, which GPU and system share,"
            shares = len(node.seen.gpus)
        if report.need_bytes is None:
            if node.has_unified_memory and free < reserve:
                text = (
                    f"{node.name} has only {free / _GIB:.1f} GiB of {kind} free, less than the "
                    "reserve"
                )
                fix = (
                    f"stop programs that use memory: `ps aux --sort -rss` on {node.name} lists them"
                )
                yield Finding(Level.ERROR, "cluster.memory", text, fix=fix)
        elif free - reserve < report.need_bytes * shares:
            kept = f" and {reserve / _GIB:.1f} GiB stay in reserve" if reserve else ""
            text = (
                f"{node.name} has {free / _GIB:.1f} GiB of {kind} free; "
                f"the plan needs {report.need_bytes * shares / _GIB:.1f} GiB there{kept}"
            )
            fix = (
                "stop programs that use it (see `nvidia-smi`), or lower the plan's memory "
                "share or its context length"
            )
            yield Finding(Level.ERROR, "cluster.memory", text, fix=fix)
        swap = node.look.get("memory", {})
        if node.has_unified_memory and swap.get("SwapTotal"):
            text = (
                f"{node.name} has swap: with unified memory the host stalls before the engine fails"
            )
            fix = f"on {node.name}, while it serves: sudo swapoff -a"
            yield Finding(Level.HINT, "cluster.swap", text, fix=fix)


def check_leftover_processes_and_memory(report: ClusterReport) -> Iterator[Finding]:
    """Report engine and Ray processes that run on a node, and shared memory segments that no
    process uses. Earlier servers may have left them there."""
    least_mib, _ = threshold_and_source("cluster_segments_mib")
    for node in report.reached_nodes:
        for key, whose, fix in (
            ("engines", "an engine", "workbench stop, if it is a run of Workbench; else kill PID"),
            ("ray", "Ray", f"ray stop --force on {node.name}, if no other server uses it"),
        ):
            found = node.look.get(key) or ()
            if found:
                each = ", ".join(map(_leftover_process_text, found[:5]))
                if len(found) > 5:
                    each += ", …"
                verb = "lives" if len(found) == 1 else "live"
                text = (
                    f"on {node.name} {count_of(len(found), 'process', 'processes')} of "
                    f"{whose} still {verb}"
                )
                yield Finding(Level.WARN, f"cluster.left-{key}", text, fix=fix, evidence=each)
        segments = node.look.get("segments") or ()
        size = sum(segment["bytes"] for segment in segments)
        if size >= least_mib * (1 << 20):
            count = count_of(len(segments), "segment")
            text = f"on {node.name} no process uses {count} of shared memory, {size >> 20} MiB"
            # every user can name one
            listed = shlex.join(f"/dev/shm/{segment['name']}" for segment in segments[:5])
            fix = (
                f"remove these segments on {node.name}: rm "
                f"{listed}{' …' if len(segments) > 5 else ''}"
            )
            yield Finding(Level.WARN, "cluster.left-memory", text, fix=fix)


def _leftover_process_text(process: Mapping[str, Any]) -> str:
    whose = " (a run of Workbench)" if process["run"] else ""
    return f"{process['name']} {process['pid']}{whose}"


def _free_memory_bytes(node: NodeReport) -> int | None:
    """Return the free memory of a node in bytes: the host's available memory if its GPUs share it,
    otherwise the free memory of the GPU that has the least. None if unknown."""
    if node.has_unified_memory:
        return node.available_memory_bytes
    each = [
        gpu.memory_total_bytes - sample.memory_used_bytes
        for gpu, sample in node.seen.gpus_with_readings
        if gpu.memory_total_bytes is not None and sample.memory_used_bytes is not None
    ]
    return min(each, default=None)


def _gpu_count_and_names_text(node: NodeReport) -> str:
    names = dict.fromkeys(gpu.name or "?" for gpu in node.seen.gpus)
    return f"{len(node.seen.gpus)} x {' and '.join(names)}"


def _value_on_each_node(values: Mapping[str, object], unit: str = "") -> str:
    return ", ".join(f"{name} {value} {unit}".rstrip() for name, value in values.items())


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


CHECKS: tuple[Callable[[ClusterReport], Iterable[Finding]], ...] = (
    *(
        check_nodes,
        check_addresses,
        check_host_names,
        check_connections,
        check_interfaces,
        check_rdma,
    ),
    *(
        check_versions,
        check_model_files,
        check_ports,
        check_clock_differences,
        check_free_memory,
        check_leftover_processes_and_memory,
    ),
)


def cluster_findings(report: ClusterReport) -> list[Finding]:
    """Return findings about the problems of a cluster, from all checks."""
    return [finding for check in CHECKS for finding in check(report)]
