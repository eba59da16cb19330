"""Shapes of models from config.json and GGUF headers: bytes per token of published models, the KV
cache that real vLLM logged, and files that are not what they should be.
"""

from __future__ import annotations

import json
from typing import Any

import gguf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workbench import engines
from workbench.engines.gguf import (
    TruncatedError,
    config_from_metadata,
    parse_gguf_metadata_and_tensors,
)
from workbench.engines.kv_size import (
    KvStorageRule,
    kv_bytes_of_sequence_per_gpu,
    kv_bytes_read_per_token,
)
from workbench.engines.memory_estimate import MemoryFit
from workbench.engines.model_config import parse_model_shape
from workbench.engines.model_facts import model_facts_from_config, model_facts_from_gguf
from workbench.engines.weight_bits import (
    BITS,
    bits_per_weight_from_config,
    normalize_quantization,
    weight_bytes_in_memory,
    weight_bytes_read_per_token,
)
from workbench.engines.weight_files import Tensor, parse_tensors, sum_weights_by_part
from workbench.model.flags import FlagSetting
from workbench.model.gpu import GpuInfo
from workbench.model.model_shape import KvLayers, ModelShape
from workbench.model.plan import LaunchPlan, ModelFacts

GIB = 2**30


def config(
    layers: int, hidden: int, wide: int, heads: int, kv: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocabulary,
        **more,
    }


MISTRAL_LARGE = config(88, 12288, 28672, 96, 8, 32768)
LLAMA_70B = config(80, 8192, 28672, 64, 8, 128256)
LLAMA_8B = config(32, 4096, 14336, 32, 8, 128256)
LLAMA_3B = config(28, 3072, 8192, 24, 8, 128256, tie_word_embeddings=True)
QWEN_7B = config(28, 3584, 18944, 28, 4, 152064)
QWEN_VL_2B = {
    "text_config": config(28, 2048, 6144, 16, 8, 151936, head_dim=128),
    "tie_word_embeddings": True,
}
QWEN_VL_32B = {"text_config": config(64, 5120, 25600, 64, 8, 151936, head_dim=128)}
GPT_OSS_20B = config(
    24, 2880, 2880, 64, 8, 201088, head_dim=64, num_local_experts=32, num_experts_per_tok=4
)
GPT_OSS_120B = {**GPT_OSS_20B, "num_hidden_layers": 36, "num_local_experts": 128}
QWEN_235B = config(
    94,
    4096,
    12288,
    64,
    4,
    151936,
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=1536,
)


@pytest.mark.parametrize(
    ("model", "bits", "more", "gb"),
    [
        (MISTRAL_LARGE, BITS["AWQ"], {}, 64.09),
        (LLAMA_70B, 16, {}, 139.0),
        (LLAMA_70B, BITS["FP8"], {}, 70.55),
        (LLAMA_70B, BITS["NVFP4"], {}, 40.61),
        (LLAMA_70B, BITS["AWQ"], {}, 37.66),
        (LLAMA_8B, 16, {}, 15.01),
        (LLAMA_8B, BITS["FP8"], {}, 8.03),
        (LLAMA_8B, BITS["NVFP4"], {}, 4.98),
        (LLAMA_3B, 16, {}, 6.43),
        (LLAMA_3B, BITS["FP8"], {}, 3.61),
        (QWEN_7B, BITS["AWQ"], {}, 4.48),
        (QWEN_7B, BITS["FP8"], {}, 7.62),
        (QWEN_VL_2B, 16, {}, 3.44),
        (QWEN_VL_32B, BITS["FP8"], {}, 32.76),
        (QWEN_VL_32B, BITS["AWQ"], {}, 17.77),
        (GPT_OSS_20B, 8.5, {"expert_bits": BITS["MXFP4"], "head_bits": 8.5}, 2.56),
        (GPT_OSS_20B, 16, {"expert_bits": BITS["MXFP4"]}, 3.70),
        (GPT_OSS_120B, 16, {"expert_bits": BITS["MXFP4"]}, 4.97),
        (GPT_OSS_120B, BITS["MXFP4"], {"head_bits": BITS["MXFP4"]}, 2.72),
        (QWEN_235B, BITS["GPTQ"], {}, 12.1),
    ],
)
def test_bytes_per_token_of_published_models(
    model: dict[str, Any], bits: float, more: dict[str, float], gb: float
) -> None:
    parts = parse_model_shape(model).parts
    assert parts is not None
    assert weight_bytes_read_per_token(parts, bits, **more) / 1e9 == pytest.approx(gb, rel=0.01)


