"""Rules about plans that start but waste the hardware, take a risk, or set what has no effect. Each
finding has its evidence and the change that fixes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from workbench.engines.flag_values import format_argument, format_flag_value
from workbench.engines.memory_estimate import GIB, MemoryFit, estimate_memory_or_reason
from workbench.engines.plan_context import PlanContext
from workbench.engines.weight_bits import BITS, normalize_quantization
from workbench.model.counts import count_of
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.flags import FlagSetting, Origin
from workbench.model.gpu_allotment import visible_gpus_and_first_unknown_word
from workbench.model.job_request import VISIBLE_TO_CUDA
from workbench.model.plan import PARALLEL_SIZES, LaunchPlan
from workbench.model.untrusted_text import as_table

_TP, _PP, _DP = PARALLEL_SIZES
# weights up to this share of a GPU's memory leave room for a KV cache: an assumption
FITS_WELL = 0.6
_REPLICAS_SOURCE = (
    "vLLM documentation, Parallelism and Scaling; two replicas against one server on two GB10: "
    "unslothai/unsloth#10280"
)
# Quantization methods that only load a checkpoint quantized in that way; fp8, bitsandbytes and
# others also convert.
_CHECKPOINT_ONLY = ("AWQ", "GPTQ", "NVFP4")
_NAMED = re.compile(r"(?i)(?<![a-z])(awq|gptq|nvfp4|mxfp4|fp8)(?![a-z])")
# Flags that act only if another flag is above 1
_ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "disable-custom-all-reduce": (_TP,),
    "data-parallel-backend": (_DP,),
    "data-parallel-address": (_DP,),
    "data-parallel-rpc-port": (_DP,),
    "data-parallel-hybrid-lb": (_DP,),
    "data-parallel-external-lb": (_DP,),
    "load-balance-method": (_DP,),
    "enable-dp-attention": (_DP,),
    "nccl-port": (_TP, _PP, _DP),
}
_NO_EFFECT_ENV: Mapping[tuple[str, str], str] = {
    # (variable, value) -> why it has no effect
    ("CUDA_LAUNCH_BLOCKING", "0"): "0 is the default",
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"): "it matters for programs with many CUDA streams, and an "
    "engine uses few",
    ("VLLM_USE_V1", "1"): "1 is the default",
}


def report_unneeded_model_split(context: PlanContext) -> Iterator[Finding]:
    """Report a model that is split over GPUs although one GPU can hold it. Replicas would need no
    communication."""
    split, weights = context.ranks_per_replica, context.weight_bytes
    smallest = context.smallest_gpu_bytes
    if context.node_count > 1 or split < 2 or not weights or weights > FITS_WELL * smallest:
        return
    replicas = split * context.flag_count_or_one(_DP)
    changes = (*context.changes_to_unset(_TP, _PP), PlanChange(_DP, replicas))
    alone = estimate_memory_or_reason(
        _apply_changes_on_one_node(context.plan, changes), context.gpus
    )
    if not isinstance(alone, MemoryFit) or not alone.fits or alone.full_length_sequences == 0:
        return
    split_by = [name for name in (_TP, _PP) if context.flag_count_or_one(name) > 1]
    sizes_of = " x ".join(f"{name} {context.flag_count_or_one(name)}" for name in split_by)
    text = (
        f"the model fits one GPU; {sizes_of} splits it over {count_of(split, 'GPU')}, and "
        "every token waits for "
    )
    text += "the link between them"
    yield Finding(
        Level.WARN,
        "dp-before-tp",
        text,
        split_by[0],
        f"run {count_of(replicas, 'replica')}; splitting a model helps only a single request over "
        "a fast link",
        _REPLICAS_SOURCE,
        evidence=f"weights {weights / GIB:.1f} GiB, smallest GPU {smallest / GIB:.1f} GiB",
        changes=changes,
        expected_gain="+30 to +91 % tok/s at 8 to 32 requests with two replicas (measured there)",
    )


def report_useful_quantization(context: PlanContext) -> Iterator[Finding]:
    """Report a 16-bit model that needs several GPUs only because it is not quantized."""
    weights, smallest = context.weight_bytes, context.smallest_gpu_bytes
    if not weights or normalize_quantization(context.model_facts.quantization) != "BF16":
        return
    fp8 = weights * BITS["FP8"] / BITS["BF16"]
    fits_tightly = weights <= smallest < weights / FITS_WELL
    if fits_tightly or not fp8 < 0.9 * smallest < weights:
        return
    yield Finding(
        Level.HINT,
        "quant.first",
        f"the 16-bit weights need more than one GPU; an FP8 checkpoint ({fp8 / 1e9:.0f} GB) fits "
        "one",
        fix="try an FP8 or 4-bit checkpoint of the model: fewer bytes per token are the largest "
        "gain in decoding",
        source="bytes read per token, which limit decoding",
        evidence=f"weights {weights / 1e9:.0f} GB, smallest GPU {smallest / 1e9:.0f} GB",
        expected_gain="up to 2x tok/s per request with FP8, up to 3.5x with 4 bits",
    )


def report_pipeline_stages(context: PlanContext) -> Iterator[Finding]:
    """Report that the plan has pipeline stages, which do not make a single request faster."""
    stages = context.flag_count_or_one(_PP)
    if stages > 1:
        text = (
            f"{_PP} {stages}: a token passes the stages one after another, so one request "
            "gets no faster"
        )
        fix = (
            f"use {_TP} for the speed of one request; stages help with many requests, or where "
            "the model does not fit"
        )
        source = (
            "one stream on two GB10: tensor parallel 2.09x, pipeline 1.08x "
            "(unslothai/unsloth#10280)"
        )
        yield Finding(Level.HINT, "pp.batch1", text, _PP, fix, source, evidence=f"{_PP} {stages}")


def report_one_request_at_a_time(context: PlanContext) -> Iterator[Finding]:
    """Report a server that processes one request at a time, so that nothing is batched."""
    flag = context.engine.concurrency_flag
    if context.flag_number_in_plan(flag) == 1:
        yield Finding(
            Level.WARN,
            "batch.first",
            f"with {flag} 1 the server has no batching, the largest source of throughput: one "
            "request at a time",
            flag,
            f"unset {flag}",
            "decoding reads the weights once for all requests of a batch",
            evidence=f"{flag} 1",
            changes=(PlanChange(flag, None),),
            expected_gain="nearly N times tok/s at N requests, up to the limit of compute",
        )


def report_small_cache(context: PlanContext) -> Iterator[Finding]:
    """Report that the KV cache cannot hold as many requests of full length as the plan allows at
    the same time."""
    flag = context.engine.concurrency_flag
    wanted = context.flag_number_in_plan(flag)
    if not wanted:
        return
    estimate = estimate_memory_or_reason(context.plan, context.gpus)
    if not isinstance(estimate, MemoryFit) or not estimate.full_length_sequences:
        return
    room = estimate.full_length_sequences // context.flag_count_or_one(_DP)
    if 0 < room < wanted:
        text = (
            f"{flag} {wanted:g} is more than the {room} sequences of full length that the KV "
            "cache holds (estimate)"
        )
        fix = (
            "no change while requests are short; preemptions or waiting requests say that the "
            "cache is too small"
        )
        yield Finding(
            Level.HINT, "kv.sequences", text, flag, fix, estimate.basis, evidence=estimate.text
        )


def report_mismatched_quantization(context: PlanContext) -> Iterator[Finding]:
    """Report that the plan sets a quantization method other than that of the checkpoint."""
    given = context.plan.flag("quantization")
    if not given or context.engine.uses_all_gpus:
        return
    method = normalize_quantization(str(given))
    level, own, basis = _find_checkpoint_quantization(context)
    unquantized = own in (None, "BF16")
    converts = method not in _CHECKPOINT_ONLY
    if method in (None, own) or (unquantized and converts):
        return
    needs, fix = f"needs a checkpoint in {method}", f"; or load a checkpoint in {method}"
    if converts:
        needs, fix = "converts 16-bit weights", ""
    kind = f"an {own} checkpoint"
    if unquantized:
        kind = "not such a checkpoint"
    fix = f"unset quantization: the engine reads it from the checkpoint{fix}"
    text = f"quantization {given} {needs}, but the model {context.plan.model} is {kind}"
    yield Finding(
        level,
        "quant.checkpoint",
        text,
        "quantization",
        fix,
        "vLLM rejects a quantization method that differs from the checkpoint's",
        evidence=f"from {basis}",
        changes=(PlanChange("quantization", None),),
    )


def _find_checkpoint_quantization(context: PlanContext) -> tuple[Level, str | None, str]:
    """Return the level of a finding about the quantization of the plan's checkpoint, that
    quantization (None: unknown), and where it is read."""
    facts = context.model_facts
    level, own, basis = Level.WARN, None, "its name, which names no quantization"
    if name := _NAMED.search(context.plan.model.rstrip("/").rpartition("/")[2]):
        own, basis = name[1].upper(), "its name"
    if "config.json" in facts.source and (read := normalize_quantization(facts.quantization)):
        level, own, basis = Level.ERROR, read, "config.json"
    if "at load" in facts.source:
        own = None
    return level, own, basis


_DRAFT_FLAGS = (
    "speculative-config",
    "speculative-draft-model-path",
    "spec-draft-model",
    "spec-model",
    "draft-model-name",
    "model-draft",
)


def report_draft_model_memory(context: PlanContext) -> Iterator[Finding]:
    """Report that the plan has a draft model, whose memory the memory estimate does not include."""
    for flag in _DRAFT_FLAGS:
        draft = context.plan.flag(flag)
        if flag == "speculative-config":
            draft = as_table(draft).get("model")
        if draft:
            text = (
                f"the draft model {draft} takes GPU memory that the estimate does not include: "
                "its weights and KV cache"
            )
            fix = (
                "compare the acceptance rate and tok/s with a run without it; lower the memory "
                "share if the start fails"
            )
            yield Finding(Level.HINT, "spec.memory", text, flag, fix, evidence=f"{flag} {draft}")
            return


def report_risky_flags(context: PlanContext) -> Iterator[Finding]:
    """Report flags that run code from the model's repository, and flags that make the first request
    slow."""
    if context.is_switched_on("trust-remote-code"):
        yield Finding(
            Level.WARN,
            "risk.remote-code",
            "trust-remote-code runs Python code from the model's repository with your rights",
            "trust-remote-code",
            "unset the flag if the engine has the model's architecture; otherwise pin a revision "
            "that you have read",
            "Hugging Face transformers, trust_remote_code",
            evidence=f"model {context.plan.model}",
            changes=(PlanChange("trust-remote-code", None),),
        )
    if context.is_switched_on("sleep-on-idle"):
        text = (
            "sleep-on-idle saves CPU time while nothing runs; the first request after a pause "
            "waits for the wake-up"
        )
        fix = "unset sleep-on-idle where latency matters, and for benchmarks"
        change = (PlanChange("sleep-on-idle", None),)
        yield Finding(
            Level.HINT,
            "idle.wake-up",
            text,
            "sleep-on-idle",
            fix,
            "SGLang's own help",
            changes=change,
        )


def report_flags_without_effect(context: PlanContext) -> Iterator[Finding]:
    """Report flags that change nothing in this plan, because they need a parallel size above 1 or
    the user set them to the default, and variables that change nothing or only slow the engine."""
    for setting in context.plan.flags:
        unset = (PlanChange(setting.name, None),)
        if needs := _list_missing_parallel_sizes(context, setting):
            text = f"{setting.name} has no effect: it needs {' or '.join(needs)} above 1"
            yield Finding(
                Level.HINT, "flag.no-effect", text, setting.name, "unset it", changes=unset
            )
        elif _was_edited_to_default(context, setting):
            text = (
                f"{setting.name} {format_flag_value(setting.value)} is the default of "
                f"{context.engine.title} {context.catalog.version}"
            )
            yield Finding(Level.INFO, "flag.default", text, setting.name, "unset it", changes=unset)
    for setting in context.plan.env:
        change = (PlanChange(setting.name, None, env=True),)
        value = str(setting.value).strip()
        if reason := _NO_EFFECT_ENV.get((setting.name, value)):
            text = f"{setting.name}={value} has no effect: {reason}"
            yield Finding(
                Level.HINT,
                "env.noop",
                text,
                setting.name,
                "unset it",
                "CUDA programming guide",
                changes=change,
            )
        elif setting.name == "CUDA_LAUNCH_BLOCKING" and value not in ("", "0"):
            text = (
                "CUDA_LAUNCH_BLOCKING makes every kernel launch wait for its end: for "
                "debugging only"
            )
            source = "CUDA programming guide"
            yield Finding(
                Level.WARN, "env.blocking", text, setting.name, "unset it", source, changes=change
            )


def _list_missing_parallel_sizes(context: PlanContext, setting: FlagSetting) -> tuple[str, ...]:
    """Return the parallel sizes of which a flag needs one above 1; () if it has an effect."""
    needs = _ONLY_WITH.get(setting.name, ())
    if setting.value is False or any(context.flag_count_or_one(name) > 1 for name in needs):
        return ()
    return needs


def _was_edited_to_default(context: PlanContext, setting: FlagSetting) -> bool:
    """Return whether the user set a flag to the engine's default. A preset may state a default on
    purpose."""
    if setting.origin is not Origin.EDITED:
        return False
    if not context.engine.is_same_release(context.installed, context.catalog.version):
        return False
    spec = context.catalog.flags.get(setting.name)
    if spec is None or spec.default is None:
        return False
    return _equals_default(setting.value, spec.default)


def report_gpus_from_environment(context: PlanContext) -> Iterator[Finding]:
    """Report the GPUs that the server inherits from the host's environment, such as those that a
    job scheduler allotted, and a plan that sets others."""
    setting = next((e for e in context.plan.env if e.name == VISIBLE_TO_CUDA), None)
    if setting is None:
        return
    devices, allotment = str(setting.value), context.allotment
    if setting.origin is Origin.INHERITED and devices == allotment.visible:
        giver = allotment.job or "the host's environment"
        text = f"the server uses only the GPUs that {giver} gives: {VISIBLE_TO_CUDA}={devices}"
        yield Finding(Level.INFO, "gpus.inherited", text, VISIBLE_TO_CUDA)
    elif allotment.job and devices != allotment.visible:
        yield Finding(
            Level.WARN,
            "hpc.respect-allocation",
            f"{VISIBLE_TO_CUDA}={devices} overrides the GPUs that the scheduler allocated to "
            f"{allotment.job}: the server may use GPUs of other users",
            VISIBLE_TO_CUDA,
            f"unset {VISIBLE_TO_CUDA}, so that the scheduler's value stays",
            evidence=f"job {allotment.job}",
            changes=(PlanChange(VISIBLE_TO_CUDA, None, env=True),),
        )
    if not context.gpus:
        return
    visible, unknown = visible_gpus_and_first_unknown_word(devices, context.gpus)
    if unknown is not None:
        names = ", ".join(str(gpu.index) for gpu in context.gpus)
        rest = "the server sees only those before it"
        if not visible:
            rest = "the server sees no GPU"
        text = f"{VISIBLE_TO_CUDA} names {unknown!r}, which is no GPU of this host: {rest}"
        fix = f"name GPUs of this host: {names}"
        yield Finding(Level.ERROR, "gpus.unknown", text, VISIBLE_TO_CUDA, fix)


def _apply_changes_on_one_node(plan: LaunchPlan, changes: tuple[PlanChange, ...]) -> LaunchPlan:
    for change in changes:
        plan = plan.without_flag(change.name)
        if change.value is not None:
            plan = plan.with_flag(change.name, change.value)
    return replace(plan, nodes=())


def _equals_default(value: object, default: object) -> bool:
    if type(value) not in (type(default), int, float):
        return False
    return format_argument(value) == format_argument(default)


RULES = (
    report_unneeded_model_split,
    report_useful_quantization,
    report_pipeline_stages,
    report_one_request_at_a_time,
    report_small_cache,
    report_mismatched_quantization,
    report_draft_model_memory,
    report_risky_flags,
    report_flags_without_effect,
    report_gpus_from_environment,
)
