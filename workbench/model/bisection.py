"""The search for the first of several versions of an engine that is worse than the first one."""

from __future__ import annotations

from workbench.model.lazy_dataclass import dataclass
from workbench.model.series_state import SeriesState


@dataclass(frozen=True, slots=True)
class BisectStep:
    """One version, compared with the good one in an experiment. `loss_pct` and `interval_pct` are
    in percent of the good one; None until the experiment has ended."""

    version: int  # its place among the versions
    experiment_id: int | None = None
    loss_pct: float | None = None
    interval_pct: float | None = None
    bad: bool | None = None


@dataclass(frozen=True, slots=True)
class Bisection:
    """A search over `versions`, of which the first is good and the last is bad. A version is
    "image:NAME" or "venv:/PATH". `verdict` is a sentence; "" until the search has ended."""

    id: int
    unix_s: float
    host: str
    preset: str
    versions: tuple[str, ...]
    variables: tuple[str, ...] = ()  # "name=value", of the preset
    sets: tuple[str, ...] = ()  # "flag=value", of all versions
    requests: int | None = None
    pairs: int = 5
    steps: tuple[BisectStep, ...] = ()
    state: SeriesState = SeriesState.RUNNING
    verdict: str = ""
    error: str | None = None
    simulated: bool = False

    @property
    def loss_of_last_version_pct(self) -> float | None:
        """By how much the last version is worse than the first one; None until that is measured."""
        last = len(self.versions) - 1
        return next((one.loss_pct for one in self.steps if one.version == last), None)


def next_version_to_test(found: Bisection) -> int | None:
    """Return the index of the version to compare next; None if the first bad version is known, or
    if the last one is not bad. The last version is tested first, because without a loss there is
    nothing to search."""
    last = len(found.versions) - 1
    known = {step.version: step.bad for step in found.steps if step.bad is not None}
    if last not in known:
        return last
    if not known[last]:
        return None
    good, bad = last_good_and_first_bad_index(found)
    if bad - good <= 1:
        return None
    return (good + bad) // 2


def last_good_and_first_bad_index(bisection: Bisection) -> tuple[int, int]:
    """Return (index of the last version that is known to be good, index of the first one that is
    known to be bad). The first version counts as good, and the last one as bad."""
    bad = min((s.version for s in bisection.steps if s.bad), default=len(bisection.versions) - 1)
    good = max(
        (s.version for s in bisection.steps if s.bad is False and s.version < bad), default=0
    )
    return good, bad
