"""A benchmark whose screen is gone: it goes on if the terminal was closed, and what it has measured
is kept if the screen was killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.procs import alive, eventually
from support.serving import free_port
from support.typed_screen import TypedScreen

import workbench
from workbench.session.session import Session
from workbench.store import paths, unfinished_benchmarks
from workbench.store.results_db import ResultsDb

pytestmark = pytest.mark.slow

ROOT = Path(workbench.__file__).parents[1]
PROFILE = "rtx-pro-6000"
Cli = Callable[..., Any]


@pytest.fixture
def run_id(cli: Cli) -> Iterator[str]:
    started = cli(
        *("--simulate", PROFILE, "start", "vllm-any", "--set", f"port={free_port()}"),
        *("--wait", "--json"),
    )
    assert started.code == 0, started
    run: str = started.document["run_id"]
    yield run
    assert cli("--simulate", PROFILE, "stop", run).code == 0


@pytest.fixture
def screen(run_id: str) -> Iterator[TypedScreen]:
    """A screen that measures the server, with some requests measured already."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    opened = TypedScreen(["--simulate", PROFILE], (100, 30), env, ROOT)
    try:
        opened.until("READY vllm")
        opened.press("b")
        opened.until("enter run")
        opened.press("enter")
        opened.until(lambda text: any(f"measuring {n}/" in text for n in range(3, 40)))
        yield opened
    finally:
        with suppress(ProcessLookupError):
            os.kill(opened.child.pid, signal.SIGKILL)
        if not opened.child.closed:
            opened.close()


def results() -> list[Any]:
    return list(ResultsDb(paths.results_db()).list(10))


@pytest.mark.long
def test_closing_the_terminal_does_not_end_the_benchmark(screen: TypedScreen, run_id: str) -> None:
    pid = screen.child.pid
    assert not results()
    screen.child.ptyproc.fileobj.close()  # as a terminal does that is closed: SIGHUP, and no more tty
    screen.child.closed = screen.child.ptyproc.closed = True
    (left,) = unfinished_benchmarks.find_benchmark_notes(f"sim:{PROFILE}")
    assert left.alive and left.about["run_id"] == run_id
    eventually(results, "the result of the benchmark", 90)
    (result,) = results()
    assert not result.summary.refused and result.summary.power_w, result.summary
    eventually(lambda: not alive(pid), "the end of the process without a screen", 30)
    assert unfinished_benchmarks.find_benchmark_notes(f"sim:{PROFILE}") == ()
    log = (paths.state_dir() / "activity.jsonl").read_text()
    assert "the benchmark goes on without the screen" in log


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("measured", [True, False])
def test_what_a_killed_screen_has_measured_is_kept_and_told(
    screen: TypedScreen, run_id: str, measured: bool
) -> None:
    (left,) = unfinished_benchmarks.find_benchmark_notes(f"sim:{PROFILE}")
    screen.child.kill(signal.SIGKILL)
    if not measured:
        eventually(left.result.exists, "the part that the load client leaves", 20)
        left.result.unlink()

    seen: list[tuple[bool, object]] = []

    async def next_screen() -> Session:
        session = Session.of_host(None, PROFILE)
        session.subscribe(lambda state, _: seen.append((state.servers_read, state.server)))
        try:
            await session.link.connect()
            await asyncio.gather(
                session._store_detached_results(), session.servers.list_runs_and_select_one()
            )
            return session
        finally:
            await session.close()

    session = asyncio.run(next_screen())
    notice = session.state.notice
    assert notice is not None and f"a benchmark of run {run_id}" in notice.text
    assert "was cut off" in notice.text
    assert any("was cut off" in entry.command for entry in session.state.activity)
    assert unfinished_benchmarks.find_benchmark_notes(f"sim:{PROFILE}") == ()
    assert session.state.bench.error == notice.text  # the Bench pane said "nothing of it is stored"
    # the screen said "no server" for the time in which the log of the server was read
    assert (True, None) not in seen and seen[-1][0]
    if not measured:
        assert not results() and "nothing was stored" in notice.text
        return
    (result,) = results()
    assert f"result {result.id}, a partial one" in notice.text
    assert notice.next_step == "press b to measure again"
    assert any("partial result" in why for why in result.summary.refused)
    assert result.summary.requests_ok >= 3 and result.conditions.run_id == run_id
    assert result.summary.power_w is None
