"""A/B experiments: restart where needed, measure in ABBA pairs, keep and resume."""

from __future__ import annotations

from workbench.session.sweeping import Sweeping


class Experimenting(Sweeping):
    pass
