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
RunMeasurement = Callable[[], Coroutine[Any, Any, M]]
# finds out which GPU settings a measurement changes
ChangeLookup = Callable[[], Coroutine[Any, Any, "PlannedChange"]]


@dataclass(frozen=True)
class PreparedResume(Generic[M]):
    """How to resume a measurement. `resume` is the function that resumes it; it gets the password
    for sudo, or None if no password is needed. `takes_password` says whether the user is asked for
    one. The page of the measurement shows `progress_text` meanwhile. `look_up_changes` finds out
    which GPU settings the measurement changes; None if it changes none."""

    progress_text: str
    resume: Callable[[str | None], Coroutine[Any, Any, M]]
    look_up_changes: ChangeLookup | None = None
    takes_password: bool = False


def prepare_sweep_resume(
    session: Session,
    sweep: Sweep,
    look_up_changes: ChangeLookup | None,
    *,
    takes_password: bool = False,
) -> PreparedResume[Sweep]:
    """Return how to resume a sweep. `look_up_changes` finds out which GPU settings it changes; None
    if it changes none. `takes_password` says whether the user is asked for a password for sudo."""
    return PreparedResume(
        "resuming: everything is checked before anything is changed",
        lambda password: session.sweeps.resume(sweep.id, password=password),
        look_up_changes,
        takes_password,
    )


class SeriesController(Controller, Generic[M]):
    STARTING = "starting: everything is checked before anything is changed"

    async def open_measurement_page_or_form(self) -> None:
        """Open the page of the measurement that is running or ran last. If there is none, open the
        form for a new measurement."""
        if self.latest_measurement is not None:
            self.services.pages.open(self.make_measurement_page())
        else:
            await self.open_measurement_form()

    # of a subclass
    @property
    def latest_measurement(self) -> M | None:
        """Return the sweep or experiment that is running or ran last; None if there is none."""
        raise AssertionError("a subclass of SeriesController must define latest_measurement")

    def make_measurement_page(self) -> MeasurementPage:
        raise AssertionError("a subclass of SeriesController must define make_measurement_page")

    async def open_measurement_form(self) -> None:
        """Show the form for a new measurement."""

    async def stop_measurement(self) -> None:
        """Stop the running measurement."""

    def prepare_resume(self, page: MeasurementPage, action: str) -> PreparedResume[M] | None:
        """Return how to resume the measurement on `page`; None if it cannot be resumed. `action` is
        "resume" to continue the measurement, or "more" to add runs to it."""

    def end_message_and_next_step(self, measured: M) -> tuple[str, str]:
        """Return a message about a measurement that has ended, and the text of the user's next
        step."""
        raise AssertionError("a subclass of SeriesController must define end_message_and_next_step")

    def pick_earlier_measurement(self) -> None:
        """Show a list of the measurements on this host, and open the page of the chosen one."""

    # the page
    async def run_page_action(self, page: MeasurementPage, action: str) -> None:
        """Do what a key of the page asks for. `action` is "new" (open the form), "list" (list the
        measurements), "stop" (stop the measurement), or "resume" or "more" (resume the measurement
        on the page). The page stays open."""
        if action == "new":
            await self.open_measurement_form()
        elif action == "list":
            self.pick_earlier_measurement()
        elif action == "stop":
            page.show_requested_action(STOPPING)
            self.run_in_background(
                self.stop_measurement, on_error=lambda: page.clear_failed_request(self.state)
            )
        elif (found := self.prepare_resume(page, action)) is not None:
            self._resume_on_page(page, found)

    def _resume_on_page(self, page: MeasurementPage, prepared: PreparedResume[M]) -> None:
        """Resume the measurement on `page`. If it changes GPU settings, show the commands first."""

        def resume_with_password(password: str | None = None) -> None:
            page.show_requested_action(prepared.progress_text)
            self.run_measurement(
                lambda: prepared.resume(password),
                self._report_measurement_end,
                on_error=lambda: page.clear_failed_request(self.state),
            )

        if prepared.look_up_changes is None:
            resume_with_password()
        else:
            self.controllers.gpu.confirm_setting_changes(
                prepared.look_up_changes,
                resume_with_password,
                takes_password=prepared.takes_password,
            )

    def start_measurement_after_consent(
        self, look_up_changes: ChangeLookup | None, work: RunMeasurement[M]
    ) -> None:
        """Start a new measurement as `start_measurement` does. If it changes GPU settings, which
        `look_up_changes` finds out, show the commands first, and start it if the user agrees."""
        if look_up_changes is None:
            self.start_measurement(work)
        else:
            self.controllers.gpu.confirm_setting_changes(
                look_up_changes, lambda _: self.start_measurement(work)
            )

    def start_measurement(self, work: RunMeasurement[M]) -> None:
        """Open the page of a new measurement, then start the measurement by calling `work`. The
        page opens first, so that the next key of the user acts on the page."""
        page = self.make_measurement_page()
        page.show_requested_action(self.STARTING, hide_rows=True)
        self.services.pages.open(page)
        self.run_measurement(
            work,
            self._report_measurement_end,
            on_error=lambda: page.clear_failed_request(self.state),
        )

    def _report_measurement_end(self, measured: M) -> None:
        """Show a message that the measurement has ended. Do nothing if the page of a measurement is
        open, or if the measurement is still running."""
        if (
            not isinstance(self.services.pages.visible_page, MeasurementPage)
            and measured.state != "running"
        ):
            text, next_step = self.end_message_and_next_step(measured)
            self.show_message(text, next_step=next_step)

    def can_measure_or_show_message(self) -> bool:
        """Return True if no measurement of this Workbench is running. Otherwise show a message, and
        return False."""
        if self.state.bench.running:
            self.show_message(
                "a measurement is running", next_step="press K to cancel the measurement"
            )
        return not self.state.bench.running
