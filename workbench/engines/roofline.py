"""The speed limits that hardware sets on a model: decoding of one stream and of many, and prefill.

Each step of decoding reads all active weights from memory once, and the KV cache of each stream:

    step >= (weights + streams x KV of the context) / bandwidth, and >= streams x 2 x active weights
    / FLOP/s

Tensor parallelism adds the bandwidths of the GPUs, and costs two all-reduces per layer. Pipeline
stages and data-parallel replicas do not make one stream faster: a token passes the stages one after
another, and each replica serves other streams. The more streams, the more of the routed experts a
step reads. Speculative decoding yields several tokens per step. Prefill computes all tokens of the
prompt at once, so that computing limits it.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engines.gpu_table import GpuType, compute_memory_bandwidth_gbs, find_gpu_type
from workbench.engines.kv_size import kv_bytes_read_per_token
from workbench.engines.model_facts import estimate_weight_parts
from workbench.engines.weight_bits import normalize_quantization
from workbench.model.counts import count_of
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import ModelFacts

_FULL_CLOCK = 0.99  # a mean over a run lies a little below the clock
# Fastest tensor format of each quantization; other weights are converted to 16 bit first.
_FORMATS = {"FP8": "fp8", "NVFP4": "fp4", "MXFP4": "fp4"}
# Time of one small all-reduce in microseconds, by the type of GPU, "" for PCIe.
_ALL_REDUCE_US = {
    "gb10": (
        41.0,
        "NCCL, 8 KiB between two DGX Sparks over RoCE: https://github.com/MiaAI-Lab issue 22",
    ),
    "": (10.0, "estimate: the lowest of 10-20 us over PCIe inside a CUDA graph"),
}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The nominal memory bandwidth of one GPU in GB/s."""

    nominal_gbs: float
    basis: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeedLimits:
    """The highest possible speeds in tokens per second. If `tok_s_per_stream` is unknown, it is
    None and `reason` gives the reason.

    `label` names the source of the bandwidth. `bandwidth_gbs` is the sum over the GPUs that serve
    one stream. `gb_per_token` includes the KV cache of the context.
    """

    tok_s_per_stream: float | None  # of a stream that runs alone
    label: str = ""
    bandwidth_gbs: float | None = None
    gb_per_token: float | None = None
    basis: str = ""
    sources: tuple[str, ...] = ()
    reason: str | None = None
    total_tok_s: float | None = None  # of all streams together
    total_bound: str = "memory"  # what limits that: "memory" or "compute"
    # of all replicas; None: FLOP/s or the number of weights are unknown
    prefill_tok_s: float | None = None
    all_reduce_ms: float = 0.0  # per step, between the GPUs of a tensor-parallel group
    all_reduce_basis: str = ""

    @property
    def with_all_reduces_tok_s(self) -> float | None:
        """The speed limit of one stream in tok/s if the time for exchanging data between GPUs
        (all-reduces) is added to each decoding step. None if the speed limit is unknown."""
        limit = self.tok_s_per_stream
        return limit and 1 / (1 / limit + self.all_reduce_ms / 1000)


@dataclass(frozen=True, slots=True)
class Load:
    """The load on a server: the number of simultaneous streams, their mean context in tokens, the
    bits of a value in the KV cache, and the tokens that a step produces per stream (more than 1
    with speculative decoding)."""

    streams: int = 1
    context_tokens: float = 0.0
    kv_bits: float = 16.0
    tokens_per_step: float = 1.0


ONE_STREAM = Load()


def find_memory_bandwidth_or_reason(gpu: GpuInfo | str) -> Bandwidth | str:
    """Return the nominal memory bandwidth of a GPU, given its NVML data or its name. If it is
    unknown, return the reason as text.

    The bandwidth is computed from NVML's maximum memory clock and bus width. If NVML does not
    report them, the table of GPU types has the bandwidth.
    """
    name, known = _name_of_gpu(gpu), _type_of_gpu(gpu)
    sources = known.sources if known else ()
    if isinstance(gpu, GpuInfo) and gpu.memory_max_mhz and gpu.memory_bus_bits:
        nominal = compute_memory_bandwidth_gbs(gpu.memory_max_mhz, gpu.memory_bus_bits)
        basis = f"NVML: 2 x {gpu.memory_max_mhz} MHz x {gpu.memory_bus_bits} bit"
        return Bandwidth(nominal, basis, sources)
    if known is None:
        return (
            f"memory bandwidth of {name or 'this GPU'} is unknown: NVML does not report it, "
            "no table lists it"
        )
    unified = ""
    if known.unified_memory:
        unified = ", memory shared with the CPU"
    basis = f"table: {name}, {known.bandwidth_gbs:g} GB/s nominal{unified}"
    return Bandwidth(known.bandwidth_gbs, basis, sources)


