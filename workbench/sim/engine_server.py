"""A simulated inference engine: a real HTTP server process with a real engine's command line, log and manners.

    python3 engine_server.py --engine vllm serve MODEL --tensor-parallel-size 2 …

Environment beside WORKBENCH_SIM_PROFILE and WORKBENCH_SIM_STATE:
    WORKBENCH_SIM_START_S     seconds from start to ready
    WORKBENCH_SIM_SPEEDUP     tokens come this many times faster than simulated (1)
    WORKBENCH_SIM_NOISE       relative run-to-run and step-to-step noise (0.005; 0: none)
    WORKBENCH_SIM_DRIFT       relative size of slow waves in speed that all servers of the machine share (0)
    WORKBENCH_SIM_SEED        seed of the noise (the process id)
    WORKBENCH_SIM_VERSION     engine version to be (the newest flag catalog's)
    WORKBENCH_SIM_FAULT       comma separated: exit_at_start, never_ready, crash_after_ready=S, unresponsive_after=S,
                              hang_on_term (a TERM while starting ends the workers but not the main process, as vLLM)
"""

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

if __package__ in (None, ""):
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from workbench.sim import driver_state, flag_parser, launch_options, memory_fit, startup
from workbench.sim.engine_log import EngineLog
from workbench.sim.engine_metrics import Metrics
from workbench.sim.http_server import ClientConnection
from workbench.sim.launch_options import Launch
from workbench.sim.memory_fit import Failure, Fit
from workbench.sim.openai_api import Api
from workbench.sim.scheduler import Replica, Sequence
from workbench.sim.step_time import ModelReplica

PUBLISH_S = 0.25
CHILD_NAMES = {"vllm": "VLLM::EngineCore", "sglang": "sglang::schedul"}
EXIT_TEXT = {"vllm": "Shutting down", "sglang": "Shutting down", "tabbyapi": "Shutting down"}