def test_weights_in_memory() -> None:
    parts = parse_model_shape(LLAMA_70B).parts
    assert parts is not None and parts.total_weight_count == pytest.approx(70.55e9, rel=0.001)
    assert weight_bytes_in_memory(parts, 16) == pytest.approx(141.1e9, rel=0.001)
    moe = parse_model_shape(QWEN_235B).parts
    assert (
        moe is not None
        and moe.total_weight_count == pytest.approx(235e9, rel=0.01)
        and moe.active_weight_count == pytest.approx(22e9, rel=0.02)
    )


SLIDING = [*(["sliding_attention"] * 2 + ["full_attention"]) * 2, "sliding_attention"]
TINY = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 2048,
    "max_position_embeddings": 8192,
}
# tokens that vLLM 0.32.0 logged for 1 GiB of cache, on the CPU, for models of 8,192 tokens
LOGGED = {
    "gqa": (config(4, 256, 512, 8, 2, 2048), {}, 1_048_576),
    "mla": (config(3, 256, 512, 4, 4, 2048, kv_lora_rank=512, qk_rope_head_dim=64), {}, 310_688),
    "sliding": (
        config(7, 256, 512, 4, 1, 2048, head_dim=64, sliding_window=512, layer_types=SLIDING), {}, 1_303_084
    ),
    "quantized": (config(2, 256, 512, 4, 4, 2048), {}, 524_288),
    "quantized, FP8 cache": (config(2, 256, 512, 4, 4, 2048), {"kv-cache-dtype": "fp8_e5m2"}, 1_048_576),
    "tied": (config(5, 256, 512, 8, 2, 2048, head_dim=128, tie_word_embeddings=True), {}, 209_664),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGGED)
def test_the_cache_is_as_large_as_vllm_logged(name: str) -> None:
    document, flags, logged = LOGGED[name]
    facts = ModelFacts("tiny", weight_bytes=1e7, shape=parse_model_shape(document))
    given = {
        "kv-cache-memory-bytes": "1G",
        "max-model-len": 8192,
        "max-num-batched-tokens": 1024,
        **flags,
    }
    given |= {"async-scheduling": False, "block-size": 16 if name == "mla" else 128}  # the CPU's
    settings = tuple(FlagSetting(n, v) for n, v in given.items())
    card = GpuInfo(0, "GPU-0", "NVIDIA X", memory_total_bytes=24 * GIB)
    got = engines.estimate_memory_or_reason(
        LaunchPlan("vllm", "tiny", facts, flags=settings), [card]
    )
    assert isinstance(got, MemoryFit) and got.kv_tokens == pytest.approx(logged, rel=0.001)


def test_latent_attention_is_copied_to_each_gpu_and_heads_are_not() -> None:
    latent, grouped = (KvLayers(61, 1, 576),), (KvLayers(80, 8, 256),)
    assert kv_bytes_of_sequence_per_gpu(latent, 4096, tp=8) == kv_bytes_of_sequence_per_gpu(
        latent, 4096
    )
    assert (
        kv_bytes_of_sequence_per_gpu(grouped, 4096, tp=4)
        == kv_bytes_of_sequence_per_gpu(grouped, 4096) / 4
    )
    # a head is not divided
    assert kv_bytes_of_sequence_per_gpu(grouped, 4096, tp=16) == kv_bytes_of_sequence_per_gpu(
        grouped, 4096, tp=8
    )
    assert (
        kv_bytes_of_sequence_per_gpu(grouped, 4096, pp=2)
        == kv_bytes_of_sequence_per_gpu(grouped, 4096) / 2
    )


