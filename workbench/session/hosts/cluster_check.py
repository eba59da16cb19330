"""The check of a cluster before a server starts on it. The reports of the nodes are compared with
each other and with what a plan needs."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from workbench.doctor import cluster_checks, cluster_facts
from workbench.doctor.cluster_facts import ClusterReport, NodeReport, NodeToCheck
from workbench.hosts import interfaces
from workbench.model.counts import count_of
from workbench.model.errors import ServerError
from workbench.model.findings import Finding, Level, by_severity
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.server.model_fingerprint import ModelFingerprint, read_model_fingerprint
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.hosts.cluster import ClusterHost
    from workbench.model.plan import LaunchPlan
    from workbench.session.plans.plan_editor import PlanEditor

_GIB = 1 << 30
_PORT_FLAGS = ("master-port", "nccl-port")
_ADDRESS_FLAGS = ("dist-init-addr",)
FINDINGS_FREED_BY_STOP = ("cluster.port-taken", "cluster.memory")


async def examine_cluster(host: ClusterHost, editor: PlanEditor | None) -> ClusterReport:
    """Return a report on the nodes of a cluster, and on what the plan of `editor` needs there: the
    engine, the model's files, free ports and GPU memory. Without `editor`, the report is about the
    nodes only."""
    networks = await asyncio.gather(
        *(interfaces.read_node_network(node.host) for node in host.nodes)
    )
    programs = _programs_by_node_and_engine(host)
    nodes = [
        NodeToCheck(node.host, place, network, programs[node.name])
        for node, place, network in zip(host.nodes, host.places, networks, strict=True)
    ]
    needs: dict[str, Any] = {}
    if editor is not None:
        plan = editor.effective_plan
        nodes = [
            _node_for_plan(node, name, plan, host)
            for node, name in zip(nodes, programs, strict=True)
        ]
        nodes[0] = replace(nodes[0], ports=tuple(_ports_of_plan(plan, editor)))
        needs = {
            "engine": plan.engine,
            "model": plan.model,
            "need_bytes": _needed_bytes_per_gpu(editor),
        }
    reports, connections = await cluster_facts.gather_reports(nodes)
    reserve_bytes = round((host.entry.reserve_gib or 0.0) * _GIB)
    return ClusterReport(tuple(reports), tuple(connections), reserve_bytes=reserve_bytes, **needs)


def _programs_by_node_and_engine(host: ClusterHost) -> dict[str, dict[str, str]]:
    """Return for each node the programs of the engines that hosts.toml names: {node: {engine:
    path}}."""
    entries = HostsStore().content.hosts
    found = {}
    for node in host.nodes:
        entry = entries.get(node.name)
        engines = entry.engines if entry is not None else {}
        found[node.name] = {name: shlex.split(text)[0] for name, text in engines.items() if text}
    return found


def _node_for_plan(
    node: NodeToCheck, name: str, plan: LaunchPlan, cluster: ClusterHost
) -> NodeToCheck:
    """Return the node called `name` with the plan's program, if the plan names one, and its
    model. The model of a simulated cluster is not looked for."""
    chosen = _executable_for_node(plan, name)
    if chosen is not None:
        node = replace(node, executables={**node.executables, plan.engine: chosen})
    if cluster.simulated is None:
        node = replace(node, model=partial(_identify_model_on_node, node.host, plan))
    return node


def sorted_cluster_findings(report: ClusterReport) -> Sequence[Finding]:
    """Return the problems of the cluster, the most severe first."""
    return by_severity(cluster_checks.cluster_findings(report))


async def check_cluster_can_start_plan(
    host: ClusterHost, editor: PlanEditor, *, replaces_server: bool
) -> None:
    """Raise ServerError if the cluster cannot start the editor's plan: if its examination finds an
    error. With `replaces_server`, the start stops another server first, so taken ports and GPU
    memory are no errors."""
    report = await examine_cluster(host, editor)
    passing = FINDINGS_FREED_BY_STOP if replaces_server else ()
    found = sorted_cluster_findings(report)
    errors = [f for f in found if f.level is Level.ERROR and f.code not in passing]
    if errors:
        command = f"workbench cluster check {host.entry.name} {editor.plan.preset_id or ''}".strip()
        raise ServerError(
            errors[0].text,
            host=host.name,
            next_step=f"{errors[0].fix or 'correct it, then start again'}; `{command}` lists all",
            findings=errors,
        )


def node_text(node: NodeReport) -> str:
    """Return a node as one line: address, interface, RDMA devices, GPUs and driver; "not reached"
    for a node that could not be reached."""
    if node.problem is not None:
        return "not reached"
    place, driver = node.place, node.seen.driver.driver_version
    words = (
        place.address or "address unknown",
        place.interface,
        ",".join(place.rdma) or "no RDMA",
        count_of(len(node.seen.gpus), "GPU"),
        f"driver {driver}" if driver else "no driver",
    )
    return "  ".join(filter(None, words))


def _executable_for_node(plan: LaunchPlan, node_name: str) -> str | None:
    """Return the program that the plan starts on a node; None if it is the engine's usual one."""
    words = plan.executable
    for node in plan.nodes:
        if node.name == node_name and not node.role and node.executable:
            words = node.executable
    return words[0] if words else None


async def _identify_model_on_node(host: Host, plan: LaunchPlan) -> ModelFingerprint:
    return await read_model_fingerprint(host, plan, plan.env_texts)


def _ports_of_plan(plan: LaunchPlan, editor: PlanEditor) -> Iterator[int]:
    """Yield the ports that the plan uses on the cluster's first node: one for requests, and those
    through which the processes on the nodes find each other."""
    yield editor.launch_command().port
    flags = plan.flag_values
    if plan.nodes:
        flags |= plan.nodes[0].flags
    for name in _PORT_FLAGS:
        if isinstance(port := flags.get(name), int):
            yield port
    for name in _ADDRESS_FLAGS:
        port = parse_whole_number(str(flags.get(name, "")).rpartition(":")[2])
        if port is not None:
            yield port


def _needed_bytes_per_gpu(editor: PlanEditor) -> int | None:
    """Return the bytes that the plan needs on each GPU; None if there is no estimate."""
    estimate = editor.estimate_memory()
    return None if isinstance(estimate, str) else ceil(estimate.used_gib_per_gpu * _GIB)
