"""A memory lock on GB202 is advised against wherever it is planned, with the source."""

from __future__ import annotations

import pytest
from test_gpu_proof import PRO, lock, proved, told

from workbench.cli.open_session import create_local_session
from workbench.engines import memory_locks
from workbench.gpu.settings.preset_settings import memory_lock_warning
from workbench.model.findings import Level
from workbench.model.setting_records import InForce
from workbench.model.settings import ClockRange, GpuSettings
from workbench.session.series.gpu_sweep_plan import warnings_about_setting

LOCK = GpuSettings(memory_clocks=ClockRange(13365, 13365))
POWER = GpuSettings(power_limit_w=400.0)
SMALL = "NVIDIA GeForce RTX 5060 Ti"


@pytest.mark.parametrize("selector", ["all", "0"])
def test_a_presets_memory_lock_on_gb202_is_advised_against(selector: str) -> None:
    found = memory_lock_warning([(selector, LOCK, "")], told())
    assert found is not None and found.level is Level.WARN and found.evidence == PRO
    assert found.source == memory_locks.SOURCE == "open-gpu-kernel-modules #1265, #1266"
    assert found.fix is not None and "tok/s with and without" in found.fix


@pytest.mark.parametrize(
    ("selector", "settings", "name"),
    [("all", POWER, PRO), ("1", LOCK, PRO), ("all", LOCK, SMALL), ("all", LOCK, "NVIDIA GB10")],
)
def test_other_settings_and_other_cards_are_not(
    selector: str, settings: GpuSettings, name: str
) -> None:
    assert memory_lock_warning([(selector, settings, "")], told(name)) is None


def test_gpus_that_are_not_known_give_no_warning() -> None:
    assert memory_lock_warning([("all", LOCK, "")], None) is None


@pytest.mark.parametrize(("name", "warned"), [(PRO, True), (SMALL, False)])
def test_the_plan_of_a_preset_with_a_memory_lock_says_so(name: str, warned: bool) -> None:
    session = create_local_session()
    session.core.update(telemetry=told(name))
    session.plans.edit_plan(
        session.presets.make_plan("rtx-pro-6000-clock-power-profile", {"model": "m"}), "title"
    )
    codes = [finding.code for finding in session.plans.view().findings]
    assert ("gpu.memory-lock" in codes) == warned


@pytest.mark.parametrize(
    ("setting", "name", "warned"),
    [("memory_clocks", PRO, True), ("gpu_clocks", PRO, False), ("memory_clocks", SMALL, False)],
)
def test_a_sweep_of_the_memory_clock_carries_the_warning(
    setting: str, name: str, warned: bool
) -> None:
    notes = warnings_about_setting(setting, [name])
    assert bool(notes) == warned
    assert all(memory_locks.SOURCE in note for note in notes)


def test_a_clock_that_obeys_does_not_prove_a_memory_lock() -> None:
    proof = proved(lock("13000,13000", "memory_clocks"), told(), memory_mhz=13000)
    assert proof.in_force is InForce.CONSISTENT
    assert "only tok/s with and without the lock are a proof" in proof.text
    assert memory_locks.SOURCE in proof.text
