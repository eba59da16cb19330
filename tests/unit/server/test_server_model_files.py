"""Tests of facts about a model from its files on a real host: a directory, the hub's cache, a single file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from workbench.hosts.local import LocalHost
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.server.model_files import read_facts

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
    return asyncio.run(read_facts(LocalHost(), LaunchPlan("vllm", model, flags=flags), env or {}))


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
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "../../../etc/x.safetensors"}
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


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\udcff"])
def test_a_broken_configuration_is_named(checkpoint: Path, text: str) -> None:
    (checkpoint / "config.json").write_text(text, errors="surrogateescape")
    shard(checkpoint / "model.safetensors", 1000)
    assert "not valid JSON" in (read(str(checkpoint)).missing or "")


def test_nothing_there(tmp_path: Path) -> None:
    assert "no model files were found" in (read(f"{tmp_path}/none").missing or "")
    assert "no model files were found" in (read("org/none", {"HF_HOME": str(tmp_path)}).missing or "")
