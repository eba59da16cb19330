"""Whether altered settings hold, shown by driving the running server for some seconds."""

from __future__ import annotations

from workbench.session.measuring import Measuring


class Verifying(Measuring):
    pass
