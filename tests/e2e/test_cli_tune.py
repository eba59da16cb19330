"""Tunes on a simulated card: the plan, the race, the final, the preset, and kills at any point."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import free_port

from workbench.store import paths

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]
Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")
LOAD = ("--concurrency", "8", "--requests", "16", "--max-tokens", "8", "--input-tokens", "32")
WAIT_S = 240.0


@pytest.fixture
def asked(servers_end: None) -> Iterator[tuple[str, ...]]:
    """The words of a tune of three candidates, one of which is much faster than the preset."""
    yield (
        *("tune", "vllm-any", "--set", f"port={free_port()}", "--set", "max-num-seqs=2"),
        *(*LOAD, "--starts", "16", "--no-quality"),
    )


def record() -> dict[str, Any]:
    path = paths.data_dir() / "sweeps" / "1.json"
    text = path.read_text() if path.exists() else ""
    return dict(json.loads(text)) if text else {}


def test_a_plan_names_candidates_and_what_is_left_out_and_starts_nothing(
    cli: Cli, asked: tuple[str, ...]
) -> None:
    plan = cli(*PRO, *asked, "--plan", "--json")
    assert plan.code == 0 and plan.document["simulated"] is True
    assert plan.document["starts_planned"] <= 16 and not record()
    words = [" ".join(one["sets"]) for one in plan.document["candidates"]]
    assert "max-num-seqs=8" in words and all(one["reason"] for one in plan.document["candidates"])
    reasons = {one["words"]: one["reason"] for one in plan.document["left_out"]}
    assert "no room in 16 starts" in reasons["async-scheduling=true"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_tune_goes_on_and_ends_with_a_preset_and_its_evidence(
    cli: Cli, asked: tuple[str, ...]
) -> None:
    """SIGKILL comes at times that nobody chose, in the race and in the final."""
    drawn = random.Random(24)
    words: tuple[str, ...] = (*asked, "--yes")
    for _ in range(4):
        argv = [sys.executable, "-m", "workbench", *PRO, *words]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
            wait_until_stored(one)
            time.sleep(drawn.uniform(1.0, 8.0))  # the moment of the kill is what is tried
            one.send_signal(signal.SIGKILL)
        if record():
            words = ("tune", "resume", "1", "--yes")
    ended = cli(*PRO, *words, "--json")
    sweep = ended.document
    assert (ended.code, sweep["state"], sweep["simulated"]) == (0, "done", True), ended
    assert "(at least +" in sweep["knee_text"] and "max-num-seqs=8" in sweep["knee_text"]
    assert all(point["state"] != "planned" for point in sweep["points"])
    assert [s for s in cli(*PRO, "servers", "--json").document["servers"] if s["alive"]] == []
    (written,) = Path(paths.config_dir(), "presets").glob("*-tune-1.toml")
    text = written.read_text()
    assert "SIMULATED: Tune 1" in text and f"experiment {sweep['experiment_id']}" in text
    plan = cli(*PRO, "plan", "vllm-any-tune-1", "--json").document
    assert plan["argv"][plan["argv"].index("--max-num-seqs") + 1] == "8"
    again = cli("tune", "resume", "1", "--yes", "--json")
    assert again.code == 2 and "finished" in again.document["error"]
    assert "goes on" in cli("tune", "show", "1").out


def wait_until_stored(process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + WAIT_S
    while process.poll() is None and not record():
        assert time.monotonic() < end
        time.sleep(0.02)
