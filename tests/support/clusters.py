"""Clusters of simulated hosts: two nodes on this machine, each with a state directory of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from support.serving import free_port, supervised

from workbench import engines
from workbench.engines.cluster import spread_plan_over_nodes
from workbench.hosts.base import Host
from workbench.hosts.cluster import ClusterHost
from workbench.hosts.local import LocalHost
from workbench.model.host_entry import ClusterEntry, ClusterNode
from workbench.model.plan import Command, LaunchPlan, Node
from workbench.model.server_run import ServerStatus
from workbench.server.cluster_supervisor import ClusterSupervisor
from workbench.server.supervisor import ServerEvent
from workbench.session.session import Session
from workbench.sim.simulated_host import SimulatedHost

VLLM = engines.get_engine("vllm")
READY_S = 40.0
NAMES = ("spark-01", "spark-02")
PRESET = "vllm-llama-3.3-70b-2x-spark"


def node(inner: Host, directory: Path, profile: str = "gb10") -> SimulatedHost:
    host = SimulatedHost(inner, profile, str(directory))
    host.of_cluster = True
    return host


def cluster(
    directory: Path,
    inner: Sequence[Host] = (),
    reserve_gib: float | None = None,
    addressed: bool = True,
) -> ClusterHost:
    """Return a cluster of two nodes. `inner` are the hosts on which they are, this machine without
    them."""
    hosts = inner or [LocalHost() for _ in NAMES]
    address = "127.0.0.1" if addressed else None
    nodes = tuple(ClusterNode(name, address, "lo" if addressed else None) for name in NAMES)
    entry = ClusterEntry("sparks", nodes, reserve_gib=reserve_gib)
    return ClusterHost(
        entry, [node(host, directory / name) for host, name in zip(hosts, NAMES, strict=True)]
    )


def plan_of(host: ClusterHost, **env: str) -> LaunchPlan:
    """Return a plan of two ranks on free ports."""
    flags = {
        "tensor-parallel-size": 2,
        "port": free_port(),
        "max-model-len": 8192,
        "gpu-memory-utilization": 0.8,
    }
    plan = LaunchPlan("vllm", "meta-llama/Llama-3.3-70B-Instruct")
    for name, value in flags.items():
        plan = plan.with_flag(name, value)
    for name, text in {"WORKBENCH_SIM_START_S": "0.3", **env}.items():
        plan = plan.with_env(name, text)
    plan = spread_plan_over_nodes(plan, VLLM, host.places)
    master = free_port()
    nodes = (
        replace(n, flags={**n.flags, "master-port": master}) if not n.role else n
        for n in plan.nodes
    )
    return replace(plan, nodes=tuple(nodes))


def commands_of(plan: LaunchPlan) -> list[tuple[Node, Command]]:
    return [(node, VLLM.command(plan, node)) for node in plan.nodes]


async def loaded(session: Session, preset: str = PRESET, **env: str) -> None:
    """Connect the session to its cluster, and load a preset for two Sparks on free ports."""
    await session.link.connect()
    session.core.update(telemetry=await session.telemetry.get_recent_reading())
    await session.plans.load_preset(preset)
    editor = session.plans.editor
    sets = [f"port={free_port()}"]
    sets += [f"master-port={free_port()}"] if editor.plan.flag("master-port") else []
    simulated = {"WORKBENCH_SIM_START_S": "0.2", "WORKBENCH_SIM_SPEEDUP": "100", **env}
    editor.apply_assignments(
        sets,
        ["NCCL_NET"] if preset == PRESET else [],
        [f"{name}={text}" for name, text in simulated.items()],
    )


async def start(supervisor: ClusterSupervisor, plan: LaunchPlan) -> ServerStatus:
    return await supervisor.start_ranks(plan, commands_of(plan), VLLM, simulated=True)


async def ready(supervisor: ClusterSupervisor, plan: LaunchPlan) -> ServerStatus:
    status = await start(supervisor, plan)
    return await supervisor.wait_ready(status.run_id, READY_S)


def clustered(
    host: ClusterHost, scenario: Callable[[ClusterSupervisor, list[ServerEvent]], Awaitable[None]]
) -> None:
    """Run `scenario` with the supervisor of a cluster and its events. Stop every server afterwards."""

    async def connected(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        await host.connect()
        await scenario(supervisor, events)

    supervised(connected, host, ClusterSupervisor)
