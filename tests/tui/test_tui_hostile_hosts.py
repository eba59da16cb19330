"""Hosts, clusters and labels with hostile names, on the pages that list, check and show them."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path

import pytest
from support.real_screen import RealScreen, shown

MARKUP = "[red]x[/red] [link=file:///etc/passwd]y[/link] [@click=quit] [/nothing"
LONG = "a" * 253
LABELS = {
    "one": MARKUP,
    "two": "\x1b[31mred\x1b]0;title\x07 a\nb\tc \u202egnol",
    "three": "ü" * 5000,
    LONG: "x" * 300,
}
NODES = ("one", "[red]n[/red]", "no-such-host.invalid", LONG)


@pytest.fixture(autouse=True)
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "hosts.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    hosts = "".join(
        f'[hosts."{n}"]\nssh = "local"\nlabel = {json.dumps(label)}\n'
        for n, label in LABELS.items()
    )
    wrong = (
        f'[hosts.{json.dumps(MARKUP)}]\nssh = "a"\n[hosts."\\u001b[31m"]\nmodels = '
        f"[{'1, ' * 500}1]\n"
    )
    nodes = json.dumps(list(NODES))
    file.write_text(
        f"{hosts}{wrong}[clusters.bad]\nlabel = {json.dumps(MARKUP)}\nnodes = {nodes}\n"
        f'[clusters.odd]\nlabel = "{"y" * 400}"\nnodes = ["one", "{LONG}"]\n'
    )
    ssh = Path.home() / ".ssh" / "config"
    ssh.parent.mkdir(parents=True, exist_ok=True)
    names = " ".join(f"alias{number}" for number in range(20_000))
    ssh.write_text(
        f"Host good [red]bad[/red] \x1b[31mred \udc80 {'b' * 9999} {names}\n",
        errors="surrogateescape",
    )


def plain(text: str) -> bool:
    return all(
        char.isprintable() and char != "\u202e" for line in text.splitlines() for char in line
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_hostile_names_are_text_on_every_page_of_hosts(size: tuple[int, int]) -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.telemetry is not None)
        await s.press("h")
        for name, label in (
            ("one", "[red]x[/red]"),
            ("two", "red a b"),
            ("three", "üüü"),
            (LONG[:9], "xxx"),
        ):
            await s.press(*name)
            text = await s.until("Work on another host", label)
            assert plain(text) and "title" not in text
            await s.press(*["backspace"] * len(name))
        await s.press(*"cluster:bad", "ctrl+t")
        text = await s.until("[red]n[/red]' is not a valid host name", seconds=40)
        assert plain(text)
        await s.press("h", *"cluster:odd", "ctrl+t")
        text = await s.until("Check of cluster:odd: ", seconds=60)
        assert plain(text)
        await s.press("escape", "h", *"good")
        await s.until("good", "ssh config")
        await s.press("escape", "O")
        text = await s.until("hosts live", "one", seconds=40)
        assert plain(text)
        await s.press("slash", *string.ascii_letters[:3], "escape", "escape")
        await s.until(lambda: s.app.screen is s.app.main)

    shown(scenario, size=size)
