"""The roofline compared with manual arithmetic from published hardware and model data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.engines import gpu_table
from workbench.engines.roofline import Load, compute_speed_limits, find_memory_bandwidth_or_reason
from workbench.model.counts import format_four_digits
from workbench.model.gpu import GpuInfo
from workbench.model.plan import ModelFacts

MISTRAL_AWQ = ModelFacts("mistral", bytes_per_token=64.09e9, kv_bytes_per_token=360448)
LLAMA_70B_BF16 = ModelFacts("llama", bytes_per_token=139.0e9, kv_bytes_per_token=327680)
PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def test_rtx_pro_6000_from_the_table() -> None:
    limit = compute_speed_limits(MISTRAL_AWQ, [PRO_6000])
    assert limit.tok_s_per_stream == pytest.approx(27.96, abs=0.01)
    assert limit.label == "nominal bandwidth, 1,792 GB/s"
    assert limit.sources and "1792" in limit.basis


def test_nvml_clock_and_bus_override_the_table() -> None:
    info = GpuInfo(0, "GPU-0", PRO_6000, memory_max_mhz=14001, memory_bus_bits=512)
    limit = compute_speed_limits(MISTRAL_AWQ, [info])
    assert limit.bandwidth_gbs == pytest.approx(1792.1, abs=0.05)
    assert limit.basis.startswith("NVML: 2 x 14001 MHz x 512 bit")
    slower = GpuInfo(0, "GPU-0", PRO_6000, memory_max_mhz=12481, memory_bus_bits=512)
    limit = compute_speed_limits(MISTRAL_AWQ, [slower])
    assert limit.tok_s_per_stream == pytest.approx(24.93, abs=0.01)


def test_the_limit_is_for_the_memory_clock_under_load() -> None:
    """The limit at nominal bandwidth and the one under load differ, so the label names the clock."""
    info = GpuInfo(0, "GPU-0", PRO_6000, memory_max_mhz=14001, memory_bus_bits=512)
    seen = compute_speed_limits(MISTRAL_AWQ, [info], memory_mhz=13365.2)
    assert seen.tok_s_per_stream == pytest.approx(26.69, abs=0.01)
    assert seen.label == "at the memory clock under load, 13,365 of 14,001 MHz"
    for mhz in (None, 14001.0, 13990.0):
        assert compute_speed_limits(MISTRAL_AWQ, [info], memory_mhz=mhz).label.startswith(
            "nominal bandwidth"
        )


def test_a_gpu_outside_the_table_is_computed_from_nvml_alone() -> None:
    info = GpuInfo(0, "GPU-0", "NVIDIA Imaginary 1", memory_max_mhz=10000, memory_bus_bits=256)
    limit = compute_speed_limits(MISTRAL_AWQ, [info])
    assert limit.bandwidth_gbs == 640


def test_two_sparks_add_bandwidth_with_tensor_but_not_with_pipeline_parallelism() -> None:
    sparks = [GpuInfo(i, f"GPU-{i}", "NVIDIA GB10", unified_memory=True) for i in (0, 0)]
    assert compute_speed_limits(LLAMA_70B_BF16, sparks, tp=2).tok_s_per_stream == pytest.approx(
        3.93, abs=0.005
    )
    assert compute_speed_limits(LLAMA_70B_BF16, sparks, pp=2).tok_s_per_stream == pytest.approx(
        1.96, abs=0.005
    )
    # a GB10 tells no maximum
    assert "nominal" in compute_speed_limits(LLAMA_70B_BF16, sparks, tp=2, memory_mhz=2000.0).label


def test_replicas_do_not_speed_up_one_stream() -> None:
    four = ["NVIDIA A100-PCIE-40GB"] * 4
    small = ModelFacts("qwen", bytes_per_token=3.44e9)
    assert compute_speed_limits(small, four, dp=4).tok_s_per_stream == pytest.approx(452, abs=0.5)
    assert compute_speed_limits(small, four, tp=4).tok_s_per_stream == pytest.approx(1808, abs=1)
    assert compute_speed_limits(small, four, tp=2, dp=2).tok_s_per_stream == pytest.approx(
        904, abs=1
    )


def test_unequal_gpus_wait_for_the_slowest_of_their_group() -> None:
    model = ModelFacts("m", bytes_per_token=1e9)
    pair = ["NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 5060 Ti"]
    assert compute_speed_limits(model, pair, tp=2).tok_s_per_stream == pytest.approx(2 * 448)
    assert compute_speed_limits(model, pair, dp=2).tok_s_per_stream == pytest.approx(1792)
    assert compute_speed_limits(model, pair, pp=2).tok_s_per_stream == pytest.approx(
        2 / (1 / 1792 + 1 / 448)
    )


def test_context_costs_bytes_and_streams_share_the_weights() -> None:
    short, long = (
        compute_speed_limits(MISTRAL_AWQ, [PRO_6000], load=Load(context_tokens=n))
        for n in (0, 32768)
    )
    assert long.gb_per_token == pytest.approx(64.09 + 32768 * 360448 / 1e9)
    assert (
        short.tok_s_per_stream
        and long.tok_s_per_stream
        and long.tok_s_per_stream < short.tok_s_per_stream
    )


@pytest.mark.parametrize(
    ("model", "gpus", "sizes", "word"),
    [
        (None, [PRO_6000], {}, "bytes read per token"),
        (ModelFacts("x"), [PRO_6000], {}, "bytes read per token"),
        (MISTRAL_AWQ, [], {}, "uses 1 GPU, but only 0 are known"),
        (MISTRAL_AWQ, [PRO_6000], {"tp": 2}, "uses 2 GPUs, but only 1 are known"),
        (MISTRAL_AWQ, ["NVIDIA GB100"], {}, "NVIDIA GB100 is unknown"),
        (MISTRAL_AWQ, [PRO_6000], {"tp": 0}, "at least 1"),
    ],
)
def test_a_missing_limit_has_a_reason(
    model: ModelFacts | None, gpus: list[str], sizes: dict[str, int], word: str
) -> None:
    limit = compute_speed_limits(model, gpus, **sizes)
    assert limit.tok_s_per_stream is None and limit.reason and word in limit.reason


@given(
    st.lists(
        st.sampled_from([t.nvml_names[0] for t in gpu_table.load_gpu_types()]),
        min_size=4,
        max_size=4,
    )
)
def test_tensor_parallel_is_never_below_pipeline_parallel(names: list[str]) -> None:
    """This is for equal numbers of GPUs; no limit exceeds the sum of the bandwidths."""
    model = ModelFacts("m", bytes_per_token=1e9)
    total = sum(
        b.nominal_gbs for n in names if not isinstance(b := find_memory_bandwidth_or_reason(n), str)
    )
    for tp, pp in ((4, 1), (2, 2), (1, 4)):
        limit = compute_speed_limits(model, names, tp=tp, pp=pp).tok_s_per_stream
        assert limit is not None and limit <= total * (1 + 1e-9)
    pipeline = compute_speed_limits(model, names, pp=4).tok_s_per_stream
    assert pipeline is not None and pipeline <= max(
        gpu_table.find_gpu_type(n).bandwidth_gbs for n in names
    ) * (1 + 1e-9)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("value", "text"), [(27.964, "27.96"), (213.5, "213.5"), (1808.2, "1,808"), (14468.0, "14,468")]
)
def test_a_rate_has_no_exponent(value: float, text: str) -> None:
    assert format_four_digits(value) == text
