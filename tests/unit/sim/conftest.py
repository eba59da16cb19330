"""Simulated hosts in a test's own directory, and engine processes that end with the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sim_process import Engine, free_port

from workbench.sim import profiles
from workbench.sim.driver_state import SimState

SIM = Path(profiles.__file__).parent


@pytest.fixture
def sim_state(tmp_path: Path) -> Callable[[str], SimState]:
    def make(profile: str) -> SimState:
        return SimState(str(tmp_path / "driver" / profile), profiles.get_profile(profile))

    return make


@pytest.fixture
def sim_env(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Return a function that gives the environment of a command on the simulated host `profile`."""

    def make(profile: str) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{SIM / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "WORKBENCH_SIM_PROFILE": profile,
            "WORKBENCH_SIM_STATE": str(tmp_path / "driver" / profile),
            "WORKBENCH_SIM_START_S": "0.01",
            "WORKBENCH_SIM_NOISE": "0",
        }

    return make


@pytest.fixture
def start_engine(
    tmp_path: Path, sim_env: Callable[[str], dict[str, str]], sim_state: Callable[[str], SimState]
) -> Iterator[Callable[..., Engine]]:
    """Return start_engine("vllm", "serve", "MODEL", …, profile=…, NAME=value), which starts a
    process."""
    running: list[Engine] = []

    def start(
        *argv: str,
        profile: str = "rtx-pro-6000",
        port: int | None = None,
        cwd: str | None = None,
        **env: str,
    ) -> Engine:
        port = port or free_port()
        log = tmp_path / f"engine-{len(running)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*argv, "--port", str(port)],
                env={**sim_env(profile), **env},
                cwd=cwd or tmp_path,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        engine = Engine(process, port, log, sim_state(profile))
        running.append(engine)
        return engine

    yield start
    for engine in running:
        for pid in {*engine.members(), engine.process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        engine.process.wait()
