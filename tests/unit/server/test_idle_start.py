"""A start in which no process does anything is told from slow starts that work."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import replace

import pytest
from support.fake_runs import READY_S, Make, start
from support.serving import supervised

from workbench.hosts.local import LocalHost
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server import idle_start
from workbench.server.idle_start import (
    HANGING_AFTER_S,
    ActivityReading,
    IdleWatch,
    ProcessActivity,
    idle_finding,
)
from workbench.server.supervisor import ServerEvent, Supervisor

MIB = 1 << 20
API = ProcessActivity(7, "vllm", "S", 12.0, 900 * MIB, 400, "futex_wait_queue")
CORE = ProcessActivity(9, "VLLM::EngineCore", "S", 80.0, 9000 * MIB, 5000, "do_epoll_wait")


def longest_idle_s(work: list[tuple[float, int, int]], step_s: float = 15.0) -> float:
    """Return the longest time in which nothing happened, if the core does `work` between readings:
    seconds of CPU, bytes, pages."""
    watch, core, at_s = IdleWatch(), CORE, 0.0
    longest_s = 0.0
    watch.add_reading(ActivityReading(at_s, (API, core)))
    for cpu_s, moved, faults in work:
        at_s += step_s
        core = replace(
            core,
            cpu_s=core.cpu_s + cpu_s,
            io_bytes=core.io_bytes + moved,
            faults=core.faults + faults,
        )
        watch.add_reading(ActivityReading(at_s, (API, core)))
        longest_s = max(longest_s, watch.idle_s)
    return longest_s


def test_a_start_in_which_nothing_happens_is_idle() -> None:
    assert longest_idle_s([(0.0, 0, 0)] * 8) == 120.0
    assert longest_idle_s([(0.1, 2000, 0)] * 8) == 120.0  # it answers health checks
    assert longest_idle_s([(9.0, 0, 0)] * 8 + [(0.0, 0, 0)] * 4) == 60.0


def slow_start(seed: int) -> list[tuple[float, int, int]]:
    """Return the work of a start that is silent for ten minutes, between readings 15 s apart."""
    rng = random.Random(seed)
    match seed % 5:
        case 0:  # compiles
            return [(rng.uniform(5, 60), 0, 0) for _ in range(40)]
        case 1:  # downloads through a slow link
            return [(rng.uniform(0.05, 0.5), rng.randint(1, 8) * MIB, 0) for _ in range(40)]
        case 2:  # weights are mapped, and read page by page
            return [(rng.uniform(0.0, 0.2), 0, rng.randint(60, 500)) for _ in range(40)]
        case 3:  # polls: a start waits for another at half a core
            return [(rng.uniform(2, 8), 0, 0) for _ in range(40)]
        case _:  # works in turns with rests of at most 90 s
            return [(0.0, 0, 0) if i % 7 else (9.0, 0, 0) for i in range(40)]


def test_none_of_200_slow_starts_is_called_a_hang() -> None:
    assert [s for s in range(200) if longest_idle_s(slow_start(s)) >= HANGING_AFTER_S] == []


def test_new_ended_and_unreadable_processes_are_no_proof() -> None:
    watch = IdleWatch()
    watch.add_reading(ActivityReading(0.0, (API, CORE)))
    watch.add_reading(ActivityReading(500.0, (API,)))
    assert watch.idle_s == 0.0
    watch.add_reading(None)
    watch.add_reading(ActivityReading(900.0, (API,)))
    assert watch.idle_s == 0.0


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        ("S", "RemoveIPC"),
        ("T", "kill -CONT 9 lets it go on"),
        ("D", "process 9 waits in the kernel"),
    ],
)
def test_the_finding_says_what_is_seen_and_what_to_do(state: str, fix: str) -> None:
    watch, core = IdleWatch(), replace(CORE, state=state)
    watch.add_reading(ActivityReading(0.0, (API, core)))
    watch.add_reading(ActivityReading(180.0, (API, core)))
    found = idle_finding(watch, "starting the workers", 240.0, 94.6)
    assert found.text == (
        "hanging, not working, for 3 min in the phase “starting the workers”: no new line in the log "
        "for 4 min, and its 2 processes neither used the CPU nor read anything. This start took 95 s "
        "before"
    )
    assert fix in (found.fix or "") and found.evidence == (
        f"7 vllm S in futex_wait_queue; 9 VLLM::EngineCore {state} in do_epoll_wait"
    )


def test_a_real_process_is_read() -> None:
    own = os.getpid()
    read = asyncio.run(idle_start.read_activity(LocalHost(), [own], 5.0))
    assert read is not None and read.pids == {own} and read.processes[0].cpu_s > 0
    assert read.processes[0].io_bytes > 0 and read.processes[0].state in "RS"
    assert asyncio.run(idle_start.read_activity(LocalHost(), [2**22 + 1], 5.0)) is None


@pytest.mark.slow
def test_a_real_start_that_a_signal_has_stopped_is_named_without_any_gpu(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_start, "QUIET_LOG_S", 0.1)
    monkeypatch.setattr(idle_start, "READ_INTERVAL_S", 0.1)
    monkeypatch.setattr(idle_start, "HANGING_AFTER_S", 0.3)
    monkeypatch.setattr("workbench.server.watched_run.STUCK_AFTER_S", 0.2)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor, make("never"))
        await supervisor.wait(run_id, lambda now: now.phase is not None, READY_S)
        pid = supervisor.status(run_id).pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            now = await supervisor.wait(run_id, is_stopped, READY_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert now.state is ServerState.STARTING
        assert [f.code for f in now.findings][:2] == ["start.idle", "start.stuck"]

    supervised(scenario)


def is_stopped(status: ServerStatus) -> bool:
    return any(
        one.code == "start.idle" and "kill -CONT" in (one.fix or "") for one in status.findings
    )
