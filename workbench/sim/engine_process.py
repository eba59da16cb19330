"""The process of a simulated inference engine: a real HTTP server with the log and behaviour of a
real engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from workbench.sim import driver_state, memory_fit, startup
from workbench.sim.engine_log import EngineLog
from workbench.sim.engine_metrics import Metrics
from workbench.sim.http_server import ClientConnection
from workbench.sim.launch_options import LaunchOptions
from workbench.sim.memory_fit import Failure, Fit
from workbench.sim.openai_api import Api
from workbench.sim.ranks import Load, RankLinks
from workbench.sim.scheduler import Replica
from workbench.sim.step_time import ModelReplica

PUBLISH_S = 0.25


class Stop(Exception):
    """Raised to end the server. Its argument is the exit status."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class EngineServer:
    """A server process of a simulated engine, from its parsed command line to its end. It is made
    in the event loop that runs it."""

    def __init__(self, plan: LaunchOptions) -> None:
        self.plan = plan
        self.engine = plan.engine
        self.state = driver_state.sim_state_from_environment()
        self.log = EngineLog(plan)
        self.faults = _parse_faults(os.environ.get("WORKBENCH_SIM_FAULT", ""))
        self.workers: list[subprocess.Popen[bytes]] = []
        self.replicas: list[Replica] = []
        self.clocks: list[tuple[float, float]] = []
        self.ready = False
        self.end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.port = plan.port
        self.tasks: list[asyncio.Task[None]] = []
        self.links = RankLinks(plan, self._publish_load_of_rank_0, self._end_on_lost_rank)
        self.placed: Fit | None = None

    # -- life --------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Start the server, and return its exit status when it has ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._handle_stop_signal)
        starting = loop.create_task(self._start())
        starting.add_done_callback(self._report_start_failure)
        try:
            return await self.end
        except Stop as stop:
            return stop.code
        finally:
            starting.cancel()
            self.links.close()
            for task in self.tasks:
                task.cancel()
            self._terminate_workers()

    def _report_start_failure(self, starting: asyncio.Task[None]) -> None:
        error = None if starting.cancelled() else starting.exception()
        if error and not self.end.done():
            self.end.set_exception(error)

    def _handle_stop_signal(self) -> None:
        if "hang_on_term" in self.faults and not self.ready:
            self._terminate_workers()
            return
        if not self.end.done():
            self.engine.log_stop(self.log)
            self.end.set_result(0)

    def _publish_load_of_rank_0(self, loads: list[Load], active_unix_s: float | None) -> None:
        if self.placed is not None:
            self._publish_replica_loads(self.placed, loads, active_unix_s)

    def _end_on_lost_rank(self, line: str) -> None:
        if not self.end.done():
            self.log.write_raw_line(line)
            self.end.set_result(1)

    async def _start(self) -> None:
        """Start the server, from its first log line until it is ready, and the tasks that it runs
        then. Raises Stop if it cannot start."""
        plan, log = self.plan, self.log
        startup.write_banner(log, plan, self.state.profile.name)
        if "exit_at_start" in self.faults:
            log.write_raw_line("RuntimeError: simulated fault: the engine ends at once")
            raise Stop(1)
        bound = self._bind() if self.engine.binds_first and not plan.headless else None
        try:
            await self._log_startup_phases(self.engine.lines_before_loading(plan))
            if plan.master:
                await self.links.connect_to_rank_0()
            placed = memory_fit.fit_server_on_gpus(plan, self.state)
            self.placed = placed
            self._start_worker_processes(len(placed.replicas))
            self._publish_idle_memory_use(placed)
        except Failure as failure:
            await asyncio.sleep(min(0.3, 0.1 * startup.start_duration_s(plan)))
            if self.engine.fails_in_worker(failure):
                self._start_worker_processes(1)
            self.engine.log_failure(log, failure, self._worker_pids())
            raise Stop(failure.code) from None
        api = self._make_replicas_and_api(placed)
        api.apply_faults(self.faults)
        server = None
        if self.engine.listens_while_loading and not plan.headless:
            server = await self._listen(api, self._bind())
        await self._log_startup_phases(
            self.engine.lines_while_loading(plan, placed, self._worker_pids(), self._address())
        )
        if "never_ready" in self.faults:
            await asyncio.Event().wait()
        if plan.headless:
            log.write_line("headless node: waiting for work from the main node")
        else:
            server = server or await self._listen(api, bound or self._bind())
            api.ready = self.ready = True
            await self._log_startup_phases([self.engine.ready_line(self._address())])
        loop = asyncio.get_running_loop()
        for work in (
            *map(Replica.run, self.replicas),
            self._publish_load_repeatedly(placed),
            self._write_statistics(),
            self._watch_workers(api),
        ):
            self.tasks.append(loop.create_task(work))

    async def _log_startup_phases(self, phases: Iterable[startup.StartupPhase]) -> None:
        total = startup.start_duration_s(self.plan)
        for phase in phases:
            if phase.share:
                await asyncio.sleep(phase.share * total)
            if phase.raw:
                self.log.write_raw_line(phase.text)
            else:
                self.log.write_line(phase.text, **phase.fields)

    def _address(self) -> str:
        return f"http://{self.plan.host}:{self.port}"

    # -- sockets -----------------------------------------------------------------------------------

    def _bind(self) -> socket.socket:
        """Return a socket that is bound to the server's port, or to the next free one if the engine
        tries several. Raises Stop if none is free."""
        plan = self.plan
        family = socket.AF_INET6 if ":" in plan.host else socket.AF_INET
        for port in range(plan.port, plan.port + self.engine.port_attempts):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((plan.host, port))
            except OSError as error:
                sock.close()
                self.engine.log_port_in_use(self.log, plan.host, port, error)
                continue
            self.port = port
            return sock
        raise Stop(1)

    async def _listen(self, api: Api, sock: socket.socket) -> asyncio.AbstractServer:
        requests, idle_s = self.engine.connection_limits
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: ClientConnection(api.handle, requests, idle_s), sock=sock, backlog=2048
        )

    # -- processes and load ------------------------------------------------------------------------

    def _start_worker_processes(self, count: int) -> None:
        """Start `count` worker processes, unless they run already or the engine has none."""
        name = self.engine.worker_name
        if not name or self.workers:
            return
        script = str(Path(__file__).with_name("engine_worker.py"))
        for rank in range(count):
            title = f"{name}_DP{rank}" if count > 1 else name
            argv = [
                sys.executable,
                "-S",
                "-E",
                script,
                title,
                self.engine.worker_manner,
                str(os.getpid()),
            ]
            self.workers.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))

    def _worker_pids(self) -> list[int]:
        return [worker.pid for worker in self.workers]

    def _terminate_workers(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        for pid in self._replica_holder_pids(len(self.replicas) or 1):
            self.state.withdraw_load(pid)

    def _replica_holder_pids(self, count: int) -> list[int]:
        """Return the id of the process that uses the GPU memory, for each of the server's `count`
        replicas of the model: a worker, or this process if the engine has no workers."""
        return self._worker_pids() or [os.getpid()] * count

    def _publish_idle_memory_use(self, fit: Fit) -> None:
        self._publish_replica_loads(fit, [(0.0, 0.0, 0.0)] * len(fit.replicas), None)

    def _publish_replica_loads(
        self, fit: Fit, load_shares: list[tuple[float, float, float]], active_unix_s: float | None
    ) -> None:
        """Report the load of each replica of the model to the simulated driver. `load_shares` has
        (busy, memory, compute) of each replica: shares of time, 0 to 1."""
        holders = self._replica_holder_pids(len(fit.replicas))
        for pid, gpus, (busy, memory, compute) in zip(holders, fit.replicas, load_shares):  # noqa: B905
            part = {
                "busy": busy,
                "memory": memory,
                "compute": compute,
                "memory_bytes": fit.used_bytes,
            }
            self.state.publish_load(pid, dict.fromkeys(gpus, part), active_unix_s=active_unix_s)

    async def _publish_load_repeatedly(self, fit: Fit) -> None:
        """Repeatedly report the server's load on its GPUs (`fit`) to the simulated driver, and
        give each replica of the model the clocks that the driver computes from this load."""
        was_busy, last, active = False, time.monotonic(), None
        while True:
            await asyncio.sleep(PUBLISH_S)
            now = time.monotonic()
            activities = [replica.pop_activity(now - last) for replica in self.replicas]
            last = now
            busy = any(a.busy > 0.0 for a in activities)
            if busy or was_busy:
                if busy:
                    active = time.time()
                shares = [(a.busy, a.memory, a.compute) for a in activities]
                self._publish_replica_loads(fit, shares, active)
                self.links.forward_load(shares, active)
                readings = self.state.gpu_readings()
                for i, gpus in enumerate(fit.replicas):
                    if activities[i].busy > 0.0:
                        points = [readings[g].point for g in gpus]
                        self.clocks[i] = (
                            min(p.sm_mhz for p in points),
                            min(p.memory_mhz for p in points),
                        )
            was_busy = busy

    # -- serving -----------------------------------------------------------------------------------

    def _make_replicas_and_api(self, fit: Fit) -> Api:
        """Make the replicas of the model and the metrics of the server, and return its API."""
        plan, gpu = self.plan, self.state.profile.gpu
        noise = float(os.environ.get("WORKBENCH_SIM_NOISE", "0.005"))
        seed = int(os.environ.get("WORKBENCH_SIM_SEED", str(os.getpid())))
        serving = ModelReplica(
            gpu,
            self.state.profile.interconnect,
            plan.model,
            plan.tp,
            plan.eager,
            plan.custom_all_reduce,
            self.engine.bandwidth_share,
        )
        for i in range(len(fit.replicas)):
            self.clocks.append((float(gpu.sm_compute_mhz), float(gpu.memory_compute_mhz)))
            replica = Replica(
                serving,
                kv_tokens=fit.kv_tokens,
                max_sequences=plan.max_sequences,
                batched_tokens=plan.batched_tokens,
                prefix_cache=plan.prefix_cache,
                clocks=lambda i=i: self.clocks[i],  # type: ignore[misc]
                speedup=float(os.environ.get("WORKBENCH_SIM_SPEEDUP", "1")),
                noise=noise,
                drift_size=float(os.environ.get("WORKBENCH_SIM_DRIFT", "0")),
                seed=seed + i,
            )
            self.replicas.append(replica)
            self.engine.enable_step_logging(self, replica)
        self.metrics = Metrics(plan, self.replicas, fit.kv_tokens)
        return Api(plan, self.replicas, self.metrics, self.log, fit.max_len)

    async def _write_statistics(self) -> None:
        """Update the metrics repeatedly, and write the engine's statistics lines while there are
        requests."""
        interval = float(os.environ.get("VLLM_LOG_STATS_INTERVAL", "10"))
        before, last, was_busy = [(0, 0)] * len(self.replicas), time.monotonic(), False
        while True:
            await asyncio.sleep(min(1.0, interval))
            self.metrics.update_from_replicas()
            now = time.monotonic()
            if now - last < interval:
                continue
            totals = [
                (r.counters.prompt_tokens, r.counters.generated_tokens) for r in self.replicas
            ]
            busy = totals != before or any(r.unfinished_request_count for r in self.replicas)
            self.engine.log_throughput_statistics(self, before, now - last, busy or was_busy)
            before, last, was_busy = totals, now, busy

    async def _watch_workers(self, api: Api) -> None:
        """End the server with status 1 when one of its worker processes has ended. Also cause the
        simulated faults that begin after the start (crash_after_ready, unresponsive_after)."""
        since = time.monotonic()
        has_dead_worker = False
        while True:
            await asyncio.sleep(0.1)
            alive_s = time.monotonic() - since
            if alive_s >= self.faults.get("unresponsive_after", float("inf")):
                api.silent = True
            crash = alive_s >= self.faults.get("crash_after_ready", float("inf"))
            # One signal ends the workers and this process, which may be busy when it comes: a dead
            # worker counts once the signal would have been handled.
            had_dead_worker = has_dead_worker
            has_dead_worker = any(worker.poll() is not None for worker in self.workers)
            if (crash or had_dead_worker) and not self.end.done():
                self.log.write_line(
                    "EngineCore encountered a fatal error.", source="core.py:1310", level="ERROR"
                )
                self.log.write_raw_line(
                    "RuntimeError: CUDA error: an illegal memory access was encountered "
                    "(simulated fault)"
                )
                self.end.set_result(1)


def _parse_faults(text: str) -> dict[str, float]:
    pairs = (part.strip().partition("=") for part in text.split(",") if part.strip())
    return {name: float(value or 0) for name, _, value in pairs}


def run_engine(plan: LaunchOptions) -> int:
    """Run one server with the launch options `plan` until it ends. Return its exit status."""

    async def make_and_run_server() -> int:
        return await EngineServer(plan).run()

    return asyncio.run(make_and_run_server())
