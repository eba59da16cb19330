"""The table of the quantizations, numbers of GPUs and context lengths of a model that fit in the
free memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from workbench.engines import registry
from workbench.engines.memory_estimate import GIB, MemoryFit, estimate_memory_or_reason
from workbench.engines.model_facts import estimate_weight_parts
from workbench.engines.plan_context import PlanContext
from workbench.engines.roofline import compute_speed_limits
from workbench.engines.weight_bits import (
    BITS,
    GGUF_BITS,
    normalize_quantization,
    weight_bytes_in_memory,
    weight_bytes_read_per_token,
)
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import PARALLEL_SIZES, LaunchPlan, ModelFacts

# AWQ and GPTQ have checkpoints of one size.
_CHECKPOINT_BITS = {
    name.replace("AWQ", "AWQ, GPTQ"): bits for name, bits in BITS.items() if name != "GPTQ"
}

CONTEXTS = (4096, 32_768, 131_072)  # tokens, if the user names no others
_PARALLEL = (*PARALLEL_SIZES, "nnodes", "kv-cache-memory-bytes")
_SHARE_STEP = 0.01


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs of a host with equal name and memory size, and the free memory of each GPU now, in
    bytes."""

    gpus: tuple[GpuInfo, ...]
    free_bytes: tuple[float, ...]

    @property
    def total_gib(self) -> float:
        return (self.gpus[0].memory_total_bytes or 0) / GIB


@dataclass(frozen=True, slots=True)
class FitRow:
    """One way to run a model: one quantization of its weights, on all GPUs with the indexes `gpus`
    together. `sequences` maps a context length in tokens to the number of sequences of that length
    that fit in the KV cache. The number is None if it is unknown."""

    weights: str  # "BF16", "AWQ, GPTQ"
    in_files: bool  # the checkpoint on the host has these weights; others are to be had elsewhere
    gpus: tuple[int, ...]
    weights_gib: float  # per GPU
    fits: bool
    kv_tokens: int | None
    sequences: Mapping[int, int | None]
    limit_tok_s: float | None  # of one stream, by the memory bandwidth
    # the same with the measured time of the all-reduces between these GPUs
    with_all_reduces_tok_s: float | None
    prefill_tok_s: float | None  # by computing
    basis: str


def group_equal_gpus(gpus: Sequence[GpuInfo], used_bytes: Mapping[int, int]) -> list[GpuGroup]:
    """Return the GPUs of a host in groups of equal name and memory. Each group lists the GPUs with
    the most free memory first. `used_bytes` has the memory in use now by GPU index. A GPU whose
    memory size is unknown is left out."""
    found: defaultdict[tuple[str, int], list[tuple[float, GpuInfo]]] = defaultdict(list)
    for gpu in gpus:
        if total := gpu.memory_total_bytes:
            free_bytes = total - used_bytes.get(gpu.index, 0)
            found[gpu.name, total].append((free_bytes, gpu))
    groups = []
    for pairs in found.values():
        pairs.sort(key=lambda pair: (-pair[0], pair[1].index))
        free, members = zip(*pairs, strict=True)
        groups.append(GpuGroup(members, free))
    return groups


def make_fit_rows(plan: LaunchPlan, group: GpuGroup, contexts: Sequence[int]) -> Iterator[FitRow]:
    """Yield two rows for each quantization of the plan's model: one for the smallest number of GPUs
    of `group` on which the model fits, and one for all of them. If the model fits on no number of
    GPUs, yield only the row for all of them. `contexts` are the context lengths in tokens that each
    row has."""
    facts = plan.model_facts
    if facts is None or not facts.weight_bytes:
        return
    sizes = [n for n in (1, 2, 4, 8, 16) if n <= len(group.gpus)]
    for name, sized in _estimate_quantized_sizes(plan, facts):
        one = _SizedWeights(name, sized, sized is facts)
        known: list[FitRow] = []
        fitting: list[FitRow] = []
        for gpu_count in sizes:
            row = _make_fit_row_or_none(plan, one, group, gpu_count, contexts)
            if row is None:
                continue
            known.append(row)
            if row.fits:
                fitting.append(row)
        yield from [*fitting[:1], *fitting[1:][-1:]] or known[-1:]


class _SizedWeights(NamedTuple):
    """Weights in one quantization, the sizes of the model with them, and whether the model's files
    on the host have this quantization."""

    quantization: str
    facts: ModelFacts
    in_files: bool


