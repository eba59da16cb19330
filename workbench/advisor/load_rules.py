"""Rules about the load: the queue, the KV cache, the prefix cache, the load client, and how much a
single run can show."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from workbench.advisor.advice import Advice, Rule, advice
from workbench.advisor.facts import Facts
from workbench.model.bench import BUSY_CLIENT_PCT, EngineDuring
from workbench.model.findings import Level, PlanChange
from workbench.model.server_run import EngineMetrics

_KV_FULL_PCT = 95.0
_KV_LOW_PCT = 20.0
_HITS_PCT = 5.0
_WAITING = 0.25  # waiting requests for each running one
_RESERVE_GIB = 8.0
_UNIFIED = (
    "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358 (unified memory runs "
    "out unannounced)"
)


def _engine_value(
    facts: Facts,
    during: Callable[[EngineDuring], float | None],
    now: Callable[[EngineMetrics], float | None],
) -> float | None:
    """Return a value from the engine's counters; None if there are no counters. `during` gets the
    value from the counters of the benchmark. If there was no benchmark, `now` gets it from the
    present counters of the server."""
    if facts.summary and facts.summary.engine:
        return during(facts.summary.engine)
    return now(facts.now) if facts.now else None


def _kv_use_pct(facts: Facts) -> float | None:
    return _engine_value(facts, lambda during: during.kv_use_max_pct, lambda now: now.kv_use_pct)


def invalid(facts: Facts) -> Iterator[Advice]:
    """Report that the result is invalid, so that its measured values give no advice."""
    if facts.refused:
        text = f"the result is invalid, so its values give no advice: {facts.refused[0]}"
        fix = "correct the cause, and measure again"
        yield advice(Level.WARN, "result.refused", text, fix=fix, evidence="; ".join(facts.refused))


def text(facts: Facts) -> Iterator[Advice]:
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
        yield advice(Level.ERROR, "result.text", said, fix=fix, evidence=facts.text_doubt)


def waiting(facts: Facts) -> Iterator[Advice]:
    """Report requests that wait in the engine's queue, and the limit that makes them wait."""
    mean = _engine_value(facts, lambda during: during.waiting_mean, lambda now: now.waiting)
    most = _engine_value(facts, lambda during: during.running_max, lambda now: now.running)
    # a few wait shortly at the start of a run
    if mean is None or mean < max(1.0, _WAITING * (most or 0)):
        return
    kv = _kv_use_pct(facts)
    counted = [f"{mean:.1f} requests waiting"]
    counted += [f"{most:.0f} running"] if most is not None else []
    counted += [f"KV cache up to {kv:.0f} %"] if kv is not None else []
    flag = facts.here.engine.concurrency_flag if facts.here else None
    limit = facts.here.number(flag) if facts.here and flag else None
    text = "requests wait in the queue"
    if kv is not None and kv >= _KV_FULL_PCT:
        text += " because the KV cache is full"
        fix = (
            "use an FP8 KV cache, shorter contexts, smaller weights or more GPUs; more streams "
            "make it worse"
        )
    elif flag and limit and most is not None and most >= limit * facts.dp:
        code = "batch.first" if limit == 1 else "queue.limit"
        text = f"{flag} is {limit:.0f}, so requests wait although the KV cache has room"
        fix = (
            (f"raise {flag}: batching is the only source of a large total")
            if limit == 1
            else f"raise {flag}"
        )
        changes = (PlanChange(flag, int(4 * limit) if limit > 1 else 64),)
        yield advice(Level.HINT, code, text, fix=fix, evidence=", ".join(counted), changes=changes)
        return
    else:
        fix = (
            "see TTFT: prefill of long prompts, or a limit of the scheduler, keeps requests in "
            "the queue"
        )
    yield advice(Level.HINT, "queue.waiting", text, fix=fix, evidence=", ".join(counted))


def preemptions(facts: Facts) -> Iterator[Advice]:
    """Report requests that the engine returned to the queue because the KV cache was full."""
    count = _engine_value(facts, lambda during: during.preemptions, lambda now: now.preemptions)
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
    kv = _engine_value(facts, lambda during: during.kv_use_max_pct, lambda now: None)
    evidence = f"{count:.0f} preemptions" + (
        f", KV cache up to {kv:.0f} %" if kv is not None else ""
    )
    yield advice(Level.WARN, "kv.preemptions", text, fix=fix, evidence=evidence)


