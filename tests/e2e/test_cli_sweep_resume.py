"""Killed sweeps resume with the missing values, in the same record, and restore the previous state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import free_port

from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.store import paths

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]
Cli = Callable[..., Any]
PROFILE = "rtx-pro-6000"
PRO = ("--simulate", PROFILE)
WAIT_S = 120.0


@pytest.fixture
def settings_end(servers_end: None, cli: Cli) -> Iterator[None]:
    yield
    assert cli(*PRO, "gpu", "revert", "--json").document["ok"]


def limit_w() -> float | None:
    directory = f"{os.environ['XDG_STATE_HOME']}/workbench/sim/{PROFILE}/driver"
    return SimState(directory, profiles.get_profile(PROFILE)).settings()[0].limit_w


def record() -> dict[str, Any]:
    """Return the stored sweep as JSON, or an empty dict if none is stored."""
    path = paths.data_dir() / "sweeps" / "1.json"
    text = path.read_text() if path.exists() else ""
    return dict(json.loads(text)) if text else {}


def killed(when: Callable[[dict[str, Any]], object], *words: str) -> None:
    """Run a command until `when` is true of the stored sweep, then kill it with SIGKILL."""
    argv = [sys.executable, "-m", "workbench", *PRO, *words]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + WAIT_S
        while not when(record()):
            assert time.monotonic() < end and process.poll() is None, f"it did not come: {record()}"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)


def states(found: dict[str, Any]) -> list[str]:
    return [p["state"] for p in found.get("points", ())]


def measures(place: int) -> Callable[[dict[str, Any]], object]:
    """Return whether a value is measured and the value at `place` is set on the GPU."""
    return lambda found: (
        states(found).count("done") == place and limit_w() == found["points"][place]["x"]
    )


def power_sweep(cli: Cli) -> tuple[str, ...]:
    run = cli(
        *PRO, "start", "vllm-any", "--set", f"port={free_port()}", "--wait", "--json"
    ).document["run_id"]
    shape = ("--settle", "0", "--seconds", "1", "--pairs", "2", "--runs", "2")
    return ("gpu", "sweep", "--power-limit", "500,400,300", run, *shape, "--yes", "--json")


def servers_on(cli: Cli) -> list[dict[str, Any]]:
    return [s for s in cli(*PRO, "servers", "--json").document["servers"] if s["alive"]]


@pytest.mark.long
def test_a_killed_power_sweep_and_its_killed_resume_end_in_one_record(
    cli: Cli, settings_end: None
) -> None:
    asked = power_sweep(cli)
    killed(measures(1), *asked)
    first = record()["points"][0]
    (kept,) = cli("sweep", "list", "--json").document["sweeps"]
    assert (kept["state"], states(kept)) == ("stopped", ["done", "skipped", "skipped"])
    assert (
        "to resume it: workbench --simulate rtx-pro-6000 gpu sweep resume 1"
        in cli("sweep", "show", "1").out
    )
    refused = cli("gpu", "sweep", "resume", "1", "--json")
    assert refused.code == 2 and "--yes" in refused.document["next_step"]

    killed(measures(2), "gpu", "sweep", "resume", "1", "--yes")
    # no guard has come yet: who resumes knows what was there at the start
    assert limit_w() == 300.0
    dry = cli("gpu", "sweep", "resume", "1", "--dry-run", "--json").document
    assert [s["label"] for s in dry["steps"]] == ["300 W", "back to the start"] and dry["commands"][
        -1
    ][-1] == "600"
    ended = cli("gpu", "sweep", "resume", "1", "--yes", "--json")  # its host is that of the record
    sweep = ended.document
    assert (ended.code, sweep["id"], states(sweep)) == (0, 1, ["done"] * 3) and sweep["points"][
        0
    ] == first
    assert all(len(p["result_ids"]) == 2 for p in sweep["points"]) and sweep["start"] is None
    assert "resumed: 2 of 3 values had been measured before" in sweep["notes"]
    assert any("in pairs" in note for note in sweep["notes"])
    assert (
        limit_w() in (600.0, None)
        and cli(*PRO, "gpu", "journal", "--json").document["entries"] == []
    )
    again = cli("gpu", "sweep", "resume", "1", "--yes", "--json")
    assert again.code == 2 and "sweep 1 is finished" in again.document["error"]
    assert len(cli("sweep", "list", "--json").document["sweeps"]) == 1


@pytest.mark.long
def test_only_one_process_resumes_a_sweep_and_only_if_nothing_has_changed(
    cli: Cli, settings_end: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = power_sweep(cli)
    killed(measures(1), *asked)
    argv = [sys.executable, "-m", "workbench", "gpu", "sweep", "resume", "1", "--yes", "--json"]
    both = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)
    ]
    said = [json.loads(process.communicate(timeout=WAIT_S)[0]) for process in both]
    (went_on,) = [d for d in said if "points" in d]
    (refused,) = [d for d in said if "error" in d and "points" not in d]
    assert states(went_on) == ["done"] * 3 and limit_w() in (600.0, None)
    assert any(
        why in refused["error"]
        # the lock is told by its process until its owner has written what it does
        for why in ("this host is being measured: ", "another Workbench is running")
    ), refused

    path = paths.data_dir() / "sweeps" / "1.json"
    whole = record() | {"state": "stopped"}
    whole["points"][2]["state"] = "skipped"

    def resumed(**changes: Any) -> dict[str, Any]:
        path.write_text(json.dumps(whole | changes))
        ran = cli("gpu", "sweep", "resume", "1", "--yes", "--json")
        assert ran.code != 0 and states(record())[2] == "skipped" and limit_w() in (600.0, None)
        return dict(ran.document)

    older = whole["spec"]["measured"] | {"driver": "1.2"}
    assert (
        "was measured with driver 1.2, and driver is "
        in resumed(spec=whole["spec"] | {"measured": older})["error"]
    )
    assert (
        "its GPU GPU-none is not on this host"
        in resumed(spec=whole["spec"] | {"gpus": ["GPU-none"]})["error"]
    )
    assert "an older Workbench stored it without its inputs" in resumed(spec=None)["error"]
    path.write_text(json.dumps(whole))
    (server,) = servers_on(cli)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        lost = cli("gpu", "sweep", "resume", "1", "--yes", "--json")
        assert lost.code == 1 and "its server cannot be measured any more" in lost.document["error"]
    cli(*PRO, "stop", server["run_id"])
    gone = cli("gpu", "sweep", "resume", "1", "--yes", "--json").document
    assert (
        "sweep 1 cannot be resumed: its server cannot be measured any more" in gone["error"]
        and "new sweep" in gone["next_step"]
    )
    assert cli("gpu", "sweep", "resume", "7", "--json").code == 2


@pytest.mark.long
def test_the_resume_of_a_killed_flag_sweep_restores_the_previous_server(
    cli: Cli, settings_end: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = f"port={free_port()}"
    cli(*PRO, "start", "vllm-any", "--set", port, "--set", "max-num-seqs=3", "--wait", "--json")
    shape = ("--requests", "16", "--max-tokens", "8", "--input-tokens", "16", "--concurrency", "8")
    start = ("--set", port, "--set", "max-num-seqs=1")  # any other is faster by far
    flags = (*start, "--flag", "max-num-seqs=4,8", "--pairs", "2", *shape, "--yes")
    killed(
        lambda found: states(found).count("done") == 1 and found["server"],
        "sweep",
        "vllm-any",
        *flags,
    )
    (left,) = servers_on(cli)
    assert left["run_id"] == record()["server"]
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        lost = cli("sweep", "resume", "1", "--json")
        assert (
            lost.code == 1 and (f"its run {left['run_id']} has no record") in lost.document["error"]
        )

    killed(
        lambda found: found["state"] == "running" and found["experiment_id"], "sweep", "resume", "1"
    )
    number = record()["experiment_id"]
    short = cli("sweep", "resume", "1", "--max-minutes", "0.0001", "--json")
    assert (
        short.code == 1
        and short.document["state"] == "stopped"
        and short.document["experiment_id"] == number
    )
    killed(
        lambda found: found["state"] == "running" and found["before"],
        "sweep",
        "resume",
        "1",
        "--yes",
    )
    ended = cli("sweep", "resume", "1", "--yes", "--json")
    sweep = ended.document
    assert (ended.code, sweep["state"], states(sweep)) == (0, "done", ["done"] * 3), sweep
    assert (
        sweep["experiment_id"] == number
        and sweep["confirmed"] is not None
        and sweep["server"] is None
    )
    assert cli("experiment", "show", str(number), "--json").document["pairs_done"] == 2
    (again,) = servers_on(cli)
    assert (
        any(f"started again as {again['run_id']}" in note for note in sweep["notes"])
        and sweep["before"] is None
    )
    argv = cli(*PRO, "servers", "--json").document["servers"]
    assert next(s for s in argv if s["run_id"] == again["run_id"])["port"] == int(
        port.removeprefix("port=")
    )
    wrong = cli("gpu", "sweep", "resume", "1", "--json")
    assert wrong.code == 2
