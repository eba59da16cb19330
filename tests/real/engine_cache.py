"""The engines that install.sh has installed, and the counters of one that runs."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.serving import stream

from workbench.model.server_run import ServerStatus
from workbench.server.supervisor import Supervisor

# Read when this is imported: every test then has clean WORKBENCH_* and XDG_* variables.
_XDG = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
CACHE = Path(os.environ.get("WORKBENCH_ENGINE_CACHE") or _XDG / "workbench/engines")
MODEL = CACHE / "tiny-llama"


def executable(engine: str) -> str:
    """Return the installed engine's own command. Fails the test if the engine is not installed,
    since the user asked for it."""
    path = CACHE / engine / "bin" / engine
    if not path.exists() or not MODEL.exists():
        pytest.fail(f"{engine} is not in {CACHE}: run tests/real/install.sh {engine}")
    return str(path)


@dataclass(frozen=True)
class Counts:
    """Requests and tokens, as counted by the client or by the engine."""

    requests: int
    prompt_tokens: int
    generation_tokens: int


async def load(status: ServerStatus, lengths: list[int]) -> Counts:
    """Send streamed requests with the given output lengths, all at the same time. Return the usage
    that the answers report."""
    assert status.url is not None and status.served_model is not None
    prompts = [f"{n} def main(argument):\n    return argument" for n in range(len(lengths))]
    used = await asyncio.gather(
        *(
            stream(status.url, status.served_model, n, p)
            for n, p in zip(lengths, prompts, strict=True)
        )
    )
    assert [completion for _, completion in used] == lengths
    return Counts(len(used), sum(prompt for prompt, _ in used), sum(lengths))


async def counted(supervisor: Supervisor, run_id: str) -> Counts:
    """Return the engine's own counters since its start."""
    read = await supervisor.metrics(run_id)
    assert read.requests_finished is not None and read.prompt_tokens is not None, read.absent
    assert read.generation_tokens is not None, read.absent
    return Counts(read.requests_finished, read.prompt_tokens, read.generation_tokens)


def between(before: Counts, after: Counts) -> Counts:
    return Counts(
        after.requests - before.requests,
        after.prompt_tokens - before.prompt_tokens,
        after.generation_tokens - before.generation_tokens,
    )
