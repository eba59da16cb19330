"""The number of users within an SLO, as one result of a server that is a formula."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.fake_host import FakeHost
from support.made_results import result

from workbench.model.errors import BenchError
from workbench.model.slo import LimitAttained
from workbench.session.bench.find_users import measure_user_capacity
from workbench.session.session import Session

SLO = "ttft<=60@p95"


class Server:
    """A server whose TTFT meets the limit at `capacity` users. `refusals` of its first runs are
    invalid, and `failed` requests are the reason."""

    def __init__(self, capacity: float, refusals: int = 0, failed: int = 0) -> None:
        self.results = Session(FakeHost()).results
        self.capacity, self.refusals, self.failed = capacity, refusals, failed
        self.asked: list[int] = []

    async def bench(self, *, concurrency: int, requests: int, seed: int, **_: Any) -> int:
        self.asked.append(concurrency)
        reached_ms = 60 * concurrency / self.capacity
        kept_pct = 100.0 if reached_ms <= 60 else 50.0
        plain = result(1)
        summary = replace(
            plain.summary,
            output_tok_s=10.0 * concurrency,
            slo=(LimitAttained(SLO, 95.0, kept_pct, reached_ms, 60.0),),
            refused=("the client was too slow",) if len(self.asked) <= self.refusals else (),
            requests_failed=self.failed if len(self.asked) <= self.refusals else 0,
        )
        spec = replace(plain.spec, concurrency=concurrency, requests=requests, seed=seed, slo=SLO)
        return self.results.db.add(spec, plain.conditions, summary)

    def found(self, **shape: Any) -> Any:
        number = asyncio.run(measure_user_capacity(self.bench, self.results, {"slo": SLO, **shape}))
        return asyncio.run(self.results.get(number))


def test_the_result_has_the_users_and_the_run_of_the_highest_level_that_kept(
    clean_environment: None,
) -> None:
    server = Server(22.4)
    found = server.found(concurrency=8)
    assert found.summary.users == pytest.approx(22.4, rel=0.05)
    kept = max(users for users in server.asked if users <= 22)
    assert found.summary.output_tok_s == 10.0 * kept
    assert found.spec.concurrency == 8  # as asked: A and B of a comparison have one load
    assert f"users keep {SLO}, by #1, #2" in found.summary.notes[-1]


def test_an_invalid_run_is_made_again_and_no_user_is_an_error(clean_environment: None) -> None:
    server = Server(22.4, refusals=2)
    assert server.found().summary.users and server.asked[:4] == [8, 8, 8, 16]
    with pytest.raises(BenchError, match="8 users: the client was too slow"):
        Server(22.4, refusals=3).found()
    with pytest.raises(BenchError, match="one user breaks a limit"):
        Server(0.5).found()
    with pytest.raises(BenchError, match="there are none"):
        Server(0.5).found(slo="")


def test_a_level_that_keeps_the_limits_with_a_failed_request_is_measured_again(
    clean_environment: None,
) -> None:
    """One request of 64 that failed by chance took the candidate of a tune out of the race."""
    server = Server(22.4, refusals=1, failed=1)
    assert not server.found().summary.refused and server.asked[:3] == [8, 8, 16]
    breaking = Server(22.4, refusals=1, failed=1)
    assert breaking.found(concurrency=32).summary.users and breaking.asked[:2] == [32, 16]
