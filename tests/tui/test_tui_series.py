"""Sweeps and experiments by keys: their forms, their pages while they run and afterwards, and how
they are drawn."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import made_results
from support.fake_canned import canned_experiment, canned_sweep
from support.fake_session import FakeSession
from support.grid import check

from workbench.model.errors import InputError, SettingsError
from workbench.model.experiment import Arm
from workbench.model.plan import PlanDifference
from workbench.model.settings import MEMORY_CLOCKS, ClockRange, GpuSettings
from workbench.model.sweep import SweepPoint, SweepSpec
from workbench.model.watch import QUIET, NightEntry, Watch
from workbench.session.bench.spec import spec_from_fields
from workbench.store import paths
from workbench.store.watches import WatchStore
from workbench.tui.cells import row_width
from workbench.tui.controllers import sweeps
from workbench.tui.controllers.series import prepare_sweep_resume
from workbench.tui.modals import sweep_form
from workbench.tui.modals.experiment_form import (
    RequestedExperiment,
    arms_from_plan_differences,
    format_arm,
    parse_arm,
)
from workbench.tui.screen import MainScreen
from workbench.tui.widgets.experiment import experiment_design_text, experiment_rows
from workbench.tui.widgets.interval import Axis, change_and_interval_row, make_axis
from workbench.tui.widgets.plot import Point, curve_rows, x_positions_and_can_connect
from workbench.tui.widgets.sweep import operating_map_rows, sweep_remaining_time_text, sweep_rows

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x60": (200, 60)}
PAGES = [
    ("experiment", "experiment", "X"),
    ("experimented", "experimented", "5 enter"),
    ("sweep", "swept", "S"),
    ("how-sure", "compare", "X"),
    ("experiment-form", "compare", "X down down down enter"),
    ("sweep-form", "ready", "S"),
    ("tune", "tuning", "N"),
    ("tuned", "tuned", "N"),
    ("tune-form", "ready", "N"),
    ("tune-plan", "ready", "N enter"),
    ("bench-form", "ready", "b"),
    ("gpu-settings", "altered", "g"),
    ("result", "compare", "4 enter"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stage", "keys"), PAGES, ids=[p[0] for p in PAGES])
def test_grid_of_pages(
    drive: Any, monkeypatch: pytest.MonkeyPatch, name: str, stage: str, keys: str
) -> None:
    async def scenario(d: Any) -> None:
        await d.press(*keys.split())
        for size, (columns, rows) in SIZES.items():
            await d.pilot.resize_terminal(columns, rows)
            await d.pilot.pause()
            check(f"{name}-{size}", d.text)

    # from before the screen starts to count: what is left does not run down
    monkeypatch.setattr("workbench.tui.countdown.time", SimpleNamespace(monotonic=lambda: 0.0))
    drive(scenario, stage=stage)


# experiments
def test_one_pair_and_one_stream_have_no_plural() -> None:
    made = made_results.experiment()
    spec = replace(
        made.spec,
        until_pct=None,
        pairs=1,
        bench={"concurrency": 1, "requests": 4, "input_tokens": None},
    )
    text = experiment_design_text(replace(made, spec=spec))
    assert text.startswith("1 pair in ") and text.endswith("each run 1 stream, 4 requests")


def test_an_experiment_compares_the_running_server_with_the_plan(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.plans.set_flag("max-num-seqs", "777")
        await d.press("X", "down", "down", "down", "enter")
        await d.until(
            lambda: (
                "A is the running server, B the plan under edit." in d.text
                and "decided by" in d.text
            )
        )
        assert "max-num-seqs=512" in d.text and "max-num-seqs=777" in d.text
        assert (
            "6 runs of 64 requests at 8 streams, and a first run that is discarded: about 6m12s"
        ) in d.text
        await d.press("down", "down", "5")
        assert "10 runs of" in d.text and "about 10m20s" in d.text
        await d.press("enter")
        await d.until(lambda: d.session.called("experiment"))
        _, a, b, options = d.session.called("experiment")[0]
        assert (a, b) == (Arm(sets=("max-num-seqs=512",)), Arm(sets=("max-num-seqs=777",)))
        assert options == {
            "pairs": 5,
            "metric": "output_tok_s",
            "bench": d.session.bench.default_spec_fields(),
        }
        await d.until(lambda: "A/B experiment 7" in d.text and "no claim yet" in d.text)

    drive(scenario, stage="ready")


@pytest.mark.slow
def test_the_same_twice_is_no_experiment(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("X", "enter")
        await d.until(lambda: "A and B are the same" in d.text)
        await d.press("down", *"no-flag", "enter")
        assert "expected flag=value" in d.text and not d.session.called("experiment")

    drive(scenario, stage="ready")


def test_a_running_experiment_narrows_under_the_eyes_and_can_be_stopped(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        assert re.search(
            r"~ A/B experiment 7  pair 3 of 3, A: measuring .* about 2m0\ds left  K "
            r"stops",
            d.row(-2),
        )
        await d.press("X")
        assert (
            re.search(r"tok/s +5,814 +6,707 +\+15\.4 % ±5\.9", d.text)
            and "~ running  pair 3 of 3, A: measuring" in d.text
        )
        d.session.push(experiment=canned_experiment())
        await d.until(lambda: "±1.7" in d.text)
        assert re.search(r"after 2 +\+15\.4 % ±5\.9", d.text)  # what it was before it narrowed
        assert "B is better: output_tok_s +15.4 % ± 1.7" in d.text and "R Resume" not in d.text
        d.session.push(experiment=canned_experiment(4))
        await d.until(lambda: "K Stop" in d.text)
        await d.press("K")
        await d.until(lambda: "= stopped" in d.text and "R Resume" in d.text)
        await d.press("R")
        await d.until(
            lambda: d.session.called("resume_experiment") == [("resume_experiment", 7, None)]
        )

    drive(scenario, stage="experiment")


def test_k_stops_from_anywhere_and_quitting_says_which_runs_are_kept(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("q")
        said = "! experiment 7 is running: this ends the experiment, and its complete runs are"
        assert said in " ".join(d.text.split())
        await d.press("escape", "2", "K")
        await d.until(lambda: d.session.called("stop_experiment"))

    drive(scenario, stage="experiment")


@pytest.mark.slow
def test_experiments_are_listed_and_resumed(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("5", "o")
        await d.until(lambda: "max-num-seqs=256 > max-num-seqs=512" in d.text)
        await d.press(*"stopped", "enter")
        await d.until(lambda: "A/B experiment 6" in d.text)
        await d.press("R")
        await d.until(
            lambda: d.session.called("resume_experiment") == [("resume_experiment", 6, None)]
        )

    drive(scenario, stage="compare")


def test_pane_five_shows_the_newer_of_comparison_and_experiment(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.push(experiment=canned_experiment())
        await d.until(lambda: "5 Compare  experiment 7" in d.text)
        assert "3 runs of A, 3 of B, in pairs" in d.text
        await d.press("c")
        await d.until(
            lambda: "5 Compare  experiment" not in d.text and "1 run of A, 1 of B" in d.text
        )
        d.session.push(experiment=canned_experiment(2))
        await d.until(lambda: "1 of 3 pairs, an interval needs two pairs" in d.text)

    drive(scenario, stage="compare", size=(200, 60))


def test_arms_are_made_from_the_differences() -> None:
    changes = [
        PlanDifference("flag", "a", 1, 2),
        PlanDifference("flag", "b", None, True),
        PlanDifference("env", "E", "x", None),
    ]
    assert arms_from_plan_differences(changes) == (
        Arm(("a=1",), ("b",), ("E=x",)),
        Arm(("a=2", "b=on")),
    )
    exact = PlanDifference("flag", "c", 0.8123456789, ["a b", ""])
    assert arms_from_plan_differences([exact]) == (Arm(("c=0.8123456789",)), Arm(("c='a b' ''",)))
    added = [PlanDifference("env", "E", None, "x")]
    assert arms_from_plan_differences(added) == (Arm(unsets=("E",)), Arm(envs=("E=x",))), (
        "an empty variable is not an unset one"
    )
    with pytest.raises(InputError, match="model"):
        arms_from_plan_differences([PlanDifference("model", "model", "m", "n")])


@pytest.mark.parametrize(
    "arm",
    [
        Arm(("max-num-seqs=512",), ("enforce-eager",), ("K=v w",)),
        Arm(sets=('speculative-config={"method":"mtp","n":2}',)),
        Arm(
            gpu=GpuSettings(
                persistence=True,
                power_limit_w=400.0,
                gpu_clocks=ClockRange(210, 1755),
                governor="performance",
            )
        ),
        Arm(),
    ],
)
def test_an_arm_is_read_as_it_is_written(arm: Arm) -> None:
    assert parse_arm(format_arm(arm)) == arm


@pytest.mark.parametrize("text", ["word", "gpu.power=lots", "gpu.fan=3", 'a="', "$K", "gpu.sm="])
def test_a_word_that_changes_nothing_is_an_error(text: str) -> None:
    with pytest.raises(InputError):
        parse_arm(text)


# sweeps
def test_a_power_sweep_starts_between_the_limits(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("S")
        assert "300,350,400,450,500,550,600" in d.text and "previous setting is restored" in d.text
        await d.press("enter")
        await d.until(lambda: "These commands change the GPUs" in d.text)
        assert "991 python3 train.py" in d.text and "-pl 300" in d.text
        assert re.search(r"power limit +600 W +350 W", d.text)
        assert re.search(r"Back at the end.*\n.*-pl 600", d.text)
        await d.press("escape", "S", "enter")  # nothing was set without a yes
        await d.until(lambda: "These commands change the GPUs" in d.text)
        assert not d.session.called("gpu_sweep")
        await d.press("enter")
        await d.until(lambda: d.session.called("gpu_sweep"))
        values = ["300", "350", "400", "450", "500", "550", "600"]
        # of the last benchmark; each the same time
        shape = {"concurrency": 8, "max_tokens": 128, "input_tokens": 128}
        assert d.session.called("gpu_sweep") == [
            ("gpu_sweep", "power_limit_w", values, None, shape)
        ]
        await d.until(lambda: "Sweep of power limit" in d.text and "4 of 7 points" in d.text)
        assert re.search(r"~ sweep of power limit  4 of 7 points; 500 W: .* K stops", d.row(-2))
        await d.press("K")
        await d.until(lambda: d.session.called("cancel_sweep") and "= stopped" in d.text)
        stopped = replace(d.session.state.sweep, spec=SweepSpec(("550", "600")))
        d.session.push(sweep=stopped)
        await d.press("R")
        await d.until(lambda: "-pl 550" in d.text and "-pl 600" in d.text)
        await d.press("escape")
        assert not d.session.called("resume_sweep")
        await d.press("n")
        await d.until(lambda: "over" in d.text and "< power limit >" in d.text)

    drive(scenario, stage="ready")


def test_an_experiment_with_gpu_settings_shows_their_commands_first(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.session.gpu.apply_settings(GpuSettings(power_limit_w=500.0))
        await d.press("X", "enter")
        await d.until(lambda: "These commands change the GPUs" in d.text)
        assert not d.session.called("experiment")
        await d.press("enter")
        await d.until(lambda: d.session.called("experiment"))

    drive(scenario, stage="ready")


@pytest.mark.slow
def test_sweeps_of_the_concurrency_and_of_a_flag(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("2", "down", "S", "c")
        assert "< concurrency >" in d.text and sweep_form.LEVELS in d.text
        await d.press("tab", *"1,4,16", "enter")
        shape = {"max_tokens": 128, "input_tokens": 128}
        await d.until(
            lambda: (
                d.session.called("concurrency_sweep") == [("concurrency_sweep", [1, 4, 16], shape)]
            )
        )
        await d.press("escape")
        d.session.push(sweep=None)
        await d.press("S", "f")
        assert "max-num-seqs=256,512,1024" in d.text and "A/B experiment" in d.text
        await d.press("enter")
        await d.until(lambda: d.session.called("flag_sweep"))
        assert d.session.called("flag_sweep")[0][1] == {"max-num-seqs": ["256", "512", "1024"]}

    drive(scenario, stage="ready")


@pytest.mark.parametrize(
    ("what", "values", "wrong"),
    [
        ("power limit", "300,many", "got “many”"),
        ("power limit", "300", "at least two"),
        (sweep_form.STREAMS, "0,4", "got “0”"),
        ("GPU clocks", "a-b,3", "got “a-b”"),
    ],
)
def test_invalid_values_of_a_sweep_are_named(what: str, values: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        sweep_form.parse_sweep_form({"what": what, "values": values, "flags": "", "gpu": "all"}, 4)


def test_each_kind_of_sweep_that_the_form_offers_can_be_started() -> None:
    """A kind that the controller did not know was started as a sweep of a GPU setting."""
    assert {offer.kind for offer in sweep_form.OFFERS.values()} == {*sweeps.STARTS}


def test_the_next_key_reaches_the_page_of_a_started_measurement(drive: Any) -> None:
    """The page opens at once: keys typed before the session answers go to the page."""
    answer = asyncio.Event()

    async def scenario(d: Any) -> None:
        begin = d.session.sweeps.run_gpu_setting_sweep

        async def slow(*arguments: Any, **named: Any) -> Any:
            await answer.wait()
            return await begin(*arguments, **named)

        d.session.sweeps.run_gpu_setting_sweep = slow
        await d.press("S", "enter")
        await d.until(lambda: "These commands" in d.text)
        await d.press("enter", "K", "n", "q")  # nothing to stop yet, q closes the page
        assert isinstance(d.app.screen, MainScreen)
        await d.press("S", "enter")
        await d.until(lambda: "These commands" in d.text)
        await d.press("enter")
        assert "~ starting: everything is checked" in d.text and "SIMULATED" in d.row(0)
        answer.set()
        await d.until(lambda: "4 of 7 points" in d.text)
        assert "starting" not in d.text

    drive(scenario, stage="ready")


@pytest.mark.parametrize(("method", "keys"), [("gpu_sweep", "S enter"), ("experiment", "X enter")])
def test_a_rejected_start_leaves_a_message_and_no_page(drive: Any, method: str, keys: str) -> None:
    async def scenario(d: Any) -> None:
        d.session.plans.set_flag("max-num-seqs", "777")
        d.session.fail[method] = SettingsError(
            "GPU0: no right to change it", host="box", next_step="ask root"
        )
        await d.press(*keys.split())
        if method == "gpu_sweep":
            await d.until(lambda: "These commands" in d.text)
            await d.press("enter")
        await d.until(
            lambda: "box: GPU0: no right to change it" in d.text and "next: ask root" in d.text
        )
        assert isinstance(d.app.screen, MainScreen)

    drive(scenario, stage="ready")


def test_header_and_page_count_the_same_down(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is opened late shows the time left since the session's estimate."""
    now = SimpleNamespace(s=50.0)
    monkeypatch.setattr("workbench.tui.countdown.time", SimpleNamespace(monotonic=lambda: now.s))

    async def scenario(d: Any) -> None:
        now.s += 64.0
        d.app.main.draw_elapsed_times(d.session.state)
        await d.press("X")
        assert "about 1m00s left  K stops" in d.row(-2) and d.text.count("about 1m00s left") == 2
        now.s += 30.0
        d.app.main.draw_elapsed_times(d.session.state)
        await d.until(
            lambda: "about 30 s left  K stops" in d.row(-2) and d.text.count("about 30 s left") == 2
        )

    drive(scenario, stage="experiment")


