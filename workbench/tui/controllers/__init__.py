"""The controllers: what the keys do. Each drives one part of the session.

plan        presets, the plan under edit and its flags
servers     starting, stopping and choosing servers, the search in their logs
hosts       choosing the host, connecting again, trusting its key
bench       benchmarks
results     results and their comparison
sweeps, experiments (series: their common part)
gpu         GPU settings: commands, guard, proof
search      the inputs above the panes
view        panes, pages to read, leaving
palette     every action by name
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from workbench.tui.interval_trails import IntervalTrails

if TYPE_CHECKING:
    from workbench.tui.controllers.bench import BenchController
    from workbench.tui.controllers.experiments import ExperimentController
    from workbench.tui.controllers.gpu import GpuController
    from workbench.tui.controllers.hosts import HostController
    from workbench.tui.controllers.palette import PaletteController
    from workbench.tui.controllers.plan import PlanController
    from workbench.tui.controllers.results import ResultController
    from workbench.tui.controllers.search import SearchController
    from workbench.tui.controllers.servers import ServerController
    from workbench.tui.controllers.sweeps import SweepController
    from workbench.tui.controllers.view import ViewController
    from workbench.tui.panes.base import Pane
    from workbench.tui.services import Services

P = TypeVar("P", bound="Pane")


class Controllers:
    """The controllers of the main screen. Each is imported when a key first needs it, after the first frame."""

    plan: PlanController
    servers: ServerController
    hosts: HostController
    bench: BenchController
    results: ResultController
    sweeps: SweepController
    experiments: ExperimentController
    gpu: GpuController
    search: SearchController
    view: ViewController
    palette: PaletteController

    def __init__(self, services: Services) -> None:
        self.services = services
        self.trails = IntervalTrails()

    def pane(self, kind: type[P]) -> P:
        """Return the pane of a class."""
        return self.services.panes.of(kind)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Make the controller that is declared above: the class of its annotation, in the module of its name."""
            if name not in Controllers.__annotations__:
                raise AttributeError(name)
            from importlib import import_module

            module = import_module(f"{__name__}.{name}")
            controller = getattr(module, Controllers.__annotations__[name])(self)
            setattr(self, name, controller)
            return controller
