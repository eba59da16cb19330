"""The simulated engines: one class per engine, chosen once when a server process starts.

base.py   the interface, with the behaviour that most engines share
others    one module per engine, each with its instance `ENGINE`

A new engine needs one module here. If users start it with a program of its own, it also needs a
script in bin/.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.sim.engines.base import SimulatedEngine

# engines that are started as `python main.py` in their source directory
SOURCE_CHECKOUTS = ("tabbyapi",)


def load_engine(name: str) -> SimulatedEngine:
    """Return the simulated engine called `name`."""
    engine: SimulatedEngine = import_module(f"workbench.sim.engines.{name}").ENGINE
    return engine
