"""The common keys of sweeps and experiments: open the form, start, stop and resume the measurement,
and show its page."""

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
        """Open the page of the measurement that is running or ran last. If there is none, open the
        form for a new measurement."""
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
        """Return how to resume the measurement on `page`, as (text that the page shows meanwhile,
        function that resumes it). Return None if the measurement cannot be resumed. `outcome` is
        "resume" to continue the measurement, or "more" to add runs to it."""

    def summary(self, measured: M) -> tuple[str, str]:
        """Return a message about a measurement that has ended, and the text of the user's next
        step."""
        raise AssertionError("a subclass of SeriesController must define summary")

    def pick(self) -> None:
        """Show a list of the measurements on this host, and open the page of the chosen one."""

    # the page
    async def act(self, page: Live, outcome: str) -> None:
        """Do what a key of the page asks for. `outcome` is "new" (open the form), "list" (list the
        measurements), "stop" (stop the measurement), or "resume" or "more" (resume the measurement
        on the page). The page stays open."""
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
            self.measure(work, self._ended, failed=lambda: page.request_failed(self.state))

    def begin(self, work: Work[M]) -> None:
        """Open the page of a new measurement, then start the measurement by calling `work`. The
        page opens first, so that the next key of the user acts on the page."""
        page = self.new_page()
        page.ask(self.STARTING, blank=True)
        self.services.pages.open(page)
        self.measure(work, self._ended, failed=lambda: page.request_failed(self.state))

    def _ended(self, measured: M) -> None:
        """Show a message that the measurement has ended, unless the page of a measurement is open."""
        if not isinstance(self.services.pages.top, Live) and measured.state != "running":
            text, next_step = self.summary(measured)
            self.say(text, next_step=next_step)

    def nothing_measured(self) -> bool:
        """Return True if no measurement is running. Otherwise show a message, and return False."""
        if self.state.bench.running:
            self.say("a measurement is running", next_step="press K to cancel the measurement")
        return not self.state.bench.running
