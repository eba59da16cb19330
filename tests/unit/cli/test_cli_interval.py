"""The interval between two GPU readings: from the option, else from config.toml, else one second."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from workbench.cli.parser import parse_command_line
from workbench.model.errors import InputError
from workbench.session.session import Session


@pytest.mark.parametrize(
    ("argv", "command", "target"),
    [
        (["--interval", "0.5"], "screen", None),
        (["--interval=0.5", "--mouse"], "screen", None),
        (["box.example", "--interval", "0.5"], "screen", "box.example"),
        (["demo", "--interval", "0.5"], "demo", None),
        (["--simulate", "gb10", "--interval", "0.5"], "screen", None),
    ],
)
def test_every_form_of_the_screen_accepts_an_interval(
    argv: list[str], command: str, target: str | None
) -> None:
    found = parse_command_line(argv)
    assert (found.command, found.interval, getattr(found, "target", None)) == (command, 0.5, target)


@pytest.mark.parametrize("text", ["0.1", "61", "x", "nan", "-1"])
def test_an_interval_out_of_range_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="is not a number of seconds"):
        parse_command_line(["demo", f"--interval={text}"])


@pytest.mark.parametrize(("given", "expected"), [(None, 0.3), (2.0, 2.0)])
def test_the_option_overrides_the_configured_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: float | None, expected: float
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    config = tmp_path / "XDG_CONFIG_HOME" / "workbench" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[ui]\nrefresh_s = 0.3\n")

    async def opened() -> float:
        session = Session.of_host(simulate="rtx-pro-6000")
        session.telemetry.interval_s = given
        await session.open()
        try:
            async with asyncio.timeout(30):
                while (await session.telemetry.start()).interval_s != expected:
                    await asyncio.sleep(0.02)
            return (await session.telemetry.start()).interval_s
        finally:
            await session.close()

    assert asyncio.run(opened()) == expected
