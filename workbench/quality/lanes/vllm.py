"""vLLM: `prompt_logprobs` scores a whole prompt in one request, and `logprob_token_ids` one token.

`cache_salt` keeps earlier requests out of the prefix cache, from which stale scores came.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, ClassVar

from workbench.model.quality import ScoredPosition, Token
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import as_list
from workbench.quality.lanes.base import (
    TOP,
    Prompt,
    ScoreError,
    ScoringInterface,
    check_prompt_token_count,
    parse_log_probability,
    parse_token_id,
    require_first_choice,
    require_list_of_length,
    require_object,
    top_tokens_most_probable_first,
)

_PATH = "/v1/completions"
_PREFIX = "token_id:"
_GIVEN = "logprob_token_ids"  # without it, only the most probable tokens are scored


class VllmInterface(ScoringInterface):
    """A vLLM server."""

    prefill: ClassVar[bool] = True
    defect = (
        "if it speculates with MTP, this is vllm-project/vllm#53488: log probabilities of prompts are "
        "wrong"
    )

    async def tokenize(self, text: str) -> Prompt:
        ids = await self.request_token_ids("/tokenize", {"model": self._model, "prompt": text})
        return Prompt(text, ids)

    async def score_whole_prompt(self, prompt: Prompt) -> tuple[ScoredPosition, ...]:
        self.check_context_length(len(prompt.ids), 1)
        salt = secrets.token_hex(8)
        asked = {"prompt_logprobs": TOP, "return_token_ids": True, "cache_salt": salt}
        choice = await self._request_completion(prompt.ids, 1, asked)
        if "prompt_logprobs" not in choice:
            raise ScoreError("the server does not give the log probabilities of a prompt")
        echoed = choice.get("prompt_token_ids")
        if echoed is not None and echoed != list(prompt.ids):
            raise ScoreError("the server has read other tokens than were sent")
        entries = require_list_of_length(choice["prompt_logprobs"], len(prompt.ids), "positions")
        places = range(1, len(prompt.ids))
        return tuple(
            self._parse_prompt_position(prompt.ids[place], entries[place]) for place in places
        )

    async def score_next(self, prompt: Prompt, position: int, slot: int = 0) -> ScoredPosition:
        self.check_context_length(position, 1)
        wanted = prompt.ids[position]
        top = await self._request_next_token_logprobs(prompt.ids[:position], {"logprobs": TOP})
        known = top.get(wanted)
        if known is None:
            given = await self._request_next_token_logprobs(
                prompt.ids[:position], {"logprobs": 1, _GIVEN: [wanted]}
            )
            known = given.get(wanted)
        if known is None:
            raise ScoreError(f"the server does not score a token that is given ({_GIVEN})")
        return ScoredPosition(wanted, known, top_tokens_most_probable_first(top.items()))

    async def _request_next_token_logprobs(
        self, ids: tuple[int, ...], options: Mapping[str, Any]
    ) -> dict[Token, float]:
        choice = await self._request_completion(
            ids, 1, {**options, "return_tokens_as_token_ids": True}
        )
        scores = require_object(choice.get("logprobs"), "log probabilities")
        [entries] = require_list_of_length(scores.get("top_logprobs"), 1, "positions")
        return _log_probability_by_id(entries)

    async def generate_answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        self.check_context_length(len(prompt.ids), tokens)
        asked = {"logprobs": TOP, "return_tokens_as_token_ids": True}
        choice = await self._request_completion(prompt.ids, tokens, asked)
        scores = require_object(choice.get("logprobs"), "log probabilities")
        names = scores.get("tokens")
        made = len(as_list(names))
        names = require_list_of_length(names, made, "tokens of the answer")
        values = require_list_of_length(scores.get("token_logprobs"), made, "log probabilities")
        tops = require_list_of_length(scores.get("top_logprobs"), made, "positions")
        return tuple(
            ScoredPosition(
                _parse_prefixed_token_id(name),
                parse_log_probability(value),
                top_tokens_most_probable_first(_log_probability_by_id(top).items()),
            )
            for name, value, top in zip(names, values, tops, strict=True)
        )

    def _parse_prompt_position(self, token: int, entries: Any) -> ScoredPosition:
        found: dict[Token, float] = {}
        for name, entry in require_object(entries, "log probabilities of a position").items():
            one = require_object(entry, "log probability of a token")
            number = _parse_token_id_text(name)
            found[number] = parse_log_probability(one.get("logprob"))
            self.store_token_text(number, one.get("decoded_token"))
        if token not in found:
            raise ScoreError("the server left a token of the prompt without its log probability")
        return ScoredPosition(token, found[token], top_tokens_most_probable_first(found.items()))

    async def _request_completion(
        self, ids: tuple[int, ...], tokens: int, options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        body = {"model": self._model, "prompt": list(ids), "max_tokens": tokens, "temperature": 0}
        reply = await self.post(_PATH, {**body, **options})
        check_prompt_token_count(
            require_object(reply.get("usage"), "usage").get("prompt_tokens"), len(ids)
        )
        return require_first_choice(reply)


def _log_probability_by_id(entries: Any) -> dict[Token, float]:
    named = require_object(entries, "log probabilities of a position")
    return {
        _parse_prefixed_token_id(name): parse_log_probability(value)
        for name, value in named.items()
    }


def _parse_prefixed_token_id(prefixed_id: Any) -> int:
    if not isinstance(prefixed_id, str) or not prefixed_id.startswith(_PREFIX):
        raise ScoreError("the server does not name tokens by their ids")
    return _parse_token_id_text(prefixed_id.removeprefix(_PREFIX))


def _parse_token_id_text(text: str) -> int:
    return parse_token_id(parse_whole_number(text, digits=9))
