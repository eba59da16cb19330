"""The screen on the real session of a simulated host: hosts out of reach, forms, trials, the whole
log, messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.real_screen import RealScreen, on_free_port, shown
from textual import events

from workbench.hosts.base import HostUnreachable
from workbench.model.errors import SettingsError
from workbench.model.findings import Level
from workbench.session.session import Session
from workbench.tui.widgets.bars import Footer


class Unreachable:
    """A host whose link fails until the test lets it connect."""

    def __init__(self, host: Any) -> None:
        self.host, self.tries, self.closed = host, 0, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)

    async def connect(self) -> None:
        self.tries += 1
        if self.closed:
            raise HostUnreachable("no connection: no route to it", host=self.host.name)
        await self.host.connect()


def test_a_host_out_of_reach_keeps_the_library_says_so_and_is_tried_again_by_a_key() -> None:
    """D7."""
    host = Unreachable(Session.of_host(None, "four-pcie").host)

    async def scenario(s: RealScreen) -> None:
        text = await s.until("NOT CONNECTED (R retries)", "llamacpp-gguf", "is not connected")
        assert "waiting for the first reading" not in text and "No presets" not in text
        before = host.tries
        await s.press("R")
        await s.until(lambda: host.tries > before, "press R to connect again")
        host.closed = False
        await s.press("R")
        await s.until("4 x A100", lambda: "NOT CONNECTED" not in s.text, seconds=4.5)
        await s.press("R")
        await s.until("is connected")

    shown(scenario, session=Session(host))  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_error_of_the_driver_is_shown_at_its_field() -> None:
    """The form stays open, with the cursor in the wrong field."""

    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100")
        await s.press("g")
        await s.until("150..250 W")
        await s.press("tab", "2", "0", "0", "tab", *"9000", "enter")
        await s.until("x GPU clocks:")
        form = s.app.screen
        assert s.app.focused is form.inputs["gpu-clocks"] and form.values["power-limit"] == "200"  # type: ignore[attr-defined]
        await s.press("shift+tab", "shift+tab", "9")  # a GPU that is not there
        text = await s.until("no such GPU")
        assert "not supported" not in text
        await s.press("enter")
        await s.until("GPU: expected “all” or a number 0..3, got 9")
        assert s.app.focused is form.inputs["gpu"]  # type: ignore[attr-defined]

    shown(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_with_a_value_out_of_range_keeps_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        await s.press("S")
        await s.until("< power limit >")
        await s.press(*"1,2,4", "enter")  # in the first field: the digits are values
        await s.until("1 is outside of 150..250 W of GPU0")
        form = s.app.screen
        assert form.values["values"] == "1,2,4"  # type: ignore[attr-defined]
        await s.press("shift+tab", "c")
        await s.until("< concurrency >")
        await s.press("tab", *"1,2")  # typed in place of the suggestion
        assert form.values["values"] == "1,2"  # type: ignore[attr-defined]
        await s.press("shift+tab", "f", "tab", *"enforce-eager=7,8", "enter")
        await s.until("x flags:")
        assert s.app.screen is form
        await s.press("escape")

    shown(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_the_search_for_users_starts_from_the_form_of_sweeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 0.0)
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        await s.press("S", "u")
        await s.until("< users >", "ttft<=500@p95, tpot<=40@p95", "Doubles the users from 8")
        await s.press("tab", *"e2e<=1", "enter")
        await s.until("does not say for how many requests")
        await s.press(*"@p50", "enter")
        await s.until("Sweep of users", "8 users")
        await s.until("Capacity: fails at ", seconds=90)
        await s.press("K")
        await s.until("= stopped")
        sweep = s.session.state.sweep
        assert sweep is not None and sweep.kind == "users"
        assert {p.state for p in sweep.points} <= {"done", "skipped"}
        assert any(p.slo_verdict == "fails" for p in sweep.points)

    shown(scenario)


@pytest.mark.slow
def test_keys_typed_while_the_commands_are_looked_up_go_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Enter went to the pane below and opened a result (root-guard 12)."""

    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100")
        held, planned = asyncio.Event(), s.session.gpu.apply_settings

        async def slow(*words: Any, **options: Any) -> Any:
            await held.wait()
            return await planned(*words, **options)

        monkeypatch.setattr(s.session.gpu, "apply_settings", slow)
        await s.press("2", "g", "tab", *"200", "enter")
        await s.until("looking up the commands")
        await s.press("enter", "q", "x", "enter")
        held.set()
        await s.until("run them")
        assert len(s.app.screen_stack) == 2 and not s.state.alterations
        await s.press("escape")
        assert s.app.screen is s.app.main
        await s.press("f1")  # keys are taken again
        await s.until("pick a preset: type letters")

    shown(scenario)


