"""How often an experiment's interval holds the truth, how often it sees a difference that is there, or is not.

    python tests/benchmarks/bench_experiments.py [--experiments 2000] [--markdown]

Each experiment is the product's own from design to verdict (session/conduct.py, bench/experiment.py, bench/compare.py);
only its runs come from the simulated engine's speed model with the noise of tests/support/simulated_runs.py instead of
from servers. tests/e2e/test_experiments_long.py does some tens through servers and clients.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.simulated_runs import REALISTIC, Noise, SimulatedRuns  # noqa: E402

from workbench.bench import experiment as design  # noqa: E402
from workbench.model.experiment import Arm, Experiment, ExperimentSpec  # noqa: E402
from workbench.session.conduct import Conduct  # noqa: E402

EFFECTS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.10)
DESIGNS: dict[str, dict[str, object]] = {
    "3 pairs": {"pairs": 3},
    "5 pairs": {"pairs": 5},
    "8 pairs": {"pairs": 8},
    "until ± 2 %": {"pairs": 16, "until_pct": 2.0},
    "until ± 1 %": {"pairs": 24, "until_pct": 1.0},
}


@dataclass
class Cell:
    """What so many experiments of one design and one true effect gave."""

    experiments: int = 0
    held: int = 0  # the interval holds the truth
    shown: int = 0  # better or worse
    wrong: int = 0  # shown with the wrong sign
    pairs: int = 0
    smallest: float = 0.0

    def take(self, experiment: Experiment, effect: float) -> None:
        assert experiment.comparison is not None and experiment.state == "done", experiment.error
        change = experiment.comparison.metrics[0]
        assert change.change_pct is not None and change.interval_pct is not None
        self.experiments += 1
        self.held += abs(change.change_pct - 100 * effect) <= change.interval_pct
        self.shown += change.verdict in ("better", "worse")
        self.wrong += change.verdict == "worse" and effect > 0
        self.pairs += experiment.pairs_done
        self.smallest += experiment.smallest_pct or 0.0

    @property
    def coverage_pct(self) -> float:
        return 100 * self.held / self.experiments

    @property
    def shown_pct(self) -> float:
        return 100 * self.shown / self.experiments


async def _kept(_: Experiment) -> None:
    """Nothing of these is stored."""


async def one(options: dict[str, object], runs: SimulatedRuns) -> Experiment:
    spec = design.checked(ExperimentSpec(Arm(), Arm(sets=("knob=B",)), {}, **options))  # type: ignore[arg-type]
    new = Experiment(1, 0.0, "sim", spec, restarts=runs.restarts)
    return await Conduct(new, runs, save=_kept).carry_out()


def cell(
    options: dict[str, object], effect: float, experiments: int, noise: Noise = REALISTIC, seed: int = 0, **how: bool
) -> Cell:
    async def all_of_them() -> Cell:
        found = Cell()
        for number in range(experiments):
            found.take(await one(options, SimulatedRuns(effect, seed + number, noise, **how)), effect)
        return found

    return asyncio.run(all_of_them())


def rows(experiments: int) -> Iterable[tuple[str, float, Cell]]:
    for name, options in DESIGNS.items():
        for effect in EFFECTS:
            yield name, effect, cell(options, effect, experiments, seed=int(1e6 * effect) * experiments)


def robustness(experiments: int) -> Iterable[tuple[str, Cell]]:
    """Five pairs, no true difference, other kinds of noise."""
    kinds = {
        "as above": REALISTIC,
        "no drift": replace(REALISTIC, drift=0.0),
        "drift 1 % per run": replace(REALISTIC, drift=0.01),
        "no correlation": replace(REALISTIC, correlation=0.0),
        "correlation 0.8": replace(REALISTIC, correlation=0.8),
        "servers differ by 1 %": replace(REALISTIC, start=0.01),
    }
    for name, noise in kinds.items():
        yield name, cell({"pairs": 5}, 0.0, experiments, noise, seed=7)
    differ = replace(REALISTIC, start=0.01)
    yield "the same, one start for two runs", cell({"pairs": 5}, 0.0, experiments, differ, seed=7, shared_starts=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=2000)
    count = parser.parse_args().experiments
    print(f"{count} experiments per cell: interval holds the truth % / difference shown % / mean pairs / 80 % power at")
    for name, effect, found in rows(count):
        shares = f"{found.coverage_pct:5.1f}  {found.shown_pct:5.1f}  wrong {found.wrong}"
        print(f"{name:<12} {100 * effect:>4g} %  {shares}  {found.pairs / count:4.1f}  {found.smallest / count:4.1f}")
    for name, found in robustness(count):
        print(f"{name:<34} holds {found.coverage_pct:5.1f} %, false alarms {found.shown_pct:4.1f} %", flush=True)


if __name__ == "__main__":
    main()
