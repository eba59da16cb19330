"""Rules about the speed of decoding: the limit by memory bandwidth, bytes per token, parallel
sizes, and kernel launches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from workbench.advisor.advice import (
    Advice,
    Gain,
    Rule,
    format_share_as_percent,
    make_advice,
    rule_about,
)
from workbench.advisor.facts import (
    MEMORY_BOUND,
    NODES_OF_ONE_GPU,
    DecodingLimit,
    Facts,
    StreamSpeed,
    Weights,
)
from workbench.engines.plan_context import PlanContext
from workbench.engines.roofline import Load, compute_speed_limits
from workbench.engines.tuning_rules import FITS_WELL
from workbench.model.counts import format_four_digits
from workbench.model.findings import Level, PlanChange, option_texts_of_changes

_ARITHMETIC = "arithmetic: each token of a stream reads all active weights once"
_EAGER = (
    "https://conselara.dev/notes/dgx-spark-benchmarks/ (26 tok/s in eager mode, 59 otherwise, "
    "gpt-oss-120b on GB10)"
)
_UNSLOTH = (
    "https://github.com/unslothai/unsloth/pull/10280 (two Sparks: TP 2.09x, PP 1.08x, two "
    "replicas 1.30-1.91x)"
)
_REPLICAS = (
    f"reasoning: no all-reduce and no waiting for the slowest rank; measured for two: {_UNSLOTH}"
)
_MOST_RANKS = 65_536  # a command line can name more, but no such server exists
_MOST_OF_LIMIT = 1.02  # a higher speed means that the limit is wrong
_STREAMS = (4, 8, 16)  # of which the limits are listed
_EAGER_PCT = 127.0  # 26 to 59 tok/s
_EAGER_ON = "gpt-oss-120b on one GB10, from 26 to 59 tok/s"
_SPARKS = "two DGX Sparks"
_TP_OVER_PP_PCT = 94.0  # 2.09x to 1.08x
_FP8_OVER_4_BIT_PCT = 70.0  # Qwen2.5-7B reads 7.62 GB in FP8 and 4.48 GB in AWQ
# Microseconds of one small all-reduce, lowest and highest.
_ROCE_US, _ROCE = (
    (41.0, 60.0),
    "41-60 us for a small all-reduce between two Sparks (github.com/MiaAI-Lab issue 22, b12x PR "
    "295)",
)
_PCIE_US, _PCIE = (
    (10.0, 20.0),
    "estimate: 10-20 us for a small all-reduce over PCIe inside a CUDA graph; no published "
    "measurement",
)


@rule_about(Facts.find_stream_speed)
def report_decoding_near_ceiling(facts: Facts, stream: StreamSpeed) -> Iterator[Advice]:
    """Report that decoding is memory-bound: only fewer bytes per token, speculative decoding or
    more streams can make it much faster."""
    fraction = stream.fraction_of_limit
    if not MEMORY_BOUND <= fraction <= _MOST_OF_LIMIT:
        return
    text = (
        f"decoding is memory-bound: it reaches {format_share_as_percent(fraction)} of what the memory "
        "bandwidth allows"
    )
    evidence = _format_speed_of_limit(stream)
    token_bytes = facts.known_sizes.bytes_per_token
    if token_bytes:
        gb = token_bytes / 1e9
        ranks = facts.tp  # each rank reads its part; pipeline stages read one after another
        evidence += f"; {gb:.1f} GB per token, {gb * stream.tok_s / ranks:.0f} GB/s per GPU"
    most = "nothing"
    if facts.gain_to_bandwidth_limit_pct >= 1:
        most = f"at most +{facts.gain_to_bandwidth_limit_pct:.0f} %"
    fix = (
        "use fewer bytes per token, speculative decoding or more streams; all other settings "
        f"can gain {most}"
    )
    yield make_advice(
        Level.HINT, "roofline.near-ceiling", text, fix=fix, evidence=evidence, source=_ARITHMETIC
    )


@rule_about(Facts.find_stream_speed)
def report_time_beyond_weight_reads(facts: Facts, stream: StreamSpeed) -> Iterator[Advice]:
    """Report that a stream decodes at 30 to 60 % of the speed that the memory bandwidth allows, and
    how many milliseconds per token are not spent on reading weights."""
    if facts.decoding_limit != DecodingLimit.BETWEEN:
        return
    step_ms, read_ms = 1000 / stream.tok_s, 1000 / stream.limit_tok_s
    text = (
        f"a stream reaches {format_share_as_percent(stream.fraction_of_limit)} of what the memory bandwidth allows it: "
        f"of {step_ms:.1f} ms per token"
    )
    text += (
        f" reading takes {read_ms:.1f} ms, and {step_ms - read_ms:.1f} ms go elsewhere. Dense "
        "models reach 60 to 95 %"
    )
    fix = (
        "look for that time, one change at a time: CUDA graphs (workbench inforce RUN), clocks "
        "under load, "
        "all-reduces, the attention or MoE backend; more streams share it"
    )
    yield make_advice(
        Level.HINT,
        "roofline.between",
        text,
        fix=fix,
        evidence=_format_step_times(facts),
        source=_ARITHMETIC,
    )


@rule_about(Facts.find_stream_speed)
def report_decoding_above_ceiling(facts: Facts, stream: StreamSpeed) -> Iterator[Advice]:
    """Report a decoding speed above the limit that the memory bandwidth sets. It means that fewer
    bytes are read per token than assumed."""
    if stream.fraction_of_limit <= _MOST_OF_LIMIT or facts.uses_speculative_decoding:
        return
    text = (
        f"the speed is {format_share_as_percent(stream.fraction_of_limit)} of the limit by memory bandwidth, so the "
        "number of bytes is wrong"
    )
    fix = (
        "check the checkpoint, its quantization and the flags: the weights that were read are "
        "smaller than assumed"
    )
    evidence = _format_speed_of_limit(stream)
    yield make_advice(
        Level.WARN, "roofline.above-ceiling", text, fix=fix, evidence=evidence, source=_ARITHMETIC
    )


def _format_speed_of_limit(stream: StreamSpeed) -> str:
    speed, limit = map(format_four_digits, stream)
    return f"{speed} of {limit} tok/s per stream"


def report_feasibility_of_expected_speed(facts: Facts) -> Iterator[Advice]:
    """Report whether a speed that someone has promised for one stream is possible with the memory
    bandwidth of the GPUs."""
    wanted, limit = facts.expected_tok_s, facts.ceiling_tok_s
    if wanted is None:
        return
    if limit is None:
        text = (
            f"{format_four_digits(wanted)} tok/s cannot be checked: the limit by memory bandwidth is "
            "unknown"
        )
        yield make_advice(
            Level.INFO,
            "promise.unknown",
            text,
            fix="compare this speed with a result whose speed limit is known",
        )
        return
    level, code, word, fix = Level.INFO, "promise.possible", "possible", ""
    if wanted > limit:
        level, code, word = Level.WARN, "promise.above-roofline", "impossible"
        fix = (
            "only fewer bytes per token or speculative decoding can exceed it; more streams "
            "raise the total"
        )
    text = (
        f"{format_four_digits(wanted)} tok/s are {word} for one stream: {format_share_as_percent(wanted / limit)} of "
        "the limit"
    )
    evidence = f"limit {format_four_digits(limit)} tok/s per stream"
    yield make_advice(level, code, text, fix=fix, evidence=evidence, source=_ARITHMETIC)


@rule_about(Facts.find_weights)
def report_sixteen_bit_weights(facts: Facts, weights: Weights) -> Iterator[Advice]:
    """Report that reading 16-bit weights takes much of each step, so that quantization would help
    most."""
    stream = facts.find_stream_speed()
    if stream is None or weights.bits < 14:
        return
    if not facts.is_slowed_by_weight_reads:
        return
    text = "the weights have 16 bits: quantization reads two to four times fewer bytes"
    if facts.is_memory_bound:
        text += ", the largest gain there is"
        half_pct = 100.0
    else:
        half_pct = 100 * (1 / (1 - stream.fraction_of_limit / 2) - 1)
    evidence = f"{weights.total_bytes / 1e9:.1f} GB of weights, {weights.bits:.1f} bits per weight"
    changes: tuple[PlanChange, ...] = ()
    if facts.has_flag("quantization"):
        changes = (PlanChange("quantization", "fp8"),)
    fix = "use an FP8 checkpoint (half the bytes) or a 4-bit one (about a quarter)"
    yield make_advice(
        Level.HINT,
        "quant.first",
        text,
        fix=fix,
        evidence=evidence,
        source=_ARITHMETIC,
        changes=changes,
        gain=Gain(0, half_pct),
    )


@rule_about(Facts.find_weights)
def report_eight_bit_weights(facts: Facts, weights: Weights) -> Iterator[Advice]:
    """Report that, with few streams, 8-bit weights decode slower than 4-bit weights."""
    if not 7 <= weights.bits < 14:
        return
    if not (facts.is_memory_bound and facts.has_few_streams):
        return
    text = "at few streams, 8-bit weights decode slower than 4-bit ones: speed follows the bytes"
    fix = (
        "measure a 4-bit checkpoint (AWQ, GPTQ, NVFP4); 8 bits can win in prefill and at many "
        "streams"
    )
    source = "arithmetic: Qwen2.5-7B reads 7.62 GB per token in FP8 and 4.48 GB in 4-bit AWQ"
    evidence = f"{weights.bits:.1f} bits per weight"
    yield make_advice(
        Level.HINT,
        "quant.bytes",
        text,
        fix=fix,
        evidence=evidence,
        source=source,
        gain=Gain(0, _FP8_OVER_4_BIT_PCT),
    )


@rule_about(Facts.find_stream_speed)
def report_single_stream(facts: Facts, stream: StreamSpeed) -> Iterator[Advice]:
    """For a result with one stream, report that several streams would share each read of the
    weights, and how fast they could be together at most."""
    if facts.streams != 1 or not facts.is_slowed_by_weight_reads:
        return
    most = _max_simultaneous_requests(facts)
    counts, first = [n for n in _STREAMS if n <= most], ""
    if not counts:
        counts, first = list(_STREAMS), f"raise {facts.concurrency_flag} ({most:g}), and "
    text = "one stream reads all weights for itself; several share each read."
    if facts.node_count > 1:
        text += f" The server spans {facts.node_count} machines, which one stream pays for alone."
    listed = []
    for n in counts:
        if gain := _compute_speedup_with_streams(facts, n):
            listed.append(f"{n} streams {format_four_digits(gain * stream.limit_tok_s)}")
    evidence = ""
    if listed:
        evidence = f"limits of the total: {', '.join(listed)} tok/s"
    streams = ",".join(map(str, (1, *counts)))
    fix = (
        f"if requests can run at once, {first}measure it: workbench bench RUN --concurrency "
        f"{streams}"
    )
    yield make_advice(
        Level.HINT, "batch.ceiling", text, fix=fix, evidence=evidence, source=_ARITHMETIC
    )


def _max_simultaneous_requests(facts: Facts) -> float:
    """Return how many simultaneous requests all replicas together allow. Infinite if the command
    line does not set a limit."""
    limit = facts.plan_context and facts.plan_context.flag_number_in_plan(facts.concurrency_flag)
    if not limit or limit < 0:
        return math.inf
    return limit * facts.dp


def _compute_speedup_with_streams(facts: Facts, streams: int) -> float | None:
    """Return the speed limit of `streams` streams together divided by the speed limit of one
    stream. The quotient is less than `streams` if more streams read more experts, or if computing
    limits the speed. None if one of the limits is unknown."""
    sizes = {"tp": facts.tp, "pp": facts.pp, "dp": facts.dp}
    if (ranks := math.prod(sizes.values())) > _MOST_RANKS:
        return None
    names = [gpu.name for gpu in facts.gpus] * ranks  # those of other machines are of the same type
    one, many = (
        compute_speed_limits(facts.sizes, names, load=Load(streams=n), **sizes).total_tok_s
        for n in (1, streams)
    )
    if not one or not many:
        return None
    return many / one


@rule_about(Facts.find_plan_in_eager_mode)
def report_eager_mode(facts: Facts, context: PlanContext) -> Iterator[Advice]:
    """Report that CUDA graphs are off. The expected gain is that of a published measurement,
    limited to what the memory bandwidth allows."""
    flag = facts.enabled_eager_flag
    text = (
        f"{flag} turns {context.engine.compiled_parts} off: each step launches hundreds of "
        "kernels one by one"
    )
    high = min(_EAGER_PCT, facts.gain_to_bandwidth_limit_pct)
    yield make_advice(
        Level.HINT,
        "eager.cost",
        text,
        fix=f"unset {flag}",
        evidence=_format_step_times(facts) or f"{flag} is set",
        source=_EAGER,
        changes=(PlanChange(flag, None),),
        gain=Gain(0, high, measured_on=_EAGER_ON),
    )


@rule_about(Facts.find_stream_speed)
def report_launch_bound(facts: Facts, stream: StreamSpeed) -> Iterator[Advice]:
    """Report that kernel launches or synchronization, and neither reading nor computing, take most
    of a step."""
    if not facts.is_launch_bound:
        return
    reached = format_share_as_percent(stream.fraction_of_limit)
    text = (
        f"a stream reaches only {reached} of its limit by memory bandwidth: launches or "
        "synchronization take most of each step, and neither memory nor compute is the limit"
    )
    fix = (
        "use CUDA graphs, a smaller tensor-parallel size, replicas, more streams, or a newer engine"
    )
    yield make_advice(
        Level.HINT,
        "launch.bound",
        text,
        fix=fix,
        evidence=_format_step_times(facts),
        source=_ARITHMETIC,
    )


def _format_step_times(facts: Facts) -> str:
    speed, limit = facts.per_stream_tok_s, facts.ceiling_tok_s
    if not speed:
        return ""
    of = ""
    if limit:
        of = f" of {format_four_digits(limit)}"
    return f"{format_four_digits(speed)}{of} tok/s per stream, {1000 / speed:.1f} ms per token"


@rule_about(Facts.find_weight_bytes)
def report_unneeded_model_split(facts: Facts, weight_bytes: float) -> Iterator[Advice]:
    """Report a model that is split over GPUs although one GPU can hold it. Replicas would need no
    communication."""
    ranks = facts.tp * facts.pp
    if ranks < 2:
        return
    totals = [g.memory_total_bytes for g in facts.gpus if g.memory_total_bytes]
    if weight_bytes > FITS_WELL * min(totals, default=0):
        return
    if not facts.is_launch_bound and (facts.streams or 0) < ranks:
        return
    text = (
        f"the model fits on one GPU but is split over {ranks}: replicas need no communication "
        "between GPUs"
    )
    evidence = f"{weight_bytes / 1e9:.1f} GB of weights, {min(totals) / 1e9:.1f} GB per GPU"
    if not facts.can_have_replicas:
        return
    changes = []
    for name in ("tensor-parallel-size", "pipeline-parallel-size"):
        if facts.parallel_size_of_flag(name) > 1:
            changes.append(PlanChange(name, 1))
    changes.append(PlanChange("data-parallel-size", ranks * facts.dp))
    fix = f"{option_texts_of_changes(changes)}; splitting pays only for the latency of one stream"
    evidence = "; ".join(filter(None, (evidence, _format_step_times(facts))))
    yield make_advice(
        Level.HINT,
        "dp-before-tp",
        text,
        fix=fix,
        evidence=evidence,
        source=_REPLICAS,
        changes=tuple(changes),
    )


@rule_about(Facts.find_plan_of_one_stream)
def report_idle_pipeline_stages(facts: Facts, context: PlanContext) -> Iterator[Advice]:
    """Report that the server's pipeline stages do not make the result's only stream faster."""
    if facts.pp < 2:
        return
    text = (
        f"a token of one stream passes the {facts.pp} pipeline stages one after another: they "
        "add memory, not speed"
    )
    changes = (
        PlanChange("tensor-parallel-size", facts.tp * facts.pp),
        PlanChange("pipeline-parallel-size", 1),
    )
    fix = option_texts_of_changes(changes)
    gain = Gain(0, _TP_OVER_PP_PCT, measured_on=_SPARKS)
    evidence = f"pipeline-parallel-size {facts.pp}, 1 stream"
    yield make_advice(
        Level.HINT,
        "pp.batch1",
        text,
        fix=fix,
        evidence=evidence,
        source=_UNSLOTH,
        changes=changes,
        gain=gain,
    )


def report_communication_share(facts: Facts) -> Iterator[Advice]:
    """Report the share of a step that the all-reduces of tensor parallelism take."""
    layers, speed = facts.known_sizes.layers, facts.per_stream_tok_s
    if facts.tp < 2 or not layers or not speed or not facts.gpus:
        return
    between_nodes = facts.gpus[0].name == NODES_OF_ONE_GPU
    if facts.node_count > 1 and not between_nodes:
        return  # the network is unknown
    (low_us, high_us), source = _PCIE_US, _PCIE
    if between_nodes:
        (low_us, high_us), source = _ROCE_US, _ROCE
    count, step_ms = 2 * layers + 1, 1000 / speed
    low, high = count * low_us / 1000, count * high_us / 1000
    share = 100 * high / step_ms
    text = (
        f"{count} all-reduces per token take about {low:.1f} to {high:.1f} ms of {step_ms:.0f} ms"
    )
    text += f" ({100 * low / step_ms:.1f} to {share:.1f} %)"
    if facts.enabled_eager_flag:
        text += "; eager mode adds the launches and the wait for the slowest rank"
    level, fix = Level.INFO, ""
    if share > 20:
        level, fix = (
            Level.HINT,
            "use replicas if the model fits on one GPU, or more streams, which share the "
            "all-reduces",
        )
    elif facts.node_count > 1:
        text += ": the link between the machines is not the limit"
    evidence = f"{layers} layers, tensor-parallel size {facts.tp}, {format_four_digits(speed)} tok/s per stream"
    yield make_advice(level, "comm.latency", text, fix=fix, evidence=evidence, source=source)


_BATCH_1 = {  # flags that decide about room, prefill or concurrency
    "gpu-memory-utilization": "KV cache size",
    "mem-fraction-static": "KV cache size",
    "chunked-prefill-size": "prefill",
    "max-num-batched-tokens": "prefill",
    "max-num-seqs": "concurrency",
    "max-running-requests": "concurrency",
}


@rule_about(Facts.find_plan_of_one_stream)
def report_flags_without_effect_on_one_stream(
    facts: Facts, context: PlanContext
) -> Iterator[Advice]:
    """Report flags that cannot change the decoding speed of one stream."""
    found = context.plan.flag_values
    names = [name for name in _BATCH_1 if found.get(name) is not None]
    if not names:
        return
    named = ", ".join(f"{name} ({_BATCH_1[name]})" for name in names)
    text = f"these flags do not change the decoding speed of one stream: {named}"
    evidence = " ".join(f"{name}={found[name]}" for name in names)
    yield make_advice(
        Level.INFO,
        "knob.scope",
        text,
        fix="change these flags only for a load of several streams",
        evidence=evidence,
    )


_FEW_ACCEPTED_PCT = 25.0  # of draft tokens: vendors publish 50 and more, a broken drafter had 15


@rule_about(Facts.find_accepted_draft_pct)
def report_few_accepted_drafts(facts: Facts, accepted_pct: float) -> Iterator[Advice]:
    """Report that the engine refuses most of the draft tokens."""
    if accepted_pct >= _FEW_ACCEPTED_PCT:
        return
    text = f"only {accepted_pct:.0f} % of the draft tokens were accepted: the others cost time"
    fix = (
        "draft fewer tokens, or none, and compare; if the drafter is a part of the checkpoint, "
        "check whether its quantization left it out"
    )
    yield make_advice(
        Level.WARN,
        "spec.few-accepted",
        text,
        fix=fix,
        source="Blackwellboy/model-serving-minefield, traps 11 and 109",
        evidence=f"{accepted_pct:.1f} % accepted",
    )


RULES: tuple[Rule, ...] = (
    report_decoding_near_ceiling,
    report_time_beyond_weight_reads,
    report_decoding_above_ceiling,
    report_feasibility_of_expected_speed,
    report_sixteen_bit_weights,
    report_eight_bit_weights,
    report_single_stream,
    report_eager_mode,
    report_launch_bound,
    report_unneeded_model_split,
    report_idle_pipeline_stages,
    report_communication_share,
    report_flags_without_effect_on_one_stream,
    report_few_accepted_drafts,
)
