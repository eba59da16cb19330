"""How often a watch raises a false alarm in a year of equal nights, and how often it finds a loss.

    python tests/benchmarks/bench_watch.py [--years 200] [--nights 2000] [--seed 1]

The product's own rule (workbench/bench/watch_rule.py) decides. Servers that are started alike and
runs of one server differ by the standard deviations of each row.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

from workbench.bench.tune_race import Noise
from workbench.bench.watch_rule import simulate_alarms_of_night

PRESETS, NIGHTS, ALLOWED = 5, 365, 2
NOISES = (Noise(0.7, 0.7), Noise(1.5, 1.0))


def alarms_of_year(noise: Noise, rng: random.Random) -> int:
    """Return the number of false alarms in a year of equal nights."""
    return sum(sum(simulate_alarms_of_night([0.0] * PRESETS, noise, rng)) for _ in range(NIGHTS))


def found_within(loss_pct: float, nights: int, noise: Noise, rng: random.Random) -> bool:
    """Return whether a loss in one of the presets is found within this number of nights."""
    losses = [loss_pct] + [0.0] * (PRESETS - 1)
    return any(simulate_alarms_of_night(losses, noise, rng)[0] for _ in range(nights))


def share(outcomes: Sequence[bool]) -> float:
    return 100 * sum(outcomes) / len(outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=int, default=200)
    parser.add_argument("--nights", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(
        "| servers, runs | false alarms a year, mean | years with at most 2 | 3 % found in one night "
        "| 3 % within two nights | 2 % within two nights |\n|---|---|---|---|---|---|"
    )
    for noise in NOISES:
        rng = random.Random(f"{given.seed} {noise}")
        years = [alarms_of_year(noise, rng) for _ in range(given.years)]
        few = share([count <= ALLOWED for count in years])
        found = [
            share([found_within(loss, nights, noise, rng) for _ in range(given.nights)])
            for loss, nights in ((3.0, 1), (3.0, 2), (2.0, 2))
        ]
        cells = [f"{each:.1f} %" for each in (few, *found)]
        of_noise = f"{noise.server_pct:g} %, {noise.run_pct:g} %"
        print(f"| {of_noise} | {sum(years) / len(years):.2f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
