"""The design of a tune: which candidates are measured again, and which one meets the start preset
in the final. All functions are pure.

  block 1: the start preset and all candidates, one start each
  block 2: the start preset and the best few, and the best two joined
  final:   the best one against the start preset, in pairs of fresh starts

Only the final claims a gain. The best of many equal candidates always looks faster in the race, so
the race decides nothing but who goes on. All servers of a block get equal loads, and the start
preset runs in each block, so that a machine that becomes slower between the blocks favours nobody.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean, median, stdev, variance

from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.student_t import t_quantile
from workbench.model.tune_standings import START_ENTRY, Entry, mean_log_gains_of_newest_block

CONFIDENCE_LEVEL = 0.95
MAX_KEPT_CANDIDATES = 4  # candidates of the second block
FINAL_PAIRS = 6
MIN_FINAL_PAIRS = 5  # fewer pairs would miss a gain of 4 % in most tunes
RUNS_PER_RACE_START = 2  # benchmarks of one start; a start costs more than a benchmark
ANSWER_CHECK_STARTS = 3  # to compare answers: A, B, and A again for what this machine calls equal
SURE_STANDARD_DEVIATIONS = 4.0  # standard deviations that chance does not explain
_CANDIDATES_PER_KEPT_ONE = 3  # of the candidates, one in three goes on
_SIMULATED_TUNES = 400
_GAIN_STEP_PCT = 0.5
MAX_GAIN_PCT = 50.0  # the largest gain that `findable_gain_pct` looks at
FOUND_TUNES_SHARE = 0.7

START = START_ENTRY


@dataclass(frozen=True, slots=True)
class RaceSize:
    """How many candidates the race begins with, how many go on to the second block, and how many
    pairs the final has."""

    candidates: int
    kept: int
    pairs: int

    @property
    def server_starts(self) -> int:
        """The number of servers that a tune starts at most."""
        return (1 + self.candidates) + (1 + self.kept) + 2 * self.pairs


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations in percent: between servers that are started alike, and between the runs
    of one server."""

    server_pct: float = 1.5
    run_pct: float = 1.0


def run_noise_std_pct(servers: Sequence[Sequence[float]]) -> float | None:
    """Return the standard deviation between the runs of one server in percent. `servers` has for
    each server the logarithms of what its runs measured. None if fewer than two servers have
    several runs."""
    several = [runs for runs in servers if len(runs) > 1]
    if len(several) < 2:
        return None
    squares = sum((len(runs) - 1) * variance(runs) for runs in several)
    freedom = sum(map(len, several)) - len(several)
    return 100 * math.sqrt(squares / freedom)


def runs_differ_beyond_noise(log_values: Sequence[float], run_spread_pct: float | None) -> bool:
    """Return whether the runs of one server differ by more than chance explains, so that one of
    them was cold or disturbed. `log_values` are the logarithms of what they measured, and
    `run_spread_pct` is the measured spread between the runs of one server, which counts if it is
    larger than the assumed one."""
    if len(log_values) < 2:
        return False
    spread = max(Noise().run_pct, run_spread_pct or 0.0) / 100
    return max(log_values) - min(log_values) > SURE_STANDARD_DEVIATIONS * math.sqrt(2) * spread


def index_of_outlier(runs: Sequence[float]) -> int:
    """Return the index of the run that is furthest from the median of the runs."""
    middle = median(runs)
    return max(range(len(runs)), key=lambda index: abs(runs[index] - middle))


def estimate_noise_from_final(
    run_spread_pct: float | None, log_ratios: Sequence[float]
) -> Noise | None:
    """Estimate the spread in percent between servers started alike, and between runs of one server,
    from the pairs of a tune's final. `run_spread_pct` is the spread between runs; if it is None,
    that between servers includes it. `log_ratios` are the logarithms of the ratios in the pairs,
    whose servers were all started for the final. None if there are too few of them. The race cannot
    say how servers differ: those that it starts twice are its best ones, which were chosen for what
    chance had added to them."""
    if len(log_ratios) < MIN_FINAL_PAIRS:
        return None
    of_one_pct, of_runs_pct = 100 * stdev(log_ratios) / math.sqrt(2), run_spread_pct or 0.0
    return Noise(math.sqrt(max(0.0, of_one_pct**2 - of_runs_pct**2)), of_runs_pct)


def largest_race_within_starts(candidates: int, starts: int, reserved: int = 0) -> RaceSize:
    """Return the largest race with at most this number of candidates and of starts, of which
    `reserved` are kept for other work. The final first gives up one of its `FINAL_PAIRS` pairs, and
    then candidates are left out. Raises InputError if there is not room for a race of one
    candidate."""
    for count in range(candidates, 0, -1):
        for pairs in (FINAL_PAIRS, MIN_FINAL_PAIRS):
            size = RaceSize(count, count_second_block_candidates(count), pairs)
            if size.server_starts + reserved <= starts:
                return size
    least = RaceSize(1, 1, MIN_FINAL_PAIRS).server_starts + reserved
    raise InputError(
        f"a tune with {starts} starts is not possible",
        next_step=f"allow at least {least} starts; 30 are room for 12 candidates",
    )


