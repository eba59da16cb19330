"""Rules about the load: the queue, the KV cache, the prefix cache, the load client, and how much a
single run can show."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from workbench.advisor.advice import Advice, Rule, make_advice, rule_about
from workbench.advisor.facts import Facts, MeasuredRun
from workbench.model.bench import BUSY_CLIENT_PCT, EngineDuring
from workbench.model.findings import Level, PlanChange
from workbench.model.server_run import EngineMetrics
from workbench.model.slo import limit_with_smallest_margin, share_text

_KV_FULL_PCT = 95.0
_KV_LOW_PCT = 20.0
_FULL_NOT_LEAK = (
    "https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/memory/"
    "106-kv-occupancy-ceiling-is-not-a-leak.md"
)
_HITS_PCT = 5.0
_WAITING = 0.25  # waiting requests for each running one
_RESERVE_GIB = 8.0
_UNIFIED = (
    "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358 (unified memory runs "
    "out unannounced)"
)


def _read_benchmark_or_live_counter(
    facts: Facts,
    read_during_benchmark: Callable[[EngineDuring], float | None],
    read_now: Callable[[EngineMetrics], float | None],
) -> float | None:
    """Return a value from the engine's counters; None if there are no counters.
    `read_during_benchmark` reads it from the counters of the benchmark. If there was no benchmark,
    `read_now` reads it from the present counters of the server."""
    if facts.engine_during_benchmark:
        return read_during_benchmark(facts.engine_during_benchmark)
    return read_now(facts.now) if facts.now else None


def _read_kv_use_pct(facts: Facts) -> float | None:
    return _read_benchmark_or_live_counter(
        facts, lambda during: during.kv_use_max_pct, lambda now: now.kv_use_pct
    )


def _read_kv_use_pct_without_queue(facts: Facts) -> float | None:
    """Return the use of the KV cache in percent; None if it is unknown, or if requests waited."""
    queued = _read_benchmark_or_live_counter(
        facts, lambda during: during.waiting_max, lambda now: now.waiting
    )
    return None if queued else _read_kv_use_pct(facts)


def _read_mean_waiting_requests(facts: Facts) -> float | None:
    return _read_benchmark_or_live_counter(
        facts, lambda during: during.waiting_mean, lambda now: now.waiting
    )


def _read_prefix_hit_pct(facts: Facts) -> float | None:
    return _read_benchmark_or_live_counter(
        facts, lambda during: during.prefix_hit_pct, lambda now: now.prefix_hit_pct
    )


def report_invalid_result(facts: Facts) -> Iterator[Advice]:
    """Report that the result is invalid, so that its measured values give no advice."""
    if facts.refused:
        text = f"the result is invalid, so its values give no advice: {facts.refused[0]}"
        fix = "correct the cause, and measure again"
        yield make_advice(
            Level.WARN, "result.refused", text, fix=fix, evidence="; ".join(facts.refused)
        )


def report_text_without_answer(facts: Facts) -> Iterator[Advice]:
    """Report that the text of the server or of the result is no answer: advice about the speed of
    garbage is worth nothing."""
    if facts.text_doubt:
        said = (
            f"the text is not an answer, so advice about speed comes too early: {facts.text_doubt}"
        )
        fix = (
            "make the text right first: check the quantization, the type of the KV cache, the "
            "attention backend and the chat template"
        )
        yield make_advice(Level.ERROR, "result.text", said, fix=fix, evidence=facts.text_doubt)


@rule_about(_read_mean_waiting_requests)
def report_queued_requests(facts: Facts, mean: float) -> Iterator[Advice]:
    """Report requests that wait in the engine's queue, and the limit that makes them wait."""
    most = _read_benchmark_or_live_counter(
        facts, lambda during: during.running_max, lambda now: now.running
    )
    # a few wait shortly at the start of a run
    if mean < max(1.0, _WAITING * (most or 0)):
        return
    kv = _read_kv_use_pct(facts)
    counted = [f"{mean:.1f} requests waiting"]
    if most is not None:
        counted.append(f"{most:.0f} running")
    if kv is not None:
        counted.append(f"KV cache up to {kv:.0f} %")
    flag = facts.concurrency_flag
    limit = facts.plan_context.effective_flag_number(flag) if facts.plan_context else None
    text = "requests wait in the queue"
    if kv is not None and kv >= _KV_FULL_PCT:
        text += " because the KV cache is full"
        fix = (
            "use an FP8 KV cache, shorter contexts, smaller weights or more GPUs; more streams "
            "make it worse"
        )
    elif flag and limit and most is not None and most >= limit * facts.dp:
        code, fix, higher = "queue.limit", f"raise {flag}", 64
        text = f"{flag} is {limit:.0f}, so requests wait although the KV cache has room"
        if limit == 1:
            code, fix = "batch.first", f"{fix}: batching is the only source of a large total"
        elif limit > 1:
            higher = int(4 * limit)
        changes = (PlanChange(flag, higher),)
        yield make_advice(
            Level.HINT, code, text, fix=fix, evidence=", ".join(counted), changes=changes
        )
        return
    else:
        fix = (
            "see TTFT: prefill of long prompts, or a limit of the scheduler, keeps requests in "
            "the queue"
        )
    yield make_advice(Level.HINT, "queue.waiting", text, fix=fix, evidence=", ".join(counted))