def test_a_sequence_takes_as_much_on_eight_gpus_as_on_two_if_the_model_has_two_heads() -> None:
    facts = ModelFacts(
        "m", weight_bytes=GIB, kv_bytes_per_token=2**17, shape=ModelShape((KvLayers(64, 2, 512),))
    )
    cards = [GpuInfo(i, f"GPU-{i}", "X", memory_total_bytes=24 * GIB) for i in range(8)]

    def sequences(tp: int) -> float:
        flags = (FlagSetting("max-model-len", 8192), FlagSetting("tensor-parallel-size", tp))
        got = engines.estimate_memory_or_reason(LaunchPlan("vllm", "m", facts, flags=flags), cards)
        assert isinstance(got, MemoryFit) and got.kv_tokens is not None
        room_gib = got.available_gib_per_gpu * 0.92 - got.weights_gib_per_gpu
        return got.kv_tokens / room_gib

    assert sequences(8) == pytest.approx(sequences(2), rel=0.05)


def test_engines_keep_windows_in_different_ways() -> None:
    kv = (KvLayers(10, 8, 128), KvLayers(50, 8, 128, window=1024))
    layer = 8 * 128 * 2
    assert kv_bytes_of_sequence_per_gpu(kv, 32768) == 60 * 32768 * layer
    assert kv_bytes_of_sequence_per_gpu(kv, 32768, rule=KvStorageRule("share")) == pytest.approx(
        (10 + 0.8 * 50) * 32768 * layer
    )
    assert (
        kv_bytes_of_sequence_per_gpu(kv, 32768, rule=KvStorageRule("window", in_flight=512))
        == (10 * 32768 + 50 * 1536) * layer
    )
    assert (
        kv_bytes_of_sequence_per_gpu(kv, 32768, rule=KvStorageRule("blocks", in_flight=1008))
        == (10 * 32768 + 50 * 2048) * layer
    )
    assert kv_bytes_read_per_token(kv, 32768) == (10 * 32768 + 50 * 1024) * layer


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ({"sliding_window": 4096, "use_sliding_window": False}, {None: 80}),
        ({"sliding_window": 4096}, {4096: 80}),
        ({"sliding_window": 4096, "max_window_layers": 70}, {None: 70, 4096: 10}),
        ({"sliding_window": 512, "sliding_window_pattern": 6}, {None: 13, 512: 67}),
        ({"sliding_window": 128, "model_type": "gpt_oss"}, {None: 40, 128: 40}),
        ({"num_kv_shared_layers": 20}, {None: 60}),
        ({"hybrid_override_pattern": "M-M*"}, {}),
        ({"layer_types": ["mamba"] * 80}, {}),
    ],
)
def test_which_layers_have_a_window(more: dict[str, Any], layers: dict[int | None, int]) -> None:
    assert {one.window: one.count for one in parse_model_shape({**LLAMA_70B, **more}).kv} == layers


