"""Simulated engines for tests of instruments, and the instruments on them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from support.serving import free_port

from workbench import engines
from workbench.quality.instrument import Instrument
from workbench.quality.lanes import interface_class
from workbench.server.small_requests import make_asker, make_get_without_body
from workbench.sim import profiles

SIM = Path(profiles.__file__).parent
QWEN = "Qwen/Qwen2.5-7B-Instruct"
ARGV = {
    "vllm": ("vllm", "serve", QWEN, "--max-model-len", "16384"),
    "sglang": ("sglang", "serve", "--model-path", QWEN, "--context-length", "16384"),
    "llamacpp": ("llama-server", "-m", "/simulated/Qwen2.5-7B-Q8_0.gguf", "--parallel", "8"),
    "tabbyapi": ("python", "main.py", "--model-name", "Qwen2.5-7B-8.0bpw", "--disable-auth", "1"),
}
READY_S = 20.0

T = TypeVar("T")
Measure = Callable[[Instrument], Awaitable[T]]


@pytest.fixture
def start_simulated(tmp_path: Path) -> Iterator[Callable[..., tuple[str, int]]]:
    """Return start_simulated(engine, *flags, fault="", speed=500), which gives the engine and its port."""
    running: list[subprocess.Popen[bytes]] = []

    def start(engine: str, *flags: str, fault: str = "", speed: int = 500) -> tuple[str, int]:
        port = free_port()
        env = {
            **os.environ,
            "PATH": f"{SIM / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "WORKBENCH_SIM_PROFILE": "rtx-pro-6000",
            "WORKBENCH_SIM_STATE": str(tmp_path / f"driver-{port}"),  # GPUs of its own
            "WORKBENCH_SIM_START_S": "0.01",
            "WORKBENCH_SIM_NOISE": "0",
            "WORKBENCH_SIM_SPEEDUP": str(speed),
            "WORKBENCH_SIM_FAULT": fault,
        }
        argv = [*ARGV[engine], *flags, "--port", str(port)]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=quiet, stderr=quiet)
        running.append(process)
        return engine, port

    yield start
    for process in running:
        process.terminate()
        process.wait()


@pytest.fixture
def on_server() -> Callable[[tuple[str, int], Measure[T]], T]:
    """Return on_server(server, measure), which runs `measure` with an instrument on a server."""

    def run(server: tuple[str, int], measure: Measure[T]) -> T:
        return asyncio.run(_measured(*server, measure))

    return run


async def _measured(engine: str, port: int, measure: Measure[T]) -> T:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        ask = make_asker(http)
        async with asyncio.timeout(READY_S):
            reply = await make_get_without_body(ask)("/v1/models", 1.0)
            while reply.status != 200:
                await asyncio.sleep(0.02)
                reply = await make_get_without_body(ask)("/v1/models", 1.0)
        name = engines.get_engine(engine).score_interface
        assert name is not None
        served = reply.body["data"][0]["id"]
        return await measure(Instrument(interface_class(name)(ask, served)))
