"""Rules about published traps of serving: plans that start, and then write wrong text, die under
load, or take a slow path without a word. doctor/known_traps.json lists all traps with their rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import wraps

from workbench.engines.catalog import parse_version_numbers
from workbench.engines.plan_context import PlanContext
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.untrusted_text import as_table

_MINEFIELD = "Blackwellboy/model-serving-minefield, trap {}"
_DEEP = 8  # draft tokens; there, acceptance fell to zero behind the third token
# tokens that all sequences together verify in one step; 32 x 16 died, and 4 x 16 ran for weeks
_VERIFIED = 512
_METHODS = ("spec-type", "speculative-algorithm", "draft-mode")  # llama.cpp, SGLang, TabbyAPI
_SEQUENCES = 256  # of vLLM, if max-num-seqs is not set
_SPECULATION = "speculative-config"
_QWEN_WITH_MTP = re.compile(r"(?i)qwen-?3\.?8")
_INDEXED = re.compile(r"(?i)deepseek-?v3\.2|glm-?5")
_PLAIN_CACHE = frozenset(("f32", "f16", "bf16"))
_EXPERTS = re.compile(r"num_experts_per_tok|expert_used_count|num_experts_per_token")
_Rule = Callable[[PlanContext], Iterator[Finding]]


def _rule_for_engine(name: str) -> Callable[[_Rule], _Rule]:
    """Return a decorator that limits a rule to plans of the engine `name`."""

    def restrict_to_engine(rule: _Rule) -> _Rule:
        @wraps(rule)
        def check(context: PlanContext) -> Iterator[Finding]:
            if context.engine.name == name:
                yield from rule(context)

        return check

    return restrict_to_engine


def _drafted_tokens_per_step(context: PlanContext) -> int | None:
    return context.engine.drafted_tokens_per_step(context.plan.flag_values, context.engine_version)


def report_deep_drafts(context: PlanContext) -> Iterator[Finding]:
    """Report a plan that drafts so many tokens that most of them are probably refused. Copies of
    earlier text are left out: they need no draft model, and llama-server's are 48 tokens long."""
    depth = _drafted_tokens_per_step(context)
    if depth is None or any("ngram" in str(context.plan.flag(name)).lower() for name in _METHODS):
        return
    if depth >= _DEEP:
        yield Finding(
            Level.HINT,
            "spec.depth",
            f"{depth} draft tokens a step: throughput has a sharp peak over the depth, and more "
            "tokens than that are refused and cost time",
            fix="compare smaller depths (`workbench sweep`), and read the share of accepted tokens",
            source=_MINEFIELD.format(11),
            evidence=f"{depth} draft tokens",
        )


@_rule_for_engine("vllm")
def report_full_graphs_with_mtp(context: PlanContext) -> Iterator[Finding]:
    """Report Qwen3.8 with MTP on vLLM 0.27, whose full CUDA graphs spoil the text without an
    error."""
    if parse_version_numbers(context.engine_version)[:2] != (0, 27) or not _QWEN_WITH_MTP.search(
        context.plan.model
    ):
        return
    config = as_table(context.plan.flag(_SPECULATION))
    method = str(config.get("method", ""))
    if "mtp" not in method.lower() or "num_speculative_tokens_per_batch_size" in config:
        return
    compiled = as_table(context.plan.flag("compilation-config"))
    mode = str(compiled.get("cudagraph_mode", "")).upper()
    if mode in ("PIECEWISE", "NONE") or context.is_switched_on("enforce-eager"):
        return
    yield Finding(
        Level.WARN,
        "spec.full-graphs",
        "vLLM 0.27.1 spoils the text of Qwen3.8 with MTP under full CUDA graphs: empty or endless "
        "answers with status 200",
        _SPECULATION,
        "set compilation-config to PIECEWISE CUDA graphs, and compare the text with a run without "
        "speculation",
        _MINEFIELD.format(122),
        evidence=f"vLLM {context.engine_version}, method {method}",
        changes=(PlanChange("compilation-config", {**compiled, "cudagraph_mode": "PIECEWISE"}),),
    )


@_rule_for_engine("vllm")
def report_drafts_on_unified_memory(context: PlanContext) -> Iterator[Finding]:
    """Report many sequences with speculation on a GPU that shares the memory of the host."""
    depth = _drafted_tokens_per_step(context)
    if depth == 0 or not context.has_unified_memory:
        return
    sequences = int(context.positive_flag_number("max-num-seqs", _SEQUENCES))
    verified = 2 if depth is None else depth + 1
    if sequences * verified < _VERIFIED:
        return
    tokens = f"{verified} or more" if depth is None else f"{verified}"
    yield Finding(
        Level.HINT,
        "spec.unified-memory",
        f"{sequences} sequences verify {tokens} tokens each in a step: on unified memory such "
        "plans ran out of memory at the start, or minutes after the first load",
        "max-num-seqs",
        "start with max-num-seqs 4, and raise it under load",
        _MINEFIELD.format(98),
        evidence=f"{sequences} x {tokens} tokens, unified memory",
        changes=(PlanChange("max-num-seqs", 4),),
    )


