"""Measure how often the interval of an experiment contains the truth, and how often it finds a
difference.

    python tests/benchmarks/bench_experiments.py [--experiments 1000] [--processes 2] [--markdown]
    [--twins]

Each experiment runs the product's own code from design to verdict (session/series/experiment_run.py,
bench/experiment.py, bench/compare.py). Only its runs are not real: they come from the speed model
of the simulated engine, with the noise of tests/support/simulated_runs.py.
bench_experiments_served.py runs some hundreds of experiments with servers and clients.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.simulated_runs import REALISTIC, TWINS, Noise, SimulatedRuns  # noqa: E402

from workbench.bench import experiment as design  # noqa: E402
from workbench.model.experiment import Arm, Experiment, ExperimentSpec  # noqa: E402
from workbench.session.series.experiment_run import ExperimentConduct  # noqa: E402

SHOWN = ("better", "worse")
EFFECTS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.10)
DESIGNS: dict[str, dict[str, object]] = {
    "3 pairs": {"pairs": 3},
    "5 pairs": {"pairs": 5},
    "8 pairs": {"pairs": 8},
    "until ± 2 %": {"pairs": 16, "until_pct": 2.0},
    "until ± 1 %": {"pairs": 24, "until_pct": 1.0},
}
TWIN_DESIGNS: dict[str, dict[str, object]] = {
    "4 pairs": {"pairs": 4},
    "6 pairs": {"pairs": 6},
    "8 pairs": {"pairs": 8},
    "until ± 2 %": {"pairs": 16, "until_pct": 2.0},
}
MACHINES = (0.0, 0.02, 0.05)  # how much faster the second twin is
KINDS = {
    "as in the table": REALISTIC,
    "no drift": replace(REALISTIC, drift=0.0),
    "drift 1 % per run": replace(REALISTIC, drift=0.01),
    "drift 3 % per run": replace(REALISTIC, drift=0.03),
    "no correlation": replace(REALISTIC, correlation=0.0),
    "correlation 0.8": replace(REALISTIC, correlation=0.8),
    "servers differ by 1 %": replace(REALISTIC, start=0.01),
    "the machine warms up, 3 %": replace(REALISTIC, warm_up=0.03),
    "second of a pair 1 % faster": replace(REALISTIC, second=0.01),
    "second of a pair 2 % slower": replace(REALISTIC, second=-0.02),
    "one of B's runs in 5 slower by 5 %": replace(REALISTIC, b_outliers=0.2, b_outlier_size=0.05),
    "one of B's runs in 10 slower by 20 %": replace(REALISTIC, b_outliers=0.1, b_outlier_size=0.2),
    "one run in 12 disturbed": replace(REALISTIC, outliers=1 / 12),
    "first run 5 % slower (cold machine)": replace(REALISTIC, cold=0.05),
    "1 % wave, period of four runs": replace(REALISTIC, wave=0.01),
    "servers of two speeds, ± 3 %": replace(REALISTIC, two_speeds=0.03),
    "5 % slower from some run on": replace(REALISTIC, step=0.05),
    "B three times as noisy": replace(REALISTIC, b_noise=0.02),
    "each arm compiled once, ± 1 % for good": replace(REALISTIC, arm=0.01),
    "all of these but correlation": replace(
        REALISTIC, start=0.01, warm_up=0.03, second=0.01, outliers=1 / 12
    ),
    "other metrics for themselves": replace(REALISTIC, apart=0.02),
}

OF_ORDER = (  # kinds whose effect depends on the order of the runs, and kinds that only B has
    "as in the table",
    "drift 1 % per run",
    "drift 3 % per run",
    "1 % wave, period of four runs",
    "second of a pair 1 % faster",
    "second of a pair 2 % slower",
    "B three times as noisy",
    "one of B's runs in 5 slower by 5 %",
    "one of B's runs in 10 slower by 20 %",
)


@dataclass
class Cell:
    """The outcomes of many experiments of one design and one true effect."""

    experiments: int = 0
    held: int = 0  # the interval holds the truth
    shown: int = 0  # better or worse
    wrong: int = 0  # shown with the wrong sign
    others: int = 0  # any other metric called better or worse
    pairs: int = 0
    smallest: float = 0.0
    machine_held: int = 0  # the interval of the machine holds the truth
    machine_shown: int = 0
    # By how many pairs one order led the other -> experiments, and those that hold the truth.
    leads: Counter[int] = field(default_factory=Counter)
    held_by_lead: Counter[int] = field(default_factory=Counter)

    def take(self, experiment: Experiment, effect: float, machine_truth: float = 0.0) -> None:
        assert experiment.comparison is not None and experiment.state == "done", experiment.error
        change, *others = experiment.comparison.metrics
        assert change.change_pct is not None and change.interval_pct is not None
        self.experiments += 1
        held = abs(change.change_pct - 100 * effect) <= change.interval_pct
        self.held += held
        pairs = experiment.completed_pairs
        firsts = sum(
            design.arm_order_of_pair(experiment.spec, pair)[0] == "A" for pair in range(pairs)
        )
        self.leads[abs(2 * firsts - pairs)] += 1
        self.held_by_lead[abs(2 * firsts - pairs)] += held
        self.shown += change.verdict in SHOWN
        self.wrong += change.verdict == "worse" and effect > 0
        self.others += any(other.verdict in SHOWN for other in others)
        self.pairs += experiment.completed_pairs
        self.smallest += experiment.smallest_pct or 0.0
        machine = experiment.comparison.machine
        if (
            machine is not None
            and machine.change_pct is not None
            and machine.interval_pct is not None
        ):
            self.machine_held += (
                abs(machine.change_pct - 100 * machine_truth) <= machine.interval_pct
            )
            self.machine_shown += machine.verdict in SHOWN

    def __add__(self, other: Cell) -> Cell:
        return Cell(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def share_pct(self, name: str) -> float:
        return 100 * float(getattr(self, name)) / self.experiments

    def worst_split_pct(self) -> float:
        """Return how often the interval holds the truth in those experiments whose orders were
        divided least favourably. A division that 1 in 20 experiments or fewer had is left out."""
        met = [lead for lead, count in self.leads.items() if count > self.experiments / 20]
        return min(100 * self.held_by_lead[lead] / self.leads[lead] for lead in met)


async def _kept(_: Experiment) -> None:
    """Store nothing."""


async def one(options: dict[str, object], runs: SimulatedRuns) -> Experiment:
    """Run one experiment. `extend_to` is the number of pairs to extend it to if its own pairs
    showed nothing, as `experiment resume ID --pairs` does."""
    options = dict(options)
    more = options.pop("extend_to", None)
    options.setdefault("order_seed", runs.seed)
    spec = design.check_experiment_spec(ExperimentSpec(Arm(), Arm(sets=("knob=B",)), {}, **options))  # type: ignore[arg-type]
    new = Experiment(1, 0.0, "sim", spec, restarts=runs.restarts)
    ended = await ExperimentConduct(new, runs, save=_kept).carry_out_experiment()
    if more is None or ended.comparison is None or ended.comparison.metrics[0].verdict in SHOWN:
        return ended
    again = replace(ended, spec=replace(spec, pairs=int(str(more))), extensions=1)
    return await ExperimentConduct(
        design.prepare_experiment_to_resume(again), runs, save=_kept, results=runs.results
    ).carry_out_experiment()


def cell(
    options: dict[str, object], effect: float, seeds: range, noise: Noise = REALISTIC, **how: bool
) -> Cell:
    """Run one experiment for each seed."""

    async def all_of_them() -> Cell:
        found = Cell()
        for seed in seeds:
            found.take(
                await one(options, SimulatedRuns(effect, seed, noise, **how)), effect, noise.machine
            )
        return found

    return asyncio.run(all_of_them())


class Cells:
    """Cells in parts of 250 experiments, on several processes."""

    def __init__(self, pool: ProcessPoolExecutor, experiments: int) -> None:
        self.pool, self.experiments = pool, experiments
        self.begun = 0

    def begin(
        self, options: dict[str, object], effect: float, noise: Noise = REALISTIC, **how: bool
    ) -> list[Future[Cell]]:
        """Start a cell. No two cells have a seed in common."""
        first = self.begun * self.experiments
        self.begun += 1
        ends = [*range(first, first + self.experiments, 250), first + self.experiments]
        parts = (range(a, b) for a, b in itertools.pairwise(ends))
        return [self.pool.submit(cell, options, effect, seeds, noise, **how) for seeds in parts]


def found(parts: Sequence[Future[Cell]]) -> Cell:
    return sum((part.result() for part in parts), Cell())


def table(cells: Cells) -> Iterable[tuple[str, float, Cell]]:
    begun = [
        (name, effect, cells.begin(options, effect))
        for name, options in DESIGNS.items()
        for effect in EFFECTS
    ]
    return ((name, effect, found(parts)) for name, effect, parts in begun)


def robustness(cells: Cells) -> Iterable[tuple[str, Cell]]:
    """Run experiments without a true difference under other kinds of noise, with and without the
    random order and the discarded run that two of these kinds are the reason for; then designs that
    the product does not have, and extensions."""
    five, until = {"pairs": 5}, {"pairs": 64, "until_pct": 1.0}
    begun = [(name, cells.begin(five, 0.0, noise)) for name, noise in KINDS.items()]
    fixed: dict[str, object] = {**five, "order_seed": None}
    begun.append(
        (
            "1 % wave, in the fixed order A B B A",
            cells.begin(fixed, 0.0, KINDS["1 % wave, period of four runs"]),
        )
    )
    cold = KINDS["first run 5 % slower (cold machine)"]
    for name, kept in (("discarded", None), ("kept", False)):
        options: dict[str, object] = {"pairs": 3, "throw_away": kept}
        begun.append((f"3 pairs, 3 %, cold first run {name}", cells.begin(options, 0.03, cold)))
    begun += [
        (f"until ± 1 %, {name}", cells.begin(until, 0.0, KINDS[name]))
        for name in ("no drift", "no correlation", "one run in 12 disturbed")
    ]
    differ = KINDS["servers differ by 1 %"]
    begun.append(
        ("the same server for two runs", cells.begin(five, 0.0, differ, shared_starts=True))
    )
    for before, after in ((3, 5), (3, 8), (5, 8)):
        more = {"pairs": before, "extend_to": after}
        begun.append(
            (f"{before} pairs, to {after} where nothing was shown", cells.begin(more, 0.0))
        )
    return ((name, found(parts)) for name, parts in begun)


def by_split(cells: Cells) -> Iterable[str]:
    """Run experiments without a true difference under kinds of noise that depend on the order of the
    runs, or that only B has. Yield the rows of the table of docs/REFERENCE.md: all experiments, and
    those with the worst division of the two orders."""
    designs = {name: options for name, options in DESIGNS.items() if name != "until ± 1 %"}
    yield "| noise, added to the noise above | " + " | ".join(designs) + " |"
    yield "|---|" + "--:|" * len(designs)
    for kind in OF_ORDER:
        parts = [cells.begin(options, 0.0, KINDS[kind]) for options in designs.values()]
        done = [found(part) for part in parts]
        shares = (f"{one.share_pct('held'):.1f} ({one.worst_split_pct():.1f}) %" for one in done)
        yield f"| {kind} | " + " | ".join(shares) + " |"


def on_twins(cells: Cells) -> Iterable[str]:
    """Run experiments on twins with and without a change and a difference between the machines.
    Yield the rows of the table of docs/REFERENCE.md."""
    yield (
        "| | "
        + " | ".join(f"{100 * e:g} %" for e in EFFECTS)
        + (" | holds: change | machine | pairs |")
    )
    yield "|---|" + "--:|" * (len(EFFECTS) + 3)
    for name, options in TWIN_DESIGNS.items():
        given = {**options, "twins": TWINS}
        begun = {
            (effect, machine): cells.begin(given, effect, replace(REALISTIC, machine=machine))
            for effect in EFFECTS
            for machine in MACHINES
        }
        done = {key: found(parts) for key, parts in begun.items()}
        by_effect = [sum((done[effect, m] for m in MACHINES), Cell()) for effect in EFFECTS]
        every = sum(by_effect, Cell())
        shown = " | ".join(
            f"{one.share_pct('shown'):.{0 if n else 1}f} %" for n, one in enumerate(by_effect)
        )
        held = f"{every.share_pct('held'):.1f} % | {every.share_pct('machine_held'):.1f} %"
        yield f"| {name} | {shown} | {held} | {every.pairs / every.experiments:.1f} |"
        for machine in MACHINES:
            of_machine = sum((done[effect, machine] for effect in EFFECTS), Cell())
            share = of_machine.share_pct("machine_shown")
            yield f"  {name}: a machine {100 * machine:g} % faster is shown in {share:.1f} %"


def whole(rows: Sequence[tuple[str, float, Cell]], name: str) -> Cell:
    """Return all cells of a design together: noise, interval and spread do not depend on the
    effect."""
    return sum((found for title, _, found in rows if title == name), Cell())


def markdown(rows: Sequence[tuple[str, float, Cell]]) -> Iterable[str]:
    yield (
        "| | "
        + " | ".join(f"{100 * e:g} %" for e in EFFECTS)
        + (" | interval holds the truth | pairs made |")
    )
    yield "|---|" + "--:|" * (len(EFFECTS) + 2)
    for name in DESIGNS:
        cells = [found for title, _, found in rows if title == name]
        shown = " | ".join(
            f"{100 * one.shown / one.experiments:.{1 if one is cells[0] else 0}f} %"
            for one in cells
        )
        together = whole(rows, name)
        pairs = together.pairs / together.experiments
        yield f"| {name} | {shown} | {together.share_pct('held'):.1f} % | {pairs:.1f} |"


def told(found: Cell) -> str:
    pairs, smallest = found.pairs / found.experiments, found.smallest / found.experiments
    return (
        f"holds {found.held:>5} of {found.experiments} ({found.share_pct('held'):.1f} %)  shown "
        f"{found.share_pct('shown'):5.1f} %  wrong way {found.wrong}  any other metric "
        f"{found.share_pct('others'):4.1f} %  pairs {pairs:4.1f}  smallest {smallest:.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiments", type=int, default=1000, help="for each cell")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of docs/REFERENCE.md too"
    )
    parser.add_argument("--twins", action="store_true", help="experiments on twins only")
    parser.add_argument(
        "--splits", action="store_true", help="the kinds of noise that depend on the order only"
    )
    given = parser.parse_args()
    count = given.experiments
    print(f"{count} experiments per cell, ± {196 * math.sqrt(0.05 * 0.95 / count):.1f} % by chance")
    with ProcessPoolExecutor(given.processes) as pool:
        cells = Cells(pool, count)
        if given.twins or given.splits:
            for line in on_twins(cells) if given.twins else by_split(cells):
                print(line, flush=True)
            return
        rows = []
        for name, effect, found_here in table(cells):
            rows.append((name, effect, found_here))
            print(f"{name:<12} {100 * effect:>4g} %  {told(found_here)}", flush=True)
        for name in DESIGNS:
            print(f"{name:<12}  all    {told(whole(rows, name))}", flush=True)
        if given.markdown:
            print(*markdown(rows), sep="\n", flush=True)
        print("no true difference:")
        for name, found_here in robustness(cells):
            print(f"{name:<38} {told(found_here)}", flush=True)


if __name__ == "__main__":
    main()
