"""What the scores of the shipped texts ask of a server: the user's server must survive them.

A server that scores a whole prompt keeps the log probabilities of its vocabulary for each token at
once: 6 bytes a word in vLLM, 0.4 GB for 512 tokens and 128,000 words.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from workbench.model.quality import ScoredPosition
from workbench.quality import texts
from workbench.quality.instrument import Instrument
from workbench.quality.lanes.base import Prompt, ScoringInterface

MOST_REQUESTS = 20  # of 512 tokens each, whose memory may be in use at one time
BYTES = 3  # of a token


class Counting(ScoringInterface):
    """A server that counts the tokens whose whole log probabilities it holds at one time."""

    prefill: ClassVar[bool] = True

    def __init__(self) -> None:
        self.pieces = {}
        self.held = self.most_held = self.longest = self.requests = self.most_requests = 0

    async def tokenize(self, text: str) -> Prompt:
        return Prompt(text, tuple(range(len(text.encode()) // BYTES)))

    def last_tokens(self, prompt: Prompt, tokens: int) -> Prompt:
        return Prompt(prompt.text, prompt.ids[-tokens:])

    async def score_whole_prompt(self, prompt: Prompt) -> tuple[ScoredPosition, ...]:
        self.longest = max(self.longest, len(prompt.ids))
        await self._hold(len(prompt.ids))
        return tuple(self._position(one) for one in prompt.ids[1:])

    async def score_next(self, prompt: Prompt, place: int, slot: int = 0) -> ScoredPosition:
        await self._hold(1)
        return self._position(prompt.ids[place])

    async def generate_answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        await self._hold(1)
        return (self._position(7),)

    async def _hold(self, tokens: int) -> None:
        self.held, self.requests = self.held + tokens, self.requests + 1
        self.most_held = max(self.most_held, self.held)
        self.most_requests = max(self.most_requests, self.requests)
        await asyncio.sleep(0)
        self.held, self.requests = self.held - tokens, self.requests - 1

    def _position(self, token: int) -> ScoredPosition:
        return ScoredPosition(token, -1.0, ((token, -1.0), (token + 1, -2.0)))


def test_8192_positions_hold_the_memory_of_one_request_at_a_time() -> None:
    server = Counting()
    found = asyncio.run(Instrument(server).score_texts(texts.shipped_text_set().texts))
    assert not found.problem
    short = [one for one in found.texts if one.lane == "prefill"]
    assert sum(len(one.positions) for one in short) == 8192
    assert server.longest <= 512 and server.most_requests == 1
    assert server.most_held <= 512 <= MOST_REQUESTS * 512


def test_scores_taken_together_hold_one_token_each() -> None:
    """Whole prompts together would need the memory of all of them."""
    server = Counting()
    found = asyncio.run(
        Instrument(server).score_texts(texts.shipped_text_set().texts, concurrency=8)
    )
    assert not found.problem and server.longest == 0
    assert server.most_requests == server.most_held == 8


def test_answers_under_load_hold_one_token_each() -> None:
    server = Counting()
    written = asyncio.run(
        Instrument(server).write_answers(texts.shipped_text_set().texts, concurrency=8)
    )
    assert len(written.answers) == 32 and server.longest == 0
    assert server.most_held == 8
