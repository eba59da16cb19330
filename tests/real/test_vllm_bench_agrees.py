"""The same workload on real vLLM (CPU), measured in turns by Workbench and by `vllm bench serve`.
Throughput, TTFT and ITL agree within the spread of the runs.

The requests are plain completions, because vLLM's client counts a chat's role chunk as content.
Medians are compared, because client and engine share the cores of this machine and either waits for
the other in a few requests. Of ITL the mean is compared, because the other client's median is 0.01
ms when it reads late and finds several chunks together.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engine_cache
import pytest
from support.command_line import CommandLine
from test_real_loop import READY_S, VLLM, VLLM_ENV, options

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(2400)]
ROUNDS, INPUT, OUTPUT, WARMUP = 5, 128, 64, 8


@dataclass(frozen=True)
class Shape:
    """A load that both clients support, and the metrics that must agree.

    With a rate, throughput equals the rate. With a concurrency above one, only throughput is
    compared: Workbench staggers its starts over one request, while the other client starts all
    requests together. Its requests have the same length, so they continue in waves: prefills wait
    for each other (longer TTFT) and interrupt no decoding (shorter ITL).
    """

    name: str
    requests: int
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    figures: tuple[str, ...]


LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms")
SHAPES = (
    Shape(
        "one stream", 12, ("--concurrency", "1"), ("--max-concurrency", "1"), ("tok_s", *LATENCIES)
    ),
    Shape("four streams", 32, ("--concurrency", "4"), ("--max-concurrency", "4"), ("tok_s",)),
    Shape(
        "at a rate",
        24,
        ("--rate", "2", "--arrival", "constant", "--concurrency", "8"),
        ("--request-rate", "2", "--burstiness", "1e6", "--max-concurrency", "8"),
        LATENCIES,
    ),
)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path, path=[Path(engine_cache.executable("vllm")).parent])
    yield one
    one.stop_all()
    assert one.left() == []


def ours(command: CommandLine, run_id: str, shape: Shape) -> dict[str, float]:
    result = command.ok(
        "bench",
        run_id,
        "--endpoint",
        "completions",
        *shape.ours,
        "--requests",
        shape.requests,
        "--max-tokens",
        OUTPUT,
        "--input-tokens",
        INPUT,
        "--warmup",
        WARMUP,
        timeout_s=600,
    )
    assert (
        result["requests_ok"] == shape.requests
        and result["output_tokens"] == shape.requests * OUTPUT
    )
    engine = result["engine"]
    assert engine["disagreements"] == []
    return {
        "tok_s": result["output_tok_s"],
        "ttft_ms": result["ttft_ms"]["p50"],
        "itl_ms": result["itl_ms"]["mean"],
        "tpot_ms": result["tpot_ms"]["p50"],
    }


def theirs(
    command: CommandLine, url: str, folder: Path, shape: Shape, seed: int
) -> dict[str, float]:
    file = folder / f"{shape.name}-{seed}.json"
    argv = [
        engine_cache.executable("vllm"),
        "bench",
        "serve",
        "--backend",
        "openai",
        "--base-url",
        url,
        "--endpoint",
        "/v1/completions",
        "--model",
        "tiny",
        "--tokenizer",
        str(engine_cache.MODEL),
        "--dataset-name",
        "random",
        "--random-input-len",
        str(INPUT),
        "--random-output-len",
        str(OUTPUT),
        "--num-prompts",
        str(shape.requests),
        *shape.theirs,
        "--num-warmups",
        str(WARMUP),
        "--ignore-eos",
        "--temperature",
        "0",
        "--seed",
        str(seed),
        "--disable-tqdm",
        "--save-result",
        "--result-dir",
        str(folder),
        "--result-filename",
        file.name,
    ]
    done = subprocess.run(
        argv,
        env={**command.env, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(file.read_text())
    assert (
        found["completed"] == shape.requests
        and found["total_output_tokens"] == shape.requests * OUTPUT
    )
    latencies = {
        "ttft_ms": found["median_ttft_ms"],
        "itl_ms": found["mean_itl_ms"],
        "tpot_ms": found["median_tpot_ms"],
    }
    return {"tok_s": found["output_throughput"], **latencies}


def in_turns(
    command: CommandLine, status: dict[str, Any], folder: Path, shape: Shape
) -> list[list[dict[str, float]]]:
    """Return [Workbench's, the other client's] result of each round. The first one changes from
    round to round, as in an experiment."""
    pairs = []
    for turn in range(ROUNDS):
        found: list[dict[str, float]] = [{}, {}]
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            found[which] = (
                ours(command, status["run_id"], shape)
                if which == 0
                else theirs(command, status["url"], folder, shape, turn)
            )
        pairs.append(found)
    return pairs


def test_the_two_clients_agree(command: CommandLine, tmp_path: Path) -> None:
    given = options({**VLLM, "enable-prefix-caching": "false"}, VLLM_ENV)
    status = command.ok(
        "start", "vllm-any", *given, "--wait", "--timeout", READY_S, timeout_s=READY_S + 30
    )
    assert status["state"] == "ready", status["reason"]
    ours(command, status["run_id"], SHAPES[0])  # the first load compiles
    apart = []
    for shape in SHAPES:
        pairs = in_turns(command, status, tmp_path, shape)
        for name in shape.figures:
            each = [[side[name] for side in sides] for sides in zip(*pairs, strict=True)]
            spreads = [statistics.stdev(map(math.log, values)) for values in each]
            ratio = math.exp(statistics.fmean(math.log(a / b) for a, b in zip(*each, strict=True)))
            shown = [[round(value, 2) for value in values] for values in each]
            print(
                f"{shape.name}, {name}: ours {shown[0]}, theirs {shown[1]}; ratio {ratio:.4f},"
                f" sd of the logarithms {spreads[0]:.3f} and {spreads[1]:.3f}"
            )
            if abs(math.log(ratio)) > 2 * max(*spreads, 0.01):
                apart.append((shape.name, name, ratio))
    assert not apart
