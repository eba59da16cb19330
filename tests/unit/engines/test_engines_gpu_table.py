from __future__ import annotations

import pytest

from workbench.engines.gpu_table import compute_memory_bandwidth_gbs, find_gpu_type, load_gpu_types


def test_names_and_ids_are_unique_and_every_row_has_a_source() -> None:
    types = load_gpu_types()
    names = [n for t in types for n in t.nvml_names]
    assert len(types) >= 20
    assert len(set(names)) == len(names) and len({t.id for t in types}) == len(types)
    assert all(t.sources for t in types)


@pytest.mark.parametrize(
    "gpu",
    [t for t in load_gpu_types() if t.memory_max_mhz and t.memory_bus_bits],
    ids=lambda t: t.id,
)
def test_the_nvml_formula_agrees_with_the_table(gpu) -> None:  # type: ignore[no-untyped-def]
    assert compute_memory_bandwidth_gbs(gpu.memory_max_mhz, gpu.memory_bus_bits) == pytest.approx(
        gpu.bandwidth_gbs, rel=0.002
    )


def test_power_ranges_are_ordered() -> None:
    for t in load_gpu_types():
        powers = [p for p in (t.power_min_w, t.power_default_w, t.power_max_w) if p is not None]
        assert powers == sorted(powers), t.id


def test_find_is_exact() -> None:
    gb10 = find_gpu_type(" NVIDIA GB10 ")
    assert gb10 is not None and gb10.unified_memory and gb10.bandwidth_gbs == 273
    assert (
        find_gpu_type("NVIDIA GB100") is None
        and find_gpu_type("") is None
        and find_gpu_type("gb10") is None
    )


def test_the_table_has_the_memory_clock_under_compute() -> None:
    card = find_gpu_type("NVIDIA RTX PRO 6000 Blackwell Workstation Edition")
    assert card is not None and card.chip == "GB202" and card.power_default_w == 600
    assert card.memory_under_compute_mhz == 13365


@pytest.mark.parametrize(
    "gpu", [g for g in load_gpu_types() if g.tflops.get("fp8")], ids=lambda g: g.id
)
def test_fp8_computes_twice_as_fast_as_bf16(gpu) -> None:  # type: ignore[no-untyped-def]
    """Both accumulate in FP32: GeForce cards have half the rate in both."""
    assert gpu.tflops["fp8"] / gpu.tflops["bf16"] == pytest.approx(2, rel=0.05)
