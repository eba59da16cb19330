"""SimulatedHost: commands run with the simulated programs and files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_process import Engine, wait_for
from support.engine_log_lines import ADDRESS, READY
from support.natural_host import natural_host

from workbench import engines
from workbench.hosts.base import Host
from workbench.hosts.local import LocalHost
from workbench.model.errors import InputError
from workbench.model.preset import Preset
from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.sim.simulated_host import SimulatedHost
from workbench.store.presets import ListedPreset, PresetLibrary

ENTRIES = [e for e in PresetLibrary().list() if e.origin == "shipped"]
# of each engine on each host
FIRST = {(e.engine, natural_host(e)): e.id for e in reversed(ENTRIES)}


def each_preset() -> Iterator[object]:
    """Yield the shipped presets. All but one of each engine on each host are for the long suite."""
    for entry in ENTRIES:
        quick = entry.id in FIRST.values()
        long = (pytest.mark.slow, pytest.mark.long)
        yield pytest.param(entry, id=entry.id, marks=() if quick else long)


@pytest.fixture
def host(tmp_path) -> SimulatedHost:
    return SimulatedHost(LocalHost(), "rtx-pro-6000-passthrough", str(tmp_path / "sim" / "passed"))


def test_commands_run_on_the_simulated_host(host, tmp_path):
    async def run() -> None:
        await host.connect()
        assert (
            isinstance(host, Host)
            and host.connected
            and host.name == "sim:rtx-pro-6000-passthrough"
        )
        assert await host.state_dir() == str(tmp_path / "sim" / "passed")
        done = await host.run(["nvidia-smi", "-lgc", "3000,3090"], check=True)
        assert 'GPU clocks set to "(gpuClkMin 3000, gpuClkMax 3090)"' in done.out
        remembered = SimState(host.driver_state, host.profile).settings()[0]
        assert remembered.gpu_lock_mhz == (3000, 3090)
        echoed = await host.run(
            ["sh", "-c", "echo $MINE $WORKBENCH_SIM_PROFILE"], env={"MINE": "yes"}
        )
        assert echoed.out.split() == ["yes", "rtx-pro-6000-passthrough"]
        other = await host.run(
            ["sh", "-c", "command -v vllm; command -v nvidia-smi"], env={"PATH": "/usr/bin:/bin"}
        )
        assert other.out.split() == [
            str(Path(profiles.__file__).parent / "bin" / n) for n in ("vllm", "nvidia-smi")
        ]
        stream = await host.stream(["nvidia-smi", "-L"])
        lines = [line async for line in stream.lines()]
        assert lines[0].startswith(b"GPU 0: NVIDIA RTX PRO 6000")
        await stream.close()
        await host.write_file(f"{await host.state_dir()}/x", b"abc")
        assert await host.read_file(f"{await host.state_dir()}/x", offset=1) == b"bc"
        await host.close()

    asyncio.run(run())


def test_two_hosts_on_one_directory_share_their_gpus_and_profiles_do_not(tmp_path):
    async def run() -> None:
        one, same = (
            SimulatedHost(LocalHost(), "rtx-pro-6000", str(tmp_path / "a")) for _ in range(2)
        )
        await one.run(["nvidia-smi", "-pl", "400"], check=True)
        query = ["nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader"]
        assert (await same.run(query)).out == "400.00 W\n"
        apart = SimulatedHost(LocalHost(), "rtx-pro-6000", str(tmp_path / "b"))
        assert (await apart.run(query)).out == "600.00 W\n"

    asyncio.run(run())


def test_facts_name_the_simulated_profile(tmp_path):
    async def facts(profile: str):
        return await SimulatedHost(LocalHost(), profile, str(tmp_path / profile)).facts()

    passed = asyncio.run(facts("rtx-pro-6000-passthrough"))
    assert passed.simulated == "rtx-pro-6000-passthrough" and passed.virtualization == "vmware"
    assert (
        passed.nvidia_smi
        and passed.nvidia_smi.endswith("/bin/nvidia-smi")
        and os.access(passed.nvidia_smi, os.X_OK)
    )
    assert asyncio.run(facts("gb10")).memory_total_bytes == 127600748 * 1024


def test_unknown_profile_is_an_input_error(tmp_path):
    with pytest.raises(InputError) as caught:
        SimulatedHost(LocalHost(), "abacus", str(tmp_path))
    assert "abacus" in str(caught.value) and "rtx-pro-6000-passthrough" in str(caught.value)


def test_a_machine_without_workbenchs_files_cannot_be_simulated(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.sim.simulated_host.BIN", str(tmp_path / "elsewhere"))
    with pytest.raises(InputError, match="own files"):
        asyncio.run(SimulatedHost(LocalHost(), "gb10", str(tmp_path / "far")).connect())
    assert not (tmp_path / "far").exists()


def test_all_documented_profiles_exist():
    one = {"rtx-pro-6000": 1, "rtx-pro-6000-passthrough": 1, "gb10": 1, "h100-mig": 1}
    several = {"rtx-5060ti-x2": 2, "rtx-5060ti-old-stack": 2, "gb10-x2": 2, "four-pcie": 4}
    counts = {name: p.count for name, p in profiles.PROFILES.items()}
    assert counts == one | several
    uuids = [p.uuid(i) for p in profiles.PROFILES.values() for i in range(p.count)]
    assert len(set(uuids)) == len(uuids)


@pytest.mark.ci_cases(5)
@pytest.mark.parametrize("entry", list(each_preset()))
def test_every_preset_starts_on_its_simulated_host(entry: ListedPreset, tmp_path, start_engine):
    """The command of a real launch reaches its ready line in the simulated host's environment."""
    preset = Preset.model_validate(tomllib.loads(Path(entry.path).read_text()))
    profile = natural_host(entry)
    simulated = SimulatedHost(LocalHost(), profile, str(tmp_path / "sim"))
    asyncio.run(simulated.connect())
    variables = {name: v.default or v.example or "" for name, v in preset.variables.items()}
    variables.update({n: v for n, v in simulated.preset_variables.items() if n in variables})
    engine = engines.get_engine(preset.engine.name)
    plan = engines.plan_from_preset(preset, variables=variables).without_flag("port")
    command = engine.command(plan)
    at = command.argv.index("--port")
    words = (*command.argv[:at], *command.argv[at + 2 :])
    server: Engine = start_engine(*words, profile=profile, cwd=command.workdir, **command.env)
    server.wait_ready()
    wait_for(
        lambda: any(READY[engine.name].search(line) for line in server.log.splitlines()),
        "the ready line",
    )
    phases = [
        phase for line in server.log.splitlines() if (phase := engine.start_phase_in_log_line(line))
    ]
    assert len(phases) >= 6
    assert ADDRESS[engine.name].search(server.log).group("url") == f"http://127.0.0.1:{server.port}"


def test_simulated_programs_run_with_an_old_python(sim_env):
    """python3 of the host may be 3.9, the oldest supported version."""
    old = next(Path(sys.base_prefix).parent.glob("3.9*/bin/python3"), None)
    if old is None:
        pytest.skip("no Python 3.9 here")
    env = {**sim_env("gb10"), "PATH": f"{old.parent}:{sim_env('gb10')['PATH']}"}
    for command in (["nvidia-smi", "-L"], ["vllm", "--version"], ["vllm", "serve", "--help"]):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_pids_of_simulated_workers_belong_to_no_process_of_this_machine() -> None:
    """The doctor of a simulated host also reads the processes of this machine. With the pid of one
    of them, a worker would count as a process of Workbench."""
    largest_pid = 2**22  # the limit of Linux
    lines = [line for profile in profiles.PROFILES.values() for line in profile.doctor]
    pids = [int(line.split()[0].removeprefix("worker=")) for line in lines if "worker=" in line]
    assert pids and min(pids) > largest_pid
