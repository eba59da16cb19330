"""A sweep: one benchmark for each of several values of a GPU setting, of the concurrency, or of a
flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Any

from workbench.model.lazy_dataclass import dataclass
from workbench.model.series_state import SeriesState
from workbench.model.tune import TUNE, TuneSpec


class PointState(StrEnum):
    PLANNED = "planned"
    MEASURING = "measuring"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


CONCURRENCY = "concurrency"
USERS = "users"  # the kind of a search for the number of users under an SLO
RATES = "rates"  # the kind of a search for the rate of requests under an SLO
_RESUMED_BY = {
    "flag": "sweep",
    CONCURRENCY: "sweep",
    USERS: "capacity",
    RATES: "capacity",
    TUNE: TUNE,
}  # kind -> command
UNFINISHED = (PointState.PLANNED, PointState.MEASURING)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value of a sweep, with its results. `x` is the value as a number, or None if the value is
    text. A metric that was not measured is None."""

    label: str  # "400 W", "c=16", "max-num-seqs=512 kv-cache-dtype=fp8"
    x: float | None
    state: PointState = PointState.PLANNED
    result_ids: tuple[int, ...] = ()
    tok_s: float | None = None
    tok_per_joule: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None
    temperature_c: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p90_ms: float | None = None
    itl_mean_ms: float | None = None
    limit_pct: float | None = None  # tok/s in percent of what the hardware allows for this load
    in_force: str | None = None  # whether the load proved a GPU setting to be in force
    error: str | None = None
    bound: bool | None = None  # whether a power limit lowered the clocks or was reached
    goodput_request_s: float | None = None  # of a load with an SLO
    # of a search for users or a rate: "holds", "fails" or "open", and the percentage of requests that kept
    # all limits
    slo_verdict: str | None = None
    slo_pct: float | None = None
    gpus: int | None = None  # that the server used; None: not read, or by an older Workbench


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """The design of a sweep. It is stored before the first measurement, with secrets masked, so
    that the sweep can be resumed."""

    # as typed: "400", "210-1500"; of flags "name=value"; of users and rates the first and the highest
    # level; of rates also the horizon in seconds
    values: tuple[str, ...]
    bench: Mapping[str, Any] = field(default_factory=dict)  # fields of BenchSpec
    runs: int = 1
    pairs: int = 0
    # GPUs, driver, engine, model: must not change meanwhile
    measured: Mapping[str, str] = field(default_factory=dict)
    # For a GPU setting:
    run_id: str | None = None
    url: str | None = None
    gpus: tuple[str, ...] = ()  # UUIDs
    settle_s: float = 0.0
    # For flags:
    plan: Mapping[str, Any] | None = None  # the baseline, as JSON (model.plan)
    preset_id: str | None = None
    max_minutes: float | None = None
    # of the experiment that compares the best value (model/experiment.py)
    quality: bool = True
    quality_texts: str = ""
    tune: TuneSpec | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep and its points. `kind` is the key of a GPU setting, "concurrency", "flag", "users",
    "rates" or "tune".

    `knee` is the index of the point beyond which a higher value gains little, or None if no knee
    was found. `knee_text` states the rule by which the knee was found.
    """

    id: int
    unix_s: float
    host: str
    kind: str
    name: str  # axis title: "power limit", "concurrency", "max-num-seqs"
    unit: str  # "W", "MHz", ""
    points: tuple[SweepPoint, ...]
    state: SeriesState = SeriesState.RUNNING
    knee: int | None = None
    knee_text: str = ""
    simulated: bool = False
    left_s: float | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None
    # the A/B experiment that compared the best value of a flag with the baseline
    experiment_id: int | None = None
    server: str | None = None  # run that the sweep started and that is running now
    # whether pairs against the baseline confirmed the best value; None: not compared
    confirmed: bool | None = None
    # None: made by an older Workbench, or a kind that cannot be resumed
    spec: SweepSpec | None = None
    before: str | None = None  # run that was stopped for the sweep and is started again after it
    # Set while a GPU setting of the sweep may be in force: "owners", the processes that ran the
    # sweep (gpu/settings/owners.py), and "gpus", the previous settings of each GPU by UUID; of a
    # tune "settings", the keys of those that it set.
    start: Mapping[str, Any] | None = None
    # whether the answers stay the same over the values of the swept flags: "quality not measured",
    # or what was measured about the best value; "" if the flags change no answer
    quality: str = ""

    @property
    def resumable(self) -> bool:
        """Whether the sweep can be resumed: its design is stored, it is not running, and at least
        one value is not yet measured."""
        left = self.state in (SeriesState.STOPPED, SeriesState.FAILED)
        if self.kind != TUNE:  # a candidate that failed in a tune is out
            left = left or any(p.state != PointState.DONE for p in self.points)
        return self.spec is not None and self.state != SeriesState.RUNNING and left

    @property
    def finds(self) -> str:
        """What the sweep looks for among its values: "knee", or "capacity" of a search for users
        or for a rate."""
        return "capacity" if self.kind in (USERS, RATES) else "knee"

    @property
    def what(self) -> str:
        """What the sweep is, such as "sweep of max-num-seqs" or "tune of output tok/s"."""
        return self.name if self.kind == TUNE else f"sweep of {self.name}"

    @property
    def steps(self) -> str:
        """What the points of the sweep are called."""
        return "starts" if self.kind == TUNE else "points"

    @property
    def command(self) -> str:
        """The command that started the sweep and resumes it, such as "gpu sweep"."""
        return _RESUMED_BY.get(self.kind, "gpu sweep")

    @property
    def resume_command(self) -> str:
        return f"workbench {self.command} resume {self.id}"

    @property
    def values_done(self) -> int:
        return sum(p.state == PointState.DONE for p in self.points)


def resumed(sweep: Sweep) -> Sweep:
    """Return the sweep ready for a new start: measured points keep their results and notes, and all
    other points are in the state "planned" again. A level of load that was interrupted between two
    of its runs keeps those that it had."""
    if sweep.kind == TUNE:
        return _resumed_tune(sweep)
    points = tuple(map(_resumed_point, sweep.points))
    of_values = tuple(f"{p.label}: " for p in points if p.state == PointState.DONE)
    notes = tuple(note for note in sweep.notes if note.startswith(of_values))
    notes += (f"resumed: {sweep.values_done} of {len(points)} values had been measured before",)
    return replace(_fresh(sweep), points=points, notes=notes)


def _resumed_tune(sweep: Sweep) -> Sweep:
    """Return a tune ready to go on. Its notes are the log of its decisions and stay; so do failed
    starts of candidates, which would only fail again."""
    first, *rest = sweep.points  # the start preset: without it, nothing can be compared
    again = SweepPoint(first.label, first.x) if first.state == PointState.FAILED else first
    points = tuple(p if p.state == PointState.FAILED else _resumed_point(p) for p in (again, *rest))
    ended = sum(p.state != PointState.PLANNED for p in points)
    note = f"resumed: {ended} starts of the race had ended before"
    return replace(_fresh(sweep), points=points, notes=(*sweep.notes, note))


def _fresh(sweep: Sweep) -> Sweep:
    return replace(
        sweep,
        state=SeriesState.RUNNING,
        knee=None,
        knee_text="",
        left_s=None,
        error=None,
        confirmed=None,
    )


def _resumed_point(point: SweepPoint) -> SweepPoint:
    if point.state == PointState.DONE:
        return point
    if point.slo_verdict is not None:
        return replace(point, state=PointState.DONE, error=None)
    return SweepPoint(point.label, point.x)
