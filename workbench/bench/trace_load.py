"""The requests of a trace, as the load client gets them.

An entry of `BenchSpec.trace` is a JSON array: the time of the request in seconds after the first
one, the length of its answer in tokens, and its prompt as an array of block numbers and lengths in
turn. Two requests whose prompts begin with the same blocks share that beginning.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

BLOCK_TOKENS = 512  # for which `Workload.words` counts the pieces of text of a prompt


class TraceLoad:
    """The decoded requests of a trace. Blocks are decoded when a prompt is made, because those of
    10,000 requests take more memory than their text."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._entries = entries
        self.times_s: list[float] = []
        self.output_tokens: list[int] = []
        self.most_input_tokens = 0
        self.most_tokens = 0  # of the prompt and the answer of one request
        for entry in entries:
            at_s, output, blocks = json.loads(entry)
            prompt_tokens = sum(blocks[1::2])
            self.times_s.append(at_s)
            self.output_tokens.append(output)
            self.most_input_tokens = max(self.most_input_tokens, prompt_tokens)
            self.most_tokens = max(self.most_tokens, prompt_tokens + output)

    def blocks(self, index: int) -> list[tuple[int, int]]:
        """Return (block number, tokens) for each block of the prompt of request `index`."""
        flat: list[Any] = json.loads(self._entries[index])[2]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def input_tokens(self, index: int) -> int:
        """Return the length of the prompt of request `index`."""
        return sum(tokens for _, tokens in self.blocks(index))


@cache
def trace_load(entries: tuple[str, ...]) -> TraceLoad:
    """Return the decoded requests of `BenchSpec.trace`."""
    return TraceLoad(entries)
