"""Patterns for the log lines of each engine, tried on real lines."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from workbench import engines
from workbench.model.server_run import EngineMetrics

VLLM = "(APIServer pid=17) INFO 11-20 23:20:11 [some.py:1] "


@pytest.mark.parametrize(
    ("engine", "line", "phase"),
    [
        (
            "vllm",
            "Loading safetensors checkpoint shards:  33% Completed | 1/3 [00:00<00:00, 81.17it/s]",
            "loading weights 33 %",
        ),
        (
            "vllm",
            VLLM + "Resolved architecture: LlamaForCausalLM",
            "reading the model's configuration (LlamaForCausalLM)",
        ),
        ("vllm", VLLM + "GPU KV cache size: 416,770 tokens", "KV cache of 416,770 tokens"),
        (
            "vllm",
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  45%|████",
            "capturing CUDA graphs 45 %",
        ),
        ("vllm", VLLM + "POST /v1/chat/completions 200", None),
        (
            "sglang",
            "Multi-thread loading shards:  50% Completed | 1/2 [00:00<00:00, 12.52it/s]",
            "loading weights 50 %",
        ),
        (
            "sglang",
            "[x] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 65536, K size: 0.03 GB",
            "KV cache of 65536 tokens",
        ),
        ("tabbyapi", "Loading model modules ━━━━━  40% 26/65 0:00:03", "loading weights 40 %"),
        ("llamacpp", "0.00.1 I srv load_model: loading model 'tiny.gguf'", "loading weights"),
        ("llamacpp", "load_tensors: offloaded 33/33 layers to GPU", "33 of 33 layers on the GPU"),
    ],
)
def test_phases(engine: str, line: str, phase: str | None) -> None:
    assert engines.get_engine(engine).start_phase_in_log_line(line) == phase


def test_moved_port() -> None:
    tabby = engines.get_engine("tabbyapi")
    assert tabby.moved_port_log is not None
    moved = tabby.moved_port_log.search(
        "WARNING:  Port 5000 is currently in use. Switching to 5001."
    )
    assert moved and moved.groupdict() == {"busy": "5000", "port": "5001"}


def test_versions_of_other_software_are_not_the_version_of_vllm() -> None:
    version = engines.get_engine("vllm").version_log
    for line, expected in {
        VLLM + "  █▄█▀ █ █  version 0.32.0": "0.32.0",
        VLLM + "vLLM API server version 0.11.0": "0.11.0",
        VLLM + "Initializing a V1 LLM engine (v0.32.0+cpu) with config: model='m'": "0.32.0+cpu",
        "NCCL version 2.27.3+cuda12.8": None,
        "driver version 580.95.05": None,
    }.items():
        found = version.search(line)
        assert (found["version"] if found else None) == expected


def test_metrics_name_known_quantities() -> None:
    for name in engines.engine_names():
        engine = engines.get_engine(name)
        assert set(engine.metrics) <= set(engines.METRICS)
        assert bool(engine.metrics) == (engine.metrics_path is not None)
        assert all(
            re.fullmatch(r"[a-z]+:[a-z0-9_]+", n)
            for several in engine.metrics.values()
            for n in several
        )
        assert engine.metrics_flag is None or engine.metrics_flag in engine.catalog().flags
    assert {"running", "waiting", "prompt_tokens", "generation_tokens"} <= {
        f.name for f in fields(EngineMetrics)
    }
