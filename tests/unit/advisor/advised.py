"""Facts for tests of the advisor: servers, GPUs and measurements as the documented set-ups have
them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support import made_results

from workbench import engines
from workbench.advisor.facts import Facts, GpuFacts
from workbench.engines.plan_context import PlanContext
from workbench.model.bench import BenchSpec, BenchSummary, EngineDuring, GpuDuring
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan, ModelFacts

PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
GB10 = "NVIDIA GB10"
A100 = "NVIDIA A100-PCIE-40GB"
TI = "NVIDIA GeForce RTX 5060 Ti"

MISTRAL_AWQ = ModelFacts("mistral", 122.6e9, "AWQ INT4", 64.09e9, 64.9e9, 360448.0, 88)
LLAMA_70B = ModelFacts("llama", 70.55e9, "BF16", 139.0e9, 141.1e9, 327680.0, 80)
QWEN_2B = ModelFacts("qwen", 2.13e9, "BF16", 3.44e9, 4.3e9, 114688.0, 28)
QWEN_7B_FP8 = ModelFacts("qwen7", 7.62e9, "FP8", 7.62e9, 8.71e9, 57344.0, 28)
QWEN_7B_AWQ = ModelFacts("qwen7", 7.62e9, "AWQ INT4", 4.48e9, 5.57e9, 57344.0, 28)


def served(engine: str = "vllm", sizes: ModelFacts | None = None, **flags: Any) -> PlanContext:
    """Return the configuration of a server. Underscores in the names of flags stand for dashes."""
    found = engines.get_engine(engine)
    settings = tuple(FlagSetting(name.replace("_", "-"), value) for name, value in flags.items())
    return PlanContext(LaunchPlan(engine, "org/model", sizes, settings), found.catalog(), found)


def summary(per_stream: float | None = None, **fields: Any) -> BenchSummary:
    """Return the metrics of a run, of which only the given ones were measured."""
    nothing = {
        "power_w": None,
        "energy_j": None,
        "tok_per_joule": None,
        "engine": None,
        "gpu": None,
    }
    base = replace(made_results.result().summary, **nothing)
    return replace(base, per_stream_tok_s=per_stream, output_tok_s=per_stream, **fields)


def during(**fields: Any) -> GpuDuring:
    return replace(GpuDuring(None, None, None, None, None, None), **fields)


def gpus(name: str, count: int = 1, **fields: Any) -> tuple[GpuFacts, ...]:
    return tuple(GpuFacts(index, name, **fields) for index in range(count))


def load(**fields: Any) -> BenchSpec:
    return replace(BenchSpec("http://127.0.0.1:8000", "org/model", concurrency=1), **fields)


def facts(streams: int | None = 1, **fields: Any) -> Facts:
    return Facts(**{"spec": load(concurrency=streams or 1), "streams": streams, **fields})


def engine_side(**fields: Any) -> BenchSummary:
    return summary(20.0, engine=EngineDuring(**fields))


def two_sparks(**fields: Any) -> Facts:
    """Return Llama-3.3-70B in BF16 on two DGX Sparks with one stream: 3.17 of 3.93 tok/s at 40 W."""
    gpu = during(
        gpu_util_pct=94.0,
        sm_mhz=2405.0,
        memory_mhz=8533.0,
        power_w=80.0,
        gpus=(0, 1),
        power_w_each=(40.0, 40.0),
    )
    base = {
        "plan_context": served(sizes=LLAMA_70B, tensor_parallel_size=2, gpu_memory_utilization=0.8),
        "sizes": LLAMA_70B,
        "gpus": gpus(GB10, 2, memory_total_bytes=130.6e9, power_w=40.0),
        "summary": summary(3.17, gpu=gpu),
        "ceiling_tok_s": 3.93,
    }
    return facts(**{**base, **fields})


def passed_through(**fields: Any) -> Facts:
    """Return Mistral-Large AWQ on an RTX PRO 6000 in a virtual machine with one stream: 22.7 of
    26.7 tok/s."""
    gpu = during(gpu_util_pct=100.0, sm_mhz=2790.0, memory_mhz=13365.0, temperature_c=70.0)
    card = {
        "sm_max_mhz": 3090,
        "memory_max_mhz": 14001,
        "power_default_w": 600.0,
        "power_max_w": 600.0,
    }
    more = {
        "memory_total_bytes": 102.6e9,
        "temperature_slowdown_c": 90.0,
        "virtualization": "passthrough",
    }
    base = {
        "plan_context": served(
            "sglang", MISTRAL_AWQ, mem_fraction_static=0.92, chunked_prefill_size=16384
        ),
        "sizes": MISTRAL_AWQ,
        "gpus": gpus(PRO_6000, 1, limit_w=600.0, power_w=503.0, **card, **more),
        "summary": summary(22.7, gpu=gpu),
        "ceiling_tok_s": 26.69,
    }
    return facts(**{**base, **fields})


def four_cards(**fields: Any) -> Facts:
    """Return Qwen3-VL-2B on four PCIe cards in eager mode with eight streams: 51.5 of 1808 tok/s
    per stream."""
    base = {
        "plan_context": served(sizes=QWEN_2B, tensor_parallel_size=4, enforce_eager=True),
        "sizes": QWEN_2B,
        "gpus": gpus(
            A100, 4, memory_total_bytes=42.9e9, limit_w=250.0, power_w=70.0, power_default_w=250.0
        ),
        "summary": summary(51.5, gpu=during(gpu_util_pct=95.0, sm_mhz=1410.0, memory_mhz=1215.0)),
        "ceiling_tok_s": 1808.0,
    }
    return facts(8, **{**base, **fields})
