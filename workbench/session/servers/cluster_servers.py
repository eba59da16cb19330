"""The servers of a cluster with the state of each rank (a server's process on one node), and the
check of a cluster together with its servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.hosts.cluster import ClusterHost
from workbench.model.counts import count_of
from workbench.model.errors import WorkbenchError
from workbench.model.findings import Finding, Level, by_severity
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerState, living_servers_sentence
from workbench.session.hosts import cluster_check

if TYPE_CHECKING:
    from workbench.model.cluster_run import RankStatus
    from workbench.model.server_run import ServerStatus
    from workbench.session.plans.plan_editor import PlanEditor
    from workbench.session.session import Session

STATE_TIMEOUT_S = 15.0
_TRANSPORT_FINDINGS = ("log.nccl-rdma", "log.nccl-socket")


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The nodes and servers of a cluster at one moment. `labels_and_texts` are pairs (label, text)
    about the nodes, the servers, and each server's processes on the nodes. `servers` are the
    servers that may still have processes."""

    name: str
    findings: Sequence[Finding]
    labels_and_texts: Sequence[tuple[str, str]]
    servers: Sequence[ServerStatus]


def cluster_host_of(session: Session) -> ClusterHost:
    """Return the cluster that is the session's host."""
    assert isinstance(session.host, ClusterHost)
    return session.host


async def examine_cluster_and_servers(
    session: Session, editor: PlanEditor | None
) -> ClusterSnapshot:
    """Check the cluster that is the session's host, and read its servers. With `editor`, also check
    what the editor's plan needs on the nodes."""
    report, servers = await asyncio.gather(
        cluster_check.examine_cluster(cluster_host_of(session), editor),
        read_cluster_servers(session),
    )
    lines = [(node.name, cluster_check.node_text(node)) for node in report.nodes]
    living = [status for status in servers if status.may_still_be_running]
    for status in living or servers[:1]:
        lines += [("server", server_text(status)), *rank_labels_and_states(status)]
        if status.alive and (text := await rank_transport_text(session, status)):
            lines.append(("transport", text))
    said = [f for status in living for f in status.findings if f.level in (Level.ERROR, Level.WARN)]
    return ClusterSnapshot(
        session.host.name,
        by_severity([*cluster_check.sorted_cluster_findings(report), *said]),
        lines,
        living,
    )


async def read_cluster_servers(session: Session) -> Sequence[ServerStatus]:
    """Return the servers of the cluster as they are now, the newest first."""
    await session.servers.supervisor.runs()
    return await session.servers.supervisor.check_servers_now()


async def rank_transport_text(session: Session, status: ServerStatus) -> str | None:
    """Return a sentence on how the server's processes on the nodes exchange data, read from its
    log: NCCL over RDMA or over sockets. None if the log does not say."""
    supervisor = session.servers.supervisor
    await supervisor.load_log(status.run_id)
    for finding in supervisor.findings_in_log(status.run_id):
        if finding.code in _TRANSPORT_FINDINGS:
            return finding.text
    return None


def server_text(status: ServerStatus) -> str:
    """Return a server as one line: run id, state, engine, model, and one detail. The detail is the
    reason of the state, else the phase of the start, else the URL, if one of them is known."""
    detail = status.reason or status.phase or status.url or ""
    simulated = " SIMULATED" if status.simulated else ""
    return f"{status.run_id}  {status.state_word:<12} {status.engine}  {status.model}  {detail}{simulated}"


def rank_labels_and_states(status: ServerStatus) -> Iterator[tuple[str, str]]:
    """Yield a pair (label, text) for each rank of a server. A rank is one of the processes that a
    server has on the nodes of a cluster."""
    for rank in status.ranks:
        pid = f"pid {rank.pid}" if rank.pid else ""
        yield (
            rank.label,
            (f"{rank.host:<16} {_rank_state(rank):<12} {pid}  {rank.reason or ''}").rstrip(),
        )


def _rank_state(rank: RankStatus) -> str:
    """Return the state of a rank, a server's process on one node, as text. A rank without a port of
    its own never becomes READY, so it is "running" as long as it lives."""
    if rank.alive and rank.state == ServerState.STARTING:
        return "running"
    return str(rank.state)


async def living_cluster_servers_text(name: str, open_session: Callable[[str], Session]) -> str:
    """Return a short text on the servers of a cluster, or the reason why they are not known. The
    user is not asked for a password."""
    session: Session | None = None
    try:
        # may load the ssh library, which takes long
        session = await asyncio.to_thread(open_session, name)
        async with asyncio.timeout(STATE_TIMEOUT_S):
            await session.link.connect()
            return living_servers_sentence(await read_cluster_servers(session))
    except TimeoutError:
        return f"no answer within {STATE_TIMEOUT_S:g} s"
    except WorkbenchError as error:
        return f"not reached: {error.message}"
    finally:
        if session is not None:
            await session.close()


def finding_counts_text(findings: Sequence[Finding]) -> str:
    """Return the numbers of errors and of warnings among `findings` as text, such as "1 error, 2
    warnings"; "ok" if there is neither."""
    levels = [finding.level for finding in findings]
    counts = ((levels.count(Level.ERROR), "error"), (levels.count(Level.WARN), "warning"))
    return ", ".join(count_of(count, noun) for count, noun in counts if count) or "ok"
