"""Servers as units of a real systemd, in a box of its own: all of systemd_inside.py, and a reboot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import fake_engine
from support.procs import eventually
from support.serving import free_port
from support.systemd_box import REPOSITORY, Box, systemd_box

from workbench.sim import engine_server

pytestmark = pytest.mark.slow
INSIDE = REPOSITORY / "tests" / "e2e" / "systemd_inside.py"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with systemd_box(tmp_path_factory.mktemp("systemd")) as one:
        yield one


def inside(box: Box, *words: str, **env: str) -> None:
    """Run tests of systemd_inside.py in the box."""
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        str(INSIDE),
        *words,
    ]
    home = str(box.directory)
    try:
        box(*argv, f"--basetemp={home}/inside", HOME=home, PYTHONDONTWRITEBYTECODE="1", **env)
    except AssertionError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_units_in_the_box(box: Box) -> None:
    inside(box)


@pytest.mark.timeout(600)
@pytest.mark.long
def test_units_of_a_user_in_the_box(box: Box) -> None:
    box.start_user_manager()
    inside(box, SCOPE="user", XDG_RUNTIME_DIR="/run/user/0")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_fifty_killed_keepers(box: Box) -> None:
    inside(box, "-k", "killed", KILLS="50", SEED=os.environ.get("SEED", "7"))


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("installed", ["no", "boot"])
def test_a_reboot(box: Box, installed: str) -> None:
    """A transient unit is gone after a reboot, and its run says so. An installed one runs again, as
    the same run."""
    home, port = box.directory, str(free_port())
    env = {
        name: f"{home}/{name}"
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    }
    program = fake_engine.install(home / "bin")

    def workbench(*words: str) -> dict[str, object]:
        out = box(
            sys.executable,
            "-m",
            "workbench",
            *words,
            "--json",
            PYTHONPATH=str(REPOSITORY),
            HOME=str(home),
            **env,
        )
        document: dict[str, object] = json.loads(out)
        return document

    options = [
        "--as",
        "systemd",
        "--run-option",
        "scope=system",
        "--run-option",
        f"installed={installed}",
    ]
    plan = [
        "vllm-any",
        "--var",
        "model=org/model",
        "--set",
        f"port={port}",
        "--executable",
        str(program),
    ]
    started = workbench("start", *plan, *options, "--wait", "--timeout", "60")
    assert started["state"] == "ready"
    if installed == "boot":  # the box boots to this target and no further
        box("systemctl", "add-wants", "basic.target", str(started["handle"]))
    box.restart()

    def run() -> dict[str, object]:
        listed = workbench("servers")["servers"]
        assert isinstance(listed, list)
        return next(one for one in listed if one["run_id"] == started["run_id"])

    after = run()
    if installed == "no":
        assert (after["state"], after["alive"]) == ("crashed", False)
        assert ("is gone: it was stopped from outside, or the host was restarted") in str(
            after["reason"]
        )
        return
    for _ in range(20):
        if after["state"] == "ready":
            break
        after = run()
    assert (after["state"], after["others"]) == ("ready", False)
    assert workbench("stop", str(started["run_id"]))["state"] == "stopped"
    assert box("systemctl", "is-active", str(started["handle"]), check=False).strip() == "inactive"


def night_of_a_timer(box: Box, home: Path, add: tuple[str, ...], within_s: float) -> dict[str, Any]:
    """Add a watch, install its timer, and return the entry of the night that the timer begins."""
    env = {
        name: f"{home}/{name}"
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    }

    def workbench(*words: str) -> str:
        argv = (sys.executable, "-m", "workbench", *words)
        return box(*argv, PYTHONPATH=str(REPOSITORY), HOME=str(home), **env)

    # the whole minute before it: at least 90 s to add the watch and install the timer
    at = box("date", "-d", "+150 seconds", "+%H:%M").strip()
    workbench(*add, "--nightly", at, "--set", f"port={free_port()}")
    workbench("watch", "install", "--system", "--yes")
    timer = f"workbench-watch-{at.replace(':', '')}.timer"
    assert box("systemctl", "is-enabled", timer).strip() == "enabled"
    night = home / "XDG_DATA_HOME" / "workbench" / "watches" / "1.json"

    def done() -> bool:
        return night.exists() and json.loads(night.read_text() or "{}").get("done", False)

    eventually(done, "the night that the timer begins", within_s)
    (entry,) = json.loads(night.read_text())["entries"]
    box("systemctl", "disable", "--now", timer)
    return dict(entry)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_timer_runs_the_watches(box: Box) -> None:
    """The candidate does not exist, so the night that the timer begins says so and ends at once."""
    add = ("watch", "add", "vllm-any", "--var", "model=org/model", "--candidate", "venv:/no/such")
    entry = night_of_a_timer(box, box.directory / "of the watches", add, 300.0)
    assert entry["state"] == "failed" and entry["error"], entry


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_timer_measures_a_night(box: Box) -> None:
    """Both arms are the same simulated engine, so the night has pairs and no alarm."""
    home = box.directory / "of-a-measured-night"
    program = home / "venv" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.symlink_to(Path(engine_server.__file__).with_name("bin") / "vllm")
    add = ("--simulate", "rtx-pro-6000", "watch", "add", "vllm-any", "--no-quality")
    load = ("--var", "model=Qwen/Qwen3-0.6B", "--requests", "8")
    entry = night_of_a_timer(box, home, (*add, *load, "--candidate", f"venv:{home}/venv"), 3500.0)
    assert entry["state"] == "no loss shown" and entry["simulated"], entry
    assert entry["first_id"] == 1 and entry["speed"] > 0 and entry["pinned_speed"] > 0
    assert entry["version"] == entry["pinned_version"] != ""


def test_no_engine_is_left_on_the_machine(box: Box) -> None:
    """The tests above run in this order: nothing of theirs may run still."""
    left = box("ps", "-eo", "args")
    assert not [line for line in left.splitlines() if "fake_engine" in line or "/bin/vllm" in line]
