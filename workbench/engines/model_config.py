"""The numbers of layers, heads and weights of a model, computed from its config.json. The file may
be malicious: a value of the wrong type or size is ignored, and a result that needs an ignored or
missing value is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.model.model_shape import KvLayers, ModelShape, WeightParts
from workbench.model.untrusted_text import as_list

_LARGEST = 2**40
_MOST_LAYERS = 4096
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_USED_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts")
# Keys of models whose cache or weights need more than the arithmetic below -> what they are.
_NOT_KNOWN = {
    "attn_layer_indices": "layers of Mamba-2 in an order of their own (Bamba)",
    "attn_layer_period": "layers of Mamba-1 (Jamba)",
    "block_types": "recurrent layers (RecurrentGemma)",
    "compress_ratios": "attention with a compressed cache (DeepSeek-V4)",
    "conv_L_cache": "layers of short convolution (LFM2)",
    "full_attn_idxs": "layers of short convolution (LFM2)",
    "hybrid_layer_ids": "layers of Mamba with shared attention (Zamba)",
    "hybrid_layer_pattern": "windows in an order of their own (MiMo)",
    "index_topk": "sparse attention with an index of its own",
    "layer_group_size": "linear attention in groups of layers (Ling)",
    "linear_attn_config": "linear attention beside latent attention (Kimi)",
    "mixer_types": "linear attention beside sparse attention (MiniCPM)",
    "num_attention_groups": "attention with heads of its own (Step)",
    "ssm_cfg": "layers of a state-space model",
}
FULL, WINDOW, CHUNK, LINEAR = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)
MAMBA, NONE = "mamba", "none"  # NONE: a layer without attention or state
_NEMOTRON = {"M": MAMBA, "*": FULL, "-": NONE, "E": NONE}  # letters of hybrid_override_pattern
_KIND_NAMES = {"attention": FULL, "mlp": NONE, "moe": NONE}
# the field that has the window of a layer of this kind
_WINDOW_FIELDS = {WINDOW: "sliding_window", CHUNK: "attention_chunk_size"}
_STATE_BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
# types whose config.json may leave out which layers have a window
_EVERY_SECOND = ("gemma2", "gpt_oss")


def select_language_model_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json that describes the language model. It is all of `config` if
    the file has no such part."""
    for key in ("text_config", "llm_config"):
        part = config.get(key)
        if isinstance(part, Mapping):
            return part
    return config


def read_first_positive_int(config: Mapping[str, Any], *names: str) -> int | None:
    """Return the first field of `names` whose value is a whole number from 1 to 2**40. None if no
    field has such a value."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
            return value
    return None


def _read_positive_int_or_zero(config: Mapping[str, Any], *names: str) -> int:
    return read_first_positive_int(config, *names) or 0


def _product_of_fields(config: Mapping[str, Any], *names: str) -> int:
    """Return the product of the fields `names`. 0 if one of them is missing, or is no whole number
    from 1 to 2**40."""
    return math.prod(_read_positive_int_or_zero(config, name) for name in names)


def parse_model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Return what a config.json says about a model's layers, weights and KV cache. A size that the
    file does not tell is None or (); `kv_missing` says why the KV cache is unknown."""
    lm_config = select_language_model_config(config)
    kv = _parse_kv_layers(lm_config)
    return ModelShape(
        kv=kv,
        kv_missing="" if kv else _reason_kv_is_unknown(lm_config),
        parts=_count_weights_by_part(lm_config, _has_tied_embeddings(config, lm_config)),
        layers=read_first_positive_int(lm_config, "num_hidden_layers"),
        hidden=read_first_positive_int(lm_config, "hidden_size"),
        feed_forward=_compute_feed_forward_width(lm_config),
        vocabulary=read_first_positive_int(lm_config, "vocab_size"),
        max_length=read_first_positive_int(lm_config, "max_position_embeddings"),
    )


