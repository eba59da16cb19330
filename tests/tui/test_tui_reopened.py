"""A reopened screen continues where the last one ended, and an invalid result is no default."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support.made_results import experiment, result, sweep
from support.real_screen import PROFILE, RealScreen, crashes, on_free_port, real_screen

from workbench.model.errors import SettingsError
from workbench.store import activity_log as activity
from workbench.store import paths
from workbench.store.experiments import ExperimentsDb
from workbench.store.results_db import ResultsDb
from workbench.store.sweeps import SweepStore

HOST = f"sim:{PROFILE}"


def screens(*scenarios: Callable[[RealScreen], Awaitable[None]]) -> None:
    """One screen after the other, each with a session of its own."""

    async def main() -> None:
        for scenario in scenarios:
            async with real_screen() as s:
                await scenario(s)

    asyncio.run(main())
    assert not crashes(), crashes()[0].read_text()


def stored_results(*refused: tuple[str, ...]) -> list[int]:
    db, made = ResultsDb(paths.results_db()), result(host=HOST)
    return [
        db.add(made.spec, made.conditions, replace(made.summary, refused=why), ())
        for why in refused
    ]


@pytest.mark.slow
def test_the_last_benchmark_marks_experiment_and_sweep_are_there() -> None:
    ids = stored_results((), (), ("the client used 75 % of a core",))
    ExperimentsDb(paths.results_db()).add(replace(experiment(), host=HOST, runs=()))
    SweepStore(paths.data_dir() / "sweeps").add(replace(sweep(), host=HOST))

    async def first(s: RealScreen) -> None:
        await s.until(lambda: len(s.state.results) == 3, lambda: s.state.bench.last_id == ids[1])
        await s.press("4", "down", "a")
        await s.until(lambda: s.state.mark_a == ids[1])

    async def second(s: RealScreen) -> None:
        await s.until(lambda: s.state.mark_a == ids[1], lambda: s.state.bench.last_id == ids[1])
        await s.until(lambda: s.state.experiment and s.state.sweep)
        await s.press("X")
        await s.until("A/B experiment 1")
        await s.press("escape", "S")
        await s.until("Sweep of concurrency")
        await s.press("escape")
        await s.load()
        await s.press("full_stop")
        await s.until("benchmark as before")

    screens(first, second)


def test_a_screen_shows_the_series_and_the_comparison_of_its_own_host() -> None:
    """The newest experiment of any host was shown, without its name, in place of the comparison."""
    made = experiment()
    ExperimentsDb(paths.results_db()).add(replace(made, host="elsewhere", runs=()))
    ids = stored_results((), ())

    async def first(s: RealScreen) -> None:
        await s.until(lambda: len(s.state.results) == 2)
        assert s.state.experiment is None
        await s.press("5", "o")
        await s.until("no experiment has been run on this host")
        await s.press("c")
        await s.until(lambda: s.state.comparison)

    async def second(s: RealScreen) -> None:
        await s.until(lambda: s.state.comparison)
        assert {s.state.comparison.a, s.state.comparison.b} == set(ids)

    screens(first, second)
    own = replace(made, host=HOST, runs=(), unix_s=made.unix_s + 10**9)
    ExperimentsDb(paths.results_db()).add(own)

    async def third(s: RealScreen) -> None:
        await s.until(lambda: s.state.experiment and s.session.screen_memory.resumed)
        assert s.state.comparison is None  # the experiment is newer than these results
        await s.press("5", "enter")
        await s.until("A/B experiment 2", f"on {HOST}", "preset")

    screens(third)


def test_a_host_whose_servers_have_ended_is_not_called_new() -> None:
    async def first(s: RealScreen) -> None:
        on_free_port()
        await s.serve()
        await s.session.servers.stop()

    async def second(s: RealScreen) -> None:
        await s.until("No server runs", "ended here", "no server")

    screens(first, second)


def test_the_activity_is_read_from_disk_and_contains_no_secret() -> None:
    async def first(s: RealScreen) -> None:
        await s.until(lambda: s.state.servers_read and s.session.screen_memory.resumed)
        s.session.core.record_command("vllm serve m --api-key sesame123", "run 1")
        with pytest.raises(SettingsError), s.session.core.show_as_busy("reverting GPU settings"):
            raise SettingsError("the link was lost", host=HOST)

    async def second(s: RealScreen) -> None:
        await s.until("since you left at", ": 2 results (l lists it)")
        await s.press("l")
        text = await s.until(
            "Since you left at",
            "result 1: ",
            f"Done to {HOST}",
            "vllm serve m",
            "# reverting GPU settings",
            "failed: the link was lost",
        )
        assert "sesame123" not in text

    async def third(s: RealScreen) -> None:
        await s.until(lambda: s.state.changes_while_away)
        assert not s.state.changes_while_away.has_changes and "since you left" not in s.text

    screens(first)
    stored_results((), ("late",))
    screens(second, third)
    assert (
        "sesame123" not in activity.activity_log_path().read_text()
        and activity.activity_log_path().stat().st_mode & 0o777 == 0o600
    )


def test_the_activity_log_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MOST_BYTES", 2000)
    for n in range(200):
        activity.append_activity_entry(
            {"unix_s": float(n), "host": "box", "command": f"command {n}", "outcome": ""}
        )
    assert activity.activity_log_path().stat().st_size <= 2100
    kept = activity.read_newest_entries("box", 500)
    assert kept[-1]["command"] == "command 199" and activity.read_newest_entries("other", 5) == []
    activity.activity_log_path().write_bytes(
        b"\xff{not json\n[1]\n" + activity.activity_log_path().read_bytes()
    )
    assert activity.read_newest_entries("box", 500) == kept


def test_a_busy_host_does_not_displace_the_activity_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one log of all hosts lost its older half, and with it all of a host that was quiet."""
    monkeypatch.setattr(activity, "MOST_BYTES", 2000)
    quiet = {"unix_s": 1.0, "host": "quiet", "command": "once", "outcome": ""}
    activity.append_activity_entry(quiet)
    for n in range(200):
        activity.append_activity_entry(
            {"unix_s": float(n), "host": "busy", "command": f"command {n}"}
        )
    assert activity.read_newest_entries("quiet", 5) == [quiet]
    assert activity.read_newest_entries("busy", 1)[0]["command"] == "command 199"
    assert activity.activity_log_path().stat().st_size <= 2100


