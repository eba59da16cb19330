"""The collective of the trial of GPU paths, with the torch of a real engine: gloo on the CPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import engine_cache
import pytest

import workbench

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(120)]
PROGRAM = Path(workbench.__file__).parent / "doctor" / "gpu_trial.py"


@pytest.mark.parametrize(
    ("backend", "wanted"),
    [
        ("gloo", {"case": "all-reduce", "ranks": 2, "p2p": True, "wrong_bytes": 0}),
        ("nccl", {"devices": [], "error": "this torch is built without CUDA"}),
    ],
)
def test_the_torch_of_a_real_engine(backend: str, wanted: dict[str, object]) -> None:
    python = Path(engine_cache.executable("vllm")).with_name("python")
    orders = {"case_s": 20, "total_s": 60, "words": 1 << 20, "backend": backend}
    argv = [str(python), "-c", PROGRAM.read_text(), json.dumps(orders)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(printed) == 1 and wanted.items() <= printed[0].items(), printed
    assert backend == "nccl" or printed[0]["mean_us"] > 0
