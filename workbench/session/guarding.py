"""The guard over changed GPU settings, seen from the session: heartbeat, trial, keep."""

from __future__ import annotations

from workbench.session.gpu_settings import Settings


class Guarding(Settings):
    pass