def test_forms_begin_with_the_values_accepted_last_except_secrets() -> None:
    async def first(s: RealScreen) -> None:
        await s.until(lambda: s.session.screen_memory.resumed)
        s.session.screen_memory.store_form(
            "experiment", {"a": "", "b": "max-num-seqs=64", "pairs": "5", "metric": "TTFT p50"}
        )
        s.session.screen_memory.store_form("sweep", {"flags": "$HF_TOKEN=a,b", "values": "1"})
        s.session.screen_memory.store_form("sweep", {"flags": "-api-key=a", "values": "1"})

    async def second(s: RealScreen) -> None:
        await s.until(lambda: s.session.screen_memory.last_form_values("experiment"))
        assert s.session.screen_memory.last_form_values("sweep") == {}
        await s.load()
        await s.press("X")
        await s.until("max-num-seqs=64", "< TTFT p50 >")

    screens(first, second)


@pytest.mark.long
@pytest.mark.slow
def test_an_invalid_benchmark_is_not_the_next_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: streams 9999999 became the default of the sweep and of A/B."""
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.1")
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "8")
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        small = {
            "concurrency": 2,
            "requests": 6,
            "max_tokens": 16,
            "warmup": 0,
            "until_steady": False,
        }
        await s.session.bench.benchmark_selected_run(**small)
        usable = s.state.bench.last_id
        add = s.session.results.db.add
        monkeypatch.setattr(
            s.session.results.db,
            "add",
            lambda a, b, c, *d, **e: add(a, b, replace(c, refused=("late",)), *d, **e),
        )
        shape = s.session.bench.default_spec()
        await s.session.bench.benchmark_selected_run(**{**small, "concurrency": 6})
        assert s.state.results[0].refused and s.state.bench.last_id == usable
        assert s.session.bench.default_spec() == shape

    screens(scenario)


def test_a_change_of_state_while_the_screen_closes_is_not_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The panes are removed before the screen ends: a drawing then missed them, and left a crash
    file."""

    async def scenario(s: RealScreen) -> None:
        close, main = s.app._close_all, s.app.main

        async def with_change() -> None:
            await main.query_one("#middle").remove()
            main.panes._shape = None  # as in the first frame
            main.bridge._schedule_drawing(s.state, frozenset({"telemetry"}))
            main.bridge._context.run(main.bridge._draw_collected_changes)
            await close()

        monkeypatch.setattr(s.app, "_close_all", with_change)

    screens(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_screen_that_was_closed_after_a_failed_restart_still_goes_back(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.3")
    on_free_port()
    runs: list[str] = []

    async def first(s: RealScreen) -> None:
        await s.serve()
        runs.append(s.state.run_id)
        with monkeypatch.context() as patched:
            patched.setenv("WORKBENCH_SIM_FAULT", "exit_at_start")
            await s.press("s")
            await s.until("enter restart")
            await s.press("enter")
            await s.until("FAILED vllm", "Z Go back")

    async def second(s: RealScreen) -> None:
        await s.until("FAILED vllm", "Z Go back")
        assert s.state.goes_back_to == runs[0]
        await s.press("Z")
        await s.until("READY vllm :", lambda: "Z Go back" not in s.text)

    async def third(s: RealScreen) -> None:  # the harness has stopped the server
        await s.until("no server", lambda: s.state.servers_read)
        assert s.state.run_id is None and s.state.goes_back_to is None

    screens(first, second, third)
