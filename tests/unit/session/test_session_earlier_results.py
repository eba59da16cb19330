"""Which earlier result a benchmark compares its text with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import made_results
from support.text_engine import TextEngine

from workbench.model.answer_text import TextReport, features_of_answers
from workbench.model.bench import BenchResult
from workbench.server.model_fingerprint import ModelFingerprint
from workbench.session.bench.benchmark_load import ServerUnderTest
from workbench.session.bench.earlier_results import (
    TokenizerIdentity,
    find_earlier_comparable_result,
    tokenizer_of_result,
    tokenizer_of_server,
)
from workbench.session.session import Session

HERE = TokenizerIdentity("local", "/models/tiny", "vllm", flags={"revision": "abc"})


def stored(number: int, tokenizer: TokenizerIdentity, **spec: Any) -> BenchResult:
    """Return a valid result of a server with this tokenizer."""
    made = made_results.result(
        host=tokenizer.host,
        model=tokenizer.model,
        engine=tokenizer.engine,
        model_digest=tokenizer.files,
        flags={**tokenizer.flags, "max-num-seqs": number},
        address=tokenizer.address,
        image=tokenizer.image,
        simulated=tokenizer.simulated,
    )
    text = TextReport(features_of_answers([]))
    summary = replace(made.summary, text=text, refused=())
    return replace(made, id=number, summary=summary, spec=replace(made.spec, **spec))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({}, True),
        ({"engine": None}, True),  # a server at a URL, before it was asked
        ({"engine": "llamacpp"}, False),
        ({"model": "/models/other"}, False),
        ({"host": "box"}, False),  # a path means another file there
        ({"flags": {"revision": "def"}}, False),
        ({"flags": {"revision": "abc", "tokenizer": "org/other"}}, False),
        ({"address": "http://127.0.0.1:8001"}, False),
        ({"image": "vllm@sha256:1"}, False),
        ({"simulated": True}, False),
    ],
)
def test_what_tells_one_tokenizer_from_another(other: dict[str, Any], same: bool) -> None:
    changed = replace(HERE, **other)
    assert tokenizer_of_result(stored(1, HERE).conditions) == HERE
    assert (changed.may_be_same_tokenizer(HERE), HERE.may_be_same_tokenizer(changed)) == (
        same,
        same,
    )
    before = stored(7, changed)
    found = find_earlier_comparable_result([before], before.spec, HERE)
    assert (found.result_id if found else None) == (7 if same else None)


def test_the_files_of_the_model_decide_if_they_are_known() -> None:
    known = replace(HERE, files="1234")
    moved = replace(known, host="box", model="/elsewhere/tiny")
    assert known.may_be_same_tokenizer(moved) and known.may_be_same_tokenizer(HERE)
    assert not known.may_be_same_tokenizer(replace(known, files="5678"))


def test_the_newest_result_of_as_long_answers_comes_first() -> None:
    spec = stored(1, HERE).spec
    results = [
        stored(4, replace(HERE, engine="sglang")),
        stored(3, HERE, max_tokens=spec.max_tokens + 1),
        stored(2, HERE),
        stored(1, HERE),
    ]
    found = find_earlier_comparable_result(results, spec, HERE)
    assert found is not None and (found.result_id, found.same_lengths) == (2, True)
    without = find_earlier_comparable_result(results[:2], spec, HERE)
    assert without is not None and (without.result_id, without.same_lengths) == (3, False)
    refused = replace(results[2], summary=replace(results[2].summary, refused=("the text",)))
    assert find_earlier_comparable_result([refused], spec, HERE) is None


def test_a_server_that_others_started_is_known_by_its_address() -> None:
    spec = stored(1, HERE).spec
    servers = [ServerUnderTest("local", address=f"http://127.0.0.1:{port}") for port in (1, 2, 1)]
    one, other, again = (
        tokenizer_of_server(server, spec, ModelFingerprint(None, ""), simulated=False)
        for server in servers
    )
    assert not one.may_be_same_tokenizer(other) and one.may_be_same_tokenizer(again)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.anyio
async def test_two_servers_with_one_name_and_different_tokenizers_are_not_compared() -> None:
    """The second one was marked: "usage not credible", by the tokens of the first one."""
    session = Session.of_host()
    shape = {"concurrency": 1, "requests": 4, "max_tokens": 16, "warmup": 0, "input_tokens": 32}
    with TextEngine("good") as first, TextEngine("good") as second:
        number = await session.bench.benchmark_url(first.url, **shape)
        result = await session.results.get(number)
        text = result.summary.text
        assert text is not None
        # as with a tokenizer of which a token has twice as many characters
        load = replace(text.load, characters_per_token=2 * (text.load.characters_per_token or 0))
        other = replace(result.summary, text=replace(text, load=load), refused=())
        session.results.db.add(result.spec, result.conditions, other)

        def compared(marked: tuple[str, ...]) -> bool:
            return any("characters per token" in one and "in result" in one for one in marked)

        beside = await session.results.get(await session.bench.benchmark_url(second.url, **shape))
        assert not compared(beside.summary.marked)
        again = await session.results.get(await session.bench.benchmark_url(first.url, **shape))
        assert compared(again.summary.marked)
