"""A GPU that is divided with MIG: its instances, in readings, plans, checks and texts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from workbench.engines import registry
from workbench.engines.plan_context import list_visible_gpus
from workbench.engines.validate import validate_plan
from workbench.gpu.settings import plan, rights
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.local import LocalHost
from workbench.model.flags import FlagSetting
from workbench.model.gpu import Telemetry
from workbench.model.plan import LaunchPlan
from workbench.model.settings import GpuSettings
from workbench.session.conditions import gpu_indices_of_plan
from workbench.sim.simulated_host import SimulatedHost

GIB = 1 << 30


@pytest.fixture
def divided(tmp_path: Path) -> SimulatedHost:
    return SimulatedHost(LocalHost(), "h100-mig", str(tmp_path / "h100"))


@pytest.fixture
def reading(divided: SimulatedHost) -> Telemetry:
    return asyncio.run(read_telemetry_once(divided))


def plan_with(devices: str | None) -> LaunchPlan:
    env = (FlagSetting("CUDA_VISIBLE_DEVICES", devices),) if devices is not None else ()
    return LaunchPlan("vllm", "m", env=env)


def test_the_instances_are_read(reading: Telemetry) -> None:
    (info,), (sample,) = reading.infos, reading.gpus
    assert info.mig is True and info.mig_text == "MIG 7x 1g.10gb"
    assert len({one.uuid for one in info.instances}) == 7
    for one in info.instances:
        assert one.uuid.startswith("MIG-") and one.profile == "1g.10gb"
        assert one.memory_total_bytes and 9 * GIB < one.memory_total_bytes < 11 * GIB
        assert 0 < sample.instance_used_bytes[one.uuid] < GIB
    assert sample.gpu_util_pct is None
    assert sample.absent["gpu_util_pct"] == "not reported while MIG is on"


def test_a_gpu_without_mig_says_nothing_of_it(tmp_path: Path) -> None:
    whole = SimulatedHost(LocalHost(), "rtx-pro-6000", str(tmp_path / "whole"))
    (info,) = asyncio.run(read_telemetry_once(whole)).infos
    assert info.mig is None and info.instances == () and info.mig_text == ""
    assert "mig" not in info.absent


def test_cuda_shows_an_instance_in_place_of_the_gpu(reading: Telemetry) -> None:
    (info,) = reading.infos
    third = info.instances[2]
    for devices, uuid in ((None, info.instances[0].uuid), ("0", info.instances[0].uuid)):
        (shown,) = list_visible_gpus(plan_with(devices), reading.infos)
        assert shown.uuid == uuid
    (shown,) = list_visible_gpus(plan_with(third.uuid), reading.infos)
    assert shown.memory_total_bytes == third.memory_total_bytes
    assert shown.name == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert list_visible_gpus(plan_with("MIG-of-another-host"), reading.infos) == ()
    assert gpu_indices_of_plan(plan_with(third.uuid), reading.infos) == (0,)


def test_an_instance_that_the_host_lacks_is_an_error(reading: Telemetry) -> None:
    plan_elsewhere = plan_with("MIG-of-another-host")
    catalog = registry.get_engine("vllm").catalog(None)
    codes = {finding.code for finding in validate_plan(plan_elsewhere, catalog, gpus=reading.infos)}
    assert "gpus.no-instance" in codes
    here = plan_with(reading.infos[0].instances[0].uuid)
    codes = {finding.code for finding in validate_plan(here, catalog, gpus=reading.infos)}
    assert "gpus.no-instance" not in codes


def test_a_setting_of_the_gpu_names_whom_it_concerns(
    divided: SimulatedHost, reading: Telemetry
) -> None:
    mine = asyncio.run(rights.read_rights(divided))
    (command,) = plan.plan_commands({"0": GpuSettings(power_limit_w=400.0)}, reading, mine)
    assert "this concerns all 7 instances of the GPU" in command.note