def test_linear_attention_has_a_state_instead_of_a_cache() -> None:
    qwen_next = config(48, 2048, 5120, 16, 2, 151936, head_dim=256, full_attention_interval=4) | {
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    linear, full = sorted(parse_model_shape(qwen_next).kv, key=lambda one: one.values)
    assert (linear.count, full.count, full.heads, full.values) == (36, 12, 2, 512)
    inputs = (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert linear.state_size_bytes() == 32 * 128 * 128 * 2 + inputs
    assert linear.state_size_bytes(bits=32) == 32 * 128 * 128 * 4 + inputs
    short, long = (kv_bytes_of_sequence_per_gpu((full, linear), n) for n in (1, 100_001))
    assert long - short == 12 * 2 * 512 * 2 * 100_000


TINY = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "intermediate_size": 512,
    "max_position_embeddings": 8192,
}
MAMBA_2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
GRANITE = {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 8,
    "layer_types": ["mamba", "mamba", "mamba", "attention"] * 2,
    **MAMBA_2,
}
NEMOTRON = {
    "model_type": "nemotron_h",
    "num_hidden_layers": 8,
    "hybrid_override_pattern": "M-M*M-M*",
    "head_dim": 64,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "n_groups": 1,
    "ssm_state_size": 64,
    "conv_kernel": 4,
}
FALCON = {"model_type": "falcon_h1", "num_hidden_layers": 4, "head_dim": 64, "mamba_d_ssm": 512}
QWEN_NEXT = {
    "num_hidden_layers": 8,
    "head_dim": 64,
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}


# Logs of vLLM 0.32.0 on a CPU: "KV cache size: N tokens", with 1 GiB, --max-model-len 4096,
# --max-num-batched-tokens 1024 and --no-async-scheduling. On a CPU, blocks have 128 tokens and the
# numbers of a state 32 bits.
@pytest.mark.parametrize(
    ("more", "flags", "logged"),
    [
        (FALCON | MAMBA_2, {}, 399_360),
        (QWEN_NEXT, {}, 762_600),
        (GRANITE, {}, 838_656),
        (GRANITE, {"enable-prefix-caching": False}, 1_341_849),
        (NEMOTRON, {}, 657_769),
    ],
)
def test_the_states_of_hybrid_models_count_as_in_the_log_of_vllm(
    more: dict[str, Any], flags: dict[str, Any], logged: int
) -> None:
    facts = ModelFacts("tiny", weight_bytes=1e6, shape=parse_model_shape(TINY | more))
    given = {
        "max-model-len": 4096,
        "max-num-batched-tokens": 1024,
        "async-scheduling": False,
        "block-size": 128,
        "mamba-ssm-cache-dtype": "float32",
        "kv-cache-memory-bytes": "1G",
        **flags,
    }
    settings = tuple(FlagSetting(name, value) for name, value in given.items())
    card = GpuInfo(0, "GPU-0", "NVIDIA X", memory_total_bytes=24 * GIB)
    plan = LaunchPlan("vllm", "tiny", facts, flags=settings)
    got = engines.estimate_memory_or_reason(plan, [card])
    assert isinstance(got, MemoryFit) and got.kv_tokens == pytest.approx(logged, rel=0.001)
    speculating = engines.estimate_memory_or_reason(
        plan.with_flag("speculative-config", {"method": "mtp"}), [card]
    )
    assert isinstance(speculating, MemoryFit) and speculating.kv_tokens is None
    assert "unknown: with speculation, more states are kept" in speculating.basis
    elsewhere = engines.estimate_memory_or_reason(LaunchPlan("sglang", "tiny", facts), [card])
    assert isinstance(elsewhere, MemoryFit) and elsewhere.kv_tokens is None
    assert "how the engine stores the states of such a model is not known" in elsewhere.basis


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"num_hidden_layers": 8, "attn_layer_period": 4, "mamba_d_state": 16}, "Mamba-1 (Jamba)"),
        ({"num_hidden_layers": 6, "attn_layer_indices": [2], **MAMBA_2}, "(Bamba)"),
        ({"num_hidden_layers": 8, "conv_L_cache": 3, "layer_types": ["conv"] * 8}, "(LFM2)"),
        ({"num_hidden_layers": 8, "hybrid_layer_ids": [3], "mamba_d_state": 64}, "(Zamba)"),
        ({"num_hidden_layers": 8, "index_topk": 2048, "kv_lora_rank": 512}, "sparse attention"),
        ({"num_hidden_layers": 8, "kv_lora_rank": 512, "linear_attn_config": {"x": 1}}, "(Kimi)"),
        ({"num_hidden_layers": 8, "mamba_d_state": 64}, "does not say which"),
        (GRANITE | {"mamba_d_state": 0}, "does not say which"),
        ({"num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8]}, "(LFM2)"),
        ({"num_hidden_layers": 8, "compress_ratios": [4, 128] * 4, "sliding_window": 128}, "V4"),
        ({"num_hidden_layers": 8, "attn_type_list": [0] * 7 + [1]}, "(MiniMax)"),
        ({"num_hidden_layers": 8, "layer_group_size": 8}, "(Ling)"),
        (
            {"num_hidden_layers": 6, "hybrid_layer_pattern": [0, 1] * 3, "sliding_window": 128},
            "MiMo",
        ),
        ({"num_hidden_layers": 6, "block_types": ["recurrent", "attention"]}, "(RecurrentGemma)"),
        ({"num_hidden_layers": 8, "mixer_types": ["lightning-attn"] * 8}, "(MiniCPM)"),
        ({"num_hidden_layers": 8, "num_attention_groups": 2}, "(Step)"),
        (
            {"num_hidden_layers": 8, "sliding_window": 64, "sliding_window_pattern": "LLLG"},
            "windows",
        ),
    ],
)
def test_a_cache_that_was_not_measured_is_unknown_with_the_reason(
    more: dict[str, Any], why: str
) -> None:
    shape = parse_model_shape(TINY | more)
    assert shape.kv == () and why in shape.kv_missing
    facts = ModelFacts("tiny", weight_bytes=1e6, shape=shape)
    card = GpuInfo(0, "GPU-0", "NVIDIA X", memory_total_bytes=24 * GIB)
    got = engines.estimate_memory_or_reason(LaunchPlan("vllm", "tiny", facts), [card])
    assert isinstance(got, MemoryFit) and got.kv_tokens is None and why in got.basis


