"""A benchmark looks at the text: real runs of the load client against a server for each kind of
text that is known to go wrong, and against healthy ones."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from support.scripted_server import (
    Request,
    ScriptedServer,
    Step,
    chat_events,
    chunked,
    plain,
    probe_answer,
)
from support.text_engine import KINDS, TextEngine

from workbench.bench import runner
from workbench.model.answer_probe import (
    DEGENERATE,
    EMPTY,
    FINISH,
    MIXED_UP,
    OTHER_MODEL,
    PROMPT_CUT,
    REASONING_ONLY,
    USAGE,
    make_short_asks,
)
from workbench.model.answer_text import answer_text_rows
from workbench.model.answer_verdict import EarlierResult
from workbench.model.bench import BenchSpec, BenchSummary
from workbench.model.json_records import from_json, to_json
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.session.bench.answer_client import AnswerClient
from workbench.session.bench.text_probe import TextProbe, why_language_is_not_expected

REFUSED = {  # kind of text -> the code of the finding that makes the result invalid
    "bang": DEGENERATE,
    "token": DEGENERATE,
    "loop": DEGENERATE,
    "glyphs": DEGENERATE,
    "replacement": DEGENERATE,
    "bad-utf8": DEGENERATE,
    "equal": DEGENERATE,
    "batch": DEGENERATE,
    "long": DEGENERATE,
    "later": DEGENERATE,
    "empty": EMPTY,
    "usage-only": EMPTY,
    "mixed-up": MIXED_UP,
    "usage-twice": USAGE,
    "inflated": USAGE,
    "slightly-inflated": USAGE,
    "tools": EMPTY,
    "cut": PROMPT_CUT,
    "forgets": PROMPT_CUT,
    "fallback": OTHER_MODEL,
    "filtered": FINISH,
}
MARKED = {"other-model": OTHER_MODEL, "reasoning-only": REASONING_ONLY}
HEALTHY = ("good", "reasoning")
QUICK = ("bang", "good", "slightly-inflated")
LOAD: dict[str, Any] = {"concurrency": 4, "requests": 8, "warmup": 2, "max_tokens": 40}
LONG = {"long": 4500, "forgets": 400}  # prompt tokens with which this kind shows


async def looked(engine: TextEngine, **fields: Any) -> BenchSummary:
    earlier, nonsense = fields.pop("earlier", None), fields.pop("nonsense", "")
    length = LONG.get(engine.kind, 128)
    spec = BenchSpec(engine.url, "tiny", **{**LOAD, "input_tokens": length, **fields})
    with closing(AnswerClient(spec)) as client:
        probe = TextProbe(client, spec, nonsense)
        await probe.send_prompts_before_load(spec)
        outcome = await runner.run_load(spec)
        await probe.send_prompts_after_load()
        summary = probe.add_text_assessment(outcome.summary, earlier)
    return from_json(BenchSummary, json.loads(json.dumps(to_json(summary))))


def run(kind: str, **fields: Any) -> BenchSummary:
    with TextEngine(kind) as engine:
        return asyncio.run(looked(engine, **fields))


def slow_unless_quick(kinds: Any) -> list[Any]:
    return [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


def findings(summary: BenchSummary, level: str) -> dict[str, str]:
    assert summary.text is not None
    return {one.code: one.text for one in summary.text.findings if one.level == level}


@pytest.mark.parametrize("kind", slow_unless_quick(REFUSED))
def test_a_result_whose_text_is_wrong_is_invalid(kind: str) -> None:
    summary = run(kind)
    found = findings(summary, "error")
    assert REFUSED[kind] in found, summary.text
    assert any(reason.startswith(found[REFUSED[kind]]) for reason in summary.refused)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MARKED)
def test_a_doubt_is_a_mark(kind: str) -> None:
    summary = run(kind)
    assert set(findings(summary, "warn")) == {MARKED[kind]} and not findings(summary, "error")
    assert any(
        reason.startswith(findings(summary, "warn")[MARKED[kind]]) for reason in summary.marked
    )


@pytest.mark.parametrize("kind", slow_unless_quick(HEALTHY))
def test_healthy_text_has_no_finding(kind: str) -> None:
    summary = run(kind)
    assert summary.text is not None and summary.text.findings == ()
    assert not any("text" in note for note in summary.notes)
    probe = summary.text.probe
    assert probe is not None and set(probe.places) == {"alone", "together"}
    assert all(place.remembered == place.answers for place in probe.places.values())
    rows = dict(answer_text_rows(summary.text))
    assert rows["text probe"] == "alone 3 of 3 sound, several at once 8 of 8 sound"
    assert rows["ended by"].startswith("length 8; ") and rows["text"]


def test_every_kind_of_text_has_its_test() -> None:
    judged = {*REFUSED, *MARKED, *HEALTHY}
    # no text, or only after a while
    elsewhere = {"base", "thinking", "hidden-reasoning", "batch-fails", "busy"}
    assert judged | elsewhere == {kind for kind in KINDS if not kind.endswith("vectors")}


@pytest.mark.slow
def test_garbage_under_load_or_with_long_prompts_says_where() -> None:
    (batch,) = findings(run("batch"), "error").values()
    assert batch.startswith("degenerate output with 4 requests at once only: ")
    (long,) = findings(run("long"), "error").values()
    assert long.startswith("degenerate output with prompts of 4,476 tokens only: ")
    (later,) = findings(run("later"), "error").values()
    assert "after the load" in later or "are only" in later


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thinking", "hidden-reasoning"])
def test_reasoning_that_is_hidden_is_no_empty_answer_and_no_false_usage(kind: str) -> None:
    summary = run(kind, concurrency=1, requests=4, max_tokens=128, ignore_eos=False)
    assert findings(summary, "error") == {}


@pytest.mark.parametrize("stream", [True, False])
def test_the_prompts_at_once_are_streamed_as_the_load_is(stream: bool) -> None:
    def answer(request: Request, number: int) -> list[Step]:
        if request.body.get("stream"):
            return [chunked(chat_events(request.body["max_tokens"]))]
        return [plain("200 OK", probe_answer(request.body))]

    async def go(server: ScriptedServer) -> None:
        spec = BenchSpec(server.url, "m", concurrency=4, input_tokens=64, stream=stream)
        with closing(AnswerClient(spec)) as client:
            probe = TextProbe(client, spec)
            await probe.send_prompts_before_load(spec)
            await probe.send_prompts_after_load()

    with ScriptedServer(answer) as server:
        asyncio.run(go(server))
        asked = [request.body for request in server.requests]
    streamed = [body for body in asked if body["stream"]]
    assert len(streamed) == (2 * 4 if stream else 0)  # before and after the load
    assert all(body["stream_options"] == {"include_usage": True} for body in streamed)
    prompts = {body["messages"][0]["content"] for body in streamed}
    assert prompts == ({one.prompt for one in make_short_asks(4)} if stream else set())


def test_the_probe_is_no_part_of_the_load() -> None:
    with TextEngine("good") as engine:
        summary = asyncio.run(looked(engine))
        assert summary.requests_ok == LOAD["requests"]
        assert engine.requests > LOAD["requests"] + LOAD["warmup"] + 8


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"endpoint": "completions"}, "a base model"),
        ({"command": ("true",)}, "a command of your own"),
        ({"endpoint": "embeddings", "stream": False}, "embeddings are no text"),
    ],
)
def test_a_load_without_a_probe_says_why(fields: dict[str, Any], why: str) -> None:
    spec = BenchSpec("http://127.0.0.1:1", "tiny", **fields)
    assert why in TextProbe(None, spec).skipped  # type: ignore[arg-type]


def test_completions_have_the_reason_in_a_note() -> None:
    summary = run("good", endpoint="completions")
    assert summary.text is not None and not summary.refused
    assert any("the text was not probed at all: a base model" in note for note in summary.notes)


def test_a_model_without_sense_is_not_refused() -> None:
    summary = run("bang", nonsense="its weights are random")
    assert not summary.refused
    assert any("because its weights are random" in note for note in summary.notes)


def test_which_models_need_no_sense() -> None:
    spec = BenchSpec("http://h", "m")
    plan = LaunchPlan("vllm", "m")
    facts = ModelFacts("m", weight_bytes=5e6)
    assert (
        why_language_is_not_expected(spec, plan) == why_language_is_not_expected(spec, None) == ""
    )
    assert "random" in why_language_is_not_expected(replace(spec, random_weights=True), None)
    assert "dummy" in why_language_is_not_expected(spec, plan.with_flag("load-format", "dummy"))
    assert "5 MB" in why_language_is_not_expected(spec, replace(plan, model_facts=facts))


def test_usage_is_compared_with_an_earlier_result() -> None:
    before = run("good")
    assert before.text is not None
    load = replace(before.text.load, characters_per_token=2.0)
    summary = run("good", earlier=EarlierResult(7, load))
    (found,) = findings(summary, "warn").values()
    assert re.search(r"5\.[56] characters per token, and 2\.0 in result 7", found)
