"""`doctor` names the packages of a real engine, without importing them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import engine_cache
import pytest

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(60)]


def test_the_packages_of_a_real_vllm(tmp_path: Path) -> None:
    program = Path(engine_cache.executable("vllm"))
    env = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(tmp_path),
    }
    began = time.monotonic()
    argv = [sys.executable, "-m", "workbench", "doctor", "--json"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    took_s = time.monotonic() - began
    document = json.loads(done.stdout)
    engine = next(engine for engine in document["engines"] if engine["engine"] == "vllm")
    found = next(one for one in document["packages"] if one["engine"] == "vllm")
    assert engine["path"] == str(program) and found["versions"]["vllm"] == engine["version"]
    assert (
        found["problem"] is None
        and found["versions"]["torch"].endswith("+cpu")
        and found["cuda"] == "none"
    )
    assert took_s < 3
