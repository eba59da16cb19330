"""Starts a rank of a server on several nodes together with a watch process (rank_watch.py), which
ends the rank when another rank has ended. Without a watch process, a rank could hang for hours
while no Workbench is open."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType

from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.model.cluster_run import ClusterRank, ClusterRun
from workbench.model.errors import HostError
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass

RANK_WATCH_PROGRAM, ORDERS_FILE = "rank_watch.py", "watch.json"
# Seconds. A network that is gone for five minutes has ended the server as well: vLLM waits as long
# for a step of a rank (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS).
WATCH_TIMES_S: Mapping[str, float] = MappingProxyType(
    {
        "beat_s": 5.0,
        "silent_s": 300.0,
        # after which a rank that does not reach the first one says so in its log
        "connect_s": 60.0,
        "first_s": 10.0,
        "marked_s": 30.0,
        "grace_s": 5.0,
    }
)
_FREE_PORT_SCRIPT = """import socket, sys
with socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET) as one:
    one.bind((sys.argv[1], 0))
    print(one.getsockname()[1])
"""
_START_WATCHED_SCRIPT = read_script(__file__, "start_watched_rank.sh")
_WATCH_SCRIPT = read_script(__file__, "watch_rank.sh")
UNWATCHED_CODE = "cluster.unwatched"


@dataclass(frozen=True, slots=True)
class RankWatch:
    """The settings that the watch processes of all ranks of one server share. `ranks` has the names
    of the ranks, the head's first. The head's watch listens at `address` and `port`. `key` is the
    secret with which the watches authenticate their messages."""

    ranks: tuple[str, ...]
    address: str  # of the head, in the network of the nodes
    port: int
    key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    times: Mapping[str, float] = field(default_factory=lambda: WATCH_TIMES_S)

    def watched_start_command(self, run_dir: str, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that starts the watch process of a rank, whose run directory is
        `run_dir`, in the background, and then runs the server `argv`."""
        return ("sh", "-c", _START_WATCHED_SCRIPT, "sh", run_dir, _WATCH_SCRIPT, *argv)

    def file_texts_by_name(self, rank_name: str) -> Mapping[str, str]:
        """Return the texts, by name, of the files that the watch process of the rank `rank_name`
        needs in its run directory."""
        orders = {
            "own": rank_name,
            "ranks": self.ranks,
            "address": self.address,
            "port": self.port,
            "key": self.key,
            "times": dict(self.times),
        }
        program = Path(__file__).with_name(RANK_WATCH_PROGRAM).read_text("utf-8")
        return {RANK_WATCH_PROGRAM: program, ORDERS_FILE: json.dumps(orders)}


@dataclass(frozen=True, slots=True)
class RankStart:
    """A rank to start: the run id of the rank, the server to which it belongs, with this rank's
    label, and the settings of its watch process. `watch` is None if the rank gets no watch process.
    """

    run_id: str
    server: ClusterRun
    watch: RankWatch | None = None

    @property
    def rank_name(self) -> str:
        """The name of this rank for its watch process, such as "rank 1 on spark-02"."""
        return next(
            rank_name_with_host(rank) for rank in self.server.ranks if rank.run_id == self.run_id
        )


def rank_name_with_host(rank: ClusterRank) -> str:
    """Return the label of a rank and its host, such as "rank 1 on spark-02"."""
    return f"{rank.label} on {rank.host}"


async def make_rank_watch(head: Host, address: str | None, server: ClusterRun) -> RankWatch | None:
    """Return the settings of the watch processes of `server`, which end a rank when another has
    ended. Its first rank runs on the host `head`, which has `address` in the network of the nodes.
    None if that is unknown, if the host has no python3 or names no free port, or if there is one
    rank."""
    if not address or len(server.ranks) < 2:
        return None
    try:
        done = await head.run(["python3", "-I", "-S", "-c", _FREE_PORT_SCRIPT, address])
    except HostError:
        return None
    port = done.out.strip()
    if done.returncode != 0 or not port.isdecimal() or len(port) > 5:
        return None
    return RankWatch(tuple(map(rank_name_with_host, server.ranks)), address, int(port))


def unwatched_ranks_warning(server: ClusterRun) -> tuple[Finding, ...]:
    """Return a warning that the ranks of `server` have no watch processes, so that they keep
    running if one ends while no Workbench is open. () for a server with one rank."""
    if len(server.ranks) < 2:
        return ()
    host = server.ranks[0].host
    text = (
        f"if a rank ends while no Workbench is open, the others keep running: {host} has no "
        "known address or python3"
    )
    fix = f"install python3 on {host}, and give its address in the cluster of hosts.toml"
    return (Finding(Level.WARN, UNWATCHED_CODE, text, fix=fix),)
