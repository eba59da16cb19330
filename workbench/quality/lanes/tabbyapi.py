"""TabbyAPI: one token in each request, after a prompt that is a text.

It takes no token ids, so a text is cut only where its tokenizer makes the same tokens of the part
as of the whole. It names only the most probable tokens, by their text.
"""

from __future__ import annotations

from typing import Any

from workbench.model.quality import ScoredPosition
from workbench.model.untrusted_text import as_list
from workbench.quality.lanes.base import (
    BROKEN,
    TOP,
    Prompt,
    ScoreError,
    ScoringInterface,
    Send,
    UnusableText,
    check_prompt_token_count,
    parse_log_probability,
    require_first_choice,
    require_list_of_length,
    require_object,
    top_tokens_most_probable_first,
)

_ENCODE, _DECODE = "/v1/token/encode", "/v1/token/decode"
_FIRST_TOKEN = 1  # which the server adds in front of a prompt


class TabbyInterface(ScoringInterface):
    """A TabbyAPI server."""

    def __init__(self, send: Send, model: str) -> None:
        super().__init__(send, model)
        self._text = ""  # the text whose ends are known
        self._ends: dict[int, int | None] = {}

    async def tokenize(self, text: str) -> Prompt:
        ids = await self._request_token_ids(text)
        if await self._request_text(ids) != text:
            raise UnusableText("the server's tokenizer does not give back the text")
        return Prompt(text, ids)

    async def text_of_prompt(self, prompt: Prompt) -> str:
        return await self._request_text(prompt.ids)

    async def trim_for_generation(self, prompt: Prompt) -> Prompt:
        """Return the longest beginning of the prompt whose text alone has the same tokens as in the
        whole text. One token if there is none."""
        sent = len(prompt.ids)
        while sent > 1 and await self._text_offset_after_tokens(prompt, sent) is None:
            sent -= 1
        return prompt.first_tokens(sent)

    def last_tokens(self, prompt: Prompt, tokens: int) -> Prompt:
        """Return the whole prompt: a text cannot be cut in front."""
        return prompt

    async def score_next(
        self, prompt: Prompt, position: int, slot: int = 0
    ) -> ScoredPosition | None:
        start = await self._text_offset_after_tokens(prompt, position)
        end = await self._text_offset_after_tokens(prompt, position + 1)
        if start is None or end is None:
            return None
        wanted = prompt.text[start:end]
        _, _, tops = await self._request_tokens_logprobs_and_top_tokens(
            prompt.text[:start], position, 1
        )
        [top] = require_list_of_length(tops, 1, "positions")
        found = top_tokens_most_probable_first(_log_probability_by_text(top).items())
        return ScoredPosition(wanted, dict(found).get(wanted), found)

    async def generate_answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        prompt = await self.trim_for_generation(prompt)
        sent = len(prompt.ids)
        end = await self._text_offset_after_tokens(prompt, sent)
        names, values, tops = await self._request_tokens_logprobs_and_top_tokens(
            prompt.text[:end], sent, tokens
        )
        return tuple(
            ScoredPosition(
                _require_text(name),
                parse_log_probability(value),
                top_tokens_most_probable_first(_log_probability_by_text(top).items()),
            )
            for name, value, top in zip(names, values, tops, strict=True)
        )

    async def _request_tokens_logprobs_and_top_tokens(
        self, text: str, sent: int, tokens: int
    ) -> tuple[list[Any], list[Any], list[Any]]:
        body = {
            "model": self._model,
            "prompt": text,
            "max_tokens": tokens,
            # An answer that ends at once has no log probabilities. They are those before this ban.
            "min_tokens": 1,
            "temperature": 0,
            "logprobs": TOP,
            # Since April 2026, an answer that is not streamed has no usage without this either.
            "stream_options": {"include_usage": True},
        }
        reply = await self.post("/v1/completions", body)
        counted = require_object(reply.get("usage"), "usage").get("prompt_tokens")
        check_prompt_token_count(counted, sent, _FIRST_TOKEN)
        scores = require_object(require_first_choice(reply).get("logprobs"), "log probabilities")
        names = scores.get("tokens")
        made = len(as_list(names))
        return (
            list(require_list_of_length(names, made, "tokens of the answer")),
            list(require_list_of_length(scores.get("token_logprobs"), made, "log probabilities")),
            list(require_list_of_length(scores.get("top_logprobs"), made, "positions")),
        )

    async def _text_offset_after_tokens(self, prompt: Prompt, count: int) -> int | None:
        """Return the number of characters of the first `count` tokens of the prompt. None if the
        text cannot be cut there, because that part alone has other tokens."""
        if prompt.text != self._text:
            self._text, self._ends = prompt.text, {}
        if count not in self._ends:
            ids = prompt.ids[:count]
            part = await self._request_text(ids)
            fits = (
                bool(part)
                and prompt.text.startswith(part)
                and await self._request_token_ids(part) == ids
            )
            self._ends[count] = len(part) if fits else None
        return self._ends[count]

    async def _request_token_ids(self, text: str) -> tuple[int, ...]:
        return await self.request_token_ids(_ENCODE, {"text": text, "add_bos_token": False})

    async def _request_text(self, ids: tuple[int, ...]) -> str:
        reply = await self.post(_DECODE, {"tokens": list(ids), "add_bos_token": False})
        return _require_text(reply.get("text"))


def _log_probability_by_text(top: Any) -> dict[Any, float]:
    """Return the log probabilities of tokens by their text. Tokens that are parts of characters are
    left out, because they all have the same text."""
    named = require_object(top, "log probabilities of a position")
    return {
        name: parse_log_probability(value) for name, value in named.items() if BROKEN not in name
    }


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ScoreError("the server named a token by something that is not a text")
    return value