def test_full_attention_in_a_list_of_kinds_is_full_attention() -> None:
    minimax_m2 = TINY | {"num_hidden_layers": 4, "attn_type_list": [1] * 4}
    assert [one.count for one in parse_model_shape(minimax_m2).kv] == [4]


NEMOTRON_NANO = config(56, 4480, 15680, 40, 8, 131072, head_dim=128) | {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-" * 27 + "**",
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
}
NEMOTRON_SUPER = NEMOTRON_NANO | {"num_key_value_heads": 2, "mamba_head_dim": 64}
QWEN_27B = config(64, 5120, 17408, 24, 4, 248320, head_dim=256, full_attention_interval=4) | {
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
}


@pytest.mark.parametrize(
    ("model", "bits", "state_bits", "block", "token"),
    [
        (NEMOTRON_NANO, 16, 16, 672, 4096),  # vllm#24280: 672 tokens
        (NEMOTRON_SUPER, 8, None, 8320, 512),  # kaito#2049: 8,320 tokens, with an FP8 cache
        (QWEN_27B, 16, None, 784, 4096),  # the log of an H200: 784 tokens
    ],
)
def test_a_block_of_a_hybrid_model_is_as_large_as_vllm_reports_on_gpus(
    model: dict[str, Any], bits: float, state_bits: int | None, block: int, token: int
) -> None:
    kv = parse_model_shape(model).kv
    group = min(one.count for one in kv)
    groups = sum(-(-one.count // group) for one in kv)
    rule = KvStorageRule("blocks", keeps_prefixes=False, state_bits=state_bits)
    size = kv_bytes_of_sequence_per_gpu(kv, 1, bits=bits, rule=rule)
    assert size == groups * group * block * token


def test_a_sequence_of_a_hybrid_model_takes_the_blocks_that_an_h200_logged() -> None:
    """The log: 1,400,832 tokens of cache, 42.75 requests of 32,768 tokens. A request takes 42
    blocks of attention and two in each of three groups of states, so there are 2,052 blocks."""
    size = kv_bytes_of_sequence_per_gpu(
        parse_model_shape(QWEN_27B).kv, 32_768, rule=KvStorageRule("blocks")
    )
    assert size == (42 + 3 * 2) * 16 * 784 * 4096


@pytest.mark.parametrize(
    ("flag", "value"), [("use-replayssm", True), ("mamba-cache-dtype", "float32")]
)
def test_states_that_a_flag_makes_larger_are_unknown(flag: str, value: Any) -> None:
    facts = ModelFacts("tiny", weight_bytes=1e6, shape=parse_model_shape(TINY | GRANITE))
    card = GpuInfo(0, "GPU-0", "NVIDIA X", memory_total_bytes=24 * GIB)
    got = engines.estimate_memory_or_reason(
        LaunchPlan("vllm", "tiny", facts).with_flag(flag, value), [card]
    )
    assert isinstance(got, MemoryFit) and got.kv_tokens is None and flag in got.basis


def test_weights_by_name_and_packed_bits() -> None:
    tensors = [
        Tensor("model.embed_tokens.weight", 2000, 1000),
        Tensor("lm_head.weight", 2000, 1000),
        Tensor("model.layers.0.self_attn.q_proj.qweight", 520),
        Tensor("model.layers.0.mlp.experts.3.up_proj.qweight", 5200),
        Tensor("model.layers.0.mlp.shared_experts.up_proj.qweight", 52),
        Tensor("model.visual.blocks.0.weight", 100, 50),
        Tensor("model.layers.1.self_attn.q_proj.weight", 70, 35),  # a draft layer after the last
    ]
    found = sum_weights_by_part(tensors, packed_bits=4.16, expert_share=1 / 8, layers=1)
    assert found is not None and found.bytes == 9942
    assert found.token_bytes == 520 + 52 + 5200 / 8 + 2000
    assert (found.parts.experts, found.parts.other) == (pytest.approx(10_000), 85)
    assert sum_weights_by_part(tensors, packed_bits=4, expert_share=None, layers=1) is None
    facts = model_facts_from_config(
        "m", LLAMA_8B, 9942, has_separate_head=True, source="files", tensors=tensors
    )
    assert facts.bytes_per_token == 2000 + 520 + 5200 + 52 + 70


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.15625),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 8.75),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4.15625),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, 4.5),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, 4.15625),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, 8),
        ({}, 16),
    ],
)
def test_bits_of_a_checkpoint(quantization: dict[str, Any], bits: float) -> None:
    assert bits_per_weight_from_config(quantization) == bits


