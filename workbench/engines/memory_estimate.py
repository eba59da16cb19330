"""An estimate of the GPU memory that a plan needs, made before anything is started.

The estimate is the sum of weights, KV cache, activations, CUDA graphs and the CUDA context. LoRA
adapters, draft models, vision encoders and uneven splits are not included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from workbench.engines import registry
from workbench.engines.kv_size import BATCHED_TOKENS, kv_bytes_of_sequence_per_gpu
from workbench.engines.plan_context import PlanContext, list_visible_gpus
from workbench.model.counts import count_of
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan

GIB = 2**30
CONTEXT_GIB = 0.6  # CUDA context and libraries of one GPU: an assumption
GRAPHS_GIB = 0.5  # CUDA graphs: an assumption; real values range from 0.1 to 2 GiB
_HIDDEN_COPIES = 6  # of the hidden state that a layer keeps at once: an assumption
_LOGIT_BYTES = 8  # logits in 32 bit, and a copy of them for sampling
_SEQUENCES = 256  # vLLM's default of max-num-seqs on most GPUs
_SOME_LENGTH = 4096  # tokens, if neither plan nor model say how long a sequence may be
_TINY = 0.01  # GiB

# Bits of one KV cache element; `kv_bytes_per_token` assumes 16. The block formats of llama.cpp
# include scales.
_KV_BITS = {
    "fp8": 8.0,
    "fp8_e4m3": 8.0,
    "fp8_e5m2": 8.0,
    "mxfp8": 8.25,
    "nvfp4": 4.5,
    "fp4_mx_block16": 4.5,
    "f32": 32.0,
    "q8_0": 8.5,
    "q5_0": 5.5,
    "q5_1": 6.0,
    "q4_0": 4.5,
    "q4_1": 5.0,
    "iq4_nl": 4.5,
    "Q8": 8.0,
    "Q6": 6.0,
    "Q4": 4.0,
}


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The estimated memory of each GPU that the server uses. GiB are 2**30 bytes."""

    # memory that the engine will allocate; above the available memory if it does not fit
    used_gib_per_gpu: float
    available_gib_per_gpu: float  # memory of the smallest GPU
    weights_gib_per_gpu: float
    # capacity of the KV cache of all replicas; None: the KV size per token is unknown
    kv_tokens: int | None
    full_length_sequences: int | None  # that fit in the cache; None: the length is the model's own
    fits: bool
    text: str  # one line for the status area, marked as an estimate
    basis: str  # the values that the estimate is computed from


def estimate_memory_or_reason(
    plan: LaunchPlan, gpus: Sequence[GpuInfo], free_bytes: float | None = None
) -> MemoryFit | str:
    """Return the memory estimate for `plan` on `gpus`. If no estimate is possible, return the
    reason as text.

    The plan fits if the estimate is at most the memory of the smallest GPU, or at most
    `free_bytes`, the memory that is free on each GPU now.
    """
    engine = registry.get_engine(plan.engine)
    shown = list_visible_gpus(plan, gpus)
    if gpus and not shown:
        return "CUDA_VISIBLE_DEVICES names no MIG instance of this host"
    gpus = shown
    context = PlanContext(plan, engine.catalog(plan.engine_version), engine, gpus)
    facts = context.model_facts
    if facts.weight_bytes is None:
        return facts.missing or "the size of the weights is unknown"
    if not context.smallest_gpu_bytes:
        return "the memory of the GPUs is unknown"
    if reason := engine.why_no_memory_estimate(context):
        return reason
    total = context.smallest_gpu_bytes / GIB
    split = _gpus_per_replica(context)
    offloaded_gib = context.positive_flag_number("cpu-offload-gb")
    weights = max(0.0, facts.weight_bytes / split / GIB - offloaded_gib)
    need = _MemoryNeed(context, total, weights, split, *_working_memory_gib_and_basis(context))
    estimate = _estimate_memory_by_cache_flag
    if engine.memory.share_flag:
        estimate = _estimate_memory_by_share_flag
    found = estimate(need)
    free = total if free_bytes is None else free_bytes / GIB
    if found.fits and found.used_gib_per_gpu > free + _TINY:
        text = (
            f"est. does not fit now: {found.used_gib_per_gpu:.1f} GiB per GPU, {free:.1f} of "
            f"{total:.1f} GiB free"
        )
        return replace(found, fits=False, text=text)
    return found


