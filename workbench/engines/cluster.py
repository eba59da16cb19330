"""The distribution of a plan over the nodes of a cluster: the flags and the environment of each
rank."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from workbench.engines import ray
from workbench.engines.base import Engine
from workbench.engines.host_entries import FILE
from workbench.model.findings import Finding, Level
from workbench.model.flags import Origin
from workbench.model.gpu import GpuInfo
from workbench.model.host_entry import HostEntry
from workbench.model.node_network import NodeAddress
from workbench.model.plan import PARALLEL_SIZES, LaunchPlan, Node
from workbench.model.run_options import PROCESS

# The lines of NCCL's log that name the transport. Without them a fall-back to TCP stays unseen.
_NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
_NCCL_LOG_FROM = "Workbench reads from NCCL's log whether RDMA is in use"


def spread_plan_over_nodes(
    plan: LaunchPlan, engine: Engine, places: Sequence[NodeAddress]
) -> LaunchPlan:
    """Return the plan with one node for each rank, named after the hosts in `places`. Nodes that
    the plan already has keep their flags and environment. The plan is returned unchanged, to run on
    the head only, if it needs fewer GPUs than there are hosts, if its engine cannot span hosts, or
    if it has more ranks than there are hosts."""
    nodes = plan.nodes or _make_rank_nodes(plan, engine, places)
    if not nodes or len({node.rank for node in nodes}) > len(places):
        return plan
    derived = [_network_variables_with_origins(engine, place) for place in places]
    return replace(
        plan,
        nodes=tuple(
            _apply_host_settings_to_node(plan, node, places[node.rank], derived) for node in nodes
        ),
    )


def _make_rank_nodes(
    plan: LaunchPlan, engine: Engine, places: Sequence[NodeAddress]
) -> tuple[Node, ...]:
    count, head = len(places), places[0].address_or_name
    if plan.gpu_count < count or count < 2:
        return ()
    if ray.uses_ray(plan):
        beside = []
        for rank, place in enumerate(places):
            flags = {"node-ip-address": place.address_or_name, "address": head}
            beside.append(Node(place.host, rank, flags, role=ray.ROLE))
        return (Node(places[0].host, 0), *beside)
    nodes = []
    for rank, place in enumerate(places):
        own = engine.flags_of_rank(plan, rank, count, head)
        if own is not None:
            nodes.append(Node(place.host, rank, own))
    return tuple(nodes)


def _network_variables_with_origins(
    engine: Engine, place: NodeAddress
) -> dict[str, tuple[str, str]]:
    """Return the environment variables with which one node joins the cluster's network: {name:
    (value, where the value comes from)}. They set the host address, the network interface, the RDMA
    devices and the log of NCCL."""
    found: dict[str, tuple[str, str]] = {}
    if place.address and engine.host_address_env:
        found[engine.host_address_env] = (
            place.address,
            (f"address of {place.host}: {place.origins.get('address', '')}"),
        )
    if place.interface:
        why = f"interface of {place.host}: {place.origins.get('interface', '')}"
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES"):
            found[name] = place.interface, why
    if place.rdma:
        why = f"RDMA devices of {place.host}: {place.origins.get('rdma', '')}"
        found["NCCL_IB_HCA"] = ",".join(place.rdma), why
    return {**found, **{name: (value, _NCCL_LOG_FROM) for name, value in _NCCL_LOG.items()}}


def _apply_host_settings_to_node(
    plan: LaunchPlan,
    node: Node,
    place: NodeAddress,
    network_variables: Sequence[Mapping[str, tuple[str, str]]],
) -> Node:
    """Return `node` with the host name, program and environment variables of its host.

    `network_variables` lists the network variables of each node in rank order. The node gets its
    own, unless the plan sets another value for all nodes. A value in the plan that equals that of
    the head node does not count, because it was made for the head's host.
    """
    whole = plan.env_texts
    of_head = {e.name for e in plan.env if e.origin is Origin.HOST}
    env, origins = dict(node.env), {}
    for name, (value, why) in network_variables[node.rank].items():
        of_first = network_variables[0].get(name, ("", ""))[0]
        if name not in env and whole.get(name, of_first) == of_first:
            env[name] = value
        if env.get(name, whole.get(name)) == value:
            origins[name] = why
    for name, value in _host_entry_or_empty(place).env.items():
        replaces_head = name in of_head and whole[name] != value
        if name not in env and (replaces_head or name not in whole):
            env[name], origins[name] = value, f"{place.host} in {FILE}"
    return replace(
        node,
        name=place.host,
        env=env,
        origins=origins,
        executable=_own_program_of_node(plan, place),
    )


def _host_entry_or_empty(place: NodeAddress) -> HostEntry:
    """Return the entry of a node's host in hosts.toml; an empty one if there is none."""
    return place.entry or HostEntry(place.host)


def _own_program_of_node(plan: LaunchPlan, place: NodeAddress) -> tuple[str, ...] | None:
    """Return the program that hosts.toml names for the engine on this node's host. None if that
    program equals the plan's, or if the user or the preset chose the program for all nodes."""
    if plan.executable_from not in ("", FILE):
        return None
    own = tuple(shlex.split(_host_entry_or_empty(place).engines.get(plan.engine, "")))
    return None if own == plan.executable else own