@pytest.mark.parametrize(
    ("word", "name"),
    [("AWQ INT4 g128", "AWQ"), ("awq_marlin", "AWQ"), ("BF16", "BF16"), ("bfloat16", "BF16"), ("fp8", "FP8"),
     ("NVFP4", "NVFP4"), ("exl3", None), ("", None), (None, None)],
)  # fmt: skip
def test_names_of_quantizations(word: str | None, name: str | None) -> None:
    assert normalize_quantization(word) == name


def gguf_header(
    metadata: dict[str, tuple[int, bytes]], tensors: list[tuple[str, tuple[int, ...], int]]
) -> bytes:
    def text(word: str) -> bytes:
        return len(word.encode()).to_bytes(8, "little") + word.encode()

    out = b"GGUF" + (3).to_bytes(4, "little")
    out += len(tensors).to_bytes(8, "little") + len(metadata).to_bytes(8, "little")
    for name, (kind, value) in metadata.items():
        out += text(name) + kind.to_bytes(4, "little") + value
    for name, shape, kind in tensors:
        out += (
            text(name)
            + len(shape).to_bytes(4, "little")
            + b"".join(n.to_bytes(8, "little") for n in shape)
        )
        out += kind.to_bytes(4, "little") + bytes(8)
    return out


def u32(value: int) -> tuple[int, bytes]:
    return 4, value.to_bytes(4, "little")


HEADER = gguf_header(
    {
        "general.architecture": (8, (5).to_bytes(8, "little") + b"qwen3"),
        "qwen3.block_count": u32(2),
        "qwen3.embedding_length": u32(256),
        "qwen3.feed_forward_length": u32(512),
        "qwen3.attention.head_count": u32(4),
        "qwen3.attention.head_count_kv": u32(2),
        "qwen3.attention.key_length": u32(64),
        "tokenizer.ggml.tokens": (9, (8).to_bytes(4, "little") + (2).to_bytes(8, "little") + (bytes(8) + bytes(8))),
    },
    [
        ("token_embd.weight", (256, 1024), 12),
        ("output.weight", (256, 1024), 14),
        ("blk.0.ffn_up.weight", (256, 512), 8),
    ],
)  # fmt: skip


