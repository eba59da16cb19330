"""The command `capacity` on simulated cards: the search for users, its end, and its way back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.serving import free_port

from workbench.store import paths

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick", "servers_end")]
Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")
SHORT = ("--max-tokens", "8", "--input-tokens", "16")
SLO = ("--slo", "e2e<=600s@p50")  # kept on any machine
WAIT_S = 120.0


def started(cli: Cli) -> str:
    ran = cli(*PRO, "start", "vllm-any", "--set", f"port={free_port()}", "--wait", "--json")
    assert ran.code == 0, ran
    return str(ran.document["run_id"])


def record() -> dict[str, Any]:
    """Return the stored search as JSON, or an empty dict if none is stored."""
    path = paths.data_dir() / "sweeps" / "1.json"
    text = path.read_text() if path.exists() else ""
    return dict(json.loads(text)) if text else {}


@pytest.mark.long
def test_a_search_answers_with_users_and_keeps_its_runs(cli: Cli) -> None:
    run = started(cli)
    ran = cli(*PRO, "capacity", run, *SLO, *SHORT, "--from", "2", "--most", "4", "--json")
    found = ran.document
    assert ran.code == 0 and found["kind"] == "users" and found["simulated"]
    assert [(p["label"], p["slo_verdict"]) for p in found["points"]] == [
        ("2 users", "holds"),
        ("4 users", "holds"),
    ]
    assert all(len(p["result_ids"]) >= 2 and p["slo_pct"] == 100 for p in found["points"])
    assert found["knee"] == 1 and found["knee_text"].startswith("holds 4 users (attainment >= ")
    assert any("tok/s per user" in note for note in found["notes"])
    shown = cli(*PRO, "sweep", "show", "1").out
    assert "Capacity: holds 4 users" in shown and "SIMULATED" in shown
    again = cli(*PRO, "capacity", run, *SLO, *SHORT, "--most", "1")
    assert "starts at 1 user;" in again.err
    refused = cli(*PRO, "sweep", "resume", "1")
    assert refused.code == 2 and "is not a sweep of flags" in refused.err
    of_results = [cli(*PRO, "results", "show", str(n), "--json").document for n in (1, 2)]
    seeds = {each["spec"]["seed"] for each in of_results}
    assert len(seeds) == 2  # no prompt is sent twice


@pytest.mark.long
def test_a_simulated_server_at_a_url_is_called_so(cli: Cli) -> None:
    port = free_port()
    ran = cli(*PRO, "start", "vllm-any", "--set", f"port={port}", "--wait", "--json")
    assert ran.code == 0, ran
    url = f"http://127.0.0.1:{port}"
    found = cli("capacity", "--url", url, *SLO, *SHORT, "--from", "1", "--most", "1", "--json")
    assert found.code == 0 and found.document["simulated"]
    assert "SIMULATED" in cli("sweep", "list").out


@pytest.mark.long
def test_a_server_that_breaks_its_limits_for_one_user(cli: Cli) -> None:
    run = started(cli)
    found = cli(*PRO, "capacity", run, "--slo", "e2e<=0.001@p50", *SHORT, "--from", "2", "--json")
    assert [(p["label"], p["slo_verdict"]) for p in found.document["points"]] == [
        ("1 user", "fails"),
        ("2 users", "fails"),
    ]
    assert "no level holds" in found.document["knee_text"]


WRONG = [
    ((), "the search for users needs limits"),
    (("--slo", "ttft<=500@100%"), "no number of requests can show"),
    (("--slo", "ttft<=500"), "does not say for how many requests"),
    ((*SLO, "--from", "2.5"), "2.5 users are not possible"),
    ((*SLO, "--from", "nan"), "'nan' is not a number above 0"),
    ((*SLO, "--horizon", "5"), "--horizon is the time over which a rate counts"),
    ((*SLO, "--rate", "--horizon", "nan"), "a horizon of nan minutes is not possible"),
    ((*SLO, "--rate", "--from", "2", "--horizon", "1"), "are 120 requests, and fewer than 1,000"),
    ((*SLO, "--rate", "--most", "1"), "are 600 requests, and fewer than 1,000"),
    ((*SLO, "--rate", "--requests", "50"), "--requests cannot be given"),
    (("--rate",), "the search for a rate needs limits"),
    ((*SLO, "--from", "9", "--most", "3"), "a search from 9 to 3 users is not possible"),
    ((*SLO, "--max-minutes", "nan"), "a time limit of nan minutes is not possible"),
    ((*SLO, "--max-minutes", "-1"), "a time limit of -1 minutes is not possible"),
    (("--no-stream", "--slo", "ttft<=5@p95"), "ttft can only be measured on streamed"),
]


def talks(path: Path, many: int, turns: int) -> Path:
    """Write a trace of conversations."""
    said = [("human", "what about number {0}? " * 8), ("gpt", "number {0} is fine")]
    rows = []
    for one in range(many):
        parts = [
            {"from": who, "value": text.format(f"{one}.{turn}")}
            for turn in range(turns)
            for who, text in said
        ]
        rows.append(json.dumps({"conversations": parts}))
    path.write_text("\n".join(rows))
    return path


def test_a_search_that_cannot_be_made_says_why(cli: Cli, tmp_path: Path) -> None:
    run = started(cli)
    timed = tmp_path / "day.jsonl"
    timed.write_text('{"timestamp": 0, "input_length": 40, "output_length": 8}')
    few = talks(tmp_path / "few.jsonl", 8, 2)
    of_traces = [
        ((*SLO, "--trace", str(timed)), "the requests of day.jsonl come at times of their own"),
        ((*SLO, "--trace", str(few)), "few.jsonl has 16 requests, and a run needs 64"),
    ]
    for words, problem in (*WRONG, *of_traces):
        refused = cli(*PRO, "capacity", run, *words)
        assert refused.code == 2 and problem in refused.err, words
        assert "Traceback" not in refused.err and record() == {}, words


@pytest.mark.long
def test_users_replay_the_conversations_of_a_trace(cli: Cli, tmp_path: Path) -> None:
    """A trace that changed meanwhile is another load, so the search does not go on with it."""
    trace = talks(tmp_path / "talks.jsonl", 8, 8)
    run = started(cli)
    search = ("capacity", run, *SLO, "--trace", str(trace), "--from", "2", "--most", "64")
    stopped = cli(*PRO, *search, "--max-minutes", "0.001", "--json")
    assert stopped.code == 1 and stopped.document["state"] == "stopped"
    talks(trace, 9, 8)
    refused = cli(*PRO, "capacity", "resume", "1")
    assert (
        refused.code == 2 and "it was measured with trace talks.jsonl (64 requests" in refused.err
    )
    talks(trace, 8, 8)
    found = cli(*PRO, "capacity", "resume", "1", "--json").document
    assert found["state"] == "done" and found["knee_text"].startswith("holds 8 users"), found
    assert [point["label"] for point in found["points"]] == ["2 users", "4 users", "8 users"]
    last = found["points"][-1]["result_ids"][-1]
    result = cli(*PRO, "results", "show", str(last), "--json").document
    assert result["spec"]["trace_name"].startswith("talks.jsonl (64 requests")
    assert result["spec"]["concurrency"] == 8 and result["requests_ok"] == 64


def searching(run: str, most: str) -> subprocess.Popen[bytes]:
    """Start a search from 1 to `most` users in a process of its own."""
    argv = [sys.executable, "-m", "workbench", *PRO, "capacity", run, *SLO, *SHORT]
    argv += ["--from", "1", "--most", most]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(process: subprocess.Popen[bytes], when: Callable[[list[Any]], object]) -> None:
    """Wait until `when` is true of the points of the stored search."""
    end = time.monotonic() + WAIT_S
    while not when(record().get("points", [])):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)


@pytest.mark.long
def test_a_killed_search_goes_on_with_the_levels_that_it_has(cli: Cli) -> None:
    run = started(cli)
    with searching(run, "4") as process:
        wait_for(process, lambda points: len(points) > 1 and points[1]["result_ids"])
        process.send_signal(signal.SIGKILL)
    before = record()["points"][0]
    begun = record()["points"][1]["result_ids"]
    resumed = cli(*PRO, "capacity", "resume", "1", "--json")
    assert resumed.code == 0 and resumed.document["state"] == "done"
    points = resumed.document["points"]
    assert [p["label"] for p in points] == ["1 user", "2 users", "4 users"]
    assert points[0]["result_ids"] == before["result_ids"]
    assert points[1]["result_ids"][: len(begun)] == begun
    assert resumed.document["knee_text"].startswith("holds 4 users")


@pytest.mark.long
def test_a_server_that_is_stopped_leaves_a_search_that_can_be_resumed(cli: Cli) -> None:
    run = started(cli)
    with searching(run, "64") as process:
        wait_for(process, lambda points: len(points) > 1)
        assert cli(*PRO, "stop", run).code == 0
        out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1 and b"workbench capacity resume 1" in out
    assert record()["state"] in ("failed", "stopped") and record()["error"]
    assert record()["points"][0]["slo_verdict"] == "holds"


@pytest.mark.long
def test_a_rate_is_searched_stopped_and_resumed(cli: Cli) -> None:
    """The measured rates are kept over a time limit, and over a kill in the middle of a run."""
    run = started(cli)
    horizon = ("--rate", "--horizon", "0.1", "--from", "170", "--most", "180")
    argv = ("capacity", run, *SLO, *SHORT, *horizon)
    stopped = cli(*PRO, *argv, "--max-minutes", "0.09", "--json")
    assert stopped.code == 1 and stopped.document["state"] == "stopped", stopped
    first = stopped.document["points"][0]
    assert first["label"] == "170 requests/s" and first["slo_verdict"] == "open"
    command = [sys.executable, "-m", "workbench", *PRO, "capacity", "resume", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(process, lambda points: len(points) > 1)
        process.send_signal(signal.SIGKILL)
    resumed = cli(*PRO, "capacity", "resume", "1", "--json")
    assert resumed.code == 0 and resumed.document["state"] == "done", resumed
    found = resumed.document
    assert found["kind"] == "rates" and found["points"][0]["result_ids"] == first["result_ids"]
    assert found["knee_text"].startswith("holds 180 requests/s over 0.1 min (attainment >= 9")
    assert "higher rates were not asked for" in found["knee_text"]
    again = cli(*PRO, *argv, "--max-minutes", "0.001")
    assert "looks of " in again.err and "a number of users is found sooner" in again.err
