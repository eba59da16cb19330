"""The real screen on a simulated host, which changes GPU settings by itself once it is open.

python changing_screen.py STATE_DIR TRIAL_S|- DONE      DONE: a file that is written when the change is made
"""

from __future__ import annotations

import sys
from pathlib import Path

from workbench import tui
from workbench.hosts.local import LocalHost
from workbench.model.settings import ClockRange, GpuSettings
from workbench.session.session import Session
from workbench.sim.simulated_host import SimulatedHost

WANTED = GpuSettings(power_limit_w=450.0, gpu_clocks=ClockRange(1000, 2000))


class Changing(Session):
    async def _connect_and_start_readings(self) -> None:
        await super()._connect_and_start_readings()
        trial_s = None if sys.argv[2] == "-" else float(sys.argv[2])
        report = await self.gpu.apply_settings(WANTED, trial_s=trial_s)
        done = Path(sys.argv[3])
        done.with_suffix(".new").write_text("ok" if report.ok else repr(report))
        done.with_suffix(".new").rename(done)


if __name__ == "__main__":
    sys.exit(tui.run_screen(Changing(SimulatedHost(LocalHost(), "rtx-pro-6000", sys.argv[1]))))