@dataclass(frozen=True, slots=True)
class _MemoryNeed:
    """The memory that a plan needs on one GPU, in GiB. `total_gib` is the memory size of the GPU,
    and `working_gib` the memory for activations and CUDA graphs."""

    context: PlanContext
    total_gib: float
    weights_gib: float
    gpus_per_replica: int
    working_gib: float
    working_basis: str

    def sequence_kv_gib(self, length: int) -> float | None:
        """Return the memory in GiB that the KV cache of one sequence of `length` tokens takes on
        one GPU. None if it is unknown."""
        context, shape = self.context, self.context.model_shape
        if self.why_sequence_memory_is_unknown():
            return None
        if not shape.kv:
            per_token = context.model_facts.kv_bytes_per_token
            if not per_token:
                return None
            return (
                per_token * _kv_fraction_of_16_bits(context) / self.gpus_per_replica / GIB * length
            )
        tp = 1
        if not context.engine.uses_all_gpus:
            tp = context.flag_count_or_one("tensor-parallel-size")
        size = kv_bytes_of_sequence_per_gpu(
            shape.kv,
            length,
            tp=tp,
            pp=self.gpus_per_replica // tp,
            bits=16 * _kv_fraction_of_16_bits(context),
            rule=context.engine.kv_storage_rule(context),
        )
        return size / GIB

    def why_sequence_memory_is_unknown(self) -> str:
        """Return why the memory of a sequence is unknown although the sizes of the model's weights
        are known; "" if there is no such reason."""
        shape = self.context.model_shape
        if any(one.keeps_state for one in shape.kv):
            return self.context.engine.kv_storage_rule(self.context).no_states
        return shape.kv_missing

    def longest_sequence_tokens(self) -> int:
        """Return the length in tokens of the longest sequence that the server must be able to
        process: the plan's limit, otherwise the model's maximum. If both are unknown, return a
        typical length."""
        if given := self.context.positive_flag_number(self.context.engine.memory.length_flag):
            return int(given)
        return self.context.model_shape.max_length or _SOME_LENGTH


def _working_memory_gib_and_basis(context: PlanContext) -> tuple[float, str]:
    """Return (memory in GiB for activations, CUDA graphs and the CUDA context; text that says how
    it was computed). If the sizes of the model's layers are unknown, the engine's constant
    `reserve_gib` is returned."""
    constant = context.engine.memory.reserve_gib
    if not constant:
        return 0.0, "activations outside that share"
    shape = context.model_shape
    assumed = f"{constant} GiB assumed for activations and graphs"
    if not context.engine.memory.share_flag or not shape.hidden or not shape.feed_forward:
        return constant, assumed
    tokens = context.positive_flag_number("max-num-batched-tokens", BATCHED_TOKENS)
    feed_forward = 2 * shape.feed_forward / context.flag_count_or_one("tensor-parallel-size")
    width = feed_forward + _HIDDEN_COPIES * shape.hidden
    sequences = context.positive_flag_number("max-num-seqs", _SEQUENCES)
    logits = sequences * (shape.vocabulary or 0) * _LOGIT_BYTES
    activations = (tokens * width * 2 + logits) / GIB
    graphs = GRAPHS_GIB
    if context.enabled_eager_flag:
        graphs = 0.0
    basis = (
        f"activations {activations:.1f}, CUDA graphs {graphs:g}, CUDA context {CONTEXT_GIB} "
        "GiB estimated"
    )
    return CONTEXT_GIB + activations + graphs, basis


def _gpus_per_replica(context: PlanContext) -> int:
    if not context.engine.uses_all_gpus:
        return context.ranks_per_replica
    if context.effective_flag_value("split-mode") == "none":
        return 1
    return max(1, context.visible_gpu_count)


def kv_bits_per_value(plan: LaunchPlan) -> float:
    """Return the number of bits of one value in the plan's KV cache."""
    engine = registry.get_engine(plan.engine)
    return 16 * _kv_fraction_of_16_bits(
        PlanContext(plan, engine.catalog(plan.engine_version), engine)
    )


def _kv_fraction_of_16_bits(context: PlanContext) -> float:
    """Return the mean bits of a cached key or value, as a share of 16 bits."""
    kinds = [
        str(context.effective_flag_value(flag)) for flag in context.engine.memory.cache_type_flags
    ]
    if re.fullmatch(r"[2-8]\s*,\s*[2-8]", kinds[0]):  # bits of keys and values
        return sum(float(bits) for bits in kinds[0].split(",")) / 32
    return sum(_KV_BITS.get(kind, 16.0) for kind in kinds) / len(kinds) / 16


