"""Who measures on a host. Only one Workbench at a time may measure on one host."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """What the Workbench that measures wrote about itself. `machine` is where it runs."""

    what: str
    user: str
    machine: str
    since_unix_s: float
    pid: int

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since_unix_s))
        return f"{self.what}, by {self.who} since {since} (process {self.pid})"

    @property
    def who(self) -> str:
        return self.user if self.machine == platform.node() else f"{self.user} from {self.machine}"
