"""Servers of one host: start, watch, adopt, stop.

All state is in the run directories on the host (records.py, hosts/detached.py). This object only looks at them, so it
can die at any moment, and two of them can look at the same runs: stopping twice does nothing, and the proof of
readiness is a file that either may write.

A look is cheap where nothing happens: one read of the process's stat and one of the log per run, in parallel; the
whole process table is only asked now and then, and when the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import posixpath
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench import __version__
from workbench.hosts import detached_process
from workbench.hosts.base import FileError, Host, HostUnreachable
from workbench.hosts.task_cancellation import end_all
from workbench.model.errors import HostError, InputError, PlanError, ServerError
from workbench.model.findings import Finding, Level
from workbench.model.plan import Command, LaunchPlan
from workbench.model.secrets import mask_command, mask_plan, mask_text
from workbench.model.server_run import EngineMetrics, LogBatch, ServerState, ServerStatus
from workbench.server import logs, metrics, preflight, readiness, server_secrets
from workbench.server.logs import HEAD_BYTES, READ_BYTES, LogMatch, LogRing
from workbench.server.run_directory import RUN_ID, RunRecord, decode_record, encode_ready, encode_record, new_run_id
from workbench.server.watched_run import UNHEALTHY_AFTER, Watched

if TYPE_CHECKING:
    from workbench.engines.base import Engine

Event = ServerStatus | LogBatch

READY_TIMEOUT_S = 1800.0  # 400 GB of weights from a network disk take that long
TOKEN_TIMEOUT_S = 300.0  # the first forward pass may compile kernels
STOP_GRACE_S = 15.0  # from TERM to KILL: ready servers take 2 s (vLLM) to 7 s (SGLang)
_STOP_TRIES = 3  # where the link is lost in the middle
EXPLAINED_RUNS = 10  # newest failed runs whose log is read for the reason when runs are listed
FULL_KIB = 64  # free on the disk of a run's directory: less is full
FILES = ("plan.json", "ready.json", "stop.json")

_BUSY_S, _STARTING_S, _READY_S, _LOST_S = 0.25, 0.5, 1.0, 2.0  # between two looks: 0.25 s is 4 batches a second
_FULL_LOOK_S = {ServerState.STARTING: 2.0, ServerState.STOPPING: 1.0}
_FULL_LOOK_ELSE_S = 15.0  # its end is seen at once all the same
_ASK_STARTING_S, _ASK_READY_S = 1.0, 5.0
_HEALTH_S, _ASK_NOW_S = 5.0, 3.0  # to answer /health: while it is watched, three times; where one look must do
_UNDECIDED = frozenset({ServerState.STARTING, ServerState.UNKNOWN})


class Supervisor:
    """The servers of one host. `on_event` is called on the loop's thread, with a status that has changed or new log
    lines of a living run; it must return quickly."""

    def __init__(self, host: Host, on_event: Callable[[Event], None] = lambda event: None) -> None:
        self.host = host
        self._emit = on_event
        self._runs: dict[str, Watched] = {}
        self._watch: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # set, and replaced, at every change
        self._root = ""
        self._starting: set[str] = set()  # runs whose directory is being made here

    # ---- what is known now, without asking the host

    def status(self, run_id: str) -> ServerStatus:
        return self._known(run_id).status

    def statuses(self) -> tuple[ServerStatus, ...]:
        """All runs seen so far, newest first."""
        return tuple(self._runs[run_id].status for run_id in sorted(self._runs, reverse=True))

    def record(self, run_id: str) -> RunRecord:
        """What was started: plan and command, with their secrets masked."""
        return self._known(run_id).record

    def api_key(self, run_id: str) -> str | None:
        """The key that the server asks for, where it is known. Never to be shown, stored or logged."""
        return self._known(run_id).api_key

    def log(self, run_id: str) -> LogRing:
        return self._known(run_id).follower.ring

    def _known(self, run_id: str) -> Watched:
        try:
            return self._runs[run_id]
        except KeyError:
            raise ServerError(
                f"no run {run_id}", host=self.host.name, next_step="workbench servers lists the runs"
            ) from None

    # ---- start

    async def start(
        self,
        plan: LaunchPlan,
        command: Command,
        engine: Engine,
        *,
        ready_timeout_s: float = READY_TIMEOUT_S,
        engine_version: str | None = None,
        simulated: bool = False,
    ) -> ServerStatus:
        """Start `command` detached and watch it; returns once its process runs. Readiness comes as an event.

        Raises ServerError for what can be seen before (port taken, no such executable, model path or directory),
        HostError for what the host refuses. A server that is not ready within `ready_timeout_s` becomes FAILED but
        is left running: stop it, or let it go on.
        """
        await preflight.check(self.host, plan, command, await self.runs(), simulated=simulated)
        run_id = new_run_id(engine.name, time.time())
        run_dir = posixpath.join(await self._runs_dir(), run_id)
        record = RunRecord(
            run_id,
            self.host.name,
            mask_plan(replace(plan, engine=engine.name)),
            mask_command(command),
            time.time(),
            ready_timeout_s,
            engine_version,
            __version__,
            simulated,
        )
        files = {_inside(run_dir, name): text.encode() for name, text in command.files.items()}
        files[f"{run_dir}/plan.json"] = encode_record(record)
        argv = [word.replace("{run_dir}", run_dir) for word in command.argv]
        run = Watched(self.host, run_dir, record, engine, adopted=False)
        run.knows(command)
        self._starting.add(run_id)
        try:
            for path, data in files.items():
                await self.host.write_file(path, data)
            run.facts = replace(run.facts, pid=await self._detach(run, argv, command))
        except HostUnreachable:
            raise
        except HostError:
            # Nothing runs: leave no directory that looks like a run that failed.
            await self.host.run(["rm", "-rf", "--", run_dir])
            raise
        finally:
            self._starting.discard(run_id)
        run.refresh()
        self._runs[run_id] = run
        self._emit(run.status)
        self._ensure_watch()
        return run.status

    async def _detach(self, run: Watched, argv: list[str], command: Command) -> int | None:
        """The process id; None when the link was lost meanwhile. It may have been started all the same, and the next
        look at its directory tells, so a second try could only start it twice."""
        try:
            started = await detached_process.start(self.host, run.run_dir, argv, command.env, command.workdir)
        except HostUnreachable as error:
            run.lose(error.message)
            return None
        return started.pid

    # ---- list and adopt

    async def runs(self) -> tuple[ServerStatus, ...]:
        """Every run of this host, newest first; those that live are adopted and watched. One round trip, and one more
        where there is something to adopt or to explain."""
        seen = await detached_process.list_runs(self.host, await self._runs_dir(), files=FILES)
        for process in seen:
            run_id = posixpath.basename(process.run_dir)
            if run_id in self._starting:
                continue
            run = self._runs.get(run_id)
            if run is None:
                record = decode_record(run_id, process.files.get("plan.json", b""))
                run = Watched(self.host, process.run_dir, record, self._engine(record.engine), adopted=True)
                run.take(process)
                run.settled = run.gone
                self._runs[run_id] = run
            elif not run.settled:
                run.take(process)
            self._tell(run)
        present = {posixpath.basename(process.run_dir) for process in seen}
        self._runs = {run_id: run for run_id, run in self._runs.items() if run_id in present}
        newest = sorted(self._runs.values(), key=lambda run: run.record.run_id, reverse=True)
        failed = [run for run in newest if not run.facts.alive and run.facts.stop_unix_s is None][:EXPLAINED_RUNS]
        adopted = [run for run in newest if run.facts.alive and not run.keys_known]
        explain = (self._explain(run) for run in failed if run.explained is None)
        await asyncio.gather(*explain, *(self._learn_keys(run) for run in adopted))
        self._ensure_watch()
        return self.statuses()

    async def _learn_keys(self, run: Watched) -> None:
        command = await server_secrets.command_of_process(self.host, run.facts.pid) if run.facts.pid else None
        run.knows(command or run.record.command)

    def _engine(self, name: str) -> Engine | None:
        from workbench import engines

        try:
            return engines.get(name)
        except InputError:
            return None

    async def _runs_dir(self) -> str:
        if not self._root:
            self._root = posixpath.join(await self.host.state_dir(), "runs")
        return self._root

    async def _find(self, run_id: str) -> Watched:
        if run_id not in self._runs:
            await self.runs()
        return self._known(run_id)

    # ---- wait

    async def wait(
        self, run_id: str, until: Callable[[ServerStatus], bool], timeout_s: float | None = None
    ) -> ServerStatus:
        """The first status that `until` accepts, or the last one of a run that has ended. TimeoutError after
        `timeout_s`."""
        run = await self._find(run_id)
        async with asyncio.timeout(timeout_s):
            while not until(run.status) and not run.settled:
                self._ensure_watch()
                await self._changed.wait()
        return run.status

    async def wait_ready(self, run_id: str, timeout_s: float | None = None) -> ServerStatus:
        """The status once the server is ready, has failed or was stopped: look at `state`."""
        return await self.wait(run_id, lambda status: status.state not in _UNDECIDED, timeout_s)

    def _tell(self, run: Watched) -> None:
        if run.refresh():
            self._emit(run.status)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- stop

    async def stop(self, run_id: str, *, grace_s: float = STOP_GRACE_S) -> ServerStatus:
        """End every process of the run, and clear the shared memory that it left. Done again, does nothing.

        TERM to its group, KILL after `grace_s`, then its session must be empty; ServerError names what is left.
        """
        run = await self._find(run_id)
        for _ in range(_STOP_TRIES - 1):
            with contextlib.suppress(HostUnreachable):  # the host waits for its link; a stop may be done again
                return await self._stop(run, grace_s)
        return await self._stop(run, grace_s)

    async def _stop(self, run: Watched, grace_s: float) -> ServerStatus:
        await run.close()
        await self._take(run)
        if run.facts.alive and run.facts.stop_unix_s is None:
            asked = run.facts.now_unix_s
            with contextlib.suppress(FileError):  # a full disk must not keep a server alive: only its mark is lost
                await self.host.write_file(f"{run.run_dir}/stop.json", json.dumps({"unix_s": asked}).encode())
            run.facts = replace(run.facts, stop_unix_s=asked)
        self._tell(run)
        report = await detached_process.stop(self.host, run.run_dir, grace_s=grace_s)
        await self._take(run)
        if report.left:
            self._tell(run)
            left = ", ".join(map(str, report.left))
            raise ServerError(
                f"run {run.record.run_id}: processes {left} could not be ended",
                host=self.host.name,
                command=f"kill -KILL {left.replace(',', '')}",
                next_step="look at them with ps: they may belong to another user or hang in the driver",
            )
        await self._explain(run)
        await run.close()
        self._settle(run)
        return run.status

    async def _take(self, run: Watched) -> detached_process.ProcessStatus:
        """A full look. One at a time, so that what was seen first is not taken last."""
        async with run.looking:
            seen = await detached_process.status(self.host, run.run_dir, files=FILES)
            if not run.settled:
                run.take(seen)
            return seen

    def _settle(self, run: Watched) -> None:
        run.settled = True
        self._tell(run)
        self._wake()

    # ---- logs and counters

    async def load_log(self, run_id: str) -> LogRing:
        """The log of a run that has ended: its first and last part. A living run's is followed anyway."""
        run = await self._find(run_id)
        if run.settled and not run.follower.offset:
            await self._drain(run)
        return run.follower.ring

    async def read_log(self, run_id: str, *, follow: bool = False) -> AsyncIterator[LogBatch]:
        """Every line from byte 0 on, nothing skipped; with `follow` until the run has ended."""
        run = await self._find(run_id)

        async def pause() -> None:
            self._ensure_watch()
            await asyncio.sleep(_BUSY_S)

        def ended() -> bool:
            return not follow or run.gone

        path, secrets = run.log_path, run.secrets
        async for batch in logs.read(self.host, path, run_id, secrets=secrets, ended=ended, wait=pause):
            yield batch

    async def search_log(self, run_id: str, text: str, *, limit: int = 500) -> tuple[LogMatch, ...]:
        """Lines of the whole file that hold `text`, whatever its case; the host does the searching."""
        run = await self._find(run_id)
        return await logs.search(self.host, run.log_path, text, secrets=run.secrets, limit=limit)

    async def metrics(self, run_id: str) -> EngineMetrics:
        """The engine's own counters now; never raises, `absent` says why something is missing."""
        run = await self._find(run_id)
        if run.engine is None or run.gone:
            return metrics.nothing("the server has ended" if run.gone else f"engine {run.record.engine} is not known")
        try:
            return await metrics.fetch(await run.http(), run.engine)
        except HostError as error:
            return metrics.nothing(error.message)

    async def close(self) -> None:
        """Stop watching. The servers live on."""
        task, self._watch = self._watch, None
        await end_all([task] if task is not None else [])
        await asyncio.gather(*(run.close() for run in self._runs.values()))

    # ---- watching

    def _ensure_watch(self) -> None:
        if self._watch is not None and self._watch.done():
            self._watch.result()  # a defect in watching must not stay silent
            self._watch = None
        if self._watch is None and any(not run.settled for run in self._runs.values()):
            self._watch = asyncio.create_task(self._keep_watching())

    async def _keep_watching(self) -> None:
        try:
            await self._watch_live_runs()
        finally:
            self._wake()

    async def _watch_live_runs(self) -> None:
        while live := [run for run in self._runs.values() if not run.settled]:
            looks = await asyncio.gather(*(self._try_to_look(run) for run in live))
            starting = any(run.status.state in (ServerState.STARTING, ServerState.STOPPING) for run in live)
            lost = any(run.status.state is ServerState.UNKNOWN for run in live)
            await asyncio.sleep(_LOST_S if lost else _BUSY_S if any(looks) else _STARTING_S if starting else _READY_S)

    async def _try_to_look(self, run: Watched) -> bool:
        """Whether its log moved. A host that cannot be asked makes the run's state unknown, until it can be again."""
        try:
            if not self.host.connected:
                run.lose("the connection is lost")
                self._tell(run)
            moved = await self._look(run)  # waits a moment for the link, which makes itself again
        except HostError as error:
            run.lose(error.message)
            await run.hang_up()
            moved = False
        else:
            run.lose(None)
        self._tell(run)
        return moved

    async def _look(self, run: Watched) -> bool:
        alive, moved = await asyncio.gather(self._alive(run), self._read_log(run))
        every_s = _FULL_LOOK_S.get(run.status.state, _FULL_LOOK_ELSE_S)
        if not alive or time.monotonic() - run.looked_s > every_s:
            await self._full_look(run)
        if not run.facts.alive and run.explained is None:
            await self._explain(run)
        if run.gone and not run.settled:
            await self._end(run)
        elif run.facts.alive and run.facts.stop_unix_s is None:
            self._ask(run)
        return moved

    async def _alive(self, run: Watched) -> bool:
        pid, start_time = run.facts.pid, run.start_time
        if pid is None or start_time is None or not run.facts.alive:
            return False  # not known to be: a full look tells
        return await detached_process.alive(self.host, detached_process.DetachedProcess(pid, pid, start_time))

    async def _full_look(self, run: Watched) -> None:
        seen = await self._take(run)
        if run.facts.ready is None or run.facts.stop_unix_s is not None:
            # What is killed while it starts leaves its shared memory, and only now is it known whose it is. SGLang
            # makes a semaphore even while it shuts down, and leaves it.
            await detached_process.record_shared_memory(self.host, run.run_dir, seen.members)

    async def _end(self, run: Watched) -> None:
        """Its last process is gone: clear what it left in shared memory."""
        await detached_process.clear_shared_memory(self.host, run.run_dir)
        await run.close()
        self._settle(run)

    async def _explain(self, run: Watched) -> None:
        """Why it ended, from its log: the first error line and what is known of its cause."""
        from workbench.server import log_patterns

        await self._drain(run)
        lines = run.follower.ring.lines()
        first = log_patterns.first_error(lines)
        found = (*log_patterns.match(lines, run.record.engine), *await self._disk_full(run))
        run.explained = (mask_text(first, run.secrets) if first else None, found)
        self._tell(run)

    async def _disk_full(self, run: Watched) -> tuple[Finding, ...]:
        """A log that could not be written may lack the reason; the full disk may be it."""
        done = await self.host.run(["df", "-Pk", "--", run.run_dir])
        words = done.out.rsplit("\n", 2)[-2].split() if done.returncode == 0 and done.out.count("\n") > 1 else []
        if len(words) < 6 or not words[3].isdecimal() or int(words[3]) >= FULL_KIB:
            return ()
        text = f"the disk of {run.run_dir} is full ({words[-1]}): its log may be cut off before the reason"
        return (Finding(Level.ERROR, "disk.full", text, fix="free some space there, or set XDG_STATE_HOME"),)

    async def _drain(self, run: Watched) -> None:
        while await self._read_log(run):
            pass
        if last := run.follower.finish():
            self._emit(last)

    async def _read_log(self, run: Watched) -> bool:
        """Read on; whether there was something. Too far behind, the middle is left out: the ends matter."""
        at = run.follower.offset
        try:
            data = await self.host.read_file(run.log_path, offset=at, limit=READ_BYTES)
            if len(data) == READ_BYTES and at >= HEAD_BYTES:
                done = await self.host.run(["stat", "-c", "%s", "--", run.log_path], check=True)
                behind = int(done.out) - at
                if behind > 2 * READ_BYTES:
                    at += behind - READ_BYTES
                    data = await self.host.read_file(run.log_path, offset=at, limit=READ_BYTES)
        except FileError:
            return False  # someone removed it: the run goes on without a log
        if data and at >= run.follower.offset and (batch := run.read(data, at)):
            self._emit(batch)
        return bool(data)

    # ---- readiness

    def _ask(self, run: Watched) -> None:
        """Put the next question to its endpoints, unless one is under way: an answer may take minutes."""
        every_s = _ASK_READY_S if run.facts.ready and not run.failures else _ASK_STARTING_S
        if run.engine is None or (run.task and not run.task.done()) or time.monotonic() - run.asked_s < every_s:
            return
        if run.task is not None and not run.task.cancelled():
            run.task.result()  # a defect in asking must not stay silent
        run.asked_s = time.monotonic()
        run.task = asyncio.create_task(self._health(run) if run.facts.ready else self._readiness(run))

    async def look_now(self) -> tuple[ServerStatus, ...]:
        """Ask every READY server whether it answers, and read how far those that start have come."""
        every = self._runs.values()
        ready = [run for run in every if run.status.state is ServerState.READY]
        starting = [run for run in every if run.status.state is ServerState.STARTING]
        await asyncio.gather(
            *(self._health(run, timeout_s=_ASK_NOW_S, enough=UNHEALTHY_AFTER) for run in ready),
            *(self._drain(run) for run in starting),
        )
        for run in starting:
            self._tell(run)
        return self.statuses()

    async def others_came(self) -> bool:
        """Return whether the host has runs that are not known here: started by another Workbench. A cheap look."""
        done = await self.host.run(["ls", "-1", "--", await self._runs_dir()])
        return any(RUN_ID.fullmatch(n) and n not in self._runs and n not in self._starting for n in done.out.split())

    async def _health(self, run: Watched, timeout_s: float = _HEALTH_S, enough: int = 1) -> None:
        if run.engine is None:
            return
        asked_s = time.monotonic()
        try:
            trouble = await readiness.healthy(await run.http(), run.engine, timeout_s)
        except HostError:
            return  # the look at the host says so itself
        run.healthy(trouble is None, asked_s, enough=enough)
        self._tell(run)

    async def _readiness(self, run: Watched) -> None:
        assert run.engine is not None
        try:
            answer = await readiness.check(await run.http(), run.engine, token_timeout_s=TOKEN_TIMEOUT_S)
            run.unanswered = answer.reason
            if answer.needs_key and run.api_key is None:
                run.api_key = await server_secrets.key_from_file(self.host, run.engine, run.record.command.workdir)
            if answer.ready and answer.model is not None and run.facts.ready is None:
                ready = run.ready_now(answer.model)
                with contextlib.suppress(FileError):  # disk full: the next Workbench asks for a token again
                    await self.host.write_file(f"{run.run_dir}/ready.json", encode_ready(ready))
                run.facts = replace(run.facts, ready=ready)
                self._tell(run)
                seen = await self._take(run)
                await detached_process.record_shared_memory(self.host, run.run_dir, seen.members)
        except HostError as error:
            run.unanswered = error.message
        self._tell(run)


def _inside(run_dir: str, name: str) -> str:
    path = posixpath.normpath(posixpath.join(run_dir, name))
    if not path.startswith(f"{run_dir}/"):
        raise PlanError(f"file {name!r} lies outside of the run directory", next_step="give it a plain name")
    return path
