"""The text of simulated answers: one English word per token, different for each prompt.

A simulated engine must pass where a healthy one does. So its answers differ, and it repeats a code
word if the prompt asks for that, as the probe of a server's text does (model/answer_probe.py).
"""

from __future__ import annotations

import random
import re
import struct
import zlib

from workbench.model.lazy_dataclass import dataclass

WORDS = (  # noqa: SIM905
    "the model reads every weight once for each token so memory sets the pace while clocks only "
    "help the prompt and batches share what was read until compute or cache runs short this text "
    "is simulated filler and says nothing"
).split()
GARBAGE = "!"
VECTOR_NUMBERS = 768
_TURN = 7
_CODE_WORD = re.compile(r"code word is (\w+)\.")


@dataclass(frozen=True)
class ReplyForm:
    """The words of a reply that differ between chats and completions."""

    id_prefix: str
    kind: str
    chunk_kind: str
    content_field: str


CHAT = ReplyForm("chatcmpl", "chat.completion", "chat.completion.chunk", "delta")
COMPLETION = ReplyForm("cmpl", "text_completion", "text_completion", "text")


class ReplyText:
    """The text of the answer to one prompt. With `garbage`, each token is an exclamation mark, as
    from an engine whose kernels produce only NaN."""

    def __init__(self, prompt: str, *, garbage: bool = False) -> None:
        mark = zlib.crc32(prompt.encode("utf-8", "replace"))
        asked = _CODE_WORD.search(prompt)
        about = [WORDS[(mark >> shift) % len(WORDS)] for shift in (6, 12, 18)]
        said = f"Answer {mark % 10**6} of a simulation about {' '.join(about)}:"
        if asked:
            said = f"The code word is {asked[1]}."
        self._opening = said.split()
        self._garbage = garbage
        self._first = mark % len(WORDS)

    def text_of_token_range(self, start: int, count: int) -> str:
        """Return the text of `count` tokens, of which the first is token number `start`."""
        if self._garbage:
            return GARBAGE * count
        return "".join(map(self._token_text, range(start, start + count)))

    def _token_text(self, position: int) -> str:
        """Return the text of token number `position` of the answer, with the space before it."""
        if position == 0:
            return self._opening[0]
        if position < len(self._opening):
            return f" {self._opening[position]}"
        turned = _TURN * (position // len(WORDS))  # so that a long text is no loop
        return f" {WORDS[(self._first + position + turned) % len(WORDS)]}"


def make_embedding(prompt: str) -> list[float]:
    """Return the embedding of a prompt: numbers from -1 to 1 that depend only on the prompt."""
    numbers = random.Random(prompt)
    return [round(numbers.uniform(-1, 1), 6) for _ in range(VECTOR_NUMBERS)]


def pack_vector_as_float32(vector: list[float]) -> bytes:
    """Return a vector as 32-bit numbers, as `encoding_format` base64 has them."""
    return struct.pack(f"<{len(vector)}f", *vector)
