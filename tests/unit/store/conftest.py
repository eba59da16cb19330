from __future__ import annotations

from pathlib import Path

import pytest

MINIMAL = """\
# A comment that must survive.
schema = 1
id = "mine"
title = "Mine"
summary = "A small preset."

[hardware]
count = 1

[engine]
name = "vllm"  # which one

[model]
id = "${model}"

[variables.model]
description = "hub id or path"
default = "Qwen/Qwen3-0.6B"

[flags]
max-num-seqs = 16  # enough here
gpu-memory-utilization = 0.9

[provenance]
document = "none"
status = "untested"
"""


@pytest.fixture
def minimal() -> str:
    return MINIMAL


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    """Return the directory of the user's own presets and that of the shipped ones, both empty."""
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    own.mkdir()
    shipped.mkdir()
    return own, shipped
