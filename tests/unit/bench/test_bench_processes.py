"""One load from several processes: the same requests and figures as from one, and nothing left
behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_server import SILENCE, ScriptedServer, Step, chat_events, chunked
from truth_server import TruthProcess

from workbench.bench import load_share as share_module
from workbench.bench.client_report import ClientReport, summary_message
from workbench.bench.connection import Endpoint
from workbench.bench.load_share import Share, count_processes_for_load
from workbench.bench.records import BenchOutcome, RequestRecord
from workbench.bench.runner import BenchCancelled, run_load
from workbench.bench.schedule import WarmupOutcome, request_due_times_s
from workbench.bench.steady_window import choose_rate_window
from workbench.bench.workload import unique_prompt_mark
from workbench.model.bench import BenchProgress, BenchSpec
from workbench.model.errors import BenchError

OK = chunked(chat_events(3))
SPEC = BenchSpec(
    "http://127.0.0.1:1", "m", concurrency=6, requests=25, max_tokens=3, warmup=6, salt="s"
)


def at(url: str, **fields: Any) -> BenchSpec:
    return replace(SPEC, url=url, **fields)


def late(seconds: float) -> Iterator[Step]:
    time.sleep(seconds)
    yield OK


def living(pids: list[int]) -> list[int]:
    return [
        p
        for p in pids
        if Path(f"/proc/{p}").exists() and " Z " not in Path(f"/proc/{p}/stat").read_text()
    ]


def children_of(pid: int) -> list[int]:
    return [
        int(p)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for p in (task / "children").read_text().split()
    ]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


# -- the split -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("streams", "requests", "cores", "here", "expected"),
    [
        (1, 8, 8, False, 1),
        (128, 1000, 8, False, 1),
        (129, 1000, 8, False, 2),
        (1024, 9000, 4, False, 4),
        (1024, 9000, 4, True, 3),  # the server has a core of its own
        (512, 9000, 2, True, 1),
        (256, 1000, 1, True, 1),
        (256, 30, 8, False, 1),
    ],
)
def test_the_number_of_processes_follows_streams_and_cores(
    monkeypatch: pytest.MonkeyPatch,
    streams: int,
    requests: int,
    cores: int,
    here: bool,
    expected: int,
) -> None:
    monkeypatch.setattr(share_module.os, "sched_getaffinity", lambda pid: set(range(cores)))
    spec = replace(SPEC, concurrency=streams, requests=requests)
    assert count_processes_for_load(spec, here) == expected


def test_a_server_at_any_address_of_this_machine_is_here() -> None:
    """Only loopback addresses counted, so the second process took the core of a server that was
    addressed by this machine's name."""

    def here(family: socket.AddressFamily, *address: Any) -> bool:
        return Endpoint("x", 1, "/", None, family, address).is_on_this_machine

    assert here(socket.AF_INET, "127.0.0.1", 1) and here(socket.AF_INET, "0.0.0.0", 1)
    assert not here(socket.AF_INET, "192.0.2.7", 1)  # for documentation: nobody's
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):  # no network: the address stays 0.0.0.0
            probe.connect(("192.0.2.7", 9))
        assert here(socket.AF_INET, probe.getsockname()[0], 1)


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_shares_are_the_whole_without_an_overlap(of: int) -> None:
    specs = [Share(first, of).spec_of_share(SPEC) for first in range(of)]
    for name in ("concurrency", "requests", "warmup"):
        assert sum(getattr(s, name) for s in specs) == getattr(SPEC, name)
    open_loop = replace(SPEC, rate=10.0)
    whole = request_due_times_s(open_loop, warmup=False)
    assert whole is not None
    times = [next(whole) for _ in range(3 * of)]
    for first in range(of):
        part = Share(first, of).due_times_of_share(request_due_times_s(open_loop, warmup=False))
        assert part is not None and [next(part) for _ in range(3)] == times[first::of]


def test_the_steady_window_ends_when_the_first_process_has_sent_its_last_request() -> None:
    def record(index: int, start_s: float) -> RequestRecord:
        return RequestRecord(index, False, start_s, 1_000_000, output_tokens=3)

    counted = [record(i, i / 10) for i in range(24)] + [record(24, 9.0)]
    assert choose_rate_window(replace(SPEC, concurrency=2), counted).end_s == 9.0
    assert choose_rate_window(replace(SPEC, concurrency=2), counted, processes=2).end_s == 2.3


