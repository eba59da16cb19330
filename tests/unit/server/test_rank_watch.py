"""Watches beside ranks, with real processes: a rank that ends while no Workbench is open ends the
others, and nothing else does."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.clusters import NAMES, cluster, clustered, plan_of, ready
from support.serving import eventually, free_port

from workbench.hosts import detached_process
from workbench.hosts.local import LocalHost
from workbench.model.cluster_run import ClusterRank, ClusterRun
from workbench.model.server_run import ServerState
from workbench.server import rank_watch, watched_rank
from workbench.server.cluster_supervisor import ClusterSupervisor
from workbench.server.supervisor import ServerEvent
from workbench.server.watched_rank import RankWatch, make_rank_watch, unwatched_ranks_warning

TIMES = {
    "beat_s": 0.25,
    "silent_s": 4.0,
    "connect_s": 0.5,
    "first_s": 0.5,
    "marked_s": 1.0,
    "grace_s": 1.0,
}
RANKS = ("rank 0 on a", "rank 1 on b", "rank 2 on c")
SERVER = ("sh", "-c", "sleep 300 & wait")


class Ranks:
    """Three ranks on this machine, each a run of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.host = directory, LocalHost()
        self.watch = RankWatch(RANKS, "127.0.0.1", free_port(), times=TIMES)
        self.pids: list[int] = []

    async def start(self, at: int, watch: RankWatch | None = None) -> None:
        run_dir, watch = self.run_dir(at), watch or self.watch
        for name, text in watch.file_texts_by_name(RANKS[at]).items():
            await self.host.write_file(f"{run_dir}/{name}", text.encode())
        started = await detached_process.start_detached(
            self.host, str(run_dir), watch.watched_start_command(str(run_dir), SERVER)
        )
        self.pids.append(started.pid)

    def run_dir(self, at: int) -> Path:
        return self.directory / f"run-{at}"

    def log(self, at: int) -> str:
        return (self.run_dir(at) / "log").read_text()

    def session(self, at: int) -> list[psutil.Process]:
        """Return the processes of a rank's session, without its leader."""
        sid = int((self.run_dir(at) / "sid").read_text())
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if (
                    os.getsid(process.pid) == sid
                    and process.pid != sid
                    and process.status() != "zombie"
                ):
                    found.append(process)
        return found

    def watch_pid(self, at: int) -> int:
        for process in self.session(at):
            with suppress(psutil.Error):
                if "python" in process.name():
                    return process.pid
        return 0

    async def connected(self, at: int) -> None:
        def links() -> bool:
            pid = self.watch_pid(at)
            with suppress(psutil.Error):
                seen = psutil.Process(pid).net_connections() if pid else []
                return any(
                    c.status == "ESTABLISHED" and self.watch.port in (c.laddr.port, c.raddr.port)
                    for c in seen
                )
            return False

        await eventually(links, 10, f"the link of rank {at}")

    async def gone(self, *every: int, seconds: float = 10) -> None:
        for at in every:
            await eventually(lambda at=at: not self.session(at), seconds, f"the end of rank {at}")  # type: ignore[misc]

    def alive(self, at: int) -> bool:
        return psutil.pid_exists(self.pids[at])


