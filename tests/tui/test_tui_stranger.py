"""Defects that a stranger met while walking through README.md's loop beside other users of the
machine."""

from __future__ import annotations

import os
import re
import socket
import threading
from pathlib import Path

import pytest
from support.real_screen import PRESET, RealScreen, on_free_port, shown
from support.serving import free_port
from textual import events
from textual.app import ComposeResult

from workbench.model.settings import GpuSettings
from workbench.store.presets import PresetLibrary
from workbench.tui.screen import MainScreen


def _port_of_preset() -> int:
    own = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "presets", f"{PRESET}.toml")
    return next(
        int(line.split("=")[1])
        for line in own.read_text().splitlines()
        if line.startswith("port = ")
    )


def _named_free_port(text: str) -> int:
    """Return the free port that the start page names; 0 if it names none."""
    found = re.search(r"set another port:\s+(\d+) is free", text.replace("│", " "))
    return int(found[1]) if found else 0


@pytest.mark.slow
def test_a_start_that_cannot_succeed_is_not_offered_until_its_cause_is_gone() -> None:
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", _port_of_preset()))
            taken.listen()
            await s.load()
            await s.press("s")
            port = _port_of_preset()
            await s.until(
                f"port {port} is in use by process {os.getpid()}",
                lambda: _named_free_port(s.text) > port,
            )
            await s.press("enter")
            await s.until("is in use", "esc back to the plan")
            await s.press("escape", "b")
            await s.until("there is no server to benchmark", "press s to start a server")
        s.session.plans.set_flag("port", str(free_port()))
        await s.press("s", "enter")
        await s.until("STARTING", lambda: "is in use" not in s.text)

    shown(scenario)


@pytest.mark.slow
def test_an_altered_setting_is_named_once_with_its_values_at_80_columns() -> None:
    """It stood in two rows, and in one of them without its values."""

    async def scenario(s: RealScreen) -> None:
        await s.until("/250W")
        await s.session.gpu.apply_settings(GpuSettings(power_limit_w=170.0), None)
        await s.until(lambda: "power limit 250 → 170 W" in s.row(0))
        s.session.core.update(gpu_findings=tuple((gpu, "limit 170 W ok") for gpu in range(4)))
        text = await s.until("GPU0-3 limit 170 W ok")
        assert text.count("250 → 170 W") == 1 and "…" not in s.row(1)
        await s.press("F")
        await s.until(lambda: s.row(2).startswith("0 "))
        assert "power limit 250 → 170 W" in s.row(0) and "…" not in s.row(1)
        await s.session.gpu.apply_settings(GpuSettings(power_limit_w=200.0), 2)
        await s.until(lambda: "GPU0,1,3 power limit 250 → 170 W +1" in s.row(0))

    shown(scenario, size=(80, 24))


def test_stale_readings_are_explained() -> None:
    """The GPUs pane said how old the readings were, and not why."""

    async def scenario(s: RealScreen) -> None:
        await s.until("/250W")
        await s.session.telemetry.stop()
        s.session.core.update_host(telemetry_problem="the telemetry agent sent nothing for 10 s")
        s.session.core.update(telemetry_monotonic_s=s.state.telemetry_monotonic_s - 20)
        await s.press("6")
        await s.until("STALE: the telemetry agent sent nothing for 10 s")

    shown(scenario)


def test_a_key_that_is_typed_before_the_screen_is_mounted_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """p, typed while the screen opened, ended in "Can't mount widget(s)"; a key must not be lost
    either."""
    compose = MainScreen.compose

    def typed_meanwhile(self: MainScreen) -> ComposeResult:
        self.app.post_message(events.Key("p", "p"))
        yield from compose(self)

    monkeypatch.setattr(MainScreen, "compose", typed_meanwhile)

    async def scenario(s: RealScreen) -> None:
        await s.press("t", "p", "4")
        await s.until("1 Presets  /tp4")

    shown(scenario)


def test_the_palette_says_that_nothing_matches() -> None:
    """It showed an empty box."""

    async def scenario(s: RealScreen) -> None:
        await s.press("colon", *"xqzxqz")
        await s.until("xqzxqz", "nothing in the list matches")

    shown(scenario)


def test_the_keys_of_the_launch_pane_without_a_plan() -> None:
    """N ended in an IndexError."""

    async def scenario(s: RealScreen) -> None:
        await s.press("2")
        for key in ("n", "N", "o", "a", "u", "e", "v", "enter"):
            await s.press(key)
            await s.until("no plan yet")

    shown(scenario)


def test_the_key_that_opens_the_search_is_no_letter_of_it() -> None:
    """`p` opens the search of presets, beside which the pane says "/ find"."""

    async def scenario(s: RealScreen) -> None:
        await s.press("p", "slash", "d", "p", "4", "enter")
        await s.until("$ vllm serve")

    shown(scenario)


def test_enter_that_was_typed_before_the_terminal_was_taken_over_is_enter() -> None:
    """The line discipline had made a line feed of it, and p, a name and enter, typed early, loaded
    nothing."""

    async def scenario(s: RealScreen) -> None:
        await s.press("p", "d", "p", "4", "ctrl+j")
        await s.until("$ vllm serve")

    shown(scenario)


def test_s_right_after_a_preset_is_loaded_shows_its_plan() -> None:
    """The preset was loaded in the background, and s of the same packet said that there is no plan
    to start."""

    async def scenario(s: RealScreen) -> None:
        await s.until("/250W")
        for key in ("p", "d", "p", "4", "enter", "s"):
            s.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await s.until("Start vllm", "enter start")

    shown(scenario)


def test_enter_waits_for_presets_that_have_not_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name and enter, typed before the presets had been read, did nothing."""
    asked = threading.Event()
    read = PresetLibrary.list

    def late(self: PresetLibrary) -> object:
        asked.wait(10)
        return read(self)

    async def scenario(s: RealScreen) -> None:
        for key in ("p", "d", "p", "4", "enter", "s"):
            s.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await s.until("1 Presets  /dp4")
        monkeypatch.setattr(PresetLibrary, "list", read)
        asked.set()
        await s.until("Start vllm", "enter start")

    monkeypatch.setattr(PresetLibrary, "list", late)
    shown(scenario)


@pytest.mark.slow
def test_a_key_that_is_typed_while_the_screen_leaves_is_dropped() -> None:
    """It ended in "Can't mount widget(s)", and left a crash file."""

    async def scenario(s: RealScreen) -> None:
        await s.until("/250W")
        s.app.exit()
        await s.app.on_event(events.Key("p", "p"))
        assert not s.app.main.query("SearchEntry")

    shown(scenario)
