"""The state of the simulated driver in files: shared, advanced by readers, without the loads of
dead engines."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from sim_process import wait_for

from workbench.model.setting_commands import why_setting_has_no_effect
from workbench.sim import driver_state as state
from workbench.sim import physics
from workbench.sim.driver_state import SimState

WORK = {"busy": 1.0, "memory": 0.97, "compute": 0.03, "memory_bytes": 70 << 30}


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_another_process_reads_the_same_settings(sim_state):
    mine, other = sim_state("four-pcie"), sim_state("four-pcie")
    assert other.settings()[2].limit_w is None
    mine.change_setting(2, limit_w=180.0, gpu_lock_mhz=[900, 1200])
    mine.change_setting(2, persistence=True)
    there = other.settings()[2]
    assert (there.limit_w, there.gpu_lock_mhz, there.persistence) == (180.0, (900, 1200), True)
    mine.change_setting(2, gpu_lock_mhz=None)
    assert other.settings()[2].gpu_lock_mhz is None and other.settings()[2].limit_w == 180.0
    assert other.settings()[1].limit_w is None


def test_settings_of_an_earlier_version_are_in_force(sim_state):
    """Its guard may still run, and reads and writes the file as before."""
    host: SimState = sim_state("four-pcie")
    host.change_setting(1, limit_w=180.0, persistence=True)
    file = Path(host.directory) / "settings.json"
    assert json.loads(file.read_text()) == {"1": {"power_limit_w": 180.0, "persistence": True}}
    file.write_text('{"1": {"power_limit_w": 200.0}}')
    assert sim_state("four-pcie").settings()[1].limit_w == 200.0


def test_a_load_ends_with_its_process(sim_state, sleeper):
    host: SimState = sim_state("four-pcie")
    host.publish_load(sleeper.pid, {1: WORK})
    busy = host.gpu_readings()
    assert busy[1].point.sm_mhz == 1410 and busy[1].gpu_util_pct > 90
    assert [p.pid for p in busy[1].processes] == [sleeper.pid] and busy[
        1
    ].memory_used_bytes == 70 << 30
    assert busy[0].gpu_util_pct == 0 and busy[0].processes == ()
    sleeper.kill()
    sleeper.wait()
    wait_for(lambda: host.gpu_readings()[1].processes == (), "the dead engine's load to vanish")
    assert host.gpu_readings()[1].gpu_util_pct == 0 and host.engine_memory_bytes(1) == 0


def test_a_reading_has_the_clocks_and_the_memory_of_one_look(sim_state, sleeper, monkeypatch):
    """An engine that ended in the middle of a reading left full clocks and no memory."""
    host: SimState = sim_state("four-pcie")
    host.publish_load(sleeper.pid, {1: WORK})
    advance = SimState._advance_simulation

    def ends_meanwhile(*of):
        sleeper.kill()
        sleeper.wait()
        host._alive_checked = 0.0
        return advance(*of)

    monkeypatch.setattr(SimState, "_advance_simulation", ends_meanwhile)
    reading = host.gpu_readings()[1]
    assert reading.gpu_util_pct > 90 and reading.memory_used_bytes == 70 << 30
    assert [process.pid for process in reading.processes] == [sleeper.pid]


def test_another_process_with_the_same_pid_does_not_inherit_the_load(
    sim_state, sleeper, monkeypatch
):
    host: SimState = sim_state("gb10")
    monkeypatch.setattr(state, "process_start_ticks", lambda pid: 1)
    host.publish_load(sleeper.pid, {0: WORK})
    monkeypatch.undo()
    assert sim_state("gb10").gpu_readings()[0].processes == ()


def test_a_load_that_is_not_refreshed_becomes_idle(sim_state, sleeper, monkeypatch):
    host: SimState = sim_state("rtx-pro-6000")
    host.publish_load(sleeper.pid, {0: WORK})
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + state.STALE_S + 1)
    later = sim_state("rtx-pro-6000").gpu_readings()[0]
    assert later.gpu_util_pct == 0 and later.memory_used_bytes == 70 << 30


def test_energy_is_power_over_time_for_every_reader(sim_state, sleeper, monkeypatch):
    clock = [time.time()]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    writer, reader = sim_state("rtx-pro-6000"), sim_state("rtx-pro-6000")
    for _ in range(40):  # an engine that refreshes its load twice a second
        writer.publish_load(sleeper.pid, {0: WORK})
        clock[0] += 0.5
    writer.publish_load(sleeper.pid, {0: {**WORK, "busy": 0.0, "memory": 0.0, "compute": 0.0}})
    at_end = reader.gpu_readings()[0]
    assert at_end.energy_j == pytest.approx(20 * 500, rel=0.03)
    assert 55 < at_end.temperature_c < 75
    assert sim_state("rtx-pro-6000").gpu_readings()[0].energy_j == pytest.approx(
        at_end.energy_j, rel=1e-6
    )
    clock[0] += 600
    cooled = sim_state("rtx-pro-6000").gpu_readings()[0]
    assert cooled.temperature_c < 35
    assert at_end.energy_j + 600 * 13 < cooled.energy_j < at_end.energy_j + 600 * 20


def test_energy_never_decreases_when_an_engine_is_killed(sim_state, sleeper, monkeypatch):
    clock = [time.time()]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    reader = sim_state("rtx-pro-6000")
    sim_state("rtx-pro-6000").publish_load(sleeper.pid, {0: WORK})
    seen = []
    for step in range(8):
        clock[0] += 0.4
        reader._moment = 0.0
        seen.append(reader.gpu_readings()[0].energy_j)
        if step == 3:
            sleeper.kill()
            sleeper.wait()
            # writes the moment down without that load
            sim_state("rtx-pro-6000").change_setting(0, persistence=True)
    assert seen == sorted(seen)


def test_a_reading_reads_no_file_again_and_computes_each_kind_of_load_once(
    sim_state, sleeper, monkeypatch
):
    """The telemetry agent has 0.3 ms for each GPU and reading."""
    clock = [time.time()]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    host: SimState = sim_state("four-pcie")
    host.publish_load(sleeper.pid, dict.fromkeys(range(4), WORK))
    host.gpu_readings()
    read, computed = [], []
    read_json, operating_point = state._read_json, physics.operating_point
    monkeypatch.setattr(state, "_read_json", lambda path: read.append(path) or read_json(path))
    monkeypatch.setattr(
        physics, "operating_point", lambda *of: computed.append(of) or operating_point(*of)
    )
    for _ in range(50):
        clock[0] += 0.01
        host._moment = 0.0
        assert len(host.gpu_readings()) == 4
    assert (read, computed) == ([], [])


def test_a_missing_environment_variable_is_reported(monkeypatch):
    with pytest.raises(SystemExit, match="WORKBENCH_SIM_PROFILE is not set"):
        state.sim_state_from_environment()
    monkeypatch.setenv("WORKBENCH_SIM_PROFILE", "abacus")
    monkeypatch.setenv("WORKBENCH_SIM_STATE", "/nowhere")
    with pytest.raises(
        SystemExit, match="no simulated host is called 'abacus'; known: rtx-pro-6000"
    ):
        state.sim_state_from_environment()


def test_a_clock_that_is_set_back_by_a_day_is_no_reload_of_the_driver(sim_state, monkeypatch):
    """The process that stored the energy had begun to count later than the one that read it before
    the change. With a clock that was set back, the counter stood there, and the entry was dropped."""
    now = [1_800_000_000.0]
    monkeypatch.setattr(state.time, "time", lambda: now[0])
    before = sim_state("rtx-pro-6000")
    before.gpu_readings()
    now[0] += 20.0
    monkeypatch.setattr(state, "SNAPSHOT_S", -1.0)
    entry = {"boot_id": "b", "energy_j": before.gpu_readings()[0].energy_j}
    sim_state("rtx-pro-6000").change_setting(0, limit_w=400.0)
    now[0] -= 86_400.0
    after = sim_state("rtx-pro-6000").gpu_readings()[0].energy_j
    assert why_setting_has_no_effect(entry, "b", after) is None
