"""A tune: the search for a configuration that serves better than a preset. Its goal, its limits and
its candidates, as they are stored with its sweep (model/sweep.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.settings import GpuSettings, SettingValue, parse_setting_argument

TUNE = "tune"  # the kind of a sweep that is a tune
OF_GPUS = "gpu."  # begins the assignment of a GPU setting
START = "start"  # the label of the start preset in a block
# goals for which the limits on latencies are no limits, but say what counts
GOODPUT = "goodput"  # requests that keep them
USERS = "users"  # users whose requests keep them
OF_LATENCIES = (GOODPUT, USERS)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a tune improves: the metric of its final, the field of a sweep's point that the race
    compares, and whether less of it is better."""

    metric: str
    field: str
    title: str
    less_is_better: bool = False

    @property
    def sign(self) -> int:
        """1, or -1 if less of the value is better: of the value times this factor, more is always
        better."""
        return -1 if self.less_is_better else 1


GOALS: Mapping[str, Goal] = {
    "tok_s": Goal("output_tok_s", "tok_s", "output tok/s"),
    "tok_j": Goal("tok_per_joule", "tok_per_joule", "tok/J"),
    "ttft": Goal("ttft_ms.p50", "ttft_p50_ms", "median TTFT", less_is_better=True),
    GOODPUT: Goal("goodput_request_s", "goodput_request_s", "goodput"),
    USERS: Goal("users", "users", "users"),
}


@dataclass(frozen=True, slots=True)
class TuneCandidate:
    """A change that the race measures. `sets` has assignments "flag=value" of the plan, or
    "gpu.SETTING=value" of the GPUs, and `reason` says why it can help on this hardware and load."""

    sets: tuple[str, ...]
    reason: str


def gpu_settings_of_candidate(assignments: Sequence[str]) -> GpuSettings:
    """Return the GPU settings among the assignments of a candidate."""
    found: dict[str, SettingValue] = {}
    for word in assignments:
        if word.startswith(OF_GPUS):
            found |= parse_setting_argument(word.removeprefix(OF_GPUS))
    return GpuSettings(found)


def plan_assignments_of_candidate(assignments: Sequence[str]) -> tuple[str, ...]:
    """Return the assignments of a candidate that change the plan."""
    return tuple(word for word in assignments if not word.startswith(OF_GPUS))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A change that the tune does not try, and why."""

    words: str
    reason: str


@dataclass(frozen=True, slots=True)
class TuneLimits:
    """What every configuration must keep, whatever its speed. `slo` has the limits on latencies
    (model/slo.py), "" for none; with a goal of OF_LATENCIES they only say what counts. `power_w`
    is the mean power of the server's GPUs together, and `temperature_c` the highest temperature of
    one. `kld` is how much the answers may differ from those of the start preset, in nats per token.
    """

    slo: str = ""
    power_w: float | None = None
    temperature_c: float | None = None
    kld: float | None = None


@dataclass(frozen=True, slots=True)
class TuneSpec:
    """The design of a tune. `goal` is a key of GOALS. `starts` is the largest number of servers
    that the tune may start."""

    goal: str
    starts: int
    candidates: tuple[TuneCandidate, ...]
    left_out: tuple[LeftOut, ...] = ()
    limits: TuneLimits = TuneLimits()


@dataclass(frozen=True, slots=True)
class TuneCost:
    """What a tune will take: at most `starts` starts of a server, and `pairs` pairs of runs in its
    final. In `checks` of the starts, answers are compared before the final. `load` has the load of
    each run in words. `took_s` is estimated from earlier starts and benchmarks, and `energy_kwh` is
    the most that the GPUs' power limits allow in this time; None if it is not known. With
    `compares_answers`, the final may compare answers, whose time is not in `took_s`."""

    starts: int
    pairs: int
    load: str
    took_s: float | None = None
    energy_kwh: float | None = None
    checks: int = 0
    compares_answers: bool = False


_OF_THE_GPUS = re.compile(r"(?P<name>power|temp)\s*<=\s*(?P<most>\d{1,6}(?:\.\d{1,3})?)\s*[WwC]?")

_KLD = re.compile(r"kld\s*<=\s*(?P<most>\d{1,3}(?:\.\d{1,9})?(?:e-\d{1,2})?)")
_MOST_KLD = 10.0  # nats per token: the answers of two unrelated models


def parse_tune_limits(text: str) -> TuneLimits:
    """Return the limits in a text such as "ttft<=500@p95, power<=400, temp<=83". Raises InputError
    if it is not a list of limits."""
    from workbench.model.slo import parse_slo

    latencies: list[str] = []
    of_gpus: dict[str, float] = {}
    kld = None
    for part in filter(None, (each.strip() for each in text.split(","))):
        if found := _OF_THE_GPUS.fullmatch(part):
            of_gpus[found["name"]] = float(found["most"])
        elif part.lower().startswith("kld"):
            kld = _parse_kld_limit(part)
        else:
            latencies.append(part)
    slo = ", ".join(map(str, parse_slo(", ".join(latencies)))) if latencies else ""
    return TuneLimits(slo, of_gpus.get("power"), of_gpus.get("temp"), kld)


def _parse_kld_limit(part: str) -> float:
    found = _KLD.fullmatch(part.lower())
    most = float(found["most"]) if found else 0.0
    if not 0 < most <= _MOST_KLD:
        raise InputError(
            f"{part!r} is not a limit on KLD",
            next_step=f"give more than 0 and at most {_MOST_KLD:g}, such as kld<=0.001",
        )
    return most


def find_goal(name: str) -> Goal:
    """Return the goal with this name. Raises InputError for an unknown one."""
    if name not in GOALS:
        raise InputError(f"a tune has no goal {name}", next_step=f"give one of {', '.join(GOALS)}")
    return GOALS[name]
