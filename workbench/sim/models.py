"""How big a model is: bytes read per token, bytes held, shape. Known ids from a table, others from their name.

Bytes per token at batch 1 are all linear weights once with their scales, and the head once in 16 bit; arithmetic from
the public model configurations. For names that are not in the table the size comes from the digits in the name, the
shape from the nearest known size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# bits per weight, scales included
BITS = {
    "bf16": 16.0,
    "fp32": 32.0,
    "fp8": 8.0,
    "int8": 8.03,
    "awq": 4.156,
    "gptq": 4.156,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
    "bitsandbytes": 4.5,
    "q8_0": 8.5,
    "q6_k": 6.56,
    "q5_k": 5.7,
    "q4_k": 4.85,
    "q4_0": 4.55,
    "q3_k": 3.9,
    "q2_k": 3.35,
}
COMPUTE = {"fp8": "fp8", "int8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}  # the tensor format; the others use bf16


@dataclass(frozen=True)
class SimulatedModel:
    """Parameters as counts, sizes in bytes. `active` is what one token touches (fewer than all in a mixture)."""

    id: str
    parameters: float
    active: float
    layers: int
    hidden: int
    kv_bytes_per_token: float
    bytes_per_token: float
    weight_bytes: float
    max_len: int
    quantization: str
    architecture: str
    guessed: bool = False


@dataclass(frozen=True)
class _Known:
    pattern: str
    parameters: float
    layers: int
    hidden: int
    kv_kib: float
    embedding: float  # parameters looked up, not read: 0 when tied to the head
    max_len: int
    architecture: str
    gb_per_token: tuple[tuple[str, float], ...] = ()
    active: float | None = None
    extra_gb: float = 0.0  # held but not read in decode (vision tower)


_TABLE = (
    _Known(
        r"mistral-large",
        122.6e9,
        88,
        12288,
        352,
        0.403e9,
        131072,
        "MistralForCausalLM",
        (("awq", 64.09), ("gptq", 64.09)),
    ),
    _Known(
        r"llama-?3(\.\d)?-70b",
        70.55e9,
        80,
        8192,
        320,
        1.05e9,
        131072,
        "LlamaForCausalLM",
        (("bf16", 139.0), ("fp8", 70.55), ("nvfp4", 40.61), ("awq", 37.66)),
    ),
    _Known(
        r"llama-?3(\.\d)?-8b",
        8.03e9,
        32,
        4096,
        128,
        0.525e9,
        131072,
        "LlamaForCausalLM",
        (("bf16", 15.01), ("fp8", 8.03), ("nvfp4", 4.98)),
    ),
    _Known(r"llama-?3\.2-3b", 3.21e9, 28, 3072, 112, 0.0, 131072, "LlamaForCausalLM", (("bf16", 6.43), ("fp8", 3.61))),
    _Known(
        r"qwen2\.5(-coder)?-7b",
        7.62e9,
        28,
        3584,
        56,
        0.545e9,
        32768,
        "Qwen2ForCausalLM",
        (("awq", 4.48), ("fp8", 7.62), ("q4_k", 4.37)),
    ),
    _Known(
        r"qwen3-vl-2b",
        1.72e9,
        28,
        2048,
        112,
        0.0,
        262144,
        "Qwen3VLForConditionalGeneration",
        (("bf16", 3.44),),
        extra_gb=0.82,
    ),
    _Known(
        r"qwen3-vl-32b",
        32.8e9,
        64,
        5120,
        256,
        0.778e9,
        262144,
        "Qwen3VLForConditionalGeneration",
        (("fp8", 32.76), ("awq", 17.8)),
        extra_gb=1.2,
    ),
    _Known(
        r"gpt-oss-20b",
        20.9e9,
        24,
        2880,
        48,
        0.58e9,
        131072,
        "GptOssForCausalLM",
        (("mxfp4", 3.70), ("bf16", 3.70), ("q8_0", 2.56)),
        active=3.6e9,
    ),
    _Known(
        r"gpt-oss-120b",
        116.8e9,
        36,
        2880,
        72,
        0.58e9,
        131072,
        "GptOssForCausalLM",
        (("mxfp4", 4.97), ("bf16", 4.97)),
        active=5.1e9,
    ),
    _Known(
        r"qwen3-235b-a22b",
        235e9,
        94,
        4096,
        188,
        0.62e9,
        262144,
        "Qwen3MoeForCausalLM",
        (("awq", 12.1), ("gptq", 12.1)),
        active=22e9,
    ),
)
# parameters in billions -> layers, hidden size, KV KiB per token
_SHAPES: tuple[tuple[float, int, int, int], ...] = (
    (0.6, 24, 1024, 56),
    (1.7, 28, 2048, 112),
    (4, 36, 2560, 144),
    (8, 32, 4096, 128),
    (14, 40, 5120, 160),
    (32, 64, 5120, 256),
    (72, 80, 8192, 320),
    (123, 88, 12288, 352),
    (1e9, 94, 12288, 376),
)
_NAMED = (
    ("nvfp4", r"nvfp4|fp4(?!x)"),
    ("mxfp4", r"mxfp4|gpt-oss"),
    ("awq", r"awq|w4a16|int4|autoround"),
    ("gptq", r"gptq"),
    ("fp8", r"fp8"),
    ("int8", r"int8|w8a8"),
    ("q8_0", r"q8_0"),
    ("q6_k", r"q6_k"),
    ("q5_k", r"q5_"),
    ("q4_k", r"q4_k|iq4"),
    ("q4_0", r"q4_0"),
    ("q3_k", r"q3_|iq3"),
    ("q2_k", r"q2_|iq2"),
)
_FLAGGED = {
    "awq": "awq",
    "awq_marlin": "awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "fp8": "fp8",
    "w8a8_fp8": "fp8",
    "modelopt": "fp8",
    "modelopt_fp8": "fp8",
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "bitsandbytes": "bitsandbytes",
    "w8a8_int8": "int8",
    "int8": "int8",
    "fbgemm_fp8": "fp8",
    "ptpc_fp8": "fp8",
}


def named_quantization(model_id: str) -> str | None:
    """The quantization that the checkpoint's name tells of, or None."""
    name = model_id.lower()
    return next((quant for quant, pattern in _NAMED if re.search(pattern, name)), None)


