"""This machine for a user called ada: a simulated driver that only root can change, and a sudo that
decides.

Workbench does not know that the host is simulated: it looks for rights as on a real host.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.fake_sudo import Sudo

from workbench.sim import profiles
from workbench.sim.driver_state import SimState

SIM = Path(__file__).resolve().parents[2] / "workbench" / "sim"
PROFILE = "rtx-pro-6000"
ID = """#!/bin/sh
case "$1" in
    -u) cat {here}/uid ;;
    -un) echo ada ;;
    *) exec /usr/bin/id "$@" ;;
esac
"""
STAND_IN = """#!{python}
import os, sys
os.environ.update(WORKBENCH_SIM_PROFILE={profile!r}, WORKBENCH_SIM_STATE={state!r})
os.execv({sim!r} + "/bin/{name}", ["{name}", *sys.argv[1:]])
"""
DRIVER = """
import os, runpy
os.environ.update(WORKBENCH_SIM_PROFILE={profile!r}, WORKBENCH_SIM_STATE={state!r})
globals().update(runpy.run_path({sim!r} + "/driver.py"))
"""


class Sudoer:
    """`env` is the environment of ada's processes; `power_w` and `lock_mhz` are the settings of her
    only GPU."""

    def __init__(self, directory: Path, password: str) -> None:
        self.here = directory / "ada"
        self.here.mkdir()
        facts = {
            "here": self.here,
            "profile": PROFILE,
            "state": str(self.here / "driver"),
            "python": sys.executable,
            "sim": str(SIM),
        }
        for name, text in (("id", ID), ("nvidia-smi", STAND_IN), ("vllm", STAND_IN)):
            (self.here / name).write_text(text.format(name=name, **facts))
            (self.here / name).chmod(0o755)
        (self.here / "driver.py").write_text(DRIVER.format(**facts))
        self.sudo = Sudo(self.here, password=password)
        self.uid(1000)
        self.env = {
            "PATH": f"{self.here}:{os.environ['PATH']}",
            "WORKBENCH_SIM_DRIVER": str(self.here / "driver.py"),
            "WORKBENCH_SIM_START_S": "0.2",
        }
        self._driver = SimState(str(self.here / "driver"), profiles.get_profile(PROFILE))

    def uid(self, number: int) -> None:
        (self.here / "uid").write_text(f"{number}\n")

    @property
    def power_w(self) -> float | None:
        return self._driver.settings()[0].limit_w

    @property
    def lock_mhz(self) -> tuple[int, int] | None:
        return self._driver.settings()[0].gpu_lock_mhz
