"""The KV cache of real vLLM on the CPU is as large as Workbench estimates from the model's files,
for six shapes of models with random weights.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import engine_cache
import pytest
from support.serving import eventually, supervised
from test_vllm import ENV, READY_S, plan, start

from workbench import engines
from workbench.engines.memory_estimate import MemoryFit
from workbench.hosts.local import LocalHost
from workbench.model.gpu import GpuInfo
from workbench.server.model_files import read_model_facts
from workbench.server.supervisor import ServerEvent, Supervisor

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]
CARD = GpuInfo(0, "GPU-0", "the CPU's memory", memory_total_bytes=16 * 2**30)
LOGGED = re.compile(r"KV cache size: ([\d,]+) tokens")
# As vLLM starts on the CPU: large blocks (of 16 tokens with latent attention), and one batch in
# flight.
FLAGS = {
    "max-model-len": 8192,
    "max-num-batched-tokens": 1024,
    "block-size": 128,
    "async-scheduling": False,
}
SHAPES = {
    "gqa": {},
    "mla": {"block-size": 16},
    "sliding": {},
    "quantized": {"kv-cache-dtype": "fp8_e5m2"},
    "hybrid": {"mamba-ssm-cache-dtype": "float32"},  # as on the CPU
    "tied": {},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    python = Path(engine_cache.executable("vllm")).parent / "python"
    maker = Path(__file__).with_name("make_tiny_shapes.py")
    subprocess.run([python, maker, folder], check=True, capture_output=True, timeout=300)
    return folder


@pytest.mark.parametrize("shape", SHAPES)
def test_the_estimate_is_within_5_percent_of_the_log(models: Path, shape: str) -> None:
    made = replace(plan(**{**FLAGS, **SHAPES[shape]}), model=str(models / shape))

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        facts = await read_model_facts(LocalHost(), made, ENV)
        assert facts.missing is None, facts.missing
        gib = f"{ENV['VLLM_CPU_KVCACHE_SPACE']}G"
        guess = engines.estimate_memory_or_reason(
            replace(made, model_facts=facts).with_flag("kv-cache-memory-bytes", gib), [CARD]
        )
        assert isinstance(guess, MemoryFit), guess
        run_id = await start(supervisor, made)
        ring = supervisor.log(run_id)
        await eventually(
            lambda: ring.find("KV cache size") is not None, READY_S, "the size of the cache"
        )
        line = next(line for line in ring.lines() if "KV cache size" in line)
        match = LOGGED.search(line)
        assert match, line
        logged = int(match[1].replace(",", ""))
        print(f"{shape}: estimated {guess.kv_tokens:,} tokens, logged {logged:,}")
        assert guess.kv_tokens == pytest.approx(logged, rel=0.05)
        await supervisor.stop(run_id, grace_s=5)

    supervised(scenario)
