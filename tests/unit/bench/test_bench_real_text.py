"""Excerpts of real text as the content of synthetic prompts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import Request, ScriptedServer, Step, chat_events, chunked

from workbench.bench import prompt_length, runner
from workbench.bench.real_text import RealText
from workbench.bench.workload import Workload
from workbench.model.bench import BenchSpec
from workbench.quality.texts import shipped_short_contents

SPEC = BenchSpec("http://127.0.0.1:1", "m", salt="ab", input_tokens=128, content="text")
WITH_TEXTS = replace(SPEC, texts=shipped_short_contents())


def content(spec: BenchSpec, index: int = 0) -> str:
    sent = json.loads(Workload(spec).request_body(index, warmup=False))
    return str(sent["messages"][0]["content"])


@settings(deadline=None)
@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=4), st.data())
def test_excerpts_are_cut_from_the_ring_without_a_gap(texts: list[str], data: Any) -> None:
    ring = RealText(texts)
    whole = "".join(text.strip() + "\n\n" for text in texts)
    start = ring.find_first_piece_of_excerpt(
        data.draw(st.floats(0, 0.999)), data.draw(st.integers(0, 10**6))
    )
    pieces = data.draw(st.integers(1, 500))
    excerpt, longer = ring.excerpt(start, pieces), ring.excerpt(start, pieces + 1)
    assert excerpt and longer in whole * (pieces + 2)
    assert longer.startswith(excerpt) and len(longer) > len(excerpt)


def test_a_prompt_longer_than_all_texts_goes_round() -> None:
    ring = RealText(["one two", "three"])
    assert ring.excerpt(0, 5) == "one two\n\nthree\n\n"
    assert ring.excerpt(0, 11) == 2 * "one two\n\nthree\n\n" + "one"


def test_the_texts_are_written_in_many_scripts_and_kinds() -> None:
    first = "".join(shipped_short_contents()[:7])
    for sign in ("[\u4e00-\u9fff]", "[\u0600-\u06ff]", "[{]", "Assistant:", "[=]"):
        assert re.search(sign, first), "texts of one kind stand apart"


def test_a_and_b_get_the_same_text_behind_another_mark() -> None:
    a, b = (content(replace(WITH_TEXTS, salt=salt), 3) for salt in ("a", "b"))
    assert a != b and a.partition("] ")[2] == b.partition("] ")[2]
    assert a.partition("] ")[2].startswith("Continue this text:\n\n")


def test_the_prompts_of_a_run_differ_and_so_do_seeds() -> None:
    workload, other = Workload(WITH_TEXTS), Workload(replace(WITH_TEXTS, seed=1))
    texts = [workload.synthetic_prompt(index, warmup=False) for index in range(300)]
    assert len({text.partition("] ")[2] for text in texts}) > 200
    assert len(set(texts)) == 300
    assert other.synthetic_prompt(0, warmup=False) != texts[0]


def test_equal_excerpts_are_known_as_one_prompt() -> None:
    workload = Workload(WITH_TEXTS)
    by_name: dict[str, str] = {}
    for index in range(2000):
        text = workload.synthetic_prompt(index, warmup=False).partition("] ")[2]
        assert by_name.setdefault(workload.prompt_identity_without_mark(index), text) == text
    assert len(by_name) < 2000, "the texts have fewer lines and sentences"


def test_with_a_shared_prefix_only_the_end_differs() -> None:
    spec = replace(WITH_TEXTS, shared_prefix=True)
    one, other = content(spec, 1), content(spec, 2)
    assert one != other and one.rpartition(" [")[0] == other.rpartition(" [")[0]


@pytest.mark.parametrize(
    "spec",
    [
        WITH_TEXTS,
        replace(WITH_TEXTS, shared_prefix=True),
        replace(WITH_TEXTS, endpoint="completions", length_spread=0.1),
        replace(WITH_TEXTS, input_tokens=4000, model="a [000000000000] name"),
        replace(WITH_TEXTS, extra_body={"messages": [{"role": "user", "content": "mine"}]}),
    ],
)
def test_a_body_made_before_gets_another_mark_and_nothing_else(spec: BenchSpec) -> None:
    def check(changed: Workload) -> None:
        for index in (*range(0, 900, 30), *range(0, 900, 30)):
            for warmup in (False, True):
                sent = json.loads(changed.request_body(index, warmup=warmup))
                expected = changed.prompt_fields(index, warmup=warmup) | spec.extra_body
                assert {name: sent.pop(name) for name in expected} == expected
                assert sent["max_tokens"] == changed.max_tokens(index, warmup=warmup)
                assert not set(changed.dropped) & set(sent)

    workload = Workload(spec)
    check(workload)
    workload.calibrate_words([(0, 300)])
    check(workload)
    before = json.loads(workload.request_body(0, warmup=False))
    assert workload.drop_rejected_fields(400, "unknown field min_tokens", before)
    check(workload)


# Of a vocabulary whose Chinese has two tokens for a character, and code more than prose.
_TOKEN = re.compile(r" ?[A-Za-z]{1,6}|\d|[^\w\s]|\s+|[^\x00-\x7f]")


async def _count(asked: Mapping[str, Any]) -> int | None:
    found = _TOKEN.findall(asked["messages"][0]["content"])
    return 20 + sum(2 if token > "\u3000" else 1 for token in found)


@pytest.mark.parametrize("tokens", [128, 512])
@pytest.mark.parametrize("seed", [0, 5])
def test_the_prompts_of_a_run_have_the_asked_length(tokens: int, seed: int) -> None:
    spec = replace(SPEC, input_tokens=tokens, requests=64, seed=seed)
    found = asyncio.run(prompt_length.measure_prompt_length(spec, _count))
    assert found is not None and abs(found.tokens - tokens) <= 0.02 * tokens
    workload = Workload(replace(spec, prompt_words=found.words, texts=shipped_short_contents()))
    sent = [asyncio.run(_count(workload.prompt_fields(i, warmup=False))) for i in range(64)]
    assert abs(sum(n or 0 for n in sent) / 64 - tokens) <= 0.02 * tokens


@pytest.mark.parametrize("seed", range(4))
def test_without_a_tokenizer_the_length_is_met_as_closely_as_a_warm_up_shows(seed: int) -> None:
    workload = Workload(replace(WITH_TEXTS, seed=seed))
    for _ in range(2):
        counts = [asyncio.run(_count(workload.prompt_fields(i, warmup=True))) for i in range(16)]
        workload.calibrate_words([(i, n or 0) for i, n in enumerate(counts)])
    sent = [asyncio.run(_count(workload.prompt_fields(i, warmup=False))) for i in range(64)]
    assert workload.calibrated and abs(sum(n or 0 for n in sent) / 64 - 128) <= 0.2 * 128


def test_the_texts_reach_the_client_and_no_result() -> None:
    def answer(request: Request, n: int) -> list[Step]:
        return [chunked(chat_events(request.body["max_tokens"]))]

    with ScriptedServer(answer) as server:
        spec = replace(SPEC, url=server.url, requests=4, concurrency=2, max_tokens=4, warmup=1)
        outcome = asyncio.run(runner.run_load(spec))
        sent = [one.body["messages"][0]["content"] for one in server.requests]
    assert outcome.summary.requests_ok == 4 and len(sent) == 5
    assert all("Continue this text:\n\n" in one for one in sent)
    assert outcome.spec.texts == () and outcome.spec.content == "text"
