"""The common part of sweeps and experiments: a form, a page that follows the measurement, and that page's keys."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from workbench.model.experiment import Experiment
from workbench.model.sweep import Sweep
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.live import STOPPING, Live

M = TypeVar("M", Sweep, Experiment)
Work = Callable[[], Coroutine[Any, Any, M]]


class SeriesController(Controller, Generic[M]):
    STARTING = "starting: everything is checked before anything is changed"

    async def open(self) -> None:
        """Show the measurement that runs or ran last, or the form for a new one."""
        if self.measured is not None:
            await self._watch(self.new_page())
        else:
            await self.new()

    # of a subclass
    @property
    def measured(self) -> M | None:
        """Return the measurement that runs or ran last."""
        raise AssertionError("a subclass returns it")

    def new_page(self) -> Live:
        raise AssertionError("a subclass returns it")

    async def new(self) -> None:
        """Show the form for a new measurement."""

    async def stop(self) -> None:
        """Stop the measurement that runs."""

    def resume(self, page: Live, outcome: str) -> tuple[str, Work[M]] | None:
        """Return the text for the page and the work that resumes what the page shows."""

    def summary(self, measured: M) -> tuple[str, str]:
        """Return a message and its next step for a measurement that has ended."""
        raise AssertionError("a subclass returns it")

    def pick(self) -> None:
        """List the measurements of this host."""

    # the page
    async def _watch(self, page: Live) -> None:
        await self.app.push_screen(page, self._left)

    async def _left(self, outcome: str | None) -> None:
        if outcome == "new":
            await self.new()
        elif outcome == "list":
            self.pick()

    def act(self, page: Live, outcome: str) -> None:
        """Do what a key of the page stands for. The page stays open."""
        if outcome == "stop":
            page.ask(STOPPING)
            self.attempt(self.stop, failed=lambda: page.request_failed(self.state))
        elif (found := self.resume(page, outcome)) is not None:
            text, work = found
            page.ask(text)
            self.attempt(work, self._ended, failed=lambda: page.request_failed(self.state))

    async def begin(self, work: Work[M]) -> None:
        """Start a measurement. Its page opens at once, so that the next key reaches the page."""
        page = self.new_page()
        page.ask(self.STARTING, blank=True)
        await self._watch(page)
        self.attempt(work, self._ended, failed=lambda: page.request_failed(self.state))

    def _ended(self, measured: M) -> None:
        """Say how the measurement ended, unless its page is open and shows that."""
        if not isinstance(self.app.screen, Live) and measured.state != "running":
            text, next_step = self.summary(measured)
            self.say(text, next_step=next_step)

    def nothing_measured(self) -> bool:
        """Return whether nothing is being measured; say so if something is."""
        if self.state.bench.running:
            self.say("something is being measured", next_step="K cancels it")
        return not self.state.bench.running
