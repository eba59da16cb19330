"""One benchmark from its preparation to its metrics. The load is sent, and the readings of the load
client, the GPUs and the engine are combined."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from workbench.bench import own_command, prompt_length, runner, tls
from workbench.bench.energy import summary_without_energy
from workbench.bench.records import BenchOutcome
from workbench.bench.runner import BenchCancelled
from workbench.bench.trace_load import trace_load
from workbench.bench.trace_reuse import compare_prefix_reuse_with_trace
from workbench.hosts import detached_process
from workbench.hosts.base import HostUnreachable
from workbench.hosts.cluster import ClusterHost
from workbench.model.bench import BenchProgress
from workbench.model.counts import count_of
from workbench.model.errors import BenchError
from workbench.model.known_values import sum_or_none
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_commands import is_clock_lock
from workbench.model.settings import HOST_INDEX
from workbench.server.engine_counters import (
    describe_count_differences,
    describe_load_of_other_clients,
    has_engine_counted_all,
)
from workbench.server.kept_connection import open_keep_alive_connection
from workbench.session.bench.answer_client import AnswerClient
from workbench.session.bench.engine_watch import EngineWatch
from workbench.session.bench.gpu_meter import Meter, rate_window_monotonic_s, rate_window_unix_s
from workbench.session.bench.text_probe import (
    PROBE_PART_S,
    AbandonedRequests,
    SentCounts,
    TextProbe,
    why_language_is_not_expected,
)
from workbench.session.conditions import gpu_indices_of_plan
from workbench.session.state import PREPARING_PHASE

if TYPE_CHECKING:
    from workbench.bench.energy import IdlePower
    from workbench.bench.prompt_length import PromptLength
    from workbench.gpu.settings.clock_contrasts import ContrastEvidence, MeasuredClock
    from workbench.gpu.settings.disturbance import DisturbanceWatch
    from workbench.gpu.settings.proof import Proof
    from workbench.gpu.telemetry.reading_buffer import Moment
    from workbench.hosts.base import Host
    from workbench.model.answer_verdict import EarlierResult
    from workbench.model.bench import BenchSpec, BenchSummary, EngineDuring
    from workbench.model.gpu import Telemetry
    from workbench.model.setting_records import Alteration
    from workbench.server.small_requests import AskPath
    from workbench.server.tokenizer import Tokenizer
    from workbench.session.bench.benchmark_load import BenchmarkLoad
    from workbench.session.bench.text_probe import CountTokens

T = TypeVar("T")

PROBE_IDLE_TIMEOUT_S = 20.0  # for the requests that the probe gave up
_POLL_INTERVAL_S = 0.2
READINGS_AROUND_RUN_S = 60.0  # around the window of a run: readings that its timeline may contain
_CACHED_SHARE = 0.01  # of the prompt tokens: more hits in the prefix cache decide the result
_TEMPLATE_TOKENS = 64  # of an unknown chat template, which may come from the cache in every request


def prefix_cache_problem(spec: BenchSpec, during: EngineDuring, requests: int) -> str | None:
    """Return why a result of `requests` requests is invalid because more than _CACHED_SHARE of its
    prompt tokens came from the engine's prefix cache; None if it is not. Cached tokens that all
    prompts begin with do not count: a chat template, or the token that begins a text."""
    hits, prompt = during.prefix_hit_tokens, during.prompt_tokens
    if spec.shared_prefix or spec.prompts or spec.trace_name:
        return None
    if not hits or not prompt:
        return None
    template = _TEMPLATE_TOKENS if spec.endpoint == "chat" else 0.0
    if spec.prompt_words and requests:  # what the words of a prompt cannot have may be template
        least = spec.least_tokens_of_words(spec.prompt_words)
        template = max(0.0, prompt / requests - least)
    if hits - template * requests <= _CACHED_SHARE * prompt:
        return None
    return (
        f"{100 * hits / prompt:.0f} % of the prompt tokens came from the prefix cache by "
        "the engine's own count"
    )


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """A measurement that is not stored yet. `gpus` has the indices of the server's GPUs, and `idle`
    the power of these GPUs before the run, None if that power was not measured. `engine` is the
    engine's name, None if the engine is not known."""

    outcome: BenchOutcome
    summary: BenchSummary
    gpus: tuple[int, ...] = ()
    telemetry: Telemetry | None = None
    proofs: tuple[Proof, ...] = ()
    idle: IdlePower | None = None
    engine: str | None = None
    clocks: tuple[MeasuredClock, ...] = ()
    moments: tuple[Moment, ...] = ()  # the readings from a little before the run to a little after

    def mark_as_partial(self, error: HostUnreachable) -> MeasuredLoad:
        """Return the measurement marked as partial, because the connection to the host was lost. It
        has no clocks under load and no proofs of which GPU settings are in force."""
        why = (
            "partial result: the connection to the host was lost before all was read "
            f"({error.message})"
        )
        summary = self.summary
        if not any(reason.startswith("partial result") for reason in summary.refused):
            summary = replace(summary, refused=(*summary.refused, why))
        return replace(self, proofs=(), clocks=(), summary=summary)

    def mark_clock_locks_changed(self, reasons: Sequence[str]) -> MeasuredLoad:
        """Return the measurement marked as invalid for the reasons `reasons`, which name the clock
        locks that changed during the run. The proofs that clock locks are in force are removed."""
        kept, notes = [], list(self.summary.notes)
        for proof in self.proofs:
            if not is_clock_lock(proof.setting):
                kept.append(proof)
            elif proof.summary_line in notes:
                notes.remove(proof.summary_line)
        refused = (*self.summary.refused, *reasons)
        summary = replace(self.summary, notes=tuple(notes), refused=refused)
        return replace(self, proofs=tuple(kept), summary=summary)