def describe(
    model_id: str, *, quantization: str | None = None, dtype: str = "auto", kv_fp8: bool = False
) -> SimulatedModel:
    """What serving `model_id` costs. `quantization` and `dtype` as the engine's flags give them."""
    name = model_id.lower().rstrip("/")
    quant = _FLAGGED.get((quantization or "").lower()) or named_quantization(name)
    quant = quant or ("fp32" if dtype in ("float", "float32") else "bf16")
    bits = BITS[quant]
    bpw = re.search(r"(\d\.\d+)[-_ ]?bpw", name)  # exl2, exl3: the name carries the bits
    if bpw:
        quant, bits = "awq", float(bpw.group(1)) + 0.1
    known = next((k for k in _TABLE if re.search(k.pattern, name)), None)
    guessed = known is None
    known = known or _guess(name)
    active = known.active or known.parameters
    read = dict(known.gb_per_token).get(quant, 0.0) * 1e9 if not bpw else 0.0
    read = read or max(0.0, active - known.embedding) * bits / 8
    held = (known.parameters - known.embedding) * bits / 8 if known.active else read
    held += known.embedding * 2 + known.extra_gb * 1e9
    on_disk = _on_disk(model_id)
    if guessed and on_disk:
        held, read = on_disk, on_disk * active / known.parameters
    return SimulatedModel(
        id=model_id,
        parameters=known.parameters,
        active=active,
        layers=known.layers,
        hidden=known.hidden,
        kv_bytes_per_token=known.kv_kib * 1024 / (2 if kv_fp8 else 1),
        bytes_per_token=read,
        weight_bytes=held,
        max_len=known.max_len,
        quantization=quant,
        architecture=known.architecture,
        guessed=guessed,
    )


def _guess(name: str) -> _Known:
    sizes = [float(s) for s in re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", name)]
    billions = max(sizes, default=1.0)
    active = re.search(r"a(\d+(?:\.\d+)?)b", name)
    _, layers, hidden, kv = next(shape for shape in _SHAPES if billions <= shape[0] * 1.3)
    return _Known(
        "",
        billions * 1e9,
        layers,
        hidden,
        kv,
        0.0,
        32768,
        "LlamaForCausalLM",
        active=float(active.group(1)) * 1e9 if active else None,
    )


def _on_disk(model_id: str) -> float:
    """Bytes of weights of a local checkpoint, 0 where `model_id` is no path."""
    path = Path(model_id)
    if path.is_file():
        return float(path.stat().st_size)
    return float(sum(f.stat().st_size for f in path.glob("*.safetensors"))) if path.is_dir() else 0.0
