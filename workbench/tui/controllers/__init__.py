"""The controllers: what the keys do.

Each drives one part of the session and is imported when a key first needs it, so that the first frame waits for none.

plan        presets, the plan under edit and its flags
servers     starting, stopping and choosing servers
hosts       choosing the host, its key
bench       benchmarks
results     results, comparisons
sweeps, experiments
gpu         GPU settings: commands, guard, proof
search      the inputs above the panes
view        panes, pages to read, leaving
palette     every action by name
"""

from __future__ import annotations

from functools import cached_property
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
    """The controllers of the main screen by name, each made when it is first used."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.trails = IntervalTrails()

    def pane(self, kind: type[P]) -> P:
        return self.services.panes.of(kind)

    @cached_property
    def plan(self) -> PlanController:
        from workbench.tui.controllers.plan import PlanController

        return PlanController(self)

    @cached_property
    def servers(self) -> ServerController:
        from workbench.tui.controllers.servers import ServerController

        return ServerController(self)

    @cached_property
    def hosts(self) -> HostController:
        from workbench.tui.controllers.hosts import HostController

        return HostController(self)

    @cached_property
    def bench(self) -> BenchController:
        from workbench.tui.controllers.bench import BenchController

        return BenchController(self)

    @cached_property
    def results(self) -> ResultController:
        from workbench.tui.controllers.results import ResultController

        return ResultController(self)

    @cached_property
    def sweeps(self) -> SweepController:
        from workbench.tui.controllers.sweeps import SweepController

        return SweepController(self)

    @cached_property
    def experiments(self) -> ExperimentController:
        from workbench.tui.controllers.experiments import ExperimentController

        return ExperimentController(self)

    @cached_property
    def gpu(self) -> GpuController:
        from workbench.tui.controllers.gpu import GpuController

        return GpuController(self)

    @cached_property
    def search(self) -> SearchController:
        from workbench.tui.controllers.search import SearchController

        return SearchController(self)

    @cached_property
    def view(self) -> ViewController:
        from workbench.tui.controllers.view import ViewController

        return ViewController(self)

    @cached_property
    def palette(self) -> PaletteController:
        from workbench.tui.controllers.palette import PaletteController

        return PaletteController(self)
