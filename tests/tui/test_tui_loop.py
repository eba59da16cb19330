"""From keys to session calls: the whole loop in 40 keys, and each action by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.fake_session import PRESETS, FakeSession
from support.made_results import bench_row
from textual import events

from workbench.model.errors import ServerError
from workbench.model.fuzzy import scored_items_best_first
from workbench.model.server_run import ServerState


def names(session: FakeSession) -> list[str]:
    return [c[0] for c in session.calls if c[0] != "open"]


@pytest.mark.slow
@pytest.mark.long  # tests/e2e/test_keys_loop.py does it with the real session
def test_the_whole_loop_in_forty_keys(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        count = 0

        async def keys(*pressed: str) -> None:
            nonlocal count
            count += len(pressed)
            await d.press(*pressed)

        await keys("p", "d", "p", "4", "enter")
        await d.until(lambda: d.session.state.plan, "preset loaded")
        await keys("slash", "m", "n", "s", "enter", "2", "5", "6", "enter")
        assert d.session.plan.flag("max-num-seqs") == 256
        await keys("s", "enter")
        await d.until(
            lambda: d.session.state.server and d.session.state.server.state is ServerState.READY
        )
        await keys("b", "enter")
        await d.until(lambda: len(d.session.state.results) == 1)
        await keys("slash", "m", "n", "s", "enter", "1", "2", "8", "enter")
        await keys("s", "enter")
        await d.until(lambda: len(d.session.called("start")) == 2)
        await keys("b", "enter")
        await d.until(lambda: len(d.session.state.results) == 2)
        await keys("c")
        await d.until(lambda: d.session.state.comparison)
        await keys("u", "s", "enter")
        await d.until(lambda: len(d.session.called("start")) == 3)
        assert d.session.plan.flag("max-num-seqs") == 256
        assert count <= 40
        assert d.session.called("load_preset") == [("load_preset", "qwen3-vl-2b-dp4", None)]
        assert [c[2] for c in d.session.called("set_flag")] == ["256", "128"]

    drive(scenario)


def test_keys_in_one_packet_act_in_order(drive: Any) -> None:
    """Letters after p that are keys too (q quits, w saves) must reach the filter that p opened."""

    async def scenario(d: Any) -> None:
        for key in ("p", "q", "w", "e", "n", "3"):
            d.app.post_message(events.Key(key, key))
        await d.until(lambda: d.pane("presets").query_text == "qwen3")
        assert d.app.is_running and not d.app.main.notice_bar.display
        for key, character in (
            ("enter", "\r"),
            ("slash", "/"),
            ("m", "m"),
            ("n", "n"),
            ("s", "s"),
            ("enter", "\r"),
            ("7", "7"),
            ("enter", "\r"),
        ):
            d.app.post_message(events.Key(key, character))
        await d.until(lambda: d.session.called("set_flag"))
        assert d.session.called("set_flag") == [("set_flag", "max-num-seqs", "7")]

    drive(scenario)


def test_a_wrong_value_stays_in_the_editor(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("slash", "m", "n", "s", "enter", "x", "enter")
        assert "expected a whole number" in d.text
        await d.press("backspace", "9", "enter")
        assert d.session.plan.flag("max-num-seqs") == 9

    drive(scenario, stage="plan")


@pytest.mark.slow
def test_choices_and_switches_are_lists(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("slash", *"kv-cache-dtype", "enter")
        assert "fp8_e5m2" in d.text and "auto  (default)" in d.text
        await d.press("down", "enter")
        assert d.session.called("set_flag")[-1] == ("set_flag", "kv-cache-dtype", "fp8_e4m3")
        await d.press("slash", *"eager", "enter")
        await d.press("up", "enter")
        assert d.session.called("set_flag")[-1] == ("set_flag", "enforce-eager", "on")

    drive(scenario, stage="plan")


def test_an_unknown_flag_can_be_set(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("slash", *"zzz", "enter", "1", "enter")
        assert d.session.called("set_flag")[-1] == ("set_flag", "zzz", "1")

    drive(scenario, stage="plan")


@pytest.mark.slow
@pytest.mark.long
def test_loading_asks_for_the_variables_of_a_preset(drive: Any) -> None:
    from workbench.model.preset import Variable

    session = FakeSession()
    session.missing["qwen3-vl-2b-dp4"] = {
        "model_dir": Variable(description="where the weights are", kind="path")
    }

    async def scenario(d: Any) -> None:
        await d.press("p", "d", "p", "4", "enter")
        assert "where the weights are" in d.text
        await d.press("enter")
        assert "a value is needed" in d.text
        await d.press("slash", "m", "enter")
        assert d.session.called("load_preset") == [
            ("load_preset", "qwen3-vl-2b-dp4", {"model_dir": "/m"})
        ]

    drive(scenario, session=session)


@pytest.mark.slow
@pytest.mark.long
def test_a_broken_preset_is_not_loaded(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("p", *"mine", "enter")
        assert not d.session.called("load_preset") and "line 7" in d.text

    drive(scenario)


def test_environment_undo_redo_and_unset(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("2", "E", *"A_B", "tab", "1", "enter")
        assert d.session.called("set_env") == [("set_env", "A_B", "1")]
        await d.press("u", "U")
        assert names(d.session)[-2:] == ["undo", "redo"]
        await d.press("home", "d")
        assert d.session.called("unset_flag") == [("unset_flag", "data-parallel-size")]

    drive(scenario, stage="plan")


def test_a_bench_has_its_numbers_checked(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("b", "tab", "ctrl+u", "0", "enter")
        assert "at least 1" in d.text
        await d.press("ctrl+u", "3", "2", "enter")
        assert d.session.called("bench")[-1][1]["concurrency"] == 32

    drive(scenario, stage="ready")


@pytest.mark.slow
def test_marks_compare_detail_and_delete(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("4", "home", "a", "down", "B")
        assert d.session.called("mark") == [("mark", 42, "A"), ("mark", 41, "B")]
        await d.press("enter")
        await d.until(lambda: "Result #" in d.text)
        await d.press(*["pagedown"] * 4)
        assert "Conditions" in d.text and "SIMULATED" in d.text
        await d.press("escape", "d", "n")
        assert not d.session.called("delete_result")
        await d.press("d", "y")
        assert d.session.called("delete_result") == [("delete_result", 41)]

    drive(scenario, stage="compare")


def test_stop_asks_first(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("x")
        assert not d.session.called("stop")
        await d.press("enter")
        await d.until(lambda: d.session.called("stop"))

    drive(scenario, stage="ready")


def test_an_error_becomes_a_message_with_the_next_step(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.fail["start"] = ServerError(
            "port 8000 is taken", host="box", next_step="set --port"
        )
        await d.press("s", "enter")
        await d.until(lambda: "port 8000 is taken" in d.text)
        assert "next: set --port" in d.text
        await d.press("escape")
        assert "port 8000 is taken" not in d.text

    drive(scenario, stage="plan")


def test_a_defect_does_not_end_the_screen(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.fail["start"] = RuntimeError("boom")
        await d.press("s", "enter")
        await d.until(lambda: "a defect in Workbench: RuntimeError: boom" in d.text)
        assert d.app.is_running

    drive(scenario, stage="plan")


def test_errors_in_the_plan_refuse_a_start(drive: Any) -> None:
    from dataclasses import replace

    from workbench.model.findings import Finding, Level

    async def scenario(d: Any) -> None:
        bad = Finding(Level.ERROR, "flag.choice", "expected one of a, b", "kv-cache-dtype")
        d.session.push(plan=replace(d.session.state.plan, findings=(bad,)))
        await d.press("s")
        assert "This plan cannot start" in d.text
        await d.press("enter")
        assert not d.session.called("start")

    drive(scenario, stage="plan")


def test_copy_goes_through_the_terminal(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("y")
        assert d.app.clipboard.startswith("HF_TOKEN=")

    drive(scenario, stage="plan")


@pytest.mark.slow
def test_pages_open_and_close(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        pages = {
            "f1": "pick a preset",
            "v": "--max-num-seqs",
            "l": "started, pid 4242",
            "w": "Save the plan",
            "h": "spark-01",
            "full_stop": "compare with the previous",
        }
        for key, words in pages.items():
            await d.press(key)
            assert words in d.text, key
            await d.press("escape")
            assert d.app.screen is d.app.main
        await d.press("1", "i")
        await d.until(lambda: "PCIe limits it" in d.text)
        await d.press("escape", "4", "t")
        assert "tok/s" in d.text and "TTFT p50 ms" in d.text

    drive(scenario, stage="compare")


@pytest.mark.slow
def test_again_says_what_comparing_the_answers_costs_and_a_key_leaves_it_out(drive: Any) -> None:
    cost = "A and B differ in kv-cache-dtype, so their answers are compared too: this takes minutes"

    async def scenario(d: Any) -> None:
        d.session.answers_cost = cost
        await d.press("full_stop")
        assert "so their answers are compared too" in d.text and "a leave out answers" in d.text
        await d.press("a")
        assert "so their answers are compared too" not in d.text
        assert "The answers are not compared" in d.text and "a compare answers" in d.text
        await d.press("enter")
        assert d.session.calls[-1] == ("restart_bench_compare", "no answers")
        await d.press("full_stop", "enter")
        assert d.session.calls[-1] == ("restart_bench_compare",)

    drive(scenario, stage="compare")


def test_the_palette_finds_presets(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("ctrl+p")
        await d.press(*"tp2")
        await d.until(lambda: "Load qwen3-vl-2b-tp2-dp2" in d.text)
        await d.press("enter")
        await d.until(lambda: d.session.called("load_preset"))

    drive(scenario)


def test_the_words_of_a_task_find_its_action_and_letters_find_nothing(drive: Any) -> None:
    """Scattered letters matched, and enter loaded a preset over an edited plan."""
    found = {
        "overnight": "Tune (N)",
        "tune": "Tune (N)",
        "users": "Sweep (S)",
        "capacity": "Sweep (S)",
        "capture": "Capture a trace",
        "trace": "Capture a trace",
        "alerts": "Alerts (!)",
        "undo": "Undo (u)",
    }

    async def scenario(d: Any) -> None:
        entries = list(d.app.main.controllers.palette._list_entries())

        def listed(words: str) -> list[str]:
            return [
                e.name for e in scored_items_best_first(entries, lambda e: e.match_score(words))
            ]

        assert {word: listed(word)[0] for word in found} == found
        presets = [name.startswith("Load ") for name in listed("vllm")]
        assert presets == sorted(presets)  # after the actions
        await d.press("colon", *"trfc")
        await d.until(lambda: "nothing in the list matches" in d.text)
        await d.press("enter", "escape")
        assert not d.session.called("load_preset")

    drive(scenario)


def test_a_page_takes_no_key_that_changes_the_plan_behind_it(drive: Any) -> None:
    """u undid an edit that nobody saw."""

    async def scenario(d: Any) -> None:
        d.session.plans.set_flag("max-num-seqs", "777")
        await d.press("question_mark", "u")
        assert "u does not work on a page" in d.text and not d.session.called("undo")
        await d.press("escape", "u")
        await d.until(lambda: d.session.called("undo"))

    drive(scenario, stage="plan")


@pytest.mark.slow
def test_the_palette_lists_an_action_of_two_keys_once(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("ctrl+p", *"plot")
        await d.until(lambda: "Bench: plot" in d.text)
        assert "Compare: plot" not in d.text
        await d.press(*["backspace"] * 4, *"settings")
        await d.until(lambda: "GPU (g)" in d.text)
        assert "GPUs: settings" not in d.text

    drive(scenario)


@pytest.mark.slow
def test_host_picker_takes_a_listed_or_a_typed_name(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("h", *"spark-02", "enter")
        await d.until(lambda: d.session.called("switch_host"))
        await d.press("h", *"other.example", "enter")
        await d.until(lambda: len(d.session.called("switch_host")) == 2)
        assert [c[1] for c in d.session.called("switch_host")] == ["spark-02", "other.example"]

    drive(scenario)


def test_the_screen_asks_about_an_unknown_host_key_but_not_about_a_changed_one(drive: Any) -> None:
    from workbench.session.state import HostView

    async def scenario(d: Any) -> None:
        d.session.push(
            host=HostView(
                "box",
                "ssh",
                "failed",
                "the key of box is not known: SHA256:abc",
                unknown_key="SHA256:abc",
            )
        )
        await d.until(lambda: "SHA256:abc" in d.text and d.app.screen is not d.app.main)
        await d.press("y")
        await d.until(lambda: d.session.called("accept_host_key"))
        d.session.push(
            host=HostView("box", "ssh", "failed", "the key of box has changed: SHA256:def")
        )
        await d.until(lambda: "has changed" in d.text)
        assert d.app.screen is d.app.main

    drive(scenario)


@pytest.mark.slow
def test_log_follow_hold_search_and_errors(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.log_lines(
            [f"INFO line {n}" for n in range(200)] + ["ERROR out of memory"] + ["INFO more"] * 50
        )
        await d.press("3")
        await d.until(lambda: "INFO more" in d.text)
        await d.press("e")
        assert "ERROR out of memory" in d.text and "PAUSED" in d.text
        await d.press("slash", *"line 17", "enter")
        await d.until(lambda: "INFO line 17" in d.text)
        await d.press("escape", "f")
        assert "PAUSED" not in d.text and "INFO more" in d.text

    drive(scenario, stage="ready")


def test_a_failure_brings_the_log_to_its_first_error(drive: Any) -> None:
    from workbench.model.findings import Finding, Level

    async def scenario(d: Any) -> None:
        # the first error is not the reason
        before = ["ERROR a client asked for another model", *["INFO a"] * 60]
        d.session.log.kept = [*before, "ERROR CUDA out of memory", *["INFO b"] * 60]
        cause = Finding(
            Level.ERROR, "log.oom", "the weights do not fit", fix="lower gpu-memory-utilization"
        )
        d.session.show_server(ServerState.STARTING)
        await d.pilot.pause()
        d.session.show_server(
            ServerState.FAILED,
            exit_code=1,
            reason="CUDA out of memory",
            findings=(cause,),
            started_unix_s=10.0,
            ended_unix_s=41.0,
        )
        await d.until(lambda: "x FAILED vllm :8000 exit 1 after 31s" in d.row(0))
        await d.until(lambda: "ERROR CUDA out of" in d.text and "fix: lower" in d.text)

    drive(scenario, stage="plan")


def test_telemetry_is_not_drawn_while_the_terminal_is_behind(drive: Any, monkeypatch: Any) -> None:
    async def scenario(d: Any) -> None:
        import workbench.tui.bridge as bridge

        monkeypatch.setattr(bridge, "count_waiting_frames", lambda app: 9)
        before = d.app.main.strip.state
        d.session.tick()
        await asyncio.sleep(0.05)
        assert d.app.main.strip.state is before
        monkeypatch.setattr(bridge, "count_waiting_frames", lambda app: 0)
        await d.until(lambda: d.app.main.strip.state is d.session.state)

    drive(scenario)


def test_typing_replaces_a_suggested_value(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        for key in ("b", "tab", "tab", "2", "0", "0", "enter"):
            character = {"tab": "\t", "enter": "\r"}.get(key, key)
            d.app.post_message(events.Key(key, character))
        await d.until(lambda: d.session.called("bench"))
        assert d.session.called("bench")[-1][1]["requests"] == 200

    drive(scenario, stage="ready")


# the mouse
def test_a_click_moves_the_cursor_and_the_wheel_scrolls_the_pane_under_it(drive: Any) -> None:
    """No action needs the mouse, but a click and the wheel work."""

    async def scenario(d: Any) -> None:
        rows = d.text.splitlines()
        tabs = next(n for n, row in enumerate(rows) if row.startswith(" 1 Presets"))
        await d.pilot.click(offset=(rows[tabs].index("1 Presets") + 2, tabs))
        await d.pilot.pause()
        assert d.app.main.panes.active == "presets"
        await d.pilot.click("#presets", offset=(5, 2))
        assert d.pane("presets").current_item == d.pane("presets").items[2]
        wheel = events.MouseScrollDown(d.pane("presets"), 5, 2, 0, 1, 0, False, False, False)
        d.pane("presets").on_mouse_scroll_down(wheel)
        assert d.pane("presets").cursor == 5
        await d.pilot.click("#presets", offset=(5, 0), times=3)
        await d.until(lambda: d.session.called("load_preset"))
        assert d.session.called("load_preset")[-1][1] == PRESETS[0].id
        footer = d.text.splitlines()[-1]
        await d.pilot.click(offset=(footer.index("Preset"), 23))
        await d.until(lambda: "/ letters of a preset" in d.text)

    drive(scenario, stage="plan", size=(80, 24))


def test_a_benchmark_whose_result_is_rejected_is_told(drive: Any) -> None:
    """After a cut link, the progress of the benchmark was gone, and no message said why."""

    async def scenario(d: Any) -> None:
        d.session.push(
            results=(bench_row(7, "x", 9.0, refused=("partial result: the link was lost",)),)
        )
        d.app.main.controllers.bench.warn_if_result_rejected(7)
        await d.until(lambda: "! result 7 is rejected: partial result: the link" in d.text)

    drive(scenario)
