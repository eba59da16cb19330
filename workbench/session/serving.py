"""Servers of the host: start, follow, stop, adopt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from workbench.model.errors import NotTrusted, PlanError, ServerError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.server_run import LogBatch, ServerState, ServerStatus
from workbench.session.watching import Watching

if TYPE_CHECKING:
    from workbench.model.plan import LaunchPlan, PlanChange
    from workbench.server.external_servers import FoundServer
    from workbench.server.logs import LogRing
    from workbench.server.supervisor import Supervisor
    from workbench.session.editor import PlanEditor

LIVE = frozenset({ServerState.STARTING, ServerState.READY, ServerState.STOPPING, ServerState.UNRESPONSIVE})
SHOWN = 50  # newest runs in the state
RUNS_S = 3.0  # between two looks for runs that were started elsewhere
_STARTING = "starting"


class FollowedLog:
    """The selected run's log, whichever that is now; empty without one."""

    def __init__(self, session: Serving) -> None:
        self._session = session

    def _ring(self) -> LogRing | None:
        supervisor, run_id = self._session._supervisor, self._session.state.run_id
        if supervisor is None or run_id is None:
            return None
        try:
            return supervisor.log(run_id)
        except ServerError:  # its directory was removed meanwhile
            return None

    def __len__(self) -> int:
        ring = self._ring()
        return len(ring) if ring is not None else 0

    def lines(self, start: int = 0, count: int | None = None) -> Sequence[str]:
        ring = self._ring()
        return ring.lines(start, count) if ring is not None else ()

    def level(self, line: str) -> str:
        from workbench.server.logs import level_of

        return level_of(line)

    def find(self, text: str, start: int = 0, backwards: bool = False) -> int | None:
        ring = self._ring()
        return ring.find(text, start, backwards) if ring is not None else None


