"""The number of words that gives a prompt of the requested length in tokens, found with the
server's own tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from workbench.bench.trace_load import BLOCK_TOKENS, trace_load
from workbench.bench.workload import Workload
from workbench.model.bench import BenchSpec
from workbench.model.lazy_dataclass import dataclass
from workbench.quality.texts import shipped_contents

Count = Callable[[Mapping[str, Any]], Awaitable[int | None]]
_PROMPTS = 6  # prompts counted at each length, since not all words are one token
_TEXT_PROMPTS = 89  # of real text, whose languages differ more
_TRACE_PROMPTS = 24
_MOST_COUNTED_TOKENS = 300_000  # of the prompts of a trace that are counted at each length


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


async def measure_trace(spec: BenchSpec, count: Count) -> Length | None:
    """Return the number of words for 512 tokens with which the prompts of a trace have the lengths
    that it says, and the token count of their mean. None if the server does not count tokens."""
    load = trace_load(spec.trace)
    total = len(spec.trace)
    step = max(1, total // _TRACE_PROMPTS)
    sample: list[int] = []
    wanted = 0
    for index in range(step // 2, total, step):
        tokens = load.input_tokens(index)
        if not sample or wanted + tokens <= _MOST_COUNTED_TOKENS:
            sample.append(index)
            wanted += tokens

    async def counted(words: int) -> int | None:
        workload = Workload(replace(spec, prompt_words=words, salt="0", texts=shipped_contents()))
        tokens = 0
        for index in sample:
            one = await count(workload.fields(index, warmup=False))
            if one is None:
                return None
            tokens += one
        return tokens

    words = BLOCK_TOKENS
    at_words = await counted(words)
    at_half = await counted(words // 2)
    if at_words is None or at_half is None:
        return None
    per_word = max(1.0, (at_words - at_half) / (words - words // 2))
    words = max(1, round(words + (wanted - at_words) / per_word))
    in_sample = await counted(words)
    if in_sample is None:
        return None
    mean = spec.input_tokens * in_sample / wanted
    return Length(words, round(mean))


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