def test_two_flags_at_most() -> None:
    values = {"what": sweep_form.FLAG, "values": "", "gpu": "all", "flags": "a=1,2 b=3,4"}
    assert sweep_form.parse_sweep_form(values, 1) == sweep_form.RequestedSweep(
        "flag", [], None, {"a": ["1", "2"], "b": ["3", "4"]}
    )
    with pytest.raises(InputError, match="one or two"):
        sweep_form.parse_sweep_form({**values, "flags": "a=1,2 b=1,2 c=1,2"}, 1)


def test_a_search_for_a_rate_asks_for_limits_and_minutes() -> None:
    values = {"what": sweep_form.RATES, "values": "", "flags": "", "gpu": "all"}
    given = {**values, "slo": "ttft<=1s@95%", "horizon": "2.5"}
    wanted = sweep_form.parse_sweep_form(given, 4)
    assert (wanted.kind, wanted.slo, wanted.horizon_s) == ("rates", "ttft<=1000@p95", 150.0)
    for minutes in ("", "x", "nan", "0", "61"):
        with pytest.raises(InputError, match="minutes: expected"):
            sweep_form.parse_sweep_form({**given, "horizon": minutes}, 4)


def test_a_search_has_the_load_of_the_benchmark_before_without_its_schedule() -> None:
    values = {"what": sweep_form.USERS, "values": "", "flags": "", "gpu": "all", "horizon": "10"}
    wanted = sweep_form.parse_sweep_form({**values, "slo": "ttft<=1s@95%", "think": " 2-8 "}, 4)
    with pytest.raises(InputError, match="think time"):
        sweep_form.parse_sweep_form({**values, "slo": "ttft<=1s@95%", "think": "soon"}, 4)
    rated = {"input_tokens": 700, "rate": 2.0, "burstiness": 0.5, "requests": 60, "seconds": 30.0}
    load = sweep_form.search_load_from_bench_fields(rated, wanted)
    assert load == {"input_tokens": 700, "think_time": "2-8", "slo": "ttft<=1000@p95"}
    assert spec_from_fields(None, load).think_time == "2-8"
    traced = {
        "input_tokens": 700,
        "max_tokens": 50,
        "trace": ("[0,50,[1,700]]",),
        "trace_name": "day.jsonl (1 request, Mooncake, sha256 0)",
        "trace_s": 0.0,
        "trace_reuse": 0.0,
        "speed": 2.0,
        "content": "text",
        "think_time": "9",
    }
    assert sweep_form.search_load_from_bench_fields(traced, wanted._replace(think_time="")) == {
        "input_tokens": 700,
        "max_tokens": 50,
        "slo": "ttft<=1000@p95",
    }


