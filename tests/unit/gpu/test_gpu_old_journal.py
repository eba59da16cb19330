"""A journal of the previous version, as that version wrote it: its settings are reverted and its
values are read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from workbench.gpu.settings import journal, revert
from workbench.gpu.settings.current_values import read_core_settings
from workbench.hosts.local import LocalHost
from workbench.model.setting_commands import JOURNAL_VERSION
from workbench.model.settings import UNKNOWN, ClockRange
from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.sim.simulated_host import SimulatedHost

RECORDED = Path(__file__).parents[2] / "fixtures" / "records" / "gpu_journal.json"
BEFORE = {
    "governor": "performance",
    "persistence": False,
    "power_limit_w": 250.0,
    "gpu_clocks": UNKNOWN,
}


def test_the_journal_of_the_previous_version_is_reverted(tmp_path: Path) -> None:
    host = SimulatedHost(LocalHost(), "four-pcie", str(tmp_path / "four"))
    state = SimState(host.driver_state, profiles.get_profile("four-pcie"))
    state.change_setting(1, limit_w=200.0, gpu_lock_mhz=[1005, 1410], persistence=True)

    async def work() -> None:
        path = Path(await journal.journal_path_on(host))
        path.parent.mkdir(parents=True)
        boot_id = (await journal.read_journal(host)).boot_id
        path.write_text(RECORDED.read_text().replace("BOOT", boot_id))
        for core in Path(host.driver_state).glob(
            "sys/devices/system/cpu/*/cpufreq/scaling_governor"
        ):
            core.write_text("powersave\n")

        found = {e.setting: e for e in (await journal.read_journal(host)).entries}
        assert {key: e.before for key, e in found.items()} == BEFORE
        assert (
            found["gpu_clocks"].now == ClockRange(1005, 1410)
            and found["power_limit_w"].now == 200.0
        )

        report = await revert.revert_settings(host)
        assert report.ok and len(report.outcomes) == 4, report
        gpu = state.settings()[1]
        assert (gpu.limit_w, gpu.gpu_lock_mhz, gpu.persistence) == (None, None, False)
        assert (await read_core_settings(host)).format_values_of_cores("governor") == "performance"
        kept = json.loads(path.read_text())
        assert (
            kept["version"] == JOURNAL_VERSION and kept["entries"] == [] and len(kept["log"]) == 8
        )

    asyncio.run(work())
