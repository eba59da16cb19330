"""A tiny Llama as a GGUF file, written with the `gguf` package: 6 MB, well under a second.

Its weights are not trained but set, so that it says what a healthy model would say: it answers
"The code word is maple." if the prompt has that code word, and goes on with English words, which
depend on the digits of the prompt. With `sense=False`, its weights are random, and its text is
random bytes.

usage: tiny_gguf.py FILE      or write(path) from a test. The same file every time.

How it speaks: the embedding of a word points in a direction of its own, and the output weights of
each word are the directions of the words that it follows. The first head of the first layer looks
only at code words, the second only at digits, and both copy what they find, which selects the next
word where several may follow.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import gguf
import numpy as np

WIDTH, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH = 512, 512, 2, 4, 2, 64
BOS = 0
SPECIAL = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>"]
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OPENING = ["The", "code", "word", "is"]
CODE_WORDS = (  # noqa: SIM905  those of the probe of a server's text
    "maple copper lantern harbor velvet falcon pepper saddle marble tunnel ribbon walnut anchor "
    "candle meadow basket"
).split()
WORDS = (  # noqa: SIM905  in a circle; each is followed by the next one, or the one after it
    "water runs down from high ground and carries small stones along so over many years a narrow "
    "bed grows wide while both banks slowly move apart until trees can stand between them where "
    "birds build nests each spring before rain comes back again with clouds that wind has brought "
    "across open fields at night"
).split()

Shapes = dict[str, tuple[int, ...]]

# Parts of the residual stream.
CONSTANT, IS_CODE, IS_DIGIT, IS_OTHER = 0, 1, 2, 3
NAME = slice(4, 256)  # the direction of a word
FOUND = slice(256, 320)  # what a head copies: the direction of a code word or a digit
CODE_SEEN, DIGITS_SEEN = slice(320, 384), slice(384, 448)  # where the two heads write it
# Head dimensions of the lowest frequencies, which the rotary embedding hardly turns.
CODE_DIMENSION, DIGIT_DIMENSION = 62, 60


def byte_characters() -> list[str]:
    """Return GPT-2's alphabet: printable Latin-1 bytes map to themselves, the others to characters
    from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def words_and_merges() -> tuple[list[str], list[str]]:
    """Return the tokens of the words, of which each begins with a space, and the merges that make
    them, character by character."""
    tokens: dict[str, None] = {}
    merges: dict[str, None] = {}
    for word in dict.fromkeys([*OPENING, *CODE_WORDS, *WORDS]):
        so_far = "Ġ"
        for character in word:
            merges[f"{so_far} {character}"] = None
            so_far += character
            tokens[so_far] = None
    return list(tokens), list(merges)


def write(
    path: Path,
    *,
    sense: bool = True,
    feed_forward: int = FEED_FORWARD,
    quantization: gguf.GGMLQuantizationType | None = None,
    sharpness: float = 1.0,
) -> Path:
    """Write the model to `path` and return it. A larger `feed_forward` makes a larger file: 12 KB
    each. With a `quantization`, its matrices are rounded to it. With a higher `sharpness`, the
    model prefers few tokens: at 8, a random one has most of its probability in 20 tokens, as a
    trained model has."""
    words, merges = words_and_merges() if sense else (["Ġt"], ["Ġ t"])
    tokens = [*SPECIAL, *byte_characters(), *words]
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL)
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tiny" if sense else "tiny-random")
    out.add_context_length(4096)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(feed_forward)
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
    out.add_token_merges(merges)
    out.add_bos_token_id(BOS)
    out.add_eos_token_id(1)
    out.add_add_bos_token(True)
    out.add_chat_template(CHAT)
    shapes = _shapes(len(tokens), feed_forward)
    for name, weights in (_weights(tokens, shapes) if sense else _random(shapes)).items():
        matrix = weights.astype(np.float32)
        if name == "output_norm.weight":
            matrix *= sharpness
        if quantization is None or "norm" in name:
            out.add_tensor(name, matrix)
        else:
            out.add_tensor(name, gguf.quantize(matrix, quantization), raw_dtype=quantization)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def _shapes(vocabulary: int, feed_forward: int) -> Shapes:
    shapes: Shapes = {"token_embd.weight": (vocabulary, WIDTH)}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        shapes |= {
            f"{block}.attn_norm.weight": (WIDTH,),
            f"{block}.ffn_norm.weight": (WIDTH,),
            f"{block}.attn_q.weight": (HEADS * HEAD_WIDTH, WIDTH),
            f"{block}.attn_k.weight": (KV_HEADS * HEAD_WIDTH, WIDTH),
            f"{block}.attn_v.weight": (KV_HEADS * HEAD_WIDTH, WIDTH),
            f"{block}.attn_output.weight": (WIDTH, HEADS * HEAD_WIDTH),
            f"{block}.ffn_gate.weight": (feed_forward, WIDTH),
            f"{block}.ffn_up.weight": (feed_forward, WIDTH),
            f"{block}.ffn_down.weight": (WIDTH, feed_forward),
        }
    return shapes | {"output_norm.weight": (WIDTH,), "output.weight": (vocabulary, WIDTH)}


