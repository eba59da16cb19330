"""SGLang's own endpoint /generate. Its OpenAI-style endpoint ignores what it does not know, so it is
not used. A `logprob_start_len` of 0 scores the whole prompt and keeps the radix cache out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from workbench.model.quality import ScoredPosition
from workbench.quality.lanes.base import (
    TOP,
    Interface,
    Prompt,
    ScoreError,
    best,
    check_sent,
    listed,
    logarithm,
    table,
    token_id,
)

_WITHOUT_PROMPT = -1


class SglangInterface(Interface):
    """An SGLang server."""

    prefill: ClassVar[bool] = True

    async def tokenize(self, text: str) -> Prompt:
        ids = await self.encode("/tokenize", {"model": self._model, "prompt": text})
        return Prompt(text, ids)

    async def score_all(self, prompt: Prompt) -> tuple[ScoredPosition, ...]:
        self.check_length(len(prompt.ids), 1)
        meta = await self._generate(prompt.ids, 1, {"logprob_start_len": 0})
        count = len(prompt.ids)
        tokens = listed(meta.get("input_token_logprobs"), count, "positions")
        tops = listed(meta.get("input_top_logprobs"), count, "lists of tokens")
        scored = tuple(map(self._scored, tokens[1:], tops[1:]))
        if tuple(one.token for one in scored) != prompt.ids[1:]:
            raise ScoreError("the server has scored other tokens than were sent")
        return scored

    async def score_next(self, prompt: Prompt, place: int, slot: int = 0) -> ScoredPosition:
        self.check_length(place, 1)
        wanted = prompt.ids[place]
        asked = {"logprob_start_len": _WITHOUT_PROMPT, "token_ids_logprob": [wanted]}
        meta = await self._generate(prompt.ids[:place], 1, asked)
        [given] = listed(meta.get("output_token_ids_logprobs"), 1, "scores of a given token")
        [entry] = listed(given, 1, "scores of a given token")
        [top] = listed(meta.get("output_top_logprobs"), 1, "lists of tokens")
        scored = self._scored(entry, top)
        if scored.token != wanted:
            raise ScoreError("the server has scored another token than was given")
        return scored

    async def answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        self.check_length(len(prompt.ids), tokens)
        meta = await self._generate(prompt.ids, tokens, {"logprob_start_len": _WITHOUT_PROMPT})
        made = meta.get("output_token_logprobs")
        count = len(made) if isinstance(made, list) else 0
        entries = listed(made, count, "tokens of the answer")
        tops = listed(meta.get("output_top_logprobs"), count, "lists of tokens")
        return tuple(map(self._scored, entries, tops))

    async def _generate(
        self, ids: tuple[int, ...], tokens: int, asked: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        body = {
            "input_ids": list(ids),
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens},
            "return_logprob": True,
            "top_logprobs_num": TOP,
            "return_text_in_logprobs": True,
        }
        reply = await self.post("/generate", {**body, **asked})
        meta = table(reply.get("meta_info"), "meta_info")
        check_sent(meta.get("prompt_tokens"), len(ids))
        return meta

    def _scored(self, entry: Any, top: Any) -> ScoredPosition:
        value, token = self._pair(entry)
        entries = top if isinstance(top, list) else []
        pairs = [self._pair(one) for one in entries]
        return ScoredPosition(token, value, best((name, logged) for logged, name in pairs))

    def _pair(self, entry: Any) -> tuple[float, int]:
        """Return the log probability and the id in an entry [log probability, id, text]."""
        if not isinstance(entry, list) or len(entry) < 2:
            raise ScoreError("the server's answer has no log probability of a token")
        value, token = logarithm(entry[0]), token_id(entry[1])
        self.learn(token, entry[2] if len(entry) > 2 else None)
        return value, token
