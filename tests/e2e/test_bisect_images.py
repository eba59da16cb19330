"""A bisection over images: real podman, with a simulated engine of its own in each image."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.container_servers import engine, on_path, seen
from support.podman import Podman, _image
from support.serving import free_port

from workbench.sim import engine_server
from workbench.store import paths

__all__ = ["engine", "on_path"]
pytestmark = [pytest.mark.slow, pytest.mark.long]
_PROGRAM = """#!/bin/sh
export WORKBENCH_SIM_PROFILE=rtx-pro-6000 WORKBENCH_SIM_STATE=/tmp/sim WORKBENCH_SIM_START_S=0.2
export WORKBENCH_SIM_SPEEDUP=2
exec {python} {server} --engine vllm "$@" {words}
"""
_PRESET = """schema = 1
id = "stub"
title = "A simulated engine in an image"
summary = "For tests."

[hardware]

[provenance]
document = "tests"
status = "untested"

[engine]
name = "vllm"
image = "stub:a"

[model]
id = "Qwen/Qwen3-0.6B"

[flags]
port = {port}

[launch]
run_as = "podman"

[launch.run_options]
gpus = "none"
grace = "1"
hub-cache = "none"
mount = [{mounts}]

[benchmark]
concurrency = [4]
requests = 8
input_tokens = 32
max_tokens = 64
"""


def image_of(words: str) -> bytes:
    """Return an image whose /opt/vllm starts a simulated vLLM with these flags added."""
    program = _PROGRAM.format(python=sys.executable, server=engine_server.__file__, words=words)
    buffer = io.BytesIO(_image())
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        for name, data in (("opt", b""), ("opt/vllm", program.encode())):
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.REGTYPE if data else tarfile.DIRTYPE
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.timeout(1800)
def test_the_first_bad_image_is_found(cli: Callable[..., Any], engine: Podman) -> None:
    """The last two images start the engine eagerly, which costs it most of its speed."""
    for tag, words in (("a", ""), ("b", "--enforce-eager"), ("c", "--enforce-eager")):
        path = "ENV PATH=/opt:/usr/local/bin:/usr/bin:/bin"
        engine("import", "--change", path, "-", f"stub:{tag}", input=image_of(words))
    mounts = [word.removeprefix("mount=") for word in seen() if word.startswith("mount=")]
    listed = ", ".join(f'"{word}"' for word in mounts)
    file = Path(paths.own_presets_dir(), "stub.toml")
    file.parent.mkdir(parents=True)
    file.write_text(_PRESET.format(port=free_port(), mounts=listed))
    started = cli("start", "stub", "--trust", "--wait", "--json")
    assert started.code == 0, started.err
    assert cli("stop", started.document["run_id"]).code == 0
    images = [f"image:stub:{tag}" for tag in "abc"]
    ran = cli("bisect", "stub", *images, "--pairs", "3", "--yes")
    assert ran.code == 0 and "image:stub:b is the first bad version" in ran.out, (ran.out, ran.err)
    assert "2 experiments" in ran.out
