"""Stored results: searched, noted, tagged, taken in from other tools, reported."""

from __future__ import annotations

from workbench.session.experiments import Experimenting


class Histories(Experimenting):
    pass
