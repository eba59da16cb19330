"""The common keys of sweeps and experiments: open the form, start, stop and resume, and show the page."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from workbench.model.experiment import Experiment
from workbench.model.sweep import Sweep
from workbench.tui.controllers.base import Controller
from workbench.tui.pages.live import STOPPING, Live

M = TypeVar("M", Sweep, Experiment)
Work = Callable[[], Coroutine[Any, Any, M]]


class SeriesController(Controller, Generic[M]):
    STARTING = "starting: everything is checked before anything is changed"

    async def open(self) -> None:
        """Open the page of the measurement that is running or ran last. If there is none, open the form for a new
        measurement."""
        if self.measured is not None:
            self.services.pages.open(self.new_page())
        else:
            await self.new()

    # of a subclass
    @property
    def measured(self) -> M | None:
        """Return the sweep or experiment that is running or ran last; None if there is none."""
        raise AssertionError("a subclass of SeriesController must define measured")

    def new_page(self) -> Live:
        raise AssertionError("a subclass of SeriesController must define new_page")

    async def new(self) -> None:
        """Show the form for a new measurement."""

    async def stop(self) -> None:
        """Stop the running measurement."""

    def resume(self, page: Live, outcome: str) -> tuple[str, Work[M]] | None:
        """Return (text for the page, function that resumes the measurement) for the measurement on `page`. Return None
        if it cannot be resumed. `outcome` is "resume" to continue it, or "more" to add runs to it."""

    def summary(self, measured: M) -> tuple[str, str]:
        """Return (message, next step) about a measurement that has ended."""
        raise AssertionError("a subclass of SeriesController must define summary")

    def pick(self) -> None:
        """Show a list of the measurements on this host, and open the page of the chosen one."""

    # the page
    async def act(self, page: Live, outcome: str) -> None:
        """Carry out a key of the page: open the form ("new"), list the measurements ("list"), stop the measurement
        ("stop"), or resume the one on the page. The page stays open."""
        if outcome == "new":
            await self.new()
        elif outcome == "list":
            self.pick()
        elif outcome == "stop":
            page.ask(STOPPING)
            self.attempt(self.stop, failed=lambda: page.request_failed(self.state))
        elif (found := self.resume(page, outcome)) is not None:
            text, work = found
            page.ask(text)
            self.attempt(work, self._ended, failed=lambda: page.request_failed(self.state))

    def begin(self, work: Work[M]) -> None:
        """Open the page of a new measurement, then start the measurement with `work`. The page opens first, so that the
        next key of the user reaches the page."""
        page = self.new_page()
        page.ask(self.STARTING, blank=True)
        self.services.pages.open(page)
        self.attempt(work, self._ended, failed=lambda: page.request_failed(self.state))

    def _ended(self, measured: M) -> None:
        """Show a message about the end of the measurement, unless a page is open that shows it."""
        if not isinstance(self.services.pages.top, Live) and measured.state != "running":
            text, next_step = self.summary(measured)
            self.say(text, next_step=next_step)

    def nothing_measured(self) -> bool:
        """Return True if no measurement is running. Otherwise show a message, and return False."""
        if self.state.bench.running:
            self.say("a measurement is running", next_step="press K to cancel the measurement")
        return not self.state.bench.running
