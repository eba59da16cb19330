"""An A/B experiment: two configurations, pairs of runs in a random order, and the comparison of the
pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from workbench.model.bench import Comparison, MetricChange
from workbench.model.declared_options import (
    DESIGN,
    SEED,
    Number,
    Switch,
    Whole,
    option_metadata,
    options_declared_in,
)
from workbench.model.lazy_dataclass import dataclass
from workbench.model.series_state import SeriesState
from workbench.model.settings import GpuSettings

# pairs -> the difference that they can show (docs/REFERENCE.md)
SHOWS_PCT = {3: 5.0, 5: 2.0, 8: 1.3}


@dataclass(frozen=True, slots=True)
class ArmTarget:
    """What one side of an experiment is measured on. `name` is the preset id, run id or URL that
    the user entered. A side without a target changes the plan that both sides share.

    When `name` is looked up, one of three fields is set: `url`; `run_id` of a running server, which
    is measured unchanged; or `plan`, the JSON of the server that is started for each run.
    """

    name: str
    host: str | None = None  # if it differs from the experiment's host
    executable: str | None = None  # program that starts the engine
    url: str | None = None
    run_id: str | None = None
    plan: Mapping[str, Any] | None = None
    preset_id: str | None = None

    @property
    def is_looked_up(self) -> bool:
        """Whether `name` has been looked up, so that `url`, `run_id` or `plan` is set."""
        return bool(self.url or self.run_id or self.plan)

    @property
    def description(self) -> str:
        """What one side of an experiment is measured on, as text: the preset, run or URL, then its
        executable and host if they are given."""
        words = self.name
        if self.executable:
            words += f" by {self.executable}"
        if self.host:
            words += f" on {self.host}"
        return words


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of an experiment: its changes to the plan that both sides share, or to the plan of
    its own target. `sets` has assignments such as "max-num-seqs=64", `unsets` names of flags, and
    `envs` assignments such as "NAME=value"."""

    sets: tuple[str, ...] = ()
    unsets: tuple[str, ...] = ()
    envs: tuple[str, ...] = ()
    gpu: GpuSettings = field(default_factory=GpuSettings)
    target: ArmTarget | None = None

    @property
    def changes_launch(self) -> bool:
        """Whether this side of an experiment changes a flag or an environment variable, so that the
        server must be started again."""
        return bool(self.sets or self.unsets or self.envs)

    @property
    def target_and_change_texts(self) -> tuple[str, ...]:
        """The target of this side of an experiment, if it has its own, and then each of its
        changes, as short texts such as "max-num-seqs=64", "without enforce-eager" or "K=V"."""
        target = [self.target.description] if self.target else []
        removed = (f"without {name}" for name in self.unsets)
        return (*target, *self.sets, *removed, *self.envs, *self.gpu.command_line_words)