def three(directory: Path, scenario: Callable[[Ranks], Awaitable[None]]) -> None:
    async def go() -> None:
        ranks = Ranks(directory)
        try:
            for at in range(3):
                await ranks.start(at)
            for at in (1, 2):
                await ranks.connected(at)
            await scenario(ranks)
        finally:
            for at in range(3):
                await detached_process.stop_run(ranks.host, str(ranks.run_dir(at)), grace_s=0.1)

    asyncio.run(go())


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_the_end_of_one_rank_ends_the_others(tmp_path: Path, killed: int) -> None:
    async def scenario(ranks: Ranks) -> None:
        os.kill(ranks.pids[killed], signal.SIGKILL)
        others = [at for at in range(3) if at != killed]
        await ranks.gone(*others)
        for at in others:
            assert (f"workbench: {RANKS[killed]} has ended: this rank is stopped too") in ranks.log(
                at
            )
            assert (ranks.run_dir(at) / "stop.json").exists()
        # it was not stopped: its end is the reason
        assert not (ranks.run_dir(killed) / "stop.json").exists()

    three(tmp_path, scenario)


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_without_a_sign_of_life_counts_as_ended(tmp_path: Path) -> None:
    async def scenario(ranks: Ranks) -> None:
        for process in ranks.session(1):  # as if its node had lost power
            process.send_signal(signal.SIGSTOP)
        await ranks.gone(0, 2, seconds=20)
        assert f"{RANKS[1]} has not been heard of for 4 s: this rank is stopped too" in ranks.log(0)
        for process in ranks.session(1):
            process.send_signal(signal.SIGKILL)

    three(tmp_path, scenario)


@pytest.mark.slow
def test_watches_that_are_killed_come_back_and_end_nothing(tmp_path: Path) -> None:
    async def scenario(ranks: Ranks) -> None:
        for at in (0, 1):
            before = ranks.watch_pid(at)
            os.kill(before, signal.SIGKILL)
            await eventually(lambda at=at, b=before: ranks.watch_pid(at) not in (0, b), 10)  # type: ignore[misc]
        for at in (1, 2):
            await ranks.connected(at)
        assert all(ranks.alive(at) for at in range(3))
        assert not any("stopped too" in ranks.log(at) for at in range(3))
        os.kill(ranks.pids[2], signal.SIGKILL)
        await ranks.gone(0, 1)

    three(tmp_path, scenario)


@pytest.mark.slow
def test_nobody_without_the_key_ends_a_rank(tmp_path: Path) -> None:
    async def scenario(ranks: Ranks) -> None:
        forger = RankWatch(RANKS, "127.0.0.1", ranks.watch.port, times=TIMES)
        mac = rank_watch.Watch(
            str(tmp_path), 1, json.loads(forger.file_texts_by_name(RANKS[1])["watch.json"])
        )._message_mac(RANKS[1], "ended")
        lines: list[Any] = [
            [RANKS[1], "ended", mac],
            [RANKS[1], "ended", "é"],
            [1],
            7,
            [[], "ended", ""],
            {},
        ]
        for line in [
            *(json.dumps(one).encode() for one in lines),
            b"\xff",
            b"x" * 200_000,
            b"[" * 50_000,
        ]:
            reader, writer = await asyncio.open_connection("127.0.0.1", ranks.watch.port)
            writer.write(line + b"\n")
            with suppress(ConnectionError):
                while await reader.read(4096):  # until the watch has hung up
                    pass
            writer.close()
        assert all(ranks.alive(at) for at in range(3)) and "stopped too" not in ranks.log(0)
        os.kill(ranks.pids[1], signal.SIGKILL)  # the watch of the head still works
        await ranks.gone(0, 2)

    three(tmp_path, scenario)