def count_second_block_candidates(candidates: int) -> int:
    """Return how many of the candidates go on to the second block."""
    return min(
        candidates, MAX_KEPT_CANDIDATES, max(2, math.ceil(candidates / _CANDIDATES_PER_KEPT_ONE))
    )


def select_second_block_entries(
    gains: Mapping[Entry, float],
    max_entries: int,
    may_join: Callable[[Entry], bool],
    noise: Noise,
    *,
    start_keeps_limits: bool = True,
) -> list[Entry]:
    """Return the entries of the second block, the best first. Entries that are further behind the
    best than chance explains are left out. The start preset counts as the best if it leads and
    keeps the limits (`start_keeps_limits`). If two of the best three gain, and `may_join` allows
    both in one server, the two joined take the last place."""
    ranked = sorted(gains, key=lambda entry: -gains[entry])
    best = max(gains.values(), default=0.0)
    if start_keeps_limits:
        best = max(0.0, best)
    least = best - SURE_STANDARD_DEVIATIONS * std_of_log_gain_in_block(noise)
    chosen = [entry for entry in ranked if gains[entry] >= least][:max_entries]
    if max_entries < 2:
        return chosen
    better = [entry for entry in ranked[:3] if gains[entry] > 0]
    for a, b in combinations(better, 2):
        joined = (*a, *b)
        if may_join(joined):
            return [*chosen[: max_entries - 1], joined]
    return chosen


def std_of_log_gain_in_block(noise: Noise) -> float:
    """Return the standard deviation of a gain that one block has shown, as a logarithm."""
    of_one = noise.server_pct**2 + noise.run_pct**2 / RUNS_PER_RACE_START
    return math.sqrt(2 * of_one) / 100


def select_final_entry(
    gains: Mapping[Entry, float], *, start_keeps_limits: bool = True
) -> Entry | None:
    """Return the entry of `gains` that meets the start preset in the final: the best one. None if
    it was not faster than the start preset, so that a final could not show a gain. If the start
    preset does not keep the limits (`start_keeps_limits`), the best entry meets it, faster or
    not."""
    best = max(gains, key=lambda entry: gains[entry], default=None)
    if best is None:
        return None
    if start_keeps_limits and gains[best] <= 0:
        return None
    return best


# -- what a race of this size can find -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SimulatedTune:
    """How one simulated tune ended: the entry of its final, and the lower bound of the gain that it
    claims in percent; None if it claims nothing."""

    entry: Entry | None
    least_pct: float | None


def simulate_tune(
    true_pct: Mapping[str, float], size: RaceSize, noise: Noise, rng: random.Random
) -> SimulatedTune:
    """Simulate one tune, and return how it ended. Each candidate truly gains `true_pct` percent,
    and servers and runs scatter by `noise`. Gains of joined candidates are multiplied."""

    def simulate_log_speed(entry: Entry, runs: int = RUNS_PER_RACE_START) -> float:
        true = sum(math.log1p(true_pct[name] / 100) for name in entry)
        server = rng.gauss(0.0, noise.server_pct / 100)
        return true + server + rng.gauss(0.0, noise.run_pct / 100 / math.sqrt(runs))

    first: list[Entry] = [START, *((name,) for name in true_pct)]
    blocks = [{entry: simulate_log_speed(entry) for entry in first}]
    second = [
        START,
        *select_second_block_entries(
            mean_log_gains_of_newest_block(blocks), size.kept, lambda joined: True, noise
        ),
    ]
    blocks.append({entry: simulate_log_speed(entry) for entry in second})
    best = select_final_entry(mean_log_gains_of_newest_block(blocks))
    if best is None:
        return SimulatedTune(None, None)
    ratios = [simulate_log_speed(best, 1) - simulate_log_speed(START, 1) for _ in range(size.pairs)]
    t = t_quantile((1 + CONFIDENCE_LEVEL) / 2, size.pairs - 1)
    low = fmean(ratios) - t * stdev(ratios) / math.sqrt(size.pairs)
    return SimulatedTune(best, 100 * math.expm1(low) if low > 0 else None)


def findable_gain_pct(size: RaceSize, noise: Noise, tunes: int = _SIMULATED_TUNES) -> float | None:
    """Return the smallest gain of one candidate in percent, in steps of 0.5, that at least 70 % of
    tunes of this size prove. None if it is above 50 %. The tunes are simulated, always with the
    same random numbers."""
    low, high = 0, round(MAX_GAIN_PCT / _GAIN_STEP_PCT)
    if not _do_most_tunes_find_gain(high * _GAIN_STEP_PCT, size, noise, tunes):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _do_most_tunes_find_gain(middle * _GAIN_STEP_PCT, size, noise, tunes):
            high = middle
        else:
            low = middle
    return high * _GAIN_STEP_PCT


def _do_most_tunes_find_gain(gain_pct: float, size: RaceSize, noise: Noise, tunes: int) -> bool:
    truth = dict.fromkeys(map(str, range(size.candidates)), 0.0) | {"0": gain_pct}
    rng = random.Random(size.candidates)
    found = 0
    for _ in range(tunes):
        one = simulate_tune(truth, size, noise, rng)
        if one.least_pct is not None and one.entry is not None:
            found += "0" in one.entry
    return found >= FOUND_TUNES_SHARE * tunes