def _estimate_quantized_sizes(
    plan: LaunchPlan, facts: ModelFacts
) -> Iterator[tuple[str, ModelFacts]]:
    """Yield (quantization name, model sizes) for the plan's own weights, then for each other
    quantization that the plan's engine can load."""
    own = normalize_quantization(facts.quantization)
    yield own or facts.quantization or "as they are", facts
    parts = estimate_weight_parts(facts)
    if parts is None:
        return
    files, bits = registry.get_engine(plan.engine).loads_gguf, _CHECKPOINT_BITS
    if files:
        bits = dict(GGUF_BITS)
    for name, each in bits.items():
        if own not in name.split(", "):
            head = each if files else 16.0
            sized = replace(
                facts,
                quantization=name.partition(",")[0],
                weight_bytes=weight_bytes_in_memory(parts, each, head_bits=head),
                bytes_per_token=weight_bytes_read_per_token(parts, each, head_bits=head),
                shape=facts.shape and replace(facts.shape, parts=parts),
            )
            yield name, sized


def _make_fit_row_or_none(
    plan: LaunchPlan,
    weights: _SizedWeights,
    group: GpuGroup,
    gpu_count: int,
    contexts: Sequence[int],
) -> FitRow | None:
    """Return the row for the first `gpu_count` GPUs of `group`. `weights` are those that the GPUs
    would hold. None if the memory of the plan cannot be estimated."""
    facts = weights.facts
    gpus, free = group.gpus[:gpu_count], min(group.free_bytes[:gpu_count])
    found: dict[int, MemoryFit] = {}
    for length in contexts:
        estimate = estimate_memory_or_reason(
            _adapt_plan_to_gpus(plan, facts, gpus, free, length), gpus, free
        )
        if isinstance(estimate, str):
            return None
        found[length] = estimate
    shortest = found[min(found)]
    tp, pp = gpu_count, 1
    if registry.get_engine(plan.engine).uses_all_gpus:
        tp, pp = 1, gpu_count
    limit = compute_speed_limits(facts, gpus, tp=tp, pp=pp)
    return FitRow(
        weights=weights.quantization,
        in_files=weights.in_files,
        gpus=tuple(sorted(gpu.index for gpu in gpus)),
        weights_gib=shortest.weights_gib_per_gpu,
        fits=shortest.fits,
        kv_tokens=shortest.kv_tokens if shortest.fits else 0,
        sequences={length: _count_sequences_that_fit(one, length) for length, one in found.items()},
        limit_tok_s=limit.tok_s_per_stream,
        with_all_reduces_tok_s=limit.with_all_reduces_tok_s,
        prefill_tok_s=limit.prefill_tok_s,
        basis=shortest.basis,
    )


def _adapt_plan_to_gpus(
    plan: LaunchPlan,
    facts: ModelFacts,
    gpus: Sequence[GpuInfo],
    free_bytes: float,
    length_tokens: int,
) -> LaunchPlan:
    """Return the plan changed so that it runs once, on all of `gpus` together, with sequences of at
    most `length_tokens` tokens. `free_bytes` is the free memory of each GPU in bytes. If the plan's
    share of GPU memory exceeds it, the share is lowered."""
    engine, total = registry.get_engine(plan.engine), gpus[0].memory_total_bytes or 1
    made = replace(plan, model_facts=facts, nodes=())
    for name in _PARALLEL:
        made = made.without_flag(name)
    made = made.without_env("CUDA_VISIBLE_DEVICES")
    if not engine.uses_all_gpus:
        made = made.with_flag("tensor-parallel-size", len(gpus))
    use = engine.memory
    for flag in (use.length_flag, *use.cache_size_flags[:1]):
        if flag:
            made = made.with_flag(flag, length_tokens)
    if use.share_flag:
        context = PlanContext(plan, engine.catalog(plan.engine_version), engine)
        share = context.positive_flag_number(use.share_flag, use.default_share)
        possible = free_bytes / total // _SHARE_STEP * _SHARE_STEP
        made = made.with_flag(use.share_flag, max(_SHARE_STEP, min(share, possible)))
    return made


def _count_sequences_that_fit(fit: MemoryFit, length_tokens: int) -> int | None:
    if not fit.fits:
        return 0
    if fit.kv_tokens is None:
        return None
    return fit.kv_tokens // length_tokens
