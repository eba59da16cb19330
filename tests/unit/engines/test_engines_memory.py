"""The memory estimate compared with manual arithmetic and with values that real engines reported."""

from __future__ import annotations

from typing import Any

import pytest

from workbench import engines
from workbench.engines.base import RESERVE_GIB
from workbench.engines.memory_estimate import MemoryFit
from workbench.model.flags import FlagSetting
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan, ModelFacts

GIB = 2**30


def estimate(
    engine: str, flags: dict[str, Any], facts: ModelFacts | None, gib: float = 24, count: int = 4
) -> MemoryFit | str:
    cards = [
        GpuInfo(i, f"GPU-{i}", "NVIDIA X", memory_total_bytes=int(gib * GIB)) for i in range(count)
    ]
    settings = tuple(FlagSetting(n, v) for n, v in flags.items())
    return engines.estimate_memory_or_reason(LaunchPlan(engine, "m", facts, flags=settings), cards)


def fitted(*args: Any, **kw: Any) -> MemoryFit:
    result = estimate(*args, **kw)
    assert isinstance(result, MemoryFit), result
    return result


FACTS = ModelFacts("m", weight_bytes=8 * GIB, kv_bytes_per_token=2**17)  # 128 KiB per token


def test_vllm_fills_its_share() -> None:
    got = fitted("vllm", {"gpu-memory-utilization": 0.9, "max-model-len": 8192}, FACTS, gib=20)
    room_gib = 20 * 0.9 - 8 - RESERVE_GIB
    assert got.kv_tokens == int(room_gib * GIB / 2**17)
    assert got.full_length_sequences == got.kv_tokens // 8192
    assert (got.used_gib_per_gpu, got.available_gib_per_gpu, got.fits) == (
        pytest.approx(18),
        20,
        True,
    )
    assert got.text.startswith("est. ") and f"{got.full_length_sequences} full-length" in got.text


def test_tensor_parallel_splits_and_data_parallel_multiplies() -> None:
    one = fitted("vllm", {"max-model-len": 4096}, FACTS)
    dp = fitted("vllm", {"max-model-len": 4096, "data-parallel-size": 4}, FACTS)
    tp = fitted("vllm", {"max-model-len": 4096, "tensor-parallel-size": 4}, FACTS)
    assert one.kv_tokens and dp.kv_tokens == 4 * one.kv_tokens
    assert tp.weights_gib_per_gpu == pytest.approx(2) and dp.weights_gib_per_gpu == pytest.approx(8)
    assert tp.kv_tokens == pytest.approx((24 * 0.92 - 2 - RESERVE_GIB) * GIB / 2**15, abs=1)


def test_quantized_cache_holds_more() -> None:
    plain = fitted("vllm", {}, FACTS)
    fp8 = fitted("vllm", {"kv-cache-dtype": "fp8"}, FACTS)
    assert plain.kv_tokens and fp8.kv_tokens == pytest.approx(2 * plain.kv_tokens, abs=2)
    tabby = [
        fitted("tabbyapi", {"cache-size": 65536, "cache-mode": m}, FACTS)
        for m in ("FP16", "Q8", "4,4")
    ]
    kv = [t.used_gib_per_gpu - t.weights_gib_per_gpu - RESERVE_GIB for t in tabby]
    # spread over four cards
    assert kv == [pytest.approx(8 / 4), pytest.approx(4 / 4), pytest.approx(2 / 4)]


def test_a_model_that_is_too_large_does_not_fit() -> None:
    got = fitted("vllm", {}, ModelFacts("m", weight_bytes=141e9, kv_bytes_per_token=327680))
    assert not got.fits and got.kv_tokens == 0 and got.used_gib_per_gpu > got.available_gib_per_gpu
    assert "does not fit" in got.text
    short = fitted("vllm", {"max-model-len": 1_000_000}, FACTS)
    assert not short.fits and short.full_length_sequences == 0 and "not one sequence" in short.text
    assert not fitted("llamacpp", {"ctx-size": 10**6}, FACTS, count=1).fits


def test_fixed_cache_size_overrides_the_share() -> None:
    got = fitted("vllm", {"kv-cache-memory-bytes": "4G"}, FACTS)
    assert got.kv_tokens == 4 * GIB // 2**17
    assert got.used_gib_per_gpu == pytest.approx(8 + RESERVE_GIB + 4)


def test_the_estimate_names_sglangs_assumed_share() -> None:
    assert "assumed, SGLang chooses" in fitted("sglang", {}, FACTS).basis
    got = fitted("sglang", {"mem-fraction-static": 0.5}, FACTS)
    assert "chooses" not in got.basis and got.kv_tokens == int((24 * 0.5 - 8) * GIB / 2**17)


def test_the_smallest_gpu_decides() -> None:
    cards = [
        GpuInfo(i, f"GPU-{i}", "x", memory_total_bytes=g * GIB) for i, g in enumerate((24, 16))
    ]
    got = engines.estimate_memory_or_reason(LaunchPlan("vllm", "m", FACTS), cards)
    assert isinstance(got, MemoryFit) and got.available_gib_per_gpu == 16


@pytest.mark.parametrize(
    ("engine", "flags", "facts", "gib", "reason"),
    [
        ("vllm", {}, None, 24, "weights"),
        ("vllm", {}, ModelFacts("m"), 24, "weights"),
        ("vllm", {}, FACTS, 0, "memory of the GPUs"),
        ("llamacpp", {"n-gpu-layers": 10}, FACTS, 24, "layers"),
        ("llamacpp", {"cpu-moe": True}, FACTS, 24, "experts"),
    ],
)
def test_a_missing_estimate_has_a_reason(
    engine: str, flags: dict[str, Any], facts: Any, gib: float, reason: str
) -> None:
    got = estimate(engine, flags, facts, gib)
    assert isinstance(got, str) and reason in got


def test_the_estimate_has_only_weights_if_the_cache_size_is_unknown() -> None:
    got = fitted("vllm", {}, ModelFacts("m", weight_bytes=8 * GIB))
    assert got.fits and got.kv_tokens is None and "unknown" in got.basis and "KV" not in got.text


def test_the_estimate_agrees_with_real_engines() -> None:
    """A model of 2 layers x 2 KV heads x 64 in bfloat16 needs 2*2*2*64*2 = 1024 bytes per token.
    vLLM 0.32 reported 1,048,576 tokens for 1 GiB of cache; SGLang 0.5.23 0.03 GB of keys and as
    much of values for 65,536 tokens."""
    tiny = ModelFacts("tiny", weight_bytes=4.4e6, kv_bytes_per_token=1024)
    vllm = fitted("vllm", {"kv-cache-memory-bytes": "1G", "max-model-len": 2048}, tiny)
    assert (vllm.kv_tokens, vllm.full_length_sequences) == (1_048_576, 512)
    tabby = fitted("tabbyapi", {"cache-size": 65536}, tiny, count=1)
    assert tabby.used_gib_per_gpu - tabby.weights_gib_per_gpu - RESERVE_GIB == pytest.approx(0.0625)


def test_a_length_below_one_token_gives_an_estimate() -> None:
    facts = ModelFacts("m", weight_bytes=1e9, kv_bytes_per_token=1e5, layers=1)
    card = GpuInfo(0, "GPU-0", "NVIDIA GB10", memory_total_bytes=16 << 30)
    for engine, flag in (("vllm", "max-model-len"), ("llamacpp", "")):
        plan = LaunchPlan(engine, "m", facts, flags=(FlagSetting(flag, 0.5),))
        assert isinstance(engines.estimate_memory_or_reason(plan, [card]), MemoryFit)
