"""An estimate of the GPU memory that a plan needs, made before anything is started.

The estimate is the sum of weights, KV cache, and one assumed constant for activations, CUDA graphs and the CUDA
context. LoRA adapters, draft models, vision encoders and uneven splits are not included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.engines import registry
from workbench.engines.plan_context import Situation
from workbench.model.counts import count_of
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan

GIB = 2**30

# Bits of one KV cache element; `kv_bytes_per_token` assumes 16. The block formats of llama.cpp include scales.
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

    used_gib_per_gpu: float  # memory that the engine will allocate; above the available memory if it does not fit
    available_gib_per_gpu: float  # memory of the smallest GPU
    weights_gib_per_gpu: float
    kv_tokens: int | None  # capacity of the KV cache of all replicas; None: the KV size per token is unknown
    full_length_sequences: int | None  # that fit in the cache; None: the length is the model's own
    fits: bool
    text: str  # one line for the status area, marked as an estimate
    basis: str  # the values that the estimate is computed from


def fit(plan: LaunchPlan, gpus: Sequence[GpuInfo]) -> MemoryFit | str:
    """Return the memory estimate for `plan` on `gpus`. If no estimate is possible, return the reason as text."""
    engine = registry.get(plan.engine)
    here = Situation(plan, engine.catalog(plan.engine_version), engine, tuple(gpus))
    facts = plan.model_facts
    if facts is None or facts.weight_bytes is None:
        return (facts and facts.missing) or "the size of the weights is unknown"
    totals = [g.memory_total_bytes for g in gpus if g.memory_total_bytes]
    if not totals:
        return "the memory of the GPUs is unknown"
    if reason := engine.no_memory_estimate(here):
        return reason
    split = _gpus_per_replica(here)
    total = min(totals) / GIB
    weights = max(0.0, facts.weight_bytes / split / GIB - (here.number("cpu-offload-gb") or 0.0))
    per_token = facts.kv_bytes_per_token * _kv_factor(here) / split / GIB if facts.kv_bytes_per_token else None
    estimate = _fill_share if engine.memory.share_flag else _allocate_cache
    return estimate(here, total, weights, per_token, split)


def _gpus_per_replica(here: Situation) -> int:
    if not here.engine.uses_all_gpus:
        return here.count("tensor-parallel-size") * here.count("pipeline-parallel-size")
    if here.value("split-mode") == "none":
        return 1
    return max(1, here.gpus_visible)


def _kv_factor(here: Situation) -> float:
    kinds = [str(here.value(flag)) for flag in here.engine.memory.cache_type_flags]
    if re.fullmatch(r"[2-8]\s*,\s*[2-8]", kinds[0]):  # bits of keys and values
        return sum(float(bits) for bits in kinds[0].split(",")) / 32
    return sum(_KV_BITS.get(kind, 16.0) for kind in kinds) / len(kinds) / 16


def _fill_share(here: Situation, total: float, weights: float, per_token: float | None, split: int) -> MemoryFit:
    """Return the estimate for an engine that takes a share of the memory (`total` GiB per GPU) and fills what the
    weights leave with KV cache.
    """
    use = here.engine.memory
    given = here.number(use.share_flag or "")
    share, reserve = use.default_share if given is None else given, use.reserve_gib
    budget = total * share
    room = budget - weights - reserve
    if fixed := here.number("kv-cache-memory-bytes"):
        room = min(fixed / GIB, total - weights - reserve)
        budget = weights + reserve + room
    basis = f"{_weights_basis(weights, split)}; {share:.0%} of {total:.1f} GiB"
    basis += f"; {reserve} GiB assumed for activations and graphs" if reserve else "; activations outside that share"
    if given is None and use.chooses_share:
        basis += f"; {share} assumed, {here.engine.title} chooses it at start"
    if room <= 0:
        used = weights + reserve
        text = f"est. does not fit: weights {weights:.1f} GiB per GPU, {share:.0%} of {total:.1f} GiB allowed"
        return MemoryFit(used, total, weights, 0, 0, False, text, basis)
    replicas = here.count("data-parallel-size")
    tokens = int(room / per_token) * replicas if per_token else None
    length = here.number(use.length_flag or "")
    sequences, fits = None, True
    if tokens is not None and length and length > 0:
        each = int(tokens / replicas // length)
        sequences, fits = each * replicas, each > 0 or use.starts_with_short_cache
    text = _kv_text(budget, total, tokens, sequences, int(length or 0))
    return MemoryFit(budget, total, weights, tokens, sequences, fits, text, basis + _kv_basis(here, per_token))


def _allocate_cache(here: Situation, total: float, weights: float, per_token: float | None, split: int) -> MemoryFit:
    """Return the estimate for an engine that allocates a KV cache of the size that a flag sets. `total` is the memory
    per GPU in GiB.
    """
    use = here.engine.memory
    length = here.number(use.length_flag) if use.length_flag else None  # else the slots divide the cache
    size = next((n for flag in use.cache_size_flags if (n := here.number(flag))), None)
    known = size if size and size > 0 else None
    kv = known * per_token if known and per_token else 0.0
    used = weights + kv + use.reserve_gib
    sequences = int(known // length) if known and length and length > 0 else None
    tokens = int(known) if known else None
    fits = used <= total
    basis = f"{_weights_basis(weights, split)}; {use.reserve_gib} GiB assumed for activations"
    basis += _kv_basis(here, per_token)
    if fits:
        text = _kv_text(used, total, tokens if per_token else None, sequences, int(length or 0))
    else:
        text = f"est. does not fit: {used:.1f} of {total:.1f} GiB per GPU"
    return MemoryFit(used, total, weights, tokens, sequences, fits, text, basis)


def _weights_basis(weights: float, split: int) -> str:
    return f"weights {weights:.1f} GiB per GPU" + (f" (split over {split})" if split > 1 else "")


def _kv_basis(here: Situation, per_token: float | None) -> str:
    if per_token is None:
        return "; KV cache size per token is unknown"
    return f"; KV {per_token * 2**20:.1f} KiB per token and GPU, {16 * _kv_factor(here):g} bits"


def _kv_text(used: float, total: float, tokens: int | None, sequences: int | None, length: int) -> str:
    memory = f"{used:.1f}/{total:.1f} GiB per GPU"
    if tokens is None:
        return f"est. {memory}, weights fit"
    if sequences is None:
        return f"est. {memory}, KV cache {tokens:,} tokens"
    if sequences == 0:
        return f"est. {memory}, KV cache {tokens:,} tokens: not one sequence of {length:,}"
    return f"est. {memory}, KV fits {count_of(sequences, 'full-length sequence')} ({tokens:,} tokens)"
