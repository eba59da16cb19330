"""Errors are messages on the screen, never tracebacks."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_canned import canned_experiment, canned_sweep
from support.fake_session import FakeSession

from workbench.model.bench import BenchProgress, BenchSpec
from workbench.model.errors import BenchError, HostError, InputError
from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.model.setting_records import SettingCommand, SettingOutcome
from workbench.session.state import BenchState
from workbench.tui.cells import row_width
from workbench.tui.formats import bench_progress_text
from workbench.tui.modals.gpu_confirm import (
    affected_gpu_rows,
    has_details_beyond_summary,
    load_check_finding_rows,
    setting_change_rows,
    setting_note_rows,
)
from workbench.tui.pages.live import ExperimentPage, SweepPage
from workbench.tui.screen import MainScreen
from workbench.tui.widgets.experiment import begun_and_planned_runs, count_done_and_total_runs
from workbench.tui.widgets.plot import Point, curve_rows
from workbench.tui.widgets.progress import describe_bench


def said(rows: Any) -> str:
    return "\n".join("".join(text for text, _ in row) for row in rows)


@pytest.mark.ci_cases(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "method", "keys"),
    [
        ("altered", "verify_gpu", "V"),
        ("altered", "revert_gpu", "r"),
        ("trial", "confirm_gpu", "T"),
        ("compare", "compare", "c"),
        ("compare", "restart_bench_compare", ". enter"),
        ("compare", "experiments", "5 o"),
        ("compare", "result", "4 enter"),
        ("compare", "delete_result", "4 d y"),
        ("ready", "bench", "b enter"),
        ("ready", "plan_gpu", "g 5 0 0 enter"),
        ("ready", "stop", "x y"),
        ("sweeping", "cancel_sweep", "K"),
        ("experiment", "stop_experiment", "K"),
        ("ready", "flag_sweep", "2 down S f enter"),
    ],
)
def test_a_method_that_breaks_is_a_message(drive: Any, stage: str, method: str, keys: str) -> None:
    async def scenario(d: Any) -> None:
        d.session.fail[method] = RuntimeError("boom")
        await d.press(*keys.split())
        await d.until(lambda: "a defect in Workbench: RuntimeError: boom" in d.text)
        assert method not in d.session.fail and "Traceback" not in d.text
        await d.press("escape", "f1")
        assert "Everywhere" in d.text  # the screen goes on

    drive(scenario, stage=stage)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_link_that_is_lost_under_an_open_experiment(drive: Any, size: tuple[int, int]) -> None:
    async def scenario(d: Any) -> None:
        await d.press("X")
        host = d.session.state.host
        d.session.push(
            host=replace(host, link="lost", lost_since_unix_s=time.time() - 5, retries=2)
        )
        d.session.notice(Level.ERROR, "box: the link was lost", "it is tried again")
        await d.until(lambda: "! LINK LOST" in d.row(0) and "x box: the link was lost" in d.text)
        assert (
            isinstance(d.app.main.panes.pages.visible_page, ExperimentPage)
            and ("next: it is tried again") in d.text
        )
        d.session.fail["stop_experiment"] = HostError("no answer", host="box")
        await d.press("K")
        # it may be tried again
        await d.until(lambda: "x box: no answer" in d.text and "K Stop" in d.text)
        d.session.push(host=host, experiment=canned_experiment(4, state="failed"))
        await d.until(lambda: "LINK LOST" not in d.row(0) and "R Resume" in d.text)

    drive(scenario, stage="experiment", size=size)


def test_keys_on_a_lost_host_do_not_claim_what_is_not_known(drive: Any) -> None:
    """x said that no server runs on a host that was out of reach, and M called an old reading "free
    now" without a word. The row on top had no room left for "server keeps running", but for a
    latency that was no longer measured."""

    async def scenario(d: Any) -> None:
        state = d.session.state
        lost = replace(
            state.host,
            name="gpu-box",
            link="lost",
            latency_ms=58.0,
            lost_since_unix_s=time.time() - 65,
        )
        d.session.push(host=lost, servers=(replace(state.server, state=ServerState.UNKNOWN),))
        await d.until(lambda: "LINK LOST" in d.row(0))
        assert "(server keeps running)" in d.row(0), d.row(0)
        assert "58ms" not in d.row(0)
        await d.press("x")
        await d.until(
            lambda: (
                f"gpu-box cannot be reached, so {state.server.run_id} cannot be stopped" in d.text
            )
        )
        await d.press("M")
        await d.until(
            lambda: "gpu-box cannot be reached: the free memory is an old reading" in d.text
        )
        d.session.push(host=replace(lost, link="connected"))
        await d.until(lambda: "What fits" in d.text and "old reading" not in d.text)

    drive(scenario, stage="ready", size=(80, 24))


def test_a_sweep_that_fails_says_why_on_its_page(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        async def failing(*_: Any, **__: Any) -> Any:
            d.session.push(sweep=canned_sweep(2))
            d.session.push(
                sweep=replace(
                    canned_sweep(2, state="failed"), error="the server is crashed: exit 1"
                )
            )
            raise BenchError(
                "the sweep could not go on", host="box", next_step="e shows the first error"
            )

        d.session.sweeps.run_gpu_setting_sweep = failing
        await d.press("S", "enter")
        await d.until(lambda: "These commands" in d.text)
        await d.press("enter")
        await d.until(lambda: "x failed" in d.text and "x the server is crashed: exit 1" in d.text)
        assert isinstance(d.app.main.panes.pages.visible_page, SweepPage)
        assert (
            "x box: the sweep could not go on" in d.text
            and ("next: e shows the first error") in d.text
        )
        await d.press("n")
        await d.until(lambda: "< power limit >" in d.text)

    drive(scenario, stage="ready")


def test_an_error_of_the_driver_keeps_the_form_open(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.fail["plan_gpu"] = InputError(
            "GPU 0: 900 W is above the maximum", next_step="300 to 600 W"
        )
        await d.press("g", *"900", "enter")
        await d.until(lambda: "x GPU 0: 900 W is above the maximum; 300 to 600 W" in d.text)
        assert re.search(r"power limit W +900 ", d.text)
        await d.press("ctrl+u", *"500", "enter")
        await d.until(lambda: "run them" in d.text)
        assert re.search(r"GPU0 +power limit +600 W +500 W +read from the driver", d.text)

    drive(scenario, stage="ready")


def test_an_old_message_goes_while_telemetry_flows(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.notice(Level.INFO, "read me")
        await d.until(lambda: "read me" in d.text)
        await d.press("g")
        d.app.main.services._notice_until = time.monotonic() - 1
        d.app.main.draw_elapsed_times(d.session.state, True)
        assert d.app.main.notice_bar.display  # a form lies over it: it has not been read
        await d.press("escape")
        d.app.main.draw_elapsed_times(d.session.state, True)
        await d.until(lambda: "read me" not in d.text)

    drive(scenario, stage="ready")


def test_a_check_counts_its_seconds_while_telemetry_flows(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(s=100.0)
    clock = SimpleNamespace(monotonic=lambda: now.s)

    async def scenario(d: Any) -> None:
        monkeypatch.setattr("workbench.tui.services.time", clock)
        monkeypatch.setattr("workbench.tui.widgets.progress.time", clock)
        d.app.main.services.start_countdown("checking under load: vllm is kept busy", 8.0)
        now.s += 5.0
        d.session.tick()
        d.app.main.draw_elapsed_times(d.session.state, True)
        await d.until(lambda: "5/8 s" in d.row(-2) and "about 3 s left" in d.row(-2))

    drive(scenario, stage="altered", size=(80, 24))


def test_altered_gpus_are_seen_beside_a_benchmark_on_a_narrow_screen(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        progress = BenchProgress(31, 0, 64, 8, 3968, 6120.0, 4.2)
        spec = BenchSpec("http://127.0.0.1:8000", "m")
        d.session.push(
            host=replace(d.session.state.host, name="sim:rtx-pro-6000-passthrough"),
            bench=BenchState(running=True, spec=spec, progress=progress),
        )
        await d.until(lambda: "~ benchmark  measuring 31/64  6,120 tok/s" in d.row(-2))
        assert (
            "READY :8000" in d.row(0)
            and "▲ power limit 600 → 500 W" in d.row(0)
            and d.row(0).endswith("SIMULATED")
        )

    drive(scenario, stage="altered", size=(80, 24))


def test_how_far_a_load_is() -> None:
    spec = BenchSpec("http://127.0.0.1:8000", "m", seconds=10.0, requests=20_000)
    progress = BenchProgress(7, 0, 20_000, 8, 900, 210.0, 4.2)
    state = FakeSession().state
    timed = replace(state, bench=BenchState(running=True, spec=spec, progress=progress))
    assert bench_progress_text(timed) == "measuring 4/10 s"
    counted = replace(
        timed,
        bench=replace(
            timed.bench,
            spec=replace(spec, seconds=None, requests=64),
            progress=replace(progress, total=64),
        ),
    )
    assert bench_progress_text(counted) == "measuring 7/64"
    assert bench_progress_text(replace(timed, busy=("verifying GPU settings",))) == "4s"
    assert bench_progress_text(replace(timed, bench=replace(timed.bench, running=False))) == ""


def test_the_time_left_of_a_benchmark_waits_for_the_first_requests() -> None:
    """With the first of 8 equal requests done, the estimate was twice what was left."""
    spec = BenchSpec("http://127.0.0.1:8000", "m", requests=64)
    first = BenchProgress(1, 0, 64, 7, 128, 210.0, 4.2)
    state = FakeSession().state
    begun = replace(state, bench=BenchState(running=True, spec=spec, progress=first))
    assert describe_bench(begun).left == ""
    going = replace(begun.bench, progress=replace(first, done=16, in_flight=8))
    assert describe_bench(replace(begun, bench=going)).left.startswith("about ")


def test_runs_to_come_are_counted() -> None:
    e = replace(canned_experiment(2), runs=canned_experiment(2).runs[:3])
    assert count_done_and_total_runs(e) == (2, 6)
    assert (
        "".join(r.arm for r in begun_and_planned_runs(e)) == "ABBAAB"
        and begun_and_planned_runs(e)[-1].state == "planned"
    )
    assert begun_and_planned_runs(canned_experiment()) == canned_experiment().runs
    # it may end then
    assert (
        count_done_and_total_runs(replace(e, spec=replace(e.spec, until_pct=1.0, pairs=20)))[1] == 4
    )


def _planned(
    gpu: int, setting: str, before: Any, known: str, value: Any, message: str = ""
) -> SettingOutcome:
    command = SettingCommand(gpu, f"GPU-{gpu}", setting, ("nvidia-smi",), None, value)
    return SettingOutcome(command, True, before, value, message=message, before_known=known)


def test_gpus_that_change_alike_share_a_row() -> None:
    volatile = "persistence mode is off: the setting is lost when the last program ends"
    planned = [
        *(_planned(n, "power_limit_w", 250.0, "read", 200.0, volatile) for n in range(4)),
        _planned(0, "gpu_clocks", "unknown", "unknown", "210,1755"),
    ]
    text = said([*setting_change_rows(planned, 110), *setting_note_rows(planned, 110)])
    assert re.search(r"setting +now +requested", text)  # a revert may restore another value
    assert re.search(r"GPU0-3 +power limit +250 W +200 W +read from the driver", text)
    assert re.search(r"GPU0 +GPU clocks +unknown +210-1755 MHz +a lock cannot be read", text)
    assert text.count(volatile) == 1


def test_one_process_on_many_gpus_is_named_once() -> None:
    """With a row each, four GPUs would leave no room for the commands on 24 rows."""
    processes = [*((n, 4242, "vllm", True) for n in range(4)), (2, 991, "train.py", False)]
    text = said(affected_gpu_rows(FakeSession(4).state, [0, 1, 2, 3], processes, 72))
    assert text.count("4242") == 1 and "4242 vllm on GPU0-3: a server of Workbench" in text
    assert (
        "991 train.py on GPU2: not started by Workbench" in text
        and ("! Other programs use these GPUs") in text
    )


def test_many_processes_share_a_line_until_the_details_are_asked_for() -> None:
    """At 80x24 the commands and the last line of the page have to be in view together."""
    state = FakeSession(4).state
    processes = [(n, 4242 + n, "VLLM::EngineCor", True) for n in range(4)]
    processes += [(n, 90 + n, "train.py", False) for n in range(2)]
    shown = affected_gpu_rows(state, [0, 1, 2, 3], processes, 72)
    text = said(shown)
    assert len(shown) == 4 and max(map(row_width, shown)) <= 72, text
    assert "GPU0-3  4 x RTX PRO 6000" in text and "GPU-0000" not in text
    assert "4242 VLLM::EngineCor, 3 more: servers of Workbench" in text
    assert "90 train.py, 91 train.py: not started by Workbench" in text
    listed = said(affected_gpu_rows(state, [0, 1, 2, 3], processes, 72, is_detailed=True))
    assert "4245 VLLM::EngineCor on GPU3: a server of Workbench" in listed
    assert all(f"GPU{n}  RTX PRO 6000" in listed for n in range(4)) and "GPU-0000" in listed
    assert has_details_beyond_summary([0, 1], processes) and not has_details_beyond_summary(
        [3], processes
    )


def test_gpus_with_the_same_finding_share_a_paragraph_and_the_worst_comes_first() -> None:
    held = "power limit 200 W is in force: 99 W drawn; it did not bind; nothing changes"
    findings = [
        *(f"GPU{n}: {held}" for n in range(3)),
        "GPU3: power limit 200 W has no effect: requested 200 W, 230 W drawn",
    ]
    lines = said(load_check_finding_rows(findings, 100)).splitlines()
    assert lines[0].startswith("▲ GPU3: power limit 200 W has no effect")
    assert (
        "ok GPU0-2: power limit 200 W is in force: 99 W drawn"
    ) in lines and "  it did not bind" in lines


def test_noise_does_not_fill_a_plot() -> None:
    """A difference of 0.2 % must not look like a slope."""
    points = [Point(float(n), y, str(n)) for n, y in enumerate((424.4, 425.2, 424.9))]
    rows = [
        n
        for n, line in enumerate(said(curve_rows(points, 60, 16, "tok/s")).splitlines())
        if "●" in line
    ]
    assert rows[-1] - rows[0] <= 1


def test_the_screen_survives_an_experiment_without_runs(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.push(experiment=replace(canned_experiment(0), runs=(), left_s=None))
        await d.press("X")
        await d.until(lambda: "A/B experiment 7" in d.text)
        assert "~ A/B experiment 7  starting" in d.row(-2)
        await d.press("escape")
        assert isinstance(d.app.screen, MainScreen)

    drive(scenario, stage="compare")