def _estimate_memory_by_share_flag(need: _MemoryNeed) -> MemoryFit:
    """Return the estimate for an engine that allocates a fixed share of each GPU's memory. The KV
    cache gets what weights, activations and graphs leave of that share."""
    context = need.context
    total = need.total_gib
    weights = need.weights_gib
    use = context.engine.memory
    given = context.effective_flag_number(use.share_flag)
    share = given
    if share is None:
        share = use.default_share
    budget = total * share
    room = budget - weights - need.working_gib
    if fixed := context.effective_flag_number("kv-cache-memory-bytes"):
        room = min(fixed / GIB, total - weights - need.working_gib)
        budget = weights + need.working_gib + room
    basis = (
        f"{_format_weights_basis(weights, need.gpus_per_replica)}; {share:.0%} of {total:.1f} GiB; "
        f"{need.working_basis}"
    )
    if given is None and use.chooses_share:
        basis += f"; {share} assumed, {context.engine.title} chooses it at start"
    if room <= 0:
        used = weights + need.working_gib
        text = (
            f"est. does not fit: weights {weights:.1f} GiB per GPU, {share:.0%} of "
            f"{total:.1f} GiB allowed"
        )
        return MemoryFit(used, total, weights, 0, 0, False, text, basis)
    replicas = context.flag_count_or_one("data-parallel-size")
    length = context.positive_flag_number(use.length_flag)
    tokens = sequences = None
    fits = True
    if each := need.sequence_kv_gib(need.longest_sequence_tokens()):
        tokens = int(room / each * need.longest_sequence_tokens()) * replicas
        if length:
            whole = int(tokens / replicas // length)
            sequences, fits = whole * replicas, whole > 0 or use.starts_with_short_cache
    text = _format_memory_fit(budget, total, tokens, sequences, int(length))
    return MemoryFit(
        budget, total, weights, tokens, sequences, fits, text, basis + _format_kv_basis(need)
    )


def _estimate_memory_by_cache_flag(need: _MemoryNeed) -> MemoryFit:
    """Return the estimate for an engine that allocates a KV cache of the size that a flag sets."""
    context = need.context
    total = need.total_gib
    weights = need.weights_gib
    use = context.engine.memory
    # without a limit of the length, the slots divide the cache
    length = context.positive_flag_number(use.length_flag)
    size = next(filter(None, map(context.effective_flag_number, use.cache_size_flags)), 0.0)
    known = kv = sequences = None
    if size > 0:
        known = int(size)
    if known:
        kv = need.sequence_kv_gib(known)
        if length:
            sequences = int(known // length)
    used = weights + (kv or 0.0) + need.working_gib
    fits = used <= total
    basis = f"{_format_weights_basis(weights, need.gpus_per_replica)}; {need.working_basis}{_format_kv_basis(need)}"
    text = f"est. does not fit: {used:.1f} of {total:.1f} GiB per GPU"
    if fits:
        shown = known if kv is not None else None
        text = _format_memory_fit(used, total, shown, sequences, int(length))
    return MemoryFit(used, total, weights, known, sequences, fits, text, basis)


def _format_weights_basis(weights_gib: float, gpu_count: int) -> str:
    basis = f"weights {weights_gib:.1f} GiB per GPU"
    if gpu_count > 1:
        basis += f" (split over {gpu_count})"
    return basis


def _format_kv_basis(need: _MemoryNeed) -> str:
    length = max(1, need.longest_sequence_tokens())  # a plan may ask for half a token
    sequence = need.sequence_kv_gib(length)
    if sequence is None:
        text = "; KV cache size per token is unknown"
        if why := need.why_sequence_memory_is_unknown():
            text += f": {why}"
        return text
    kib = sequence * 2**20 / length
    return (
        f"; KV {kib:.1f} KiB per token and GPU, {16 * _kv_fraction_of_16_bits(need.context):g} bits"
    )


def _format_memory_fit(
    used_gib: float, total_gib: float, tokens: int | None, sequences: int | None, length: int
) -> str:
    memory = f"{used_gib:.1f}/{total_gib:.1f} GiB per GPU"
    if tokens is None:
        return f"est. {memory}, weights fit"
    if sequences is None:
        return f"est. {memory}, KV cache {tokens:,} tokens"
    if sequences == 0:
        return f"est. {memory}, KV cache {tokens:,} tokens: not one sequence of {length:,}"
    return (
        f"est. {memory}, KV fits {count_of(sequences, 'full-length sequence')} ({tokens:,} tokens)"
    )
