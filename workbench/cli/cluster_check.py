"""The command `cluster check`: whether the nodes of a cluster fit together, before a server starts
on them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.cluster import set_cluster_from_argument
from workbench.cli.open_session import connect_session
from workbench.cli.output import items_as_json, print_json_or_lines, print_message
from workbench.cli.plan import load_plan
from workbench.cli.registry import command, option
from workbench.cli.shared_options import CHANGES
from workbench.hosts.base import HostUnreachable
from workbench.model.findings import Level, most_severe_level

if TYPE_CHECKING:
    from workbench.doctor.cluster_facts import ClusterReport


@command(
    "cluster check",
    "compare the nodes of a cluster: network, versions, model files, ports, clocks, memory, "
    "leftovers",
    option("name NAME", "a cluster of hosts.toml"),
    option("preset PRESET", "a preset: its model, ports and memory are checked too", nargs="?"),
    *CHANGES,
    examples=(
        "workbench cluster check sparks",
        "workbench cluster check sparks vllm-llama-3.3-70b-2x-spark",
    ),
)
async def check_cluster(arguments: argparse.Namespace) -> int:
    from workbench.report.finding_blocks import doctor_blocks
    from workbench.report.formats.terminal import block_lines
    from workbench.session.hosts import cluster_check
    from workbench.session.servers.cluster_servers import cluster_host_of

    set_cluster_from_argument(arguments)
    async with connect_session(arguments) as session:
        if arguments.preset:
            try:
                await load_plan(session, arguments)
            except HostUnreachable:  # the report names the node
                print_message(f"{arguments.preset} is not checked: its addresses are not known")
        report = await cluster_check.examine_cluster(
            cluster_host_of(session), session.plans.current
        )
    found = cluster_check.sorted_cluster_findings(report)
    lines = [(node.name, cluster_check.node_text(node)) for node in report.nodes]
    document = {
        "cluster": arguments.name,
        **_cluster_report_json(report),
        "findings": items_as_json(found),
    }
    blocks = doctor_blocks(found, lines, "The nodes fit together.")
    print_json_or_lines(arguments.json, document, block_lines(blocks))
    return 1 if most_severe_level(found) is Level.ERROR else 0


def _cluster_report_json(report: ClusterReport) -> dict[str, Any]:
    """Return the properties of each node, the connections between the nodes and the memory need as
    JSON data."""
    nodes = [
        {
            **asdict(node.place),
            "network": asdict(node.network),
            "problem": node.problem or node.place.problem,
            "driver": node.seen.driver.driver_version,
            "gpus": [gpu.name for gpu in node.seen.gpus],
            "engines": {
                engine.engine: engine.version for engine in node.seen.engines if engine.version
            },
            "packages": {stack.engine: dict(stack.versions) for stack in node.seen.packages},
            "model": node.model and asdict(node.model),
            "clock_ahead_s": node.clock_ahead_s,
            "clock_error_s": node.clock_error_s,
            **{
                name: node.look.get(name)
                for name in ("memory", "ray", "segments", "taken", "names")
            },
        }
        for node in report.nodes
    ]
    return {
        "nodes": nodes,
        "connections": list(map(asdict, report.connections)),
        "engine": report.engine,
        "model": report.model,
        "need_bytes_per_gpu": report.need_bytes,
        "reserve_bytes": report.reserve_bytes,
    }
