"""The search for the number of users that a server serves under an SLO. It is stored as a sweep of
the kind "users": each level of users is a point, which is added when the search reaches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from workbench.bench.trace_load import trace_load
from workbench.bench.user_capacity import (
    FIRST_USERS,
    MAX_LIMIT_PERCENT,
    MIN_REQUESTS_PER_USER,
    MOST_USERS,
    TYPICAL_RUNS,
    CapacitySearch,
    LevelRun,
    requests_needed_per_run,
    user_capacity_sentence,
)
from workbench.model.counts import count_of, format_four_digits
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.slo import parse_slo
from workbench.model.sweep import USERS, SweepSpec
from workbench.session.bench.spec import seed_of_load
from workbench.session.series.load_search import (
    LoadSearch,
    bench_spec_for_target,
    check_searched_fields_unset,
    check_slo_limits,
)
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    SweepParts,
    SweepTarget,
    check_time_limit_minutes,
    conditions_of_target,
    require_same_target,
    resolve_sweep_target,
)
from workbench.session.series.sweep_progress import SweepProgress, bench_fields_to_store

if TYPE_CHECKING:
    from workbench.bench.user_capacity import LevelVerdict
    from workbench.model.bench import BenchResult, BenchSpec
    from workbench.model.sweep import Sweep

# fields of BenchSpec that the search sets itself, with the option that sets them elsewhere
_OPTIONS_OF_SEARCH_FIELDS = {
    "concurrency": "--concurrency",
    "rate": "--rate",
    "seconds": "--seconds",
    "command": "--command",
    "trace_name": "--trace",
}


@dataclass(frozen=True, slots=True)
class UserLevels:
    """The levels of users that a search may try, from `first`, the first one, to `most`."""

    first: int = FIRST_USERS
    most: int = MOST_USERS

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.most <= MOST_USERS:
            raise InputError(
                f"a search from {self.first} to {self.most} users is not possible",
                next_step=f"give numbers from 1 to {MOST_USERS}, the first at most the last",
            )


async def plan_user_capacity_search(
    parts: SweepParts,
    levels: UserLevels,
    run_id: str | None,
    url: str | None,
    max_minutes: float | None,
    bench: Mapping[str, Any],
) -> PlannedSweep:
    """Check a search for the number of users, and return it as a sweep. The server is the run
    `run_id` or the one at `url`. `bench` has fields of BenchSpec with the SLO, unless the preset of
    the run has one. Raises InputError or BenchError for a search that cannot be carried out."""
    check_searched_fields_unset(
        bench,
        _OPTIONS_OF_SEARCH_FIELDS,
        "the number of users itself",
        "--from and --most limit the number of users",
    )
    target = await resolve_sweep_target(parts, run_id, url)
    load = bench_spec_for_target(parts, target, dict(bench))
    check_slo_limits(load.slo, "the search for users", MAX_LIMIT_PERCENT)
    levels = _limit_levels_to_trace(levels, load)
    shape = {**bench, "slo": load.slo}
    spec = SweepSpec(
        values=(str(levels.first), str(levels.most)),
        bench=bench_fields_to_store(shape),
        measured=await conditions_of_target(parts, (), target, shape),
        run_id=target.run_id,
        url=target.url,
        max_minutes=max_minutes,
    )
    return _planned_user_search(parts, spec, target, shape)


async def plan_resumed_user_capacity_search(
    parts: SweepParts, sweep: Sweep, spec: SweepSpec
) -> PlannedSweep:
    """Return the search that continues a stored one. Raises InputError if the server or its
    conditions are not those of the first part."""
    return _planned_user_search(
        parts, spec, await require_same_target(parts, sweep, spec), spec.bench
    )


def _planned_user_search(
    parts: SweepParts, spec: SweepSpec, target: SweepTarget, bench_fields: Mapping[str, Any]
) -> PlannedSweep:
    check_time_limit_minutes(spec.max_minutes)
    first, most = map(int, spec.values)

    def make_design(progress: SweepProgress) -> UserSearch:
        return UserSearch(parts, progress, target, bench_fields, levels=UserLevels(first, most))

    return PlannedSweep(USERS, "users", "", (), spec, make_design)


def _limit_levels_to_trace(levels: UserLevels, load: BenchSpec) -> UserLevels:
    """Return the levels without those for which the trace of `load` has too few requests; all of
    them without a trace. Raises InputError for a trace that users cannot replay."""
    if not load.trace_name:
        return levels
    name, requests = load.trace_name.partition(" (")[0], len(load.trace)
    if not load.has_conversations:
        raise InputError(
            f"the requests of {name} come at times of their own, not from a number of users",
            next_step="give conversations (ShareGPT); `workbench bench --trace` replays the times",
        )
    needed = requests_needed_per_run(1, parse_slo(load.slo))
    if requests < needed:
        raise InputError(
            f"{name} has {count_of(requests, 'request')}, and a run needs {needed:,}",
            next_step="give a trace with more conversations, or limit a smaller share of requests",
        )
    most = min(
        len(trace_load(load.trace).first_turns), requests // MIN_REQUESTS_PER_USER, levels.most
    )
    return UserLevels(min(levels.first, most), most)


@dataclass
class UserSearch(LoadSearch):
    """Searches the number of users. Its levels are numbers of users."""

    levels: UserLevels = field(default_factory=UserLevels)

    @property
    def search(self) -> CapacitySearch:
        runs = {
            int(users): list(map(_level_run_from_result, found))
            for users, found in self.results.items()
        }
        return CapacitySearch(self.slo_limits, runs, self.levels.first, self.levels.most)

    def next_run(self) -> int | None:
        return self.search.next_level()

    def verdict_on_level(self, level: float) -> LevelVerdict | None:
        return self.search.verdict_at(int(level))

    def highest_level_within_slo(self) -> int | None:
        return self.search.highest_level_that_holds

    def search_result_text(self, *, ended: bool) -> str:
        return user_capacity_sentence(self.search, ended=ended)

    def level_label(self, level: float) -> str:
        return count_of(int(level), "user")

    def estimated_remaining_s(self) -> float:
        runs_left = max(1, TYPICAL_RUNS - sum(map(len, self.results.values())))
        return runs_left * fmean(self._took_s)

    def bench_fields_at_level(self, level: float) -> dict[str, Any]:
        """Return the fields of BenchSpec of one run. Each run has a seed of its own, so that no
        prompt is sent twice."""
        users, earlier_runs = int(level), len(self.results.get(level, ()))
        warmup = self.bench.get("warmup")
        wanted = max(
            requests_needed_per_run(users, self.slo_limits), self.bench.get("requests") or 0
        )
        requests = {} if self.bench.get("trace_file") else {"requests": wanted}
        return {
            **self.bench,
            **requests,
            "concurrency": users,
            "warmup": users if warmup is None else warmup,
            "seed": seed_of_load(self.bench) + 1000 * users + earlier_runs,
        }

    def performance_texts_at_level(self, level: float) -> list[str]:
        speeds = [result.summary.output_tok_s or 0.0 for result in self.results[level]]
        return [
            f"{format_four_digits(fmean(speeds) / level)} tok/s per user",
            *super().performance_texts_at_level(level),
        ]


def estimate_user_run_s(
    parts: SweepParts, levels: UserLevels, run_id: str | None, url: str | None
) -> float | None:
    """Return how many seconds a run of the search takes, estimated from the newest valid result of
    the same server. None if there is none."""
    for result in parts.results.db.list(200):
        made = result.conditions
        same = made.run_id == run_id if run_id else url is not None and made.address == url
        e2e_ms = result.summary.e2e_ms
        if same and e2e_ms is not None and not result.summary.refused:
            rounds = requests_needed_per_run(levels.first, ()) / levels.first
            return (rounds + 1) * e2e_ms.mean / 1000
    return None


def _level_run_from_result(result: BenchResult) -> LevelRun:
    summary = result.summary
    requests = summary.requests_ok + summary.requests_failed
    return LevelRun(requests, summary.slo, number=result.id)
