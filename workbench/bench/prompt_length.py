"""The number of words that gives a prompt of the requested length in tokens, found with the
server's own tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from workbench.bench.workload import Workload
from workbench.model.bench import BenchSpec
from workbench.quality.texts import shipped_contents

Count = Callable[[Mapping[str, Any]], Awaitable[int | None]]
_PROMPTS = 6  # prompts counted at each length, since not all words are one token
_TEXT_PROMPTS = 89  # of real text, whose languages differ more


@dataclass(frozen=True, slots=True)
class Length:
    """The size of a synthetic prompt: a prompt of `words` words has `tokens` tokens, including the
    chat template."""

    words: int
    tokens: int


async def measure(spec: BenchSpec, count: Count) -> Length | None:
    """Return the number of words with which a prompt has `spec.input_tokens` tokens, and the token
    count of such a prompt. None if the server does not count tokens.

    `count` sends a prompt to the server and returns its token count. Prompts of two lengths give
    the tokens per word, and a prompt of a third length corrects the result.
    """
    wanted = spec.input_tokens
    high, low = max(2, wanted), max(1, wanted // 2)
    at_high, at_low = await _tokens(spec, count, high), await _tokens(spec, count, low)
    if at_high is None or at_low is None:
        return None
    per_word = max(0.05, (at_high - at_low) / (high - low))
    words = max(1, round(high + (wanted - at_high) / per_word))
    tokens = await _tokens(spec, count, words)
    if tokens is not None and round(tokens) != wanted:
        words = max(1, words + round((wanted - tokens) / per_word))
        tokens = await _tokens(spec, count, words)
    return None if tokens is None else Length(words, round(tokens))


async def _tokens(spec: BenchSpec, count: Count, words: int) -> float | None:
    texts = shipped_contents() if spec.has_real_text else ()
    prompts = _PROMPTS
    if spec.has_real_text and not spec.shared_prefix:
        prompts = max(1, min(spec.requests, _TEXT_PROMPTS))
    workload = Workload(replace(spec, prompt_words=words, salt="0", texts=texts))
    counted: list[int | None] = []
    for begin in range(0, prompts, _PROMPTS):
        indices = range(begin, min(begin + _PROMPTS, prompts))
        fields = [workload.fields(index, warmup=False) for index in indices]
        counted += await asyncio.gather(*map(count, fields))
    known = [n for n in counted if n is not None]
    return fmean(known) if len(known) == prompts else None
