"""Experiments and sweeps that compare the answers beside their runs, on a simulated host."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.serving import free_port
from support.short_texts import write_texts

Cli = Callable[..., Any]
HOST = ("--simulate", "rtx-pro-6000")
VAR = ("--var", "model=Qwen/Qwen3-0.6B")
LOAD = (
    "--requests", "8", "--max-tokens", "16", "--input-tokens", "16", "--warmup", "0",
    "--concurrency", "4",
)  # fmt: skip
FP8 = ("--b", "kv-cache-dtype=fp8")

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "200")


@pytest.fixture
def own_texts(tmp_path: Path) -> str:
    return write_texts(tmp_path / "short.jsonl", 25)


@pytest.fixture
def few_texts(tmp_path: Path) -> str:
    """Too few texts for a verdict about scores."""
    return write_texts(tmp_path / "few.jsonl", 3)


def base(*words: str) -> tuple[str, ...]:
    port = ("--set", f"port={free_port()}")
    return (*HOST, "experiment", "vllm-any", *VAR, *port, *LOAD, *words)


def alive(cli: Cli) -> list[str]:
    found = cli(*HOST, "servers", "--json").document["servers"]
    return [one["run_id"] for one in found if one["state"] in ("starting", "ready")]


@pytest.mark.long
def test_one_pair_has_the_answers_beside_the_speed(cli: Cli, few_texts: str) -> None:
    ran = cli(*base(*FP8, "--pairs", "1", "--no-throw-away", "--texts", few_texts, "--json"))
    assert ran.code == 0, ran
    told = "A and B differ in kv-cache-dtype, so their answers are compared too: 768 positions in 3"
    cost = (
        "A twice and B once, beside the runs, and a run of A after B scores the answers in at most "
        "9 requests; this usually takes seconds"
    )
    assert told in ran.err and cost in ran.err
    found = ran.document
    assert len({run["run_id"] for run in found["runs"]}) == 2, "no server only for the answers"
    assert found["quality_id"] == found["comparison"]["quality_id"] == 1
    assert found["comparison"]["quality_verdict"] in ("not decided", "differs")


@pytest.mark.long
def test_a_changed_cache_is_compared_beside_the_runs_and_the_verdict_has_both_halves(
    cli: Cli, own_texts: str
) -> None:
    ran = cli(*base(*FP8, "--pairs", "2", "--no-throw-away", "--texts", own_texts, "--json"))
    assert ran.code == 0, ran
    told = "A and B differ in kv-cache-dtype, so their answers are compared too: 6,400 positions in"
    assert told in ran.err and "this usually takes seconds" in ran.err
    found = ran.document
    assert len({run["run_id"] for run in found["runs"]}) == 4, "no server only for the answers"
    comparison = found["comparison"]
    assert (comparison["quality_verdict"], comparison["quality_id"]) == ("differs", 1)
    assert "but its answers differ: KLD >= 0.00" in found["verdict"]
    assert comparison["quality"] in found["verdict"]
    assert found["quality_id"] == 1
    shown = cli("experiment", "show", "1", "--json").document
    assert shown["verdict"] == found["verdict"]
    report = cli("results", "report", "--experiment", "1", "--format", "json").document
    assert report["quality"]["id"] == 1 and report["quality"]["simulated"]
    assert [one["usable"] for one in report["quality"]["proofs"]] == [True, True]
    [kl] = [one for one in report["quality"]["measures"] if one["name"] == "kl"]
    assert kl["floor"]["value"] < 1e-5 < kl["value"]["value"]
    assert alive(cli) == []


@pytest.mark.long
def test_an_instrument_that_is_not_usable_leaves_the_speed_and_a_reason(
    cli: Cli, few_texts: str
) -> None:
    config = json.dumps({"method": "mtp", "num_speculative_tokens": 1})
    arm = ("--b", f"'speculative-config={config}'", "--texts", few_texts)
    ran = cli(*base(*arm, "--pairs", "2", "--no-throw-away", "--json"))
    assert ran.code == 0, ran
    found = ran.document
    assert found["state"] == "done" and found["pairs_done"] == 2
    quality = found["comparison"]["quality"]
    assert quality.startswith("quality not measured: instrument not usable, prefill of B: ")
    assert "vllm-project/vllm#53488" in quality and quality in found["verdict"]
    first = cli("experiment", "show", "1").out.splitlines()
    assert any(line.strip().startswith("quality not measured: instrument") for line in first[:5])


@pytest.mark.long
def test_a_sweep_compares_the_answers_of_its_best_value(cli: Cli, few_texts: str) -> None:
    ran = cli(
        *HOST, "sweep", "vllm-any", *VAR, "--set", f"port={free_port()}", *LOAD, "--pairs", "1",
        "--set", "kv-cache-dtype=fp8", "--flag", "kv-cache-dtype=auto,fp8_e5m2",
        "--texts", few_texts, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran
    assert "so their answers are compared too" in ran.err
    sweep = ran.document
    if sweep["experiment_id"] is None:  # no value was faster on this busy machine
        assert sweep["quality"] == "quality not measured"
        return
    shown = cli("experiment", "show", str(sweep["experiment_id"]), "--json").document
    assert shown["quality_id"] == 1
    assert sweep["quality"].endswith(shown["comparison"]["quality"])


@pytest.mark.long
def test_without_quality_no_answer_is_compared(cli: Cli) -> None:
    ran = cli(*base(*FP8, "--pairs", "1", "--no-throw-away", "--no-quality", "--json"))
    assert "answers" not in ran.err
    assert ran.document["quality_id"] is None
    assert ran.document["comparison"]["quality"] == "quality not measured"
