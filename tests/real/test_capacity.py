"""The search for users on real engines on the CPU: three searches, each within ten minutes, do not
contradict each other, and their answers are within one user. It needs a quiet machine.

One request at a time more than the engine's slots waits for a slot, so the time to the first token
rises steeply there, and the right answer is near the number of slots.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import llama_server, tiny_gguf
from support.serving import free_port
from test_engine_live import watched, yield_cores
from test_vllm import plan as vllm_plan

from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.server_run import ServerStatus
from workbench.session.session import Session

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(2100)]
SLOTS = 4
LOAD = ("--max-tokens", "48", "--input-tokens", "32")
MOST_S = 600.0


class Found(NamedTuple):
    holds: int
    fails: int
    text: str
    seconds: float


async def asked(*words: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workbench", *words, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (out.decode()[-3000:], err.decode()[-2000:])
    return dict(json.loads(out))


async def searched(run_id: str, slo: str) -> Found:
    began_s = time.monotonic()
    found = await asked("capacity", run_id, "--slo", slo, "--most", "32", *LOAD)
    levels = {int(one["label"].split()[0]): one["slo_verdict"] for one in found["points"]}
    fails = min((users for users, verdict in levels.items() if verdict == "fails"), default=33)
    kept = [users for users, verdict in levels.items() if verdict == "holds" and users < fails]
    return Found(max(kept, default=0), fails, found["knee_text"], time.monotonic() - began_s)


async def agree(session: Session, status: ServerStatus) -> None:
    yield_cores(status)
    one = await asked("bench", status.run_id, "--concurrency", "2", *LOAD)
    slo = f"ttft<={max(5.0, 0.3 * one['e2e_ms']['p50']):.0f}@p95"
    answers = []
    for _ in range(3):
        answers.append(await searched(status.run_id, slo))
        print(f"\n{answers[-1].seconds:.0f} s: {slo}: {answers[-1].text}", flush=True)
    assert max(answer.seconds for answer in answers) < MOST_S
    highest = max(answer.holds for answer in answers)
    assert highest < min(answer.fails for answer in answers), "the answers contradict each other"
    assert highest - min(answer.holds for answer in answers) <= 1


def test_vllm() -> None:
    watched(vllm_plan(**{"max-num-seqs": SLOTS, "load-format": "dummy"}), agree)


def test_llamacpp(tmp_path: Path) -> None:
    flags = {
        "port": free_port(),
        "parallel": SLOTS,
        "ctx-size": 8192,
        "threads": 1,
        "metrics": True,
    }
    made = LaunchPlan(
        "llamacpp",
        str(tiny_gguf.write(tmp_path / "tiny.gguf")),
        flags=tuple(FlagSetting(name, value) for name, value in flags.items()),
        executable=(str(llama_server.install(tmp_path / "bin")),),
    )
    watched(made, agree)
