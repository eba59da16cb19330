"""The table of what fits: quantizations, numbers of GPUs, context lengths, and the memory that is
free now."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.engines.fit_table import CONTEXTS, FitRow, group_equal_gpus, make_fit_rows
from workbench.engines.model_facts import model_facts_from_config_without_files
from workbench.model.flags import FlagSetting
from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.report.formats.terminal import block_lines
from workbench.session.plans.model_fit import FitReport, fit_report_blocks, fit_report_of_plan

GIB = 2**30
LLAMA_70B = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
FACTS = model_facts_from_config_without_files("llama", LLAMA_70B, source="config.json")


def cards(count: int, gib: int = 24, name: str = "NVIDIA GeForce RTX 3090") -> list[GpuInfo]:
    return [GpuInfo(i, f"GPU-{i}", name, memory_total_bytes=gib * GIB) for i in range(count)]


def table(
    engine: str, gpus: list[GpuInfo], used: dict[int, int] | None = None, **flags: Any
) -> list[FitRow]:
    settings = tuple(FlagSetting(n.replace("_", "-"), v) for n, v in flags.items())
    (group,) = group_equal_gpus(gpus, used or {})
    return list(make_fit_rows(LaunchPlan(engine, "llama", FACTS, flags=settings), group, CONTEXTS))


def test_columns_of_a_tiny_model_do_not_touch() -> None:
    """The limit and the prefill of a model of some megabytes were one number of 14 digits."""
    tiny = {**LLAMA_70B, "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64}
    tiny |= {"num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 1000}
    facts = model_facts_from_config_without_files("llama", tiny, source="config.json")
    report = fit_report_of_plan(
        LaunchPlan("vllm", "llama", facts), telemetry(cards(1, 96, "NVIDIA H100 80GB HBM3"))
    )
    lines = lines_of(report)
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    rows = [row for row in rows if row[0].startswith(("BF16", "FP8", "NVFP4"))]
    heads = [line for line in lines if "prefill" in line]
    assert rows and {len(row) for row in rows} == {len(re.split(r"\s{2,}", heads[0].strip()))}
    assert max(map(len, lines)) <= 80 and " M" in " ".join(rows[0])


def test_a_70b_model_on_four_cards_of_24_gib() -> None:
    rows = {(row.weights, len(row.gpus)): row for row in table("vllm", cards(4))}
    assert [key for key, row in rows.items() if not row.fits] == [("BF16", 4)]
    fitting = [
        ("FP8", 4),
        ("NVFP4", 4),
        ("MXFP4", 2),
        ("MXFP4", 4),
        ("AWQ, GPTQ", 2),
        ("AWQ, GPTQ", 4),
    ]
    assert [key for key, row in rows.items() if row.fits] == fitting
    awq = rows["AWQ, GPTQ", 4]
    assert awq.weights_gib == pytest.approx(39.76e9 / GIB / 4, rel=0.01)
    kv_gib = 24 * 0.92 - awq.weights_gib - 1.6
    assert awq.sequences[32_768] == pytest.approx(kv_gib * GIB // (327_680 / 4 * 32_768), abs=1)
    assert awq.limit_tok_s == pytest.approx(4 * 936 / 37.66, rel=0.01)
    slower = 1 / (1 / (4 * 936 / 37.66) + 161 * 10e-6)
    assert awq.with_all_reduces_tok_s == pytest.approx(slower, rel=0.01)
    assert awq.prefill_tok_s == pytest.approx(4 * 71e12 / (2 * 69.5e9), rel=0.01)


def test_the_memory_in_use_counts() -> None:
    quiet = {(r.weights, len(r.gpus)): r for r in table("vllm", cards(4))}
    busy = {(r.weights, len(r.gpus)): r for r in table("vllm", cards(4), {2: 20 * GIB})}
    assert quiet["AWQ, GPTQ", 4].fits and not any(
        row.fits for (_, count), row in busy.items() if count == 4
    )
    (group,) = group_equal_gpus(cards(4), {0: 20 * GIB})
    # those with the most free memory first
    assert [gpu.index for gpu in group.gpus] == [1, 2, 3, 0]


def test_a_smaller_cache_type_holds_more_sequences() -> None:
    plain, small = (
        {row.weights: row for row in table("vllm", cards(1, 96), kv_cache_dtype=kind)}
        for kind in ("auto", "fp8")
    )
    wide, narrow = small["FP8"].sequences[4096], plain["FP8"].sequences[4096]
    assert wide and narrow and wide == pytest.approx(2 * narrow, abs=1)


def test_llamacpp_has_its_own_quantizations_and_one_sequence() -> None:
    rows = table("llamacpp", cards(4))
    found = dict.fromkeys(row.weights for row in rows if row.fits)
    assert list(found) == ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS"]
    assert all(n in (0, 1) for row in rows for n in row.sequences.values())
    q4 = next(row for row in rows if row.weights == "Q4_K_M")
    # llama.cpp's own table: 43.1 GB
    assert q4.weights_gib * len(q4.gpus) == pytest.approx(43.1e9 / GIB, rel=0.02)


def test_a_preset_without_a_shape_tells_other_quantizations_from_its_sizes() -> None:
    facts = ModelFacts("m", 70.55e9, "BF16", 139.0e9, 141.1e9, 327680.0, 80)
    (group,) = group_equal_gpus(cards(1, 96), {})
    rows = {
        row.weights: row for row in make_fit_rows(LaunchPlan("vllm", "m", facts), group, CONTEXTS)
    }
    assert not rows["BF16"].fits and rows["FP8"].fits
    assert rows["NVFP4"].limit_tok_s == pytest.approx(936 / 40.61, rel=0.002)
    moe = ModelFacts("m", 120e9, "MXFP4", 5e9, 65e9, 1e4, 36)
    assert [
        row.weights for row in make_fit_rows(LaunchPlan("vllm", "m", moe), group, CONTEXTS)
    ] == ["MXFP4"]


def test_unequal_cards_are_groups_of_their_own() -> None:
    mixed = [
        *cards(2),
        GpuInfo(2, "GPU-2", "NVIDIA L4", memory_total_bytes=24 * GIB),
        GpuInfo(3, "GPU-3", "NVIDIA X"),
    ]
    assert [[gpu.index for gpu in group.gpus] for group in group_equal_gpus(mixed, {})] == [
        [0, 1],
        [2],
    ]


def telemetry(gpus: list[GpuInfo], used_gib: float = 0.0) -> Telemetry:
    samples = tuple(GpuSample(g.index, g.uuid, memory_used_bytes=int(used_gib * GIB)) for g in gpus)
    return Telemetry(0.0, 0.0, DriverInfo(), HostSample(), tuple(gpus), samples)


def lines_of(report: FitReport) -> list[str]:
    return block_lines(fit_report_blocks(report))


def test_the_table_fits_into_80_columns_and_says_why_there_is_none() -> None:
    report = fit_report_of_plan(LaunchPlan("vllm", "llama", FACTS), telemetry(cards(8), 0.4))
    lines = lines_of(report)
    assert all(len(line) <= 78 for line in lines), lines
    assert "GPU0-7  NVIDIA GeForce RTX 3090, 24.0 GiB, 23.6 GiB free now" in lines
    unknown = fit_report_of_plan(
        LaunchPlan("vllm", "m", ModelFacts("m", missing="its files were not found")), None
    )
    assert (
        "its files were not found" in "\n".join(lines_of(unknown)) and unknown.as_json()["missing"]
    )


def test_a_model_that_finds_no_memory_free_has_a_next_step() -> None:
    plan = LaunchPlan("vllm", "llama", FACTS)
    full, empty = (
        "\n".join(lines_of(fit_report_of_plan(plan, telemetry(cards(1, gib), used))))
        for gib, used in ((96, 94), (8, 0))
    )
    assert "next: 94.0 GiB are in use\n  Stop what uses them" in full
    assert "does not fit" in empty and "next" not in empty


def test_memory_shared_with_the_cpu_is_free_as_far_as_the_system_says() -> None:
    spark = GpuInfo(0, "GPU-0", "NVIDIA GB10", memory_total_bytes=120 * GIB, unified_memory=True)
    read = replace(telemetry([spark], 2.0), host=HostSample(memory_available_bytes=90 * GIB))
    ((group, rows),) = fit_report_of_plan(LaunchPlan("vllm", "llama", FACTS), read).groups
    assert group.free_bytes == (90 * GIB,) and rows
    report = fit_report_of_plan(
        LaunchPlan("vllm", "llama", FACTS), replace(read, host=HostSample())
    )
    assert report.groups[0][0].free_bytes == (118 * GIB,)


@given(
    engine=st.sampled_from(["vllm", "sglang", "tabbyapi", "llamacpp"]),
    count=st.integers(1, 8),
    gib=st.integers(1, 200),
    used=st.dictionaries(st.integers(0, 7), st.integers(0, 300 * GIB), max_size=3),
)
def test_longer_sequences_never_fit_more_often(
    engine: str, count: int, gib: int, used: dict[int, int]
) -> None:
    for row in table(engine, cards(count, gib), used):
        found = [n for length, n in sorted(row.sequences.items()) if n is not None]
        assert found == sorted(found, reverse=True) and all(n >= 0 for n in found)
