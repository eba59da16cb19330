"""How often a tune claims a gain that is not there, and how often it proves one that is, beside two
procedures that other tools follow.

    python tests/benchmarks/bench_tune.py [--tunes 1000] [--seed 1]

Each server that is started alike differs by 1.5 %, and each run of a server by 1 % (standard
deviations). The product's own functions decide in the row "workbench tune". The other two rows
follow what these programs do, without the programs themselves. Neither program measures its winner
again or measures the start: one measurement of the start is added here, so that there is a gain.

- one run each, best taken: benchmarks/auto_tune/auto_tune.sh of vLLM (read at commit 01277f9c)
  measures each configuration once and keeps the best throughput.
- best of a search: src/llama_optimus/core.py of llama-optimus (read at commit 0bf97f55) measures
  each trial with a few repeats in one process and keeps the best trial. Its trials are chosen by
  Optuna; here they are drawn at random.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from workbench.bench.tune_race import Noise, largest_race_within_starts, simulate_tune

_CANDIDATES = 12
_STARTS = 30
_NOISE = Noise(1.5, 1.0)
_TRUTHS = (0.0, 4.0, 8.0)  # gain of the only candidate that differs, in percent
_REPEATS = 3

# -> (name that is claimed to be better, or None; the gain that is reported; a bound below it)
Claim = tuple[tuple[str, ...] | None, float, float | None]
Procedure = Callable[[Mapping[str, float], random.Random], Claim]


def workbench_tune(truth: Mapping[str, float], rng: random.Random) -> Claim:
    ended = simulate_tune(truth, largest_race_within_starts(len(truth), _STARTS), _NOISE, rng)
    if ended.least_pct is None:
        return None, 0.0, None
    return ended.entry, ended.least_pct, ended.least_pct


def one_run_each(truth: Mapping[str, float], rng: random.Random) -> Claim:
    """Claim the best of one run each, against one run of the start."""
    return _best({name: _measured(gain, 1, rng) for name, gain in truth.items()}, 1, rng)


def best_of_search(truth: Mapping[str, float], rng: random.Random) -> Claim:
    """Claim the best of as many trials as there are starts, each with repeats on one server."""
    names = [rng.choice(list(truth)) for _ in range(_STARTS - 1)]
    best: dict[str, float] = {}
    for name in names:
        value = _measured(truth[name], _REPEATS, rng)
        best[name] = max(value, best.get(name, -math.inf))
    return _best(best, _REPEATS, rng)


def _best(values: Mapping[str, float], repeats: int, rng: random.Random) -> Claim:
    start = _measured(0.0, repeats, rng)
    name = max(values, key=lambda each: values[each])
    gain_pct = 100 * math.expm1(values[name] - start)
    return ((name,), gain_pct, None) if gain_pct > 0 else (None, 0.0, None)


def _measured(gain_pct: float, repeats: int, rng: random.Random) -> float:
    server = rng.gauss(0.0, _NOISE.server_pct / 100)
    runs = fmean(rng.gauss(0.0, _NOISE.run_pct / 100) for _ in range(repeats))
    return math.log1p(gain_pct / 100) + server + runs


PROCEDURES: Sequence[tuple[str, Procedure]] = (
    ("workbench tune", workbench_tune),
    ("one run each, best taken", one_run_each),
    ("best of a search", best_of_search),
)


def row(procedure: Procedure, true_pct: float, tunes: int, seed: int) -> dict[str, float]:
    """Return shares in percent of `tunes` tunes: those that claim a gain, that claim the true one,
    and whose reported bound is not above the truth. `reported` is the median of what is claimed."""
    rng = random.Random(f"{seed} {true_pct}")
    truth = {f"c{n}": true_pct if n == 0 else 0.0 for n in range(_CANDIDATES)}
    claims = [procedure(truth, rng) for _ in range(tunes)]
    made = [claim for claim in claims if claim[0] is not None]
    right = [claim for claim in made if "c0" in (claim[0] or ())]
    holds = [
        bound is None or bound <= (true_pct if names and "c0" in names else 0.0) + 1e-9
        for names, _, bound in claims
    ]
    return {
        "claims": 100 * len(made) / tunes,
        "right": 100 * len(right) / tunes,
        "reported": median([gain for _, gain, _ in made]) if made else 0.0,
        "bound holds": 100 * sum(holds) / tunes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    size = largest_race_within_starts(_CANDIDATES, _STARTS)
    print(f"{size}: at most {size.server_starts} starts")
    print("| procedure | true gain | claims a gain | finds the candidate | reports | bound holds |")
    print("|---|---|---|---|---|---|")
    for name, procedure in PROCEDURES:
        for true_pct in _TRUTHS:
            got = row(procedure, true_pct, asked.tunes, asked.seed)
            found = f"{got['right']:.1f} %" if true_pct else "-"
            bound = f"{got['bound holds']:.1f} %" if procedure is workbench_tune else "no bound"
            print(
                f"| {name} | {true_pct:g} % | {got['claims']:.1f} % | {found} | "
                f"{got['reported']:+.1f} % | {bound} |"
            )


if __name__ == "__main__":
    main()
