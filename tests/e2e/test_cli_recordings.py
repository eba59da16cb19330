"""`workbench record` and `workbench replay` as processes, and the history that a killed screen
leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command_line import CommandLine

from workbench.store import recording
from workbench.store.recording import Cell, Infos


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, before=("--simulate", "four-pcie"))


@pytest.mark.slow
def test_a_recording_has_readings_of_all_gpus_and_says_that_they_are_simulated(
    cli: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    written = cli.ok("record", str(path), "--seconds", "3")
    assert written["written"] == str(path) and written["lines"] >= 2
    header, items = recording.open_recording(path)
    found = list(items)
    cells = [item for item in found if isinstance(item, Cell)]
    assert header.simulated and header.host == "sim:four-pcie" and len(cells) == written["lines"]
    assert {gpu for gpu, _ in cells[-1].values} == {0, 1, 2, 3}
    (infos,) = [item for item in found if isinstance(item, Infos)]
    assert infos.infos[3].power_max_w == 250.0 and path.stat().st_mode & 0o077 == 0

    again = cli("record", str(path), "--seconds", "3")
    assert again.code == 2 and "exists" in again.err
    # the recording session kept them too
    exported = cli.ok("record", str(tmp_path / "b.jsonl"), "--last", "600")
    assert exported["lines"] >= written["lines"] - 1
    _, kept = recording.open_recording(tmp_path / "b.jsonl")
    assert any(isinstance(item, Infos) and len(item.infos) == 4 for item in kept)


def test_replay_needs_a_terminal_and_a_recording(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    wrong = cli("replay", str(tmp_path / "x"))
    assert wrong.code == 2 and "is not a recording of Workbench" in wrong.err
    none = cli("record", str(tmp_path / "y"), "--last", "60")
    assert (
        none.code == 2
        and ("no history of sim:four-pcie is kept") in none.err
        and not (tmp_path / "y").exists()
    )


@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_ends_a_recording_and_keeps_it(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    argv = [sys.executable, "-m", "workbench", "--simulate", "four-pcie", "record", str(path)]
    child = subprocess.Popen(
        argv,
        env={**os.environ, **cli.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text().count('"t":') > 2):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=60)
    assert child.returncode == 130 and "workbench replay" in out, out
    assert f"interrupted: {path} has what was recorded" in said
    assert any(isinstance(item, Cell) for item in recording.open_recording(path)[1])
