"""The course that experiments and all kinds of sweeps share. A design says which run comes next.
The conduct makes that run, until the design needs no more, or until the user, the time limit or an
error ends the series."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from workbench.bench.runner import BenchCancelled
from workbench.model.errors import HostError, WorkbenchError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.series_state import SeriesState

Run = TypeVar("Run")


class SeriesEndedEarly(Exception):
    """Raised to end a series before all of its runs are made. The text of the error is the reason.
    What was measured until then stays valid."""


class SeriesStopped(WorkbenchError):
    """Raised when the user stops a series or its time limit is reached. It can be resumed."""


class Design(ABC, Generic[Run]):
    """What one kind of series decides and does. `Run` is what tells its runs apart."""

    async def prepare_series(self) -> None:
        """Do what comes before the first run. By default nothing."""

    @abstractmethod
    def next_run(self) -> Run | None:
        """Return the run to make next. None if the series needs no more runs."""

    @abstractmethod
    def raise_if_stopped(self, run: Run) -> None:
        """Raise SeriesStopped or BenchCancelled if the user has stopped the series, or if the time
        limit leaves no room for `run`."""

    @abstractmethod
    async def carry_out_run(self, run: Run) -> object:
        """Make a run, and keep what it shows. An error ends the series."""

    async def finish_series(self) -> None:
        """Do what follows the last run. By default nothing."""

    async def restore_host(self) -> None:
        """Restore what the series changed. Called however it ends. By default nothing."""


@dataclass(frozen=True, slots=True)
class SeriesEnding:
    """How a series ended. `cause` is the error that ended it, None if all runs were made."""

    state: SeriesState
    cause: BaseException | None = None

    @property
    def unexpected_error(self) -> BaseException | None:
        """The error that ended the series if it is a defect of Workbench or the end of its task:
        the caller raises it once the series is stored. None if there is no such error."""
        expected = (WorkbenchError, SeriesEndedEarly)
        return None if isinstance(self.cause, expected) else self.cause


async def carry_out_series(design: Design[Run]) -> SeriesEnding:
    """Carry out a series, and return how it ended. Raises nothing, so that the caller can store the
    series whatever happened (SeriesEnding.unexpected_error)."""
    try:
        try:
            await design.prepare_series()
            while (run := design.next_run()) is not None:
                design.raise_if_stopped(run)
                await design.carry_out_run(run)
            await design.finish_series()
        finally:
            await design.restore_host()
    except SeriesEndedEarly as early:
        return SeriesEnding(SeriesState.DONE, early)
    except (SeriesStopped, BenchCancelled, HostError) as stopped:
        return SeriesEnding(SeriesState.STOPPED, stopped)
    except WorkbenchError as error:
        return SeriesEnding(SeriesState.FAILED, error)
    except BaseException as error:
        return SeriesEnding(SeriesState.STOPPED, error)
    return SeriesEnding(SeriesState.DONE)


class TimeLimit:
    """The time that a series may take from now on. `minutes` None is no limit."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes = minutes
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def remaining_s(self) -> float:
        """The seconds until the limit, below 0 after it; infinite without a limit."""
        return math.inf if self.minutes is None else 60 * self.minutes - self.elapsed_s

    def has_time_for(self, needs_s: float) -> bool:
        """Return whether work that needs `needs_s` seconds ends within the limit."""
        left_s = self.remaining_s
        return left_s > 0 and needs_s <= left_s