@dataclass(frozen=True, slots=True)
class AdvisedChange:
    """The finding of the advisor that an experiment tests: its code, its text and the gain that it
    expects. The finding is about the result `result_id`, which was measured with `model`."""

    code: str
    text: str
    expected_gain: str | None
    result_id: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class ExperimentSpec:
    """The design of an experiment. `bench` contains values for fields of BenchSpec.

    `plan` is the plan that both sides change, as JSON (model/plan.py) with secrets masked; it is
    empty if each side has its own target. `pairs` is the number of pairs of runs. If `until_pct` is
    set, pairs are added until the half width of the confidence interval of `metric` is at most that
    percentage, and `pairs` is the maximum.
    """

    a: Arm
    b: Arm
    plan: Mapping[str, Any]
    preset_id: str | None = None
    bench: Mapping[str, Any] = field(default_factory=dict)
    pairs: int = field(
        default=3,
        metadata=option_metadata(
            "--pairs N",
            "number of pairs: 3 detect a difference of 5 %, 5 of 2 %, 8 of 1.3 % (3)",
            DESIGN,
            Whole(),
            exclusive="length",
            label="pairs",
        ),
    )
    until_pct: float | None = field(
        default=None,
        metadata=option_metadata(
            "--until PERCENT",
            "add pairs until the interval is ± PERCENT or narrower",
            DESIGN,
            Number("percent"),
            argument="until",
            exclusive="length",
            label="until ± percent",
            hint="stop at this interval; pairs: at most",
        ),
    )
    max_minutes: float | None = field(
        default=None,
        metadata=option_metadata(
            "--max-minutes M",
            "time limit; no pair is started that would exceed it",
            DESIGN,
            Number("minutes"),
            label="at most minutes",
            hint="then it stops with the complete pairs",
        ),
    )
    metric: str = field(
        default="output_tok_s",
        metadata=option_metadata(
            "--metric METRIC",
            "the metric that the verdict is about (output_tok_s); the others are shown beside it",
            DESIGN,
        ),
    )
    # start each run within this of the first run's start temperature
    match_temperature_c: float | None = field(
        default=None,
        metadata=option_metadata(
            "--match-temperature C",
            "start each run only when the GPUs are within C °C of the first run's start",
            DESIGN,
            Number("°C"),
            argument="match_temperature",
            label="start ± C",
            hint="of the first run's; empty: any temperature",
        ),
    )
    # Runs made first and discarded. None: one, and one of each arm whose first start compiles;
    # True: one of each arm; False: none.
    throw_away: bool | None = field(
        default=None,
        metadata=option_metadata(
            "--throw-away",
            "discard the first run of each arm (default: the first run of all, and the first run "
            "of each arm that compiles at its first start)",
            DESIGN,
            Switch(),
        ),
    )
    seed: int = field(
        default=0,
        metadata=option_metadata(
            "--seed SEED",
            "seed of lengths and arrival times; pair n uses seed + n (0)",
            DESIGN,
            SEED,
            argument="first_seed",
        ),
    )
    # seed of the order inside the pairs; None: A B B A, as in older experiments
    order_seed: int | None = field(
        default=None,
        metadata=option_metadata(
            "--order-seed N",
            "seed of the order of A and B in the pairs (default: random, and stored)",
            DESIGN,
            SEED,
        ),
    )
    # two hosts between which A and B are swapped in half of the pairs; (): no twins
    twins: tuple[str, ...] = ()
    # whether the answers are compared too, if A and B differ in what changes them
    quality: bool = True
    quality_texts: str = ""  # the user's file of texts for it; "": the texts of the package


OPTIONS = options_declared_in(ExperimentSpec)
WARM_UP = -1


def side_label(arm: str, host: str | None) -> str:
    """Return the name of one side of an experiment: "A", or for example "A on gpu-box-2" if the
    experiment runs on two equal hosts. `host` is None if it runs on one host."""
    return arm if host is None else f"{arm} on {host}"


INTERRUPTED = "interrupted"


