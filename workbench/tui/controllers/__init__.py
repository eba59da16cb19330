"""The controllers: the classes whose methods the keys of the main screen run. Each calls one part
of the session.

plan                  loading presets, editing the plan and its flags
servers               starting, stopping and choosing servers, searching their logs
hosts                 choosing and examining a host, connecting again, trusting a host's key
checks                checking hosts and clusters; starting and stopping a cluster's server
alerts                the rules of the alerts and the last alerts; a test of the alerts
fleet                 showing all hosts at once, over the main screen
models                listing, hashing, copying and downloading the models on hosts
bench                 running, repeating and cancelling benchmarks
results               showing, marking, comparing and exporting results
quality               showing whether the answers of two results are the same, and measuring it
advice                showing the advice on a result, and testing one finding
sweeps, experiments, tunes   starting, stopping and showing them; series is their common base class
apply                 applying everything that a preset contains: launch, GPU settings, warm-up
gpu                   changing and reverting GPU settings, checking them under load
search                the search inputs above the panes
timeline              showing values of an earlier time, and changing the seconds per cell of the graphs
view                  moving between panes, the activity page, leaving
explain               explaining the terms on the screen or a chosen term, listing every key
palette               the list of every action by name
recipes               making presets from the recipes of other tools, and recipes from the plan
replay                pausing a recording, and playing it faster or slower
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from workbench.tui.controllers.advice import AdviceController
    from workbench.tui.controllers.alerts import AlertController
    from workbench.tui.controllers.apply import ApplyController
    from workbench.tui.controllers.bench import BenchController
    from workbench.tui.controllers.checks import CheckController
    from workbench.tui.controllers.experiments import ExperimentController
    from workbench.tui.controllers.explain import ExplainController
    from workbench.tui.controllers.fleet import FleetController
    from workbench.tui.controllers.gpu import GpuController
    from workbench.tui.controllers.hosts import HostController
    from workbench.tui.controllers.models import ModelController
    from workbench.tui.controllers.palette import PaletteController
    from workbench.tui.controllers.plan import PlanController
    from workbench.tui.controllers.quality import QualityController
    from workbench.tui.controllers.recipes import RecipeController
    from workbench.tui.controllers.replay import ReplayController
    from workbench.tui.controllers.results import ResultController
    from workbench.tui.controllers.search import SearchController
    from workbench.tui.controllers.servers import ServerController
    from workbench.tui.controllers.sweeps import SweepController
    from workbench.tui.controllers.timeline import TimelineController
    from workbench.tui.controllers.tunes import TuneController
    from workbench.tui.controllers.view import ViewController
    from workbench.tui.panes.base import Pane
    from workbench.tui.services import Services

P = TypeVar("P", bound="Pane")


class Controllers:
    """The controllers of the main screen, as attributes. A controller is imported and built when a
    key first needs it, so that the first frame is drawn sooner."""

    plan: PlanController
    servers: ServerController
    hosts: HostController
    checks: CheckController
    alerts: AlertController
    fleet: FleetController
    models: ModelController
    bench: BenchController
    results: ResultController
    quality: QualityController
    advice: AdviceController
    sweeps: SweepController
    experiments: ExperimentController
    tunes: TuneController
    apply: ApplyController
    gpu: GpuController
    search: SearchController
    timeline: TimelineController
    view: ViewController
    explain: ExplainController
    palette: PaletteController
    recipes: RecipeController
    replay: ReplayController

    def __init__(self, services: Services) -> None:
        self.services = services

    def pane_of_type(self, pane_type: type[P]) -> P:
        """Return the pane of the main screen whose class is `pane_type`."""
        return self.services.panes.pane_of_type(pane_type)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Import, build and store the controller `name`. Raise AttributeError if this class has
            no annotation of that name."""
            if name not in Controllers.__annotations__:
                raise AttributeError(name)
            from importlib import import_module

            module = import_module(f"{__name__}.{name}")
            controller = getattr(module, Controllers.__annotations__[name])(self)
            setattr(self, name, controller)
            return controller