@pytest.mark.slow
def test_an_invalid_id_keeps_the_typed_values() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.load()
        await s.press("w")
        await s.press(*"Bad Id!", "tab", *"my title", "enter")
        await s.until(lambda: getattr(s.app.screen, "problem", ""))
        assert s.app.screen.values == {"id": "Bad Id!", "title": "my title"}  # type: ignore[attr-defined]
        s.app.screen.set_field("id", "mine")  # type: ignore[attr-defined]
        await s.press("enter")
        await s.until("saved:", lambda: any(p.id == "mine" for p in s.state.presets))
        # the plan is that preset now, and has no change to it
        assert (s.state.plan.plan.preset_id, s.state.plan.edit_count) == ("mine", 0)
        assert "my title" in s.state.plan.title

    shown(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_trial_counts_down_on_the_pages_over_it() -> None:
    """D11: the page said "in force" while the settings were reverted under it."""

    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100")
        await s.press("g", "tab", *"200", "tab", *"900,1200", *["tab"] * 5, *"9", "enter")
        await s.until("run them")
        await s.press("enter")
        text = await s.until("on trial: reverted in", "T Keep  r Revert", "not checked", "GPU0-3")
        assert text.count("a clock lock cannot be read back") == 1  # four GPUs alike are told once
        await s.until("have been reverted since", lambda: not s.state.alterations, seconds=30)
        await s.press(
            "escape", "g", "tab", *"200", "tab", *"900,1200", *["tab"] * 5, *"60", "enter"
        )
        await s.until("run them")
        await s.press("enter")
        await s.until("on trial: reverted in")
        await s.press("T")
        await s.until(
            lambda: s.state.guard and s.state.guard.trial_left_s is None,
            "the trial is over and the GPU settings stay",
        )
        await s.press("r")
        await s.until(lambda: not s.state.alterations)

    shown(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_the_log_is_searched_in_its_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pane searched only the lines that it kept (architecture 2)."""
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        log = Path(s.session.servers.supervisor.status(s.state.run_id).run_dir, "log")
        ring = s.session.servers.supervisor.log(s.state.run_id)
        lines = [f"INFO line {n}\n" for n in range(40_000)]
        with log.open("a") as file:
            file.writelines(
                [*lines[:9_000], "a needle of long ago\n", *lines[9_000:], "NEEDLE now\n"]
            )
        await s.until(lambda: ring.dropped and ring.find("needle now") is not None, seconds=30)
        await s.press("3", "slash", *"needle", "enter")
        await s.until("“needle”: found in 2 lines of the whole log", "esc, then m to list all")
        await s.press("escape", "m")
        await s.until("a needle of long ago", "NEEDLE now")
        await s.press("escape", "slash", *"long ago", "enter")
        await s.until("none of which is in the Log pane")
        await s.press("escape", "slash", *"no such words", "enter")
        await s.until("“no such words” is not in the log")

    shown(scenario)


def test_a_message_about_the_link_does_not_replace_an_error() -> None:
    """root-guard 11."""

    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100")

        async def cut() -> None:
            with s.session.core.show_as_busy("reverting GPU settings"):
                raise SettingsError("the link was lost while nvidia-smi ran", next_step="r again")

        s.app.main.services.run_in_background(cut())
        await s.until("the link was lost while nvidia-smi ran")
        s.session.core.notify(Level.INFO, "the link to boxb is back after 0 s")
        await s.press("1")
        text = await s.until("the link was lost while nvidia-smi ran")
        assert "is back after" not in text
        await s.press("l")
        await s.until("# reverting GPU settings", "failed: the link was lost")
        await s.press("escape", "escape")
        s.session.core.notify(Level.INFO, "the link to boxb is back after 0 s")
        await s.until("is back after")

    shown(scenario)


@pytest.mark.slow
def test_the_wheel_back_at_the_end_follows_the_log_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        await s.press("3")
        pane = s.pane("log")
        wheel = {
            "x": 1,
            "y": 1,
            "delta_x": 0,
            "button": 0,
            "shift": False,
            "meta": False,
            "ctrl": False,
        }
        await s.until(lambda: len(pane.view) > pane.content_size.height)
        pane.on_mouse_scroll_up(events.MouseScrollUp(pane, delta_y=-1, **wheel))  # type: ignore[arg-type]
        assert not pane.follow
        for _ in range(50):
            pane.on_mouse_scroll_down(events.MouseScrollDown(pane, delta_y=1, **wheel))  # type: ignore[arg-type]
        assert pane.follow

    shown(scenario, size=(120, 34))


@pytest.mark.parametrize("size", [(80, 24), (80, 40)])
def test_explain_and_quit_are_in_the_footer_and_the_first_keys_are_shown(
    size: tuple[int, int],
) -> None:
    async def scenario(s: RealScreen) -> None:
        text = await s.until("? Explain", "q Quit", "pick a preset", "start its server")
        assert text.splitlines()[0].count("local") <= 1

    shown(scenario, size=size)


def test_progress_is_whole_beside_a_long_host_name() -> None:
    """D13: "~ benc...", "~ swe..."."""

    async def scenario(s: RealScreen) -> None:
        await s.load()
        s.session.core.update_host(
            name="a-host-with-quite-a-long-name.example.org", simulated=None, link="connected"
        )
        s.session.core.update(busy=("experiment of two configurations",))
        await s.until("~ experiment of two configurations")

    shown(scenario, size=(80, 24))


def test_the_gpu_key_before_the_first_reading_says_that_there_is_none() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.session.telemetry.is_reading)
        await s.session.telemetry.stop()  # a reading that came now would open the form
        s.session.core.update(telemetry=None, host=replace(s.state.host, link="connecting"))
        s.app.main.services.run_in_background(s.app.main.controllers.gpu.open_settings_form())
        await s.until("the GPUs have not been read yet")

    shown(scenario)


def test_a_reading_that_comes_while_the_screen_is_removed_is_not_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Textual removes a screen's children before it stops the screen."""
    ended, drawn = [], []

    def reading_comes(footer: Footer) -> None:
        bridge = footer.app.main.bridge
        monkeypatch.setattr(bridge.viewer, "draw_changes", lambda *what: drawn.append(what))
        bridge._draw_collected_changes()
        ended.append(True)

    monkeypatch.setattr(Footer, "on_unmount", reading_comes, raising=False)

    async def scenario(s: RealScreen) -> None:
        await s.until("? Explain")

    shown(scenario)
    assert ended and not drawn


@pytest.mark.slow
def test_an_experiment_says_before_its_start_that_it_compares_the_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        s.session.plans.set_flag("kv-cache-dtype", "fp8")
        await s.press("X")
        await s.until("how sure?", "A and B differ in kv-cache-dtype")
        await s.press("down", "down", "down", "enter")  # more choices
        await s.until("A/B experiment", "A and B differ in kv-cache-dtype", "compared")
        await s.press("escape")

    shown(scenario)