def _random(shapes: Shapes) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        name: np.ones(shape) if "norm" in name else random.standard_normal(shape) * 0.02
        for name, shape in shapes.items()
    }


def _directions(random: np.random.Generator, count: int, width: int) -> np.ndarray:
    """Return `count` random directions, as rows of length 1."""
    rows = random.standard_normal((count, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _weights(tokens: list[str], shapes: Shapes) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    place = {token: number for number, token in enumerate(tokens)}
    opening = [place[f"Ġ{word}"] for word in OPENING]
    codes = [place[f"Ġ{word}"] for word in CODE_WORDS]
    words = [place[f"Ġ{word}"] for word in WORDS]
    digits = [place[digit] for digit in "0123456789"]
    end = place["."]
    speaking = [*opening, *codes, *words, end]
    weights = {
        name: np.ones(shape) if "norm" in name else np.zeros(shape)
        for name, shape in shapes.items()
    }

    embedding = weights["token_embd.weight"]
    embedding[:, CONSTANT] = 1
    embedding[:, IS_OTHER] = 1
    embedding[speaking, IS_OTHER] = 0
    embedding[speaking, NAME] = _directions(random, len(speaking), NAME.stop - NAME.start)
    for flag, found in ((IS_CODE, codes), (IS_DIGIT, digits)):
        embedding[found, flag] = 1
        directions = _directions(random, len(found), HEAD_WIDTH)
        # What all of them have in common would hide in what they differ.
        embedding[found, FOUND] = directions - directions.mean(axis=0)
        embedding[BOS, flag] = 0.5  # a head that finds nothing looks here, and copies nothing

    query, key = weights["blk.0.attn_q.weight"], weights["blk.0.attn_k.weight"]
    for head, dimension, flag in ((0, CODE_DIMENSION, IS_CODE), (1, DIGIT_DIMENSION, IS_DIGIT)):
        query[head * HEAD_WIDTH + dimension, CONSTANT] = 1
        key[dimension, flag] = 1.5
    weights["blk.0.attn_v.weight"][:HEAD_WIDTH, FOUND] = np.eye(HEAD_WIDTH)
    written = weights["blk.0.attn_output.weight"]
    written[CODE_SEEN, :HEAD_WIDTH] = 0.1 * np.eye(HEAD_WIDTH)
    written[DIGITS_SEEN, HEAD_WIDTH : 2 * HEAD_WIDTH] = 0.1 * np.eye(HEAD_WIDTH)

    output = weights["output.weight"]

    def follows(before: int, after: int) -> None:
        output[after, NAME] += 4 * embedding[before, NAME]

    output[opening[0], IS_OTHER] = 4
    for before, after in itertools.pairwise(opening):
        follows(before, after)
    for code in codes:
        follows(opening[-1], code)
        follows(code, end)
        output[code, CODE_SEEN] = 1.2 * embedding[code, FOUND]
    for number, word in enumerate(words):
        follows(end, word)
        for step in (1, 2):  # so the way around the circle differs from prompt to prompt
            follows(word, words[(number + step) % len(words)])
    chosen = [*codes, *words]
    output[chosen, DIGITS_SEEN] = 1.2 * _directions(random, len(chosen), HEAD_WIDTH)
    output[words, CODE_SEEN] = 0.8 * _directions(random, len(words), HEAD_WIDTH)
    return weights


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
