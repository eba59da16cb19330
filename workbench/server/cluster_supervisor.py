"""Starts and stops the servers of a cluster: those that run only on its head (the first node), and
those whose ranks run on several nodes.

The record of each rank names all ranks of its server (model/cluster_run.py), so a Workbench process
that reads one record knows the whole server and can stop it. If a rank ends, is stopped or was
never started, each Workbench process that notices this stops the other ranks. Stopping a rank twice
does no harm, so these processes need no coordination. A rank whose host cannot be reached is
stopped when the host can be reached again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

from workbench.hosts.cluster import ClusterHost
from workbench.hosts.task_cancellation import cancel_all, is_running
from workbench.model.cluster_run import ClusterRank, ClusterRun
from workbench.model.errors import HostError, ServerError, WorkbenchError
from workbench.model.server_run import LogBatch, ServerState, ServerStatus
from workbench.server import cluster_log, cluster_state, preflight, ray_cluster, watched_rank
from workbench.server.cluster_state import RankState
from workbench.server.log_lines import LogMatch, LogRing
from workbench.server.run_directory import (
    RANK_ENDS_FILE,
    RankEnd,
    RunRecord,
    encode_rank_ends,
    new_run_id,
)
from workbench.server.supervisor import (
    NEWEST_RUNS,
    READY_TIMEOUT_S,
    STOP_GRACE_S,
    PreparedServer,
    ServerEvent,
    Supervisor,
)
from workbench.server.watched_rank import RankStart

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.model.findings import Finding
    from workbench.model.host_entry import ClusterEntry
    from workbench.model.plan import Command, LaunchPlan, Node
    from workbench.server.watched_run import WatchedRun

OTHERS_GRACE_S = 4.0  # from TERM to KILL for ranks whose server is lost anyway
_SEARCH_INTERVAL_S = 3.0  # between two searches for ranks that were not found
_SETTLE_TIMEOUT_S = 20.0  # for the other ranks to be stopped, before a command or the screen ends


class ClusterSupervisor(Supervisor):
    """Starts, watches and stops the servers of a cluster. It is itself the supervisor of the head,
    the first node, and has one further supervisor for each of the other nodes. It presents a server
    that spans several nodes as one run, under the run id of the head's rank."""

    def __init__(
        self, host: ClusterHost, on_event: Callable[[ServerEvent], None] = lambda event: None
    ) -> None:
        self._head = host.nodes[0].name
        super().__init__(host, partial(self._update_server_from_rank_event, self._head))
        self._emit_event = on_event
        self._others = {
            node.name: Supervisor(
                node.host, partial(self._update_server_from_rank_event, node.name)
            )
            for node in host.nodes[1:]
        }
        self._supervisors: dict[str, Supervisor] = {self._head: self, **self._others}  # by node
        self._unreachable: dict[str, str] = {}  # node: why it could not be asked for its runs
        # servers that this supervisor starts or stops: nothing else ends their ranks
        self._held: set[str] = set()
        # lists of runs that are being read: until all nodes were, no state is known
        self._reading = 0
        self._rings: dict[str, LogRing] = {}
        self._heard: set[tuple[str, str]] = set()  # server and rank whose log was read
        self._last: dict[str, ServerStatus] = {}
        self._stop_tasks: dict[str, asyncio.Task[None]] = {}  # stop the other ranks of a server
        self._search_task: asyncio.Task[None] | None = None  # for ranks that were not found
        self._write_tasks: set[asyncio.Task[None]] = set()  # write how the ranks of a server ended

    # ---- the ranks of a server

    def _find_rank_run(self, rank: ClusterRank) -> WatchedRun | None:
        supervisor = self._supervisors.get(rank.host)
        if supervisor is None:
            return None
        return supervisor.get_watched_run(rank.run_id)

    def _records_by_server(self) -> dict[str, RunRecord]:
        """Return the record of each known server that has several ranks, by server id: that of its
        head if it is known, otherwise that of another rank."""
        found: dict[str, RunRecord] = {}
        for supervisor in reversed(self._supervisors.values()):
            for run in supervisor.watched_runs():
                cluster = run.record.cluster
                if cluster is None:
                    continue
                if run.record.has_port or cluster.server_id not in found:
                    found[cluster.server_id] = run.record
        return found

    def _find_cluster_run(self, run_id: str) -> ClusterRun | None:
        """Return the server of several ranks whose id is `run_id`, that of its head's run. None for
        any other run, and for an unknown one."""
        record = self._records_by_server().get(run_id)
        if not record:
            return None
        return record.cluster

    def _rank_states(self, server: ClusterRun) -> tuple[RankState, ...]:
        head = self._find_rank_run(server.ranks[0])
        ends = head.facts.rank_ends if head is not None else {}
        return tuple(self._rank_state(rank, ends.get(rank.run_id)) for rank in server.ranks)

    def _rank_state(self, rank: ClusterRank, end: RankEnd | None) -> RankState:
        """Return what is known about a rank. `end` is how it ended by the files of the head, which
        counts if its run was not read from its own host; None if they do not say."""
        run = self._find_rank_run(rank)
        if run is not None:
            return RankState(rank, run.status, run.ended_ago_s)
        if end is not None:
            state = ServerState(end.state)
            status = ServerStatus(rank.run_id, "", state, rank.host, reason=end.reason)
            return RankState(rank, status)
        unreachable = self._unreachable.get(rank.host)
        if rank.host not in self._supervisors:
            unreachable = "the cluster has no such node any more"
        return RankState(rank, None, unreachable=unreachable)

    def _age_of_server_s(self, server_id: str) -> float:
        if server_id in self._held:
            return 0.0
        return time.time() - self._records_by_server()[server_id].created_unix_s

    def _compute_server_status(self, server: ClusterRun) -> ServerStatus:
        return cluster_state.merge_rank_states(
            server,
            self._rank_states(server),
            self.host.name,
            self._age_of_server_s(server.server_id),
        )

    # ---- what is known now

    def status(self, run_id: str) -> ServerStatus:
        server = self._find_cluster_run(run_id)
        return self._compute_server_status(server) if server else super().status(run_id)

    def statuses(self) -> tuple[ServerStatus, ...]:
        plain = [run.status for run in self.watched_runs() if run.record.cluster is None]
        merged = map(self._compute_server_status, self._list_cluster_runs())
        return tuple(sorted((*plain, *merged), key=lambda status: status.run_id, reverse=True))

    def record(self, run_id: str) -> RunRecord:
        return self._records_by_server().get(run_id) or super().record(run_id)

    def log(self, run_id: str) -> LogRing:
        server = self._find_cluster_run(run_id)
        if server is None:
            return super().log(run_id)
        if run_id not in self._rings:
            ranks = self._watched_ranks(server)
            logs = {rank.label: run.follower.ring.lines() for rank, run in ranks}
            ring = self._rings[run_id] = LogRing()
            ring.extend(cluster_log.merge_logs(logs))
        return self._rings[run_id]

    def findings_in_log(self, run_id: str) -> tuple[Finding, ...]:
        server = self._find_cluster_run(run_id)
        if server is None:
            return super().findings_in_log(run_id)
        found = []
        for rank, run in self._watched_ranks(server):
            for finding in run.findings_in_log:
                found.append(replace(finding, text=f"{rank.label}: {finding.text}", line=None))
        return tuple(found)

    def _watched_ranks(self, server: ClusterRun) -> list[tuple[ClusterRank, WatchedRun]]:
        runs = zip(server.ranks, map(self._find_rank_run, server.ranks), strict=True)
        return [(rank, run) for rank, run in runs if run is not None]

    # ---- events of the nodes

    def _update_server_from_rank_event(self, node: str, event: ServerEvent) -> None:
        server = self._find_server_of_rank(event.run_id)
        if server is None:
            if node == self._head and self.get_watched_run(event.run_id) is not None:
                # a server of the head alone
                self._emit_event(event)
            return
        if isinstance(event, LogBatch):
            rank = next(rank for rank in server.ranks if rank.run_id == event.run_id)
            if rank.host != node:  # two nodes may share a home directory
                return
            lines = tuple(cluster_log.label_line(rank.label, line) for line in event.lines)
            # perhaps all that the rank wrote until now
            if (server.server_id, rank.label) not in self._heard:
                self._heard.add((server.server_id, rank.label))
                self._rings.pop(server.server_id, None)  # merged anew, in the order of the times
            elif server.server_id in self._rings:
                self._rings[server.server_id].extend(lines)
            self._emit_event(replace(event, run_id=server.server_id, lines=lines))
            return
        if not self._reading:
            self._publish_status_or_stop_ranks(server)

    def _find_server_of_rank(self, run_id: str) -> ClusterRun | None:
        for server in self._list_cluster_runs():
            if any(rank.run_id == run_id for rank in server.ranks):
                return server
        return None

    def _publish_status_or_stop_ranks(self, server: ClusterRun) -> None:
        """Publish the status of a server if that has changed. If one of its ranks has ended, begin
        to stop the others. Record how its ranks ended, and begin to search for missing ones."""
        server_id, status = server.server_id, self._compute_server_status(server)
        if self._last.get(server_id) != status:
            self._last[server_id] = status
            self._emit_event(status)
            self._wake_watchers()
        is_idle = server_id not in self._held and not is_running(self._stop_tasks.get(server_id))
        if is_idle and self._ranks_to_stop(server):
            self._stop_tasks[server_id] = asyncio.create_task(
                self._stop_ranks_after_failure(server)
            )
        ranks = self._rank_states(server)
        self._store_rank_ends(server, ranks)
        lives = any(rank.has_living_processes for rank in ranks)
        missing = [rank for rank in ranks if rank.is_run_missing]
        if any(lives or rank.unreachable for rank in missing):
            self._start_rank_search()

    def _publish_servers_or_stop_ranks(self) -> None:
        for server in self._list_cluster_runs():
            self._publish_status_or_stop_ranks(server)

    def _store_rank_ends(self, server: ClusterRun, ranks: Sequence[RankState]) -> None:
        """Once all ranks of a server have ended, begin to write how they did into the directory of
        the head's run: a node may be out of reach when the server is listed later."""
        head = self._find_rank_run(server.ranks[0])
        if head is None or head.facts.rank_ends:
            return
        if not all(rank.has_ended_completely for rank in ranks):
            return
        ends = {one.rank.run_id: RankEnd(str(one.state), one.state_reason) for one in ranks}
        head.facts = replace(head.facts, rank_ends=ends)
        task = asyncio.create_task(self._write_rank_ends(head, ends))
        self._write_tasks.add(task)
        task.add_done_callback(self._write_tasks.discard)

    async def _write_rank_ends(self, head: WatchedRun, ends: Mapping[str, RankEnd]) -> None:
        with contextlib.suppress(HostError):  # the next Workbench writes it
            await self.host.write_file(f"{head.run_dir}/{RANK_ENDS_FILE}", encode_rank_ends(ends))

    def _ranks_to_stop(self, server: ClusterRun) -> tuple[RankState, ...]:
        return cluster_state.find_ranks_to_stop(
            self._rank_states(server), self._age_of_server_s(server.server_id)
        )

    async def _stop_ranks_after_failure(self, server: ClusterRun) -> None:
        while due := self._ranks_to_stop(server):
            await self._stop_ranks((state.rank for state in due), OTHERS_GRACE_S)
            if self._ranks_to_stop(server):  # processes that hang in the driver
                await asyncio.sleep(_SEARCH_INTERVAL_S)

    def _start_rank_search(self) -> None:
        if not is_running(self._search_task):
            self._search_task = asyncio.create_task(self._search_missing_ranks())

    async def _search_missing_ranks(self) -> None:
        await asyncio.sleep(_SEARCH_INTERVAL_S)
        missing = set[str]()
        for server in self._list_cluster_runs():
            missing.update(one.rank.host for one in self._rank_states(server) if one.is_run_missing)
        await self._load_runs_of_nodes(missing & self._others.keys(), NEWEST_RUNS)
        self._search_task = None
        self._publish_servers_or_stop_ranks()

    def _list_cluster_runs(self) -> list[ClusterRun]:
        return [record.cluster for record in self._records_by_server().values() if record.cluster]

    # ---- list and adopt

    async def runs(self, newest: int = NEWEST_RUNS) -> tuple[ServerStatus, ...]:
        self._reading += 1
        try:
            await asyncio.gather(
                super().runs(newest), self._load_runs_of_nodes(self._others, newest)
            )
        finally:
            self._reading -= 1
        self._publish_servers_or_stop_ranks()
        return self.statuses()

    async def _load_runs_of_nodes(self, names: Iterable[str], newest: int) -> None:
        await asyncio.gather(*(self._load_runs_of_node(name, newest) for name in names))

    async def _load_runs_of_node(self, name: str, newest: int) -> None:
        try:
            await self._others[name].runs(newest)
            self._unreachable.pop(name, None)
        except HostError as error:
            self._unreachable[name] = error.message

    async def has_unread_runs(self) -> bool:
        async def node_has_unread_runs(name: str) -> bool:
            with contextlib.suppress(HostError):
                return await self._others[name].has_unread_runs()
            return False

        others = map(node_has_unread_runs, self._others)
        return any(await asyncio.gather(super().has_unread_runs(), *others))

    async def load_status(self, run_id: str) -> ServerStatus:
        if self._find_cluster_run(run_id) is None:
            await super().load_status(run_id)
        return self.status(run_id)

    async def check_servers_now(self) -> tuple[ServerStatus, ...]:
        await super().check_servers_now()
        await self.wait_for_rank_ends()
        return self.statuses()

    async def wait_for_rank_ends(self) -> None:
        """Wait until the ranks of failed servers are stopped, then until their ends are written, at
        most _SETTLE_TIMEOUT_S seconds for each of the two. Ranks on hosts that cannot be reached
        stay as they are."""
        waiting = tuple(filter(is_running, self._stop_tasks.values()))
        if waiting:
            await asyncio.wait(waiting, timeout=_SETTLE_TIMEOUT_S)
        if self._write_tasks:
            await asyncio.wait(tuple(self._write_tasks), timeout=_SETTLE_TIMEOUT_S)

    # ---- start

    async def start_ranks(
        self,
        plan: LaunchPlan,
        commands: Sequence[tuple[Node, Command]],
        engine: Engine,
        **options: Any,
    ) -> ServerStatus:
        """Prepare and start a server that spans several nodes, and return its status once the
        processes of all ranks run, which is before the server is READY. The arguments and errors
        are those of `prepare_ranks`, and also HostError if a node cannot start its process."""
        return await (await self.prepare_ranks(plan, commands, engine, **options)).launch()

    async def prepare_ranks(
        self,
        plan: LaunchPlan,
        commands: Sequence[tuple[Node, Command]],
        engine: Engine,
        *,
        ready_timeout_s: float = READY_TIMEOUT_S,
        engine_version: str | None = None,
        simulated: bool = False,
        replaces: str | None = None,
    ) -> PreparedServer:
        """Check the start of a server that spans several nodes, and write its files on all of them.
        `commands` has (node, command) for each process. `replaces` is the run that the caller stops
        before the launch, so that its ports count as free. Raises ServerError if a check fails, and
        HostError if a file cannot be written; no node then has a file of the server. If the launch
        cannot start a rank, it stops the others."""
        commands = await self.check_and_select_rank_commands(
            plan, commands, simulated=simulated, replaces=replaces
        )
        ids = _make_run_ids(engine.name, len(commands))
        ranks = tuple(
            ClusterRank(n.name, run_id, n.node_title)
            for (n, _), run_id in zip(commands, ids, strict=True)
        )
        server = ClusterRun(
            self._cluster_entry.name, ranks[0].label, ranks, self._cluster_entry.reserve_gib
        )
        watch = await watched_rank.make_rank_watch(self.host, self._head_address, server)

        async def prepare_rank(index: int) -> PreparedServer:
            rank = ranks[index]
            return await Supervisor.prepare(
                self._supervisor_of_node(rank.host),
                plan,
                commands[index][1],
                engine,
                # only the head answers requests
                ready_timeout_s=ready_timeout_s if index == 0 else 0.0,
                engine_version=engine_version,
                simulated=simulated,
                rank=RankStart(rank.run_id, replace(server, label=rank.label), watch),
                replaces=replaces,
            )

        attempts = await asyncio.gather(
            *map(prepare_rank, range(len(ranks))), return_exceptions=True
        )
        prepared = [one for one in attempts if isinstance(one, PreparedServer)]

        async def discard_prepared_ranks() -> None:
            await asyncio.gather(*(one.discard() for one in prepared), return_exceptions=True)

        failed = next((one for one in attempts if isinstance(one, BaseException)), None)
        if failed is not None:
            await discard_prepared_ranks()
            raise failed

        async def launch_prepared_ranks() -> ServerStatus:
            try:
                return await self._launch_ranks(plan, commands, server, prepared)
            except BaseException:
                await asyncio.shield(
                    discard_prepared_ranks()
                )  # of the ranks that were not launched
                raise

        return PreparedServer(server.server_id, launch_prepared_ranks, discard_prepared_ranks)

    async def check_and_select_rank_commands(
        self,
        plan: LaunchPlan,
        commands: Sequence[tuple[Node, Command]],
        *,
        simulated: bool = False,
        replaces: str | None = None,
    ) -> Sequence[tuple[Node, Command]]:
        """Check the start of a server on several nodes, and return the commands that it runs: those
        of `commands`, without Ray's if Ray runs already. `replaces` is the run that is stopped
        before. Raises ServerError if a program or a model is missing on a node, or a port is in
        use."""
        if replaces is None or not self._has_started_ray(replaces):
            commands = await self._omit_running_ray(plan, commands)
        replaced = self.status(replaces) if replaces is not None else None
        checks = await asyncio.gather(
            *(
                self._check_rank_start(node.name, plan, command, simulated, replaced)
                for node, command in commands
            ),
            return_exceptions=True,
        )
        # of several problems that of the first node, not the one that was found first
        if failed := next(filter(None, checks), None):
            raise failed
        return commands

    async def _launch_ranks(
        self,
        plan: LaunchPlan,
        commands: Sequence[tuple[Node, Command]],
        server: ClusterRun,
        prepared: Sequence[PreparedServer],
    ) -> ServerStatus:
        """Launch the `prepared` ranks of a server, which are in the order of `commands`: Ray if it
        is among them, then the head, then the others. Return the server's status. If a rank cannot
        be started, stop the others and raise its error."""

        async def start_rank(index: int) -> None:
            await prepared[index].launch()

        self._held.add(server.server_id)
        try:
            await self._start_ray(plan, commands, start_rank)
            await start_rank(0)
            others = [at for at, (node, _) in enumerate(commands[1:], 1) if not node.role]
            await asyncio.gather(*map(start_rank, others))
        except BaseException:
            await asyncio.shield(self._stop_ranks(server.ranks, OTHERS_GRACE_S))
            raise
        finally:
            self._held.discard(server.server_id)
        self._publish_status_or_stop_ranks(server)
        return self.status(server.server_id)

    def _has_started_ray(self, run_id: str) -> bool:
        """Return whether a run is live and has started Ray, so that its stop ends Ray too."""
        nodes = self.record(run_id).plan.nodes
        return self.status(run_id).may_still_be_running and any(node.role for node in nodes)

    async def _omit_running_ray(
        self, plan: LaunchPlan, commands: Sequence[tuple[Node, Command]]
    ) -> Sequence[tuple[Node, Command]]:
        """Return `commands`, the (node, command) pairs of a start, without those that start Ray if
        it already runs on the head node. Raises ServerError if that Ray has fewer GPUs than the
        plan needs."""
        head = next((node for node, _ in commands if node.role and node.rank == 0), None)
        if head is None:
            return commands
        address, wanted = str(head.flags["address"]), plan.gpu_count
        found = await ray_cluster.count_ray_gpus(self.host, plan, address, dict(commands[0][1].env))
        if found is None:
            return commands
        if found < wanted:
            raise ray_cluster.too_few_gpus_error(self.host, plan, address, found, wanted)
        return [(node, command) for node, command in commands if not node.role]

    async def _start_ray(
        self,
        plan: LaunchPlan,
        commands: Sequence[tuple[Node, Command]],
        start: Callable[[int], Awaitable[None]],
    ) -> None:
        """Start Ray on its head node, then on the other nodes, and wait until it reports the GPUs
        that the plan needs. `start(i)` starts the process of `commands[i]`. Do nothing if no
        command starts Ray. Raises ServerError if the GPUs are not there in time."""
        places = {node.rank: at for at, (node, _) in enumerate(commands) if node.role}
        if not places:
            return
        first = places.pop(0)
        node, command = commands[first]
        wait = partial(
            ray_cluster.wait_for_gpus,
            self.host,
            plan,
            str(node.flags["address"]),
            dict(command.env),
        )
        await start(first)
        await wait(0)
        await asyncio.gather(*map(start, places.values()))
        await wait(plan.gpu_count)

    @property
    def _cluster_entry(self) -> ClusterEntry:
        assert isinstance(self.host, ClusterHost)
        return self.host.entry

    @property
    def _head_address(self) -> str | None:
        assert isinstance(self.host, ClusterHost)
        return self.host.places[0].address

    def _supervisor_of_node(self, name: str) -> Supervisor:
        if name not in self._supervisors:
            known = ", ".join(self._supervisors)
            raise ServerError(
                f"the cluster has no node {name}",
                host=self.host.name,
                next_step=f"its nodes: {known}",
            )
        return self._supervisors[name]

    async def _check_rank_start(
        self,
        name: str,
        plan: LaunchPlan,
        command: Command,
        simulated: bool,
        replaced: ServerStatus | None,
    ) -> None:
        """Raise ServerError for the first problem that would prevent the rank's start on the node
        `name`."""
        supervisor = self._supervisor_of_node(name)
        runs, freed = await supervisor.runs(), set[int]()
        if replaced is not None:
            own = {replaced.run_id, *(rank.run_id for rank in replaced.ranks)}
            runs = tuple(run for run in runs if run.run_id not in own)
            freed = self._ports_freed_on_node(replaced, name)
        await preflight.check_before_start(
            supervisor.host, plan, command, runs, simulated=simulated, freed_ports=freed
        )

    def _ports_freed_on_node(self, server: ServerStatus, name: str) -> set[int]:
        """Return the ports on the node `name` that become free when `server` is stopped: those of
        its living ranks there, and that of the Ray that it started."""
        ranks = [rank.run_id for rank in server.ranks if rank.host == name and rank.alive]
        return {self._supervisor_of_node(name).record(run_id).command.port for run_id in ranks}

    # ---- wait and stop

    async def wait(
        self, run_id: str, until: Callable[[ServerStatus], bool], timeout_s: float | None = None
    ) -> ServerStatus:
        await self._list_runs_if_unread(run_id)
        if self._find_cluster_run(run_id) is None:
            return await super().wait(run_id, until, timeout_s)
        async with asyncio.timeout(timeout_s):
            while True:
                status = self.status(run_id)
                has_ended_completely = status.state.has_ended and not status.outlived
                if until(status) or has_ended_completely:
                    break
                for supervisor in self._supervisors.values():
                    supervisor.ensure_watch()
                await self._changed.wait()
        await self.wait_for_rank_ends()
        return self.status(run_id)

    async def _list_runs_if_unread(self, run_id: str) -> None:
        if run_id not in self._records_by_server():
            await self.runs()

    async def stop(self, run_id: str, *, grace_s: float = STOP_GRACE_S) -> ServerStatus:
        """Stop every rank of a server, the head first, and return the server's status. If the host
        of a rank cannot be reached, the status is STOPPING and names it; the next Workbench process
        that reaches it stops the rank. Raises ServerError for an unknown run."""
        await self._list_runs_if_unread(run_id)
        server = self._find_cluster_run(run_id)
        if server is None:
            return await super().stop(run_id, grace_s=grace_s)
        self._held.add(run_id)
        try:
            marks = starmap(self._mark_rank_stopped, self._watched_ranks(server))
            await asyncio.gather(*marks)
            head, *others = server.ranks
            await self._stop_rank(head, grace_s)
            await self._stop_ranks(others, grace_s)
        finally:
            self._held.discard(run_id)
        self._publish_status_or_stop_ranks(server)
        await self.wait_for_rank_ends()
        return self.status(run_id)

    async def _mark_rank_stopped(self, rank: ClusterRank, run: WatchedRun) -> None:
        with contextlib.suppress(HostError):
            await self._supervisor_of_node(rank.host).mark_stopped(run)

    async def _stop_ranks(self, ranks: Iterable[ClusterRank], grace_s: float) -> None:
        await asyncio.gather(*(self._stop_rank(rank, grace_s) for rank in ranks))

    async def _stop_rank(self, rank: ClusterRank, grace_s: float) -> None:
        """Stop a rank. Do nothing if its run was not read, or if its host cannot be reached."""
        run = self._find_rank_run(rank)
        if run is None:
            return
        with contextlib.suppress(HostError):
            await Supervisor.stop(self._supervisor_of_node(rank.host), rank.run_id, grace_s=grace_s)

    # ---- logs

    async def load_log(self, run_id: str) -> LogRing:
        server = self._find_cluster_run(run_id)
        if server is None:
            return await super().load_log(run_id)
        await self._call_for_each_rank(
            server, lambda supervisor, rank: Supervisor.load_log(supervisor, rank.run_id)
        )
        return self.log(run_id)

    async def _call_for_each_rank(
        self, server: ClusterRun, work: Callable[[Supervisor, ClusterRank], Awaitable[object]]
    ) -> None:
        async def work_on_reachable_rank(rank: ClusterRank, _: WatchedRun) -> None:
            with contextlib.suppress(WorkbenchError):  # an unreachable rank has no log to show now
                await work(self._supervisor_of_node(rank.host), rank)

        await asyncio.gather(*starmap(work_on_reachable_rank, self._watched_ranks(server)))

    async def read_log(self, run_id: str, *, follow: bool = False) -> AsyncIterator[LogBatch]:
        await self._list_runs_if_unread(run_id)
        server = self._find_cluster_run(run_id)
        if server is None:
            async for batch in super().read_log(run_id, follow=follow):
                yield batch
            return
        logs = {
            r.label: partial(Supervisor.read_log, self._supervisor_of_node(r.host), r.run_id)
            for r, _ in self._watched_ranks(server)
        }
        async for lines in cluster_log.read_merged_logs(logs, follow=follow):
            yield LogBatch(run_id, tuple(lines), 0)

    async def search_log(self, run_id: str, text: str, *, limit: int = 500) -> tuple[LogMatch, ...]:
        server = self._find_cluster_run(run_id)
        if server is None:
            return await super().search_log(run_id, text, limit=limit)
        found: list[LogMatch] = []

        async def search(supervisor: Supervisor, rank: ClusterRank) -> None:
            matches = await Supervisor.search_log(supervisor, rank.run_id, text, limit=limit)
            for match in matches:
                line = cluster_log.label_line(rank.label, match.line)
                found.append(replace(match, line=line))

        await self._call_for_each_rank(server, search)
        return tuple(sorted(found, key=lambda match: match.number)[:limit])

    async def close(self) -> None:
        await self.wait_for_rank_ends()
        await cancel_all((self._search_task, *self._stop_tasks.values(), *self._write_tasks))
        await super().close()
        await asyncio.gather(*(supervisor.close() for supervisor in self._others.values()))


def _make_run_ids(engine: str, count: int) -> list[str]:
    """Return `count` different run ids for the ranks of one start, sorted. The head gets the first
    one, so that sorted lists show its run first."""
    ids: set[str] = set()
    now = time.time()
    while len(ids) < count:
        ids.add(new_run_id(engine, now))
    return sorted(ids)