class Serving(Watching):
    _supervisor: Supervisor | None = None

    @property
    def supervisor(self) -> Supervisor:
        if self._supervisor is None:
            from workbench.server.supervisor import Supervisor

            self._supervisor = Supervisor(self.host, self._on_server_event)
        return self._supervisor

    @property
    def log(self) -> FollowedLog:
        return FollowedLog(self)

    async def search_log(self, text: str) -> Sequence[tuple[int, str]]:
        """(line, its text) of the selected run's whole log file that hold `text`, whatever its case; the first 500."""
        if self.state.run_id is None:
            raise ServerError("no run is selected", host=self.host.name, next_step="o in 3 chooses one")
        return [(m.number, m.line) for m in await self.supervisor.search_log(self.state.run_id, text)]

    def _on_server_event(self, event: ServerStatus | LogBatch) -> None:
        if isinstance(event, LogBatch):
            if event.run_id == self.state.run_id:
                self.update(log_revision=self.state.log_revision + 1)
            return
        before = next((s for s in self.state.servers if s.run_id == event.run_id), None)
        self.update(servers=self.supervisor.statuses()[:SHOWN])
        if event.state is ServerState.READY and (before is None or before.state is not ServerState.READY):
            plan = self.supervisor.record(event.run_id).plan
            self.remember_variables(event.run_id, plan)
        if before is None or before.state == event.state:
            return
        if event.state is ServerState.READY and before.state in (ServerState.STARTING, ServerState.UNKNOWN):
            if before.ready_unix_s is None:
                after = f" in {event.ready_after_s:.1f} s" if event.ready_after_s else ""
                self.record(f"# {event.run_id} is READY{after}")
            self.server_ready(event)
        elif event.state is ServerState.STOPPED:
            self.server_ended(event)
        elif event.state in (ServerState.FAILED, ServerState.CRASHED):
            cause = event.findings[0] if event.findings else None
            next_step = cause.fix if cause and cause.fix else "the log shows the first error (e)"
            self.notify(Level.ERROR, f"{event.engine} {event.state}: {event.reason or 'see the log'}", next_step)
            self.server_ended(event)

    def server_ready(self, status: ServerStatus) -> None:
        """measuring.py runs a queued benchmark here."""

    def server_ended(self, status: ServerStatus) -> None:
        """measuring.py drops a queued benchmark here."""

    # ---- adopt

    async def adopt(self) -> None:
        """List the runs of this host; the newest living one is selected when none is."""
        statuses = await self.supervisor.runs()
        self.update(servers=statuses[:SHOWN])
        alive = next((s for s in statuses if s.state in LIVE), None)
        if self.state.run_id is None and alive is not None:
            await self.select_run(alive.run_id)

    async def watch_runs(self) -> None:
        """Look now and then for what was done elsewhere: by a command, or by another Workbench."""
        while True:
            await asyncio.sleep(RUNS_S)
            with suppress(WorkbenchError):  # a lost link is told by others; the next look asks again
                await self.look_elsewhere()

    async def look_elsewhere(self) -> None:
        """Find servers that were started elsewhere. measuring.py and history.py add to it."""
        if self.host.connected and await self.supervisor.others_came():
            await self._adopt_newcomers()

    async def _adopt_newcomers(self) -> None:
        known = {status.run_id for status in self.state.servers}
        await self.adopt()
        for status in self.state.servers:
            if status.run_id not in known | {self.state.run_id} and status.state in LIVE:
                text = f"{status.engine} {status.model} was started elsewhere: run {status.run_id}"
                self.notify(Level.INFO, text, "o shows it")

    async def other_servers(self) -> Sequence[FoundServer]:
        """Servers of the host that no Workbench started. A simulated host has none: its processes are all of one."""
        from workbench.server import external_servers

        if self.state.host.simulated is not None:
            return ()
        own = [s.port for s in self.supervisor.statuses() if s.alive and s.port is not None]
        return await external_servers.find(self.host, own)

    async def select_run(self, run_id: str) -> None:
        """Follow its log; with no plan under edit, what runs becomes the plan."""
        from workbench.model.secrets import MASK

        await self.supervisor.load_log(run_id)
        self.update(run_id=run_id, servers=self.supervisor.statuses()[:SHOWN], log_revision=self.state.log_revision + 1)
        plan = self.supervisor.record(run_id).plan
        # A masked secret cannot be started again, so such a plan is not offered for it.
        if self._editor is None and plan is not None and MASK not in repr(plan):
            self.take_plan(plan, plan.preset_id or f"{plan.engine} as run {run_id}")
            self.spawn(self.look_for_engine())

    def changes_against_running(self) -> Sequence[PlanChange]:
        status = self.state.server
        if status is None or status.state not in LIVE or self._editor is None:
            return ()
        from workbench.model.plan import diff
        from workbench.model.secrets import mask_plan

        running = self.supervisor.record(status.run_id).plan
        return diff(running, mask_plan(self._editor.plan)) if running is not None else ()

    # ---- start and stop

    async def start(self) -> str:
        """Start the plan under edit; a living selected run is stopped first."""
        if _STARTING in self.state.busy:  # two at once would both find the port free
            raise ServerError("a start is under way", host=self.host.name, next_step="wait for its run id")
        self._nobody_measures()
        before = self.state.server
        self._startable(self.editor.effective)
        with self.busy(_STARTING):
            if before is not None and (before.state in LIVE or before.outlived):
                await self._stop(before.run_id)
            status = await self._start()
        return status.run_id

    def _nobody_measures(self) -> None:
        """A server that an experiment or a sweep measures is neither taken away nor loaded by anybody else."""
        series = next((what for what in self.state.busy if what.partition(" ")[0] in ("experiment", "sweep")), None)
        if series is not None:
            which = f"a {series}" if series.startswith("sweep") else f"an {series}"
            raise ServerError(
                f"{which} is under way, and has the server",
                host=self.host.name,
                next_step="wait for it, or stop it: what it has measured is kept",
            )

    def _startable(self, plan: LaunchPlan, editor: PlanEditor | None = None) -> None:
        """Raises PlanError for what the engine would refuse, and for what Workbench cannot start yet."""
        foreign = (editor or self.editor).untrusted()
        if foreign:
            raise NotTrusted(
                f"the preset is not from Workbench and runs more than its engine: {'; '.join(p.text for p in foreign)}",
                next_step="look at it with `workbench plan`; then start it with --trust",
                findings=[part.finding() for part in foreign],
            )
        errors = [f for f in (editor or self.editor).findings() if f.level is Level.ERROR]
        if errors:
            raise PlanError(
                f"the plan has {len(errors)} error{'s' * (len(errors) > 1)}: {errors[0].text}",
                next_step=errors[0].fix or "correct the flag, then start again",
                findings=errors,
            )
        if len(plan.nodes) > 1 and self.state.host.simulated is None:
            names = ", ".join(node.name for node in plan.nodes)
            raise PlanError(
                f"this plan runs on {len(plan.nodes)} nodes ({names}), and Workbench starts servers of one host",
                host=self.host.name,
                next_step="`workbench plan` prints the command of each node: start them by hand",
            )

    async def _start(self, editor: PlanEditor | None = None) -> ServerStatus:
        """Of the plan under edit, or of another one."""
        from workbench.model.secrets import mask_command

        editor = editor or self.editor
        if editor.around.installed is None and editor.around.installed_problem is None:
            await self.look_for_engine()
        await self.look_for_model(editor)
        command = editor.command()
        status = await self.supervisor.start(
            editor.effective,
            command,
            editor.engine,
            engine_version=editor.around.installed_version,
            simulated=self.state.host.simulated is not None,
        )
        self.record(mask_command(command).shell(), f"run {status.run_id}")
        self.update(
            run_id=status.run_id,
            servers=self.supervisor.statuses()[:SHOWN],
            log_revision=self.state.log_revision + 1,
        )
        return status

    async def stop(self, run_id: str | None = None) -> None:
        run_id = run_id or self.state.run_id
        if run_id is None:
            raise ServerError("no server is selected", host=self.host.name, next_step="s starts the plan")
        with self.busy("stopping"):
            await self._stop(run_id)

    async def _stop(self, run_id: str) -> ServerStatus:
        started = time.monotonic()
        status = await self.supervisor.stop(run_id)
        self.record(f"workbench stop {run_id}", f"ended in {time.monotonic() - started:.1f} s")
        self.update(servers=self.supervisor.statuses()[:SHOWN])
        return status

    async def wait_ready(self, run_id: str, timeout_s: float | None = None) -> ServerStatus:
        """READY, or the state that it ended in. ServerError when neither comes within `timeout_s`."""
        try:
            return await self.supervisor.wait_ready(run_id, timeout_s)
        except TimeoutError:
            status = self.supervisor.status(run_id)
            raise ServerError(
                f"run {run_id} was not READY within {timeout_s:.0f} s ({status.phase or status.state}); it goes on",
                host=self.host.name,
                next_step=f"workbench logs {run_id} --follow, or workbench stop {run_id}",
            ) from None

    async def close_servers(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.close()
            self._supervisor = None
