"""One run as a Supervisor sees it: the last facts, its log, and the way to its endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.hosts.base import Forward, Host
from workbench.hosts.detached_process import ProcessStatus
from workbench.hosts.task_cancellation import end_all
from workbench.model.findings import Finding
from workbench.model.plan import Command
from workbench.model.secrets import MASK, secret_values
from workbench.model.server_run import LogBatch, ServerState, ServerStatus
from workbench.server import readiness
from workbench.server.logs import LogFollower
from workbench.server.run_directory import ReadyFacts, RunFacts, RunRecord, decode_ready
from workbench.server.run_state import judge, reachable_address
from workbench.server.server_secrets import api_key_of

if TYPE_CHECKING:
    import httpx

    from workbench.engines.base import Engine

_SILENT_STEP_S = 3.0
UNHEALTHY_AFTER = 3  # failed health checks in a row before a ready server counts as unresponsive


class Watched:
    """`engine` is None for a run whose engine this Workbench does not know: its process is still shown and stopped."""

    def __init__(self, host: Host, run_dir: str, record: RunRecord, engine: Engine | None, *, adopted: bool) -> None:
        self.host = host
        self.run_dir = run_dir
        self.record = record
        self.engine = engine
        self.adopted = adopted
        self.facts = RunFacts(record, alive=not adopted, started_unix_s=None if adopted else time.time())
        self.follower = LogFollower(record.run_id)
        self.started_s = None if adopted else time.monotonic()
        self.start_time: int | None = None  # of its process, in clock ticks since boot
        self.looked_s = time.monotonic()  # when the facts are from
        self.asked_s = float("-inf")  # monotonic time of the last question to its endpoints
        self.looking = asyncio.Lock()
        self.settled = False  # ended, and nothing more to find out
        self.explained: tuple[str | None, tuple[Finding, ...]] | None = None  # once its process has ended
        self.api_key: str | None = None
        self.secrets: tuple[str, ...] = ()
        self.keys_known = False
        self.task: asyncio.Task[None] | None = None  # a question under way
        self.failures = 0  # health checks failed in a row
        self._silent_since_s: float | None = None  # monotonic time when the first of them was asked
        self.unanswered: str | None = None  # what the last readiness check met
        self._phase: str | None = None
        self._version = record.engine_version
        self._moved_port: int | None = None  # the engine chose another port by itself (TabbyAPI)
        self._lost: str | None = None
        self._forward: Forward | None = None
        self._http: httpx.AsyncClient | None = None
        self._http_for: tuple[int, str | None] | None = None
        self.status = self._judge()

    @property
    def log_path(self) -> str:
        return f"{self.run_dir}/log"

    @property
    def port(self) -> int:
        return self.facts.ready.port if self.facts.ready else self._moved_port or self.record.command.port

    @property
    def gone(self) -> bool:
        """Not one process of it is left."""
        return not self.facts.alive and not self.facts.members

    @property
    def now_unix_s(self) -> float:
        """The host's clock now, as far as the last full look tells."""
        return self.facts.now_unix_s + (time.monotonic() - self.looked_s)

    def take(self, seen: ProcessStatus) -> None:
        """A full look at its directory and processes."""
        ready = decode_ready(seen.files.get("ready.json", b""))
        self.looked_s = time.monotonic()
        self.start_time = seen.start_time
        self.facts = RunFacts(
            self.record,
            alive=seen.alive,
            members=len(seen.members),
            pid=seen.pid,
            exit_code=seen.exit_code,
            exit_signal=seen.exit_signal,
            started_unix_s=seen.started_unix_s,
            ended_unix_s=seen.ended_unix_s,
            ready=ready or self.facts.ready,
            stop_unix_s=_stop_time(seen.files.get("stop.json")) or self.facts.stop_unix_s,
            now_unix_s=seen.now_unix_s,
            lost=seen.lost,
        )

    def knows(self, command: Command) -> None:
        """Secrets and the API key, from the command as it was started or as the process table shows it."""
        self.secrets = secret_values(command)
        self.follower.use_secrets(self.secrets)
        key = api_key_of(command, self.engine)
        self.api_key = None if key == MASK else key
        self.keys_known = True

    def ready_now(self, model: str) -> ReadyFacts:
        """It has just answered. Times by the host's clock, which a look gave a moment ago."""
        started_unix_s = self.facts.started_unix_s or self.record.created_unix_s
        after_s = time.monotonic() - self.started_s if self.started_s else self.now_unix_s - started_unix_s
        return ReadyFacts(round(self.now_unix_s, 3), model, round(after_s, 3), self.port)

    def read(self, data: bytes, at: int) -> LogBatch | None:
        """New bytes of the log; until it is ready they tell the phase, the version, and the port if it moved."""
        batch = self.follower.feed(data, at)
        if self.engine is not None and self.facts.ready is None:
            for line in (*(batch.lines if batch else ()), self.follower.unfinished):
                self._phase = self.engine.phase(line) or self._phase
                if self._version is None and (found := self.engine.version_log.search(line)):
                    self._version = next((v for v in found.groupdict().values() if v), None)
                if self.engine.moved_port_log and (moved := self.engine.moved_port_log.search(line)):
                    self._moved_port = int(moved["port"])
        return batch

    def lose(self, why: str | None) -> None:
        """The host cannot be asked, or (None) can be again."""
        if why is None:
            if self._lost is not None:
                self.healthy(True, 0.0)
            self._lost = None
        elif self._lost is None:
            self._lost = f"{why} (last seen {time.strftime('%H:%M:%S')}, {self.status.state})"

    def refresh(self) -> bool:
        """Judge anew; whether the status changed. An end is told together with its reason, so not before that."""
        facts = self.facts
        if not facts.alive and facts.stop_unix_s is None and self.explained is None and not self.settled:
            return False
        before, self.status = self.status, self._judge()
        return before != self.status

    def _judge(self) -> ServerStatus:
        status = judge(self.facts, now_unix_s=self.now_unix_s, silent_s=self._silent_s(), phase=self._phase)
        reason, found = self.explained or (None, ())
        if status.state is ServerState.STOPPED:
            reason, found = None, ()
        elif self.facts.alive and status.reason and self.unanswered:
            reason = f"{status.reason} ({self.unanswered})"
        status = replace(
            status,
            host=self.host.name,
            port=self.port,
            url=f"http://{reachable_address(status.bind_host)}:{self.port}",
            reason=reason or status.reason,
            findings=(*status.findings, *found),
            run_dir=self.run_dir,
            engine_version=self._version,
            adopted=self.adopted,
        )
        if self._lost and not self.settled:
            return replace(status, state=ServerState.UNKNOWN, reason=self._lost)
        return status

    def healthy(self, yes: bool, asked_s: float, *, enough: int = 1) -> None:
        """Take the outcome of a health check that was asked at `asked_s`; a failed one counts `enough` times."""
        if yes:
            self.failures, self._silent_since_s = 0, None
        else:
            self.failures += enough
            self._silent_since_s = asked_s if self._silent_since_s is None else self._silent_since_s

    def _silent_s(self) -> float | None:
        """How long it has not answered, in steps, so that its status does not change at every look."""
        if self.failures < UNHEALTHY_AFTER or self._silent_since_s is None:
            return None
        return max(1.0, (time.monotonic() - self._silent_since_s) // _SILENT_STEP_S * _SILENT_STEP_S)

    async def http(self) -> httpx.AsyncClient:
        """A client for the server's endpoints, through the host's forward. Raises HostError."""
        wanted = (self.port, self.api_key)
        if self._http is None or self._http_for != wanted:
            await self.hang_up()
            await asyncio.to_thread(importlib.import_module, "httpx")  # 0.1 s in which the screen would stand still
            address, port = reachable_address(self.record.command.host), self.port
            # A server of this machine that binds to one address only does not answer on the loopback address.
            if not self.host.is_local or address == "127.0.0.1":
                self._forward = await self.host.forward(port)
                address, port = "127.0.0.1", self._forward.local_port
            self._http = readiness.client(f"http://{address}:{port}", self.api_key)
            self._http_for = wanted
        return self._http

    async def hang_up(self) -> None:
        """Let go of the endpoints: the port or key has changed, the link is gone, or the server has ended."""
        http, forward, self._http, self._forward = self._http, self._forward, None, None
        with contextlib.suppress(Exception):
            if http is not None:
                await http.aclose()
            if forward is not None:
                await forward.close()

    async def close(self) -> None:
        task, self.task = self.task, None
        await end_all([task] if task is not None else [])
        await self.hang_up()


def _stop_time(data: bytes | None) -> float | None:
    try:
        return float(json.loads(data)["unix_s"]) if data else None
    except (ValueError, KeyError, TypeError):
        return None