def report_preemptions(facts: Facts) -> Iterator[Advice]:
    """Report requests that the engine returned to the queue because the KV cache was full."""
    count = _read_benchmark_or_live_counter(
        facts, lambda during: during.preemptions, lambda now: now.preemptions
    )
    if not count:
        return
    text = (
        f"the engine returned running requests to the queue {count:.0f} times: their work is "
        "done twice"
    )
    fix = (
        "lower the number of streams, shorten the contexts, or enlarge the KV cache (FP8, more "
        "memory)"
    )
    kv = _read_benchmark_or_live_counter(
        facts, lambda during: during.kv_use_max_pct, lambda now: None
    )
    evidence = f"{count:.0f} preemptions"
    if kv is not None:
        evidence += f", KV cache up to {kv:.0f} %"
    yield make_advice(Level.WARN, "kv.preemptions", text, fix=fix, evidence=evidence)


@rule_about(_read_kv_use_pct_without_queue)
def report_low_kv_use(facts: Facts, use_pct: float) -> Iterator[Advice]:
    """Report that a nearly empty KV cache is not a problem."""
    if use_pct >= _KV_LOW_PCT:
        return
    text = (
        f"a KV cache that is {use_pct:.1f} % full shows a small load, not waste: reserved cache "
        "costs no speed"
    )
    fix = (
        "more streams or longer contexts would fit; waiting requests and preemptions are the "
        "signs of a full cache"
    )
    yield make_advice(
        Level.INFO, "kv.load-not-waste", text, fix=fix, evidence=f"KV cache up to {use_pct:.1f} %"
    )


@rule_about(_read_kv_use_pct_without_queue)
def report_full_kv_cache(facts: Facts, use_pct: float) -> Iterator[Advice]:
    """Report that a full KV cache without a preemption is no leak."""
    count = _read_benchmark_or_live_counter(
        facts, lambda during: during.preemptions, lambda now: now.preemptions
    )
    if use_pct < _KV_FULL_PCT or count != 0:
        return
    text = (
        f"a KV cache that is {use_pct:.0f} % full, without a preemption, is no leak: with prefix "
        "caching it can keep the blocks of finished requests until it needs them"
    )
    yield make_advice(
        Level.INFO,
        "kv.full-not-leak",
        text,
        evidence=f"KV cache up to {use_pct:.0f} %, no preemption, no request waits",
        source=_FULL_NOT_LEAK,
    )


@rule_about(_read_prefix_hit_pct)
def report_prefix_cache_use(facts: Facts, hit_pct: float) -> Iterator[Advice]:
    """Report that prompts came from the prefix cache, so that prompt tokens per second are not the
    speed of prefill."""
    if hit_pct < _HITS_PCT:
        return
    text = (
        f"{hit_pct:.0f} % of the prompt tokens came from the prefix cache: prompt tokens per "
        "second show what clients"
    )
    text += " sent, not how fast prefill is"
    fix = "to measure prefill, take TTFT at a known length with prompts that share no prefix"
    yield make_advice(
        Level.INFO,
        "metric.prompt-throughput",
        text,
        fix=fix,
        evidence=f"prefix cache hits {hit_pct:.0f} %",
    )


