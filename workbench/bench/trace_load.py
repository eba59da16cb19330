"""The requests of a trace, as the load client gets them.

An entry of `BenchSpec.trace` is a JSON array: the time of the request in seconds after the first
one, the length of its answer in tokens, and its prompt as an array of block numbers and lengths in
turn. Two requests whose prompts begin with the same blocks share that beginning. A later turn of a
session has a fourth value: the number of the request before it. Its first value is the pause after
the answer of that request.

In a trace of conversations, the first value of an entry is the number of the request that must end
before, or null for the first one of a conversation, and the last value is an array of the messages
that are added to the prompt of that request.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

_CHARACTERS_PER_TOKEN = 4
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
        # of a trace of conversations or sessions:
        self.first_turns: list[int] = []
        self.next_turn: dict[int, int] = {}
        self.pauses_s: dict[int, float] = {}  # before later turns of sessions
        self._before: dict[int, int] = {}
        self._characters: list[int] = []
        for index, entry in enumerate(entries):
            at_s, output, blocks, *before = json.loads(entry)
            self.output_tokens.append(output)
            if blocks and isinstance(blocks[0], dict):
                self._link_turn_to_previous(index, at_s)
                self._add_conversation_characters(at_s, blocks)
                prompt_tokens = self._characters[index] // _CHARACTERS_PER_TOKEN
            else:
                self._link_turn_to_previous(index, before[0] if before else None)
                if before:
                    self.pauses_s[index] = at_s
                else:
                    self.times_s.append(at_s)
                prompt_tokens = sum(blocks[1::2])
            self.most_input_tokens = max(self.most_input_tokens, prompt_tokens)
            self.most_tokens = max(self.most_tokens, prompt_tokens + output)

    @property
    def has_turns(self) -> bool:
        """Whether some requests begin after the answer of another one."""
        return bool(self.next_turn)

    def _link_turn_to_previous(self, index: int, previous: int | None) -> None:
        if previous is None:
            self.first_turns.append(index)
        else:
            self._before[index] = previous
            self.next_turn[previous] = index

    def _add_conversation_characters(
        self, previous: int | None, new_messages: list[dict[str, Any]]
    ) -> None:
        had = 0 if previous is None else self._characters[previous]
        self._characters.append(had + sum(len(message["content"]) for message in new_messages))

    def first_turn_index_of(self, index: int) -> int:
        """Return the first request of the conversation or session of request `index`."""
        while index in self._before:
            index = self._before[index]
        return index

    def messages_with_earlier_turns(self, index: int) -> list[dict[str, Any]]:
        """Return the messages of request `index` of a conversation: its own, after those of all
        requests before it."""
        parts: list[list[dict[str, Any]]] = []
        at: int | None = index
        while at is not None:
            parts.append(json.loads(self._entries[at])[2])
            at = self._before.get(at)
        return [message for part in reversed(parts) for message in part]

    def block_numbers_and_tokens(self, index: int) -> list[tuple[int, int]]:
        """Return (block number, tokens) for each block of the prompt of request `index`."""
        flat: list[Any] = json.loads(self._entries[index])[2]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def input_tokens(self, index: int) -> int:
        """Return the tokens of the prompt of request `index`, which must not be of a
        conversation."""
        return sum(tokens for _, tokens in self.block_numbers_and_tokens(index))


@cache
def trace_load(entries: tuple[str, ...]) -> TraceLoad:
    """Return the decoded requests of `BenchSpec.trace`."""
    return TraceLoad(entries)
