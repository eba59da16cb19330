"""The weights in a model's files: the tensors that a safetensors header lists, and the bytes of
them that one token reads.

The headers may be malicious. An entry that is not a tensor is ignored, and a header that is not
JSON counts as empty.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.model.lazy_dataclass import dataclass
from workbench.model.model_shape import WeightParts
from workbench.model.untrusted_text import as_list, as_table

_BITS_OF_UNQUANTIZED = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
}  # types that hold one weight per number
_LARGEST = 2**50
_PARTS = (  # the first that matches a tensor's name; the rest is dense
    (
        "other",
        re.compile(
            r"(^|\.)(visual|vision\w*|audio\w*|mm_projector|multi_modal_projector|mtp|nextn|v|mm)\."
        ),
    ),
    ("experts", re.compile(r"\.experts\.|_exps\.")),
    ("head", re.compile(r"(^|\.)(lm_head|embed_out)\.|^output\.weight$")),
    (
        "embedding",
        re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|token_embd)\."),
    ),
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h)\.(\d{1,6})\.")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a weight file. `weights` is the number of weights in the tensor, or None if its
    type may pack several weights into one number."""

    name: str
    bytes: int
    weights: int | None = None


@dataclass(frozen=True, slots=True)
class FileWeights:
    """The weights of a checkpoint: `bytes` of all weights, `token_bytes` that one token reads, and
    `parts`, the number of weights of each part of the model."""

    bytes: float
    token_bytes: float
    parts: WeightParts


def parse_tensors(header: str) -> list[Tensor]:
    """Return the tensors that the JSON header of a safetensors file lists. An entry that is no
    tensor is left out; [] if the header is not JSON."""
    try:
        document = json.loads(header)
    except (ValueError, RecursionError):
        return []
    tensors = (_parse_tensor(name, as_table(entry)) for name, entry in as_table(document).items())
    return list(filter(None, tensors))


def _parse_tensor(name: str, entry: Mapping[str, Any]) -> Tensor | None:
    begin_and_end = as_list(entry.get("data_offsets"))
    if not all(type(v) is int and 0 <= v < _LARGEST for v in begin_and_end):
        return None
    if len(begin_and_end) != 2:
        return None
    size = begin_and_end[1] - begin_and_end[0]
    bits = _BITS_OF_UNQUANTIZED.get(str(entry.get("dtype")))
    if size <= 0:
        return None
    if bits is None:
        return Tensor(name, size)
    return Tensor(name, size, size * 8 // bits)


def sum_weights_by_part(
    tensors: Iterable[Tensor], *, packed_bits: float, expert_share: float | None, layers: int | None
) -> FileWeights | None:
    """Return the weights of a checkpoint, given all its `tensors`. `packed_bits` is the bits per
    weight in tensors that pack several weights into one number, `expert_share` the share of the
    experts that a token uses, and `layers` the number of layers, after which a draft head may
    follow. None without tensors, or if the share of existing experts is unknown."""
    sizes: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, float] = defaultdict(float)
    for tensor in tensors:
        part, weights = _model_part_of_tensor(tensor.name, layers), tensor.weights
        sizes[part] += tensor.bytes
        counts[part] += tensor.bytes * 8 / packed_bits if weights is None else weights
    share = 1.0
    if expert_share is not None:
        share = expert_share
    elif "experts" in sizes:
        return None
    if not sizes:
        return None
    read = sizes.get("dense", 0.0) + share * sizes.get("experts", 0.0)
    read += sizes.get("head") or sizes.get("embedding", 0.0)
    return FileWeights(
        sum(sizes.values()), read, WeightParts(**{"dense": 0.0, **counts}, expert_share=share)
    )


def _model_part_of_tensor(name: str, layers: int | None) -> str:
    layer = _LAYER.search(name)
    if layers is not None and layer and int(layer[1]) >= layers:
        return "other"
    return next((part for part, pattern in _PARTS if pattern.search(name)), "dense")
