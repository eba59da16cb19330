"""The guard rests long while nothing is due, and is there at once when something happens."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.guarded import GuardedHost, guarded, run
from support.procs import eventually

from workbench.gpu.guard import interruptible_sleep
from workbench.gpu.guard.files import GuardFiles
from workbench.gpu.guard.guard import IDLE_ROUND_TICKS, TICK_S, Guard
from workbench.gpu.guard.interruptible_sleep import InterruptibleSleep
from workbench.gpu.guard.privileges import Programs
from workbench.model.settings import ClockRange, GpuSettings

LONG_S, WITHIN_S = 60.0, 20.0
SLOW = {"tick_s": 30.0, "heat_s": 0.2}  # a round of this guard that comes by itself comes too late
OFF = (None, None)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield handle
    os.close(handle)


def ends_early(rest: InterruptibleSleep, why: Callable[[], object]) -> bool:
    """Return whether a long rest ends after `why` was called, long before its time."""
    thread = threading.Thread(target=rest.sleep, args=(LONG_S,), daemon=True)
    thread.start()
    why()
    thread.join(WITHIN_S)
    return not thread.is_alive()


def test_a_rest_ends_when_a_file_is_written_or_replaced(tmp_path: Path, opened: int) -> None:
    rest = InterruptibleSleep(opened)
    journal, new = tmp_path / "journal.json", tmp_path / ".new"
    assert ends_early(rest, lambda: journal.write_text("{}"))

    def replace() -> None:
        new.write_text("{ }")
        new.replace(journal)

    assert ends_early(rest, replace)


def test_a_rest_ends_when_it_is_ended_even_before_it_began(opened: int) -> None:
    rest = InterruptibleSleep(opened)
    assert ends_early(rest, rest.wake)
    for _ in range(100_000):  # more than a pipe holds
        rest.wake()
    assert ends_early(rest, lambda: None)


def test_a_rest_that_hears_nothing_has_its_time(opened: int) -> None:
    rest = InterruptibleSleep(opened)
    began = time.monotonic()
    rest.sleep(0.2)
    assert time.monotonic() - began >= 0.19, "a loop without a rest takes a whole core"


def test_without_inotify_a_rest_can_still_be_ended(
    opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruptible_sleep, "open_directory_watch", lambda directory: -1)
    rest = InterruptibleSleep(opened)
    assert not rest.hears_changes
    assert ends_early(rest, rest.wake)


def test_the_watch_of_a_directory_that_is_gone_counts_no_more(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    rest = InterruptibleSleep(handle)
    assert rest.hears_changes
    folder.rmdir()
    rest.wake()
    rest.sleep(LONG_S)
    assert not rest.hears_changes
    os.close(handle)


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    files = GuardFiles(str(tmp_path))
    files.create_guard_files()
    made = Guard(files, Programs({}))
    made.entries = [entry(heartbeat_s=30.0)]
    made.record_heartbeats_and_trials()
    return made


def entry(**watch: object) -> dict[str, Any]:
    return {"owner": {"boot_id": "b", "pid": 1, "start": 2}, "watch": watch}


def test_the_rest_is_long_only_while_nothing_is_wrong_or_due(guard: Guard) -> None:
    assert guard.pause_before_next_round_s() == IDLE_ROUND_TICKS * TICK_S
    for name, value in {
        "failed": "nvidia-smi failed",
        "broken": "the journal is damaged",
        "hot": {"GPU-1": "95 °C"},
        "to_end": True,
        "entries": [],
    }.items():
        before = getattr(guard, name)
        setattr(guard, name, value)
        assert guard.pause_before_next_round_s() == TICK_S, name
        setattr(guard, name, before)
    guard.rest.hears_changes = False
    assert guard.pause_before_next_round_s() == TICK_S


def test_the_rest_ends_when_a_heartbeat_or_a_trial_is_due(guard: Guard) -> None:
    soon_s = (TICK_S + IDLE_ROUND_TICKS * TICK_S) / 2
    for due in (entry(heartbeat_s=soon_s), entry(trial="t", trial_s=soon_s)):
        guard.entries = [due]
        guard.record_heartbeats_and_trials()
        assert TICK_S <= guard.pause_before_next_round_s() <= soon_s
    guard.trials = {"t": time.monotonic() - 1.0}
    assert guard.pause_before_next_round_s() == TICK_S


@pytest.fixture
def box(tmp_path: Path) -> Iterator[GuardedHost]:
    with guarded(tmp_path / "host") as made:
        yield made


@pytest.mark.slow
def test_it_reads_a_new_change_without_waiting_for_its_next_round(box: GuardedHost) -> None:
    """A change of a setting waits until the running guard has read it."""
    run(box.change(GpuSettings(power_limit_w=450.0), heartbeat_s=600.0, options=SLOW))
    run(box.change(GpuSettings(gpu_clocks=ClockRange(1000, 2000)), heartbeat_s=600.0, options=SLOW))
    assert len(box.state["heartbeats"]) == 1 and len(box.altered) == 2
    assert run(box.look()).view.problem is None


@pytest.mark.slow
def test_heat_does_not_wait_for_its_next_round(tmp_path: Path) -> None:
    with guarded(tmp_path / "host", "four-pcie") as box:
        box.sim.change_setting(0, limit_w=200.0)  # by hand, before Workbench
        run(box.change(GpuSettings(power_limit_w=230.0), heartbeat_s=600.0, options=SLOW))
        box.sim.set_faults(celsius={"0": 99})
        eventually(lambda: box.in_force()[0] == 200.0, "the limit of before", WITHIN_S)


@pytest.mark.slow
def test_a_request_to_end_does_not_wait_for_its_next_round(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=600.0, options=SLOW))
    os.kill(box.pid, signal.SIGTERM)
    eventually(lambda: box.in_force() == OFF, "the settings of before", WITHIN_S)
    box.ended(WITHIN_S)
