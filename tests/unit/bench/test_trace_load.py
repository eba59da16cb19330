"""Loads that replay a trace: their prompts, their times, and what their result says about both."""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Request, ScriptedServer, Step, chat_events, chunked, plain
from support.made_results import result

from workbench.bench import prompt_length, runner, trace_file
from workbench.bench.load_share import Share
from workbench.bench.records import RequestRecord
from workbench.bench.result_validity import (
    ClientFacts,
    reasons_for_invalid_result,
    reasons_for_unreliable_result,
)
from workbench.bench.schedule import request_due_times_s
from workbench.bench.steady_window import choose_rate_window
from workbench.bench.time_limits import RUN_TIMEOUT_S, TimeLimits
from workbench.bench.trace_load import trace_load
from workbench.bench.trace_reuse import compare_prefix_reuse_with_trace
from workbench.bench.workload import Workload
from workbench.model.bench import BenchSpec, BenchSummary, EngineDuring
from workbench.model.bench_cli_options import bench_cli_options
from workbench.model.errors import InputError
from workbench.quality.texts import shipped_short_contents
from workbench.session.bench.spec import spec_from_fields

ROWS = [
    {"timestamp": 1000, "input_length": 1124, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 1200, "input_length": 1300, "output_length": 6, "hash_ids": [0, 3, 4]},
    {"timestamp": 1300, "input_length": 1224, "output_length": 7, "hash_ids": [0, 1, 2]},
]


def spec_of(tmp_path: Path, rows: list[dict[str, Any]] | None = None, **options: Any) -> BenchSpec:
    path = tmp_path / "talks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows or ROWS)))
    made = spec_from_fields(None, {"trace_file": str(path), **options})
    return replace(made, salt="ab", model="m", texts=shipped_short_contents())


def prompt(spec: BenchSpec, index: int, *, warmup: bool = False) -> str:
    sent = json.loads(Workload(spec).request_body(index, warmup=warmup))
    return str(sent["messages"][0]["content"])


