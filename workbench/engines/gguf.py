"""Parser for the header of a GGUF file: metadata and tensors. The format is described in ggml's
docs/gguf.md.

A header may be malicious or cut off, so each count in it is checked against the number of bytes
left.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from workbench.engines.weight_files import Tensor
from workbench.model.untrusted_text import as_list

_MAGIC = b"GGUF"
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
# of an array that is kept, such as one number per layer; longer ones are vocabularies
_MOST_VALUES = 4096
# Weights in a block -> type of a tensor -> bytes of a block, from ggml's type table.
_SIZES = {
    1: {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2},
    32: {2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 9: 40, 20: 18, 39: 17},
    64: {40: 36},
    128: {41: 18},
    256: {
        10: 84,
        11: 110,
        12: 144,
        13: 176,
        14: 210,
        15: 292,
        16: 66,
        17: 74,
        18: 98,
        19: 50,
        21: 110,
        22: 82,
    }
    | {23: 136, 29: 56, 34: 54, 35: 66},
}
_BLOCKS = {
    kind: (weights, size) for weights, sizes in _SIZES.items() for kind, size in sizes.items()
}
# architectures whose files may leave out the pattern
_WINDOW_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}


class TruncatedError(ValueError):
    """Raised if a GGUF header is longer than the bytes that were read."""


class _HeaderReader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def read_bytes(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise TruncatedError
        self.at += size
        return self.data[self.at - size : self.at]

    def read_number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.read_bytes(struct.calcsize(f"<{kind}")))[0]

    def read_text(self) -> str:
        return self.read_bytes(self.read_number("Q")).decode("utf-8", "replace")

    def read_value(self, kind: int) -> Any:
        """Read one metadata value of the GGUF type `kind`. For an array of strings and for a very
        long array of numbers, only the number of elements is returned."""
        if kind == _STRING:
            return self.read_text()
        if kind != _ARRAY:
            return self.read_number(_struct_format_of_gguf_type(kind))
        inner, count = self.read_number("I"), self.read_number("Q")
        if inner == _STRING:
            for _ in range(count):
                self.read_bytes(self.read_number("Q"))
            return count
        one = _struct_format_of_gguf_type(inner)
        values = self.read_bytes(count * struct.calcsize(f"<{one}"))
        if count > _MOST_VALUES:
            return count
        return list(struct.unpack(f"<{count}{one}", values))


def _struct_format_of_gguf_type(kind: int) -> str:
    if kind not in _FORMATS:
        raise ValueError(f"a metadata value of the GGUF file has the unknown type {kind}")
    return _FORMATS[kind]


def parse_gguf_metadata_and_tensors(data: bytes) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the metadata and the tensors of the header at the beginning of `data`. Raises
    TruncatedError if the header is longer than `data`, and ValueError if it is not a valid header.
    """
    reader = _HeaderReader(data)
    if reader.read_bytes(4) != _MAGIC or reader.read_number("I") not in (2, 3):
        raise ValueError("the file is not a GGUF file of version 2 or 3")
    tensors, values = reader.read_number("Q"), reader.read_number("Q")
    metadata = {}
    for _ in range(values):
        name = reader.read_text()
        metadata[name] = reader.read_value(reader.read_number("I"))
    return metadata, [_read_tensor(reader) for _ in range(tensors)]


def _read_tensor(reader: _HeaderReader) -> Tensor:
    name, dimensions = reader.read_text(), reader.read_number("I")
    if not 1 <= dimensions <= 4:
        raise ValueError(
            f"tensor {name!r} of the GGUF file has {dimensions} dimensions, expected 1 to 4"
        )
    weights = 1
    for _ in range(dimensions):
        weights *= reader.read_number("Q")
    kind = reader.read_number("I")
    reader.read_bytes(8)  # its place in the file
    if kind not in _BLOCKS:
        raise ValueError(f"tensor {name!r} of the GGUF file has the unknown type {kind}")
    block, size = _BLOCKS[kind]
    return Tensor(name, weights // block * size, weights)


def config_from_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata under the field names of a Hugging Face config.json. Fields without a
    value are left out."""
    kind = metadata.get("general.architecture")

    def model_value(name: str) -> Any:
        return metadata.get(f"{kind}.{name}")

    def largest_model_value(name: str) -> Any:  # one number, or one per layer
        found = model_value(name)
        numbers = (v for v in as_list(found) if type(v) is int)
        return max(numbers, default=found)

    rank = model_value("attention.kv_lora_rank")
    latent = model_value("attention.key_length_mla") if rank else None
    names = {
        "model_type": kind,
        "num_hidden_layers": model_value("block_count"),
        "hidden_size": model_value("embedding_length"),
        "intermediate_size": largest_model_value("feed_forward_length"),
        "moe_intermediate_size": model_value("expert_feed_forward_length"),
        "num_attention_heads": largest_model_value("attention.head_count"),
        "num_key_value_heads": largest_model_value("attention.head_count_kv"),
        "head_dim": latent or model_value("attention.key_length"),
        "v_head_dim": model_value("attention.value_length_mla")
        or model_value("attention.value_length"),
        "kv_lora_rank": rank,
        "qk_rope_head_dim": model_value("rope.dimension_count") if rank else None,
        "num_experts": model_value("expert_count"),
        "num_experts_per_tok": model_value("expert_used_count"),
        "sliding_window": model_value("attention.sliding_window"),
        "max_position_embeddings": model_value("context_length"),
        "vocab_size": model_value("vocab_size") or metadata.get("tokenizer.ggml.tokens"),
        "index_topk": model_value("attention.indexer.top_k"),
        "ssm_cfg": model_value("ssm.state_size"),
    }
    found = {name: given for name, given in names.items() if given is not None}
    return {
        **found,
        **_sliding_window_config_fields(
            found, model_value("attention.sliding_window_pattern"), kind
        ),
    }


def _sliding_window_config_fields(
    config: Mapping[str, Any], pattern: Any, kind: Any
) -> dict[str, Any]:
    """Return the fields of a config.json, `layer_types` or `sliding_window_pattern`, that say which
    layers use sliding-window attention. `pattern` is the layer pattern in the GGUF metadata, `kind`
    the model architecture. The result is {} if no layer is known to use a window."""
    if not config.get("sliding_window"):
        return {}
    if isinstance(pattern, list):
        return {
            "layer_types": ["sliding_attention" if one else "full_attention" for one in pattern]
        }
    every = pattern
    if type(every) is not int:
        every = _WINDOW_EVERY.get(str(kind))
    return {"sliding_window_pattern": every} if every else {}
