"""The size of the KV cache: bytes of one token and of a whole sequence, as an engine allocates them
on one GPU.

vLLM allocates blocks of tokens. It divides layers of one kind into groups of equal size, and each
group has its own blocks in one pool (vllm/v1/core/kv_cache_utils.py of vLLM 0.32). A layer with
sliding-window attention stores the tokens of the window and of the batches that are being computed.
A state layer (Mamba, linear attention) takes whole blocks for its states: one for each running
sequence, and with prefix caching one or two more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.model.lazy_dataclass import dataclass
from workbench.model.model_shape import KvLayers

BLOCK = 16  # tokens in a block of vLLM
BATCHED_TOKENS = 2048  # vLLM's default of max-num-batched-tokens on most GPUs
SWA_SHARE = 0.8  # SGLang's default of swa-full-tokens-ratio
# vLLM: kinds of layers whose numbers differ by less are padded to the larger number
_MUCH_LARGER = 1.5


@dataclass(frozen=True, slots=True)
class KvStorageRule:
    """How an engine stores the KV cache of layers with sliding-window attention, and the states of
    state layers. `kind` is "blocks" (vLLM: blocks of tokens for the window), "window" (llama.cpp:
    the window only), "share" (SGLang: a fixed share of all tokens) or "all" (all tokens, as without
    a window). `share` is the share for the kind "share"."""

    kind: str = "all"
    share: float = SWA_SHARE  # of the other layers' tokens
    in_flight: int = 0  # tokens of one sequence that a layer keeps beyond its window
    block: int = BLOCK
    # State layers: whether the engine keeps states for prefix caching, and the bits of a number in
    # a state (None: as the model says). `no_states` says why their memory is unknown.
    keeps_prefixes: bool = True
    state_bits: int | None = None
    no_states: str = "how the engine stores the states of such a model is not known"


ALL_TOKENS = KvStorageRule()


def kv_bytes_per_token(kv: Sequence[KvLayers]) -> float | None:
    """Return the bytes that each token adds to a 16-bit KV cache, summed over all GPUs. None if the
    size is unknown, or if some layer does not store every token, as with a sliding window."""
    if not kv or any(one.window or one.keeps_state for one in kv):
        return None
    return float(sum(one.count * one.heads * one.values * 2 for one in kv))


def kv_bytes_read_per_token(
    kv: Sequence[KvLayers], context_tokens: float, bits: float = 16.0
) -> float:
    """Return the bytes of KV cache that decoding one token reads at a context of `context_tokens`,
    summed over all GPUs. `bits` is the size of one cached value."""
    return sum(
        one.count
        * (one.heads * one.values * min(context_tokens, one.window or context_tokens) * bits / 8)
        + one.count * one.state_size_bytes()
        for one in kv
    )


def kv_bytes_of_sequence_per_gpu(
    kv: Sequence[KvLayers],
    length: int,
    *,
    tp: int = 1,
    pp: int = 1,
    bits: float = 16.0,
    rule: KvStorageRule = ALL_TOKENS,
) -> float:
    """Return the bytes of KV cache that a sequence of `length` tokens takes on one GPU, for the
    tensor-parallel size `tp` and the pipeline-parallel size `pp`. `bits` is the size of one cached
    value. Without a `rule`, every layer stores all tokens."""
    token = [max(1, -(-one.heads // tp)) * one.values * bits / 8 for one in kv]  # of one layer
    layers = [-(-one.count // pp) for one in kv]
    states = [one.state_size_bytes(rule.state_bits) / tp for one in kv]
    if rule.kind != "blocks":
        total = 0.0
        for one, count, bytes_per_token, state in zip(kv, layers, token, states, strict=True):
            total += count * (bytes_per_token * _count_stored_tokens(one, length, rule) + state)
        return total
    per_block = max(t * rule.block for t in token)
    if max(states) and per_block:  # vLLM enlarges the block of tokens until it can hold a state
        per_block *= max(1, math.ceil(max(states) / per_block))
    per_block = max(per_block, *states)
    blocks = [
        _count_layer_blocks_of_sequence(one, length, rule, per_block, t)
        for one, t in zip(kv, token, strict=True)
    ]
    if len(kv) == 1:
        return layers[0] * blocks[0] * per_block
    group = max(layers)
    if group >= _MUCH_LARGER * min(layers):
        group = min(layers)
    return sum(-(-n // group) * b for n, b in zip(layers, blocks, strict=True)) * group * per_block


def _count_layer_blocks_of_sequence(
    one: KvLayers, length: int, rule: KvStorageRule, block_bytes: float, token_bytes: float
) -> int:
    """Return the number of blocks that one layer needs for a sequence of `length` tokens.
    `block_bytes` is the bytes of a block, and `token_bytes` the bytes of one token in this
    layer."""
    if one.keeps_state:
        # the state, that of the last whole block, and with Mamba-2 one of a prefill under way
        if not rule.keeps_prefixes:
            return 1
        return 3 if one.mamba2 else 2
    size = max(1, int(block_bytes // token_bytes))
    if one.window is None:
        return -(-length // size)
    return -(-min(one.window - 1 + rule.in_flight, length) // size) + 1


def _count_stored_tokens(one: KvLayers, length: int, rule: KvStorageRule) -> float:
    """Return the number of tokens of a sequence of `length` tokens that one layer stores in the KV
    cache."""
    if one.window is None or rule.kind == "all":
        return length
    if rule.kind == "share":
        return length * rule.share
    return min(length, one.window + rule.in_flight)