class Stop(Exception):
    """The server ends with this exit status."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class EngineServer:
    """One server process from its command line to its end."""

    def __init__(self, plan: Launch) -> None:
        self.plan = plan
        self.state = driver_state.from_environment()
        self.log = EngineLog(plan)
        self.faults = _faults(os.environ.get("WORKBENCH_SIM_FAULT", ""))
        self.children: list[subprocess.Popen[bytes]] = []
        self.replicas: list[Replica] = []
        self.clocks: list[tuple[float, float]] = []
        self.ready = False
        self.end: asyncio.Future[int] | None = None
        self.port = plan.port
        self.tasks: list[asyncio.Task[None]] = []

    # -- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self.end = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        starting = loop.create_task(self._start())
        starting.add_done_callback(self._started)
        try:
            return await self.end
        except Stop as stop:
            return stop.code
        finally:
            starting.cancel()
            for task in self.tasks:
                task.cancel()
            self._end_children()

    def _started(self, starting: asyncio.Task[None]) -> None:
        """A start that failed is the end."""
        error = None if starting.cancelled() else starting.exception()
        if error and self.end and not self.end.done():
            self.end.set_exception(error)

    def _asked_to_stop(self) -> None:
        if "hang_on_term" in self.faults and not self.ready:
            self._end_children()
            return
        if self.end and not self.end.done():
            if self.plan.engine == "vllm":
                self.log.line("[shutdown] API server: shutdown triggered", source="launcher.py:254")
            elif self.plan.engine in EXIT_TEXT:
                self.log.line(EXIT_TEXT[self.plan.engine])
            self.end.set_result(0)

    async def _start(self) -> None:
        plan, log = self.plan, self.log
        startup.banner(log, plan, self.state.profile.name)
        if "exit_at_start" in self.faults:
            log.raw("RuntimeError: simulated fault: the engine ends at once")
            raise Stop(1)
        bound = self._bind() if plan.engine == "vllm" else None
        try:
            await self._say(startup.before_placing(plan))
            placed = memory_fit.place(plan, self.state)
            self._start_children(len(placed.replicas))
            self._hold_memory(placed)
        except Failure as failure:
            await asyncio.sleep(min(0.3, 0.1 * startup.start_seconds(plan)))
            if plan.engine == "vllm" and "validation error" not in failure.lines[0]:
                self._start_children(1)
            startup.failed(log, plan, failure, [c.pid for c in self.children])
            raise Stop(failure.code) from None
        api = self._serve_with(placed)
        server = None
        if plan.engine == "sglang":  # listens early and answers 503 until it is warm
            server = await self._listen(api, self._bind())
        await self._say(startup.phases(plan, placed, [c.pid for c in self.children], self._address()))
        if "never_ready" in self.faults:
            await asyncio.Event().wait()
        if plan.headless:
            log.line("headless node: waiting for work from the main node")
        else:
            server = server or await self._listen(api, bound or self._bind())
            api.ready = self.ready = True
            ready = startup.READY[plan.engine].format(address=self._address())
            (log.raw if plan.engine == "vllm" else log.line)(ready)
        loop = asyncio.get_running_loop()
        self.tasks += [loop.create_task(r.run()) for r in self.replicas]
        self.tasks += [loop.create_task(c) for c in (self._publish(placed), self._statistics(api), self._watch(api))]

    async def _say(self, phases: Iterable[startup.StartupPhase]) -> None:
        total = startup.start_seconds(self.plan)
        for phase in phases:
            if phase.share:
                await asyncio.sleep(phase.share * total)
            if phase.raw:
                self.log.raw(phase.text)
            else:
                self.log.line(phase.text, **dict(phase.fields))

    def _address(self) -> str:
        return f"http://{self.plan.host}:{self.port}"

    # -- sockets -------------------------------------------------------------------------------------------------

    def _bind(self) -> socket.socket:
        """The bound, not yet listening socket. Raises Stop after the engine's own words where the port is taken."""
        plan = self.plan
        for port in range(plan.port, plan.port + (10 if plan.engine == "tabbyapi" else 1)):
            family = socket.AF_INET6 if ":" in plan.host else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((plan.host, port))
            except OSError as error:
                sock.close()
                self._port_refused(port, error)
                continue
            self.port = port
            return sock
        raise Stop(1)

    def _port_refused(self, port: int, error: OSError) -> None:
        plan, log = self.plan, self.log
        if plan.engine == "vllm":
            log.raw("Traceback (most recent call last):\n    sock.bind(addr)")
            log.raw(f"OSError: [Errno {error.errno}] {error.strerror}")
            raise Stop(1)
        if plan.engine == "sglang":
            log.raw(
                f"ERROR:    [Errno {error.errno}] error while attempting to bind on address ('{plan.host}', {port}): "
                "address already in use"
            )
            raise Stop(1)
        if plan.engine == "llamacpp":
            log.line(
                f"srv         start: couldn't bind HTTP server socket, hostname: {plan.host}, port: {port}", level="E"
            )
            log.line("srv  llama_server: exiting due to HTTP server error", level="E")
            raise Stop(1)
        log.line(f"Port {port} is currently in use. Switching to {port + 1}.", level="WARNING")

    async def _listen(self, api: Api, sock: socket.socket) -> asyncio.AbstractServer:
        requests, idle_s = (100, 5.0) if self.plan.engine == "llamacpp" else (None, None)
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: ClientConnection(api.handle, requests, idle_s), sock=sock, backlog=2048)

    # -- processes and load --------------------------------------------------------------------------------------

    def _start_children(self, count: int) -> None:
        name = CHILD_NAMES.get(self.plan.engine)
        if not name or self.children:
            return
        script = str(Path(__file__).with_name("engine_worker.py"))
        manner = "orphan" if self.plan.engine == "vllm" else "follow"
        for rank in range(count):
            title = f"{name}_DP{rank}" if count > 1 else name
            self.children.append(
                subprocess.Popen(
                    [sys.executable, "-S", "-E", script, title, manner, str(os.getpid())], stdin=subprocess.DEVNULL
                )
            )

    def _end_children(self) -> None:
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        for child in self.children:
            try:
                child.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for pid in self._holders(len(self.replicas) or 1):
            self.state.withdraw_load(pid)

    def _holders(self, count: int) -> list[int]:
        """The process that holds each replica's GPU memory."""
        return [c.pid for c in self.children] or [os.getpid()] * count

    def _hold_memory(self, placed: Fit) -> None:
        self._publish_once(placed, [(0.0, 0.0, 0.0)] * len(placed.replicas), None)

    def _publish_once(self, placed: Fit, shares: list[tuple[float, float, float]], active_unix_s: float | None) -> None:
        for pid, gpus, (busy, memory, compute) in zip(self._holders(len(placed.replicas)), placed.replicas, shares):  # noqa: B905
            part = {"busy": busy, "memory": memory, "compute": compute, "memory_bytes": placed.used_bytes}
            self.state.publish_load(pid, dict.fromkeys(gpus, part), active_unix_s=active_unix_s)

    async def _publish(self, placed: Fit) -> None:
        """Tell the simulated driver what runs, and take the clocks that follow from it."""
        was_busy, last, active = False, time.monotonic(), None
        while True:
            await asyncio.sleep(PUBLISH_S)
            now = time.monotonic()
            activities = [replica.activity(now - last) for replica in self.replicas]
            last = now
            busy = any(a.busy > 0.0 for a in activities)
            if busy or was_busy:
                active = time.time() if busy else active
                shares = [(a.busy, a.memory, a.compute) for a in activities]
                self._publish_once(placed, shares, active)
                readings = self.state.readings()
                for i, gpus in enumerate(placed.replicas):
                    if activities[i].busy > 0.0:
                        points = [readings[g].point for g in gpus]
                        self.clocks[i] = (min(p.sm_mhz for p in points), min(p.memory_mhz for p in points))
            was_busy = busy

    # -- serving -------------------------------------------------------------------------------------------------

    def _serve_with(self, placed: Fit) -> Api:
        plan, gpu = self.plan, self.state.profile.gpu
        noise = float(os.environ.get("WORKBENCH_SIM_NOISE", "0.005"))
        seed = int(os.environ.get("WORKBENCH_SIM_SEED", str(os.getpid())))
        serving = ModelReplica(
            plan.engine, gpu, self.state.profile.interconnect, plan.model, plan.tp, plan.eager, plan.custom_all_reduce
        )
        for i in range(len(placed.replicas)):
            self.clocks.append((float(gpu.sm_compute_mhz), float(gpu.memory_compute_mhz)))
            replica = Replica(
                serving,
                kv_tokens=placed.kv_tokens,
                max_sequences=plan.max_sequences,
                batched_tokens=plan.batched_tokens,
                prefix_cache=plan.prefix_cache,
                clocks=lambda i=i: self.clocks[i],  # type: ignore[misc]
                speedup=float(os.environ.get("WORKBENCH_SIM_SPEEDUP", "1")),
                noise=noise,
                drift_size=float(os.environ.get("WORKBENCH_SIM_DRIFT", "0")),
                seed=seed + i,
            )
            if plan.engine == "sglang":
                replica.on_prefill = lambda fresh, tokens, r=replica: self._prefill_line(r, fresh, tokens)
                replica.on_step = lambda r=replica: self._decode_line(r)
            self.replicas.append(replica)
        self.metrics = Metrics(plan, self.replicas, placed.kv_tokens)
        return Api(plan, self.replicas, self.metrics, self.log, placed.max_len)

    def _prefill_line(self, replica: Replica, fresh: list[Sequence], tokens: int) -> None:
        cached = sum(s.cached for s in fresh)
        usage = replica.used_tokens / replica.kv_tokens
        self.log.line(
            f"Prefill batch, #new-seq: {len(fresh)}, #new-token: {tokens}, #cached-token: {cached}, token usage: "
            f"{usage:.2f}, #running-req: {len(replica.running) - len(fresh)}, #queue-req: {len(replica.waiting)}",
            process=f"TP0 DP{self.replicas.index(replica)}" if self.plan.dp > 1 else "TP0",
        )

    def _decode_line(self, replica: Replica) -> None:
        interval = int(self.plan.flags.get("decode-log-interval") or 40)
        if replica.counters.steps % interval:
            return
        used, graph = replica.used_tokens, not self.plan.eager
        self.log.line(
            f"Decode batch, #running-req: {len(replica.running)}, #token: {used}, token usage: "
            f"{used / replica.kv_tokens:.2f}, cuda graph: {graph}, gen throughput (token/s): "
            f"{self.metrics.throughput / len(self.replicas):.2f}, #queue-req: {len(replica.waiting)}",
            process=f"TP0 DP{self.replicas.index(replica)}" if self.plan.dp > 1 else "TP0",
        )

    async def _statistics(self, api: Api) -> None:
        """vLLM's line every ten seconds while there is something to tell; and the metrics' own bookkeeping."""
        interval = float(os.environ.get("VLLM_LOG_STATS_INTERVAL", "10"))
        before, last, spoke = [(0, 0)] * len(self.replicas), time.monotonic(), False
        while True:
            await asyncio.sleep(min(1.0, interval))
            self.metrics.collect()
            now = time.monotonic()
            if now - last < interval:
                continue
            totals = [(r.counters.prompt_tokens, r.counters.generated_tokens) for r in self.replicas]
            busy = totals != before or any(r.load for r in self.replicas)
            if self.plan.engine == "vllm" and self.plan.stats_log and (busy or spoke):
                for i, replica in enumerate(self.replicas):
                    prompt, made = (totals[i][0] - before[i][0], totals[i][1] - before[i][1])
                    counters = replica.counters
                    hit = 100 * counters.cached_tokens / max(1, counters.prompt_tokens)
                    self.log.line(
                        f"Engine {i:03d}: Avg prompt throughput: {prompt / (now - last):.1f} tokens/s, Avg generation "
                        f"throughput: {made / (now - last):.1f} tokens/s, Running: {len(replica.running)} reqs, "
                        f"Waiting: {len(replica.waiting)} reqs, GPU KV cache usage: "
                        f"{100 * replica.used_tokens / replica.kv_tokens:.1f}%, Prefix cache hit rate: {hit:.1f}%",
                        source="loggers.py:335",
                    )
            before, last, spoke = totals, now, busy

    async def _watch(self, api: Api) -> None:
        """End when a worker ends, and play the faults that come after ready."""
        since = time.monotonic()
        while True:
            await asyncio.sleep(0.1)
            alive_s = time.monotonic() - since
            if alive_s >= self.faults.get("unresponsive_after", float("inf")):
                api.silent = True
            crash = alive_s >= self.faults.get("crash_after_ready", float("inf"))
            dead = next((c for c in self.children if c.poll() is not None), None)
            if (crash or dead) and self.end and not self.end.done():
                self.log.line("EngineCore encountered a fatal error.", source="core.py:1310", level="ERROR")
                self.log.raw("RuntimeError: CUDA error: an illegal memory access was encountered (simulated fault)")
                self.end.set_result(1)