def _name_of_gpu(gpu: GpuInfo | str) -> str:
    return gpu if isinstance(gpu, str) else gpu.name


def _type_of_gpu(gpu: GpuInfo | str) -> GpuType | None:
    return find_gpu_type(_name_of_gpu(gpu))


def compute_speed_limits(
    model: ModelFacts | None,
    gpus: Sequence[GpuInfo | str],
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    load: Load = ONE_STREAM,
    memory_mhz: float | None = None,
) -> SpeedLimits:
    """Return the speed limits of `model` on `gpus`, which are the NVML data or the names of the
    GPUs of all nodes, in rank order. `tp`, `pp` and `dp` are the tensor-parallel, pipeline-parallel
    and data-parallel sizes.

    The limits assume the nominal memory bandwidth. If the memory clock under load, `memory_mhz`,
    was lower, they assume the bandwidth at that clock.

    If the GPUs differ, a tensor-parallel group is as fast as if all its GPUs were like the slowest
    one. The limit of one stream is that of the fastest replica.
    """
    model = model or ModelFacts("")
    if not model.bytes_per_token:
        why = model.missing or "bytes read per token are unknown for this model"
        return SpeedLimits(None, reason=why)
    if min(tp, pp, dp) < 1:
        return SpeedLimits(None, reason="parallel sizes must be at least 1")
    if len(gpus) < tp * pp * dp:
        why = f"the plan uses {count_of(tp * pp * dp, 'GPU')}, but only {len(gpus)} are known"
        return SpeedLimits(None, reason=why)
    known: list[Bandwidth] = []
    gbs: list[float] = []
    for gpu in gpus[: tp * pp * dp]:
        one = find_memory_bandwidth_or_reason(gpu)
        if isinstance(one, str):
            return SpeedLimits(None, reason=one)
        known.append(one)
        gbs.append(one.nominal_gbs)
    kv = _compute_kv_bytes_per_step(model, load, tp)
    gb = (model.bytes_per_token + kv) / 1e9
    nominal = [
        _compute_replica_bandwidth_gbs(gbs[i : i + tp * pp], tp, pp)
        for i in range(0, len(gbs), tp * pp)
    ]
    fastest = f"nominal bandwidth, {max(nominal):,.0f} GB/s"
    share, label = _memory_clock_share_and_text(gpus[: len(known)], memory_mhz) or (1.0, fastest)
    computed = _compute_prefill_limit_tok_s(model, gpus[: len(known)])
    total = _compute_total_limit_tok_s(model, load, [n * share * 1e9 for n in nominal], pp, kv)
    bound = "memory"
    if computed is not None and computed < total:
        total, bound = computed, "compute"
    reduce_ms, reduce_basis = _all_reduce_ms_and_basis(model, gpus[0], tp)
    return SpeedLimits(
        tok_s_per_stream=max(nominal) * share / gb * load.tokens_per_step,
        label=label + _speculation_text(load),
        bandwidth_gbs=max(nominal) * share,
        gb_per_token=gb,
        basis=_bandwidth_basis_text(known, tp, pp, dp, gb),
        sources=tuple(dict.fromkeys(s for b in known for s in b.sources)),
        total_tok_s=total,
        total_bound=bound,
        prefill_tok_s=computed,
        all_reduce_ms=reduce_ms,
        all_reduce_basis=reduce_basis,
    )


def _compute_kv_bytes_per_step(model: ModelFacts, load: Load, tp: int) -> float:
    """Return the bytes of KV cache that a decoding step reads for one stream, summed over the GPUs
    of a replica. A KV head with copies on several GPUs counts once for each copy."""
    kv = model.known_shape.kv
    if not kv:
        return load.context_tokens * (model.kv_bytes_per_token or 0) * load.kv_bits / 16
    total = 0.0
    for layers in kv:
        copies = max(1, tp / layers.heads)
        total += kv_bytes_read_per_token((layers,), load.context_tokens, load.kv_bits) * copies
    return total


def _compute_total_limit_tok_s(
    model: ModelFacts, load: Load, bytes_per_s: Sequence[float], pp: int, kv_bytes: float
) -> float:
    """Return the limit that memory sets on all streams together, in tok/s. `bytes_per_s` has the
    bandwidth of each replica, and `kv_bytes` is the bytes of KV cache that a step reads per stream.
    In a pipeline, each stage works on its share of the streams at the same time."""
    busy = min(len(bytes_per_s), load.streams)
    streams = -(-load.streams // len(bytes_per_s))  # of the fullest replica
    batch = -(-streams // pp)
    weights = model.bytes_per_token or 0.0
    parts = estimate_weight_parts(model)
    if parts and parts.experts and batch > 1:
        expert = (
            parts.experts * parts.expert_share * weights / parts.active_weight_count
        )  # of one token
        weights += expert * ((1 - (1 - parts.expert_share) ** batch) / parts.expert_share - 1)
    steps = [
        speed / (weights + batch * kv_bytes) for speed in sorted(bytes_per_s, reverse=True)[:busy]
    ]
    return sum(steps) / busy * load.streams * load.tokens_per_step


def _compute_prefill_limit_tok_s(model: ModelFacts, gpus: Sequence[GpuInfo | str]) -> float | None:
    """Return the limit in tok/s that the dense tensor throughput of all GPUs sets, in the fastest
    format that the model's weights allow. None if it is unknown."""
    parts, flops = estimate_weight_parts(model), 0.0
    if parts is None:
        return None
    kind = _FORMATS.get(normalize_quantization(model.quantization) or "", "bf16")
    for known in map(_type_of_gpu, gpus):
        if known is None:
            return None
        tflops = known.tflops.get(kind) or known.tflops.get("bf16")
        if not tflops:
            return None
        flops += tflops * 1e12
    return flops / (2 * parts.active_weight_count)


def _all_reduce_ms_and_basis(model: ModelFacts, gpu: GpuInfo | str, tp: int) -> tuple[float, str]:
    """Return (milliseconds per decoding step in which GPUs exchange data by all-reduces, text that
    says how this was computed). A step has two all-reduces per layer and one for the embedding. The
    result is (0, "") for one GPU, for GPUs with NVLink, and if the GPU type or the number of layers
    is unknown."""
    known = _type_of_gpu(gpu)
    if tp < 2 or not model.layers or known is None or known.nvlink:
        return 0.0, ""
    each, source = _ALL_REDUCE_US.get(known.id, _ALL_REDUCE_US[""])
    count = 2 * model.layers + 1
    return count * each / 1000, f"{count} all-reduces of {each:g} us ({source})"


def _speculation_text(load: Load) -> str:
    if load.tokens_per_step > 1:
        return f", x {load.tokens_per_step:.2f} tokens per step with speculation"
    return ""


def _memory_clock_share_and_text(
    gpus: Sequence[GpuInfo | str], memory_mhz: float | None
) -> tuple[float, str] | None:
    """Return (memory clock under load divided by the maximum clock, text about both clocks). None
    if the memory clock was at its maximum, if a clock is unknown, or if the GPUs have different
    maxima."""
    maxima = {gpu.memory_max_mhz for gpu in gpus if isinstance(gpu, GpuInfo)}
    if len(maxima) != 1 or not memory_mhz:
        return None
    highest = maxima.pop()
    if not highest or memory_mhz >= _FULL_CLOCK * highest:
        return None
    return memory_mhz / highest, (
        f"at the memory clock under load, {memory_mhz:,.0f} of {highest:,} MHz"
    )


def _compute_replica_bandwidth_gbs(gbs: Sequence[float], tp: int, pp: int) -> float:
    """Return the memory bandwidth in GB/s that one stream of a replica gets. `gbs` has the
    bandwidth of each GPU of the replica."""
    stages = [tp * min(gbs[i : i + tp]) for i in range(0, tp * pp, tp)]
    return pp / sum(1 / s for s in stages)


def _bandwidth_basis_text(known: Sequence[Bandwidth], tp: int, pp: int, dp: int, gb: float) -> str:
    parts = ["; ".join(dict.fromkeys(b.basis for b in known))]
    if tp > 1:
        parts.append(f"x {tp} tensor parallel")
    if pp > 1:
        parts.append("pipeline stages do not speed up one stream")
    if dp > 1:
        parts.append("replicas do not speed up one stream")
    return f"{', '.join(parts)}; {gb:.2f} GB per token"
