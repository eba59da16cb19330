"""The number of words that gives a prompt of the requested length in tokens, found with the
server's own tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from operator import sub
from statistics import fmean
from typing import Any

from workbench.bench.trace_load import BLOCK_TOKENS
from workbench.bench.trace_text import PASSAGE_SEPARATOR, PassageTokens, TraceText, join_block_text
from workbench.bench.workload import Workload, make_real_text_once, unique_prompt_mark
from workbench.model.bench import BenchSpec
from workbench.model.known_values import known_values, values_if_all_known
from workbench.model.lazy_dataclass import dataclass
from workbench.quality.texts import shipped_short_contents

CountTokens = Callable[[Mapping[str, Any]], Awaitable[int | None]]
_PROMPTS_PER_LENGTH = 6  # prompts counted at each length, since not all words are one token
_TEXT_PROMPTS_PER_LENGTH = 89  # of real text, whose languages differ more
_COUNTS_AT_ONCE = 16  # counts that are waited for together
_FEWER_PASSAGES, _MANY_PASSAGES = 6, 9  # of prompts that show what joins passages


@dataclass(frozen=True, slots=True)
class PromptLength:
    """The size of a synthetic prompt: a prompt of `words` words has `tokens` tokens, including the
    chat template."""

    words: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TraceLengths:
    """The tokens of the parts of a trace's prompts. `words` pieces of text have 512 tokens."""

    words: int
    tokens: PassageTokens


async def measure_prompt_length(spec: BenchSpec, count: CountTokens) -> PromptLength | None:
    """Return the number of words with which a prompt has `spec.input_tokens` tokens, and the token
    count of such a prompt. None if the server does not count tokens.

    `count` sends a prompt to the server and returns its token count. Prompts of two lengths give
    the tokens per word, and a prompt of a third length corrects the result.
    """
    wanted = spec.input_tokens
    high, low = max(2, wanted), max(1, wanted // 2)
    at_high = await _mean_prompt_tokens_from_server(spec, count, high)
    at_low = await _mean_prompt_tokens_from_server(spec, count, low)
    if at_high is None or at_low is None:
        return None
    per_word = max(0.05, (at_high - at_low) / (high - low))
    words = max(1, round(high + (wanted - at_high) / per_word))
    tokens = await _mean_prompt_tokens_from_server(spec, count, words)
    if tokens is not None and round(tokens) != wanted:
        words = max(1, words + round((wanted - tokens) / per_word))
        tokens = await _mean_prompt_tokens_from_server(spec, count, words)
    if tokens is None:
        return None
    return PromptLength(words, round(tokens))


async def measure_trace_passage_tokens(spec: BenchSpec, count: CountTokens) -> TraceLengths | None:
    """Return the tokens of the parts of which the prompts of a trace consist, or None if the server
    does not count tokens.

    Each passage is counted alone. Prompts of one passage show what begins a prompt, those of many
    what joins passages, and those of two blocks what begins a further block.
    """
    texts = shipped_short_contents()
    text = TraceText(make_real_text_once(texts))
    workload = Workload(replace(spec, texts=texts))

    async def count_tokens_of_each(prompts: Sequence[Mapping[str, Any]]) -> list[int] | None:
        tokens: list[int] = []
        for begin in range(0, len(prompts), _COUNTS_AT_ONCE):
            found = await asyncio.gather(*map(count, prompts[begin : begin + _COUNTS_AT_ONCE]))
            tokens += known_values(found)
        return tokens if len(tokens) == len(prompts) else None

    one_word = await count({"prompt": "one"})
    alone = await count_tokens_of_each(
        [
            {"prompt": text.passage_text(number) + PASSAGE_SEPARATOR}
            for number in range(text.passage_count)
        ]
    )
    if one_word is None or alone is None:
        return None
    start = one_word - 1  # of the token that begins each text
    passages = [max(1, tokens - start) for tokens in alone]

    def build_prompt(*blocks: Sequence[int]) -> Mapping[str, Any]:
        texts = [
            join_block_text(
                unique_prompt_mark("0", f"b/{place}"),
                [text.passage_text(number) for number in block],
            )
            for place, block in enumerate(blocks)
        ]
        return workload.prompt_as_fields(PASSAGE_SEPARATOR.join(texts))

    step = text.passage_count // _FEWER_PASSAGES
    few = [step * number for number in range(_FEWER_PASSAGES)]
    runs = [[(one + other) % text.passage_count for other in range(_MANY_PASSAGES)] for one in few]
    short = await count_tokens_of_each([build_prompt([one]) for one in few])
    long = await count_tokens_of_each([build_prompt(run) for run in runs])
    double = await count_tokens_of_each([build_prompt([one], [one + 1]) for one in few])
    if short is None or long is None or double is None:
        return None

    def mean_tokens_beyond_passages(
        tokens: Sequence[int], numbers: Sequence[Sequence[int]]
    ) -> float:
        """Return the mean tokens of prompts without those of their passages. `numbers` has for each
        prompt the numbers of its passages."""
        own = [sum(passages[number] for number in some) for some in numbers]
        return fmean(map(sub, tokens, own))

    begin = mean_tokens_beyond_passages(short, [[one] for one in few])
    several = mean_tokens_beyond_passages(long, runs)
    between = (several - begin) / (_MANY_PASSAGES - 1)
    block = mean_tokens_beyond_passages(double, [[one, one + 1] for one in few]) - begin
    text = TraceText(
        make_real_text_once(texts),
        PassageTokens(begin, between, block, tuple(passages)).as_spec_numbers,
    )
    return TraceLengths(round(BLOCK_TOKENS * text.pieces_per_token), text.tokens)


async def _mean_prompt_tokens_from_server(
    spec: BenchSpec, count: CountTokens, words: int
) -> float | None:
    texts: tuple[str, ...] = ()
    prompts = _PROMPTS_PER_LENGTH
    if spec.has_real_text:
        texts = shipped_short_contents()
        if not spec.shared_prefix:
            prompts = max(1, min(spec.requests, _TEXT_PROMPTS_PER_LENGTH))
    workload = Workload(replace(spec, prompt_words=words, salt="0", texts=texts))
    counted: list[int | None] = []
    for begin in range(0, prompts, _PROMPTS_PER_LENGTH):
        indices = range(begin, min(begin + _PROMPTS_PER_LENGTH, prompts))
        fields = [workload.prompt_fields(index, warmup=False) for index in indices]
        counted += await asyncio.gather(*map(count, fields))
    known = values_if_all_known(counted)
    return fmean(known) if known else None
