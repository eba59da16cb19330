"""Tiny models with random weights, one for each shape of KV cache. Run by test_kv_size.py in vLLM's
environment.

usage: make_tiny_shapes.py DIRECTORY      creates DIRECTORY/gqa, mla, sliding, quantized, hybrid and tied; no
                                           network
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from make_tiny_model import tokenizer
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    Gemma3TextConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
GROUP = 128  # weights that share a scale in the quantized model
SHAPES = {
    "gqa": lambda **ids: LlamaConfig(
        num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=False, **SMALL, **ids
    ),
    "mla": lambda **ids: DeepseekV2Config(
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        first_k_dense_replace=3,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        tie_word_embeddings=False,
        **SMALL,
        **ids,
    ),
    "sliding": lambda **ids: Gemma3TextConfig(
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        sliding_window=512,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
        **SMALL,
        **ids,
    ),
    "quantized": lambda **ids: Qwen2Config(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=False, **SMALL, **ids
    ),
    "hybrid": lambda **ids: GraniteMoeHybridConfig(
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        layer_types=["mamba", "mamba", "mamba", "attention"] * 2,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=64,
        mamba_n_heads=8,
        mamba_d_head=64,
        mamba_n_groups=1,
        mamba_d_state=64,
        mamba_expand=2,
        position_embedding_type="nope",
        **SMALL,
        **ids,
    ),
    "tied": lambda **ids: Qwen3Config(
        num_hidden_layers=5, num_attention_heads=8, num_key_value_heads=2, head_dim=128, tie_word_embeddings=True,
        **SMALL, **ids,
    ),
}  # fmt: skip


def quantize(folder: Path) -> None:
    """Replace the linear weights of the checkpoint with random 4-bit weights, in the format of
    GPTQ."""
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        rows, columns = tensors.pop(name).shape  # out, in
        stem = name.removesuffix(".weight")
        tensors[f"{stem}.qweight"] = torch.randint(
            -(2**31), 2**31 - 1, (columns // 8, rows), dtype=torch.int32
        )
        tensors[f"{stem}.qzeros"] = torch.full(
            (columns // GROUP, rows // 8), 0x77777777, dtype=torch.int32
        )
        tensors[f"{stem}.scales"] = torch.full((columns // GROUP, rows), 0.01, dtype=torch.bfloat16)
        tensors[f"{stem}.g_idx"] = torch.arange(columns, dtype=torch.int32) // GROUP
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
    }
    (folder / "config.json").write_text(json.dumps(config))


def main() -> None:
    words = tokenizer()
    ids = {
        "vocab_size": len(words),
        "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    torch.manual_seed(0)
    for shape, config in SHAPES.items():
        folder = Path(sys.argv[1]) / shape
        model = AutoModelForCausalLM.from_config(config(**ids)).to(torch.bfloat16)
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        if shape == "quantized":
            quantize(folder)
        print(folder, f"{(folder / 'model.safetensors').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
