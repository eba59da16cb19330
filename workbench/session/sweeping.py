"""Sweeps of a GPU setting, the concurrency or flags."""

from __future__ import annotations

from workbench.session.verifying import Verifying


class Sweeping(Verifying):
    pass
