"""Prompts of the text probe that a slow engine answers too late: they are Workbench's own requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support import made_results as made

from workbench.bench.records import BenchOutcome
from workbench.model.bench import BenchSpec, BenchSummary, EngineDuring
from workbench.server.small_requests import make_timeout_reply
from workbench.session.bench import measurement, text_probe
from workbench.session.bench.gpu_meter import RequestCounts
from workbench.session.bench.measurement import Measurement
from workbench.session.bench.text_probe import AbandonedRequests, TextProbe

SPEC = BenchSpec("http://127.0.0.1:9", "tiny", concurrency=1)


class LateClient:
    """A server that answers nothing in time."""

    async def post(self, body: Any, timeout_s: float) -> Any:
        return make_timeout_reply(timeout_s)


class Engine:
    """An engine whose requests in flight are known beforehand; the last number stays."""

    def __init__(self, *in_flight: int | None) -> None:
        self.in_flight = list(in_flight)

    async def read_counters_before_load(self) -> None:
        pass

    async def read_counters_after_load(self, *asked: Any) -> EngineDuring:
        return EngineDuring()

    async def count_requests(self) -> RequestCounts:
        return RequestCounts(
            self.in_flight.pop(0) if len(self.in_flight) > 1 else self.in_flight[0]
        )


def prepared(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Measurement:
    """Return a measurement whose probe was given up, up to the begin of its load."""
    monkeypatch.setattr(text_probe, "PROBE_PART_S", 0.02)
    monkeypatch.setattr(measurement, "PROBE_IDLE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(measurement, "_POLL_INTERVAL_S", 0.01)
    load: Any = SimpleNamespace(spec=SPEC, cancel=asyncio.Event(), server=None)
    host: Any = None
    made_one = Measurement(host, load, on_progress=lambda _: None, on_sent=lambda _: None)
    client: Any = LateClient()
    made_one._probe = TextProbe(client, SPEC)
    read: Any = engine
    asyncio.run(made_one._send_text_probe_before_load(read))
    return made_one


def judged(one: Measurement, engine: EngineDuring) -> BenchSummary:
    result = made.result()
    summary = replace(result.summary, warmup_prompt_tokens=0, warmup_output_tokens=0)
    outcome = BenchOutcome(replace(result.spec, concurrency=1), summary)
    return one._add_engine_counters(outcome, engine)


def others(reasons: Sequence[str]) -> list[str]:
    return [reason for reason in reasons if "somebody else" in reason]


def test_a_prompt_that_still_runs_is_not_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    one = prepared(Engine(1), monkeypatch)
    left = one._left
    assert (
        left.requests == one._probe.sent_request_and_token_counts[0]
        and left.output_tokens >= left.requests
    )
    summary = made.result().summary
    during = EngineDuring(
        requests_finished=summary.requests_ok + left.requests,
        prompt_tokens=(summary.prompt_tokens or 0) + left.prompt_tokens,
        generation_tokens=(summary.output_tokens or 0) + left.output_tokens,
        running_max=2,
        in_flight_median=2.0,
        samples=9,
    )
    found = judged(one, during)
    assert not others(found.refused) and not any("other clients" in n for n in found.notes)
    assert any("still worked on" in mark for mark in found.marked)
    one._left = AbandonedRequests()  # as before: the same counts were called somebody else's
    assert others(judged(one, during).refused)
    many = replace(during, generation_tokens=(during.generation_tokens or 0) * 2)
    one._left = left
    assert others(judged(one, many).refused), "more than the probe can have had"


def test_the_load_waits_until_the_engine_has_ended_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = prepared(Engine(1, 1, 0), monkeypatch)
    assert one._probe.given_up.requests and one._left == AbandonedRequests()
    assert prepared(Engine(None), monkeypatch)._left.requests, "an engine that says nothing"
