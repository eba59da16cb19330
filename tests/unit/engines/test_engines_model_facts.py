"""Sizes of a model are used for the model that runs, and for no other checkpoint or quantization."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workbench import engines
from workbench.engines.model_facts import (
    _bits_per_weight_of_quantization,
    choose_model_facts,
    model_facts_from_config,
    model_files_key,
    must_read_model_files,
)
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.session.conditions import speed_ceiling_of_plan
from workbench.session.plans.plan_editor import PlanEditor
from workbench.store.presets import PresetLibrary

LLAMA_70B = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
A100 = GpuInfo(0, "GPU-0", "NVIDIA A100-PCIE-40GB", memory_total_bytes=40 * 2**30)


def shipped(preset_id: str, **variables: str) -> LaunchPlan:
    preset = PresetLibrary().get(preset_id)
    asked = {n: v.example or "" for n, v in preset.variables.items() if v.default is None}
    return engines.plan_from_preset(preset, {**asked, **variables})


def edited(plan: LaunchPlan, *sets: str) -> PlanEditor:
    editor = PlanEditor(plan)
    editor.host_context = type(editor.host_context)(gpus=(A100,) * 4)
    editor.apply_assignments(sets, (), ())
    return editor


def test_a_presets_sizes_are_valid_for_its_own_model() -> None:
    plan = edited(shipped("vllm-qwen3-vl-2b-dp4"), "max-num-seqs=8").effective_plan
    assert (
        plan.model_facts is not None
        and plan.model_facts.weight_bytes
        and not plan.model_facts.missing
    )
    limit = speed_ceiling_of_plan(plan, (A100,) * 4)
    assert limit is not None and limit.tok_s_per_stream


@pytest.mark.parametrize(
    "change",
    [
        "model=meta-llama/Llama-3.3-70B-Instruct",
        "quantization=fp8",
        "dtype=float32",
        "revision=abc",
    ],
)
def test_sizes_are_not_used_for_another_model(change: str) -> None:
    editor = edited(shipped("vllm-qwen3-vl-2b-dp4"), change)
    facts = editor.effective_plan.model_facts
    assert (
        facts is not None
        and facts.weight_bytes is None
        and facts.bytes_per_token is None
        and facts.missing
    )
    limit = speed_ceiling_of_plan(editor.effective_plan, (A100,) * 4)
    assert editor.view().memory is None and limit is not None
    assert limit.tok_s_per_stream is None and limit.reason == facts.missing
    (said,) = [f for f in editor.findings() if f.code == "model.facts"]
    assert facts.missing in said.text
    editor.undo()
    assert editor.view().memory is not None


def test_sizes_are_not_used_for_another_model_of_a_variable() -> None:
    other = shipped("vllm-llama-3.3-70b-2x-spark", model="Qwen/Qwen3-8B")
    facts = choose_model_facts(other, {})
    assert (
        facts is not None
        and facts.weight_bytes is None
        and "Llama-3.3-70B-Instruct" in (facts.missing or "")
    )


def test_the_same_checkpoint_keeps_its_sizes_in_another_place_and_with_its_own_format() -> None:
    moved = shipped("vllm-llama-3.3-70b-2x-spark", model="/nvme/Llama-3.3-70B-Instruct/")
    assert (choose_model_facts(moved, {}) or ModelFacts("")).weight_bytes == 141.1e9
    assert must_read_model_files(moved, {})  # what lies there may be another checkpoint
    awq = edited(shipped("vllm-qwen2.5-7b-awq-2x-5060ti"), "quantization=awq_marlin", "dtype=half")
    assert (awq.effective_plan.model_facts or ModelFacts("")).weight_bytes


def test_files_on_the_host_override_the_name() -> None:
    plan = shipped("vllm-llama-3.3-70b-2x-spark", model="/nvme/Llama-3.3-70B-Instruct")
    other = ModelFacts(
        plan.model, weight_bytes=39.8e9, bytes_per_token=37.7e9, source="config.json"
    )
    assert choose_model_facts(plan, {model_files_key(plan): other}) == other
    same = ModelFacts(plan.model, weight_bytes=141.2e9, source="config.json")
    assert choose_model_facts(plan, {model_files_key(plan): same}) == plan.model_facts


def test_a_16_bit_checkpoint_that_is_quantized_at_load_has_other_sizes() -> None:
    facts = edited(
        shipped("vllm-llama-3.3-70b-2x-spark"), "quantization=fp8"
    ).effective_plan.model_facts
    assert facts is not None and facts.quantization == "FP8" and facts.missing is None
    assert facts.bytes_per_token == pytest.approx(70.55e9, rel=0.002)
    assert facts.weight_bytes == pytest.approx(72.7e9, rel=0.002)
    awq = edited(
        shipped("vllm-llama-3.3-70b-2x-spark"), "quantization=awq"
    ).effective_plan.model_facts
    assert awq is not None and awq.weight_bytes is None and awq.missing


@pytest.mark.slow
@given(
    model=st.sampled_from(
        ["Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-8B", "/m/x", "~/Qwen3-8B", "x.gguf"]
    ),
    quantization=st.sampled_from(["", "fp8", "awq", "bitsandbytes"]),
    read=st.booleans(),
)
def test_all_sizes_belong_to_the_model_that_runs(model: str, quantization: str, read: bool) -> None:
    base = shipped("vllm-qwen3-vl-2b-dp4")
    own = base.model_facts
    plan = edited(
        base, f"model={model}", *([f"quantization={quantization}"] if quantization else [])
    ).plan
    found = ModelFacts(model, weight_bytes=1.0, bytes_per_token=1.0, source="config.json")
    facts = choose_model_facts(plan, {model_files_key(plan): found} if read else {})
    assert facts is not None and own is not None
    if facts.weight_bytes is None:
        assert facts.missing and facts.bytes_per_token is None
    else:
        assert not quantization
        assert facts == (found if read else own) and (read or model == base.model)


def test_a_dense_model_reads_all_but_its_embedding() -> None:
    facts = model_facts_from_config(
        "m", LLAMA_70B, 141_107_412_992, has_separate_head=True, source="config.json"
    )
    assert facts.bytes_per_token == pytest.approx(139.0e9, rel=0.001)
    assert (facts.kv_bytes_per_token, facts.layers, facts.quantization) == (
        327680.0,
        80,
        "bfloat16",
    )
    tied = model_facts_from_config(
        "m", LLAMA_70B, 6_400_000_000, has_separate_head=False, source="config.json"
    )
    assert tied.bytes_per_token == 6_400_000_000


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"num_experts": 128}, "mixture of experts"),
        ({"text_config": {**LLAMA_70B, "n_routed_experts": 64}}, "mixture of experts"),
        ({"vision_config": {}}, "multimodal"),
        ({"hidden_size": None}, "config.json"),
        ({"vocab_size": "128256"}, "config.json"),
    ],
)
def test_unknown_sizes_have_a_reason(more: dict[str, Any], word: str) -> None:
    facts = model_facts_from_config(
        "m", {**LLAMA_70B, **more}, 10**10, has_separate_head=True, source="config.json"
    )
    assert (
        facts.bytes_per_token is None
        and word in (facts.missing or "")
        and facts.weight_bytes == 1e10
    )


@pytest.mark.parametrize(
    "more",
    [
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": 4096},
        {"layer_types": ["x"]},
    ],
)
def test_the_cache_size_is_unknown_if_layers_differ(more: dict[str, Any]) -> None:
    assert (
        model_facts_from_config(
            "m", {**LLAMA_70B, **more}, 1, has_separate_head=True, source=""
        ).kv_bytes_per_token
        is None
    )


def test_latent_attention_and_unused_windows() -> None:
    latent = {**LLAMA_70B, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61}
    assert (
        model_facts_from_config(
            "m", latent, 1, has_separate_head=True, source=""
        ).kv_bytes_per_token
        == 576 * 61 * 2
    )
    unused = {**LLAMA_70B, "sliding_window": 4096, "use_sliding_window": False}
    assert (
        model_facts_from_config(
            "m", unused, 1, has_separate_head=True, source=""
        ).kv_bytes_per_token
        == 327680.0
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from([*LLAMA_70B, "layer_types", "text_config", "quantization_config"]),
        json_values,
    )
)
@example({"num_hidden_layers": 1, "layer_types": 1})
def test_any_configuration_can_be_read(config: dict[str, Any]) -> None:
    facts = model_facts_from_config("m", config, 1000, has_separate_head=True, source="config.json")
    assert facts.weight_bytes == 1000 and bool(facts.bytes_per_token) != bool(facts.missing)


@pytest.mark.parametrize(
    ("named", "bits"),
    [("AWQ", 4 + 20 / 128), ("W4 INT4", 4 + 20 / 128), ("GPTQ INT8", None), ("AWQ int8", None)],
)
def test_a_quantization_of_8_bits_does_not_count_as_4(named: str, bits: float | None) -> None:
    assert _bits_per_weight_of_quantization(named) == bits
