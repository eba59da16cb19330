"""Telemetry and settings of a simulated host behind a real sshd, with the link cut in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.sshd import sshd

from workbench.gpu.settings import alterations, apply, journal, plan, revert, rights
from workbench.gpu.telemetry.source import TelemetrySource
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.local import LocalHost
from workbench.hosts.ssh import SshHost
from workbench.model.setting_records import InForce
from workbench.model.settings import ClockRange, GpuSettings
from workbench.sim.simulated_host import SimulatedHost


async def eventually(holds: object) -> None:
    assert callable(holds)
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.mark.slow
def test_the_same_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        with sshd(tmp_path) as server:
            host = SimulatedHost(
                SshHost(server.host_alias, ssh_config=server.ssh_config_path),
                "rtx-pro-6000",
                str(tmp_path / "far"),
            )
            await host.connect()
            source = TelemetrySource(host, 0.1)
            await source.start()
            reading = await source.wait_for_first_reading()
            assert (
                reading.simulated
                and reading.gpus[0].power_w
                and reading.infos[0].power_max_w == 600.0
            )
            server.cut()
            await eventually(lambda: source.problem)
            # the last reading stays, with its age
            assert source.latest is not None and source.latest.gpus
            await asyncio.sleep(0.3)
            assert source.age_s is not None and source.age_s >= 0.3
            server.restore()
            await eventually(lambda: source.problem is None and (source.age_s or 9) < 0.5)
            await source.close()

            commands = plan.plan_commands(
                {"all": GpuSettings(power_limit_w=450.0, gpu_clocks=ClockRange(1000, 2000))},
                await read_telemetry_once(host),
                await rights.read_rights(host),
            )
            report = await apply.apply_commands(host, commands)
            assert report.ok and report.outcomes[0].in_force is InForce.YES
            assert (
                report.journal == f"{tmp_path}/far/gpu/journal.json"
                and Path(report.journal).exists()
            )
            near = SimulatedHost(
                LocalHost(), "rtx-pro-6000", str(tmp_path / "near"), host.driver_state
            )
            # somebody on the host itself sees what was set over ssh
            told = await journal.read_journal(near)
            assert [(c.setting, c.now) for c in told.others] == [
                ("power_limit_w", 450.0),
                ("gpu_clocks", ClockRange(1000, 2000)),
            ]
            assert (await journal.read_journal(host)).register.problem is None
            back = await revert.revert_settings(host)
            assert (
                back.ok
                and back.outcomes[1].read_back == 600.0
                and await alterations.read_alterations(host) == ()
            )
            await host.close()

    asyncio.run(work())
