"""Think time: its texts, its pauses, and streams that pause between an answer and the next request."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.scripted_server import Request, ScriptedServer, Step, chat_events, chunked

from workbench.bench import runner
from workbench.bench.schedule import stagger_duration_s
from workbench.bench.time_limits import RUN_TIMEOUT_S, TimeLimits
from workbench.model.bench import BenchSpec
from workbench.model.errors import InputError
from workbench.model.think_time import ThinkTime, parse_think_time
from workbench.session.bench.spec import spec_from_fields


def answer(request: Request, n: int) -> list[Step]:
    return [chunked(chat_events(request.body["max_tokens"], prompt=9))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", ThinkTime(5, 5)),
        (" 0.5 ", ThinkTime(0.5, 0.5)),
        ("0-2.5", ThinkTime(0, 2.5)),
        ("exp:5", ThinkTime(5, 5, exponential=True)),
    ],
)
def test_a_think_time_is_parsed(text: str, expected: ThinkTime) -> None:
    assert parse_think_time(text) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "0", "5-2", "exp:0", "exp:1-2", "3601", "nan", "1e3"]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a think time"):
        parse_think_time(text)


def test_pauses_follow_their_distribution_and_the_seed() -> None:
    assert {parse_think_time("2").pause_s(0, n) for n in range(9)} == {2}
    even = [parse_think_time("2-4").pause_s(0, n) for n in range(2000)]
    assert min(even) >= 2 and max(even) <= 4 and abs(statistics.mean(even) - 3) < 0.05
    drawn = parse_think_time("exp:3")
    pauses = [drawn.pause_s(0, n) for n in range(4000)]
    assert abs(statistics.mean(pauses) - 3) < 0.2 and abs(statistics.stdev(pauses) - 3) < 0.3
    assert pauses == [drawn.pause_s(0, n) for n in range(4000)]
    assert drawn.pause_s(1, 0) != pauses[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 3.0}, "requests start on a schedule"),
        ({"command": ("true",)}, "your own command sends the requests"),
    ],
)
def test_a_load_whose_streams_do_not_decide_refuses_one(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        spec_from_fields(None, {"think_time": "5", **given})


def test_the_first_requests_and_the_deadline_leave_room_for_it() -> None:
    spec = BenchSpec("http://x", "m", concurrency=4, requests=40, think_time="2-4")
    assert (
        stagger_duration_s(spec, 1.0) == 4.0 and TimeLimits(spec).deadline_s == RUN_TIMEOUT_S + 30
    )
    assert stagger_duration_s(replace(spec, think_time=""), 1.0) == 1.0


def most_in_flight(samples: Any) -> int:
    """Return the most requests that were in flight at the same time."""
    edges = [(one["start_s"], 1) for one in samples]
    edges += [(one["start_s"] + one["end_us"] / 1e6, -1) for one in samples]
    most = now = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most


def test_a_stream_pauses_after_each_answer() -> None:
    spec = BenchSpec(
        "", "m", concurrency=1, requests=4, warmup=2, max_tokens=3, think_time="0.03", salt="x"
    )
    with ScriptedServer(answer) as server:
        outcome = asyncio.run(runner.run_load(replace(spec, url=server.url)))
    samples = sorted(outcome.samples, key=lambda one: one["start_s"])
    ends = [one["start_s"] + one["end_us"] / 1e6 for one in samples]
    waits = [b["start_s"] - a for a, b in zip(ends, samples[1:], strict=False)]
    assert len(samples) == 4 and all(wait > 0.029 for wait in waits)
    assert outcome.summary.in_flight_nominal is None


def test_streams_that_pause_are_not_called_idle() -> None:
    spec = BenchSpec(
        "", "m", concurrency=4, requests=24, warmup=2, max_tokens=3, think_time="exp:0.02", salt="x"
    )
    with ScriptedServer(answer) as server:
        outcome = asyncio.run(runner.run_load(replace(spec, url=server.url), processes=2))
    assert outcome.summary.requests_ok == 24 and not outcome.partial
    assert most_in_flight(outcome.samples) <= 4
    assert not any("in flight on average" in why for why in outcome.summary.refused)


def conversations(path: Path, many: int) -> str:
    """Write conversations of one, two and three turns."""
    rows = []
    for one in range(many):
        parts = []
        for turn in range(1 + one % 3):
            parts += [
                {"from": "human", "value": f"q {one} {turn}"},
                {"from": "gpt", "value": "fine " * 3},
            ]
        rows.append(json.dumps({"conversations": parts}))
    path.write_text("\n".join(rows))
    return str(path)


@pytest.mark.parametrize("streams", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 7))])
def test_a_user_keeps_its_conversation_while_it_thinks(tmp_path: Path, streams: int) -> None:
    file = conversations(tmp_path / "talks.jsonl", 7)
    given = {"trace_file": file, "concurrency": streams, "warmup": 1, "think_time": "0-0.01"}
    spec = replace(spec_from_fields(None, given), model="m", salt="x")
    with ScriptedServer(answer) as server:
        outcome = asyncio.run(runner.run_load(replace(spec, url=server.url)))
        sent = [
            [m["content"].rpartition("] ")[2] for m in r.body["messages"] if m["role"] == "user"]
            for r in server.requests
        ]
    assert outcome.summary.requests_ok == spec.requests == 13
    by_talk: dict[str, list[int]] = defaultdict(list)
    for asked in sent:
        if asked[0].startswith("q "):
            by_talk[asked[0]].append(len(asked))
    assert sorted(by_talk.values()) == sorted([*range(1, 2 + n % 3)] for n in range(7))
    # a conversation that is thought about is still one of those at a time
    open_now: set[str] = set()
    for asked in sent:
        if asked[0].startswith("q "):
            open_now.add(asked[0])
            assert len(open_now) <= streams
            if len(asked) == len(by_talk[asked[0]]):
                open_now.discard(asked[0])
