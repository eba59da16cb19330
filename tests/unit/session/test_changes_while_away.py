"""What happened on a host between two screens: only what is newer than the end of the first."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.made_results import bench_row

from workbench.hosts.local import LocalHost
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.setting_records import Alteration, GuardView
from workbench.session.bench.row import SeriesView
from workbench.session.changes_while_away import ChangesSinceLastScreen, changes_since_last_screen
from workbench.session.last_screen import ScreenMemory
from workbench.session.session import Session
from workbench.session.state import Activity, HostView, SessionState
from workbench.session.state_holder import StateHolder
from workbench.store import activity_log, screen_state
from workbench.tui.pages.changes_while_away import (
    changes_since_leaving_rows,
    changes_since_leaving_text,
)
from workbench.tui.pages.texts import activity_rows

LEFT_S = 1_790_000_000.0
HOST = HostView("box", link="connected")


def server(run_id: str, state: ServerState, **times_s: float) -> ServerStatus:
    return ServerStatus(
        run_id, "vllm", state, "box", port=8000, **{k: LEFT_S + v for k, v in times_s.items()}
    )


def limit(since_s: float, *, by: str = "", gpu: int = 0) -> Alteration:
    return Alteration(gpu, f"GPU-{gpu}", "power_limit_w", 250.0, 170.0, LEFT_S + since_s, by)


def test_a_change_that_was_cut_off_is_not_told_as_made() -> None:
    assert not found(alterations=(replace(limit(3), state="pending"),)).has_changes


def found(host_ahead_s: float = 0.0, **fields: object) -> ChangesSinceLastScreen:
    return changes_since_last_screen(SessionState(HOST, **fields), LEFT_S, host_ahead_s)  # type: ignore[arg-type]


def test_only_what_is_newer_is_told_and_a_series_once() -> None:
    view = SeriesView("A/B", 3, "B is slower by 33 %")
    rows = (
        replace(bench_row(9, "again", 420.0), unix_s=LEFT_S + 40, series=view),
        replace(bench_row(8, "as the preset", 630.0), unix_s=LEFT_S + 30, series=view),
        replace(bench_row(7, "max-num-seqs=64", 421.7), unix_s=LEFT_S + 20),
        replace(bench_row(6, "imported", 1.0), unix_s=LEFT_S + 10, imported=True),
        replace(bench_row(5, "before", 1.0), unix_s=LEFT_S - 1),
    )
    servers = (
        server("b", ServerState.CRASHED, started_unix_s=-90, ready_unix_s=-60, ended_unix_s=5),
        server("a", ServerState.READY, started_unix_s=-90, ready_unix_s=-60),
    )
    since = found(
        results=rows,
        servers=servers,
        alterations=(limit(-3),),
        others=(limit(3, by="bob"), limit(3, by="bob", gpu=1)),
    )
    text = changes_since_leaving_text(since, gpu_count=2)
    assert text.endswith(
        ": 1 result, 1 experiment, 1 server ended, 2 GPU settings changed (l lists it)"
    )
    page = "\n".join(
        "".join(run[0] for run in row) for row in changes_since_leaving_rows(since, 2, 100)
    )
    for line in (
        "experiment 3: B is slower by 33 %",
        "result 7: max-num-seqs=64, 421.7 tok/s",
        "vllm :8000 crashed",
        "power limit 250 → 170 W, set by bob",
    ):
        assert page.count(line) == 1, page
    assert "before" not in page and "imported" not in page


@pytest.mark.parametrize(("ahead_s", "is_new"), [(0.0, True), (3600.0, False)])
def test_times_of_the_host_are_those_of_its_clock(ahead_s: float, is_new: bool) -> None:
    """A clock that is an hour ahead made an old server new."""
    guard = GuardView(running=False, did="reverted GPU0 power limit", did_unix_s=LEFT_S + 30)
    ready = server("a", ServerState.READY, started_unix_s=10, ready_unix_s=20)
    since = found(ahead_s, servers=(ready,), guard=guard)
    assert (bool(since.servers), bool(since.guard_did)) == (is_new, is_new)
    assert since.has_changes is is_new


def test_one_change_is_told_itself() -> None:
    since = found(servers=(server("a", ServerState.READY, started_unix_s=10, ready_unix_s=20),))
    assert changes_since_leaving_text(since, 1).endswith(": vllm :8000 became READY (l lists it)")
    assert (
        changes_since_leaving_rows(found(), 1, 80) == [] == changes_since_leaving_rows(None, 1, 80)
    )


def test_a_killed_screen_has_seen_what_it_showed() -> None:
    """A result that the user saw a minute before the kill was told by the next screen as new."""
    core = StateHolder(LocalHost())
    memory = ScreenMemory(core, pytest.fail, pytest.fail)
    memory.resumed = core.host
    core.update(servers_read=True, host=replace(core.state.host, link="connected"))

    def seen_unix_s() -> float:
        asyncio.run(memory.record_screen_open())
        return float(screen_state.read_screen_state(core.host.name)["seen_unix_s"])

    first_s = seen_unix_s()
    assert seen_unix_s() == first_s  # nothing new: the next note is due in a minute
    core.update(results=(replace(bench_row(1, "again", 420.0), unix_s=first_s + 1e-3),))
    second_s = seen_unix_s()
    assert second_s > first_s
    core.update(servers=(server("a", ServerState.READY, started_unix_s=10),))
    assert seen_unix_s() > second_s


@pytest.mark.parametrize(
    "damaged",
    [
        {"seen_unix_s": -1e300, "forms": 3},
        {"seen_unix_s": "x", "mark_a": [1], "mark_b": {}},
        {"seen_unix_s": None, "compared": [[1], [2]]},
    ],
)
def test_a_damaged_file_of_the_last_screen_is_left_out(damaged: dict[str, object]) -> None:
    """The screen said "a defect in Workbench" at each start, and used nothing of config.toml."""
    core = StateHolder(LocalHost())
    screen_state.store_screen_state(core.host.name, damaged)
    core.update(results=(bench_row(1, "again", 420.0),))
    memory = ScreenMemory(core, pytest.fail, pytest.fail)
    asyncio.run(memory.resume_last_screen())
    state = core.state
    assert (memory.left_unix_s, state.mark_a, state.mark_b, state.comparison) == (None,) * 4
    assert memory.resumed is core.host


def test_what_was_done_on_another_host_is_there_again_after_the_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log of the host that was opened took the place of it, also where no log was written."""
    core = StateHolder(LocalHost("first"))
    memory = ScreenMemory(core, pytest.fail, pytest.fail)
    monkeypatch.setattr(activity_log, "append_activity_entry", lambda entry: None)  # a full disk
    core.record_command("workbench stop")
    for name in ("second", "first"):
        core.host = LocalHost(name)
        asyncio.run(memory.load_activity_log())
        asyncio.run(memory.load_activity_log())
    done = [(activity.host, activity.command) for activity in core.state.activity]
    assert done == [("first", "workbench stop")]


