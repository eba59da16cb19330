"""A sweep: benchmarks at several values of a GPU setting, of the concurrency, or of flags. Searches
under an SLO and tunes are stored in the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from workbench.model.counts import count_of
from workbench.model.lazy_dataclass import dataclass
from workbench.model.series_state import SeriesState
from workbench.model.tune import TUNE, TuneSpec


class PointState(StrEnum):
    PLANNED = "planned"
    MEASURING = "measuring"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


PointIndex: TypeAlias = int  # of a point among those of its sweep
UNFINISHED = (PointState.PLANNED, PointState.MEASURING)
BACK = "back to the start"  # in place of a value: the commands that restore the values before


@dataclass(frozen=True, slots=True)
class SweepKind:
    """What the sweeps of a kind have in common. It is stored with each of them, so that what shows
    a sweep needs no list of kinds.

    `command` starts and resumes them. With `varies_load`, their values are loads of one server, and
    if these are numbers of something, `counts` is its name. `finds` is what they look for among
    their values. With `starts_servers`, each value has a start of its own; with `sets_gpu`, each
    value changes the GPU and is reverted."""

    name: str
    command: str
    varies_load: bool = False
    counts: str = ""  # "user" or "stream"
    finds: str = "knee"  # or "capacity"
    starts_servers: bool = False
    sets_gpu: bool = False


FLAGS = SweepKind("flag", "sweep", starts_servers=True)
CONCURRENCY = SweepKind("concurrency", "sweep", varies_load=True, counts="stream")
# searches under an SLO: for the number of users, and for the rate of requests
USERS = SweepKind("users", "capacity", varies_load=True, counts="user", finds="capacity")
RATES = SweepKind("rates", "capacity", varies_load=True, finds="capacity")
TUNES = SweepKind(TUNE, TUNE, starts_servers=True)
# the sweeps of earlier versions have only the name of their kind
_BEFORE = {kind.name: kind for kind in (FLAGS, CONCURRENCY, USERS, RATES, TUNES)}


def make_gpu_setting_sweep_kind(key: str) -> SweepKind:
    """Return the kind of the sweeps of a GPU setting."""
    return SweepKind(key, "gpu sweep", sets_gpu=True)


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
    # of a search for users or a rate: "holds", "fails" or "open", and the percentage of requests
    # that kept all limits
    slo_verdict: str | None = None
    slo_pct: float | None = None
    users: float | None = None  # that keep the SLO, of a tune with this goal
    gpus: int | None = None  # that the server used; None: not read, or by an older Workbench


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """The design of a sweep. It is stored before the first measurement, with secrets masked, so
    that the sweep can be resumed."""

    # as typed: "400", "210-1500"; of flags "name=value"; of users and rates the first and the
    # highest level; of rates also the horizon in seconds
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
    preset_file: str | None = None  # of a preset that is not in the library
    max_minutes: float | None = None
    # of the experiment that compares the best value (model/experiment.py)
    quality: bool = True
    quality_texts: str = ""
    tune: TuneSpec | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep and its points. `kind` is the name of its kind, such as "concurrency" or the key of a
    GPU setting.

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
    starting: str | None = None  # run that the sweep starts now; its process may not run yet
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
    kind_facts: SweepKind | None = None  # None in sweeps of earlier versions
    worked_s: float = 0.0  # how long the commands worked on it, until it was stored last

    @property
    def tune_spec(self) -> TuneSpec:
        """What was asked of a tune. Other kinds of sweeps have none."""
        assert self.spec is not None and self.spec.tune is not None
        return self.spec.tune

    @property
    def can_be_resumed(self) -> bool:
        """Whether the sweep can be resumed: its design is stored, it is not running, and at least
        one value is not yet measured."""
        left = self.state in (SeriesState.STOPPED, SeriesState.FAILED)
        if self.kind != TUNE:  # a candidate that failed in a tune is out
            left = left or any(p.state != PointState.DONE for p in self.points)
        return self.spec is not None and self.state != SeriesState.RUNNING and left

    @property
    def searched_result_name(self) -> str:
        """What the sweep looks for among its values: "knee", or "capacity" of a search for users
        or for a rate."""
        return self.sweep_kind.finds

    @property
    def description(self) -> str:
        """What the sweep is, such as "sweep of max-num-seqs" or "tune of output tok/s"."""
        return self.name if self.kind == TUNE else f"sweep of {self.name}"

    @property
    def points_noun(self) -> str:
        """What the points of the sweep are called: "race starts" of a tune, else "points"."""
        return "race starts" if self.kind == TUNE else "points"

    @property
    def command(self) -> str:
        """The command that started the sweep and resumes it, such as "gpu sweep"."""
        return self.sweep_kind.command

    @property
    def sweep_kind(self) -> SweepKind:
        """What the sweeps of this kind have in common: as stored, or for a sweep of an earlier
        version, by the name of its kind."""
        return self.kind_facts or _BEFORE.get(self.kind) or make_gpu_setting_sweep_kind(self.kind)

    @property
    def is_tune(self) -> bool:
        return self.kind == TUNE

    @property
    def outcome_text(self) -> str:
        """The error that ended the sweep, else what it found, else its state."""
        return self.error or self.knee_text or self.state

    @property
    def kind_noun(self) -> str:
        """What the user calls it: "tune" or "sweep"."""
        return "tune" if self.kind == TUNE else "sweep"

    @property
    def resume_command(self) -> str:
        return f"workbench {self.command} resume {self.id}"

    @property
    def measured_value_count(self) -> int:
        return sum(p.state == PointState.DONE for p in self.points)


def planned_again_for_resume(sweep: Sweep) -> Sweep:
    """Return the sweep ready for a new start: measured points keep their results and notes, and all
    other points are in the state "planned" again. A level of load that was interrupted between two
    of its runs keeps those that it had."""
    if sweep.kind == TUNE:
        return _tune_planned_again(sweep)
    points = tuple(map(_point_planned_again, sweep.points))
    of_values = tuple(f"{p.label}: " for p in points if p.state == PointState.DONE)
    notes = tuple(note for note in sweep.notes if note.startswith(of_values))
    notes += (
        f"resumed: {sweep.measured_value_count} of {len(points)} values had been measured before",
    )
    return replace(_sweep_marked_as_running(sweep), points=points, notes=notes)


def _tune_planned_again(sweep: Sweep) -> Sweep:
    """Return the tune ready for a new start. Its notes stay, because they are the log of its
    decisions. So do the failed starts of candidates, which would only fail again; that of the start
    preset is planned again."""
    first, *rest = sweep.points  # the start preset: without it, nothing can be compared
    again = SweepPoint(first.label, first.x) if first.state == PointState.FAILED else first
    points = tuple(
        p if p.state == PointState.FAILED else _point_planned_again(p) for p in (again, *rest)
    )
    ended = sum(p.state != PointState.PLANNED for p in points)
    note = f"resumed: {count_of(ended, 'start')} of the race had ended before"
    return replace(_sweep_marked_as_running(sweep), points=points, notes=(*sweep.notes, note))


def _sweep_marked_as_running(sweep: Sweep) -> Sweep:
    return replace(
        sweep,
        state=SeriesState.RUNNING,
        knee=None,
        knee_text="",
        left_s=None,
        error=None,
        confirmed=None,
        starting=None,
    )


def _point_planned_again(point: SweepPoint) -> SweepPoint:
    """Return the point as it is if it was measured, as done if its search has a verdict about it,
    and otherwise as planned, without results."""
    if point.state == PointState.DONE:
        return point
    if point.slo_verdict is not None:
        return replace(point, state=PointState.DONE, error=None)
    return SweepPoint(point.label, point.x)