def test_a_sweep_needs_a_server(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("S")
        assert "there is none" in d.text

    drive(scenario, stage="plan")


def test_nothing_is_cancelled_when_nothing_is_measured(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("K")
        assert "no benchmark, sweep, experiment, comparison or copy is running" in d.text

    drive(scenario, stage="ready")


def test_a_measurement_redraws_only_the_fields_that_changed(drive: Any) -> None:
    """The clock does not draw the plots again."""

    async def scenario(d: Any) -> None:
        await d.press("S")
        page = d.app.main.panes.pages.visible_page
        drawn = page._plotted
        d.app.main.draw_elapsed_times(d.session.state)
        assert page._plotted is drawn
        d.session.push(sweep=replace(canned_sweep(5), id=3))
        await d.pilot.pause()
        assert page._plotted is not drawn

    drive(scenario, stage="sweeping")


# drawing
@given(
    st.floats(-500, 500),
    st.none() | st.floats(0, 500),
    st.sampled_from([9, 25, 61]),
    st.floats(1, 100),
)
def test_a_bar_is_as_wide_as_its_axis(
    change: float, half: float | None, cells: int, limit: float
) -> None:
    axis = Axis(limit, cells)
    text = "".join(t for t, _ in change_and_interval_row(axis, change, half, "text"))
    assert len(text) == cells and len(axis.label_text()) == cells
    inside = abs(change) <= limit
    half_cell = 0.5 / (cells // 2) + 1e-9
    assert ("●" in text) == inside or abs(abs(change) - limit) / limit <= half_cell


def test_a_narrower_interval_is_drawn_narrower() -> None:
    axis = make_axis([(15.0, 6.0)], 61)
    wide, narrow = (
        "".join(t for t, _ in change_and_interval_row(axis, 15.0, half, "good"))
        for half in (6.0, 2.0)
    )
    assert wide.rindex("┤") - wide.index("├") > narrow.rindex("┤") - narrow.index("├")
    assert wide[axis.middle_cell] == "│"


def test_an_axis_contains_the_deciding_metric_and_cuts_off_distant_ones() -> None:
    assert make_axis([(15.0, 6.0), (40.0, 22.0)], 60).limit_pct == 40.0
    assert make_axis([(2.0, 1.0), (400.0, 9.0)], 60).limit_pct == 3.0
    assert make_axis([(0.1, 0.1)], 60).limit_pct == 2.0
    assert make_axis([], 60).cells == 59


@pytest.mark.parametrize("width", [60, 72, 111, 188])
def test_rows_fit_their_width(width: int) -> None:
    for done in range(7):
        for row in experiment_rows(
            canned_experiment(done), width, remaining_s=60.0, interval_history={2: (15.4, 5.9)}
        ):
            assert row_width(row) <= width, "".join(t for t, _ in row)
    for done in range(8):
        for row in sweep_rows(canned_sweep(done), width, 36, remaining_s=9.0):
            assert row_width(row) <= width, "".join(t for t, _ in row)


def test_the_knee_is_marked_and_named_in_table_and_plot() -> None:
    text = "\n".join("".join(t for t, _ in row) for row in sweep_rows(canned_sweep(), 111, 36))
    assert (
        re.search(r"400 W \(knee\) +5,204 +13\.2", text)
        and "Knee at 400 W: the highest tok/J" in text
    )
    assert text.count("◆ knee 400 W") == 2 and text.count("◆") == 4  # two titles, two curves


def test_words_and_wide_ranges_stand_at_equal_distances() -> None:
    assert x_positions_and_can_connect([300.0, 350.0, 600.0]) == ([300.0, 350.0, 600.0], True)
    assert x_positions_and_can_connect([1.0, 4.0, 256.0]) == ([0.0, 1.0, 2.0], True)
    assert x_positions_and_can_connect([None, None]) == ([0.0, 1.0], False)


def test_results_have_no_line_between_them_and_labels_have_no_exponent() -> None:
    points = [Point(0, 411.0, "#1", "A"), Point(1, 2251.0, "#2", "B")]
    text = "\n".join(
        "".join(t for t, _ in row)
        for row in curve_rows(points, 60, 12, "tok/s", connect_points=False)
    )
    assert not set(text) & set("▄▀▞▚█") and "e3" not in text and "2,000" in text and "#1" in text


@given(
    st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=9), st.integers(24, 120), st.integers(8, 40)
)
def test_a_curve_keeps_its_box(values: list[float], width: int, height: int) -> None:
    points = [Point(float(n), v, str(n)) for n, v in enumerate(values)]
    rows = curve_rows(points, width, height, "title")
    assert len(rows) <= height and all(row_width(row) <= width for row in rows)
    assert "●" in "".join(t for row in rows[1:] for t, _ in row)


# benchmarks and results
def test_a_profile_writes_its_fields_and_they_can_be_changed(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("b", "right", "right")
        assert "< single-stream >" in d.text and "one request after the other" in d.text
        await d.press("tab", "tab", "9", "enter")
        made = d.session.called("bench")[0][1]
        assert (made["profile"], made["concurrency"], made["requests"]) == ("single-stream", 1, 9)
        assert made["until_steady"] is True and made["rate"] is None and "prompts_file" not in made

    drive(scenario, stage="ready")


@pytest.mark.slow
def test_details_are_folded_and_checked(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("b")
        assert "requests a second" not in d.text
        await d.press("ctrl+o")
        assert "requests a second" in d.text
        await d.press(*["down"] * 5, *"often", "enter")
        assert "requests a second: expected a number above 0" in d.text
        await d.press("ctrl+u", *"2.5", "down", *"30", "down", "c", "down", *"mine.jsonl", "enter")
        made = d.session.called("bench")[0][1]
        assert (made["rate"], made["seconds"], made["arrival"]) == (2.5, 30.0, "constant")
        assert made["prompts_file"] == "mine.jsonl"

    drive(scenario, stage="ready")


@pytest.mark.slow
def test_a_trace_is_replayed_with_its_own_times_and_lengths(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("b", "ctrl+o", *["down"] * 9, *"day.csv", "down", *"2x", "down", "9")
        assert "replays day.csv: its first 9 requests, each at its time" in d.text
        await d.press("enter")
        made = d.session.called("bench")[0][1]
        assert (made["trace_file"], made["speed"], made["first"]) == ("day.csv", 2.0, 9)
        assert set(made) == {"trace_file", "speed", "first", "warmup", "seconds"}

    drive(scenario, stage="ready", size=(80, 24))


def test_the_map_of_a_search_for_users_shows_its_levels_and_where_the_server_is() -> None:
    verdicts = {8: "holds", 16: "holds", 20: "open", 24: "fails"}
    points = tuple(
        SweepPoint(
            f"{users} users",
            float(users),
            "done",
            tok_s=1500 * users / (users + 12),
            tok_per_joule=2 + users / 30,
            slo_verdict=verdict,
            gpus=2,
        )
        for users, verdict in verdicts.items()
    )
    search = replace(canned_sweep(), kind="users", name="users", points=points, knee=1)
    for width, live in ((116, (40.0, 400.0)), (76, None)):
        rows = operating_map_rows(search, width, 14, live)
        text = "\n".join("".join(t for t, _ in row) for row in rows)
        assert len(rows) <= 14 and all(row_width(row) <= width for row in rows)
        assert "tok/s per GPU over tok/s per user" in text and "tok/J over tok/s per user" in text
        assert "53.6" in text  # 1,500 * 16 / 28 / 16
        assert ("@ now" in text) is (live is not None)
        assert text.count("◆") == 3 and text.count("○") == 3 and "│ SLO" in text
    unread = replace(search, points=tuple(replace(p, gpus=None) for p in points))
    assert "tok/s over users" in "".join(t for t, _ in operating_map_rows(unread, 116, 14)[0])


def test_a_refused_result_says_so_in_the_list_and_loudly_on_its_page(drive: Any) -> None:
    session = FakeSession()

    async def scenario(d: Any) -> None:
        from support.fake_canned import canned_result

        why = ("the client was the limit: 91 % of its core",)

        async def result(number: int) -> Any:
            return canned_result(number, refused=why)

        d.session.results.get = result
        d.session.push(results=(d.session.row(41, "again", 5812.0, refused=why, tags=("night",)),))
        await d.until(lambda: "x rejected again #night" in d.text)
        await d.press("4", "enter")
        await d.until(lambda: " REJECTED " in d.text)
        assert "x the client was the limit: 91 % of its core" in d.text

    drive(scenario, stage="ready", session=session, size=(200, 60))


@pytest.mark.slow
def test_results_are_narrowed_down_and_shown_again(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("4", "f", *"power")
        await d.until(lambda: "4 Bench  /power" in d.text and "41 max-num-seqs=512" not in d.text)
        await d.press("enter", "enter")
        await d.until(lambda: "Result #39" in d.text)
        await d.press("escape", "escape")
        await d.until(lambda: "4 Bench  4" in d.text)
        assert d.session.called("find_results")[-1] == ("find_results", "")

    drive(scenario, stage="compare")


@pytest.mark.slow
def test_note_and_tags_are_written(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("4", "n")
        await d.until(lambda: "Result #42" in d.text)
        await d.press(*"warm room", "tab", *"night, x", "enter")
        await d.until(lambda: d.session.called("tag_result"))
        assert d.session.called("note_result") == [("note_result", 42, "warm room")]
        assert d.session.called("tag_result") == [("tag_result", 42, ["night", "x"])]

    drive(scenario, stage="compare")


def test_an_arm_may_name_gpu_settings() -> None:
    target = parse_arm("@vllm-any max-num-seqs=2")
    assert (
        isinstance(target, Arm) and target.target is not None and target.sets == ("max-num-seqs=2",)
    )
    assert target.target.name == "vllm-any" and parse_arm(format_arm(target)) == target
    url = parse_arm("http://127.0.0.1:8000")
    assert (
        isinstance(url, Arm)
        and url.target is not None
        and url.target.name == "http://127.0.0.1:8000"
    )
    with pytest.raises(InputError, match="an arm has one target"):
        parse_arm("@one http://two:1")
    found = parse_arm("gpu.power=400W gpu.sm=210-1755 gpu.persistence=off")
    assert found == Arm(
        gpu=GpuSettings(persistence=False, power_limit_w=400.0, gpu_clocks=ClockRange(210, 1755))
    )
    assert isinstance(RequestedExperiment(Arm(), Arm(), {}), tuple)


# tunes
def test_a_tune_shows_its_plan_before_it_asks_and_then_the_race(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("N", "tab", *"temp<=83", "enter")
        await d.until(lambda: "5 candidates" in d.text)
        (planned,) = [call for call in d.session.calls if call[0] == "plan_tune"]
        assert planned[:3] == ("plan_tune", "tok_s", "temp<=83") and planned[3]["starts"] == 30
        assert not any(call[0] == "run_tune" for call in d.session.calls)
        await d.press("end", "y")
        await d.until(lambda: "Tune 5" in d.text and "max-num-seqs=64" in d.text)
        assert d.session.calls[-1][0] == "run_tune"
        await d.press("K")
        await d.until(lambda: d.session.calls[-1][0] == "cancel_sweep")

    drive(scenario, stage="ready")


def test_a_tune_has_one_time_left_and_is_called_a_tune(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page and row counted down two estimates, and the question before leaving said "sweep 5"."""
    monkeypatch.setattr("workbench.tui.countdown.time", SimpleNamespace(monotonic=lambda: 0.0))

    async def scenario(d: Any) -> None:
        d.session.push(experiment=replace(canned_experiment(2), left_s=146.0))
        await d.press("N")
        await d.until(lambda: d.text.count("about 2m26s left") == 2)
        assert "about 8m32s left" not in d.text
        await d.press("escape", "q")
        await d.until(lambda: "! tune 5 is running: this ends the tune" in d.text)

    drive(scenario, stage="tuning")


def test_a_sweep_whose_points_are_done_waits_for_no_first_point() -> None:
    done = replace(canned_sweep(), state="running", left_s=None)
    assert sweep_remaining_time_text(done, None) == ""
    assert (
        sweep_remaining_time_text(replace(done, points=()), None)
        == "time left: after the first point"
    )
    assert sweep_remaining_time_text(done, 9.0) == "about 9 s left"


def test_a_tune_that_cannot_be_planned_is_said_in_the_form(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.fail["plan_tune"] = InputError("there is no candidate for this plan")
        await d.press("N", "enter")
        await d.until(lambda: "there is no candidate" in d.text)
        await d.press("tab", *"kld", "enter")
        await d.until(lambda: "limits: 'kld' is not a limit on KLD" in d.text)

    drive(scenario, stage="ready")


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "said"), [("tuned", "+15.4 %"), ("tuning", "goal output")])
def test_the_page_of_a_tune_shows_its_content_in_the_smallest_terminal(
    drive: Any, stage: str, said: str
) -> None:
    async def scenario(d: Any) -> None:
        await d.press("N")
        await d.until(lambda: said in d.text)
        await d.pilot.resize_terminal(80, 24)
        await d.until(lambda: "util" in d.text and said in d.text)
        await d.press("escape")
        await d.pilot.resize_terminal(30, 8)
        await d.until(lambda: "Presets" in d.text)

    drive(scenario, stage=stage, size=(30, 8))


def test_sweep_and_tune_keys_both_show_the_tune_that_ran_last(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        for key in "SN":
            await d.press(key)
            await d.until(lambda: "at least +13.7 %" in d.text)
            await d.press("escape")

    drive(scenario, stage="tuned")


def test_the_newest_night_of_the_watches_is_a_page(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("J")
        await d.until(lambda: "no night of a watch yet" in d.text)
        store = WatchStore(paths.watches_dir())
        watch = Watch("vllm-any", "venv:/opt/new", "03:00", simulate="rtx-pro-6000")
        for number, share in enumerate((1.0, 1.0, 1.0, 0.9, 0.9, 0.9)):
            speed = 100.0 + number % 2
            entry = NightEntry(watch, QUIET, pinned_speed=speed, speed=share * speed)
            store.save(replace(store.add_night(), entries=(entry,), done=True))
        await d.press("J")
        await d.until(lambda: "Night 6 of the watches" in d.text and "candidate -10.0 %" in d.text)
        await d.press("escape")
        await d.until(lambda: "Night 6" not in d.text)

    drive(scenario, stage="ready")


def test_a_sweep_that_is_resumed_says_so_in_words() -> None:
    """A renaming once put the name of the function into this text."""
    session: Any = SimpleNamespace()
    assert prepare_sweep_resume(session, canned_sweep(), None).progress_text.startswith(
        "resuming: "
    )


def test_a_sweep_of_memory_clocks_offers_the_clocks_that_every_gpu_has() -> None:
    """The offered clocks lay at equal distances, and the driver has none of them."""
    clocks = ((2619, 1593, 405), (2619, 1593), ())  # the last one does not report them
    infos = [
        SimpleNamespace(memory_max_mhz=2619, supported_memory_mhz=supported) for supported in clocks
    ]
    state: Any = SimpleNamespace(gpu_infos=infos)
    assert sweep_form.suggest_swept_values_text(MEMORY_CLOCKS.label, state) == "1593,2619"
