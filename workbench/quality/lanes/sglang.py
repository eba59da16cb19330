"""SGLang's own endpoint /generate. Its OpenAI-style endpoint ignores what it does not know, so it
is not used. A `logprob_start_len` of 0 scores the whole prompt and keeps the radix cache out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from workbench.model.quality import ScoredPosition
from workbench.model.untrusted_text import as_list
from workbench.quality.lanes.base import (
    TOP,
    Prompt,
    ScoreError,
    ScoringInterface,
    check_prompt_token_count,
    parse_log_probability,
    parse_token_id,
    require_list_of_length,
    require_object,
    top_tokens_most_probable_first,
)

_WITHOUT_PROMPT = -1


class SglangInterface(ScoringInterface):
    """An SGLang server."""

    prefill: ClassVar[bool] = True

    async def tokenize(self, text: str) -> Prompt:
        ids = await self.request_token_ids("/tokenize", {"model": self._model, "prompt": text})
        return Prompt(text, ids)

    async def score_whole_prompt(self, prompt: Prompt) -> tuple[ScoredPosition, ...]:
        self.check_context_length(len(prompt.ids), 1)
        meta = await self._request_generation(prompt.ids, 1, {"logprob_start_len": 0})
        count = len(prompt.ids)
        tokens = require_list_of_length(meta.get("input_token_logprobs"), count, "positions")
        tops = require_list_of_length(meta.get("input_top_logprobs"), count, "lists of tokens")
        scored = tuple(map(self._parse_scored_position, tokens[1:], tops[1:]))
        if tuple(one.token for one in scored) != prompt.ids[1:]:
            raise ScoreError("the server has scored other tokens than were sent")
        return scored

    async def score_next(self, prompt: Prompt, position: int, slot: int = 0) -> ScoredPosition:
        self.check_context_length(position, 1)
        wanted = prompt.ids[position]
        asked = {"logprob_start_len": _WITHOUT_PROMPT, "token_ids_logprob": [wanted]}
        meta = await self._request_generation(prompt.ids[:position], 1, asked)
        [given] = require_list_of_length(
            meta.get("output_token_ids_logprobs"), 1, "scores of a given token"
        )
        [entry] = require_list_of_length(given, 1, "scores of a given token")
        [top] = require_list_of_length(meta.get("output_top_logprobs"), 1, "lists of tokens")
        scored = self._parse_scored_position(entry, top)
        if scored.token != wanted:
            raise ScoreError("the server has scored another token than was given")
        return scored

    async def generate_answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        self.check_context_length(len(prompt.ids), tokens)
        meta = await self._request_generation(
            prompt.ids, tokens, {"logprob_start_len": _WITHOUT_PROMPT}
        )
        made = meta.get("output_token_logprobs")
        count = len(as_list(made))
        entries = require_list_of_length(made, count, "tokens of the answer")
        tops = require_list_of_length(meta.get("output_top_logprobs"), count, "lists of tokens")
        return tuple(map(self._parse_scored_position, entries, tops))

    async def _request_generation(
        self, ids: tuple[int, ...], tokens: int, options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        body = {
            "input_ids": list(ids),
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens},
            "return_logprob": True,
            "top_logprobs_num": TOP,
            "return_text_in_logprobs": True,
        }
        reply = await self.post("/generate", {**body, **options})
        meta = require_object(reply.get("meta_info"), "meta_info")
        check_prompt_token_count(meta.get("prompt_tokens"), len(ids))
        return meta

    def _parse_scored_position(self, entry: Any, top: Any) -> ScoredPosition:
        token, value = self._parse_id_and_logprob(entry)
        found = map(self._parse_id_and_logprob, as_list(top))
        return ScoredPosition(token, value, top_tokens_most_probable_first(found))

    def _parse_id_and_logprob(self, entry: Any) -> tuple[int, float]:
        """Return the id and the log probability in an entry [log probability, id, text]."""
        if not isinstance(entry, list) or len(entry) < 2:
            raise ScoreError("the server's answer has no log probability of a token")
        value, token = parse_log_probability(entry[0]), parse_token_id(entry[1])
        self.store_token_text(token, entry[2] if len(entry) > 2 else None)
        return token, value