def report_cluster_problems(
    plan: LaunchPlan, engine: Engine, places: Sequence[NodeAddress]
) -> Iterator[Finding]:
    """Yield findings about a plan that `spread_plan_over_nodes` has distributed over the hosts in
    `places`: unknown addresses, too few nodes, missing RDMA, different launchers, and network
    variables that differ from those of a node."""
    for place in places:
        if place.problem:
            fix = "give the node's address and interface in hosts.toml"
            yield Finding(
                Level.ERROR,
                "cluster.address",
                f"the address of {place.host} is not known: {place.problem}",
                fix=fix,
            )
    ranks = {node.rank for node in plan.nodes}
    if len(ranks) > len(places):
        text = f"the plan has {len(ranks)} nodes, the cluster has {len(places)}"
        yield Finding(
            Level.ERROR,
            "cluster.nodes",
            text,
            fix="add the missing nodes to the cluster in hosts.toml",
        )
        return
    if not ranks:
        yield _single_node_finding(plan, engine, places)
        return
    yield from _report_nodes_without_rdma(plan, places)
    yield from _report_different_launchers(plan, [places[rank] for rank in sorted(ranks)])
    whole = plan.env_texts
    for node in plan.nodes:
        for name, (value, why) in _network_variables_with_origins(
            engine, places[node.rank]
        ).items():
            given = node.env.get(name, whole.get(name))
            if given is not None and given != value and name not in _NCCL_LOG:
                text = (
                    f"{node.name} ({node.node_title}): {name} is {given} in the plan, but {value} "
                    f"is the {why}"
                )
                yield Finding(
                    Level.WARN,
                    "cluster.environment",
                    text,
                    name,
                    f"unset {name}, so that {node.name} gets {value}",
                )


def _report_different_launchers(
    plan: LaunchPlan, places: Sequence[NodeAddress]
) -> Iterator[Finding]:
    """Yield an error if hosts.toml gives the nodes in `places` different launchers or launcher
    options, and the plan uses the launcher of the first node. Yield a warning if a launcher such as
    systemd runs the ranks."""
    ways = [_launcher_and_option_words(place) for place in places]
    other = next((at for at, way in enumerate(ways) if way != ways[0]), None)
    if other is not None and plan.run_as == ways[0][0]:
        first, second = (f"{places[at].host} as {' '.join(ways[at])}" for at in (0, other))
        text = (
            f"{FILE} starts servers on {first}, and on {second}; the ranks of a server are "
            "all started in one way"
        )
        fix = (
            f"give the nodes the same run_as and run_options in {FILE}, or choose another way "
            "for all with --as"
        )
        yield Finding(Level.ERROR, "cluster.run-as", text, fix=fix)
    if plan.run_as != PROCESS:
        text = (
            f"ranks that {plan.run_as} runs have no watch and no memory guard: if one ends "
            "while no Workbench is "
        )
        text += "open, the others keep running"
        yield Finding(
            Level.WARN,
            "cluster.unwatched-launcher",
            text,
            fix="keep Workbench open, or use --as process",
        )


def _launcher_and_option_words(place: NodeAddress) -> tuple[str, ...]:
    """Return the name of the launcher with which hosts.toml starts servers on a node, followed by
    the launcher's options."""
    entry = _host_entry_or_empty(place)
    options = [
        f"{name}={' '.join(text.splitlines())}" for name, text in sorted(entry.run_options.items())
    ]
    return (entry.run_as or PROCESS, *options)


def _report_nodes_without_rdma(
    plan: LaunchPlan, places: Sequence[NodeAddress]
) -> Iterator[Finding]:
    """Yield a finding for each node without an active RDMA device, if the plan's NCCL variables
    require RDMA."""
    wanted = []
    for name in ("NCCL_IB_HCA", "NCCL_NET"):
        value = plan.env_texts.get(name, "Socket")
        if value != "Socket":
            wanted.append(f"{name}={value}")
    if not wanted:
        return
    for place in places:
        if place.interface and not place.rdma:
            text = (
                f"the plan sets {' and '.join(wanted)}, but {place.host} has no active RDMA device "
                f"on {place.interface}"
            )
            fix = (
                f"check the cable and `ibdev2netdev` on {place.host}, or unset "
                f"{wanted[0].partition('=')[0]}"
            )
            yield Finding(Level.WARN, "cluster.no-rdma", text, wanted[0].partition("=")[0], fix)


def report_missing_cluster_memory_reserve(
    gpus: Sequence[GpuInfo], reserve_gib: float | None
) -> Iterator[Finding]:
    """Yield a finding if GPUs share memory with the CPU and hosts.toml sets no `reserve_gib`. This
    is the free memory in GiB below which Workbench stops a server, so that the host does not
    freeze."""
    if reserve_gib is None and any(gpu.unified_memory for gpu in gpus):
        text = (
            "the GPUs share the memory of their hosts, and without memory left a host freezes "
            "without a message"
        )
        fix = (
            "set reserve_gib of the cluster in hosts.toml, such as 8: Workbench then stops the "
            "server before that"
        )
        yield Finding(Level.HINT, "cluster.no-reserve", text, fix=fix)


def _single_node_finding(
    plan: LaunchPlan, engine: Engine, places: Sequence[NodeAddress]
) -> Finding:
    head = places[0].host
    if engine.flags_of_rank(plan, 0, len(places), head) is None:
        text = f"{engine.title} cannot span several hosts: the server runs on {head} alone"
        return Finding(Level.WARN, "cluster.one-node", text)
    size = PARALLEL_SIZES[0]
    text = (
        f"the plan uses {plan.gpu_count} of the GPUs of {len(places)} nodes: the server runs "
        f"on {head} alone"
    )
    return Finding(
        Level.INFO,
        "cluster.one-node",
        text,
        size,
        f"set {size} to at least {len(places)} to use all nodes",
    )