def test_strangers_that_hold_every_link_make_room_and_harm_nothing(tmp_path: Path) -> None:
    """More connections than the first rank takes, and an answer that is nested too deeply."""

    async def scenario() -> None:
        ranks = RankWatch(RANKS, "127.0.0.1", free_port(), times={**TIMES, "beat_s": 60.0})
        head, other = (
            rank_watch.Watch(
                str(tmp_path), os.getpid(), json.loads(ranks.file_texts_by_name(own)["watch.json"])
            )
            for own in RANKS[:2]
        )
        await head._listen_for_ranks()
        assert head._server is not None
        opened: list[asyncio.StreamWriter] = []

        async def connect() -> None:
            opened.append((await asyncio.open_connection("127.0.0.1", ranks.port))[1])

        try:
            for _ in range(70):
                await connect()
            await eventually(lambda: len(head._links) == rank_watch._MAX_LINKS)
            opened[-1].write(b"[" * 50_000 + b"\n")
            await eventually(lambda: len(head._links) == rank_watch._MAX_LINKS - 1)
            await connect()
            await eventually(lambda: len(head._links) == rank_watch._MAX_LINKS)
            linked = asyncio.ensure_future(other._keep_connected())
            await eventually(lambda: RANKS[1] in head._silent_s and RANKS[0] in other._silent_s)
            assert not linked.done() and head._over is other._over is None
            linked.cancel()
        finally:
            for writer in opened:
                writer.close()
            head._server.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_workbench_that_stops_the_ranks_is_given_time(tmp_path: Path) -> None:
    async def scenario(ranks: Ranks) -> None:
        # marked by a Workbench, which then dies
        (ranks.run_dir(1) / "stop.json").write_text('{"unix_s": 1}')
        os.kill(ranks.pids[0], signal.SIGKILL)
        await ranks.gone(2)
        assert ranks.alive(1)
        await ranks.gone(1)
        assert json.loads((ranks.run_dir(1) / "stop.json").read_text())["unix_s"] > 1

    three(tmp_path, scenario)


@pytest.mark.slow
def test_a_rank_that_cannot_reach_the_first_one_says_so_and_runs(tmp_path: Path) -> None:
    async def go() -> None:
        ranks = Ranks(tmp_path)
        try:
            await ranks.start(1)
            await eventually(lambda: "cannot reach the first rank at 127.0.0.1" in ranks.log(1), 10)
            assert ranks.alive(0)
        finally:
            await detached_process.stop_run(ranks.host, str(ranks.run_dir(1)), grace_s=0.1)

    asyncio.run(go())


@pytest.mark.long
@pytest.mark.slow
def test_a_closed_screen_leaves_no_rank_without_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        watched_rank, "WATCH_TIMES_S", {**watched_rank.WATCH_TIMES_S, "first_s": 0.5}
    )
    host = cluster(tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, plan_of(host, WORKBENCH_SIM_PEER_LOST_S="never"))
        assert status.state is ServerState.READY, status.reason
        assert watched_rank.UNWATCHED_CODE not in {finding.code for finding in status.findings}
        pids = [rank.pid for rank in status.ranks if rank.pid]
        await supervisor.close()  # the screen is closed
        os.kill(pids[1], signal.SIGKILL)
        await eventually(
            lambda: not any(psutil.pid_exists(pid) for pid in pids), 20, "the end of all ranks"
        )
        second = ClusterSupervisor(host)
        try:
            await second.runs()
            seen = second.status(status.run_id)
            assert seen.state is ServerState.CRASHED and seen.exit_signal == "SIGKILL"
            assert seen.reason == (
                f"rank 1 on {NAMES[1]}: the server's process was killed by SIGKILL"
            )
            log = (await second.load_log(status.run_id)).lines()
            assert (
                "[rank 0] workbench: rank 1 on spark-02 has ended: this rank is stopped too"
            ) in log
        finally:
            await second.close()
        await supervisor.runs()

    clustered(host, scenario)


def test_a_server_without_watches_says_so() -> None:
    ranks = tuple(ClusterRank(name, f"run-{at}", f"rank {at}") for at, name in enumerate(NAMES))
    server = ClusterRun("sparks", "rank 0", ranks)
    assert asyncio.run(make_rank_watch(LocalHost(), None, server)) is None
    # an address that it does not have
    assert asyncio.run(make_rank_watch(LocalHost(), "203.0.113.7", server)) is None
    (finding,) = unwatched_ranks_warning(server)
    assert "the others keep running" in finding.text and NAMES[0] in (finding.fix or "")
    assert unwatched_ranks_warning(ClusterRun("sparks", "rank 0", ranks[:1])) == ()


def test_the_watch_runs_on_an_old_python_without_packages() -> None:
    path = Path(rank_watch.__file__)
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names) | {"__future__"}