def test_reports_of_all_processes_make_one_summary() -> None:
    def report(**fields: Any) -> ClientReport:
        known: dict[str, Any] = {
            "began_ns": 0,
            "began_unix": 100.0,
            "ramp_end_s": 0.0,
            "stopped": None,
            "gave_up": "stopped early",
            "not_sent": 3,
            "capped": 1,
            "unsent": 2,
            "calibrated": True,
            "words": 90,
            "dropped": ("min_tokens",),
            "warmup": WarmupOutcome(6, 3, True, 0.01),
            "reads": 100,
            "unstamped_reads": 0,
            "late_reads": 0,
            "latest_read_ns": 0,
            "cpu": ((0, 0), (10_000_000_000, 1_000_000_000)),
        }
        return ClientReport(**{**known, **fields})

    counted = [
        RequestRecord(i, False, float(i), 1_000_000, output_tokens=3, finish_reason="length")
        for i in range(4)
    ]
    busy = report(
        not_sent=1, dropped=("ignore_eos",), cpu=((0, 0), (10_000_000_000, 5_000_000_000))
    )
    summary = summary_message(SPEC, [report(), busy], counted, [])["summary"]
    assert summary["client_cpu_pct"] == 50.0  # the busiest limits the load
    assert "2 processes of the load client sent the requests" in summary["notes"]
    assert (
        "warmed up by 12 requests, until two windows of 6 requests agreed within 3 %; "
        "if it became faster only after that, the two halves of the run differ"
    ) in summary["notes"]
    assert "stopped early; 4 of 25 requests were not sent" in summary["notes"]
    assert any("min_tokens, ignore_eos" in note for note in summary["notes"])


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"rate": 200.0}, {"until_steady": True}, {"warmup": 0}])
def test_the_same_requests_and_figures_as_from_one_process(fields: dict[str, Any]) -> None:
    def outcome(processes: int) -> tuple[BenchOutcome, set[str]]:
        with TruthProcess("--ttft-ms", "5", "--itl-ms", "2") as server:
            spec = at(server.url, length_spread=0.5, max_tokens=6, **fields)
            found = asyncio.run(run_load(spec, processes=processes))
            return found, set(server.stop())

    one, marks_one = outcome(1)
    two, marks_two = outcome(2)
    measured = {unique_prompt_mark("s", f"r/{i}") for i in range(25)}
    assert measured <= marks_one and measured <= marks_two
    for found in (one, two):
        assert sorted(r.index for r in found.requests) == list(range(25))
        assert not found.partial and found.summary.requests_ok == 25
    assert one.summary.output_tokens == two.summary.output_tokens
    assert one.summary.window == two.summary.window
    if "until_steady" not in fields:
        assert (
            one.summary.warmup_requests
            == two.summary.warmup_requests
            == (0 if "warmup" in fields else 6)
        )
    if "rate" in fields:
        due = [
            sorted(r.due_s for r in found.requests if r.due_s is not None) for found in (one, two)
        ]
        spans = [[round(t - times[0], 5) for t in times] for times in due]
        assert spans[0] == pytest.approx(spans[1], abs=2e-5)


@pytest.mark.slow
def test_they_start_the_measured_part_together() -> None:
    """One process has finished its warm-up long before the other, whose warm-up requests take a
    second."""
    slow = unique_prompt_mark("s", "w/1")
    with ScriptedServer(
        lambda request, n: late(1.0 if slow in str(request.body) else 0.0)
    ) as server:
        found = asyncio.run(
            run_load(at(server.url, concurrency=2, warmup=2, requests=8), processes=2)
        )
    first = [min(r.start_s for r in found.requests if r.index % 2 == half) for half in (0, 1)]
    assert min(first) >= 1.0 and abs(first[0] - first[1]) < 0.5


@pytest.mark.slow
def test_progress_is_that_of_all_processes() -> None:
    seen: list[BenchProgress] = []
    with ScriptedServer(lambda request, n: late(0.05)) as server:
        asyncio.run(
            run_load(
                at(server.url, concurrency=4, requests=80), processes=2, on_progress=seen.append
            )
        )
    assert max(p.in_flight for p in seen) == 4 and max(p.total for p in seen) == 80
    assert max(p.done for p in seen) > 40


def killed(number: int, *, stopped: bool = False) -> tuple[str, list[int]]:
    """Kill one process of a run (-1: the worker itself) and return what was said, and the processes
    that were there. With `stopped`, a process that is not killed has received SIGSTOP before."""

    async def go(server: ScriptedServer) -> tuple[str, list[int]]:
        task = asyncio.ensure_future(run_load(at(server.url), processes=2))
        await until(lambda: len(server.requests) == 6)
        (worker,) = [
            p
            for p in children_of(os.getpid())
            if b"bench.worker" in Path(f"/proc/{p}/cmdline").read_bytes()
        ]
        clients = children_of(worker)
        assert len(clients) == 2
        if stopped:
            os.kill(clients[0], signal.SIGSTOP)
        os.kill([*clients, worker][number], signal.SIGKILL)
        with pytest.raises(BenchError) as raised:
            await task
        return raised.value.message, [*clients, worker]

    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        return asyncio.run(go(server))


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1, "process 2 of 2 of the load client ended by signal SIGKILL before it had a result"),
        (-1, "signal SIGKILL"),
    ],
)
def test_a_process_that_is_killed_fails_the_run_and_leaves_nothing(number: int, said: str) -> None:
    message, pids = killed(number)
    assert said in message
    assert_ended(pids)


def test_a_stopped_process_ends_with_its_worker() -> None:
    _, pids = killed(-1, stopped=True)
    assert_ended(pids)


def assert_ended(pids: list[int]) -> None:
    deadline = time.monotonic() + 5
    while living(pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not living(pids)


def test_a_cancelled_run_keeps_what_all_processes_have_measured() -> None:
    async def go(server: ScriptedServer) -> BenchOutcome:
        cancel = asyncio.Event()
        task = asyncio.ensure_future(
            run_load(at(server.url, requests=500), processes=2, cancel=cancel)
        )
        await until(lambda: len(server.requests) > 60)
        cancel.set()
        return await task

    with ScriptedServer(lambda request, n: late(0.02)) as server:
        found = asyncio.run(go(server))
    assert found.partial and {r.index % 2 for r in found.requests} == {0, 1}
    assert found.summary.requests_ok == sum(r.ok for r in found.requests) < 500


def test_a_cancelled_run_without_an_answer_is_cancelled() -> None:
    async def go(server: ScriptedServer) -> None:
        cancel = asyncio.Event()
        task = asyncio.ensure_future(run_load(at(server.url), processes=2, cancel=cancel))
        await until(lambda: bool(server.requests))
        cancel.set()
        with pytest.raises(BenchCancelled):
            await task

    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        asyncio.run(go(server))
