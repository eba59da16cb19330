"""The status of a server from those of its ranks: every combination of their states gives one clear
answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workbench.model.cluster_run import ClusterRank, ClusterRun
from workbench.model.findings import Finding, Level
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server import cluster_log, cluster_state
from workbench.server.cluster_state import RankState

LIVE = (ServerState.STARTING, ServerState.READY, ServerState.UNRESPONSIVE)
ENDED = (ServerState.FAILED, ServerState.CRASHED)
NCCL = "torch.distributed.DistBackendError: NCCL error: remote process exited"


def rank(
    number: int,
    state: ServerState | None,
    reason: str | None = None,
    ended_ago_s: float | None = None,
    unreachable: str | None = None,
    findings: tuple[Finding, ...] = (),
) -> RankState:
    name = ClusterRank(
        f"spark-0{number + 1}", f"20261122-200000-vllm-000{number}", f"rank {number}"
    )
    if state is None:
        return RankState(name, None, None, unreachable)
    alive = state in (*LIVE, ServerState.STOPPING)
    ready = 1.0 if number == 0 and state in (ServerState.READY, ServerState.CRASHED) else None
    status = ServerStatus(
        name.run_id,
        "vllm",
        state,
        name.host,
        alive=alive,
        reason=reason,
        ready_unix_s=ready,
        findings=findings,
    )
    return RankState(name, status, ended_ago_s, unreachable)


def status_of(*ranks: RankState, age_s: float = 1000.0) -> ServerStatus:
    run = ClusterRun("sparks", "rank 0", tuple(r.rank for r in ranks))
    return cluster_state.merge_rank_states(run, ranks, "cluster:sparks", age_s)


def test_ready_only_if_the_head_is_ready_and_every_rank_lives() -> None:
    ready, live = rank(0, ServerState.READY), rank(1, ServerState.STARTING)
    assert status_of(ready, live).state is ServerState.READY
    lost = status_of(ready, rank(1, ServerState.UNKNOWN, "no connection for 3 s"))
    assert (lost.state, lost.reason) == (
        ServerState.UNKNOWN,
        "rank 1 on spark-02: no connection for 3 s",
    )
    assert status_of(ready, rank(1, None, unreachable="no route")).state is ServerState.UNKNOWN
    assert status_of(ready, rank(1, None), age_s=1.0).state is ServerState.STARTING
    never = status_of(ready, rank(1, None))
    assert (never.state, never.reason) == (
        ServerState.CRASHED,
        "rank 1 on spark-02 was never started",
    )


def test_a_lost_link_stops_nothing() -> None:
    lost = (rank(0, ServerState.READY), rank(1, ServerState.UNKNOWN, "no connection"))
    assert cluster_state.find_ranks_to_stop(lost, 1000.0) == ()
    assert (
        cluster_state.find_ranks_to_stop(
            (rank(0, ServerState.READY), rank(1, None, unreachable="no route")), 1000.0
        )
        == ()
    )


def test_the_first_end_that_is_not_a_consequence_is_the_cause() -> None:
    head = rank(0, ServerState.CRASHED, NCCL, ended_ago_s=5.0)
    killed = rank(
        1, ServerState.FAILED, "the server's process was killed by SIGKILL", ended_ago_s=4.0
    )
    assert (
        cluster_state.find_first_failed_rank((head, killed)) is killed
    )  # although the clock of its exit is later
    both = (
        rank(0, ServerState.CRASHED, "CUDA error", 1.0),
        rank(1, ServerState.FAILED, "out of memory", 2.0),
    )
    assert cluster_state.find_first_failed_rank(both) is both[1]
    unknown_end = rank(1, ServerState.FAILED, "the host was restarted", None)
    assert cluster_state.find_first_failed_rank((head, unknown_end)) is unknown_end
    consequences = rank(0, ServerState.CRASHED, NCCL, 1.0), rank(1, ServerState.FAILED, NCCL, 2.0)
    assert cluster_state.find_first_failed_rank(consequences) is consequences[1]


def test_the_findings_of_the_cause_come_first() -> None:
    memory = Finding(Level.ERROR, "log.oom", "no memory is left")
    other = Finding(Level.ERROR, "log.nccl", "a rank has gone")
    status = status_of(
        rank(0, ServerState.CRASHED, NCCL, 1.0, findings=(other,)),
        rank(1, ServerState.FAILED, "OutOfMemoryError", 2.0, findings=(memory,)),
    )
    assert [f.code for f in status.findings] == ["log.oom", "log.nccl"]
    assert status.findings[0].text == "rank 1 on spark-02: no memory is left"


def test_a_stop_that_could_not_reach_a_node_says_so() -> None:
    status = status_of(rank(0, ServerState.STOPPED), rank(1, ServerState.UNKNOWN, "no connection"))
    assert status.state is ServerState.STOPPING
    assert status.reason == (
        "rank 1 on spark-02 cannot be reached and is stopped when the link is back"
    )
    back = (rank(0, ServerState.STOPPED), rank(1, ServerState.STARTING))
    assert [r.rank.label for r in cluster_state.find_ranks_to_stop(back, 1000.0)] == ["rank 1"]
    assert (
        status_of(rank(0, ServerState.STOPPED), rank(1, ServerState.STOPPED)).state
        is ServerState.STOPPED
    )


STATES = st.sampled_from([*ServerState, None])


@given(st.lists(STATES, min_size=1, max_size=4), st.floats(0, 200), st.booleans())
def test_every_combination_of_ranks(
    states: list[ServerState | None], age_s: float, unreachable: bool
) -> None:
    why = "no route" if unreachable else None
    ranks = tuple(
        rank(i, s, unreachable=why if s is None else None, ended_ago_s=1.0)
        for i, s in enumerate(states)
    )
    status = status_of(*ranks, age_s=age_s)
    assert len(status.ranks) == len(ranks)
    everyone_lives = all(r.is_live for r in ranks)
    if status.state is ServerState.READY:
        assert everyone_lives and states[0] is ServerState.READY
    if any(r.has_failed for r in ranks):
        assert status.state in ENDED and status.reason and not status.alive
    stopping = cluster_state.find_ranks_to_stop(ranks, age_s)
    assert all(r.has_living_processes for r in stopping)
    if stopping:
        assert not everyone_lives or any(s is ServerState.STOPPING for s in states)


def test_logs_are_merged_by_the_times_in_their_lines() -> None:
    logs = {
        "rank 0": ["INFO 11-22 23:59:58 a", "Traceback", "INFO 11-23 00:00:03 c"],
        "rank 1": ["INFO 11-22 23:59:59 b", "INFO 11-23 00:00:05 d"],
    }
    merged = cluster_log.merge_logs(logs)
    assert [line[9:][-1] for line in merged] == ["a", "k", "b", "c", "d"]
    assert merged[0] == "[rank 0] INFO 11-22 23:59:58 a" and merged[2].startswith("[rank 1] ")


@given(
    st.dictionaries(
        st.sampled_from(["rank 0", "rank 1", "ray 0"]), st.lists(st.text(max_size=60), max_size=8)
    )
)
def test_no_line_of_a_log_is_lost_or_moved_within_its_rank(logs: dict[str, list[str]]) -> None:
    merged = cluster_log.merge_logs(logs)
    for label, lines in logs.items():
        assert [m for m in merged if m.startswith(f"[{label}] ")] == [
            cluster_log.label_line(label, x) for x in lines
        ]
    assert len(merged) == sum(map(len, logs.values()))
