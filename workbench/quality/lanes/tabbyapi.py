"""TabbyAPI: one token in each request, after a prompt that is a text.

It takes no token ids, so a text is cut only where its tokenizer makes the same tokens of the part
as of the whole. It names only the most probable tokens, by their text.
"""

from __future__ import annotations

from typing import Any

from workbench.model.quality import ScoredPosition
from workbench.quality.lanes.base import (
    BROKEN,
    TOP,
    Interface,
    Prompt,
    ScoreError,
    Send,
    UnusableText,
    best,
    check_sent,
    first_choice,
    listed,
    logarithm,
    table,
)

_ENCODE, _DECODE = "/v1/token/encode", "/v1/token/decode"
_FIRST_TOKEN = 1  # which the server adds in front of a prompt


class TabbyInterface(Interface):
    """A TabbyAPI server."""

    def __init__(self, send: Send, model: str) -> None:
        super().__init__(send, model)
        self._text = ""  # the text whose ends are known
        self._ends: dict[int, int | None] = {}

    async def tokenize(self, text: str) -> Prompt:
        ids = await self._encode(text)
        if await self._decode(ids) != text:
            raise UnusableText("the server's tokenizer does not give back the text")
        return Prompt(text, ids)

    async def text_of(self, prompt: Prompt) -> str:
        return await self._decode(prompt.ids)

    async def answerable(self, prompt: Prompt) -> Prompt:
        """Return the longest part whose tokens are the same alone as in the whole text."""
        sent = len(prompt.ids)
        while sent > 1 and await self._end(prompt, sent) is None:
            sent -= 1
        return prompt.cut(sent)

    def last(self, prompt: Prompt, tokens: int) -> Prompt:
        """Return the whole prompt: a text cannot be cut in front."""
        return prompt

    async def score_next(self, prompt: Prompt, place: int, slot: int = 0) -> ScoredPosition | None:
        start = await self._end(prompt, place)
        end = await self._end(prompt, place + 1)
        if start is None or end is None:
            return None
        wanted = prompt.text[start:end]
        _, _, tops = await self._complete(prompt.text[:start], place, 1)
        [top] = listed(tops, 1, "positions")
        found = best(_by_text(top).items())
        return ScoredPosition(wanted, dict(found).get(wanted), found)

    async def answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        prompt = await self.answerable(prompt)
        sent = len(prompt.ids)
        end = await self._end(prompt, sent)
        names, values, tops = await self._complete(prompt.text[:end], sent, tokens)
        return tuple(
            ScoredPosition(_text(name), logarithm(value), best(_by_text(top).items()))
            for name, value, top in zip(names, values, tops, strict=True)
        )

    async def _complete(
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
        counted = table(reply.get("usage"), "usage").get("prompt_tokens")
        check_sent(counted, sent, _FIRST_TOKEN)
        scores = table(first_choice(reply).get("logprobs"), "log probabilities")
        names = scores.get("tokens")
        made = len(names) if isinstance(names, list) else 0
        return (
            list(listed(names, made, "tokens of the answer")),
            list(listed(scores.get("token_logprobs"), made, "log probabilities")),
            list(listed(scores.get("top_logprobs"), made, "positions")),
        )

    async def _end(self, prompt: Prompt, count: int) -> int | None:
        """Return the place at which the text ends after the first `count` tokens; None if it cannot
        be cut there, because the tokens of that part are others."""
        if prompt.text != self._text:
            self._text, self._ends = prompt.text, {}
        if count not in self._ends:
            ids = prompt.ids[:count]
            part = await self._decode(ids)
            fits = bool(part) and prompt.text.startswith(part) and await self._encode(part) == ids
            self._ends[count] = len(part) if fits else None
        return self._ends[count]

    async def _encode(self, text: str) -> tuple[int, ...]:
        return await self.encode(_ENCODE, {"text": text, "add_bos_token": False})

    async def _decode(self, ids: tuple[int, ...]) -> str:
        reply = await self.post(_DECODE, {"tokens": list(ids), "add_bos_token": False})
        return _text(reply.get("text"))


def _by_text(top: Any) -> dict[Any, float]:
    """Return the log probabilities of tokens by their text, without parts of characters, which all
    have the same text."""
    named = table(top, "log probabilities of a position")
    return {name: logarithm(value) for name, value in named.items() if BROKEN not in name}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ScoreError("the server named a token by something that is not a text")
    return value
