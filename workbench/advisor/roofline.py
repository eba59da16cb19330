"""The limit that memory bandwidth sets on single-stream decoding: every token reads the weights once.

tok/s per stream <= bandwidth / bytes per token. Tensor parallelism adds bandwidths; pipeline stages and data-parallel
replicas do not help one stream (a token passes the stages one after another; a replica serves other streams). The limit
per stream also holds with many streams: they share each reading of the weights, so only the sum grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.advisor.gpu_table import GpuType, find, memory_bandwidth_gbs
from workbench.model.gpu import GpuInfo
from workbench.model.plan import ModelFacts


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One GPU's memory bandwidth in GB/s: nominal, and what it keeps under compute where that is known."""

    nominal_gbs: float
    under_compute_gbs: float | None
    basis: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ceiling:
    """`tok_s_per_stream` at nominal bandwidth; None with a `reason` where it cannot be told.

    `tok_s_under_compute` is the same at the memory clock that the card really holds, where that is known.
    `bandwidth_gbs` is that of all GPUs that read for one stream. `gb_per_token` includes the KV cache if asked for.
    """

    tok_s_per_stream: float | None
    tok_s_under_compute: float | None = None
    bandwidth_gbs: float | None = None
    gb_per_token: float | None = None
    basis: str = ""
    sources: tuple[str, ...] = ()
    reason: str | None = None

    def aggregate_tok_s(self, streams: int) -> float | None:
        """The limit for `streams` at once, until compute binds first (not modelled: an upper bound)."""
        return None if self.tok_s_per_stream is None else self.tok_s_per_stream * streams


def bandwidth(gpu: GpuInfo | str) -> Bandwidth | str:
    """Of one GPU, from NVML's maximum memory clock and bus width, else from the table by NVML name; or why not."""
    name = gpu if isinstance(gpu, str) else gpu.name
    known = find(name)
    sources = known.sources if known else ()
    if isinstance(gpu, GpuInfo) and gpu.memory_max_mhz and gpu.memory_bus_bits:
        nominal = memory_bandwidth_gbs(gpu.memory_max_mhz, gpu.memory_bus_bits)
        basis = f"NVML: 2 x {gpu.memory_max_mhz} MHz x {gpu.memory_bus_bits} bit"
        return Bandwidth(nominal, _under_compute(known, nominal), basis, sources)
    if known is None:
        return f"memory bandwidth of {name or 'this GPU'} is not known: no memory clock from NVML, not in the table"
    unified = ", memory shared with the CPU" if known.unified_memory else ""
    basis = f"table: {name}, {known.bandwidth_gbs:g} GB/s nominal{unified}"
    return Bandwidth(known.bandwidth_gbs, known.bandwidth_under_compute_gbs, basis, sources)


def _under_compute(known: GpuType | None, nominal_gbs: float) -> float | None:
    """The table's figure, unless this card's own maximum is lower already (another variant under the same name)."""
    if known is None or known.bandwidth_under_compute_gbs is None:
        return None
    return min(known.bandwidth_under_compute_gbs, nominal_gbs)


def ceiling(
    model: ModelFacts | None,
    gpus: Sequence[GpuInfo | str],
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    context_tokens: int = 0,
) -> Ceiling:
    """The limit for one stream on `gpus` (NVML infos, or NVML names when planning; all nodes, in rank order).

    Unequal GPUs: a tensor-parallel group is as fast as its slowest member times its size; pipeline stages are
    passed in turn; of several replicas the fastest counts.
    """
    if model is None or not model.bytes_per_token:
        return Ceiling(None, reason=(model and model.missing) or "bytes read per token are not known for this model")
    if min(tp, pp, dp) < 1:
        return Ceiling(None, reason="parallel sizes must be at least 1")
    if len(gpus) < tp * pp * dp:
        return Ceiling(None, reason=f"the plan spreads over {tp * pp * dp} GPUs, {len(gpus)} known")
    known: list[Bandwidth] = []
    for gpu in gpus[: tp * pp * dp]:
        one = bandwidth(gpu)
        if isinstance(one, str):
            return Ceiling(None, reason=one)
        known.append(one)
    gb = (model.bytes_per_token + context_tokens * (model.kv_bytes_per_token or 0)) / 1e9
    nominal = _fastest([b.nominal_gbs for b in known], tp, pp)
    real = None
    if any(b.under_compute_gbs for b in known):
        real = _fastest([b.under_compute_gbs or b.nominal_gbs for b in known], tp, pp)
    return Ceiling(
        tok_s_per_stream=nominal / gb,
        tok_s_under_compute=real / gb if real else None,
        bandwidth_gbs=nominal,
        gb_per_token=gb,
        basis=_basis(known, tp, pp, dp, gb),
        sources=tuple(dict.fromkeys(s for b in known for s in b.sources)),
    )


def _fastest(gbs: Sequence[float], tp: int, pp: int) -> float:
    """GB/s that one stream sees on the fastest replica."""
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


def fraction(measured_tok_s: float | None, limit: Ceiling | float | None) -> float | None:
    """Measured speed of one stream over its limit; None where either is not known.

    Above 1 means speculation, or a wrong count of bytes per token: never a faster memory.
    """
    at_most = limit.tok_s_per_stream if isinstance(limit, Ceiling) else limit
    if measured_tok_s is None or not at_most:
        return None
    return measured_tok_s / at_most
