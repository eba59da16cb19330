"""Models as the Hugging Face hub's cache and directories have them: weights with real headers,
index, configuration."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

COMMIT = "5c3af7bd5ad5f7a3a2f1c2d5a0a0a5b5c5d5e5f5"
CONFIG = {"num_hidden_layers": 2, "hidden_size": 64, "torch_dtype": "bfloat16"}


def safetensors(size: int, seed: int = 0) -> bytes:
    """Return a safetensors file with one tensor of `size` random bytes."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + random.Random(seed).randbytes(size)


def model_files(shards: int = 2, size: int = 300_000, seed: int = 0) -> dict[str, bytes]:
    """Return the files of a model, by name."""
    names = [f"model-{n:05}-of-{shards:05}.safetensors" for n in range(1, shards + 1)]
    files = {name: safetensors(size, seed + number) for number, name in enumerate(names)}
    index = {
        "metadata": {"total_size": shards * size},
        "weight_map": {f"w{n}": name for n, name in enumerate(names)},
    }
    files["model.safetensors.index.json"] = json.dumps(index, indent=1).encode()
    files["config.json"] = json.dumps(CONFIG).encode()
    files["original/tokenizer.model"] = b"words and \xff bytes"
    return files


def in_directory(directory: Path, **how: int) -> Path:
    """Write a model into a directory, and return the directory."""
    for name, data in model_files(**how).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


def in_hub(hub: Path, model: str = "org/tiny", **how: int) -> Path:
    """Write a model into a cache of the hub, and return its snapshot directory. Large files are
    named by their SHA-256, others by a hash of git."""
    folder = hub / f"models--{model.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for name, data in model_files(**how).items():
        large = name.endswith(".safetensors")
        blob = hashlib.sha256(data).hexdigest() if large else hashlib.sha1(data).hexdigest()
        (folder / "blobs" / blob).write_bytes(data)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("../" * (2 + name.count("/")) + f"blobs/{blob}")
    return snapshot
