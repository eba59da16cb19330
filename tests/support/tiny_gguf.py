"""A tiny Llama with random weights as a GGUF file, written with the `gguf` package: 5 MB, well
under a second.

usage: tiny_gguf.py FILE      or write(path) from a test. The same file every time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

WIDTH, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH = 256, 512, 2, 4, 2, 64
SPECIAL = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "e r", "Ġ a", "o n", "r e", "a n", "Ġ s"]
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_characters() -> list[str]:
    """Return GPT-2's alphabet: printable Latin-1 bytes map to themselves, the others to characters
    from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def write(path: Path) -> Path:
    """Write the model to `path` and return it."""
    tokens = SPECIAL + byte_characters() + ["".join(merge.split()) for merge in MERGES]
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (
        len(tokens) - len(SPECIAL)
    )
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tiny-random")
    out.add_context_length(4096)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FEED_FORWARD)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD_WIDTH)
    out.add_value_length(HEAD_WIDTH)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(HEAD_WIDTH)
    out.add_rope_freq_base(10_000.0)
    out.add_vocab_size(len(tokens))
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges(MERGES)
    out.add_bos_token_id(0)
    out.add_eos_token_id(1)
    out.add_add_bos_token(True)
    out.add_chat_template(CHAT)
    _add_weights(out, len(tokens))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def _add_weights(out: gguf.GGUFWriter, vocabulary: int) -> None:
    random = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> None:
        out.add_tensor(name, (random.standard_normal(shape) * 0.02).astype(np.float32))

    def norm(name: str) -> None:
        out.add_tensor(name, np.ones(WIDTH, np.float32))

    weights("token_embd.weight", vocabulary, WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm.weight")
        norm(f"{block}.ffn_norm.weight")
        weights(f"{block}.attn_q.weight", HEADS * HEAD_WIDTH, WIDTH)
        weights(f"{block}.attn_k.weight", KV_HEADS * HEAD_WIDTH, WIDTH)
        weights(f"{block}.attn_v.weight", KV_HEADS * HEAD_WIDTH, WIDTH)
        weights(f"{block}.attn_output.weight", WIDTH, HEADS * HEAD_WIDTH)
        weights(f"{block}.ffn_gate.weight", FEED_FORWARD, WIDTH)
        weights(f"{block}.ffn_up.weight", FEED_FORWARD, WIDTH)
        weights(f"{block}.ffn_down.weight", WIDTH, FEED_FORWARD)
    norm("output_norm.weight")
    weights("output.weight", vocabulary, WIDTH)


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
