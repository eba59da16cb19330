"""One benchmark from preparation to figures: what the load client, the GPUs and the engine each say of the same run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from workbench.model.api_key import api_key
from workbench.model.errors import BenchError
from workbench.session.conditions import gpus_of

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    import httpx

    from workbench.bench.energy import Idle
    from workbench.bench.prompt_length import Length
    from workbench.bench.records import BenchOutcome
    from workbench.gpu.settings.contrast import Clock, ContrastEvidence
    from workbench.gpu.settings.disturbance import Watch
    from workbench.gpu.settings.proof import Proof
    from workbench.hosts.base import Host
    from workbench.model.bench import BenchProgress, BenchSpec, BenchSummary, EngineDuring
    from workbench.model.gpu import Telemetry
    from workbench.model.plan import LaunchPlan
    from workbench.model.server_run import ServerStatus
    from workbench.model.settings import Alteration
    from workbench.server.run_directory import RunRecord
    from workbench.session.engine_watch import EngineView
    from workbench.session.gpu_meter import Meter

T = TypeVar("T")

PREPARING = "preparing"
_CACHED_SHARE = 0.01
_TEMPLATE_TOKENS = 64  # of a chat template that is not known: these may come from the cache in every request


@dataclass(frozen=True, slots=True)
class Benched:
    """The server under test: a run, or (without `status`) one that others started."""

    host: str
    status: ServerStatus | None = None
    record: RunRecord | None = None
    simulated: bool = False
    gpus_known: bool = True
    address: str = ""

    @property
    def plan(self) -> LaunchPlan | None:
        return self.record.plan if self.record else None


@dataclass(frozen=True, slots=True)
class Measured:
    """`idle` is None where it was not measured now; `gpus` are the indices of the server's; `engine` is known by the
    run or by its metrics page."""

    outcome: BenchOutcome
    summary: BenchSummary
    gpus: tuple[int, ...] = ()
    telemetry: Telemetry | None = None
    proofs: tuple[Proof, ...] = ()
    idle: Idle | None = None
    engine: str | None = None
    clocks: tuple[Clock, ...] = ()

    def with_locks_changed(self, why: Sequence[str]) -> Measured:
        """Rejected, and without what was said of locks that did not hold throughout."""
        from workbench.gpu.settings.remote_settings import is_lock

        kept = tuple(p for p in self.proofs if not is_lock(p.setting))
        said = {p.line for p in self.proofs} - {p.line for p in kept}
        notes = tuple(note for note in self.summary.notes if note not in said)
        return replace(
            self, proofs=kept, summary=replace(self.summary, notes=notes, refused=(*self.summary.refused, *why))
        )


@dataclass(frozen=True, slots=True)
class Ahead:
    """What takes 0.2 s to start, and does so while the server is asked. `meter`: None where whose GPUs it would read
    is not known."""

    worker: Process | None
    meter: Meter | None


@asynccontextmanager
async def start_ahead(host: Host, *, worker: bool, meter: bool) -> AsyncIterator[Ahead]:
    """For one `Measurement`; what is left of it ends with the block."""
    from workbench.bench import runner
    from workbench.session.gpu_meter import Meter

    async with AsyncExitStack() as stack:
        yield Ahead(
            await stack.enter_async_context(runner.ahead()) if worker else None,
            await stack.enter_async_context(Meter(host, wait=False)) if meter else None,
        )


class Measurement:
    """`run` once. `idle`: power of the idle GPUs where it is known from before; `ahead`: from the above. Raises
    BenchCancelled when `cancel` is set, whatever is under way, and BenchError when there is nothing to measure."""

    def __init__(
        self,
        host: Host,
        spec: BenchSpec,
        benched: Benched,
        env: Mapping[str, str],
        *,
        cancel: asyncio.Event,
        on_progress: Callable[[BenchProgress], None],
        alterations: Sequence[Alteration] = (),
        known: ContrastEvidence | None = None,
        idle: Idle | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        self._host, self._spec, self._benched, self._env = host, spec, benched, env
        self._cancel, self._on_progress = cancel, on_progress
        self._alterations, self._idle, self._ahead = alterations, idle, ahead or Ahead(None, None)
        self._known = known
        self._length: Length | None = None

    async def run(self) -> Measured:
        async with self._http() as http:
            view = self._view(http)
            measured = await (self._beside_meter if self._benched.gpus_known else self._unmetered)(http, view)
            return replace(measured, engine=view.engine.name if view.engine else None)

    async def _beside_meter(self, http: httpx.AsyncClient, view: EngineView) -> Measured:
        from workbench.session.gpu_meter import Meter

        started = self._ahead.meter
        async with nullcontext(started) if started else Meter(self._host, wait=False) as meter:
            await self._until_cancelled(asyncio.gather(meter.ready(), view.identify()))
            return await self._metered(http, view, meter)

    async def _unmetered(self, http: httpx.AsyncClient, view: EngineView) -> Measured:
        from workbench.bench.energy import without_energy

        await self._until_cancelled(self._prepare(http, view))
        outcome, engine = await self._load(view)
        why = f"the GPUs of {self._benched.host} are not known: only those of a host that Workbench is on are read"
        return Measured(outcome, without_energy(self._with_engine(outcome, engine), why))

    async def _metered(self, http: httpx.AsyncClient, view: EngineView, meter: Meter) -> Measured:
        from workbench.model.settings import HOST_INDEX
        from workbench.session.gpu_meter import span_of

        gpus = gpus_of(self._benched.plan, meter.latest.infos if meter.latest else ())
        idle = self._idle
        if idle is None:
            self._tell(PREPARING)
            idle = await self._until_cancelled(meter.idle(gpus, view.load))
        await self._until_cancelled(self._prepare(http, view))
        watch = meter.watch(gpus)
        outcome, engine = await self._load(view)
        telemetry = await meter.after(outcome.t1_unix)
        gpus = gpus_of(self._benched.plan, telemetry.infos if telemetry else ())
        outcome = replace(outcome, summary=self._with_engine(outcome, engine))
        summary = meter.with_gpus(outcome, gpus, idle)
        span, touched = span_of(outcome), (*gpus, HOST_INDEX)
        proofs = meter.proofs(*span, [a for a in self._alterations if a.gpu_index in touched], self._known)
        clocks = meter.clocks(*span, self._alterations, self._known) if self._known else ()
        changed, beside = await self._disturbed(watch)
        summary = replace(
            summary,
            notes=(*summary.notes, *(p.line for p in proofs), *beside),
            refused=(*summary.refused, *changed),
        )
        return Measured(outcome, summary, gpus, telemetry, proofs, idle, clocks=clocks)

    async def _disturbed(self, watch: Watch) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What changed on the GPUs meanwhile (a command may use them itself), and who else was there throughout."""
        from workbench.hosts import detached_process

        status = self._benched.status
        if self._spec.command:
            return watch.changes(watch.came), ()
        ours: frozenset[int] = frozenset()
        if (watch.came or watch.running) and status is not None:
            runs = await detached_process.list_runs(self._host, f"{await self._host.state_dir()}/runs")
            ours = frozenset(pid for run in runs if run.run_dir == status.run_dir for pid in run.members)
        return watch.changes(ours), watch.beside(ours)

    # ---- before the load

    async def _prepare(self, http: httpx.AsyncClient, view: EngineView) -> None:
        """The length of the prompts by the server's tokenizer; then the counters as they stand before the load."""
        if not (self._spec.prompts or self._spec.command or self._spec.prompt_words):
            await self._fit_prompts(http, view)
        await view.before()

    async def _fit_prompts(self, http: httpx.AsyncClient, view: EngineView) -> None:
        from workbench.bench import prompt_length
        from workbench.server.tokenizer import Tokenizer

        await view.identify()
        if view.engine is None:
            return
        spec = self._spec
        tokenizer = Tokenizer(http, view.engine, spec.model)
        if await tokenizer.count({"prompt": "one"}) is None:
            return
        longest = round(spec.max_tokens * (1 + spec.length_spread))
        limit = tokenizer.max_model_len
        if limit is not None and spec.input_tokens + longest > limit:
            raise BenchError(
                f"prompts of {spec.input_tokens:,} and answers of {longest:,} tokens do not fit the server's context"
                f" of {limit:,}",
                host=self._benched.host,
                next_step="fewer --input-tokens or --max-tokens, or a longer context when the server starts",
            )
        self._length = await prompt_length.measure(spec, tokenizer.count)
        if self._length is not None:
            self._spec = replace(spec, prompt_words=self._length.words)

    # ---- the load

    async def _load(self, view: EngineView) -> tuple[BenchOutcome, EngineDuring]:
        from workbench.server.engine_counters import disagreements
        from workbench.session.gpu_meter import window_unix

        async with view.watching():
            outcome = await (self._own_command() if self._spec.command else self._client())
        begin, end = window_unix(outcome)
        if self._spec.command:
            return outcome, await view.after(begin, end)
        sent = _sent(outcome.summary)
        return outcome, await view.after(begin, end, lambda e: not disagreements(e, *sent) or self._cancel.is_set())

    async def _client(self) -> BenchOutcome:
        from workbench.bench import runner

        return await runner.run(
            self._spec, on_progress=self._on_progress, cancel=self._cancel, env=self._env, worker=self._ahead.worker
        )

    async def _own_command(self) -> BenchOutcome:
        from workbench.bench import own_command
        from workbench.bench.records import BenchOutcome

        spec, base_url = self._spec, f"{self._spec.url}/v1"
        env = own_command.environment(base_url, spec.model, self._key())

        def hear(line: str, elapsed_s: float) -> None:
            self._tell("running the command", line, elapsed_s)

        self._tell("running the command")
        argv = own_command.filled(spec.command, base_url, spec.model)
        done = await own_command.run(argv, env, on_line=hear, cancel=self._cancel, deadline_s=spec.deadline_s)
        return BenchOutcome(spec, own_command.summary(done), t0_unix=done.t0_unix, t1_unix=done.t1_unix)

    # ---- what the engine says

    def _with_engine(self, outcome: BenchOutcome, engine: EngineDuring) -> BenchSummary:
        from workbench.bench import own_command
        from workbench.server.engine_counters import disagreements

        summary, notes, refused = outcome.summary, list(outcome.summary.notes), list(outcome.summary.refused)
        absent = {k: v for k, v in summary.absent.items() if k != "engine"}
        if outcome.spec.command:
            return own_command.with_counts(replace(summary, engine=engine, absent=absent), engine)
        if not (summary.requests_failed or outcome.partial):  # of a failed one the engine may have counted a part
            engine = replace(engine, disagreements=disagreements(engine, *_sent(summary)))
        if engine.disagreements:
            notes.append(
                f"{'; '.join(engine.disagreements)}: the likely cause is traffic of other clients on this server"
            )
        cached = self._cache_answered(outcome, engine)
        if cached and not any("cache" in reason for reason in refused):
            refused.append(cached)
        return replace(summary, engine=engine, absent=absent, notes=tuple(notes), refused=tuple(refused))

    def _cache_answered(self, outcome: BenchOutcome, engine: EngineDuring) -> str | None:
        """Why the prefix cache decided the result: more hits than a chat template shared by all requests gives (as
        bench/selfcheck.py judges by usage)."""
        spec, hits, prompt = outcome.spec, engine.prefix_hit_tokens, engine.prompt_tokens
        if spec.shared_prefix or spec.prompts or not hits or not prompt:
            return None
        template = 0 if spec.endpoint == "completions" else _TEMPLATE_TOKENS
        if self._length is not None:  # a word of ours is a token at least: the rest may all be template
            template = max(0, self._length.tokens - self._length.words)
        requests = _sent(outcome.summary)[0]
        if hits - template * requests <= _CACHED_SHARE * prompt:
            return None
        return f"{100 * hits / prompt:.0f} % of the prompt tokens came from the prefix cache by the engine's own count"

    # ---- helpers of the above

    @asynccontextmanager
    async def _http(self) -> AsyncIterator[httpx.AsyncClient]:
        import importlib

        await asyncio.to_thread(importlib.import_module, "httpx")  # 0.1 s in which the screen would stand still
        from workbench.bench import tls
        from workbench.server.bounded_http import BoundedClient

        key, url = self._key(), self._spec.url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        verify = tls.context(self._spec) if url.startswith("https:") else False
        async with BoundedClient(base_url=url, headers=headers, verify=verify) as http:
            yield http

    def _key(self) -> str | None:
        name = self._spec.api_key_env
        return api_key(name, {**os.environ, **self._env}) if name else None

    def _view(self, http: httpx.AsyncClient) -> EngineView:
        from workbench import engines
        from workbench.session.engine_watch import EngineView

        status = self._benched.status
        return EngineView(http, engines.get(status.engine) if status else None)

    def _tell(self, phase: str, line: str = "", elapsed_s: float = 0.0) -> None:
        from workbench.model.bench import BenchProgress

        total = 1 if self._spec.command else self._spec.requests
        self._on_progress(BenchProgress(0, 0, total, 0, 0, 0.0, round(elapsed_s, 3), phase, line=line))

    async def _until_cancelled(self, work: Awaitable[T]) -> T:
        from workbench.bench.runner import BenchCancelled

        working, cancelled = asyncio.ensure_future(work), asyncio.ensure_future(self._cancel.wait())
        try:
            await asyncio.wait((working, cancelled), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise BenchCancelled("the benchmark was cancelled", next_step="nothing was stored; run it again")
            return working.result()
        finally:
            working.cancel()
            cancelled.cancel()


def _sent(summary: BenchSummary) -> tuple[int, int | None, int | None]:
    """Requests, prompt and output tokens of all that a benchmark sent, warm-up included, by its own account."""

    def both(counted: int | None, warm: int | None) -> int | None:
        return None if counted is None or warm is None else counted + warm

    return (
        summary.requests_ok + summary.requests_failed + summary.warmup_requests,
        both(summary.prompt_tokens, summary.warmup_prompt_tokens),
        both(summary.output_tokens, summary.warmup_output_tokens),
    )