def report_busy_client(facts: Facts) -> Iterator[Advice]:
    """Report that the load client's CPU limited the measured speed. This rule also applies to
    invalid results."""
    busy = facts.client_cpu_pct
    if busy is not None and busy > BUSY_CLIENT_PCT:
        text = "the load client was at its limit, so the server may be faster than measured"
        fix = "run the client on another machine or on free cores, then measure again"
        yield make_advice(
            Level.WARN,
            "client.bound",
            text,
            fix=fix,
            evidence=f"the client used {busy:.0f} % of a core",
        )


@rule_about(Facts.find_measured_run)
def report_tightest_slo_limit(facts: Facts, run: MeasuredRun) -> Iterator[Advice]:
    """Report which limit of the SLO binds, and the goodput: the rate of the requests that kept all
    limits."""
    spec, summary = run
    if summary.slo_pct is None:
        return
    level, said = Level.INFO, f"{share_text(summary.slo_pct)} of the requests kept the SLO"
    tightest = limit_with_smallest_margin(summary.slo)
    if tightest is not None:
        verb = "binds and is held"
        if (tightest.margin_pct or 0.0) < 0:
            level, verb = Level.WARN, "is not held"
        said = f"the limit {tightest.limit} {verb}: {tightest.attained_share_text} of the requests kept it"
    rates = (summary.goodput_request_s, summary.request_s)
    goodput = "" if None in rates else "goodput {:.4g} of {:.4g} requests/s".format(*rates)
    limits = f"'{spec.slo}'" if spec.slo else "LIMITS"
    fix = f"search the highest load that holds the limits: workbench capacity RUN --slo {limits}"
    yield make_advice(level, "slo.binding", said, fix=fix, evidence=goodput)


@rule_about(Facts.find_measured_run)
def report_imprecise_measurement(facts: Facts, run: MeasuredRun) -> Iterator[Advice]:
    """Report that this run cannot show a small gain, for example because it had no warm-up."""
    spec, summary = run
    why = [*summary.marked]
    if spec.command:
        why.append("a command of the user's own, run once")
    elif spec.warmup == 0 and not spec.until_steady and not facts.imported:
        why.append("no warm-up")
    if facts.imported:
        why.append(f"measured by {facts.imported}")
    if why:
        text = "this run cannot show gains of a few percent"
        fix = (
            "use an experiment (X, or workbench experiment): pairs of runs in random order, "
            "and an interval"
        )
        yield make_advice(Level.INFO, "bench.protocol", text, fix=fix, evidence="; ".join(why))


def report_low_unified_memory(facts: Facts) -> Iterator[Advice]:
    """Report that little memory is free on a host whose GPU shares the memory with the CPU."""
    free = facts.memory_available_bytes
    if free is None or free >= _RESERVE_GIB * 2**30:
        return
    if not any(known.unified_memory for known in facts.gpu_types):
        return
    text = (
        f"{free / 2**30:.1f} GiB of memory are left, which the GPU shares: the host can "
        "freeze without a message"
    )
    changes: tuple[PlanChange, ...] = ()
    fix = "run earlyoom"
    share = facts.plan_context.engine.memory.share_flag if facts.plan_context else None
    if share:
        changes, fix = (PlanChange(share, 0.8),), f"set {share} to 0.8 or less, {fix}"
    fix = f"keep {_RESERVE_GIB:.0f} to 10 GiB free: {fix}"
    evidence = f"MemAvailable {free / 2**30:.1f} GiB"
    yield make_advice(
        Level.WARN,
        "uma.reserve",
        text,
        fix=fix,
        evidence=evidence,
        source=_UNIFIED,
        changes=changes,
    )


RULES: tuple[Rule, ...] = (
    report_invalid_result,
    report_queued_requests,
    report_preemptions,
    report_low_kv_use,
    report_full_kv_cache,
    report_prefix_cache_use,
    report_busy_client,
    report_tightest_slo_limit,
    report_imprecise_measurement,
    report_low_unified_memory,
)
