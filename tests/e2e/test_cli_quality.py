"""The command `quality` on simulated servers: verdicts, refusals, and servers that fail."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.serving import free_port
from support.short_texts import write_texts

from workbench.report.formats.terminal import block_lines
from workbench.report.quality_blocks import quality_blocks
from workbench.store import paths
from workbench.store.quality_db import QualityDb

Cli = Callable[..., Any]
HOST = ("--simulate", "rtx-pro-6000")
MODEL = "Qwen/Qwen3-0.6B"
VAR = ("--var", f"model={MODEL}")
WAIT_S = 20.0
SMALL = ("--set", "gpu-memory-utilization=0.2")

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "200")


@pytest.fixture
def own_texts(tmp_path: Path) -> str:
    """The first words of the texts of the package: enough texts for a verdict, and quick."""
    return write_texts(tmp_path / "short.jsonl", 25)


@pytest.fixture
def few_texts(tmp_path: Path) -> str:
    """Too few texts for a verdict about scores, but enough for one about answers."""
    return write_texts(tmp_path / "few.jsonl", 8)


def server(cli: Cli, *words: str) -> tuple[str, str]:
    """Start a server. Return its READY run and URL."""
    port = str(free_port())
    ran = cli(
        *HOST, "start", "vllm-any", *VAR, *SMALL, "--set", f"port={port}", *words, "--wait", "--json"
    )  # fmt: skip
    assert ran.code == 0, ran
    return ran.document["run_id"], f"http://127.0.0.1:{port}"


def alive(cli: Cli) -> list[str]:
    found = cli(*HOST, "servers", "--json").document["servers"]
    return [one["run_id"] for one in found if one["state"] in ("starting", "ready")]


@pytest.mark.timeout(400)
@pytest.mark.long
def test_a_changed_cache_differs_and_no_server_is_left(cli: Cli, own_texts: str) -> None:
    ran = cli(
        *HOST, "quality", "vllm-any", "kv-cache-dtype=fp8", *VAR, "--texts", own_texts, "--json"
    )  # fmt: skip
    assert ran.code == 0, ran
    result = ran.document
    assert result["verdict"] == "differs" and result["simulated"]
    assert result["a"] == "vllm-any" and result["b"] == "vllm-any kv-cache-dtype=fp8"
    assert result["text_set"] == "short.jsonl"
    [kl] = [one for one in result["measures"] if one["name"] == "kl"]
    assert kl["floor"]["value"] < 1e-5 and 0.0005 < kl["value"]["value"] < 0.004
    assert [proof["usable"] for proof in result["proofs"]] == [True, True]
    assert result["conditions_a"]["engine"] == "vllm"
    changed = {k: v for k, v in result["conditions_b"].items() if k not in result["conditions_a"]}
    assert "fp8" in changed.values()
    assert result["id"] == 1
    assert "A is measured 3 times, B once" in ran.err
    started_again = "on the server that is started again: at most 75 requests"
    assert f"then A scores the answers of both, {started_again}" in ran.err
    assert "A, started again: 25 texts scored" in ran.err
    assert "A, answers: 75 answers scored" in ran.err
    assert result["answer_scores"]["answers"] == 25 and result["answer_scores"]["a"] < 0
    assert ran.err.count(": starting") == 3, "A, B, and A again: no start for the scores alone"
    assert alive(cli) == []


@pytest.mark.timeout(400)
@pytest.mark.long
def test_two_running_servers_answer_the_same_and_go_on(cli: Cli, own_texts: str) -> None:
    (run, _), (_, url) = server(cli), server(cli)
    ran = cli(*HOST, "quality", run, url, "--texts", own_texts)
    assert ran.code == 0, ran
    assert "its answers are the same within 0.001 KLD" in ran.out
    assert "SIMULATED" in ran.out and "A is measured 2 times" in ran.err
    assert "ln probability under A" in ran.out and "A, answers: 75 answers scored" in ran.err
    assert len(alive(cli)) == 2


@pytest.mark.long
def test_the_number_of_a_result_means_the_server_that_was_measured(
    cli: Cli, few_texts: str
) -> None:
    (_, one), (run, _) = server(cli), server(cli)
    load = ("--requests", "4", "--max-tokens", "8", "--concurrency", "2", "--json")
    for target in (("--url", one), (run,)):
        cli(*HOST, "bench", *target, *load)
    ran = cli(
        *HOST, "quality", "1", "#2", "--texts", few_texts, "--no-answer-scores", "--json"
    )  # fmt: skip
    assert ran.code == 0, ran
    assert "answers scored" not in ran.err and "scores the answers" not in ran.err
    assert ran.document["answer_scores"] is None and "did not score" not in str(ran.document)
    assert (ran.document["a"], ran.document["b"]) == (one, run)
    assert cli(*HOST, "quality", "7", "1", "--texts", few_texts).code == 2


@pytest.mark.long
def test_a_run_is_stopped_for_a_changed_flag_and_started_again(cli: Cli, few_texts: str) -> None:
    run, _ = server(cli)
    words = (*HOST, "quality", run, "kv-cache-dtype=fp8", "--texts", few_texts, "--no-restart")
    refused = cli(*words, "--json")
    assert refused.code == 2 and f"stops run {run}" in refused.document["error"]
    assert alive(cli) == [run]
    ran = cli(*words, "--yes", "--json")
    assert ran.code == 0, ran
    assert [proof["usable"] for proof in ran.document["proofs"]] == [True, True]
    [again] = alive(cli)
    assert again != run
    assert any(again in note for note in ran.document["notes"]), ran.document["notes"]


@pytest.mark.long
def test_b_alone_is_compared_with_the_preset_that_it_was_changed_from(
    cli: Cli, few_texts: str
) -> None:
    run, _ = server(cli, "--set", "kv-cache-dtype=fp8")
    ran = cli(*HOST, "quality", run[-8:], "--texts", few_texts, "--no-restart", "--yes", "--json")
    assert ran.code == 0, ran
    result = ran.document
    assert f"A is the preset of {run}" in ran.err
    assert result["a"].startswith("vllm-any port=") and result["b"].startswith(f"{run} port=")
    names = [name for name in result["conditions_b"] if name.startswith("flag ")]
    assert "flag kv-cache-dtype" in names
    assert "flag kv-cache-dtype" not in result["conditions_a"]
    [again] = alive(cli)
    assert again != run, "what ran before runs again"


@pytest.mark.long
def test_scores_that_are_wrong_with_mtp_give_no_number_and_name_the_defect(
    cli: Cli, few_texts: str
) -> None:
    _, url = server(cli)
    config = json.dumps({"method": "mtp", "num_speculative_tokens": 1})
    run, _ = server(cli, "--set", f"speculative-config={config}")
    ran = cli(*HOST, "quality", url, run, "--texts", few_texts, "--json")
    result = ran.document
    assert "vllm-project/vllm#53488" in json.dumps(result["proofs"])
    assert not [one for one in result["measures"] if one["name"] == "kl"]
    assert result["verdict"] in ("quality not measured", "not decided", "differs")


@pytest.mark.long
def test_a_server_that_is_broken_in_a_batch_is_found_by_its_answers(
    cli: Cli, few_texts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "1")  # slow enough to have batches
    _, url = server(cli)
    run, _ = server(cli, "--env", "WORKBENCH_SIM_FAULT=broken_together")
    result = cli(*HOST, "quality", url, run, "--texts", few_texts, "--json").document
    assert result["verdict"] == "broken", "A finds no sense in what it writes in a batch"
    assert "A finds what it writes less probable than its own answers by" in result["summary"]
    assert result["forks"]["per_1000"]["low"] > result["forks_floor"]["per_1000"]["value"]
    [kl] = [one for one in result["measures"] if one["name"] == "kl"]
    assert kl["value"]["value"] < 1e-5, "alone, it scores as ever"


@pytest.mark.long
def test_a_server_that_ends_meanwhile_ends_the_comparison_with_what_was_measured(
    cli: Cli, few_texts: str
) -> None:
    """B ends while A is measured: what A scored is kept, and one sentence says why there is no
    verdict."""
    (_, one), (_, two) = server(cli), server(cli)
    ending = threading.Thread(target=_end_when_asked, args=(one, two))
    ending.start()
    ran = cli(*HOST, "quality", one, two, "--texts", few_texts, "--json")
    ending.join()
    assert ran.code == 3, ran
    result = ran.document
    assert result["verdict"] == "quality not measured"
    assert result["summary"].startswith(f"quality not measured: B: {two} does not answer")
    assert [(proof["side"], proof["usable"]) for proof in result["proofs"]] == [("A", True)]


def _end_when_asked(one: str, two: str) -> None:
    """Kill the server at `two` as soon as the one at `one` has answered some requests."""
    port, deadline = int(two.rpartition(":")[2]), time.monotonic() + WAIT_S
    while _finished(one) < 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    listening = [c for c in psutil.net_connections("tcp") if c.laddr.port == port]
    for pid in {c.pid for c in listening if c.status == psutil.CONN_LISTEN}:
        os.kill(pid, signal.SIGKILL)


def _finished(url: str) -> float:
    page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    counts = [line.split()[-1] for line in page.splitlines() if "request_success_total{" in line]
    return sum(map(float, counts))


@contextmanager
def _busy(url: str) -> Any:
    """Let the server write a long answer while the block runs."""
    body = {"model": MODEL, "prompt": "on and on", "max_tokens": 30_000, "ignore_eos": True,
            "stream": True}  # fmt: skip
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as answer:
        answer.readline()
        yield


def test_a_server_that_serves_others_is_refused_without_anyway(
    cli: Cli, few_texts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "1")
    (_, one), (_, two) = server(cli), server(cli)
    with _busy(two):
        ran = cli(*HOST, "quality", one, two, "--texts", few_texts, "--json")
        assert ran.code == 2
        assert f"{two} serves others (it has 1 request)" in ran.document["error"]
        assert "--anyway" in ran.document["next_step"]


@pytest.mark.long
def test_a_server_that_serves_others_is_measured_with_anyway_and_the_result_says_so(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of somebody else that did not end meanwhile was not named."""
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "1")
    one_text = write_texts(tmp_path / "one.jsonl", 1)
    _, url = server(cli)
    with _busy(url):
        ran = cli(*HOST, "quality", url, url, "--texts", one_text, "--anyway", "--json")
    assert ran.code == 0, ran
    said = f"{url} serves others (it has 1 request), and its answers depend on their requests"
    assert said in ran.document["notes"] and said in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kv-cache-dtype=fp8", "vllm-any"), "A does not begin with a preset"),
        (("vllm-any", ""), "B is empty"),
        (("kv-cache-dtype=fp8",), "B does not begin with a preset"),
        (("http://127.0.0.1:9",), "Workbench did not start http://127.0.0.1:9"),
        (("vllm-any", *VAR), "nothing is known from which preset vllm-any was changed"),
        (("vllm-any", "'"), "quote the values"),
        (("vllm-any", "x=1", "--concurrency", "0"), "is not from 1 to 256"),
        (("vllm-any", "x=1", "--kl-margin", "nan"), "--kl-margin needs a number above 0"),
        (("vllm-any", "x=1", "--texts", "/nowhere.jsonl"), "cannot be read"),
        (("no-such-preset", "x=1"), "no-such-preset"),
        (("vllm-any", "x=1", "--eval", " "), "--eval is empty"),
        (("vllm-any", "x=1", "--eval", "'"), "--eval: No closing quotation"),
        (("vllm-any", "x=1", "--eval", "/no/such/x {items}"), "--eval: /no/such/x is no program"),
        (("vllm-any", "x=1", "--eval-score", "acc"), "add --eval COMMAND"),
        (("vllm-any", "x=1", "--eval-minutes", "5"), "add --eval COMMAND"),
        (("vllm-any", "x=1", "--eval", "x", "--eval-minutes", "nan"), "is not above 0 and at most"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(cli: Cli, words: tuple[str, ...], said: str) -> None:
    ran = cli(*HOST, "quality", *words)
    assert ran.code == 2 and said in ran.err, ran


SCORER = """
import json, os, pathlib, sys
url, model, items, right = sys.argv[1:5]
assert model == os.environ["OPENAI_MODEL"] and url == os.environ["OPENAI_BASE_URL"]
assert url.endswith("/v1") and items == os.environ["WORKBENCH_ITEMS"]
share = int(right) if url.startswith(sys.argv[5]) else 30
lines = [{"item": f"q{i}", "score": int(i < share)} for i in range(30)]
pathlib.Path(items, "mine.jsonl").write_text("".join(json.dumps(one) + chr(10) for one in lines))
"""


@pytest.mark.long
def test_the_users_own_measure_is_run_on_both_sides_and_paired(cli: Cli, tmp_path: Path) -> None:
    one_text = write_texts(tmp_path / "one.jsonl", 1)
    (_, one), (_, two) = server(cli), server(cli)
    script = tmp_path / "score it.py"
    script.write_text(SCORER)
    words = [sys.executable, str(script), "{base_url}", "{model}", "{items}", "18", two]
    ran = cli(
        *HOST, "quality", one, two, "--texts", one_text, "--eval", shlex.join(words), "--json"
    )  # fmt: skip
    assert ran.code == 0, ran
    own = ran.document["own"]
    assert (own["right_wrong"], own["lost"], own["gained"], own["pairs"]) == (True, 12, 0, 30)
    assert own["p"] == pytest.approx(2 / 2**12) and own["verdict"] == "differs"
    assert own["items"][20] == {"name": "q20", "a": 1.0, "b": 0.0}
    assert ran.document["verdict"] == "differs"
    assert "your measure differs: A has 100.0 % right, B 60.0 %" in ran.document["summary"]
    assert (
        f"your measure, of A and then of B, at most 120 minutes each: {shlex.join(words)}"
        in ran.err
    )
    shown = "\n".join(block_lines(quality_blocks(QualityDb(paths.results_db()).get(1))))
    assert "12 only A has right, 0 only B has right" in shown


@pytest.mark.long
def test_a_measure_that_fails_leaves_the_comparison_and_says_why(
    cli: Cli, few_texts: str, tmp_path: Path
) -> None:
    (_, one), (_, two) = server(cli), server(cli)
    bad = tmp_path / "bad.py"
    bad.write_text("import sys; open(sys.argv[1] + '/x.jsonl', 'w').write('{\\n')")
    command = f"{sys.executable} {bad} {{items}}"
    ran = cli(*HOST, "quality", one, two, "--texts", few_texts, "--eval", command, "--json")
    assert ran.code == 3, ran
    assert ran.document["notes"][0] == "no scores of your measure of A: x.jsonl, line 1: not JSON"
    assert ran.document["own"] is None and ran.document["measures"]
