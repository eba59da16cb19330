"""Sizes and shapes of LLMs. model_sizes.json has the known models; for any other model, they are
guessed from the number of parameters in its name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from workbench.model.lazy_dataclass import dataclass

_DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
BITS: dict[str, float] = _DATA["bits_per_weight"]
COMPUTE: dict[str, str] = _DATA["tensor_format"]  # of quantized weights; all others compute in bf16


@dataclass(frozen=True)
class SimulatedModel:
    """The sizes of a model. `parameters` and `active` are counts; `active` is the number of
    parameters that one token uses. `weight_bytes` is the size of all weights, `bytes_per_token` the
    weights that one token reads."""

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
    """One row of model_sizes.json: the sizes of a known model, whose id matches the regular
    expression `pattern`."""

    parameters: float
    layers: int
    hidden: int
    kv_kib: float
    embedding: float
    max_len: int
    architecture: str
    pattern: str = ""
    gb_per_token: Mapping[str, float] = field(default_factory=dict)
    active: float | None = None
    extra_gb: float = 0.0


_TABLE = tuple(_Known(**row) for row in _DATA["models"])


def quantization_named_in_id(model_id: str) -> str:
    """Return the quantization that the id or path of a model names, such as "awq"; "" if it names
    none."""
    name = model_id.lower()
    quantizations: dict[str, str] = _DATA["quantization_in_name"]
    for quantization, pattern in quantizations.items():
        if re.search(pattern, name):
            return quantization
    return ""


def describe_model(
    model_id: str, *, quantization: str = "", dtype: str = "auto", kv_fp8: bool = False
) -> SimulatedModel:
    """Return the simulated model for the id or path `model_id`. Its sizes are guessed from its name
    if it is not known. `quantization` and `dtype` are the values of the engine's flags, "" if the
    engine has no such flag or it is not set; `kv_fp8` is True for an 8-bit KV cache.
    """
    name = model_id.lower().rstrip("/")
    quant = _DATA["quantization_flag"].get(quantization.lower()) or quantization_named_in_id(name)
    quant = quant or ("fp32" if dtype in ("float", "float32") else "bf16")
    bits = BITS[quant]
    # the names of exl2 and exl3 files contain the bits
    bpw = re.search(r"(\d\.\d+)[-_ ]?bpw", name)
    if bpw:
        quant, bits = "awq", float(bpw.group(1)) + 0.1
    known = next((k for k in _TABLE if re.search(k.pattern, name)), None)
    guessed = known is None
    known = known or _guess_model(name)
    parameters, embedding = known.parameters, known.embedding
    active = known.active or parameters
    read = known.gb_per_token.get(quant, 0.0) * 1e9 if not bpw else 0.0
    read = read or max(0.0, active - embedding) * bits / 8
    held = (parameters - embedding) * bits / 8 if known.active else read
    held += embedding * 2 + known.extra_gb * 1e9
    on_disk = _model_file_bytes(model_id)
    if guessed and on_disk:
        held, read = on_disk, on_disk * active / parameters
    return SimulatedModel(
        id=model_id,
        parameters=parameters,
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


def _guess_model(name: str) -> _Known:
    """Return a model that is guessed from its name. The number of parameters is the number before
    "b" in the name; the layers are those of the smallest known shape with about as many parameters.
    """
    sizes = [float(s) for s in re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", name)]
    billions = max(sizes, default=1.0)
    active = re.search(r"a(\d+(?:\.\d+)?)b", name)
    shapes = _DATA["shapes"]["rows"]
    _, layers, hidden, kv_kib = next(shape for shape in shapes if billions <= shape[0] * 1.3)
    active_parameters = float(active.group(1)) * 1e9 if active else None
    return _Known(
        billions * 1e9,
        layers,
        hidden,
        kv_kib,
        0.0,
        32768,
        "LlamaForCausalLM",
        active=active_parameters,
    )


def _model_file_bytes(model_id: str) -> float:
    path = Path(model_id)
    if path.is_file():
        return float(path.stat().st_size)
    return float(sum(f.stat().st_size for f in path.glob("*.safetensors")))
