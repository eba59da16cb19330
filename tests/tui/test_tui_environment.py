"""Differences between terminals: 256 colours, ASCII, the clipboard inside and outside tmux."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.color import Color, ColorSystem

from workbench.tui import cells, clipboard, glyphs, theme

ROOT = Path(__file__).resolve().parents[2]


DARK = theme.PALETTES["dark"]


@pytest.mark.parametrize("colour", sorted({*DARK.grounds.values(), DARK.field, DARK.line}))
def test_grounds_are_the_same_in_256_colours(colour: str) -> None:
    """D9: a dark blue became a glaring one in tmux."""
    exact = Color.parse(colour)
    shown = exact.downgrade(ColorSystem.EIGHT_BIT)
    assert shown.get_truecolor() == exact.get_truecolor()


@pytest.mark.parametrize(
    ("env", "ascii_signs"),
    [
        ({"LANG": "C.UTF-8"}, False),
        ({"LANG": "de_DE.utf8@euro"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # as Python itself sets it
        ({"LC_CTYPE": "C.UTF-8"}, True),
        ({}, True),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.ISO-8859-1"}, True),
        ({"LANG": "C.UTF-8", "WORKBENCH_ASCII": "1"}, True),
        ({"LANG": "C", "WORKBENCH_ASCII": "0"}, False),
    ],
)
def test_signs_follow_the_locale(env: dict[str, str], ascii_signs: bool) -> None:
    assert (glyphs.choose_glyphs(env) is glyphs.ASCII) is ascii_signs


def test_plain_signs_keep_their_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "“a” … · ≥ ± 95 °C 模型 ▁█ ●"
    assert glyphs.ascii_if_needed(text) == text
    monkeypatch.setattr(glyphs, "G", glyphs.ASCII)
    assert glyphs.ascii_if_needed(text).isascii() and len(
        glyphs.ascii_if_needed(text)
    ) == cells.width_of(text)


# a real terminal multiplexer
class Tmux:
    def __init__(self, folder: Path) -> None:
        self.argv = ("tmux", "-S", str(folder / "tmux"), "-f", "/dev/null")

    def __call__(self, *words: str) -> str:
        done = subprocess.run([*self.argv, *words], capture_output=True, text=True, timeout=20)
        return done.stdout

    def open(self, command: str, size: tuple[int, int] = (100, 30), **env: str) -> None:
        given = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        self("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), *given, command)

    def until(self, wanted: Callable[[str], Any], seconds: float = 30.0) -> str:
        deadline = time.monotonic() + seconds
        while not wanted(text := self("capture-pane", "-p")):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        return text


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux")
    one = Tmux(tmp_path)
    yield one
    one("kill-server")


def command(*words: str) -> str:
    return f"cd {ROOT} && {sys.executable} -m workbench {' '.join(words)}"


@pytest.mark.slow
def test_copying_in_tmux_reaches_its_buffer(tmux: Tmux) -> None:
    """D8: with tmux's defaults OSC 52 of a program is dropped, and the screen said “copied”."""
    tmux.open(command("demo --host-profile four-pcie"), LANG="C.UTF-8")
    tmux.until(lambda t: "qwen3-vl-2b-tp4-eager" in t)
    tmux("send-keys", "p", "t", "p", "4", "Enter")
    tmux.until(lambda t: "$ vllm serve" in t)
    tmux("send-keys", "y")
    tmux.until(lambda t: "copied into tmux's buffer" in t)
    assert "vllm serve" in tmux("show-buffer")
    tmux("set", "-s", "set-clipboard", "off")
    tmux("send-keys", "y")
    tmux.until(lambda t: "set-clipboard is off" in t)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_the_c_locale_is_drawn_in_ascii(tmux: Tmux, size: tuple[int, int]) -> None:
    """D10: the sparklines were underscores."""
    tmux.open(command("demo").replace("&& ", "&& env -u LC_ALL -u LC_CTYPE LANG=C "), size)
    tmux.until(lambda t: "GPU" in t and "SIMULATED" in t)
    for keys in ("1", "2", "g", "Escape", "?"):
        tmux("send-keys", keys)
    text = tmux.until(lambda t: "pick a preset" in t)
    assert text.isascii(), re.findall(r".*[^\x00-\x7f].*", text)


async def _copied(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    sent: list[str] = []

    class App:
        def copy_to_clipboard(self, text: str) -> None:
            sent.append(text)

    return await clipboard.copy_to_clipboard_and_describe(App(), "vllm serve", env), sent  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"TERM": "xterm-256color"}, clipboard.BY_TERMINAL),
        ({"TERM": "tmux-256color"}, clipboard.IN_MULTIPLEXER),  # ssh inside tmux
        ({"STY": "1.pts", "TERM": "screen"}, clipboard.IN_MULTIPLEXER),
        ({"TMUX": "/nowhere,1,0"}, clipboard.IN_MULTIPLEXER),
    ],
)
def test_a_copy_reports_its_outcome(
    env: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setitem(os.environ, "TMUX", "/nowhere,1,0")
    assert asyncio.run(_copied(env, monkeypatch)) == (said, ["vllm serve"])