def _faults(text: str) -> dict[str, float]:
    pairs = (part.strip().partition("=") for part in text.split(",") if part.strip())
    return {name: float(value or 0) for name, _, value in pairs}


def _version(engine: str, words: list[str]) -> str | None:
    """What the engine prints when it is asked for its version; None when it is asked to serve."""
    version = flag_parser.Catalog(engine, os.environ.get("WORKBENCH_SIM_VERSION")).version
    if engine == "vllm" and words[:1] in (["--version"], ["-v"]):
        return version
    if engine == "sglang" and words[:1] in (["version"], ["--version"]):
        return f"sglang version: {version}"
    if engine == "llamacpp" and "--version" in words:
        return f"version: {version.lstrip('b')} (simulated)\nbuilt by Workbench's simulation"
    return None


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    engine = words[1]
    words = words[2:]
    version = _version(engine, words)
    if version is not None:
        sys.stdout.write(version + "\n")
        return 0
    if engine in ("vllm", "sglang"):
        if words[:1] != ["serve"]:
            sys.stderr.write(
                f"usage: {engine} {{serve}} …\n{engine}: error: this simulated engine knows `serve` only\n"
            )
            return 2
        words = words[1:]
    if {"-h", "--help"} & set(words):
        names = sorted(flag_parser.Catalog(engine).spellings)
        sys.stdout.write(f"usage: {flag_parser.PROGRAM[engine]} [options]   (SIMULATED)\n" + "\n".join(names) + "\n")
        return 0
    try:
        plan = launch_options.read(engine, words, os.environ.get("WORKBENCH_SIM_VERSION"))
    except flag_parser.ArgumentsRejected as refused:
        sys.stderr.write(refused.text + "\n")
        return refused.code
    return asyncio.run(EngineServer(plan).run())


if __name__ == "__main__":
    sys.exit(main())
