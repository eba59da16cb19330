"""Whether a model fits: an estimate from the preset's figures, before anything is started.

It knows weights and KV cache; activations, CUDA graphs and the CUDA context are one assumed constant. LoRA adapters,
draft models, vision encoders and uneven splits are not counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.engines import registry
from workbench.engines.plan_context import Situation
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan

GIB = 2**30
# CUDA context, activations and graphs of one GPU. An assumption: real values run from 0.5 GiB (eager, small batch)
# to several GiB (large max-num-batched-tokens).
RESERVE_GIB = 1.5
# SGLang chooses --mem-fraction-static from the GPU and the other flags when it is not given.
SGLANG_SHARE = 0.88

# Bits of one KV cache element, against the 16 that `kv_bytes_per_token` counts. llama.cpp's block formats carry scales.
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
    """An estimate for one GPU of the server. GiB are 2**30 bytes."""

    used_gib_per_gpu: float  # what the engine will take; more than available when it does not fit
    available_gib_per_gpu: float  # memory of the smallest GPU
    weights_gib_per_gpu: float
    kv_tokens: int | None  # tokens that the KV cache of all replicas holds; None: KV size per token is not known
    full_length_sequences: int | None  # of the longest length allowed; None: that length is the model's own
    fits: bool
    text: str  # one line for the status area, marked as an estimate
    basis: str  # what it was computed from


def fit(plan: LaunchPlan, gpus: Sequence[GpuInfo]) -> MemoryFit | str:
    """The estimate, or the reason why there is none."""
    engine = registry.get(plan.engine)
    here = Situation(plan, engine.catalog(plan.engine_version), engine, tuple(gpus))
    facts = plan.model_facts
    if facts is None or facts.weight_bytes is None:
        return (facts and facts.missing) or "the size of the weights is not known"
    totals = [g.memory_total_bytes for g in gpus if g.memory_total_bytes]
    if not totals:
        return "the memory of the GPUs is not known"
    if reason := _cannot_estimate(here):
        return reason
    split = _gpus_per_replica(here)
    total = min(totals) / GIB
    weights = max(0.0, facts.weight_bytes / split / GIB - (here.number("cpu-offload-gb") or 0.0))
    per_token = facts.kv_bytes_per_token * _kv_factor(here) / split / GIB if facts.kv_bytes_per_token else None
    if engine.name in ("vllm", "sglang"):
        return _filled(here, total, weights, per_token, split)
    return _asked_for(here, total, weights, per_token, split)


def _cannot_estimate(here: Situation) -> str | None:
    if here.engine.name != "llamacpp":
        return None
    if here.on("cpu-moe") or here.number("n-cpu-moe"):
        return "experts stay in host memory"
    layers, wanted = here.number("n-gpu-layers"), here.plan.model_facts
    if layers is not None and layers >= 0 and not (wanted and wanted.layers and layers >= wanted.layers):
        return "some layers may stay in host memory (n-gpu-layers)"
    return None


def _gpus_per_replica(here: Situation) -> int:
    if here.engine.name in ("vllm", "sglang"):
        return here.count("tensor-parallel-size") * here.count("pipeline-parallel-size")
    if here.value("split-mode") == "none":
        return 1
    return max(1, here.gpus_visible)


def _kv_factor(here: Situation) -> float:
    if here.engine.name == "llamacpp":
        kinds = [str(here.value("cache-type-k")), str(here.value("cache-type-v"))]
    elif here.engine.name == "tabbyapi":
        mode = str(here.value("cache-mode"))
        if re.fullmatch(r"[2-8]\s*,\s*[2-8]", mode):
            return sum(float(bits) for bits in mode.split(",")) / 32
        kinds = [mode]
    else:
        kinds = [str(here.value("kv-cache-dtype"))]
    return sum(_KV_BITS.get(kind, 16.0) for kind in kinds) / len(kinds) / 16


def _filled(here: Situation, total: float, weights: float, per_token: float | None, split: int) -> MemoryFit:
    """vLLM and SGLang take a share of the memory and fill with KV cache what the weights leave."""
    if here.engine.name == "vllm":
        share, reserve = here.number("gpu-memory-utilization"), RESERVE_GIB
    else:
        share, reserve = here.number("mem-fraction-static") or SGLANG_SHARE, 0.0  # activations lie outside its share
    share = share if share is not None else 0.9
    budget = total * share
    room = budget - weights - reserve
    if fixed := here.number("kv-cache-memory-bytes"):
        room = min(fixed / GIB, total - weights - reserve)
        budget = weights + reserve + room
    basis = f"{_weights_basis(weights, split)}; {share:.0%} of {total:.1f} GiB"
    basis += f"; {reserve} GiB assumed for activations and graphs" if reserve else "; activations outside that share"
    if here.engine.name == "sglang" and here.plan.flag("mem-fraction-static") is None:
        basis += f"; {SGLANG_SHARE} assumed, SGLang chooses it at start"
    if room <= 0:
        used = weights + reserve
        text = f"est. does not fit: weights {weights:.1f} GiB per GPU, {share:.0%} of {total:.1f} GiB allowed"
        return MemoryFit(used, total, weights, 0, 0, False, text, basis)
    replicas = here.count("data-parallel-size")
    tokens = int(room / per_token) * replicas if per_token else None
    length = here.number("max-model-len" if here.engine.name == "vllm" else "context-length")
    sequences, fits = None, True
    if tokens is not None and length and length > 0:
        each = int(tokens / replicas // length)
        sequences, fits = each * replicas, each > 0 or here.engine.name == "sglang"
    text = _kv_text(budget, total, tokens, sequences, int(length or 0))
    return MemoryFit(budget, total, weights, tokens, sequences, fits, text, basis + _kv_basis(here, per_token))


def _asked_for(here: Situation, total: float, weights: float, per_token: float | None, split: int) -> MemoryFit:
    """TabbyAPI and llama.cpp take a KV cache of the size asked for."""
    if here.engine.name == "tabbyapi":
        length = here.number("max-seq-len")
        asked = here.number("cache-size") or length
    else:
        length, asked = None, here.number("ctx-size") or None  # the context is divided among the slots
    known = asked if asked and asked > 0 else None
    kv = known * per_token if known and per_token else 0.0
    used = weights + kv + RESERVE_GIB
    sequences = int(known // length) if known and length and length > 0 else None
    tokens = int(known) if known else None
    fits = used <= total
    basis = f"{_weights_basis(weights, split)}; {RESERVE_GIB} GiB assumed for activations{_kv_basis(here, per_token)}"
    if fits:
        text = _kv_text(used, total, tokens if per_token else None, sequences, int(length or 0))
    else:
        text = f"est. does not fit: {used:.1f} of {total:.1f} GiB per GPU"
    return MemoryFit(used, total, weights, tokens, sequences, fits, text, basis)


def _weights_basis(weights: float, split: int) -> str:
    return f"weights {weights:.1f} GiB per GPU" + (f" (split over {split})" if split > 1 else "")


def _kv_basis(here: Situation, per_token: float | None) -> str:
    if per_token is None:
        return "; KV cache size per token is not known"
    return f"; KV {per_token * 2**20:.1f} KiB per token and GPU, {16 * _kv_factor(here):g} bits"


def _kv_text(used: float, total: float, tokens: int | None, sequences: int | None, length: int) -> str:
    memory = f"{used:.1f}/{total:.1f} GiB per GPU"
    if tokens is None:
        return f"est. {memory}, weights fit"
    if sequences is None:
        return f"est. {memory}, KV cache {tokens:,} tokens"
    if sequences == 0:
        return f"est. {memory}, KV cache {tokens:,} tokens: not one sequence of {length:,}"
    return f"est. {memory}, KV fits {sequences:,} full-length sequences ({tokens:,} tokens)"
