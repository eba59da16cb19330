"""A server that spans several hosts. Each of its ranks is a separate run on its own host."""

from __future__ import annotations

from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ClusterRank:
    """One process of a server that spans several hosts, with the run that Workbench started for it.
    Its log lines begin with `label`: "rank 0" for a rank of the engine, or "ray 1" for a Ray
    process."""

    host: str  # as the cluster names its node
    run_id: str
    label: str


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """All ranks of a server that spans several hosts. The record of each rank's run contains this
    list. The first rank is the head: its run id, port, readiness and counters are those of the
    whole server."""

    cluster: str
    label: str  # of the rank whose record this is
    ranks: tuple[ClusterRank, ...]
    # memory that the server leaves free on each node with unified memory
    reserve_gib: float | None = None

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