def test_a_gguf_header() -> None:
    metadata, tensors = parse_gguf_metadata_and_tensors(HEADER)
    facts = model_facts_from_gguf("m.gguf", metadata, tensors, source="header")
    assert facts.kv_bytes_per_token == 2 * 2 * 128 * 2 and facts.layers == 2
    sizes = [1024 * 256 // 256 * 144, 1024 * 256 // 256 * 210, 512 * 256 // 32 * 34]
    assert facts.weight_bytes == sum(sizes) and facts.bytes_per_token == sizes[1] + sizes[2]
    assert config_from_metadata(metadata)["vocab_size"] == 2


def test_the_sizes_of_tensor_types_are_those_of_the_gguf_package() -> None:
    for kind, (weights, size) in gguf.GGML_QUANT_SIZES.items():
        _, (tensor,) = parse_gguf_metadata_and_tensors(
            gguf_header({}, [("t", (weights * 8,), int(kind))])
        )
        assert tensor.bytes == 8 * size, kind


@pytest.mark.parametrize("size", range(0, len(HEADER), 7))
def test_a_header_that_is_cut_off(size: int) -> None:
    with pytest.raises(TruncatedError):
        parse_gguf_metadata_and_tensors(HEADER[:size])


@given(at=st.integers(4, len(HEADER) - 1), bytes_=st.binary(min_size=1, max_size=8))
@example(8, b"\xff" * 8)
@example(16, b"\xff" * 8)
def test_a_damaged_header_raises_only_value_errors(at: int, bytes_: bytes) -> None:
    try:
        metadata, tensors = parse_gguf_metadata_and_tensors(
            HEADER[:at] + bytes_ + HEADER[at + len(bytes_) :]
        )
    except ValueError:
        return
    facts = model_facts_from_gguf("m", metadata, tensors, source="")
    assert facts.weight_bytes is not None and facts.weight_bytes >= 0


HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(
        [2**63, 10**400, -1, 0, 1, 2, 64, float("nan"), float("inf"), "full_attention", "8"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "0"]), inner, max_size=2)
    ),
    max_leaves=5,
)
KEYS = sorted(
    {
        *GPT_OSS_20B,
        *QWEN_235B,
        "text_config",
        "layer_types",
        "sliding_window",
        "sliding_window_pattern",
    }
    | {
        "kv_lora_rank",
        "qk_rope_head_dim",
        "first_k_dense_replace",
        "mlp_only_layers",
        "full_attention_interval",
    }
    | {
        "quantization_config",
        "torch_dtype",
        "vision_config",
        "tie_word_embeddings",
        "max_window_layers",
    }
)


@given(st.dictionaries(st.sampled_from(KEYS), HOSTILE, max_size=12), st.booleans())
def test_a_hostile_config_gives_missing_sizes(changed: dict[str, Any], known: bool) -> None:
    document = {**(LLAMA_8B if known else {}), **changed}
    facts = model_facts_from_config(
        "m",
        document,
        10**10,
        has_separate_head=True,
        source="",
        tensors=[Tensor("a", 10)] if known else (),
    )
    assert facts.weight_bytes == 1e10
    assert facts.bytes_per_token is None or facts.bytes_per_token >= 0
    assert facts.kv_bytes_per_token is None or facts.kv_bytes_per_token > 0
    card = GpuInfo(0, "GPU-0", "NVIDIA X", memory_total_bytes=24 * GIB)
    for engine in ("vllm", "sglang", "tabbyapi", "llamacpp"):
        got = engines.estimate_memory_or_reason(LaunchPlan(engine, "m", facts), [card])
        assert isinstance(got, str) or got.used_gib_per_gpu > 0


@given(
    st.dictionaries(
        st.text(max_size=4),
        HOSTILE | st.fixed_dictionaries({"data_offsets": HOSTILE, "dtype": HOSTILE}),
    )
)
def test_a_hostile_safetensors_header_gives_no_tensors_or_sound_ones(
    document: dict[str, Any],
) -> None:
    assert all(t.bytes > 0 for t in parse_tensors(json.dumps(document)))