def low_kv_use(facts: Facts) -> Iterator[Advice]:
    """Report that a nearly empty KV cache is not a problem."""
    use = _kv_use_pct(facts)
    queued = _engine_value(facts, lambda during: during.waiting_max, lambda now: now.waiting)
    if use is None or use >= _KV_LOW_PCT or queued:
        return
    text = (
        f"a KV cache that is {use:.1f} % full shows a small load, not waste: reserved cache "
        "costs no speed"
    )
    fix = (
        "more streams or longer contexts would fit; waiting requests and preemptions are the "
        "signs of a full cache"
    )
    yield advice(
        Level.INFO, "kv.load-not-waste", text, fix=fix, evidence=f"KV cache up to {use:.1f} %"
    )


def prefix_cache(facts: Facts) -> Iterator[Advice]:
    """Report that prompts came from the prefix cache, so that prompt tokens per second are not the
    speed of prefill."""
    hits = _engine_value(
        facts, lambda during: during.prefix_hit_pct, lambda now: now.prefix_hit_pct
    )
    if hits is None or hits < _HITS_PCT:
        return
    text = (
        f"{hits:.0f} % of the prompt tokens came from the prefix cache: prompt tokens per "
        "second show what clients"
    )
    text += " sent, not how fast prefill is"
    fix = "to measure prefill, take TTFT at a known length with prompts that share no prefix"
    yield advice(
        Level.INFO,
        "metric.prompt-throughput",
        text,
        fix=fix,
        evidence=f"prefix cache hits {hits:.0f} %",
    )


def client(facts: Facts) -> Iterator[Advice]:
    """Report that the load client's CPU limited the measured speed. This rule also applies to
    invalid results."""
    busy = facts.client_cpu_pct
    if busy is not None and busy > BUSY_CLIENT_PCT:
        text = "the load client was at its limit, so the server may be faster than measured"
        fix = "run the client on another machine or on free cores, then measure again"
        yield advice(
            Level.WARN,
            "client.bound",
            text,
            fix=fix,
            evidence=f"the client used {busy:.0f} % of a core",
        )


def protocol(facts: Facts) -> Iterator[Advice]:
    """Report that this run cannot show a small gain, for example because it had no warm-up."""
    spec, summary = facts.spec, facts.summary
    if spec is None or summary is None:
        return
    why = [*summary.marked]
    why += (
        ["no warm-up"]
        if spec.warmup == 0 and not spec.until_steady and not spec.command and not facts.imported
        else []
    )
    why += ["a command of the user's own, run once"] if spec.command else []
    why += [f"measured by {facts.imported}"] if facts.imported else []
    if why:
        text = "this run cannot show gains of a few percent"
        fix = (
            "use an experiment (X, or workbench experiment): pairs of runs in random order, "
            "and an interval"
        )
        yield advice(Level.INFO, "bench.protocol", text, fix=fix, evidence="; ".join(why))


def unified_memory_now(facts: Facts) -> Iterator[Advice]:
    """Report that little memory is free on a host whose GPU shares the memory with the CPU."""
    free = facts.memory_available_bytes
    if (
        free is None
        or not any(g.type and g.type.unified_memory for g in facts.gpus)
        or free >= _RESERVE_GIB * 2**30
    ):
        return
    text = (
        f"{free / 2**30:.1f} GiB of memory are left, which the GPU shares: the host can "
        "freeze without a message"
    )
    share = facts.here.engine.memory.share_flag if facts.here else None
    changes = (PlanChange(share, 0.8),) if share else ()
    fix = (
        f"keep {_RESERVE_GIB:.0f} to 10 GiB free: "
        + (f"set {share} to 0.8 or less, " if share else "")
        + "run earlyoom"
    )
    evidence = f"MemAvailable {free / 2**30:.1f} GiB"
    yield advice(
        Level.WARN,
        "uma.reserve",
        text,
        fix=fix,
        evidence=evidence,
        source=_UNIFIED,
        changes=changes,
    )


RULES: tuple[Rule, ...] = (
    invalid,
    waiting,
    preemptions,
    low_kv_use,
    prefix_cache,
    client,
    protocol,
    unified_memory_now,
)
