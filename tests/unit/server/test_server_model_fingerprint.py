"""Tests of model fingerprints with real files, through a real shell."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.userland import UserlandHost

from workbench.hosts.local import LocalHost
from workbench.model.flags import FlagSetting, Origin
from workbench.model.plan import LaunchPlan
from workbench.server.model_fingerprint import ModelFingerprint, read_model_fingerprint

MIB = 1 << 20


def look(
    model: str,
    flags: dict[str, str] | None = None,
    workdir: str | None = None,
    started: float | None = None,
    **env: str,
) -> ModelFingerprint:
    settings = tuple(FlagSetting(n, v, Origin.EDITED) for n, v in (flags or {}).items())
    plan = LaunchPlan("vllm", model, flags=settings)
    return asyncio.run(
        read_model_fingerprint(LocalHost(), plan, env, workdir, started_unix_s=started)
    )


def model(directory: Path, weights: bytes = b"w" * 3 * MIB) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text('{"a": 1}')
    (directory / "model-00001-of-00002.safetensors").write_bytes(weights)
    (directory / "a name with spaces.safetensors").write_bytes(b"x")
    (directory / "README.md").write_text("not a part of it")
    return directory


def hub(root: Path, commit: str = "5a1b") -> Path:
    """Create a cache in huggingface_hub's layout and return its root."""
    folder = root / "models--org--tiny"
    blobs = model(folder / "blobs")
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(os.path.relpath(file, snapshot))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    return root


def test_the_same_bytes_anywhere_are_the_same(tmp_path: Path) -> None:
    one, two = look(str(model(tmp_path / "one"))), look(str(model(tmp_path / "other name")))
    cached = look("org/tiny", HF_HUB_CACHE=str(hub(tmp_path / "hub")))
    assert one.digest is not None and one.digest == two.digest == cached.digest
    assert one.basis == "3 files, 0.00315 GB: names, sizes, first and last 64 KiB of each"
    assert cached.basis == f"{one.basis}; Hugging Face commit 5a1b"


@pytest.mark.parametrize(
    "change", ["config", "first byte", "last byte", "cut off", "renamed", "one more"]
)
def test_other_bytes_differ(tmp_path: Path, change: str) -> None:
    before = look(str(model(tmp_path / "m"))).digest
    weights = tmp_path / "m" / "model-00001-of-00002.safetensors"
    data = b"w" * 3 * MIB
    if change == "config":
        (tmp_path / "m" / "config.json").write_text('{"a": 2}')
    elif change == "renamed":
        weights.rename(tmp_path / "m" / "model.safetensors")
    elif change == "one more":
        (tmp_path / "m" / "extra.safetensors").write_bytes(b"")
    else:
        other = {"first byte": b"W" + data[1:], "last byte": data[:-1] + b"W", "cut off": data[:-1]}
        weights.write_bytes(other[change])
    after = look(str(tmp_path / "m")).digest
    assert after is not None and after != before


def test_files_that_are_no_part_of_a_model_do_not_count(tmp_path: Path) -> None:
    before = look(str(model(tmp_path / "m"))).digest
    (tmp_path / "m" / "README.md").write_text("rewritten")
    assert look(str(tmp_path / "m")).digest == before


def test_places_of_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own environment first, then the host's, then a revision by name and by commit."""
    wanted = look("org/tiny", HF_HOME=str(hub(tmp_path / "home" / "hub").parent))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert look("org/tiny") == wanted and wanted.digest
    (tmp_path / "home/hub/models--org--tiny/refs/v2").write_text("5a1b")
    for revision in ("v2", "5a1b"):
        assert look("org/tiny", {"revision": revision}) == wanted
    assert look("org/tiny", {"revision": "v3"}).digest is None


def test_a_gguf_file_with_all_its_parts(tmp_path: Path) -> None:
    for part in (1, 2):
        (tmp_path / f"m-0000{part}-of-00002.gguf").write_bytes(bytes([part]) * 200_000)
    (tmp_path / "m-00001-of-00003.gguf").write_bytes(b"another one's")
    two = look("m-00001-of-00002.gguf", workdir=str(tmp_path))
    assert two.digest and two.basis.startswith("2 files, 0.0004 GB")
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(b"\x03" * 200_000)
    assert look("./m-00001-of-00002.gguf", workdir=str(tmp_path)).digest != two.digest


def test_a_model_directory_flag(tmp_path: Path) -> None:
    model(tmp_path / "models" / "tiny")
    found = look("tiny", {"model-dir": str(tmp_path / "models")})
    assert found.digest and found == look(str(tmp_path / "models" / "tiny"))


def test_files_changed_since_the_start_prove_nothing(tmp_path: Path) -> None:
    model(tmp_path / "m")
    for file in (tmp_path / "m").iterdir():
        os.utime(file, (1e9, 1e9))
    assert look(str(tmp_path / "m"), started=1e9 + 5).digest
    (tmp_path / "m" / "config.json").write_text("{}")
    found = look(str(tmp_path / "m"), started=1e9 + 5)
    assert found.digest is None and "changed after the server started" in found.basis


def test_missing_metrics_have_reasons(tmp_path: Path) -> None:
    missing = look("org/tiny; touch here", HF_HUB_CACHE=str(tmp_path))
    assert missing.digest is None
    assert missing.basis == (
        f"no model files of org/tiny; touch here were found on local; searched {tmp_path}"
    )
    (tmp_path / "empty").mkdir()
    assert look(str(tmp_path / "empty")).basis == (
        f"no model files of {tmp_path / 'empty'} were found on local"
    )
    bare = asyncio.run(
        read_model_fingerprint(
            UserlandHost(str(tmp_path)), LaunchPlan("vllm", str(model(tmp_path / "m"))), {}
        )
    )
    assert bare.digest is None and bare.basis