class RunState(StrEnum):
    """The state of one run of an experiment. DROPPED means that the pair of runs was repeated,
    because one of its two runs failed or was interrupted. DISCARDED means that the run only warmed
    up the machine and is not counted."""

    PLANNED = "planned"
    STARTING = "starting"
    MEASURING = "measuring"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """One run of one side of an experiment: its position in the order of the runs, its state and
    its result."""

    place: int  # position from 0, in the order in which the runs are made
    pair: int  # WARM_UP for a run that belongs to no pair and is discarded
    arm: str  # "A" or "B"
    state: RunState = RunState.PLANNED
    result_id: int | None = None
    value: float | None = None  # value of the spec's metric
    took_s: float | None = None  # duration, including the server's start
    error: str | None = None
    run_id: str | None = None  # of the server
    # hottest GPU of the server before the run; None if not read
    start_temperature_c: float | None = None
    host: str | None = None  # of an experiment on twins
    ready_after_s: float | None = None  # of the server, if the experiment started it
    # what the engine says that it uses, by name: "attention backend", "KV cache, tokens", …
    chosen: Mapping[str, str] = field(default_factory=dict)

    @property
    def pair_label(self) -> str:
        """The pair to which this run belongs, as text: "pair 2", or "discarded"."""
        return "discarded" if self.pair == WARM_UP else f"pair {self.pair + 1}"

    @property
    def side_label(self) -> str:
        """The side of the experiment to which this run belongs: "A" or "B", or for example "B on
        gpu-box-2" if the experiment runs on two equal hosts."""
        return side_label(self.arm, self.host)


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment with its runs so far. `comparison` compares A and B over the complete pairs;
    None before the first pair."""

    id: int
    unix_s: float
    host: str
    spec: ExperimentSpec
    runs: tuple[ExperimentRun, ...] = ()
    state: SeriesState = SeriesState.RUNNING
    comparison: Comparison | None = None
    verdict: str = ""  # one sentence for the user
    smallest_pct: float | None = None  # the smallest difference that this design could have shown
    restarts: bool = False  # whether the arms differ in something that only a restart changes
    left_s: float | None = None  # estimated time left
    simulated: bool = False
    note: str = ""  # further facts for the reader, one sentence per line
    error: str | None = None
    # current activity: "discarded run, B: starting", "pair 2, A: waiting for 45 °C", …
    phase: str = ""
    extensions: int = 0  # how often more pairs were requested after the outcome had been seen
    server: str | None = None  # run that the experiment started; stopped at its end
    replaces: str | None = (
        # run that is on the GPUs and the port of the experiment's servers; the first start ends it
        None
    )
    settings_on: bool = False  # GPU settings of an arm may be in force; reverted at the end
    # change of the chosen metric with its interval: "+3.6 % ± 0.8"; "" before two pairs
    measured: str = ""
    advice: AdvisedChange | None = None  # what the experiment tests, if the advisor proposed it
    quality_id: int | None = None  # the comparison of the answers that was made beside the runs
    # the sweep of a GPU setting that made it, on the values of that sweep, and that resumes it
    sweep_id: int | None = None

    def was_run_on(self, host: str) -> bool:
        """Return whether the experiment was started on the host, or has it as a twin."""
        return host == self.host or host in self.spec.twins

    @property
    def change_of_deciding_metric(self) -> MetricChange | None:
        """The change of the metric that decides the experiment; None before the first pair."""
        metrics = self.comparison.metrics if self.comparison is not None else ()
        return next((m for m in metrics if m.metric == self.spec.metric), None)

    @property
    def resume_command(self) -> str:
        """The command that resumes the experiment. Only its sweep can resume an experiment that a
        sweep of a GPU setting made."""
        if self.sweep_id is not None:
            return f"workbench gpu sweep resume {self.sweep_id}"
        return f"workbench experiment resume {self.id}"

    @property
    def kind_noun(self) -> str:
        """What the user calls it, as for a sweep."""
        return "experiment"

    @property
    def side_order_text(self) -> str:
        """The order in which an experiment runs its sides A and B, as text: "the order A B B A" or
        "a random order"."""
        return "the order A B B A" if self.spec.order_seed is None else "a random order"

    @property
    def discarded_runs(self) -> tuple[ExperimentRun, ...]:
        return tuple(r for r in self.runs if r.state == RunState.DISCARDED)

    def finished_result_ids(self, arm: str = "") -> list[int]:
        """Return the ids of the results of all finished runs, or of those of one arm."""
        found = []
        for run in self.runs:
            if run.state == RunState.DONE and run.result_id is not None and arm in ("", run.arm):
                found.append(run.result_id)
        return found

    @property
    def completed_pairs(self) -> int:
        done: dict[str, set[int]] = {"A": set(), "B": set()}
        for run in self.runs:
            if run.state == RunState.DONE:
                done[run.arm].add(run.pair)
        return len(done["A"] & done["B"])
