"""The trial of GPU paths on hosts behind a real sshd and in a real container, with the engine's own
Python there. A killed Workbench leaves nothing on them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import procs
from support.podman import Podman, podman
from support.serving import eventually
from support.ssh_box import driver_environment
from support.sshd import Sshd, sshd

import workbench
from workbench.doctor import multi_gpu
from workbench.engines import registry
from workbench.hosts.base import Host
from workbench.hosts.container import open_container
from workbench.hosts.local import LocalHost
from workbench.hosts.ssh import SshHost
from workbench.server.engine_probe import probe_engine

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
PROFILE = "rtx-5060ti-x2"
STAND_IN = Path(workbench.__file__).parent / "sim" / "stand_in"
TRIAL = """
import asyncio, sys
from workbench.doctor import multi_gpu
from workbench.hosts.ssh import SshHost
from workbench.server.engine_probe import InstalledEngine

async def work():
    host = SshHost("box", ssh_config=sys.argv[1])
    await host.connect()
    print("begins", flush=True)
    await multi_gpu.run_gpu_copy_trial(host, InstalledEngine("vllm", sys.argv[2], python=sys.argv[3]), 60.0)

asyncio.run(work())
"""


async def install(host: Host, directory: str, state: str) -> tuple[str, str]:
    """Write an engine with a Python of its own, whose torch is the stand-in. Return both programs."""
    program, python = f"{directory}/vllm", f"{directory}/python3"
    environment = f"WORKBENCH_SIM_PROFILE={PROFILE} WORKBENCH_SIM_STATE={state}"
    wrapper = f'#!/bin/sh\nPYTHONPATH={STAND_IN} {environment} exec {sys.executable} "$@"\n'
    await host.write_file(python, wrapper.encode(), mode=0o755)
    await host.write_file(program, f"#!{python}\nprint('0.33.0')\n".encode(), mode=0o755)
    return program, python


async def tried(host: Host, directory: str, state: str) -> multi_gpu.GpuPaths:
    await host.connect()
    try:
        program, python = await install(host, directory, state)
        found = await probe_engine(host, registry.get_engine("vllm"), (program,))
        assert found.python == python
        return multi_gpu.parse_gpu_paths(
            {}, await multi_gpu.run_gpu_copy_trial(host, found), "vllm"
        )
    finally:
        await host.close()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "sshd", environment=driver_environment(tmp_path, PROFILE)) as server:
        yield server


def named(state: Path) -> list[str]:
    """Return the processes of a trial with this state of the simulated driver."""
    word = f"WORKBENCH_SIM_STATE={state}\0".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            mine = word in entry.read_bytes() and b"PYTHONPATH=" in entry.read_bytes()
        except OSError:
            continue
        found += [entry.parent.name] if mine else []
    return found


def test_the_trial_over_ssh_and_a_killed_workbench(far: Sshd, tmp_path: Path) -> None:
    state = tmp_path / "gpus"
    host = SshHost(far.host_alias, ssh_config=far.ssh_config_path)
    paths = asyncio.run(tried(host, str(tmp_path), str(state)))
    assert paths.torch == "SIMULATED" and [pair.a for pair in paths.pairs] == [0]
    (state / "faults.json").write_text(json.dumps({"copies": {"hang": [[0, 1]]}}))
    argv = [sys.executable, "-c", TRIAL, str(far.ssh_config_path)]
    argv += [f"{tmp_path}/vllm", f"{tmp_path}/python3"]

    async def work() -> None:
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"begins\n"
            await eventually(lambda: len(named(state)) > 1, 60, "the child that hangs")
            process.kill()
        await eventually(lambda: not named(state), 10, "the end of all")

    asyncio.run(work())


def test_the_trial_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with podman(tmp_path) as engine:
        monkeypatch.setenv("PATH", engine.path)
        engine.start("paths-box")
        host = open_container(LocalHost(), "podman", "paths-box")
        paths = asyncio.run(tried(host, "/var/tmp/engine", "/var/tmp/gpus"))
        assert paths.torch == "SIMULATED" and paths.pairs and paths.reductions[0].is_correct
        procs.eventually(
            lambda: not [line for line in left_in(engine) if "python" in line], "the end of all"
        )


def left_in(engine: Podman) -> list[str]:
    return engine.processes("paths-box")