@_rule_for_engine("vllm")
def report_indexer_with_drafts(context: PlanContext) -> Iterator[Finding]:
    """Report speculation with a model whose sparse attention keeps an index that is one block too
    short for the drafted tokens."""
    depth = _drafted_tokens_per_step(context)
    if depth != 0 and _INDEXED.search(context.plan.model):
        yield Finding(
            Level.WARN,
            "spec.indexer",
            "the index of this model's sparse attention may have no block for the drafted tokens: "
            "the engine died as soon as three long requests ran at once",
            _SPECULATION,
            "load the server with three and more long requests at once before you rely on it; "
            "without speculation the fault is absent",
            _MINEFIELD.format(120),
            evidence=f"{context.plan.model}, {depth or 'unknown number of'} draft tokens",
        )


@_rule_for_engine("llamacpp")
def report_mixed_cache_types(context: PlanContext) -> Iterator[Finding]:
    """Report a pair of cache types for which llama.cpp has no fast attention kernel unless it was
    built with all of them."""
    keys = str(context.effective_flag_value("cache-type-k"))
    values = str(context.effective_flag_value("cache-type-v"))
    if keys == values or {keys, values} <= _PLAIN_CACHE:
        return
    yield Finding(
        Level.WARN,
        "kv.quant-pair",
        f"a usual build of llama.cpp has no fast attention for a cache of {keys} and {values}: it "
        "takes a slow path without a word (prefill 20 times slower in a report)",
        "cache-type-k",
        "give both the same type, or build llama.cpp with GGML_CUDA_FA_ALL_QUANTS=ON",
        _MINEFIELD.format(45),
        evidence=f"cache-type-k {keys}, cache-type-v {values}",
        changes=(PlanChange("cache-type-v", keys),),
    )


@_rule_for_engine("llamacpp")
def report_flash_attention_off(context: PlanContext) -> Iterator[Finding]:
    """Report that flash attention is off, which slows decoding the more the longer the context."""
    if context.plan.flag("flash-attn") == "off":
        yield Finding(
            Level.HINT,
            "kv.flash-attn",
            "flash-attn off slows decoding, and the more the longer the context is",
            "flash-attn",
            "unset it, and compare at the context that you use",
            _MINEFIELD.format(18),
            evidence="flash-attn off",
            changes=(PlanChange("flash-attn", None),),
        )


@_rule_for_engine("llamacpp")
def report_partial_offload(context: PlanContext) -> Iterator[Finding]:
    """Report that some layers of the model are computed by the CPU."""
    wanted, layers = context.plan.flag("n-gpu-layers"), context.model_facts.layers
    if not context.gpus or not layers:
        return
    if type(wanted) is int and 0 <= wanted < layers:
        yield Finding(
            Level.HINT,
            "gpus.partly",
            f"{layers - wanted} of {layers} layers stay on the CPU: decoding was 22 to 31 times "
            "slower in a report, and neither the log nor /props says so",
            "n-gpu-layers",
            "unset n-gpu-layers if the model fits, or choose a smaller quantization",
            _MINEFIELD.format(97),
            evidence=f"n-gpu-layers {wanted}, model {layers} layers",
            changes=(PlanChange("n-gpu-layers", None),),
        )


@_rule_for_engine("llamacpp")
def report_shared_slot_context(context: PlanContext) -> Iterator[Finding]:
    """Report that the slots share the context, so that a request gets only a part of it."""
    slots, context_tokens = context.plan.flag("parallel"), context.effective_flag_number("ctx-size")
    if not context_tokens or context.is_switched_on("kv-unified"):
        return
    if isinstance(slots, int) and slots > 1:
        yield Finding(
            Level.INFO,
            "context.slots",
            f"each of the {slots} slots has {int(context_tokens) // slots} tokens of context: ctx-size is "
            "that of all slots together",
            "ctx-size",
            f"for {int(context_tokens)} tokens in each slot set ctx-size to {int(context_tokens) * slots}",
            _MINEFIELD.format(87),
            evidence=f"ctx-size {int(context_tokens)}, parallel {slots}",
        )


@_rule_for_engine("llamacpp")
def report_unparsed_tool_calls(context: PlanContext) -> Iterator[Finding]:
    """Report a server that answers with the text of a tool call instead of a tool call."""
    if context.effective_flag_value("jinja") is False:
        yield Finding(
            Level.HINT,
            "tools.template",
            "without jinja the model's own template and its tool parser do not run: tool calls "
            "come as prose",
            "jinja",
            "unset it if clients use tools",
            _MINEFIELD.format(19),
            evidence="jinja off",
            changes=(PlanChange("jinja", None),),
        )


