"""What a token costs the load client, in counts that do not depend on the machine.

A machine that is late needs fewer waits for the same reads, so these limits hold on a busy machine
too. The seconds are measured by tests/benchmarks/bench_client.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from truth_server import TruthProcess

from workbench.bench import client as client_module
from workbench.bench.client import Client
from workbench.bench.connection import resolve_endpoint
from workbench.bench.reply import Reply
from workbench.bench.sse import SseDecoder
from workbench.model.bench import BenchSpec

STREAMS, TOKENS = 48, 100


def counted(counts: Counter[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        counts[name] += 1
        return function(*args)

    return call


@pytest.fixture(scope="module")
def run() -> tuple[Client, Counter[str]]:
    """A run of 48 streams of 100 tokens/s, and how often each thing was done in it."""
    counts: Counter[str] = Counter()
    with (
        TruthProcess("--ttft-ms", "20", "--itl-ms", "10") as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        spec = BenchSpec(server.url, "m", STREAMS, STREAMS, TOKENS, warmup=0, salt="s")
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        patch.setattr(client_module.time, "sleep", counted(counts, "system calls", time.sleep))
        patch.setattr(client_module, "poll_for_exact_time", lambda poller, s: poller.poll(s))
        poller = client.poller
        client.poller = type(
            "Counting",
            (),
            {
                "poll": staticmethod(counted(counts, "system calls", poller.poll)),
                "register": staticmethod(poller.register),
                "modify": staticmethod(poller.modify),
                "unregister": staticmethod(poller.unregister),
            },
        )()
        patch.setattr(SseDecoder, "feed", counted(counts, "parsed reads", SseDecoder.feed))
        patch.setattr(Reply, "_parse_event", counted(counts, "parsed as JSON", Reply._parse_event))
        client.run()
    assert sum(r.ok for r in client.counted) == STREAMS
    counts["system calls"] += client.clock.reads
    return client, counts


def per_token(count: float) -> float:
    return count / (STREAMS * TOKENS)


def test_system_calls(run: tuple[Client, Counter[str]]) -> None:
    """One read for each chunk, and half a wait: 48 streams of 100 tokens/s bring five chunks in the
    rest of 1 ms."""
    assert per_token(run[1]["system calls"]) <= 1.6


def test_few_reads_need_the_parsers(run: tuple[Client, Counter[str]]) -> None:
    """The first and the last read of each reply, and reads in which chunks came together."""
    assert per_token(run[1]["parsed reads"]) <= 0.15
    assert per_token(run[1]["parsed as JSON"]) <= 0.06


def test_bytes_of_the_records(run: tuple[Client, Counter[str]]) -> None:
    """About 8; a busy machine is late, and a later time has more digits."""
    size = sum(len(json.dumps(r.as_json(), separators=(",", ":"))) for r in run[0].counted)
    assert per_token(size) <= 11


def test_answers_that_come_at_once_leave_no_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where some socket is always readable, the records of short answers are made all the same:
    those of a million requests would fill the memory. That of 2,000 tokens holds up the reads for a
    third of a millisecond, so only one long answer is recorded in a turn."""
    streams, waiting = 16, [0]
    with TruthProcess("--ttft-ms", "0", "--itl-ms", "0", "--write-each") as server:
        spec = BenchSpec(server.url, "m", streams, 40 * streams, 1, warmup=0, salt="s")
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        # work in quiet moments does not count: this machine may have none
        monkeypatch.setattr(client, "poller", AlwaysReady(client))
        turn = client._start_due_and_next_due_ns
        monkeypatch.setattr(
            client,
            "_start_due_and_next_due_ns",
            lambda now: waiting.append(len(client._ended)) or turn(now),
        )
        client.run()
    assert sum(r.ok for r in client.counted) == 40 * streams
    assert max(waiting) <= 2 * streams


class AlwaysReady:
    """A poller that waits until a socket is ready, although the client would do something else."""

    def __init__(self, client: Client) -> None:
        self._real = client.poller
        self.register = self._real.register
        self.modify = self._real.modify
        self.unregister = self._real.unregister

    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]:
        return self._real.poll(max(timeout_s, 0.02))


@pytest.mark.long
@pytest.mark.slow
def test_the_kernel_counts_as_few_system_calls(tmp_path: Path) -> None:
    """The calls of each further token in the whole command, as strace counts them. The start, the
    end and the probes of the text are the same in both runs, so the difference leaves them out."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    with TruthProcess("--ttft-ms", "20", "--itl-ms", "10") as server:
        few = system_calls(tmp_path, server.url, rounds=1)
        many = system_calls(tmp_path, server.url, rounds=4)
    assert per_token((many - few) / 3) <= 1.8, (few, many)


def system_calls(tmp_path: Path, url: str, rounds: int) -> int:
    """Return how many system calls of networking and waiting a benchmark of `rounds` requests in
    each stream makes."""
    counts = tmp_path / "counts"
    calls = "recvmsg,recvfrom,sendto,epoll_wait,epoll_pwait,epoll_pwait2,epoll_ctl,select,pselect6"
    traced = ["strace", "-f", "-c", "-e", f"trace={calls},clock_nanosleep", "-o", str(counts)]
    command = [sys.executable, "-m", "workbench", "bench", "--url", url, "--model", "m"]
    tokens = ["--warmup", "0", "--max-tokens", str(TOKENS)]
    load = ["--requests", str(rounds * STREAMS), "--concurrency", str(STREAMS)]
    homes = {f"XDG_{name}_HOME": str(tmp_path) for name in ("STATE", "DATA", "CONFIG")}
    done = subprocess.run(
        [*traced, *command, *tokens, *load],
        env={**os.environ, **homes},
        capture_output=True,
        text=True,
        check=False,
    )
    if not counts.exists() or "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr[-200:]}")
    (total,) = re.findall(r"(?m)^100\.00 +\S+ +\S+ +(\d+) .*total$", counts.read_text())
    return int(total)
