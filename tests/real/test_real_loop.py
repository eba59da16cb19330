"""The whole loop by commands against real vLLM and SGLang on the CPU. The engine counts exactly
what a benchmark reports, and `stop` leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_cache
import pytest
from support.command_line import CommandLine
from support.serving import free_port
from support.tuning_loop import Loop

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(1200)]
READY_S = 300.0  # 30 s (vLLM) and 60 s (SGLang) on an idle machine with 2 cores
SHAPE = [
    "--concurrency",
    8,
    "--requests",
    32,
    "--max-tokens",
    64,
    "--input-tokens",
    128,
    "--warmup",
    8,
]
VLLM = {"dtype": "bfloat16", "max-model-len": 2048, "max-num-seqs": 8, "enforce-eager": "true"}
VLLM_ENV = {
    "HF_HUB_OFFLINE": 1,
    "VLLM_NO_USAGE_STATS": 1,
    "VLLM_CPU_KVCACHE_SPACE": 1,
    "OMP_NUM_THREADS": 2,
}
SGLANG = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "mem-fraction-static": 0.05,
    "max-total-tokens": 65536,
    "max-running-requests": 8,
    "context-length": 2048,
    "disable-overlap-schedule": "true",
}


def options(sets: dict[str, object], env: dict[str, object]) -> list[str]:
    sets = {"port": free_port(), "served-model-name": "tiny", **sets}
    words = ["--var", f"model={engine_cache.MODEL}"]
    words += [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    return words + [word for name, value in env.items() for word in ("--env", f"{name}={value}")]


def codes(plan: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in plan["findings"]}


@pytest.fixture
def command(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CommandLine]:
    """Return the command line with the engine's bin directory first on PATH, as after activating
    its environment."""
    one = CommandLine(tmp_path, path=[Path(engine_cache.executable(request.param)).parent])
    yield one
    one.stop_all()
    assert one.left() == []


@pytest.mark.parametrize("command", ["vllm"], indirect=True)
def test_vllm(command: CommandLine) -> None:
    given = options(VLLM, VLLM_ENV)
    plan = command.ok("plan", "vllm-any", *given)
    assert (plan["installed"], plan["installed_problem"]) == ("vLLM 0.32.0+cpu", None)
    assert plan["catalog"] == "0.32.0"
    assert codes(plan) == {"bind.local", "model.facts", "speed.eager"}
    Loop("vllm", "vllm-any", given, SHAPE, ("max-num-seqs", 2), READY_S, speaks=False).run(command)


@pytest.mark.parametrize("command", ["sglang"], indirect=True)
def test_sglang(command: CommandLine) -> None:
    given = options(SGLANG, {"HF_HUB_OFFLINE": 1})
    plan = command.ok("plan", "sglang-any", *given)
    assert (plan["installed"], plan["installed_problem"]) == ("SGLang 0.5.23", None)
    assert (plan["catalog"], codes(plan)) == ("0.5.23", {"bind.local", "model.facts"})
    Loop(
        "sglang", "sglang-any", given, SHAPE, ("max-running-requests", 2), READY_S, speaks=False
    ).run(command)
