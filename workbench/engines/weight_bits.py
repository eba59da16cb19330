"""Bits per weight of each quantization, including the quantization scales, and the bytes of models
with such weights.

An engine quantizes the linear layers. The output matrix and the embedding stay in 16 bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.model_shape import WeightParts

# weights that share a scale in AWQ and GPTQ checkpoints, unless the checkpoint says otherwise
GROUP = 128
# Bits per weight and group: 4-bit groups of 128 have a 16-bit scale and a 4-bit zero point; NVFP4
# has an 8-bit scale for 16 weights, MXFP4 one for 32 (OCP Microscaling specification).
BITS: Mapping[str, float] = {
    "BF16": 16.0,
    "FP8": 8.0,
    "NVFP4": 4 + 8 / 16,
    "MXFP4": 4 + 8 / 32,
    "AWQ": 4 + 20 / GROUP,
    "GPTQ": 4 + 20 / GROUP,
}
# Whole files, head and embedding included, of Llama-3.1-8B (llama.cpp, tools/quantize/README.md).
GGUF_BITS: Mapping[str, float] = {
    "Q8_0": 8.5008,
    "Q6_K": 6.5633,
    "Q5_K_M": 5.7036,
    "Q4_K_M": 4.8944,
    "IQ4_XS": 4.4597,
}
_METHODS = {
    "fp8": "FP8",
    "awq": "AWQ",
    "gptq": "GPTQ",
    "mxfp4": "MXFP4",
    "nvfp4": "NVFP4",
    "modelopt_fp4": "NVFP4",
}


def normalize_quantization(quantization: str | None) -> str | None:
    """Return the key in `BITS` for the name of a quantization method, such as "AWQ" for
    "awq_marlin". None for an unknown method."""
    word = (quantization or "").lower().removesuffix("_marlin").removesuffix("-int4").strip()
    if not word:
        return None
    if word in ("bfloat16", "float16", "bf16", "fp16", "torch.bfloat16", "torch.float16"):
        return "BF16"
    for key, name in _METHODS.items():
        if f"{word} ".startswith((f"{key} ", f"{key}_")):
            return name
    return None


def bits_per_weight_from_config(config: Mapping[str, Any]) -> float:
    """Return the bits per weight, including the quantization scales, that the `quantization_config`
    of a config.json describes; 16 if it names no method."""
    method = str(config.get("quant_method") or "").lower()
    bits, group = config.get("bits"), config.get("group_size")
    if method in ("awq", "gptq") and type(bits) is int and 1 <= bits <= 16:
        if type(group) is not int or not 1 <= group <= 2**16:
            group = GROUP
        return bits + (16 + bits) / group
    text = str(config.get("quant_algo") or config.get("format") or "").lower()
    if "nvfp4" in text:
        return BITS["NVFP4"]
    if method == "compressed-tensors" and "pack-quantized" in text:
        return BITS["AWQ"]
    if not method:
        return 16.0
    return BITS[normalize_quantization(method) or "FP8"]


def weight_bytes_read_per_token(
    parts: WeightParts, bits: float, *, expert_bits: float | None = None, head_bits: float = 16.0
) -> float:
    """Return the bytes of weights that one token reads if it is computed alone: all dense weights,
    the experts that the token uses, and the output matrix. `bits` are the bits per weight,
    `expert_bits` those of the experts (None: as `bits`), and `head_bits` those of the output
    matrix."""
    if expert_bits is None:
        expert_bits = bits
    experts = parts.experts * parts.expert_share * expert_bits
    return (parts.dense * bits + experts + parts.output_matrix_weight_count * head_bits) / 8


def weight_bytes_in_memory(parts: WeightParts, bits: float, *, head_bits: float = 16.0) -> float:
    """Return the bytes that all weights take in GPU memory. `bits` are those of the layers,
    `head_bits` those of the output matrix and the embedding."""
    other = parts.head + parts.embedding
    return ((parts.dense + parts.experts) * bits + other * head_bits + parts.other * 16) / 8
