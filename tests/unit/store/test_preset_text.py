"""A preset as text: nothing that a preset says is left out."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.model.preset import Preset
from workbench.store.preset_text import preset_sections
from workbench.store.presets import PresetLibrary

PRESET = {
    "id": "mine",
    "title": "Mine",
    "summary": "A summary.",
    "hardware": {"gpu_names": ["RTX A", "RTX B"], "count": 2, "platform": "esxi passthrough"},
    "engine": {
        "name": "vllm",
        "versions": ">=0.14",
        "executable": ["${tool}", "run"],
        "workdir": "/srv/work",
    },
    "model": {"id": "org/tiny", "quantization": "fp8"},
    "flags": {"enforce-eager": True, "max-num-seqs": 16, "hf-overrides": {"a": 1}},
    "env": {"NCCL_DEBUG": "INFO"},
    "gpu_settings": [{"power_limit_w": 400, "reason": "heat"}],
    "host_settings": [{"name": "IOMMU", "value": "pt", "reason": "peer to peer"}],
    "nodes": [
        {"name": "head", "rank": 0},
        {"name": "worker", "rank": 1, "flags": {"headless": True}},
    ],
    "variables": {"tool": {"description": "the program", "default": "/opt/vllm"}},
    "benchmark": {"profile": "chat", "requests": 64, "concurrency": [1, 8]},
    "baseline": "parent",
    "references": [
        {
            "metric": "output",
            "value": 8610.0,
            "unit": "tok/s",
            "conditions": "c64",
            "status": "claimed",
            "source": "s1",
        }
    ],
    "claims": [
        {
            "text": "4x",
            "verdict": "false",
            "correct": "PCIe limits it",
            "basis": "arithmetic",
            "lines": "15, 45",
        },
        {"text": "2x", "verdict": "unproven", "correct": "1.1x", "basis": "reasoning"},
    ],
    "caveats": ["Needs a fan."],
    "provenance": {
        "document": "guide.md",
        "status": "corrected",
        "date": "2025-10",
        "note": "A note.",
    },
}


def test_the_text_of_a_preset_contains_its_facts() -> None:
    sections = {
        s.title: [(line.label, line.text, line.sign) for line in s.lines]
        for s in preset_sections(Preset.model_validate(PRESET))
    }
    assert sections == {
        "": [
            ("engine", "vllm >=0.14", ""),
            ("program", "/opt/vllm run", ""),
            ("directory", "/srv/work", ""),
            ("model", "org/tiny fp8", ""),
            ("hardware", "2 x RTX A or RTX B", ""),
            ("platform", "esxi passthrough", ""),
            ("baseline", "parent", ""),
            ("benchmark", "chat, 64 requests, 128 tokens in, 128 out, concurrency 1, 8", ""),
            ("source", "guide.md (corrected, 2025-10) A note.", ""),
        ],
        "Settings": [
            ("", text, "")
            for text in (
                "--enforce-eager",
                "--max-num-seqs 16",
                '--hf-overrides {"a": 1}',
                "NCCL_DEBUG=INFO",
            )
        ],
        "Settings of node 1: worker": [("", "--headless", "")],
        "Variables": [("", "tool: the program (default /opt/vllm)", "")],
        "GPU settings (applied by `presets apply` and by A on the screen, not by loading the "
        "preset)": [("", "GPU all: power limit 400 W (heat)", "")],
        "Host settings (Workbench never applies them)": [("", "IOMMU = pt (peer to peer)", "")],
        "Caveats": [("", "Needs a fan.", "warn")],
        "Claims of guide.md": [
            ("", "false: 4x -> PCIe limits it (arithmetic; lines 15, 45)", "bad"),
            ("", "unproven: 2x -> 1.1x (reasoning)", "unproven"),
        ],
        "Reference results": [("", "output 8,610 tok/s: c64 (claimed; s1)", "")],
    }


def shown(preset_id: str) -> str:
    return "\n".join(
        f"{line.label} {line.text}"
        for s in preset_sections(PresetLibrary().get(preset_id))
        for line in s.lines
    )


def test_a_shipped_preset_shows_its_limit_its_weights_and_every_claim_of_its_write_ups() -> None:
    text = shown("vllm-llama-3.3-70b-2x-spark")
    assert (
        "limit 3.928 tok/s for one stream (nominal bandwidth, 546 GB/s, by 139 GB per token)"
    ) in text
    assert (
        "weights 139 GB read per token, 141.1 GB in memory, 80 layers, 320 KiB of KV cache "
        "per token"
    ) in text
    assert "decode tok/s per stream 3.17 tok/s, 81 % of the limit 3.93" in text
    assert "--master-addr 192.168.100.1 (asked for)" in text and "${" not in text
    assert "Inference has no backward pass" in text
    both = shown("sglang-mistral-large-awq-optimized")
    assert (
        "FA4 is written for the tcgen05" in both
        and ("base64 breaks lines at 76 characters") in both
    )


def test_a_small_preset_has_no_empty_sections() -> None:
    names = ("id", "title", "summary", "engine", "model", "hardware", "provenance")
    small = Preset.model_validate(
        {name: PRESET[name] for name in names} | {"engine": {"name": "vllm"}}
    )
    assert [section.title for section in preset_sections(small)] == [""]


@pytest.mark.parametrize(
    "size", ["two", "9" * 5000, "1e999", float("inf"), float("nan"), ["1", "2"], 0, -3, 2**63]
)
def test_a_parallel_size_that_is_none_counts_as_one(size: Any) -> None:
    def limit(flags: dict[str, Any]) -> list[str]:
        hardware = {"gpu_names": ["NVIDIA GeForce RTX 5090"], "count": 1}
        model = {"id": "org/tiny", "bytes_per_token_gb": 2.0}
        preset = Preset.model_validate(
            {**PRESET, "hardware": hardware, "model": model, "flags": flags}
        )
        return [
            line.text
            for section in preset_sections(preset)
            for line in section.lines
            if line.label == "limit"
        ]

    assert limit({"tensor-parallel-size": size, "data-parallel-size": size}) == limit({}) != []
