"""The page of models: what is on a host, hashes, a copy to another host, a download, and its
cancellation."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from support.model_cache import COMMIT, in_directory, in_hub, model_files
from support.real_screen import RealScreen, shown

HUNG = """#!/bin/sh
echo "Fetching 5 files: 20%"
echo $$ >"$HF_HOME/pid"
exec sleep 600
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the hub's cache of this machine. hosts.toml has a second name of this machine, with a
    cache of its own."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    file = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "hosts.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    models = tmp_path / "my models"
    file.write_text(
        f'[hosts.other]\nssh = "local"\nmodels = ["{models}"]\nenv = {{ HF_HOME = '
        f'"{tmp_path / "other"}" }}\n'
    )
    return tmp_path / "hf" / "hub"


@pytest.mark.parametrize("size", [pytest.param((120, 40), marks=pytest.mark.slow), (80, 24)])
def test_a_model_is_listed_hashed_and_copied(
    hub: Path, tmp_path: Path, size: tuple[int, int]
) -> None:
    in_hub(hub)
    in_directory(tmp_path / "my models" / "a [red]model[/]")

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.telemetry is not None)
        await s.press("C")
        await s.until("Models on sim:four-pcie", "org/tiny", "complete", "c Copy", "5 files")
        await s.press("enter")
        await s.until(
            "Files of org/tiny",
            "V in the list of models hashes every byte",
            "config.json",
            "not hashed",
        )
        await s.press("escape", "V")
        await s.until(
            "ok every byte was hashed; 2 files compared", "org/tiny on sim:four-pcie is complete"
        )
        await s.press("escape", "c")
        await s.until("Copy org/tiny to another host", "to host")
        await s.press("o", "enter")  # of the hosts, "other"
        await s.until("is at ", "5 files", seconds=40)
        copied = tmp_path / "other" / "hub" / "models--org--tiny" / "snapshots" / COMMIT
        assert {str(f.relative_to(copied)) for f in copied.rglob("*") if f.is_file()} == set(
            model_files()
        )
        await s.press("a")
        await s.until("Models on all hosts", " other", "a [red]model[/]")
        await s.press("a")
        await s.until("Models on sim:four-pcie", lambda: "a [red]model[/]" not in s.text)
        await s.press("escape")
        await s.until(lambda: "Models on" not in s.text)

    shown(scenario, size=size)


def test_a_damaged_file_is_named(hub: Path) -> None:
    snapshot = in_hub(hub)
    shard = (snapshot / "model-00001-of-00002.safetensors").resolve()
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.telemetry is not None)
        await s.press("C")
        await s.until("org/tiny")
        await s.press("V")
        await s.until(
            "org/tiny on sim:four-pcie is damaged", "1 file has other bytes than the hub names"
        )

    shown(scenario)


@pytest.mark.slow
def test_a_download_goes_on_behind_other_pages_and_is_cancelled(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "hf").write_text(HUNG)
    (programs / "hf").chmod(0o755)
    hub.mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.telemetry is not None)
        await s.press("C")
        await s.until("No models on this host")
        await s.press("n")
        await s.until("Download to sim:four-pcie", "ORG/NAME")
        await s.press("enter")
        await s.until("enter the id of a model")
        await s.press(*"org/new", "enter")
        await s.until("downloading org/new  Fetching 5 files: 20%", (hub.parent / "pid").exists)
        await s.press("n", *"org/second", "enter")
        await s.until("downloading org/new is not finished")
        await s.press("escape", "escape", "q")
        await s.until("Leave Workbench", "downloading org/new is not finished")
        await s.press("escape")
        pid = int((hub.parent / "pid").read_text())
        await s.press("K")
        await s.until("cancelled: downloading org/new", lambda: s.state.host.model_work is None)
        await s.until(lambda: not psutil.pid_exists(pid))

    shown(scenario, size=(80, 24))


def test_a_host_that_hangs_keeps_no_key_from_its_work(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_hub(hub)
    (tmp_path / "user" / ".ssh").mkdir(parents=True)
    (tmp_path / "user" / ".ssh" / "config").write_text("Host hung\n  ProxyCommand sleep 600\n")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    file = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "hosts.toml")
    file.write_text(file.read_text() + '[hosts.hung]\nssh = "hung"\n')

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.telemetry is not None)
        await s.press("C")
        await s.until("org/tiny")
        await s.press("a")
        await s.until("looking for models: ")
        await s.press("a")  # the hosts that hang are left
        await s.until("Models on sim:four-pcie", "org/tiny")
        await s.press("escape", "2")
        await s.until(
            lambda: "Models on" not in s.text and s.app.main.panes.active == "launch", seconds=5
        )

    shown(scenario)