class Measurement:
    """Sends one load to a server and measures it. `idle` is the idle power of the server's GPUs if
    an earlier benchmark has measured it. `known` has the GPUs' clocks under earlier loads, and
    `on_sent` gets the outcome of the load, before the last readings of GPUs and engine. `earlier`
    is an earlier result of the same model and load, None if there is none."""

    def __init__(
        self,
        host: Host,
        load: BenchmarkLoad,
        *,
        on_progress: Callable[[BenchProgress], None],
        on_sent: Callable[[BenchOutcome], None],
        alterations: Sequence[Alteration] = (),
        known: ContrastEvidence | None = None,
        idle: IdlePower | None = None,
        earlier: EarlierResult | None = None,
    ) -> None:
        self._earlier = earlier
        self._host, self._load, self._server = host, load, load.server
        self._spec, self._cancel = load.spec, load.cancel
        self._on_progress, self._on_sent = on_progress, on_sent
        self._alterations, self._known, self._idle = alterations, known, idle
        self._length: PromptLength | None = None
        self._count: CountTokens | None = None  # the server's tokenizer
        # requests of the probe that still run when the load begins
        self._left = AbandonedRequests()

    async def measure_load(self) -> MeasuredLoad:
        """Prepare, send and measure the load. Raises BenchCancelled when the load is cancelled, and
        BenchError if the load cannot be measured."""
        async with AsyncExitStack() as stack:
            secure = partial(tls.tls_context, self._spec)
            ask = await stack.enter_async_context(
                open_keep_alive_connection(self._spec.url, self._load.server_api_key, secure)
            )
            engine = EngineWatch(ask, self._server.engine, self._load.on_engine_reading)
            client = stack.enter_context(
                closing(AnswerClient(self._spec, self._load.server_api_key))
            )
            self._probe = TextProbe(
                client, self._spec, why_language_is_not_expected(self._spec, self._server.plan)
            )
            if self._server.gpus_known:
                measured = await self._open_meter_and_measure(ask, engine)
            else:
                measured = await self._measure_without_meter(ask, engine)
            if not (measured.outcome.partial or self._cancel.is_set()):
                await self._send_text_probe_after_load(measured.outcome)
            summary = self._probe.add_text_assessment(measured.summary, self._earlier)
            name = engine.engine.name if engine.engine else None
            return replace(measured, summary=summary, engine=name)

    async def _open_meter_and_measure(self, ask: AskPath, engine: EngineWatch) -> MeasuredLoad:
        started = self._load.prestarted.meter
        async with nullcontext(started) if started else Meter(self._host, wait=False) as meter:
            await self._await_unless_cancelled(
                asyncio.gather(meter.wait_until_ready(), engine.identify_engine())
            )
            return await self._measure_with_meter(ask, engine, meter)

    async def _measure_without_meter(self, ask: AskPath, engine: EngineWatch) -> MeasuredLoad:
        await self._await_unless_cancelled(self._prepare_load(ask, engine))
        outcome, during = await self._send_load(engine)
        summary = self._add_engine_counters(outcome, during)
        return MeasuredLoad(
            outcome, summary_without_energy(summary, self._server.why_gpus_are_unknown)
        )

    async def _measure_with_meter(
        self, ask: AskPath, engine: EngineWatch, meter: Meter
    ) -> MeasuredLoad:
        gpus = self._server_gpu_indices(meter.latest_reading)
        idle = self._idle
        if idle is None:
            self._show_phase(PREPARING_PHASE)
            idle = await self._await_unless_cancelled(
                meter.measure_idle_power(gpus, engine.count_requests)
            )
        await self._await_unless_cancelled(self._prepare_load(ask, engine))
        watch = meter.watch_gpus(gpus)
        outcome, during = await self._send_load(engine)
        outcome = replace(outcome, summary=self._add_engine_counters(outcome, during))
        try:
            return await self._add_gpu_readings(outcome, idle, meter, watch)
        except HostUnreachable as lost:
            why = f"the connection to {self._server.host} was lost during the run"
            return MeasuredLoad(
                outcome, summary_without_energy(outcome.summary, why), gpus
            ).mark_as_partial(lost)

    async def _add_gpu_readings(
        self, outcome: BenchOutcome, idle: IdlePower, meter: Meter, watch: DisturbanceWatch
    ) -> MeasuredLoad:
        """Return the measurement of the load `outcome`, with the GPUs' readings by `meter` and
        their power `idle` before the load. `watch` has recorded what changed on the GPUs during the
        load."""
        telemetry = await meter.reading_after(outcome.t1_unix)
        gpus = self._server_gpu_indices(telemetry)
        summary = meter.summary_with_gpu_metrics(outcome, gpus, idle)
        span, used = rate_window_monotonic_s(outcome), (*gpus, HOST_INDEX)
        altered = [alteration for alteration in self._alterations if alteration.gpu_index in used]
        proofs = meter.assess_settings_in_force(*span, altered, self._known)
        clocks: tuple[MeasuredClock, ...] = ()
        if self._known:
            clocks = meter.clocks_under_load(*span, self._alterations, self._known)
        changed, programs = await self._gpu_changes_and_other_programs(watch)
        summary = replace(
            summary,
            notes=(*summary.notes, *(proof.summary_line for proof in proofs), *programs),
            refused=(*summary.refused, *changed),
        )
        moments = meter.readings_between(
            span[0] - READINGS_AROUND_RUN_S, span[1] + READINGS_AROUND_RUN_S
        )
        return MeasuredLoad(
            outcome, summary, gpus, telemetry, proofs, idle, clocks=clocks, moments=moments
        )

    def _server_gpu_indices(self, telemetry: Telemetry | None) -> tuple[int, ...]:
        """Return the indices of the server's GPUs; () without a reading."""
        return gpu_indices_of_plan(self._server.plan, telemetry.infos if telemetry else ())

    async def _gpu_changes_and_other_programs(
        self, watch: DisturbanceWatch
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return (what changed on the GPUs during the run, which foreign programs used the GPUs
        throughout the run), as texts. If the user's own command makes the load, no program counts
        as foreign, because that command may use the GPUs."""
        if self._spec.command:
            return watch.describe_changes_during_run(watch.new_process_ids), ()
        ours = frozenset[int]()
        if watch.new_process_ids or watch.has_seen_gpu_programs:
            ours = frozenset(await self._server_process_ids())
        return watch.describe_changes_during_run(ours), watch.describe_other_programs(ours)

    async def _server_process_ids(self) -> set[int]:
        """Return the processes of the server, on a cluster those of all its nodes."""
        status = self._server.status
        if status is None:
            return set()
        places = []
        if isinstance(self._host, ClusterHost):
            nodes = {node.name: node.host for node in self._host.nodes}
            known = [rank for rank in status.ranks if rank.host in nodes]
            places = [(nodes[rank.host], rank.run_dir) for rank in known]
        found: set[int] = set()
        for host, run_dir in places or [(self._host, status.run_dir)]:
            runs, _ = await detached_process.read_runs_and_unread_names(
                host, f"{await host.state_dir()}/runs"
            )
            for run in runs:
                if run.run_dir == run_dir:
                    found.update(run.members)
        return found

    # ---- before the load

    async def _prepare_load(self, ask: AskPath, engine: EngineWatch) -> None:
        """Fit the length of the prompts to the server's tokenizer, send the prompts of the text
        probe that go before the load, then read the engine's counters."""
        if not self._spec.command:
            await self._find_tokenizer_and_fit_prompts(ask, engine)
        await self._send_text_probe_before_load(engine)
        await engine.read_counters_before_load()

    async def _send_text_probe_before_load(self, engine: EngineWatch) -> None:
        """Send the prompts of the text probe that go before the load. Wait until the engine has
        counted them, so that the counters of the load do not contain them."""
        if self._probe.skipped:
            return
        self._show_phase("looking at the text of answers")
        await engine.read_counters_before_load()
        await self._probe.send_prompts_before_load(self._spec, self._count)
        sent = self._probe.sent_request_and_token_counts
        await engine.read_counters_after_load(
            0.0, 0.0, lambda counted: has_engine_counted_all(counted, *sent)
        )
        if self._probe.given_up.requests and not await _wait_until_engine_idle(engine):
            self._left = self._probe.given_up

    async def _send_text_probe_after_load(self, outcome: BenchOutcome) -> None:
        if outcome.summary.requests_ok and not self._probe.skipped:
            self._show_phase("looking at the text of answers")
            await self._probe.send_prompts_after_load()

    async def _find_tokenizer_and_fit_prompts(self, ask: AskPath, engine: EngineWatch) -> None:
        """Find out whether the server counts tokens, and make the synthetic prompts as long by its
        tokenizer as the spec says. If the server counts none, or for prompts of the user, change
        nothing."""
        from workbench.server.tokenizer import Tokenizer

        await engine.identify_engine()
        if engine.engine is None:
            return
        tokenizer = Tokenizer(ask, engine.engine, self._spec.model)
        if await tokenizer.count_tokens({"prompt": "one"}) is None:
            return
        self._count = tokenizer.count_tokens
        if self._spec.prompts or self._spec.has_conversations:
            return
        if self._spec.trace:
            await self._fit_trace_words_to_tokens(tokenizer)
        elif not self._spec.prompt_words:
            await self._fit_prompt_words_to_tokens(tokenizer)

    async def _fit_prompt_words_to_tokens(self, tokenizer: Tokenizer) -> None:
        spec = self._spec
        longest = round(spec.max_tokens * (1 + spec.length_spread))
        limit = tokenizer.max_model_len
        if limit is not None and spec.input_tokens + longest > limit:
            raise BenchError(
                f"prompts of {spec.input_tokens:,} and answers of {longest:,} tokens do not fit "
                "the server's context"
                f" of {limit:,}",
                host=self._server.host,
                next_step="lower --input-tokens or --max-tokens, or start the server with a longer "
                "context",
            )
        self._length = await prompt_length.measure_prompt_length(spec, tokenizer.count_tokens)
        if self._length is not None:
            self._spec = replace(spec, prompt_words=self._length.words)

    async def _fit_trace_words_to_tokens(self, tokenizer: Tokenizer) -> None:
        spec, limit = self._spec, tokenizer.max_model_len
        load = trace_load(spec.trace)
        if limit is not None and load.most_tokens > limit:
            raise BenchError(
                f"the longest request of the trace has {load.most_tokens:,} tokens with its answer, "
                f"which do not fit the server's context of {limit:,}",
                host=self._server.host,
                next_step="start the server with a longer context, or take the longer requests out "
                "of the trace",
            )
        if spec.passage_tokens:
            return
        known = await prompt_length.measure_trace_passage_tokens(spec, tokenizer.count_tokens)
        if known is not None:
            self._spec = replace(
                spec, prompt_words=known.words, passage_tokens=known.tokens.as_spec_numbers
            )

    # ---- the load

    async def _send_load(self, engine: EngineWatch) -> tuple[BenchOutcome, EngineDuring]:
        async with engine.watch_during_load():
            if self._spec.command:
                outcome = await self._run_user_benchmark_command()
            else:
                outcome = await self._run_load_client()
        self._on_sent(outcome)
        begin, end = rate_window_unix_s(outcome)
        if self._spec.command:
            return outcome, await engine.read_counters_after_load(begin, end)
        sent = _sent_request_and_token_counts(outcome.summary)

        def has_counted_or_cancelled(counted: EngineDuring) -> bool:
            return self._cancel.is_set() or has_engine_counted_all(counted, *sent)

        return outcome, await engine.read_counters_after_load(begin, end, has_counted_or_cancelled)

    async def _run_load_client(self) -> BenchOutcome:
        started, spec, env = self._load.prestarted, self._spec, dict(self._load.env)
        # a client on the host has another environment
        if spec.api_key_env and (key := self._load.server_api_key):
            env[spec.api_key_env] = key
        there = self._load.url_there if started.client == "host" else spec.url
        no_language = bool(why_language_is_not_expected(spec, self._server.plan))
        outcome = await runner.run_load(
            replace(spec, url=there, random_weights=no_language),
            on_progress=self._on_progress,
            cancel=self._cancel,
            env=env,
            worker=started.worker,
        )
        asked = replace(outcome.spec, url=spec.url, random_weights=spec.random_weights)
        return replace(outcome, spec=asked)

    async def _run_user_benchmark_command(self) -> BenchOutcome:
        spec, base_url = self._spec, f"{self._spec.url}/v1"
        env = own_command.command_environment(base_url, spec.model, self._load.server_api_key)

        def show_line(line: str, elapsed_s: float) -> None:
            self._show_phase("running the command", line, elapsed_s)

        self._show_phase("running the command")
        with own_command.replace_server_placeholders(spec.command, base_url, spec.model) as argv:
            done = await own_command.run_command(
                argv, env, on_line=show_line, cancel=self._cancel, deadline_s=spec.deadline_s
            )
        return BenchOutcome(
            spec, own_command.summary_of_command(done), t0_unix=done.t0_unix, t1_unix=done.t1_unix
        )

    # ---- what the engine counted

    def _add_engine_counters(self, outcome: BenchOutcome, during: EngineDuring) -> BenchSummary:
        """Return the benchmark's summary with the engine's metrics. If the engine and the load
        client counted different numbers of requests or tokens, the difference becomes a note or
        makes the result invalid."""
        summary = outcome.summary
        notes, invalid = list(summary.notes), list(summary.refused)
        absent = dict(summary.absent)
        absent.pop("engine", None)
        if outcome.spec.command:
            return own_command.add_engine_counts(
                replace(summary, engine=during, absent=absent), during
            )
        left, marked = self._left, list(summary.marked)
        if left.requests:
            marked.append(
                f"the load began while the server still worked on "
                f"{count_of(left.requests, 'prompt')} of the text probe, given up after {PROBE_PART_S:.0f} s"
            )
        sent = _sent_request_and_token_counts(summary)
        # the engine may count a part of a failed request
        if not (summary.requests_failed or left.requests or outcome.partial):
            during = replace(during, disagreements=describe_count_differences(during, *sent))
        others = describe_load_of_other_clients(
            during,
            *sent,
            outcome.spec.concurrency + left.requests,
            uncounted_prompt_and_output_tokens=_unanswered_prompt_and_output_tokens(
                outcome.spec, summary, left
            ),
        )
        if others is not None:
            invalid.append(others)
        elif during.disagreements:
            differing = "; ".join(during.disagreements)
            notes.append(
                f"{differing}: the likely cause is a little traffic of other clients on this server,"
                " or an engine whose counters and usage differ"
            )
        reuse = compare_prefix_reuse_with_trace(
            outcome.spec, summary, during, is_partial=outcome.partial
        )
        notes += reuse.notes
        cached = prefix_cache_problem(outcome.spec, during, sent.requests)
        if cached and "cache" not in " ".join(invalid):
            invalid.append(cached)
        return replace(
            summary,
            engine=during,
            absent=absent,
            marked=(*marked, *reuse.marks),
            notes=tuple(notes),
            refused=tuple(invalid),
        )

    # ---- shared by the above

    def _show_phase(self, phase: str, line: str = "", elapsed_s: float = 0.0) -> None:
        """Show that the benchmark is in `phase`, in which no requests are counted. `line` is a text
        on the progress."""
        total = 1 if self._spec.command else self._spec.requests
        self._on_progress(
            BenchProgress(0, 0, total, 0, 0, 0.0, round(elapsed_s, 3), phase, line=line)
        )

    async def _await_unless_cancelled(self, work: Awaitable[T]) -> T:
        """Return the result of `work`. Raises BenchCancelled as soon as the user cancels the
        benchmark."""
        working, cancelled = asyncio.ensure_future(work), asyncio.ensure_future(self._cancel.wait())
        try:
            await asyncio.wait((working, cancelled), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise BenchCancelled(
                    "the benchmark was cancelled",
                    next_step="nothing was stored; start the benchmark again",
                )
            return working.result()
        finally:
            working.cancel()
            cancelled.cancel()


async def _wait_until_engine_idle(engine: EngineWatch) -> bool:
    """Wait, at most PROBE_IDLE_TIMEOUT_S, until the engine has no request. Return whether it has
    none; False if it does not report the number of its requests."""
    until_s = time.monotonic() + PROBE_IDLE_TIMEOUT_S
    while time.monotonic() < until_s:
        in_flight = (await engine.count_requests()).in_flight
        if not in_flight:
            return in_flight is not None
        await asyncio.sleep(_POLL_INTERVAL_S)
    return False


def _unanswered_prompt_and_output_tokens(
    spec: BenchSpec, summary: BenchSummary, abandoned: AbandonedRequests
) -> tuple[int, int]:
    """Estimate how many prompt and output tokens the engine counted for unanswered requests. These
    are the failed ones, and those that the probe `abandoned`. A failed request counts as a long
    one; without a good request or a trace, its prompt is unknown and counts as 0."""
    failed, good = summary.requests_failed, summary.requests_ok
    prompt_tokens, output_tokens = 0.0, spec.max_tokens * (1 + spec.length_spread)
    if spec.trace:
        load = trace_load(spec.trace)
        prompt_tokens, output_tokens = load.most_input_tokens, max(load.output_tokens)
    elif good:
        prompt_tokens = 2 * (summary.prompt_tokens or 0) / good  # prompts differ in length
    return (
        round(failed * prompt_tokens) + abandoned.prompt_tokens,
        round(failed * output_tokens) + abandoned.output_tokens,
    )


def _sent_request_and_token_counts(summary: BenchSummary) -> SentCounts:
    """Return what the load has sent, including the warm-up."""
    return SentCounts(
        summary.requests_ok + summary.requests_failed + summary.warmup_requests,
        sum_or_none((summary.prompt_tokens, summary.warmup_prompt_tokens)),
        sum_or_none((summary.output_tokens, summary.warmup_output_tokens)),
    )