def shared(a: str, b: str) -> int:
    """Return the number of characters with which both texts begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def tokens_of(text: str) -> int:
    """Return the tokens of a text: those of words by their letters, every other sign, and one that
    begins the text."""
    return 1 + sum(
        -(-len(part) // 5) if part.isalpha() else len(part.encode()) // 3 + 1
        for part in re.findall(r"[A-Za-z]+|[^A-Za-z\s]|\n+", text)
    )


async def count(fields: Mapping[str, Any]) -> int | None:
    if "prompt" in fields:
        return tokens_of(fields["prompt"])
    return 20 + tokens_of(fields["messages"][0]["content"])


def test_prompts_share_the_blocks_that_the_trace_says(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    length = asyncio.run(prompt_length.measure_trace_passage_tokens(replace(spec, texts=()), count))
    assert length is not None
    spec = replace(spec, prompt_words=length.words, passage_tokens=length.tokens.as_spec_numbers)
    first, second, third = (prompt(spec, index) for index in range(3))
    assert 20 + tokens_of(first[: shared(first, second)]) == pytest.approx(512, abs=8)
    assert third.startswith(first) and len(third) > len(first)
    assert shared(first, prompt(replace(spec, salt="cd"), 0)) < 3
    assert shared(first, prompt(spec, 0, warmup=True)) < 3


def test_a_and_b_replay_the_same_text_behind_other_marks(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    a, b = (prompt(replace(spec, salt=salt), 1).split("[") for salt in ("a", "b"))
    assert len(a) == len(b)
    assert [part[13:] for part in a] == [part[13:] for part in b]


def test_answers_have_the_lengths_of_the_trace(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    bodies = [json.loads(Workload(spec).request_body(index, warmup=False)) for index in range(3)]
    assert [body["max_tokens"] for body in bodies] == [5, 6, 7]
    assert all(body["min_tokens"] == body["max_tokens"] for body in bodies)
    assert json.loads(Workload(spec).request_body(0, warmup=True))["max_tokens"] == 6
    assert json.loads(
        Workload(replace(spec, endpoint="completions")).request_body(0, warmup=False)
    )["prompt"] == prompt(spec, 0)


def test_the_times_follow_the_speed_and_the_share(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, speed=2.0)
    times = request_due_times_s(spec, warmup=False)
    assert times is not None and [*times] == pytest.approx([0, 0.1, 0.15])
    assert request_due_times_s(spec, warmup=True) is None
    of_one = Share(1, 2).due_times_of_share(request_due_times_s(spec, warmup=False))
    assert of_one is not None and [*of_one] == pytest.approx([0.1])
    assert spec.trace_s == pytest.approx(0.15) and spec.concurrency == 256
    assert spec.requests == 3 and spec.input_tokens == 1216 and spec.max_tokens == 6
    assert TimeLimits(replace(spec, trace_s=7200.0)).deadline_s == 7200 + RUN_TIMEOUT_S
    assert TimeLimits(replace(spec, trace_s=7200.0, seconds=60.0)).deadline_s == 60 + RUN_TIMEOUT_S


def lengths_of(spec: BenchSpec) -> list[int]:
    return [20 + tokens_of(prompt(spec, index)) for index in range(spec.requests)]


def test_each_prompt_has_the_length_of_the_trace_by_the_servers_tokenizer(tmp_path: Path) -> None:
    rows = [
        {"timestamp": n, "input_length": n, "output_length": 1, "hash_ids": [0, n][: -(-n // 512)]}
        for n in range(50, 1024, 16)
    ]
    spec = spec_of(tmp_path, rows)
    length = asyncio.run(prompt_length.measure_trace_passage_tokens(replace(spec, texts=()), count))
    assert length is not None
    fitted = replace(spec, prompt_words=length.words, passage_tokens=length.tokens.as_spec_numbers)
    wanted = [row["input_length"] for row in rows]
    apart = [abs(a - b) for a, b in zip(lengths_of(fitted), wanted, strict=True)]
    assert sorted(apart)[-4] <= 5 and max(apart) <= 12

    async def silent(fields: Mapping[str, Any]) -> int | None:
        return None

    assert asyncio.run(prompt_length.measure_trace_passage_tokens(spec, silent)) is None


def test_two_lengths_of_the_warm_up_tell_the_template_from_the_text(tmp_path: Path) -> None:
    rows = [{"timestamp": n, "input_length": 100 + 9 * n, "output_length": 1} for n in range(60)]
    workload = Workload(spec_of(tmp_path, rows))

    def asked(index: int, *, warmup: bool) -> str:
        return str(
            json.loads(workload.request_body(index, warmup=warmup))["messages"][0]["content"]
        )

    workload.calibrate_words([(n, 60 + tokens_of(asked(n, warmup=True))) for n in range(8)])
    made = [60 + tokens_of(asked(n, warmup=False)) for n in range(60)]
    apart = [a - row["input_length"] for a, row in zip(made, rows, strict=True)]
    assert abs(sum(apart)) / 60 < 12
    assert abs(sum(apart[:10])) / 10 < 20, "of the short ones"


# -- a run


def answer(request: Request, n: int) -> list[Step]:
    asked = request.body
    prompt_tokens = len(asked["messages"][0]["content"]) // 3
    return [chunked(chat_events(asked["max_tokens"], prompt=prompt_tokens))]


def test_requests_start_at_the_times_of_the_trace(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, warmup=2)
    with ScriptedServer(answer) as server:
        outcome = asyncio.run(runner.run_load(replace(spec, url=server.url)))
        assert len(server.requests) == 5
    assert outcome.summary.requests_ok == 3 and outcome.summary.output_tokens == 18
    due_s = sorted(one["due_s"] for one in outcome.samples)
    assert [at - due_s[0] for at in due_s] == pytest.approx([0, 0.2, 0.3], abs=1e-5)
    assert all(one["start_s"] >= one["due_s"] for one in outcome.samples)
    assert outcome.summary.queue_ms is not None
    assert any("1216 in the trace, by the warm-up's usage" in n for n in outcome.summary.notes)


def test_two_processes_share_a_trace(tmp_path: Path) -> None:
    rows = [{"timestamp": 10 * n, "input_length": 40, "output_length": 1 + n} for n in range(11)]
    spec = spec_of(tmp_path, rows, warmup=2, concurrency=8)
    with ScriptedServer(answer) as server:
        outcome = asyncio.run(runner.run_load(replace(spec, url=server.url), processes=2))
    assert sorted(one["output_tokens"] for one in outcome.samples) == [*range(1, 12)]
    words = outcome.summary.text.load.prompt_words if outcome.summary.text else None
    assert words is not None and words < 80  # of a prompt of 40 tokens, not of 512


# -- sessions


@pytest.mark.parametrize("processes", [1, 2])
def test_a_turn_of_a_session_starts_a_pause_after_the_answer_before_it(
    tmp_path: Path, processes: int
) -> None:
    turn = {"session_id": "a", "input_length": 60, "output_length": 3}
    rows: list[dict[str, Any]] = [
        {"timestamp": 0, **turn},
        {"delay": 300, **turn},
        {"timestamp": 500, "input_length": 80, "output_length": 2},
        {"delay": 0, **turn},
        {"timestamp": 20, **turn, "session_id": "b"},
        {"delay": 40, **turn, "session_id": "b"},
    ]
    spec = spec_of(tmp_path, rows, warmup=2, concurrency=4, speed=2.0)
    with ScriptedServer(answer) as server:
        outcome = asyncio.run(runner.run_load(replace(spec, url=server.url), processes=processes))
        sent = [one.body["messages"][0]["content"] for one in server.requests][2:]
    assert outcome.summary.requests_ok == 6 and not outcome.partial
    by_index = {one["index"]: one for one in outcome.samples}
    assert sorted(by_index) == [*range(6)]
    load = trace_load(spec.trace)
    began = min(one["due_s"] for one in outcome.samples)
    for index, before in [(after, before) for before, after in load.next_turn.items()]:
        one, earlier = by_index[index], by_index[before]
        ended_s = earlier["start_s"] + earlier["end_us"] / 1e6
        pause_s = one["start_s"] - ended_s
        assert load.pauses_s[index] / 2 - 1e-3 <= pause_s < load.pauses_s[index] / 2 + 0.1
        assert one["due_s"] is None or one["due_s"] <= one["start_s"]
    assert by_index[load.first_turns[-1]]["due_s"] - began == pytest.approx(0.25, abs=1e-3)
    grown = [one for one in sent if len(one) > 2.2 * len(min(sent, key=len))]
    assert len(grown) >= 2, "prompts of later turns contain those before"


# -- conversations


def talks(many: int, turns: int) -> list[dict[str, Any]]:
    """Return conversations in which question n of conversation c is "q c n"."""

    def said(one: int, turn: int) -> list[dict[str, str]]:
        question = {"from": "human", "value": f"q {one} {turn}"}
        return [question, {"from": "gpt", "value": f"an answer of {turn} " * 2}]

    return [
        {"conversations": [part for turn in range(turns + one % 2) for part in said(one, turn)]}
        for one in range(many)
    ]


def questions(request: Request) -> list[str]:
    messages = request.body["messages"]
    return [one["content"].rpartition("] ")[2] for one in messages if one["role"] == "user"]


@pytest.mark.parametrize("processes", [1, 2])
def test_conversations_are_replayed_turn_by_turn(tmp_path: Path, processes: int) -> None:
    spec = spec_of(tmp_path, talks(5, 3), concurrency=4, warmup=2)
    assert spec.requests == 17 and not spec.has_schedule and not spec.has_real_text
    with ScriptedServer(answer) as server:
        outcome = asyncio.run(runner.run_load(replace(spec, url=server.url), processes=processes))
        sent = [questions(one) for one in server.requests if questions(one)[0].startswith("q")]
        marks = {one.body["messages"][0]["content"][:14] for one in server.requests}
    assert outcome.summary.requests_ok == 17 and not outcome.partial
    for one in range(5):
        own = [asked for asked in sent if asked[0] == f"q {one} 0"]
        assert own == [[f"q {one} {turn}" for turn in range(n)] for n in range(1, 4 + one % 2)]
    assert len(marks) == 5 + 2, "one for each conversation and each request of the warm-up"
    of_talks = [r for r in outcome.samples if r["index"] < 3]
    ends = [one["start_s"] + one["end_us"] / 1e6 for one in of_talks]
    ordered = sorted(of_talks, key=lambda one: one["index"])
    assert [one["index"] for one in ordered] == [0, 1, 2]
    assert all(a <= b["start_s"] for a, b in zip(sorted(ends), ordered[1:], strict=False))


def test_a_failed_turn_does_not_end_its_conversation(tmp_path: Path) -> None:
    def fails_once(request: Request, n: int) -> list[Step]:
        if questions(request) == ["q 0 0"]:
            return [plain("500 Internal Server Error", {"error": "no"})]
        return answer(request, n)

    spec = spec_of(tmp_path, talks(2, 2), concurrency=1, warmup=0)
    with ScriptedServer(fails_once) as server:
        outcome = asyncio.run(runner.run_load(replace(spec, url=server.url)))
    assert (outcome.summary.requests_ok, outcome.summary.requests_failed) == (4, 1)


def test_conversations_end_with_the_time_of_the_run(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, talks(40, 60), concurrency=2, warmup=0, seconds=0.3)
    with ScriptedServer(answer) as server:
        outcome = asyncio.run(runner.run_load(replace(spec, url=server.url)))
    assert 2 <= outcome.summary.requests_ok < spec.requests and not outcome.partial
    assert not any("were not sent" in note for note in outcome.summary.notes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"speed": 2.0}, "the conversations have no times"),
        ({"content": "text"}, "the conversations have text of their own"),
        ({"endpoint": "completions"}, "as messages of a chat"),
        ({"concurrency": 6}, "5 conversations cannot keep 6 streams busy"),
    ],
)
def test_options_that_conversations_decide_are_refused(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        spec_of(tmp_path, talks(5, 2), **given)


def test_the_steady_window_of_conversations_ends_when_the_last_one_begins(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, talks(4, 8), concurrency=2)
    counted = [
        replace(record_of(0, 0.1 * index, 0.1), index=index, due_s=None) for index in range(34)
    ]
    window = choose_rate_window(spec, counted)
    assert (window.name, window.end_s) == ("steady", pytest.approx(2.5))  # 8 + 9 + 8 requests
    assert (
        reuse_of(spec, 40.0).marks and not reuse_of(spec, 100 * (spec.trace_reuse or 0) - 4).marks
    )


def reuse_of(spec: BenchSpec, percent: float) -> Any:
    during = EngineDuring(prefix_hit_tokens=round(36.48 * percent), prompt_tokens=3648 + 500)
    return compare_prefix_reuse_with_trace(spec, summary_of(None), during, is_partial=False)


# -- what a result says


def record_of(due_s: float, start_s: float, took_s: float) -> RequestRecord:
    return RequestRecord(
        index=0,
        warmup=False,
        start_s=start_s,
        end_us=round(took_s * 1e6),
        ttft_us=1000,
        output_tokens=5,
        chunks=5,
        due_s=due_s,
    )


def test_a_late_schedule_is_refused_and_a_busier_second_half_is_marked(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, concurrency=4)
    late = [record_of(n, n * 1.2, 0.1) for n in range(40)]
    window = choose_rate_window(spec, late)
    assert any(
        "instead of the scheduled" in why
        for why in reasons_for_invalid_result(spec, late, ClientFacts(), window)
    )
    growing = [record_of(n, n, 0.5 if n < 20 else n - 10) for n in range(40)]
    window = choose_rate_window(spec, growing)
    assert not reasons_for_invalid_result(spec, growing, ClientFacts(), window)
    assert any(
        "did not keep up" in why for why in reasons_for_unreliable_result(spec, growing, window)
    )
    at_once = [record_of(0.0, 0.02 * n, 0.1) for n in range(20)]
    assert not reasons_for_invalid_result(
        spec, at_once, ClientFacts(), choose_rate_window(spec, at_once)
    )


@pytest.mark.parametrize(
    ("hits", "cached", "marked"),
    [
        (1720, None, ""),
        (1650, None, ""),
        (1500, None, "off or too small"),
        (0, None, "the engine reused 0.0 %"),
        (2400, None, "answered such prompts before"),
        (None, 1720, ""),
        (None, 10, "the engine reused 0.3 %"),
    ],
)
def test_the_engines_reuse_stands_beside_the_traces(
    tmp_path: Path, hits: int | None, cached: int | None, marked: str
) -> None:
    spec = replace(spec_of(tmp_path), endpoint="completions", trace_reuse=1720 / 3648)
    summary = summary_of(cached)
    during = EngineDuring(prefix_hit_tokens=hits, prompt_tokens=3648 + 500)
    found = compare_prefix_reuse_with_trace(spec, summary, during, is_partial=False)
    said = "a prefix cache without limit would reuse 47.1 % of the trace's prompt tokens"
    assert all(text.startswith(said) for text in (*found.marks, *found.notes))
    assert (len(found.marks), len(found.notes)) == ((1, 0) if marked else (0, 1))
    assert marked in "".join(found.marks)
    assert compare_prefix_reuse_with_trace(spec, summary, during, is_partial=True).notes == ()


def test_an_engine_that_counts_no_reuse_is_said(tmp_path: Path) -> None:
    found = compare_prefix_reuse_with_trace(
        spec_of(tmp_path), summary_of(None), EngineDuring(), is_partial=False
    )
    assert found.notes[0].endswith("; the engine does not count reused tokens")
    assert not found.marks
    template = EngineDuring(prefix_hit_tokens=150, prompt_tokens=3648 + 500)
    unshared = replace(spec_of(tmp_path), trace_reuse=0.0)
    assert not compare_prefix_reuse_with_trace(
        unshared, summary_of(None), template, is_partial=False
    ).marks


def summary_of(cached: int | None) -> BenchSummary:
    return replace(
        result().summary,
        requests_ok=3,
        requests_failed=0,
        prompt_tokens=3648,
        warmup_prompt_tokens=500,
        cached_tokens=cached,
    )


# -- the options


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"requests": 5}, "so --requests has no effect beside it"),
        ({"rate": 2.0}, "so --rate has no effect"),
        ({"content": "words"}, "so --content has no effect"),
        ({"command": ("x",)}, "so --command has no effect"),
        ({"shared_prefix": True}, "so --shared-prefix has no effect"),
        ({"endpoint": "embeddings"}, "embeddings are no answers"),
        ({"speed": -1.0}, "speed -1 is not a valid number of times the recorded speed"),
        ({"first": 0}, "0 is not a valid value of first"),
        ({"speed": 1e-6}, "the trace lasts 83.3 hours, and a benchmark at most 4"),
    ],
)
def test_options_that_a_trace_decides_are_refused(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        spec_of(tmp_path, **given)


def test_the_command_that_repeats_a_trace_names_what_it_does_not_decide(tmp_path: Path) -> None:
    spec = replace(spec_of(tmp_path, first=2, speed=0.5, warmup=3, content="text"), texts=())
    assert bench_cli_options(spec) == (
        *("--concurrency", "256", "--warmup", "3"),
        *("--trace", "talks.jsonl", "--speed", "0.5x", "--first", "2"),
    )


def test_a_large_trace_starts_in_little_memory(tmp_path: Path) -> None:
    rows = [
        {"timestamp": n, "input_length": 4000, "output_length": 9, "hash_ids": [*range(n, n + 8)]}
        for n in range(2000)
    ]
    path = tmp_path / "large.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    tracemalloc.start()
    try:
        found = trace_file.read_trace(path)
        spec = replace(spec_of(tmp_path), trace=found.requests)
        Workload(spec).request_body(1999, warmup=False)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 60e6 / 10_000 * len(rows)
