"""The common keys of sweeps and experiments: open the form, start, stop and resume the measurement,
and show its page."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from workbench.model.experiment import Experiment
from workbench.model.lazy_dataclass import dataclass
from workbench.model.sweep import Sweep
from workbench.tui.controllers.base import Controller
from workbench.tui.pages.live import STOPPING, MeasurementPage

if TYPE_CHECKING:
    from workbench.session.session import Session
    from workbench.tui.modals.gpu_confirm import PlannedChange

M = TypeVar("M", Sweep, Experiment)
Work = Callable[[], Coroutine[Any, Any, M]]
# finds out which GPU settings a measurement changes
LookUp = Callable[[], Coroutine[Any, Any, "PlannedChange"]]


@dataclass(frozen=True)
class Resume(Generic[M]):
    """How to resume a measurement: the text that its page shows meanwhile, and the function that
    does so, which gets the password for sudo if it `takes_password`. If the measurement changes GPU
    settings, `changes` finds out how."""

    said: str
    work: Callable[[str | None], Coroutine[Any, Any, M]]
    changes: LookUp | None = None
    takes_password: bool = False


def resume_text_and_work(
    session: Session, sweep: Sweep
) -> tuple[str, Callable[[str | None], Coroutine[Any, Any, Sweep]]]:
    """Return the text that the page of a sweep shows while it is resumed, and the function that
    resumes it."""
    said = "resuming: everything is checked before anything is changed"
    return said, lambda password: session.sweeps.resume(sweep.id, password=password)


class SeriesController(Controller, Generic[M]):
    STARTING = "starting: everything is checked before anything is changed"

    async def open(self) -> None:
        """Open the page of the measurement that is running or ran last. If there is none, open the
        form for a new measurement."""
        if self.latest is not None:
            self.services.pages.open(self.new_page())
        else:
            await self.open_form()

    # of a subclass
    @property
    def latest(self) -> M | None:
        """Return the sweep or experiment that is running or ran last; None if there is none."""
        raise AssertionError("a subclass of SeriesController must define latest")

    def new_page(self) -> MeasurementPage:
        raise AssertionError("a subclass of SeriesController must define new_page")

    async def open_form(self) -> None:
        """Show the form for a new measurement."""

    async def stop(self) -> None:
        """Stop the running measurement."""

    def resume(self, page: MeasurementPage, outcome: str) -> Resume[M] | None:
        """Return how to resume the measurement on `page`; None if it cannot be resumed. `outcome` is
        "resume" to continue the measurement, or "more" to add runs to it."""

    def end_message(self, measured: M) -> tuple[str, str]:
        """Return a message about a measurement that has ended, and the text of the user's next
        step."""
        raise AssertionError("a subclass of SeriesController must define end_message")

    def pick_stored(self) -> None:
        """Show a list of the measurements on this host, and open the page of the chosen one."""

    # the page
    async def run_page_action(self, page: MeasurementPage, outcome: str) -> None:
        """Do what a key of the page asks for. `outcome` is "new" (open the form), "list" (list the
        measurements), "stop" (stop the measurement), or "resume" or "more" (resume the measurement
        on the page). The page stays open."""
        if outcome == "new":
            await self.open_form()
        elif outcome == "list":
            self.pick_stored()
        elif outcome == "stop":
            page.show_requested_action(STOPPING)
            self.run_in_background(self.stop, failed=lambda: page.clear_failed_request(self.state))
        elif (found := self.resume(page, outcome)) is not None:
            self._resume_on_page(page, found)

    def _resume_on_page(self, page: MeasurementPage, how: Resume[M]) -> None:
        """Resume the measurement on `page`. If it changes GPU settings, show the commands first."""

        def go_on(password: str | None = None) -> None:
            page.show_requested_action(how.said)
            self.run_measurement(
                lambda: how.work(password),
                self._report_end,
                failed=lambda: page.clear_failed_request(self.state),
            )

        if how.changes is None:
            go_on()
        else:
            self.controllers.gpu.confirm_setting_changes(
                how.changes, go_on, takes_password=how.takes_password
            )

    def begin_after_consent(self, changes: LookUp | None, work: Work[M]) -> None:
        """Start a new measurement as `begin` does. If it changes GPU settings, which `changes` finds
        out, show the commands first, and start it if the user agrees."""
        if changes is None:
            self.begin(work)
        else:
            self.controllers.gpu.confirm_setting_changes(changes, lambda _: self.begin(work))

    def begin(self, work: Work[M]) -> None:
        """Open the page of a new measurement, then start the measurement by calling `work`. The
        page opens first, so that the next key of the user acts on the page."""
        page = self.new_page()
        page.show_requested_action(self.STARTING, hide_rows=True)
        self.services.pages.open(page)
        self.run_measurement(
            work, self._report_end, failed=lambda: page.clear_failed_request(self.state)
        )

    def _report_end(self, measured: M) -> None:
        """Show a message that the measurement has ended, unless the page of a measurement is open."""
        if (
            not isinstance(self.services.pages.visible_page, MeasurementPage)
            and measured.state != "running"
        ):
            text, next_step = self.end_message(measured)
            self.show_message(text, next_step=next_step)

    def can_measure(self) -> bool:
        """Return True if no measurement is running. Otherwise show a message, and return False."""
        if self.state.bench.running:
            self.show_message(
                "a measurement is running", next_step="press K to cancel the measurement"
            )
        return not self.state.bench.running
