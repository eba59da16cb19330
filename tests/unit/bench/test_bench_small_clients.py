"""The smallest load clients, with which benchmarks compare Workbench's, count every token."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from truth_server import TruthProcess

CLIENTS = Path(__file__).resolve().parents[2] / "benchmarks" / "clients"
STREAMS, REQUESTS, TOKENS = 6, 20, 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "compiler"),
    [("sse_client.c", ("cc", "-O2", "-D_GNU_SOURCE")), ("sse_client.rs", ("rustc", "-O"))],
)
@pytest.mark.ci_cases(2)
@pytest.mark.parametrize(
    "server", [("--ttft-ms", "20", "--itl-ms", "10"), ("--ttft-ms", "0", "--itl-ms", "0")]
)
def test_a_small_client_counts_every_token(
    source: str, compiler: tuple[str, ...], server: tuple[str, ...], tmp_path: Path
) -> None:
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"{compiler[0]} is not installed")
    program = tmp_path / "client"
    subprocess.run(
        [*compiler, "-o", str(program), str(CLIENTS / source)], check=True, capture_output=True
    )
    with TruthProcess(*server) as truth:
        words = (truth.url, str(STREAMS), str(REQUESTS), str(TOKENS))
        done = subprocess.run(
            [str(program), *words], capture_output=True, text=True, timeout=60, check=True
        )
        sent = sum(len(one["sent_ns"]) for one in truth.stop().values())
    said = json.loads(done.stdout)
    assert (
        (said["completed"], said["total_output_tokens"])
        == (REQUESTS, REQUESTS * TOKENS)
        == (REQUESTS, sent)
    )
    if "20" in server:
        # milliseconds; a busy machine is late
        assert 20 <= said["mean_ttft_ms"] < 2000 and 9 <= said["mean_itl_ms"] < 1000
