"""The status of a server that runs as ranks on several hosts, computed from the statuses of its
ranks. All functions are pure, so that two Workbench processes with the same data report the same
status and stop the same ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from workbench.model.cluster_run import ClusterRank, ClusterRun, RankStatus
from workbench.model.counts import is_or_are
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.run_state import RANK_FINDING_CODE

NOT_STARTED_TEXT = "not started"
# after the first rank's start, a rank without a run directory was never started
NEVER_STARTED_AFTER_S = 60.0

_STOPPED_STATES = (ServerState.STOPPING, ServerState.STOPPED)
_FAILED_STATES = (ServerState.FAILED, ServerState.CRASHED)
# Errors that only say that another rank has gone: of NCCL, Gloo, torch's store, ZeroMQ and vLLM's
# and SGLang's own watchers (texts of torch 2.13, vLLM 0.33 and SGLang 0.5.23).
_CONSEQUENCE_ERRORS = re.compile(
    r"ncclRemoteError|NCCL error|remote process exited|"
    r"[Cc]onnection (?:closed|reset) by (?:remote )?peer|"
    r"Connection refused|Broken pipe|Socket(?: [Tt]imeout| closed)|recvValue failed|sendBytes "
    r"failed|TCPStore|"
    r"DistNetworkError|DistStoreError|DistBackendError|[Gg]loo|Watchdog caught collective "
    r"operation timeout|"
    r"EngineDeadError|EngineCore encountered|RPC call to \w+ timed out|cancelled|shm_broadcast|"
    r"node (?:died|is dead|failure)|ActorDiedError|ActorUnavailableError|rank \d+ (?:has "
    r")?(?:died|exited|gone)"
)


@dataclass(frozen=True, slots=True)
class RankState:
    """What is known about a rank, the part of a server that runs on one of several hosts. `status`
    is None if the rank's run was not found on its host. `unreachable` is the reason why that host
    could not be queried, or None. `ended_ago_s` is how many seconds ago the rank ended."""

    rank: ClusterRank
    status: ServerStatus | None
    ended_ago_s: float | None = None
    unreachable: str | None = None

    @property
    def state(self) -> ServerState | None:
        if self.status is None:
            return None
        return self.status.state

    @property
    def is_run_missing(self) -> bool:
        """Whether the rank's run was not found on its host."""
        return self.status is None

    @property
    def has_unknown_state(self) -> bool:
        """Whether the rank's state is unknown, because its host could not be queried or could not
        tell. False for a run that was not found on a host that answered."""
        if self.status is None:
            return self.unreachable is not None
        return self.state is ServerState.UNKNOWN

    @property
    def _known_status(self) -> ServerStatus | None:
        """The status of the rank, None if its state is unknown."""
        return None if self.has_unknown_state else self.status

    @property
    def is_live(self) -> bool:
        """Whether the rank's main process is known to be alive."""
        status = self._known_status
        if status is None:
            return False
        return status.alive

    @property
    def has_living_processes(self) -> bool:
        """Whether a process of the rank is known to be alive, even if the main process has
        ended."""
        status = self._known_status
        if status is None:
            return False
        return status.alive or status.outlived > 0

    @property
    def was_stopped(self) -> bool:
        return self.state in _STOPPED_STATES

    @property
    def has_failed(self) -> bool:
        """Whether the rank's main process has ended without a request to stop it."""
        return self.state in _FAILED_STATES and not self.is_live

    @property
    def has_ended_completely(self) -> bool:
        """Whether the rank has ended, and no process of it is left."""
        ended = self.has_failed or self.state is ServerState.STOPPED
        return ended and not self.has_living_processes

    @property
    def state_reason(self) -> str | None:
        """Why the rank is in its state; None if no reason or no state is known."""
        if self.status is None:
            return None
        return self.status.reason

    @property
    def findings(self) -> tuple[Finding, ...]:
        if self.status is None:
            return ()
        return self.status.findings

    @property
    def label_and_host(self) -> str:
        return f"{self.rank.label} on {self.rank.host}"

    def as_rank_status(self) -> RankStatus:
        """Return the rank for the list of ranks in the status of its server."""
        rank, status = self.rank, self.status
        if status is None:
            state = str(ServerState.UNKNOWN) if self.unreachable else NOT_STARTED_TEXT
            return RankStatus(rank.label, rank.host, rank.run_id, state, reason=self.unreachable)
        return RankStatus(
            rank.label,
            rank.host,
            rank.run_id,
            str(status.state),
            status.alive,
            status.pid,
            status.reason,
            status.run_dir,
        )


def find_never_started_ranks(
    ranks: Sequence[RankState], server_age_s: float
) -> tuple[RankState, ...]:
    """Return the ranks that have no run although their hosts could be queried. `server_age_s` is
    how many seconds ago the server was started: up to NEVER_STARTED_AFTER_S, a rank may still be
    starting, and () is returned."""
    if server_age_s <= NEVER_STARTED_AFTER_S:
        return ()
    return tuple(rank for rank in ranks if rank.is_run_missing and not rank.unreachable)


