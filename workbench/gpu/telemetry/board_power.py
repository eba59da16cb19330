"""The power rails and the PROCHOT signal of a DGX Spark, as the kernel module spark_hwmon gives
them in /sys/class/hwmon (https://github.com/antheas/spark_hwmon). NVML has none of them.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

# ruff: noqa: PTH208
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

DRIVER = "spbm"
MISSING = "only a DGX Spark with the kernel module spark_hwmon reports it"
MOST_RAILS = 64
W_PER_UW = 1e-6


class BoardPower:
    """Reads the power rails and the PROCHOT signal. `sysfs` is the directory /sys, and `read_file`
    returns the text of a file, "" if it cannot be read."""

    def __init__(self, sysfs: str, read_file: Callable[[str], str]) -> None:
        self.folder = sysfs + "/class/hwmon"
        self.read_file = read_file
        self.chip: str | None = None
        self.rails: dict[str, str] = {}  # label -> file

    def find_sensors(self) -> None:
        """Look for the sensors of the kernel module, and for the rails that this firmware has. Call
        this again now and then, because the module can be loaded later."""
        self.chip, self.rails = None, {}
        try:
            names = os.listdir(self.folder)
        except OSError:
            return
        for name in names:
            chip = self.folder + "/" + name
            if self.read_file(chip + "/name").strip() == DRIVER:
                self.chip = chip
        if self.chip is None:
            return
        for number in range(1, MOST_RAILS):
            label = self.read_file(f"{self.chip}/power{number}_label")
            if label:
                self.rails[label.strip()] = f"{self.chip}/power{number}_input"

    def read_power_sensors(self) -> dict[str, Any]:
        """Return {"rails_w": {label: watts}, "prochot": bool, "power_level": number of the power
        limit that is active}, without what cannot be read."""
        found: dict[str, Any] = {}
        if self.chip is None:
            return found
        rails_w = {}
        for label, path in self.rails.items():
            microwatts = _parse_whole_number(self.read_file(path))
            if microwatts is not None:
                rails_w[label] = round(microwatts * W_PER_UW, 2)
        if rails_w:
            found["rails_w"] = rails_w
        prochot = _parse_whole_number(self.read_file(self.chip + "/prochot"))
        if prochot is not None:
            found["prochot"] = prochot != 0
        level = _parse_whole_number(self.read_file(self.chip + "/pl_level"))
        if level is not None:
            found["power_level"] = level
        return found


def _parse_whole_number(text: str) -> int | None:
    word = text.strip()
    if not word.isdecimal() or len(word) >= 16:
        return None
    return int(word)
