"""The owner of a host's measurement lock: the one Workbench that may measure on that host now."""

from __future__ import annotations

import os
import time

from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class MeasurementOwner:
    """The Workbench that measures on a host, as described by itself in the host's lock file.

    `machine` is the machine on which that Workbench runs, `pid` its process there, `since_unix_s`
    the start of the measurement."""

    what: str  # the measurement: "a benchmark", "experiment 7"
    user: str
    machine: str
    since_unix_s: float | None  # None if unknown
    pid: int

    def __str__(self) -> str:
        return f"{self.what}, by {self.owner_text}{self._since_text} (process {self.pid})"

    @property
    def _since_text(self) -> str:
        if self.since_unix_s is None:
            return ""
        return f" since {time.strftime('%H:%M:%S', time.localtime(self.since_unix_s))}"

    @property
    def owner_text(self) -> str:
        return (
            self.user if self.machine == os.uname().nodename else f"{self.user} from {self.machine}"
        )
