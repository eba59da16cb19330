"""What real servers answered to the requests of each interface, with a tiny random model on a CPU:
tests/fixtures/answers/README.md names them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from workbench.quality.lanes import interface_class
from workbench.quality.lanes.base import Prompt, ScoringInterface
from workbench.server.small_requests import Reply, make_reply

ANSWERS = Path(__file__).parents[2] / "fixtures" / "answers"
RECORDED = {
    "prompt_logprobs": "quality-vllm-0.32.0.json",
    "generate": "quality-sglang-0.5.23.json",
    "completion": "quality-llama-server-b11549.json",
}
TEXT = "return 'é水' or\n"  # whose letters are several tokens each in these vocabularies
TOKENS, ANSWERED = 12, 4
LAST = 3  # places that were scored alone
ROUNDING = 0.0078  # the step of bfloat16 between 1 and 2

T = TypeVar("T")


def on(name: str, measure: Callable[[ScoringInterface, Prompt], Awaitable[T]]) -> T:
    """Run `measure` on the answers of a server. A request that differs from the recorded one in
    anything but its random salt fails the test."""
    exchanges = json.loads((ANSWERS / RECORDED[name]).read_text("utf-8"))["exchanges"]

    async def send(path: str, body: Mapping[str, Any], timeout_s: float) -> Reply:
        sent = {**body, "cache_salt": "salt"} if "cache_salt" in body else dict(body)
        found = [one for one in exchanges if (one["path"], one["sent"]) == (path, sent)]
        assert found, (path, sent)
        return make_reply(found[0]["status"], json.dumps(found[0]["body"]).encode())

    async def run() -> T:
        server = interface_class(name)(send, "tiny")
        return await measure(server, (await server.tokenize(TEXT)).first_tokens(TOKENS))

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["prompt_logprobs", "generate"])
def test_both_ways_to_score_a_token_agree(name: str) -> None:
    async def measure(server: ScoringInterface, prompt: Prompt) -> None:
        whole = await server.score_whole_prompt(prompt)
        assert tuple(one.token for one in whole) == prompt.ids[1:]
        assert all(len(one.top) == 20 for one in whole)
        for place in range(len(prompt.ids) - LAST, len(prompt.ids)):
            alone, known = await server.score_next(prompt, place), whole[place - 1]
            assert alone is not None and alone.logprob is not None and known.logprob is not None
            assert alone.token == known.token
            assert alone.logprob == pytest.approx(known.logprob, abs=ROUNDING)

    on(name, measure)


@pytest.mark.parametrize("name", RECORDED)
def test_an_answer_has_a_score_and_its_best_tokens_for_each_token(name: str) -> None:
    async def measure(server: ScoringInterface, prompt: Prompt) -> None:
        written = await server.generate_answer(prompt, ANSWERED)
        assert len(written) == ANSWERED
        assert all(one.top[0] == (one.token, one.logprob) for one in written if one.top)
        assert sum(len(one.top) == 20 for one in written) >= 2

    on(name, measure)


def test_llama_server_scores_a_token_that_is_no_whole_character_among_its_best_ones() -> None:
    """It gives no probabilities at all if such a token is forced (é and 水 are several here)."""

    async def measure(server: ScoringInterface, prompt: Prompt) -> None:
        places = range(len(prompt.ids) - LAST, len(prompt.ids))
        scored = [await server.score_next(prompt, place) for place in places]
        assert tuple(one.token for one in scored if one) == prompt.ids[-LAST:]
        assert [one.logprob is None for one in scored if one] == [True, False, True]
        assert all(len(one.top) == 20 for one in scored if one)

    on("completion", measure)
