"""The commands `cluster start`, `cluster stop` and `cluster status`: one server on several
hosts."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.cli import servers
from workbench.cli.open_session import (
    connect_session,
    warn_if_benchmark_runs,
    warn_of_unreached_nodes,
)
from workbench.cli.output import format_finding_line, print_json, print_line, print_message
from workbench.cli.registry import command, option
from workbench.model.errors import InputError, ServerError
from workbench.model.findings import Level

if TYPE_CHECKING:
    from workbench.model.server_run import ServerStatus
    from workbench.session.session import Session

_PARTLY = "the nodes that answer"
_NAME = option("name NAME", "a cluster of hosts.toml")


def set_cluster_from_argument(arguments: argparse.Namespace) -> None:
    """Set --cluster to the cluster that the argument NAME of the command names. Raises InputError
    if --cluster names a different cluster."""
    if arguments.cluster not in (None, arguments.name):
        step = "leave out --cluster"
        text = (
            f"the command names the cluster {arguments.name}, but --cluster names "
            f"{arguments.cluster}"
        )
        raise InputError(text, next_step=step)
    arguments.cluster = arguments.name


@command(
    "cluster start",
    "start one server on all nodes of a cluster, and print its run id",
    _NAME,
    *servers.START_OPTIONS,
    examples=(
        "workbench cluster start sparks vllm-llama-3.3-70b-2x-spark --wait",
        "workbench cluster start sparks vllm-any --set tensor-parallel-size=2",
    ),
)
async def start_cluster_server(arguments: argparse.Namespace) -> int:
    set_cluster_from_argument(arguments)
    return await servers.start_server(arguments)


@command(
    "cluster stop",
    "stop a server on all nodes of a cluster",
    _NAME,
    option("run RUN", "id of a run; the only living one without it", nargs="?"),
    examples=("workbench cluster stop sparks",),
)
async def stop_cluster_server(arguments: argparse.Namespace) -> int:
    set_cluster_from_argument(arguments)
    async with connect_session(arguments) as session:
        status = await _find_named_or_living_run(session, arguments.run)
        await warn_if_benchmark_runs(session)
        await session.servers.stop(status.run_id)
        status = session.servers.supervisor.status(status.run_id)
    if arguments.json:
        print_json(servers.status_json(status))
    else:
        _print_server(status)
    return 1 if status.may_still_be_running else 0


@command(
    "cluster status",
    "show the servers of a cluster with the state of each rank, and how its nodes reach each other",
    _NAME,
    examples=("workbench cluster status sparks", "workbench cluster status sparks --json"),
)
async def print_cluster_status(arguments: argparse.Namespace) -> int:
    from workbench.session.servers import cluster_servers

    set_cluster_from_argument(arguments)
    async with connect_session(arguments) as session:
        partly = warn_of_unreached_nodes(session)
        found = await cluster_servers.read_cluster_servers(session)
        transports = {
            s.run_id: await cluster_servers.rank_transport_text(session, s)
            for s in found
            if s.ranks and s.alive
        }
        host = cluster_servers.cluster_host_of(session)
        nodes = [
            {**asdict(place), "reached": node.host.connected}
            for place, node in zip(host.places, host.nodes, strict=True)
        ]
        document = {
            "cluster": host.entry.name,
            "label": host.entry.label,
            "reserve_gib": host.entry.reserve_gib,
            "nodes": nodes,
            "servers": [
                {**servers.status_json(s), "transport": transports.get(s.run_id)} for s in found
            ],
        }
    if arguments.json:
        return print_json(document)
    for rank, place in enumerate(host.places):
        words = (
            place.host,
            place.address or "address unknown",
            place.interface,
            ",".join(place.rdma),
        )
        print_line("  ".join((str(rank), *filter(None, words))))
        if place.problem:
            print_line(f"   {place.problem}")
    for each in found:
        _print_server(each)
        if transports.get(each.run_id):
            print_line(f"  transport: {transports[each.run_id]}")
    if not found:
        where = _PARTLY if partly else "this cluster"
        print_message(f"no servers on {where}")
    return 0


async def _find_named_or_living_run(session: Session, run: str | None) -> ServerStatus:
    """Return the server run that `run` names. If `run` is None, return the only run whose server
    may still be alive. Raises ServerError if there is not exactly one such run."""
    if run is not None:
        return await servers.find_run(session, run)
    partly = warn_of_unreached_nodes(session)
    living = [
        status for status in await session.servers.supervisor.runs() if status.may_still_be_running
    ]
    if len(living) == 1:
        return living[0]
    listed = ", ".join(status.run_id for status in living)
    where = _PARTLY if partly else "this cluster"
    problem = f"no server runs on {where}"
    if living:
        problem = f"{len(living)} servers run on {where}: {listed}"
    raise ServerError(
        problem,
        host=session.host.name,
        next_step="`workbench cluster status NAME` lists the servers",
    )


def _print_server(status: ServerStatus) -> None:
    from workbench.session.servers.cluster_servers import rank_labels_and_states, server_text

    print_line(server_text(status))
    for label, text in rank_labels_and_states(status):
        print_line(f"  {label:<8} {text}")
    for finding in status.findings:
        if finding.level in (Level.ERROR, Level.WARN):
            print_line(f"  {format_finding_line(finding)}")
