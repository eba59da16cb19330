"""Tests of facts about a model from its files on a real host: a directory, the hub's cache, a
single file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support import tiny_gguf

from workbench.hosts.local import LocalHost
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.server.model_files import read_model_facts

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
EMBEDDING = 1000 * 64 * 2


def read(model: str, env: dict[str, str] | None = None, revision: str | None = None) -> ModelFacts:
    flags = (FlagSetting("revision", revision),) if revision else ()
    return asyncio.run(
        read_model_facts(LocalHost(), LaunchPlan("vllm", model, flags=flags), env or {})
    )


def shard(path: Path, size: int, *tensors: str) -> None:
    header = json.dumps({name: {} for name in tensors}).encode()
    path.write_bytes((len(header).to_bytes(8, "little") + header).ljust(size, b"\0"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "a model; touch here"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_one_file_with_a_head(checkpoint: Path) -> None:
    shard(checkpoint / "model.safetensors", 500_000, "lm_head.weight")
    shard(checkpoint / "consolidated.safetensors", 700_000)
    facts = read(str(checkpoint))
    assert (facts.weight_bytes, facts.bytes_per_token) == (500_000, 500_000 - EMBEDDING)
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2 and "config.json" in facts.source


def test_shards_that_the_index_names(checkpoint: Path) -> None:
    names = {
        "a": "model-1.safetensors",
        "b": "model-2.safetensors",
        "c": "../../../etc/x.safetensors",
    }
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    shard(checkpoint / "model-1.safetensors", 300_000)
    assert "1 of the model's weight files are missing" in (read(str(checkpoint)).missing or "")
    shard(checkpoint / "model-2.safetensors", 200_000)
    assert read(str(checkpoint)).bytes_per_token == 500_000  # tied: the embedding is the head


def test_the_hubs_cache_by_revision(tmp_path: Path, checkpoint: Path) -> None:
    shard(checkpoint / "model.safetensors", 400_000)
    folder = tmp_path / "hub" / "models--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    (folder / "snapshots").mkdir()
    checkpoint.rename(folder / "snapshots" / "c0ffee")
    env = {"HF_HUB_CACHE": str(tmp_path / "hub")}
    assert read("org/name", env).weight_bytes == 400_000
    assert "no model files were found in" in (read("org/name", env, revision="other").missing or "")


def test_a_gguf_file_in_parts(tmp_path: Path) -> None:
    for part in (1, 2):
        (tmp_path / f"m-0000{part}-of-00002.gguf").write_bytes(bytes(1000 * part))
    facts = read(f"{tmp_path}/m-00001-of-00002.gguf")
    assert facts.weight_bytes == 3000 and facts.bytes_per_token is None and facts.missing


def test_the_header_of_a_gguf_file(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny model.gguf")
    facts = read(str(path))
    assert facts.missing is None and "header" in facts.source
    assert facts.weight_bytes == pytest.approx(path.stat().st_size, rel=0.02)
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * 64 * 2 and facts.layers == 2
    # without the embedding
    assert facts.bytes_per_token and facts.bytes_per_token < facts.weight_bytes
    path.write_bytes(path.read_bytes()[:500])
    assert "cut off" in (read(str(path)).missing or "")


def test_tensors_of_a_mixture_of_experts(checkpoint: Path) -> None:
    sizes = {
        "embed_tokens.weight": 1000,
        "layers.0.mlp.experts.0.w.weight": 8000,
        "layers.0.self_attn.w": 100,
    }
    at, header = 0, {}
    for name, size in sizes.items():
        header[f"model.{name}"] = {
            "dtype": "BF16",
            "shape": [size // 2],
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    (checkpoint / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(at)
    )
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "vision_config": {}}
    (checkpoint / "config.json").write_text(json.dumps({**CONFIG, **experts}))
    facts = read(str(checkpoint))
    assert facts.bytes_per_token == 100 + 8000 / 4 + 1000 and facts.missing is None


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x1c"])
def test_a_header_names_no_other_file_to_read(checkpoint: Path, separator: str) -> None:
    note = f"a{separator}gguf=/etc/hostname{separator}bytes=12345678901"
    tensor = {"dtype": "BF16", "shape": [50], "data_offsets": [0, 100]}
    text = json.dumps(
        {"__metadata__": {"note": note}, "model.x": tensor}, ensure_ascii=False
    ).encode()
    (checkpoint / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(100)
    )
    facts = read(str(checkpoint))
    assert facts.weight_bytes == 8 + len(text) + 100 and facts.missing is None


def test_a_config_alone_tells_the_sizes(checkpoint: Path) -> None:
    more = {"intermediate_size": 128, "quantization_config": {"quant_method": "fp8"}}
    (checkpoint / "config.json").write_text(json.dumps({**CONFIG, **more}))
    facts = read(str(checkpoint))
    linear = 2 * (64 * 16 * 12 + 3 * 64 * 128)
    assert (
        facts.weight_bytes == linear + 2 * EMBEDDING and facts.bytes_per_token == linear + EMBEDDING
    )
    assert "without weight files" in facts.source and facts.missing is None


@pytest.mark.parametrize(
    "length", [b"\xff" * 8, (10**12).to_bytes(8, "little"), b"", (50).to_bytes(8, "little")]
)
def test_a_damaged_header_leaves_the_sizes_of_the_file(checkpoint: Path, length: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(length + b'{"a": \n"lm_head.weight\xff')
    facts = read(str(checkpoint))
    assert facts.weight_bytes is not None and facts.weight_bytes < 100


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\udcff"])
def test_a_broken_configuration_is_named(checkpoint: Path, text: str) -> None:
    (checkpoint / "config.json").write_text(text, errors="surrogateescape")
    shard(checkpoint / "model.safetensors", 1000)
    assert "not valid JSON" in (read(str(checkpoint)).missing or "")


def test_nothing_there(tmp_path: Path) -> None:
    assert "no model files were found" in (read(f"{tmp_path}/none").missing or "")
    assert "no model files were found" in (
        read("org/none", {"HF_HOME": str(tmp_path)}).missing or ""
    )