def find_ranks_to_stop(ranks: Sequence[RankState], server_age_s: float) -> tuple[RankState, ...]:
    """Return the ranks to stop, the head (the first rank) first. If any rank has failed, was
    stopped or was never started, these are all ranks with living processes, otherwise (). The
    server was started `server_age_s` seconds ago."""
    ended = any(rank.has_failed or rank.was_stopped for rank in ranks)
    if not ended and not find_never_started_ranks(ranks, server_age_s):
        return ()
    return tuple(rank for rank in ranks if rank.has_living_processes)


def find_first_failed_rank(ranks: Sequence[RankState]) -> RankState | None:
    """Return the rank whose failure made the other ranks fail; None if none has failed. It is the
    one that failed first, of those whose error does not only report the loss of another rank if
    there are such."""

    def sort_key_of_failed_rank(rank: RankState) -> tuple[bool, float]:
        is_consequence = bool(_CONSEQUENCE_ERRORS.search(rank.state_reason or ""))
        return is_consequence, math.inf if rank.ended_ago_s is None else -rank.ended_ago_s

    failed = (rank for rank in ranks if rank.has_failed)
    return min(failed, key=sort_key_of_failed_rank, default=None)


def merge_rank_states(
    run: ClusterRun, ranks: Sequence[RankState], host: str, server_age_s: float
) -> ServerStatus:
    """Return the status of the server `run`, which was started `server_age_s` seconds ago on the
    cluster named `host`, from the states of its `ranks`, the head first. A server is READY if its
    head is, and no rank has ended, is missing or has an unknown state."""
    unknown = ServerStatus(run.server_id, "", ServerState.UNKNOWN, host)
    base = next((rank.status for rank in ranks if rank.status is not None), unknown)
    state, reason, first = _state_reason_and_rank(ranks, base, server_age_s)
    living = [rank for rank in ranks if rank.has_living_processes]
    is_end_certain = first is not None or not ranks[0].is_live
    has_ended = state in _FAILED_STATES and is_end_certain
    stopping = living if has_ended else []
    merged_status = replace(
        base,
        run_id=run.server_id,
        host=host,
        state=state,
        reason=reason,
        findings=_collect_rank_findings(ranks, first, stopping),
        alive=bool(living) and not has_ended,
        outlived=len(stopping),
        ranks=tuple(map(RankState.as_rank_status, ranks)),
    )
    blamed = first.status if first is not None else None
    if blamed is None or not has_ended:
        return merged_status
    return replace(
        merged_status,
        exit_code=blamed.exit_code,
        exit_signal=blamed.exit_signal,
        ended_unix_s=blamed.ended_unix_s,
    )


def _state_reason_and_rank(
    ranks: Sequence[RankState], base: ServerStatus, age_s: float
) -> tuple[ServerState, str | None, RankState | None]:
    """Return (state of the server, reason for the state, rank that caused the state). `base` is the
    status of the first rank that has one, and `age_s` how long ago the server was started. Reason
    and rank are None if the state needs no explanation."""
    ended = ServerState.CRASHED if base.ready_unix_s else ServerState.FAILED
    if (first := find_first_failed_rank(ranks)) is not None:
        return (
            ended,
            f"{first.label_and_host}: {first.state_reason or 'it ended without an error line'}",
            first,
        )
    unknown = [rank for rank in ranks if rank.has_unknown_state]
    if any(rank.was_stopped for rank in ranks):
        if unknown:
            named = " and ".join(rank.label_and_host for rank in unknown)
            text = f"{named} cannot be reached and {is_or_are(len(unknown))} stopped when the link is back"
            return ServerState.STOPPING, text, None
        if any(rank.has_living_processes for rank in ranks):
            return ServerState.STOPPING, None, None
        return ServerState.STOPPED, None, None
    if missing := find_never_started_ranks(ranks, age_s):
        return ended, f"{missing[0].label_and_host} was never started", missing[0]
    if unknown:
        lost = unknown[0]
        why = lost.unreachable or lost.state_reason or "the host cannot be reached"
        return ServerState.UNKNOWN, f"{lost.label_and_host}: {why}", lost
    if any(rank.is_run_missing for rank in ranks):
        return ServerState.STARTING, None, None
    return base.state, base.reason, None


def _collect_rank_findings(
    ranks: Sequence[RankState], cause: RankState | None, stopping: Sequence[RankState]
) -> tuple[Finding, ...]:
    """Return the findings of all ranks, one for each code, those of `cause`, the rank that caused
    the server's state, first. One more finding names the ranks in `stopping`, which are still being
    stopped."""
    found: dict[str, Finding] = {}
    if stopping:
        named = ", ".join(rank.label_and_host for rank in stopping)
        text = (
            f"a server of several ranks cannot go on without one of them: {named} "
            f"{is_or_are(len(stopping))} being stopped"
        )
        found["cluster.stopping"] = Finding(Level.WARN, "cluster.stopping", text)
    for rank in sorted(ranks, key=lambda rank: rank is not cause):
        for finding in rank.findings:
            if finding.code == RANK_FINDING_CODE:
                continue
            if rank is not ranks[0]:
                finding = replace(finding, text=f"{rank.label_and_host}: {finding.text}", line=None)
            found.setdefault(finding.code, finding)
    if cause is not None and stopping:
        # the findings of the rank to blame come before what follows from them
        found["cluster.stopping"] = found.pop("cluster.stopping")
    return tuple(found.values())