def read_total_and_active_experts(lm_config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (number of routed experts of a layer, number of experts that one token uses): (1, 1)
    for a model without experts. None if the config.json names several experts but not how many a
    token uses."""
    experts = _read_positive_int_or_zero(lm_config, *_EXPERTS)
    if experts <= 1:
        return 1, 1
    used = read_first_positive_int(lm_config, *_USED_EXPERTS)
    return (experts, min(used, experts)) if used else None


def _has_tied_embeddings(config: Mapping[str, Any], lm_config: Mapping[str, Any]) -> bool:
    value = lm_config.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    if isinstance(value, bool):
        return value
    # transformers' default of these types
    return str(lm_config.get("model_type", "")).startswith("gemma")


def parse_layer_kinds(lm_config: Mapping[str, Any]) -> list[str] | None:
    """Return the attention kind of each layer, in the words of `layer_types` in a config.json, such
    as "full_attention" or "sliding_attention". None if the kinds are unknown."""
    layers = read_first_positive_int(lm_config, "num_hidden_layers")
    blocks = lm_config.get("layers_block_type")
    if layers is None and isinstance(blocks, list):
        layers = len(blocks)
    if layers is None or layers > _MOST_LAYERS or _unsupported_attention_text(lm_config):
        return None
    if listed := _parse_listed_layer_kinds(lm_config):
        known = [kind for kind in listed if isinstance(kind, str)]
        return known if len(known) == len(listed) == layers else None
    if every := read_first_positive_int(lm_config, "full_attention_interval"):
        return _kinds_with_full_attention_every(every, LINEAR, layers)
    if not lm_config.get("sliding_window") or lm_config.get("use_sliding_window") is False:
        return [FULL] * layers
    every = read_first_positive_int(lm_config, "sliding_window_pattern", "_sliding_window_pattern")
    if every is None and lm_config.get("model_type") in _EVERY_SECOND:
        every = 2
    if every:
        return _kinds_with_full_attention_every(every, WINDOW, layers)
    # Qwen2: the layers before it have no window
    first = min(layers, _read_positive_int_or_zero(lm_config, "max_window_layers"))
    return [FULL] * first + [WINDOW] * (layers - first)


def _kinds_with_full_attention_every(every: int, kind: str, layers: int) -> list[str]:
    """Return the kinds of `layers` layers, of which each `every`-th has full attention and the
    others have the kind `kind`."""
    return [kind if (i + 1) % every else FULL for i in range(layers)]


def _parse_listed_layer_kinds(lm_config: Mapping[str, Any]) -> list[object]:
    """Return the kinds of the layers that a config.json lists; [] if it lists none. An unknown
    letter of a pattern is None."""
    pattern = lm_config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return [_NEMOTRON.get(letter) for letter in pattern]
    kinds = as_list(lm_config.get("layers_block_type") or lm_config.get("layer_types"))
    return [_KIND_NAMES.get(str(kind), kind) for kind in kinds]


def _parse_kv_layers(lm_config: Mapping[str, Any]) -> tuple[KvLayers, ...]:
    """Return the layers that store a KV cache, one entry for each attention kind. Layers that share
    the cache of another layer do not count. () if the kind or a size of a layer is unknown."""
    kinds = parse_layer_kinds(lm_config)
    if kinds is None or _has_unlisted_state_layers(lm_config, kinds):
        return ()
    kinds = [kind for kind in kinds if kind != NONE]
    if _has_attention_and_mamba(lm_config):
        kinds += [MAMBA] * len(kinds)
    # the last layers use the cache of earlier ones
    shared = _read_positive_int_or_zero(lm_config, "num_kv_shared_layers")
    kept = kinds[: max(1, len(kinds) - shared)]
    found = []
    for kind in dict.fromkeys(kept):
        layers = _parse_kv_layers_of_kind(lm_config, kind, kept.count(kind))
        if layers is None:
            return ()
        found.append(layers)
    return tuple(found)


def _has_unlisted_state_layers(lm_config: Mapping[str, Any], kinds: list[str]) -> bool:
    """Return whether the config.json has fields of layers that keep a state, such as Mamba, but
    none of `kinds`, the kinds of the layers, is such a layer. False if each layer has attention and
    Mamba side by side."""
    if _has_attention_and_mamba(lm_config) or not _has_state_layer_fields(lm_config):
        return False
    return set(kinds) <= {FULL, WINDOW}


def _parse_kv_layers_of_kind(
    lm_config: Mapping[str, Any], kind: str, layers: int
) -> KvLayers | None:
    window = None
    if kind == LINEAR and (linear := _compute_linear_attention_state_size(lm_config, layers)):
        return linear
    if kind in (LINEAR, MAMBA):
        return _compute_mamba2_state_size(lm_config, layers)
    if kind != FULL:
        if kind not in _WINDOW_FIELDS:
            return None
        window = read_first_positive_int(lm_config, _WINDOW_FIELDS[kind])
        if window is None:
            return None
    if (rank := read_first_positive_int(lm_config, "kv_lora_rank")) is not None:
        return KvLayers(
            layers, 1, rank + _read_positive_int_or_zero(lm_config, "qk_rope_head_dim"), window
        )
    heads, size = _read_kv_heads_and_head_size(lm_config, is_full_attention=kind == FULL)
    if 0 in (heads, size):
        return None
    return KvLayers(
        layers, heads, size + (read_first_positive_int(lm_config, "v_head_dim") or size), window
    )


def _read_kv_heads_and_head_size(
    lm_config: Mapping[str, Any], is_full_attention: bool = True
) -> tuple[int, int]:
    """Return (number of KV heads, number of values in one head) of a layer. `is_full_attention`
    True means layers with full attention, False those with a sliding window, whose heads differ in
    some models. An unknown number is 0."""
    head_fields = ["num_key_value_heads", "num_attention_heads"]
    size_fields = ["head_dim", "attention_head_dim"]
    if is_full_attention:
        head_fields.insert(0, "num_global_key_value_heads")
        size_fields.insert(0, "global_head_dim")
    size = _read_positive_int_or_zero(lm_config, *size_fields)
    heads = read_first_positive_int(lm_config, "num_attention_heads")
    if size == 0 and heads is not None:
        size = _read_positive_int_or_zero(lm_config, "hidden_size") // heads
    return _read_positive_int_or_zero(lm_config, *head_fields), size


def _compute_linear_attention_state_size(
    lm_config: Mapping[str, Any], layers: int
) -> KvLayers | None:
    """Return the memory that `layers` layers with gated linear attention (Qwen3-Next) keep for each
    sequence. Its size does not grow with the context: a layer keeps one matrix per value head, and
    the newest inputs of a convolution. None if a size is missing in the config.json."""
    keys = _product_of_fields(lm_config, "linear_num_key_heads", "linear_key_head_dim")
    values = _product_of_fields(lm_config, "linear_num_value_heads", "linear_value_head_dim")
    if 0 in (keys, values):
        return None
    heads = _read_positive_int_or_zero(lm_config, "linear_num_value_heads")
    newest = max(0, _read_positive_int_or_zero(lm_config, "linear_conv_kernel_dim") - 1)
    inputs = (2 * keys + values) * newest * 2
    bits = _STATE_BITS.get(str(lm_config.get("mamba_ssm_dtype")))
    matrix = values * _read_positive_int_or_zero(lm_config, "linear_key_head_dim")
    return KvLayers(layers, heads, 0, state_bytes=inputs, state_values=matrix, state_bits=bits)


def _compute_mamba2_state_size(lm_config: Mapping[str, Any], layers: int) -> KvLayers | None:
    """Return the memory that `layers` layers of Mamba-2 (Falcon-H1, Granite 4, Nemotron-H) keep for
    each sequence. None if a size is missing in the config.json."""
    heads = _read_positive_int_or_zero(lm_config, "mamba_n_heads", "mamba_num_heads")
    groups = _read_positive_int_or_zero(lm_config, "mamba_n_groups", "n_groups")
    state = _read_positive_int_or_zero(lm_config, "mamba_d_state", "ssm_state_size")
    kernel = _read_positive_int_or_zero(lm_config, "mamba_d_conv", "conv_kernel")
    width = _compute_mamba_input_width(lm_config, heads)
    if 0 in (heads, groups, state, kernel, width):
        return None
    size = read_first_positive_int(lm_config, "mamba_d_head", "mamba_head_dim") or width // heads
    bits = _STATE_BITS.get(str(lm_config.get("mamba_ssm_cache_dtype")))
    if bits is None and lm_config.get("model_type") == "nemotron_h":
        bits = 32  # vLLM's default for this type
    inputs = (width + 2 * groups * state) * (kernel - 1) * 2
    return KvLayers(
        layers,
        heads,
        0,
        state_bytes=inputs,
        state_values=heads * size * state,
        state_bits=bits,
        mamba2=True,
    )


def _compute_mamba_input_width(lm_config: Mapping[str, Any], heads: int) -> int:
    """Return the width of the inputs of a layer of Mamba-2; 0 if it is unknown."""
    if (size := read_first_positive_int(lm_config, "mamba_head_dim")) is not None:  # Nemotron-H
        return heads * size
    return read_first_positive_int(lm_config, "mamba_d_ssm") or _product_of_fields(
        lm_config, "mamba_expand", "hidden_size"
    )


def _has_attention_and_mamba(lm_config: Mapping[str, Any]) -> bool:
    """Return whether each layer has attention and Mamba side by side."""
    return lm_config.get("model_type") == "falcon_h1"


def _has_state_layer_fields(lm_config: Mapping[str, Any]) -> bool:
    """Return whether the config.json has fields of layers that keep a state."""
    return any(name.startswith(("mamba_d_", "ssm_", "conv_L")) for name in lm_config)


def _unsupported_attention_text(lm_config: Mapping[str, Any]) -> str:
    """Return the kind of layers or attention in a model for which this module cannot compute the KV
    cache, such as "layers of short convolution (LFM2)". "" if the model has no such kind."""
    kinds = as_list(lm_config.get("attn_type_list"))  # 0: linear attention
    if any(kind != 1 for kind in kinds):
        return "linear attention in an order of its own (MiniMax)"
    if isinstance(lm_config.get("sliding_window_pattern"), str) and not lm_config.get(
        "layer_types"
    ):
        return "windows in an order of their own"
    return next((about for name, about in _NOT_KNOWN.items() if lm_config.get(name)), "")


def _reason_kv_is_unknown(lm_config: Mapping[str, Any]) -> str:
    """Return why the size of the KV cache cannot be computed from this config.json. It is for a
    model whose `_parse_kv_layers` is ()."""
    if unknown := _unsupported_attention_text(lm_config):
        return f"the model has {unknown}, which Workbench has not measured"
    if _has_state_layer_fields(lm_config):
        return "the model has layers that keep a state, and its config.json does not say which"
    return "the config.json does not say the sizes of all layers"


def _compute_feed_forward_width(lm_config: Mapping[str, Any]) -> int | None:
    """Return the width of the feed-forward layer that computes one token: with experts, the sum
    over the experts that the token uses. None if the width is unknown."""
    experts, used = read_total_and_active_experts(lm_config) or (1, 1)
    if experts == 1:
        return read_first_positive_int(lm_config, "intermediate_size")
    width = read_first_positive_int(lm_config, "moe_intermediate_size", "intermediate_size")
    if width is None:
        return None
    return width * (used + _read_positive_int_or_zero(lm_config, "n_shared_experts"))


def _count_weights_by_part(lm_config: Mapping[str, Any], tied: bool) -> WeightParts | None:
    """Return the number of weights in each part of the model. `tied` is True if the output matrix
    and the embedding are the same matrix. None if the size of the attention or of the feed-forward
    layers is unknown.

    A gated feed-forward layer has three matrices. Norms and biases are left out, because they are
    below 0.1 %.
    """
    hidden = _read_positive_int_or_zero(lm_config, "hidden_size")
    vocabulary = _read_positive_int_or_zero(lm_config, "vocab_size")
    kinds, used = parse_layer_kinds(lm_config), read_total_and_active_experts(lm_config)
    unknown_state = _has_state_layer_fields(lm_config)
    if kinds is None or used is None or 0 in (hidden, vocabulary) or unknown_state:
        return None
    attention = [_count_attention_weights(lm_config, hidden, kind) for kind in kinds]
    wide = _read_positive_int_or_zero(lm_config, "intermediate_size")
    if 0 in attention or (wide == 0 and used == (1, 1)):
        return None
    experts, active = used
    sparse = 0
    if experts > 1:
        sparse = _count_sparse_layers(lm_config, len(kinds))
    narrow = _read_positive_int_or_zero(lm_config, "moe_intermediate_size", "intermediate_size")
    shared = read_first_positive_int(lm_config, "shared_expert_intermediate_size")
    if shared is None:
        shared = narrow * _read_positive_int_or_zero(lm_config, "n_shared_experts")
    feed_forward = (len(kinds) - sparse) * wide + sparse * shared
    dense = sum(attention) + 3 * hidden * feed_forward + sparse * hidden * experts
    embedding = float(vocabulary * hidden)
    return WeightParts(
        dense=float(dense),
        experts=float(sparse * experts * 3 * hidden * narrow),
        expert_share=active / experts,
        head=0.0 if tied else embedding,
        embedding=embedding,
    )


def _count_sparse_layers(lm_config: Mapping[str, Any], layers: int) -> int:
    """Return how many of the `layers` layers have routed experts."""
    first = _read_positive_int_or_zero(lm_config, "first_k_dense_replace")
    step = max(1, _read_positive_int_or_zero(lm_config, "decoder_sparse_step", "moe_layer_freq"))
    skipped = as_list(lm_config.get("mlp_only_layers"))
    regular = (i for i in range(min(first, layers), layers) if (i + 1) % step == 0)
    return sum(i not in skipped for i in regular)


def _count_attention_weights(lm_config: Mapping[str, Any], hidden: int, kind: str) -> int:
    """Return the number of attention weights in one layer of the attention kind `kind`. `hidden` is
    the hidden size. 0 if the number is unknown."""
    if kind == LINEAR:
        state = _compute_linear_attention_state_size(lm_config, 1)
        if state is None:
            return 0
        keys = _product_of_fields(lm_config, "linear_num_key_heads", "linear_key_head_dim")
        values = _product_of_fields(lm_config, "linear_num_value_heads", "linear_value_head_dim")
        return hidden * (2 * keys + 2 * values + 2 * state.heads) + values * hidden
    heads = _read_positive_int_or_zero(lm_config, "num_attention_heads")
    kv_heads, size = _read_kv_heads_and_head_size(lm_config, is_full_attention=kind == FULL)
    if 0 in (heads, kv_heads, size):
        return 0
    if (rank := read_first_positive_int(lm_config, "kv_lora_rank")) is None:
        return hidden * size * (2 * heads + 2 * kv_heads)
    rope = _read_positive_int_or_zero(lm_config, "qk_rope_head_dim")
    plain = _read_positive_int_or_zero(lm_config, "qk_nope_head_dim")
    value = read_first_positive_int(lm_config, "v_head_dim") or size
    query = heads * (rope + plain) * hidden
    if low := read_first_positive_int(lm_config, "q_lora_rank"):
        query = heads * (rope + plain) * low + hidden * low
    return query + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden
