"""The speed limit that memory bandwidth sets on decoding: each token of a stream reads all active weights from memory
once.

tok/s per stream <= bandwidth / bytes per token. Tensor parallelism adds the bandwidths of the GPUs. Pipeline stages and
data-parallel replicas do not make one stream faster: a token passes the stages one after another, and each replica
serves other streams. The limit per stream does not depend on the number of streams, because they share each read of the
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.engines.gpu_table import find, memory_bandwidth_gbs
from workbench.model.counts import count_of, four_digits
from workbench.model.gpu import GpuInfo
from workbench.model.plan import ModelFacts

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult

_FULL_CLOCK = 0.99  # a mean over a run lies a little below the clock


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The nominal memory bandwidth of one GPU in GB/s."""

    nominal_gbs: float
    basis: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The highest possible speed of one stream, `tok_s_per_stream`. It is None if it is unknown; `reason` then says
    why.

    `label` names the source of the bandwidth. `bandwidth_gbs` is the sum over the GPUs that read for one stream.
    `gb_per_token` includes the KV cache of the context.
    """

    tok_s_per_stream: float | None
    label: str = ""
    bandwidth_gbs: float | None = None
    gb_per_token: float | None = None
    basis: str = ""
    sources: tuple[str, ...] = ()
    reason: str | None = None


def bandwidth(gpu: GpuInfo | str) -> Bandwidth | str:
    """Return the nominal memory bandwidth of a GPU, or the reason why it is unknown as text.

    It is computed from NVML's maximum memory clock and bus width. If NVML does not report them, it is that of the GPU
    type in the table.
    """
    name = gpu if isinstance(gpu, str) else gpu.name
    known = find(name)
    sources = known.sources if known else ()
    if isinstance(gpu, GpuInfo) and gpu.memory_max_mhz and gpu.memory_bus_bits:
        nominal = memory_bandwidth_gbs(gpu.memory_max_mhz, gpu.memory_bus_bits)
        basis = f"NVML: 2 x {gpu.memory_max_mhz} MHz x {gpu.memory_bus_bits} bit"
        return Bandwidth(nominal, basis, sources)
    if known is None:
        return f"memory bandwidth of {name or 'this GPU'} is unknown: NVML does not report it, no table lists it"
    unified = ", memory shared with the CPU" if known.unified_memory else ""
    basis = f"table: {name}, {known.bandwidth_gbs:g} GB/s nominal{unified}"
    return Bandwidth(known.bandwidth_gbs, basis, sources)


def ceiling(
    model: ModelFacts | None,
    gpus: Sequence[GpuInfo | str],
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    context_tokens: int = 0,
    memory_mhz: float | None = None,
) -> Ceiling:
    """Return the speed limit for one stream on `gpus`, which are the NVML data or the names of the GPUs of all nodes,
    in rank order. `tp`, `pp` and `dp` are the tensor-parallel, pipeline-parallel and data-parallel sizes.

    The limit is for the nominal bandwidth, or for the memory clock `memory_mhz` if that was lower under load.

    With unequal GPUs, a tensor-parallel group is as fast as its slowest member times its size, a stream passes the
    pipeline stages one after another, and the fastest replica counts.
    """
    if model is None or not model.bytes_per_token:
        return Ceiling(None, reason=(model and model.missing) or "bytes read per token are unknown for this model")
    if min(tp, pp, dp) < 1:
        return Ceiling(None, reason="parallel sizes must be at least 1")
    if len(gpus) < tp * pp * dp:
        return Ceiling(None, reason=f"the plan uses {count_of(tp * pp * dp, 'GPU')}, but only {len(gpus)} are known")
    known: list[Bandwidth] = []
    for gpu in gpus[: tp * pp * dp]:
        one = bandwidth(gpu)
        if isinstance(one, str):
            return Ceiling(None, reason=one)
        known.append(one)
    gb = (model.bytes_per_token + context_tokens * (model.kv_bytes_per_token or 0)) / 1e9
    nominal = _fastest([b.nominal_gbs for b in known], tp, pp)
    share, label = _share_of_clock(gpus[: len(known)], memory_mhz) or (1.0, f"nominal bandwidth, {nominal:,.0f} GB/s")
    return Ceiling(
        tok_s_per_stream=nominal * share / gb,
        label=label,
        bandwidth_gbs=nominal * share,
        gb_per_token=gb,
        basis=_basis(known, tp, pp, dp, gb),
        sources=tuple(dict.fromkeys(s for b in known for s in b.sources)),
    )


def _share_of_clock(gpus: Sequence[GpuInfo | str], memory_mhz: float | None) -> tuple[float, str] | None:
    """Return (memory clock under load as a share of the maximum clock, label). None if the clock was not below the
    maximum or is unknown.
    """
    maxima = {gpu.memory_max_mhz for gpu in gpus if isinstance(gpu, GpuInfo)}
    highest = maxima.pop() if len(maxima) == 1 else None
    if not highest or not memory_mhz or memory_mhz >= _FULL_CLOCK * highest:
        return None
    return memory_mhz / highest, f"at the memory clock under load, {memory_mhz:,.0f} of {highest:,} MHz"


def _fastest(gbs: Sequence[float], tp: int, pp: int) -> float:
    """Return the bandwidth in GB/s with which one stream is served by the fastest replica. `gbs` are the bandwidths of
    the GPUs in rank order.
    """
    replicas = [gbs[i : i + tp * pp] for i in range(0, len(gbs), tp * pp)]
    return max(_replica(r, tp, pp) for r in replicas)


def _replica(gbs: Sequence[float], tp: int, pp: int) -> float:
    stages = [tp * min(gbs[i : i + tp]) for i in range(0, tp * pp, tp)]
    return pp / sum(1 / s for s in stages)


def _basis(known: Sequence[Bandwidth], tp: int, pp: int, dp: int, gb: float) -> str:
    parts = ["; ".join(dict.fromkeys(b.basis for b in known))]
    if tp > 1:
        parts.append(f"x {tp} tensor parallel")
    if pp > 1:
        parts.append("pipeline stages do not speed up one stream")
    if dp > 1:
        parts.append("replicas do not speed up one stream")
    return f"{', '.join(parts)}; {gb:.2f} GB per token"


def against_limit(result: BenchResult) -> str | None:
    """Return how close a result came to its speed limit, such as "81 % of 27.96 tok/s per stream (…)". None if the
    limit is unknown.

    More than 100 % means speculative decoding or a wrong number of bytes per token, because the memory is never faster
    than its limit.
    """
    limit, measured = result.conditions.ceiling_tok_s, result.summary.per_stream_tok_s
    if not limit:
        return None
    share = f"{100 * measured / limit:.0f} % of " if measured is not None else ""
    streams = result.spec.concurrency
    total = f"; {streams} streams: at most {four_digits(limit * streams)} tok/s" if streams > 1 else ""
    label = result.conditions.ceiling_basis or "its bandwidth was not recorded"
    return f"{share}{four_digits(limit)} tok/s per stream ({label}){total}"