class OpeningSession(SimpleNamespace):
    @property
    def state(self) -> SessionState:
        return self.core.state  # type: ignore[no-any-return]


def test_a_result_that_is_stored_while_the_screen_opens_is_told() -> None:
    """A benchmark without a screen ended after the results were read: nothing told its result."""
    core, own_files_read = StateHolder(LocalHost()), asyncio.Event()

    async def nothing() -> None:
        return None

    async def refresh_if_database_changed() -> None:
        core.update(results=(replace(bench_row(3, "again", 420.0), unix_s=LEFT_S + 1),))

    async def scenario() -> None:
        own_files_read.set()
        session = OpeningSession(
            core=core,
            _store_detached_results=nothing,
            _own_files_read=own_files_read,
            results=SimpleNamespace(refresh_if_database_changed=refresh_if_database_changed),
            screen_memory=SimpleNamespace(left_unix_s=LEFT_S),
        )
        await Session._show_changes_since_last_screen(session)  # type: ignore[arg-type]

    asyncio.run(scenario())
    assert core.state.changes_while_away is not None
    assert [row.id for row in core.state.changes_while_away.results] == [3]


def test_a_row_of_another_day_has_its_date() -> None:
    """A change of last week read as one of today."""
    now_s, day_s = time.time(), 86_400.0
    done = tuple(Activity(at, "box", "nvidia-smi -pm 1", "") for at in (now_s - 8 * day_s, now_s))
    today, *_, earlier = ("".join(text for text, _ in row) for row in activity_rows(done, 80))
    assert today.startswith(time.strftime("%H:%M:%S", time.localtime(now_s)))
    assert earlier.startswith(time.strftime("%Y-%m-%d %H:%M  $", time.localtime(now_s - 8 * day_s)))
