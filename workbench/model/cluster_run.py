"""A server that spans several hosts. Each of its ranks is an ordinary run on a host of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterRank:
    """One run of a server that spans several hosts. Its log lines begin with `label`: "rank 0", or "ray 1" for a Ray
    process beside the ranks."""

    host: str  # as the cluster names its node
    run_id: str
    label: str


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """The facts about all ranks of a server, which the record of each rank contains. The first rank is the head. Its
    run id identifies the whole server, and its port, readiness and counters are those of the server."""

    cluster: str
    label: str  # of the rank whose record this is
    ranks: tuple[ClusterRank, ...]
    reserve_gib: float | None = None  # memory that the server leaves free on each node with unified memory

    @property
    def server_id(self) -> str:
        return self.ranks[0].run_id


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The state of one rank, as a part of the server's status."""

    label: str
    host: str
    run_id: str
    state: str  # a ServerState, or "not started"
    alive: bool = False
    pid: int | None = None
    reason: str | None = None
    run_dir: str | None = None
