"""GPUs that a scheduler's job gives to Workbench by its own environment: plan, start and GPU
settings stay with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.serving import free_port

Cli = Callable[..., Any]
HOST = ("--simulate", "four-pcie")
DP4 = "vllm-qwen3-vl-2b-dp4"


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBS_JOBID", "1.pbs")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")


def _plan(cli: Cli, *words: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    document = json.loads(cli(*HOST, "plan", DP4, *words, "--json").out)
    return document, {finding["code"]: finding for finding in document["findings"]}


@pytest.mark.usefixtures("job")
def test_a_plan_counts_the_gpus_of_the_job_and_asks_for_no_others(cli: Cli) -> None:
    document, findings = _plan(cli)
    assert document["env"]["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "the GPUs that PBS 1.pbs gives" in findings["gpus.inherited"]["text"]
    assert "2 visible" in findings["gpus.too-few"]["text"]
    assert "request more GPUs from the scheduler" in findings["gpus.too-few"]["fix"]
    assert "CUDA_VISIBLE_DEVICES" not in findings["gpus.too-few"]["fix"]
    _, findings = _plan(cli, "--env", "CUDA_VISIBLE_DEVICES=0,1,2,3")
    assert "overrides the GPUs" in findings["hpc.respect-allocation"]["text"]


@pytest.mark.usefixtures("job")
def test_settings_of_all_gpus_concern_the_gpus_of_the_job(cli: Cli) -> None:
    limit = ("--power-limit", "200", "--dry-run")
    ran = cli(*HOST, "gpu", "set", "--gpu", "all", *limit)
    assert ran.code == 0 and "GPU2 power limit" in ran.out and "GPU3 power limit" in ran.out
    assert "GPU0" not in ran.out and "only those that PBS 1.pbs has" in ran.out
    named = cli(*HOST, "gpu", "set", "--gpu", "0", *limit)
    assert named.code == 0 and "GPU0 power limit" in named.out


@pytest.mark.parametrize("devices", ["7", "GPU-none"])
def test_settings_of_all_gpus_are_refused_if_those_of_the_job_are_not_known(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, devices: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    ran = cli(*HOST, "gpu", "set", "--power-limit", "200", "--dry-run")
    assert ran.code != 0 and f"Slurm 42 has the GPUs {devices!r}" in ran.err


def test_a_device_that_does_not_exist_is_an_error_of_the_plan(cli: Cli) -> None:
    _, findings = _plan(cli, "--env", "CUDA_VISIBLE_DEVICES=0,9")
    assert findings["gpus.unknown"]["level"] == "error"
    assert "names '9', which is no GPU of this host" in findings["gpus.unknown"]["text"]
    assert findings["gpus.unknown"]["fix"] == "name GPUs of this host: 0, 1, 2, 3"


@pytest.mark.slow
@pytest.mark.usefixtures("job")
@pytest.mark.long
def test_a_server_and_its_benchmark_use_the_gpus_of_the_job(cli: Cli) -> None:
    port = f"port={free_port()}"
    dp2 = ("--set", "data-parallel-size=2", "--set", port)
    started = cli(*HOST, "start", DP4, *dp2, "--env", "WORKBENCH_SIM_SPEEDUP=50", "--wait")
    assert started.code == 0, started.err
    run_id = started.out.strip()
    try:
        bench = ("bench", run_id, "--requests", "4", "--max-tokens", "64", "--json")
        result = json.loads(cli(*HOST, *bench).out)
    finally:
        cli(*HOST, "stop", run_id)
    assert [gpu["index"] for gpu in result["conditions"]["gpus"]] == [2, 3]
