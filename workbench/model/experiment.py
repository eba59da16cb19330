"""An A/B experiment: two configurations, pairs of runs in a random order, and what they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.model.bench import Comparison
from workbench.model.settings import GpuSettings

SHOWS_PCT = {3: 5.0, 5: 2.0, 8: 1.3}  # pairs -> the difference they are for, as measured (docs/REFERENCE.md)


@dataclass(frozen=True, slots=True)
class Target:
    """What an arm is measured on where the arms have no common base. `name` as typed: a URL, a run, a preset; once it
    is looked up, one of `url`, `run_id` (a server that runs, and is measured as it is) and `plan` (JSON as in
    ExperimentSpec: of the server that is started for each run)."""

    name: str
    host: str | None = None  # where it is not the experiment's
    executable: str | None = None  # what starts its engine
    url: str | None = None
    run_id: str | None = None
    plan: Mapping[str, Any] | None = None
    preset_id: str | None = None

    @property
    def known(self) -> bool:
        return bool(self.url or self.run_id or self.plan)

    @property
    def words(self) -> str:
        words = [
            self.name,
            *(["by", self.executable] if self.executable else []),
            *(["on", self.host] if self.host else []),
        ]
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Arm:
    """What one side changes on the common base or on its own target, as typed: "flag=value", names of flags, "K=V"."""

    sets: tuple[str, ...] = ()
    unsets: tuple[str, ...] = ()
    envs: tuple[str, ...] = ()
    gpu: GpuSettings = field(default_factory=GpuSettings)
    target: Target | None = None

    @property
    def relaunches(self) -> bool:
        """Whether it changes what only a start of the server changes."""
        return bool(self.sets or self.unsets or self.envs)


@dataclass(frozen=True, slots=True)
class ExperimentSpec:
    """`plan`: the base as JSON (model.plan), secrets masked; empty where the arms have targets. `pairs`: so many;
    `until_pct`: until the interval of `metric` is that narrow (± percent), `pairs` then being the most. `bench`: fields
    of BenchSpec."""

    a: Arm
    b: Arm
    plan: Mapping[str, Any]
    preset_id: str | None = None
    bench: Mapping[str, Any] = field(default_factory=dict)
    pairs: int = 3
    until_pct: float | None = None
    metric: str = "output_tok_s"
    max_minutes: float | None = None
    match_temperature_c: float | None = None  # start each run within this of the first run's start temperature
    seed: int = 0
    # Which runs are made first and discarded: None, one, and one of each arm whose first start compiles; True, one of
    # each arm; False, none.
    throw_away: bool | None = None
    order_seed: int | None = None  # of the order inside the pairs; None: A B B A, as older experiments have it


WARM_UP = -1
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """One run of one arm. `state`: "planned", "starting", "measuring", "done", "failed", or "dropped": measured, but
    its partner failed or an interruption lay between them, so that the pair was made again; "discarded": a first run
    of a cold machine."""

    place: int  # 0… in the order in which they are made
    pair: int  # WARM_UP: of none, to be discarded
    arm: str  # "A" or "B"
    state: str = "planned"
    result_id: int | None = None
    value: float | None = None  # of the spec's metric, for the list
    took_s: float | None = None  # with the server's start
    error: str | None = None
    run_id: str | None = None  # the server
    start_temperature_c: float | None = None  # hottest GPU of the server before the run; None: not asked for


@dataclass(frozen=True, slots=True)
class Experiment:
    """`state`: "running", "stopped" (can be resumed), "done", "failed" (can be resumed too). `comparison`: of the
    complete pairs so far, each metric with its raw pairs."""

    id: int
    unix_s: float
    host: str
    spec: ExperimentSpec
    runs: tuple[ExperimentRun, ...] = ()
    state: str = "running"
    comparison: Comparison | None = None
    verdict: str = ""  # one sentence for a person
    smallest_pct: float | None = None  # the smallest difference that this design could have shown
    restarts: bool = False  # whether the arms differ in what only a restart changes
    left_s: float | None = None  # estimate
    simulated: bool = False
    note: str = ""  # what else a reader must know, one sentence per line
    error: str | None = None
    phase: str = ""  # what is done right now: "discarded run, B: starting", "pair 2, A: waiting for 45 °C", …
    extensions: int = 0  # how often more pairs were asked for after the outcome had been seen
    server: str | None = None  # run that the experiment started and has on now: ended at the end
    settings_on: bool = False  # GPU settings of an arm may be on now: given back at the end

    @property
    def order(self) -> str:
        """In words."""
        return "the order A B B A" if self.spec.order_seed is None else "a random order"

    @property
    def discarded(self) -> tuple[ExperimentRun, ...]:
        return tuple(r for r in self.runs if r.state == "discarded")

    @property
    def pairs_done(self) -> int:
        done = [(r.pair, r.arm) for r in self.runs if r.state == "done"]
        return sum((pair, "B") in done for pair, arm in done if arm == "A")
