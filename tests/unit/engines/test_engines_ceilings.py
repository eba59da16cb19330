"""The ceilings of documented setups, and where published speeds lie below them."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.engines import gpu_table
from workbench.engines.references import (
    Setup,
    load_references,
    nearest_reference_and_has_same_streams,
    nearest_reference_text,
)
from workbench.engines.result_limits import titles_and_speed_comparisons
from workbench.engines.roofline import Load, compute_speed_limits
from workbench.model.bench import BenchResult, BenchSpec, BenchSummary, Conditions
from workbench.model.gpu import GpuInfo
from workbench.model.model_shape import KvLayers, ModelShape, WeightParts
from workbench.model.plan import ModelFacts

PRO, GB10, R3090 = (
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    "NVIDIA GB10",
    "NVIDIA GeForce RTX 3090",
)
T5060, A100 = "NVIDIA GeForce RTX 5060 Ti", "NVIDIA A100-PCIE-40GB"


def facts(gb: float, **more: Any) -> ModelFacts:
    return ModelFacts("m", bytes_per_token=gb * 1e9, **more)


MISTRAL, LLAMA_70B = facts(64.09), facts(139.0)


@pytest.mark.parametrize(
    ("model", "card", "sizes", "limit", "measured"),
    [
        (
            MISTRAL,
            PRO,
            {},
            27.96,
            {22.0: 79, 22.7: 81, 25: 89, 28: 100, 30: 107, 45: 161, 60: 215, 90: 322},
        ),
        (MISTRAL, R3090, {"tp": 4}, 58.4, {37: 63}),
        (LLAMA_70B, GB10, {"tp": 2}, 3.93, {3.17: 81, 5: 127}),
        (LLAMA_70B, GB10, {"pp": 4}, 1.96, {6: 306, 10: 509}),
        (facts(40.61), GB10, {}, 6.7, {4.0: 60, 4.2: 62}),
        (facts(40.61), GB10, {"tp": 2}, 13.4, {}),
        (facts(70.55), GB10, {"tp": 2}, 7.7, {}),
        (facts(37.66), GB10, {"tp": 2}, 14.5, {}),
        (facts(15.01), GB10, {}, 18.2, {}),
        (facts(8.03), GB10, {}, 34.0, {20.5: 60}),
        (facts(4.98), GB10, {}, 54.9, {38.65: 70}),
        (facts(3.61), T5060, {}, 124, {}),
        (facts(3.61), T5060, {"tp": 2}, 248, {}),
        (facts(4.48), T5060, {}, 100, {}),
        (facts(7.62), T5060, {"tp": 2}, 118, {}),
        (facts(3.44), A100, {"tp": 4}, 1808, {51.5: 2.8}),
        (facts(3.44), A100, {}, 452, {}),
    ],
)
def test_ceilings_of_the_documents(
    model: ModelFacts, card: str, sizes: dict[str, int], limit: float, measured: dict[float, float]
) -> None:
    count = sizes.get("tp", 1) * sizes.get("pp", 1)
    found = compute_speed_limits(model, [card] * count, **sizes).tok_s_per_stream
    assert found == pytest.approx(limit, rel=0.006)
    for speed, percent in measured.items():
        assert 100 * speed / (found or 1) == pytest.approx(percent, abs=0.7)


def test_the_memory_clock_under_compute_lowers_the_ceiling() -> None:
    info = GpuInfo(0, "GPU-0", PRO, memory_max_mhz=14001, memory_bus_bits=512)
    assert compute_speed_limits(
        MISTRAL, [info], memory_mhz=13365
    ).tok_s_per_stream == pytest.approx(26.69, abs=0.01)


@pytest.mark.parametrize(("streams", "limit"), [(4, 15.7), (8, 31.4), (16, 62.8), (32, 126)])
def test_streams_share_the_weights(streams: int, limit: float) -> None:
    assert compute_speed_limits(
        LLAMA_70B, [GB10] * 2, tp=2, load=Load(streams)
    ).total_tok_s == pytest.approx(limit, rel=0.005)


def test_replicas_serve_streams_and_stages_serve_groups_of_streams() -> None:
    small = facts(3.44)
    assert compute_speed_limits(
        small, [A100] * 4, dp=4, load=Load(80)
    ).total_tok_s == pytest.approx(80 * 452, rel=0.001)
    assert compute_speed_limits(small, [A100] * 4, dp=4, load=Load(2)).total_tok_s == pytest.approx(
        2 * 452, rel=0.001
    )
    assert compute_speed_limits(
        LLAMA_70B, [GB10] * 2, pp=2, load=Load(8)
    ).total_tok_s == pytest.approx(8 * 1.964, rel=0.001)


def test_the_context_costs_what_its_layers_keep() -> None:
    shape = ModelShape(kv=(KvLayers(10, 8, 256), KvLayers(50, 8, 256, window=1024)))
    model = facts(10, shape=shape)
    found = compute_speed_limits(model, [PRO], load=Load(context_tokens=32768, kv_bits=8))
    assert found.gb_per_token == pytest.approx(10 + (10 * 32768 + 50 * 1024) * 8 * 256 / 1e9)
    latent = facts(10, shape=ModelShape(kv=(KvLayers(60, 1, 576),)))
    one, two = (
        compute_speed_limits(latent, [PRO] * n, tp=n, load=Load(context_tokens=10_000))
        for n in (1, 2)
    )
    assert two.gb_per_token and one.gb_per_token
    # each GPU has a copy
    assert two.gb_per_token - 10 == pytest.approx(2 * (one.gb_per_token - 10))


def test_more_streams_read_more_experts_until_computing_limits_them() -> None:
    parts = WeightParts(dense=2e9, experts=100e9, expert_share=0.05, head=1e9)
    model = facts(16, quantization="bfloat16", shape=ModelShape(parts=parts))
    one, many, most = (compute_speed_limits(model, [PRO], load=Load(n)) for n in (1, 16, 4000))
    assert one.total_tok_s == pytest.approx(one.tok_s_per_stream)
    expected_gb = 6 + 100 * (1 - 0.95**16) * 2
    assert many.total_tok_s == pytest.approx(16 * 1792 / expected_gb)
    assert most.total_bound == "compute" and most.total_tok_s == pytest.approx(503.8e12 / (2 * 8e9))
    assert most.prefill_tok_s == most.total_tok_s


@pytest.mark.parametrize(
    ("gpu", "bf16_tflops"),
    [
        ("NVIDIA GeForce RTX 5060 Ti", 51),
        ("NVIDIA GeForce RTX 5090", 254),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8),
    ],
)
def test_prefill_in_fp8_is_at_most_twice_as_fast_as_in_bf16(gpu: str, bf16_tflops: float) -> None:
    parts = WeightParts(dense=3e9, head=0.2e9)
    full, half = (
        compute_speed_limits(
            facts(gb, quantization=quantization, shape=ModelShape(parts=parts)), [gpu]
        ).prefill_tok_s
        for gb, quantization in ((6.4, "bfloat16"), (3.6, "fp8"))
    )
    assert (
        full == pytest.approx(bf16_tflops * 1e12 / (2 * parts.active_weight_count))
        and half is not None
    )
    assert half / full == pytest.approx(2, rel=0.01)


def test_all_reduces_take_their_time() -> None:
    found = compute_speed_limits(replace(LLAMA_70B, layers=80), [GB10] * 2, tp=2)
    assert (
        found.all_reduce_ms == pytest.approx(161 * 0.041)
        and ("161 all-reduces of 41 us") in found.all_reduce_basis
    )
    assert found.with_all_reduces_tok_s == pytest.approx(1 / (1 / 3.928 + 0.0066), rel=0.001)
    assert compute_speed_limits(replace(LLAMA_70B, layers=80), [GB10]).all_reduce_ms == 0
    pcie, sxm = ([f"NVIDIA A100-{form}-40GB"] * 4 for form in ("PCIE", "SXM4"))
    assert compute_speed_limits(
        replace(LLAMA_70B, layers=80), pcie, tp=4
    ).all_reduce_ms == pytest.approx(1.61)
    # NVLink, nobody measured it
    assert compute_speed_limits(replace(LLAMA_70B, layers=80), sxm, tp=4).all_reduce_ms == 0


@pytest.mark.parametrize("drafted", [0, 3])
def test_drafts_raise_the_limit(drafted: int) -> None:
    found = compute_speed_limits(MISTRAL, [PRO], load=Load(tokens_per_step=1 + drafted))
    assert found.tok_s_per_stream == pytest.approx(27.96 * (1 + drafted), rel=0.001)
    assert ("speculation" in found.label) == (drafted > 0)


SHARES = {  # of the ceiling at nominal bandwidth, in percent
    "doc-mistral-sglang": 81.3, "doc-llama70-2spark": 80.7, "ramsey-llama70-2spark": 76.4,
    "nv-llama70-nvfp4-1spark": 62.5, "lmsys-llama70-fp8-1spark": 69.8, "nv-llama8-nvfp4": 70.5,
    "lmsys-llama8-fp8": 60.3, "jetsonhacks-gptoss20": 74.8, "sparkarena-gptoss120": 59.3,
    "sparkarena-gptoss120-2x": 37.8, "conselara-235b": 37.7, "eugr-qwen3vl32-fp8": 84.0,
    "eugr-qwen3vl32-fp8-2x": 72.0, "eugr-qwen3vl32-awq-2x": 68.3, "hz-pro6000-3b": 28.6, "inventive-5060ti": 79.3,
}  # fmt: skip


def test_each_reference_lies_where_it_says() -> None:
    shares = {
        one.id: one.speed_fraction_of_limit * 100
        for one in load_references()
        if one.speed_fraction_of_limit
    }
    assert shares == pytest.approx(SHARES, abs=0.1)
    for one in load_references():
        known = one.gpu_type
        assert one.source and one.kind and (one.tok_s or one.total_tok_s)
        assert (known is None) == (one.gpu is None)
        if known and one.gb_per_token:
            limit = compute_speed_limits(
                facts(one.gb_per_token), [known.nvml_names[0]] * one.gpus, tp=one.gpus
            )
            assert limit.tok_s_per_stream == pytest.approx(one.stream_limit_tok_s, rel=0.001)


def result(
    model: str, card: str, count: int, tok_s: float, streams: int = 1, **conditions: Any
) -> BenchResult:
    gpus = tuple({"index": i, "name": card} for i in range(count))
    engine = conditions.pop("engine", "vllm")
    made = Conditions("h", engine, "1", model, gpus=gpus, **conditions)
    unknown = {
        f.name: None
        for f in fields(BenchSummary)
        if f.default is MISSING and f.default_factory is MISSING
    }
    summary = BenchSummary(
        **{**unknown, "output_tok_s": tok_s, "per_stream_tok_s": tok_s / streams}
    )
    return BenchResult(1, 0.0, BenchSpec("http://h", "m", concurrency=streams), made, summary)


TP2, TP4 = ({"tensor-parallel-size": n} for n in (2, 4))
DP4 = {"data-parallel-size": 4}
MISTRAL_MODEL = "/srv/Mistral-Large-Instruct-2411"
LLAMA_MODEL, QWEN_VL_MODEL = "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"
EAGER = {"enforce-eager": True}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            result(f"{MISTRAL_MODEL}-AWQ", PRO, 1, 22.7, engine="sglang"),
            ["22.72", "this result, 22.7, is within 15 % of that", "SGLang"],
        ),
        (
            result(
                f"{MISTRAL_MODEL}-exl3-4.0bpw", PRO, 1, 23.9, engine="tabbyapi", quantization="EXL3"
            ),
            ["24 tok/s per stream", "TabbyAPI"],
        ),
        (result(LLAMA_MODEL, GB10, 2, 3.17, flags=TP2), ["3.17 tok/s per stream", "within 15 %"]),
        (
            result(QWEN_VL_MODEL, A100, 4, 412.0, 8, flags=TP4 | EAGER),
            ["412.2 tok/s together", "this result, 412, is within 15 % of that", "eager"],
        ),
        (
            result("nvidia/Llama-3.3-70B-Instruct-FP4", GB10, 1, 4.1, quantization="NVFP4"),
            ["4 to 4.2", "within 15 %"],
        ),
        (result(LLAMA_MODEL, GB10, 2, 1.5, flags=TP2), ["this result, 1.5, is 53 % slower"]),
        (result("Qwen/Qwen3-VL-32B-Instruct-FP8", GB10, 1, 7.0), ["eugr", "within 15 %"]),
        (
            result("openai/gpt-oss-120b", GB10, 1, 26.0, quantization="MXFP4", flags=EAGER),
            ["26 tok/s", "eager", "within 15 %"],
        ),
        (result(LLAMA_MODEL, GB10, 2, 20.0, 8, flags=TP2), ["3.17", "81 % of its limit"]),
    ],
)
def test_the_reference_of_a_setup_says_whether_a_speed_is_normal(
    made: BenchResult, words: list[str]
) -> None:
    text = nearest_reference_text(made) or ""
    assert [word for word in words if word not in text] == [], text
    assert ("reference", text) in titles_and_speed_comparisons(made)


@pytest.mark.parametrize(
    "made",
    [
        result("org/Another-40B", GB10, 1, 5.0),
        result(LLAMA_MODEL, GB10, 2, 3.17, flags={**TP2, "spec-method": "mtp"}),
        result("Qwen/Qwen3-8B", GB10, 1, 15.0),
        result(f"{MISTRAL_MODEL}-AWQ", PRO, 1, 22.7, engine="tabbyapi"),
        result(QWEN_VL_MODEL, A100, 4, 2308.0, 8, flags=DP4),
        result(QWEN_VL_MODEL, A100, 4, 884.0, 8, flags=DP4 | EAGER),
        result(QWEN_VL_MODEL, A100, 4, 650.0, 8, flags=TP4),
        result(LLAMA_MODEL, GB10, 2, 6.0, flags={"pipeline-parallel-size": 2}),
        result("org/Llama-3.3-70B-Instruct-FP8", GB10, 2, 6.0, flags=TP2),
        result("m", "NVIDIA X", 1, 1.0),
        result("m", "", 0, 1.0),
    ],
)
def test_there_is_no_reference_of_another_setup(made: BenchResult) -> None:
    assert nearest_reference_text(made) is None


@given(
    model=st.text(max_size=20) | st.sampled_from([one.model for one in load_references()]),
    engine=st.sampled_from(["vLLM", "SGLang", "TabbyAPI", "llama.cpp", ""]),
    quantization=st.none() | st.text(max_size=6),
    names=st.lists(
        st.sampled_from([t.nvml_names[0] for t in gpu_table.load_gpu_types()] + [""]), max_size=3
    ),
    streams=st.integers(1, 100),
)
def test_any_setup_has_a_reference_of_its_gpu_or_none(
    model: str, engine: str, quantization: str | None, names: list[str], streams: int
) -> None:
    found = nearest_reference_and_has_same_streams(
        Setup(model, engine, quantization, tuple(names), None, streams, False, False)
    )
    if found:
        one, same = found
        assert one.gpu is None or names[0] in (one.gpu_type.nvml_names if one.gpu_type else ())
        assert (one.engine, one.gpus) == (engine, len(names))
        assert same is (one.streams == streams)