@_rule_for_engine("vllm")
def report_unused_tool_parser(context: PlanContext) -> Iterator[Finding]:
    """Report a parser of tool calls without the switch that allows the calls."""
    allowed = context.is_switched_on("enable-auto-tool-choice")
    if context.plan.flag("tool-call-parser") and not allowed:
        yield Finding(
            Level.HINT,
            "tools.parser",
            "tool-call-parser has no effect without enable-auto-tool-choice: tool calls are refused",
            "tool-call-parser",
            "set enable-auto-tool-choice",
            f"vLLM documentation, Tool Calling; {_MINEFIELD.format(19)}",
            evidence="tool-call-parser without enable-auto-tool-choice",
            changes=(PlanChange("enable-auto-tool-choice", True),),
        )


def report_changed_expert_count(context: PlanContext) -> Iterator[Finding]:
    """Report that the plan changes how many experts a token uses, which makes answers worse."""
    for name in ("hf-overrides", "json-model-override-args", "override-kv"):
        value = context.plan.flag(name)
        if value is not None and _EXPERTS.search(str(value)):
            yield Finding(
                Level.WARN,
                "quality.experts",
                f"{name} changes the number of experts of a token: another number than the trained "
                "one costs accuracy, without an error",
                name,
                "leave the number that the model was trained with, or compare the answers "
                "(`workbench quality`)",
                _MINEFIELD.format(33),
                evidence=f"{name} {value}",
            )


def report_rope_scaled_context(context: PlanContext) -> Iterator[Finding]:
    """Report a context that was stretched beyond the length that the model was trained with."""
    flag = "rope-scaling"
    if context.plan.flag(flag) in (None, "none"):
        flag = "hf-overrides"
        if {"rope_scaling", "rope_parameters"}.isdisjoint(as_table(context.plan.flag(flag))):
            return
    yield Finding(
        Level.HINT,
        "context.stretched",
        "a context that is stretched runs without an error, and answers from far back may be "
        "wrong: the model was not trained with it",
        flag,
        "test with questions about the beginning of a prompt of full length",
        _MINEFIELD.format(55),
        evidence=f"{flag} is set",
    )


def report_equal_gid_index(context: PlanContext) -> Iterator[Finding]:
    """Report that all nodes get the same index of an RDMA address."""
    name = "NCCL_IB_GID_INDEX"
    index = context.environment_value(name)
    if index is not None and context.node_count > 1:
        yield Finding(
            Level.HINT,
            "nccl.gid-index",
            f"{name} is the same on all nodes: the index of an RDMA address differs between hosts, "
            "and a wrong one ends the start with a queue pair error",
            name,
            "unset it, so that NCCL chooses; or give each node its own index under [nodes]",
            _MINEFIELD.format(114),
            evidence=f"{name}={index}, {context.node_count} nodes",
            changes=(PlanChange(name, None, env=True),),
        )


def report_fused_collectives(context: PlanContext) -> Iterator[Finding]:
    """Report the fusion fuse_gemm_comms, which vLLM prints as True and then switches off on GPUs of
    compute capability 12 and between hosts."""
    config = as_table(context.plan.flag("compilation-config"))
    if as_table(config.get("pass_config")).get("fuse_gemm_comms") is not True:
        return
    newest = any((g.compute_capability or "").startswith("12.") for g in context.gpus)
    if newest or context.node_count > 1:
        yield Finding(
            Level.WARN,
            "flag.fuse-gemm-comms",
            "vLLM switches fuse_gemm_comms off again on these GPUs or between hosts, although its "
            "first line says True: a comparison with and without it compares equal servers",
            "compilation-config",
            "leave it out; the line “Initializing a V1 LLM engine” has the value in force",
            _MINEFIELD.format(117),
            evidence="pass_config.fuse_gemm_comms true",
        )


@_rule_for_engine("llamacpp")
def report_reasoning_off(context: PlanContext) -> Iterator[Finding]:
    """Report that a server with reasoning off still reasons when a client asks for it."""
    for flag, off in (("reasoning", "off"), ("reasoning-budget", 0)):
        if context.plan.flag(flag) != off:
            continue
        yield Finding(
            Level.HINT,
            "reasoning.client",
            f"{flag} is only a default: a client that sends enable_thinking gets reasoning, and with "
            "few max_tokens an empty answer",
            flag,
            "allow for reasoning in the max_tokens of each client, or remove the field in front "
            "of the server",
            _MINEFIELD.format(29),
            evidence=f"{flag} {off}",
        )
        return


RULES = (
    report_deep_drafts,
    report_full_graphs_with_mtp,
    report_drafts_on_unified_memory,
    report_indexer_with_drafts,
    report_mixed_cache_types,
    report_flash_attention_off,
    report_partial_offload,
    report_shared_slot_context,
    report_unparsed_tool_calls,
    report_unused_tool_parser,
    report_changed_expert_count,
    report_rope_scaled_context,
    report_equal_gid_index,
    report_fused_collectives,
    report_reasoning_off,
)
