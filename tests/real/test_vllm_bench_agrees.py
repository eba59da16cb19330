"""The same workload on real vLLM (CPU), measured in turns by Workbench and by `vllm bench serve`: throughput, TTFT and
ITL agree within the runs' own spread. Plain completions, since vLLM's client takes a chat's role chunk for content."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_cache
import pytest
from support.command_line import CommandLine
from test_real_loop import READY_S, VLLM, VLLM_ENV, options

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(1800)]
ROUNDS = 5
STREAMS, REQUESTS, INPUT, OUTPUT, WARMUP = 4, 32, 128, 64, 8
FIGURES = ("tok_s", "ttft_ms", "itl_ms")


@pytest.fixture
def command(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path, path=[Path(engine_cache.executable("vllm")).parent])
    yield one
    one.stop_all()
    assert one.left() == []


def ours(command: CommandLine, run_id: str) -> dict[str, float]:
    result = command.ok(
        "bench", run_id, "--endpoint", "completions", "--concurrency", STREAMS, "--requests", REQUESTS,
        "--max-tokens", OUTPUT, "--input-tokens", INPUT, "--warmup", WARMUP, timeout_s=600,
    )  # fmt: skip
    assert result["requests_ok"] == REQUESTS
    whole = result["whole_run_tok_s"] or result["output_tok_s"]
    return {"tok_s": whole, "ttft_ms": result["ttft_ms"]["mean"], "itl_ms": result["itl_ms"]["mean"]}


def theirs(command: CommandLine, url: str, folder: Path, seed: int) -> dict[str, float]:
    file = folder / f"vllm-{seed}.json"
    argv = [
        engine_cache.executable("vllm"), "bench", "serve", "--backend", "openai", "--base-url", url,
        "--endpoint", "/v1/completions", "--model", "tiny", "--tokenizer", str(engine_cache.MODEL),
        "--dataset-name", "random", "--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT),
        "--num-prompts", str(REQUESTS), "--max-concurrency", str(STREAMS), "--num-warmups", str(WARMUP),
        "--ignore-eos", "--temperature", "0", "--seed", str(seed), "--disable-tqdm",
        "--save-result", "--result-dir", str(folder), "--result-filename", file.name,
    ]  # fmt: skip
    done = subprocess.run(argv, env={**command.env, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(file.read_text())
    assert found["completed"] == REQUESTS and found["total_output_tokens"] == REQUESTS * OUTPUT
    return {"tok_s": found["output_throughput"], "ttft_ms": found["mean_ttft_ms"], "itl_ms": found["mean_itl_ms"]}


def test_the_two_clients_agree(command: CommandLine, tmp_path: Path) -> None:
    given = options({**VLLM, "enable-prefix-caching": "false"}, VLLM_ENV)
    status = command.ok("start", "vllm-any", *given, "--wait", "--timeout", READY_S, timeout_s=READY_S + 30)
    assert status["state"] == "ready", status["reason"]
    ours(command, status["run_id"])  # the first load compiles
    pairs = []
    for turn in range(ROUNDS):  # the order changes from round to round, as between the arms of an experiment
        steps = [lambda: ours(command, status["run_id"]), lambda: theirs(command, status["url"], tmp_path, turn)]  # noqa: B023
        found = [steps[turn % 2](), steps[1 - turn % 2]()]
        pairs.append((found[turn % 2], found[1 - turn % 2]))
    for name in FIGURES:
        logs = [math.log(a[name] / b[name]) for a, b in pairs]
        each = [statistics.stdev([math.log(side[name]) for side in sides]) for sides in zip(*pairs, strict=True)]
        values = [[round(side[name], 2) for side in sides] for sides in zip(*pairs, strict=True)]
        ratio = math.exp(statistics.fmean(logs))
        print(f"{name}: ours {values[0]}, theirs {values[1]}; ratio {ratio:.4f}, sd {each[0]:.3f} and {each[1]:.3f}")
        spread = max(*each, 0.01)
        assert abs(statistics.fmean(logs)) < 2 * spread, (name, pairs)
