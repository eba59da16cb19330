"""Defects that a newcomer met on simulated GPUs, repeated key by key on the real session."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest
from support.real_screen import RealScreen, on_free_port, shown

from workbench.gpu.settings import journal
from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.model.settings import GpuSettings
from workbench.session.session import Session


def test_half_a_tag_may_be_searched() -> None:
    """Borders interpreted markup: `b]x[/` in a filter ended the screen."""

    async def scenario(s: RealScreen) -> None:
        await s.load()
        for pane in "1234":
            await s.press(pane, "slash", *"b]x[/", "down")
            await s.until("b]x[/")
            await s.press("escape", "escape")
            await s.until(lambda: "b]x[/" not in s.text)

    shown(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_value_that_is_being_reverted_is_nobody_elses() -> None:
    """A screen that was opened while the guard reverted said "changed by someone else"."""

    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100")
        await s.session.gpu.apply_settings(GpuSettings(power_limit_w=200.0), 0)
        await s.until(
            "power limit 250 → 200 W", lambda: s.state.telemetry.gpus[0].power_limit_w == 200
        )
        async with journal.locked_journal(s.session.host):
            await s.session.host.run(["nvidia-smi", "-i", "0", "-pl", "220"])
            await s.until(lambda: s.state.telemetry.gpus[0].power_limit_w == 220)
            readings = {s.state.telemetry.t_s}
            while len(readings) < 5:
                await s.until(lambda: s.state.telemetry.t_s not in readings)
                readings.add(s.state.telemetry.t_s)
            assert not s.state.drift and "someone else" not in s.text
        await s.until("now 220 W: changed by someone else")

    shown(scenario)


@pytest.mark.slow
@pytest.mark.long
def test_processes_that_outlived_their_server_are_stopped_by_x() -> None:
    """x said that no server of Workbench was running, although processes of the server occupied GPU
    memory."""
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        os.kill(s.state.server.pid, signal.SIGKILL)
        await s.until("x CRASHED", "1 process of the server", "workbench stop")
        assert s.state.server.outlived
        await s.press("s")
        await s.until("1 process that outlived", "is stopped first", "enter restart")
        await s.press("escape", "x")
        await s.until("process outlived it", "stop it")
        await s.press("enter")
        await s.until(lambda: not s.state.server.outlived)

    shown(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_the_activity_lists_the_guards_actions() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100")
        await s.session.gpu.apply_settings(GpuSettings(power_limit_w=200.0), 0, trial_s=5.0)
        await s.until(
            lambda: not s.state.alterations, "the guard reverted GPU0 power limit", seconds=30
        )
        await s.press("l")
        await s.until("Done to", "# the guard reverted GPU0 power", "not confirmed within 5 s")

    shown(scenario)


@pytest.mark.slow
@pytest.mark.long
def test_the_bench_pane_of_an_adopted_server_says_that_b_measures_now() -> None:
    """A reopened screen said "s starts the server" beside READY."""
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        run_id = s.state.run_id
        s.session.core.update(run_id=None)
        await s.until("Press s to start the server, then b")
        s.session.core.update(run_id=run_id)
        await s.until("Press b to run a quick benchmark")

    shown(scenario)


@pytest.mark.slow
@pytest.mark.long
def test_the_bench_form_rejects_more_streams_than_requests() -> None:
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        await s.press("b")
        await s.until("streams at once")
        await s.press("tab", *"9999999", "enter")
        await s.until("9999999 is not a valid value of concurrency")
        assert s.app.screen.values["concurrency"] == "9999999"  # type: ignore[attr-defined]

    shown(scenario)


def test_the_next_step_stays_below_a_long_message() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until("/250W")
        s.session.core.notify(
            Level.ERROR,
            "port 8000 is taken by " + "a process of a long name " * 20,
            "set another port",
        )
        text = await s.until("next: set another port", "port 8000 is taken by")
        assert "…" in text

    shown(scenario, size=(80, 24))


@pytest.mark.slow
def test_a_change_of_host_removes_the_message_about_the_old_host() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until("/250W")
        await s.session.switch_host("no-such-host.invalid")
        text = await s.until("NOT CONNECTED", "press R to connect again", "x no-such-host.invalid:")
        assert "no server" not in text.splitlines()[0]
        await s.session.switch_host("sim:four-pcie")
        await s.until("/250W", lambda: "no-such-host" not in s.text)

    shown(scenario, size=(80, 24))


@pytest.mark.slow
@pytest.mark.long
def test_the_progress_row_shows_a_measurement_while_a_server_starts() -> None:
    """The phase of the start left no room for the measurement in 120 columns."""

    async def scenario(s: RealScreen) -> None:
        from support.made_results import experiment

        on_free_port()
        await s.serve()
        phase = "reading the model's configuration (Qwen3VLForConditionalGeneration)"
        starting = replace(
            s.state.server, state=ServerState.STARTING, phase=phase, started_unix_s=time.time()
        )
        s.session.core.update(
            servers=(starting,), experiment=replace(experiment(), state="running", left_s=60.0)
        )
        await s.until(lambda: "~ A/B experiment" in s.row(-2) and "reading the model" in s.row(-2))
        assert "left  K stops" in s.row(-2)

    shown(scenario)


def test_an_estimate_counts_the_runs_that_follow_the_points() -> None:
    """The header said "sweep 6/6, 0 s left" for two minutes."""
    from support.made_results import sweep

    from workbench.session.series.sweep_progress import SweepProgress

    session = Session.of_host(None, "four-pcie")
    made = sweep()
    points = [replace(p, state="planned" if n == 0 else "done") for n, p in enumerate(made.points)]
    whole = replace(made, points=tuple(points))
    run = SweepProgress(
        session.core, session.results, session.sweeps.sweep_store, whole, asyncio.Event()
    )
    run.pair_runs, run._runs_each, run.limit._began_s = 6, 2, time.monotonic() - 20.0
    run._count_runs_and_estimate_left(2)
    # two runs took 20 s; two of the last point and six in pairs are left
    assert 79 < (run.sweep.left_s or 0) < 85


@pytest.mark.slow
def test_the_host_is_left_only_on_a_yes_while_it_is_measured() -> None:
    """A key and a name stopped a sweep, and its half-restored GPU settings were left to the guard."""

    async def scenario(s: RealScreen) -> None:
        from support.made_results import experiment

        await s.until("/250W")
        s.session.core.update(experiment=replace(experiment(), state="running"))
        await s.press("h", *"sim:gb10", "enter")
        await s.until(
            "Leave sim:four-pcie", "is running: this ends the experiment", "work on sim:gb10"
        )
        await s.press("enter")
        await s.until(lambda: s.app.screen is s.app.main)
        assert s.session.host.name == "sim:four-pcie"
        s.session.core.update(experiment=None)
        await s.press("h", *"sim:gb10", "enter")
        await s.until(lambda: s.session.host.name == "sim:gb10")

    shown(scenario)


def test_a_page_about_the_host_before_is_closed() -> None:
    """The plan of one host was still open, and enter started it on the other."""

    async def scenario(s: RealScreen) -> None:
        await s.load()
        await s.press("s")
        await s.until("enter start")
        await s.session.switch_host("sim:gb10")
        await s.until(lambda: s.app.screen is s.app.main, "sim:gb10")
        assert not s.state.servers

    shown(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_benchmark_that_the_user_leaves_keeps_what_it_has_measured() -> None:
    async def scenario(s: RealScreen) -> None:
        on_free_port()
        await s.serve()
        await s.press("b")
        await s.until("enter run")
        await s.press("enter")
        await s.until(lambda: (p := s.state.bench.progress) is not None and p.done > 4, seconds=60)
        await s.press("x")
        await s.until(
            "a benchmark is running: this ends the benchmark", "KILL to those that still run after"
        )
        await s.press("escape")
        await s.until(lambda: s.app.screen is s.app.main)
        await s.press("q")
        await s.until("what it has measured is kept as a", "partial result")
        await s.press("enter")
        await s.until(lambda: s.app._exit)
        assert any("partial" in why for why in (await s.session.results.get(1)).summary.refused)

    shown(scenario)
