"""An experiment on two hosts (twins) with the same GPUs, driver and engine. In half of the pairs, A
runs on the first host and B on the second one. The other half of the pairs is swapped: A runs on
the second host.

This is the two-period cross-over design, with the two hosts in place of the two periods (Hills and
Armitage, The two-period cross-over clinical trial, Br J Clin Pharmacol 8, 1979; Jones and Kenward,
Design and Analysis of Cross-Over Trials, section 2.3). For each pair, d = log(B/A). m+ is the mean
of d over the n+ unswapped pairs, m- over the n- swapped pairs:

    change = (m+ + m-) / 2        machine = (m+ - m-) / 2
    standard error of both = s / 2 * sqrt(1/n+ + 1/n-)

`s` is the pooled standard deviation of d inside the two groups of pairs, with n+ + n- - 2 degrees
of freedom. `change` is B against A on the same machine, and `machine` is the second host against
the first one with the same configuration. The design assumes that the change is the same on both
machines.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean

from workbench.model.errors import InputError
from workbench.model.experiment import ExperimentSpec
from workbench.model.lazy_dataclass import dataclass

DEFAULT_PAIRS = 6  # if the user gives none: about as narrow as five pairs on one host
MIN_PAIRS = 4  # two of each kind


@dataclass(frozen=True, slots=True)
class SeparatedEffect:
    """Two effects in an experiment on two hosts: that of the change from A to B, and that of the
    machine. Both are logarithms of ratios and have the standard error `error` with `df` degrees of
    freedom. `error` is None unless there are at least two swapped and two unswapped pairs."""

    change: float
    machine: float
    error: float | None
    df: float


def are_arm_hosts_swapped(spec: ExperimentSpec, pair: int) -> bool:
    """Return whether A runs on the second host in pair number `pair`. Of every two successive pairs
    (0 and 1, 2 and 3, …) one is swapped in this way. The experiment's seed decides which one, so
    that a drift affects swapped and unswapped pairs alike."""
    first = random.Random(f"{spec.order_seed} twins {pair // 2}").random() < 0.5
    return first == (pair % 2 == 0)


def does_a_run_first(spec: ExperimentSpec, pair: int) -> bool:
    """Return whether A runs first in pair number `pair`. Of the first and second swapped pair, the
    third and fourth, and so on, A runs first in one, and likewise of the unswapped pairs. The
    experiment's seed decides in which one. A drift of the machines then looks neither like a
    difference between A and B nor like a difference between the hosts."""
    number = pair // 2  # among the pairs of its kind: of every two pairs one is swapped
    kind = "swapped" if are_arm_hosts_swapped(spec, pair) else "unswapped"
    first = random.Random(f"{spec.order_seed} {kind} {number // 2}").random() < 0.5
    return first == (number % 2 == 0)


def host_of_arm(spec: ExperimentSpec, pair: int, arm: str) -> str | None:
    """Return the host on which A or B (`arm`) runs in pair number `pair`. None if the experiment
    does not use two hosts."""
    if not spec.twins:
        return None
    return spec.twins[(arm == "B") != are_arm_hosts_swapped(spec, pair)]


def are_hosts_balanced(spec: ExperimentSpec, pairs: int) -> bool:
    """Return whether A runs on the second host in exactly half of the first `pairs` pairs, so that
    the experiment can end after them. True for an experiment on one host."""
    return not spec.twins or pairs % 2 == 0


def check_twin_hosts_and_pairs(spec: ExperimentSpec) -> None:
    """Raise InputError if the experiment's two hosts are the same host, or if the number of pairs
    does not allow A to run on each host equally often."""
    if not spec.twins:
        return
    if len(spec.twins) != 2 or spec.twins[0] == spec.twins[1]:
        raise InputError(
            f"twins are two different hosts, got {', '.join(spec.twins)}",
            next_step="name both hosts, as in --twins gpu-box-1,gpu-box-2",
        )
    if spec.pairs % 2 or spec.pairs < MIN_PAIRS:
        raise InputError(
            f"an experiment on twins needs an even number of pairs, at least {MIN_PAIRS}, got "
            f"{spec.pairs}",
            next_step="A and B swap their hosts in half of the pairs: use 4, 6 or 8 pairs",
        )


def separate_host_effect(
    log_ratios: Sequence[float], swapped: Sequence[bool], least_variance: float
) -> SeparatedEffect | None:
    """Return the effect of the change from A to B and the effect of the machine, computed from
    log(B/A) of each pair. `swapped` says for each pair whether A and B had swapped hosts.
    `least_variance` is the smallest variance that is assumed for a pair. None if all or no pairs
    are swapped, because the two effects cannot be separated then."""
    groups = _split_unswapped_and_swapped(log_ratios, swapped)
    if not all(groups):
        return None
    plus, minus = map(fmean, groups)
    error = None
    if min(map(len, groups)) >= 2:
        spread = max(least_variance, variance_within_groups(log_ratios, swapped))
        error = math.sqrt(spread * math.fsum(1 / len(group) for group in groups)) / 2
    return SeparatedEffect((plus + minus) / 2, (plus - minus) / 2, error, len(log_ratios) - 2)


def _split_unswapped_and_swapped(
    differences: Sequence[float], kinds: Sequence[bool]
) -> tuple[list[float], list[float]]:
    """Return the differences of the pairs that were not swapped, and of those that were."""
    groups: tuple[list[float], list[float]] = [], []
    for difference, swapped in zip(differences, kinds, strict=True):
        groups[swapped].append(difference)
    return groups


def variance_within_groups(log_ratios: Sequence[float], swapped: Sequence[bool]) -> float:
    """Return the pooled variance of log(B/A) inside two groups of pairs: those in which A and B had
    swapped hosts, and the others. `swapped` says for each pair whether it was swapped. There must
    be three or more pairs."""
    groups = _split_unswapped_and_swapped(log_ratios, swapped)
    squares = math.fsum((d - fmean(group)) ** 2 for group in groups for d in group)
    return squares / (len(log_ratios) - 2)
