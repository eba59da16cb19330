"""The search for the number of users that a server serves under an SLO. It is stored as a sweep of
the kind "users": each level of users is a point, which is added when the search reaches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from workbench.bench.runner import BenchCancelled
from workbench.bench.trace_load import trace_load
from workbench.bench.user_capacity import (
    FIRST_USERS,
    MOST_PERCENT,
    MOST_USERS,
    ROUNDS,
    TYPICAL_RUNS,
    LevelRun,
    Search,
    answer,
    requests_of_a_run,
)
from workbench.model.counts import count_of, four_digits
from workbench.model.errors import BenchError, InputError, WorkbenchError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.slo import LATENCIES, Limit, parse_slo
from workbench.model.sweep import USERS, PointState, SweepPoint, SweepSpec
from workbench.session.series.conduct import Design
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    SweepParts,
    Target,
    check_minutes,
    conditions_of_target,
    same_target,
    target_of,
)
from workbench.session.series.sweep_progress import (
    SweepProgress,
    point_values,
    stored_shape,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from workbench.model.bench import BenchResult, BenchSpec
    from workbench.model.sweep import Sweep

_TRIES = 3  # of a run whose latencies were not timed well enough
# fields of BenchSpec that the search sets itself, with the option that sets them elsewhere
_OWN = {
    "concurrency": "--concurrency",
    "rate": "--rate",
    "seconds": "--seconds",
    "command": "--command",
    "trace_name": "--trace",
}


@dataclass(frozen=True, slots=True)
class UserLevels:
    """The levels of users that a search may try: `first` is the first one, and `most` the highest."""

    first: int = FIRST_USERS
    most: int = MOST_USERS

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.most <= MOST_USERS:
            raise InputError(
                f"a search from {self.first} to {self.most} users is not possible",
                next_step=f"give numbers from 1 to {MOST_USERS}, the first at most the last",
            )


async def plan_user_capacity(
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
    given = [option for name, option in _OWN.items() if bench.get(name) is not None]
    if given:
        raise InputError(
            f"{', '.join(given)} cannot be given: the search sets the number of users itself",
            next_step="leave it out; --from and --most limit the number of users",
        )
    target = await target_of(parts, run_id, url)
    preset_id = None
    if target.run_id is not None:
        preset_id = parts.servers.supervisor.status(target.run_id).preset_id
    load = parts.load.spec_of(preset_id, dict(bench))
    _check_limits(load.slo)
    levels = _levels_of_trace(levels, load)
    shape = {**bench, "slo": load.slo}
    spec = SweepSpec(
        values=(str(levels.first), str(levels.most)),
        bench=stored_shape(shape),
        measured=await conditions_of_target(parts, (), target, shape),
        run_id=target.run_id,
        url=target.url,
        max_minutes=max_minutes,
    )
    return _planned(parts, spec, target, shape)


async def resumed_user_capacity(parts: SweepParts, sweep: Sweep, spec: SweepSpec) -> PlannedSweep:
    """Return the search that continues a stored one. Raises InputError if the server or its
    conditions are not those of the first part."""
    return _planned(parts, spec, await same_target(parts, sweep, spec), spec.bench)


def _planned(
    parts: SweepParts, spec: SweepSpec, target: Target, shape: Mapping[str, Any]
) -> PlannedSweep:
    check_minutes(spec.max_minutes)
    first, most = map(int, spec.values)

    def design(progress: SweepProgress) -> CapacitySearch:
        return CapacitySearch(parts, progress, target, shape, UserLevels(first, most))

    return PlannedSweep(USERS, "users", "", (), spec, design)


def _check_limits(slo: str) -> None:
    if not slo:
        raise InputError(
            "the search for users needs limits, and there are none",
            next_step="give them, for example --slo 'ttft<=500@p95, tpot<=40@p95'",
        )
    for limit in parse_slo(slo):
        if limit.percent > MOST_PERCENT:
            raise InputError(
                f"{limit}: no number of requests can show that all of them keep a limit",
                next_step=f"limit at most {MOST_PERCENT:g} % of the requests, for example @p99",
            )


def _levels_of_trace(levels: UserLevels, load: BenchSpec) -> UserLevels:
    """Return those of the levels for which a trace has enough requests. A run replays all of it.
    Raises InputError for a trace that cannot be replayed by users."""
    if not load.trace_name:
        return levels
    name, requests = load.trace_name.partition(" (")[0], len(load.trace)
    if not load.has_conversations:
        raise InputError(
            f"the requests of {name} come at times of their own, not from a number of users",
            next_step="give conversations (ShareGPT); `workbench bench --trace` replays the times",
        )
    needed = requests_of_a_run(1, parse_slo(load.slo))
    if requests < needed:
        raise InputError(
            f"{name} has {count_of(requests, 'request')}, and a run needs {needed:,}",
            next_step="give a trace with more conversations, or limit a smaller share of requests",
        )
    most = min(len(trace_load(load.trace).first_turns), requests // ROUNDS, levels.most)
    return UserLevels(min(levels.first, most), most)


@dataclass
class CapacitySearch(Design[int]):
    """Measures levels of users until the search has its answer or a run cannot be judged. Its runs
    are numbers of users. `bench` has the fields of BenchSpec, with the SLO."""

    parts: SweepParts
    progress: SweepProgress
    target: Target
    bench: Mapping[str, Any]
    levels: UserLevels
    results: dict[int, list[BenchResult]] = field(default_factory=dict)
    _took_s: list[float] = field(default_factory=list)

    @property
    def limits(self) -> tuple[Limit, ...]:
        return parse_slo(self.bench["slo"])

    @property
    def search(self) -> Search:
        runs = {users: list(map(_run_of, found)) for users, found in self.results.items()}
        return Search(self.limits, runs, self.levels.first, self.levels.most)

    async def prepare(self) -> None:
        await self._read_results()
        self._say(ended=False)

    def next_run(self) -> int | None:
        return self.search.next_level()

    def check_go_on(self, users: int) -> None:
        self.progress.check_stop()
        self.progress.check_time(0.0)

    async def conclude(self) -> None:
        self._say(ended=True)

    async def _read_results(self) -> None:
        """Read the results of the levels that a search measured before it was stopped. A result
        that was deleted meanwhile is measured again."""
        for point in self.progress.sweep.points:
            found = []
            for result_id in point.result_ids:
                try:
                    result = await self.parts.results.get(result_id)
                except WorkbenchError:
                    continue
                if not _unjudged(result):
                    found.append(result)
            if found and point.x is not None:
                self.results[int(point.x)] = found

    async def make(self, users: int) -> None:
        index = self._point_of(users)
        self.progress.point(index, state=PointState.MEASURING)
        runs = self.results.get(users, [])
        bench = partial(
            self.parts.bench.run_target,
            self.target.run_id,
            self.target.url,
            **self._fields(users, len(runs)),
        )
        began_s = self.progress.elapsed_s
        try:
            result = await self._judgeable(index, bench)
        except WorkbenchError as error:
            await self._keep_runs(index, users, error)
            raise
        why = _unjudged(result)
        if why:
            unusable = BenchError(
                f"{_label(users)}: {why}",
                host=self.parts.core.host.name,
                next_step="`workbench capacity resume` goes on with the levels that were measured",
            )
            await self._keep_runs(index, users, unusable)
            raise unusable
        self.results[users] = [*runs, result]
        self._took_s.append(self.progress.elapsed_s - began_s)
        self._show(index, users)
        await self.progress.save()

    async def _keep_runs(self, index: int, users: int, error: WorkbenchError) -> None:
        """Show a level whose run could not be made as it was before that run."""
        if self.results.get(users):
            self.progress.point(index, state=PointState.DONE)
            await self.progress.save()
        elif not isinstance(error, BenchCancelled):
            await self.progress.fail(index, error.message)

    async def _judgeable(self, index: int, bench: Callable[[], Awaitable[int]]) -> BenchResult:
        """Return a result that says something about its level, or the last one of _TRIES."""
        result = await self.progress.run_once(index, bench)
        for _ in range(_TRIES - 1):
            why = _unjudged(result)
            if why is None or not result.summary.requests_ok:
                break
            self.progress.note(f"{self.progress.sweep.points[index].label}: measured again ({why})")
            result = await self.progress.run_once(index, bench)
        return result

    def _point_of(self, users: int) -> int:
        points = self.progress.sweep.points
        found = next((n for n, point in enumerate(points) if point.x == users), None)
        if found is not None:
            return found
        ordered = sorted((*points, SweepPoint(_label(users), float(users))), key=lambda p: p.x or 0)
        self.progress.change(points=tuple(ordered))
        return next(n for n, point in enumerate(ordered) if point.x == users)

    def _fields(self, users: int, earlier_runs: int) -> dict[str, Any]:
        """Return the fields of BenchSpec of one run. Each run has a seed of its own, so that no
        prompt is sent twice."""
        warmup = self.bench.get("warmup")
        wanted = max(requests_of_a_run(users, self.limits), self.bench.get("requests") or 0)
        requests = {} if self.bench.get("trace_file") else {"requests": wanted}
        return {
            **self.bench,
            **requests,
            "concurrency": users,
            "warmup": users if warmup is None else warmup,
            "seed": (self.bench.get("seed") or 0) + 1000 * users + earlier_runs,
        }

    def _show(self, index: int, users: int) -> None:
        judged = self.search.judged(users)
        assert judged is not None
        results = self.results[users]
        kept = [result.summary.slo_pct for result in results]
        known = [each for each in kept if each is not None]
        self.progress.point(
            index,
            **{
                **point_values(results),
                "state": PointState.DONE,
                "error": None,
                "slo_verdict": str(judged.verdict),
                "slo_pct": fmean(known) if known else None,
            },
        )
        self._say(ended=False)
        runs_left = max(1, TYPICAL_RUNS - sum(map(len, self.results.values())))
        self.progress.change(left_s=runs_left * fmean(self._took_s))

    def _say(self, *, ended: bool) -> None:
        search = self.search
        if not search.levels:
            return
        holds = search.holds
        points = self.progress.sweep.points
        index = next((n for n, point in enumerate(points) if point.x == holds), None)
        self.progress.change(knee=index, knee_text=answer(search, ended=ended))
        if ended and holds is not None:
            self.progress.note(_rates(holds, self.results[holds]))


def typical_run_s(
    parts: SweepParts, levels: UserLevels, run_id: str | None, url: str | None
) -> float | None:
    """Return how long a run of the search takes, from the newest valid result of the same server.
    None if there is none."""
    for result in parts.results.db.list(200):
        made = result.conditions
        same = made.run_id == run_id if run_id else url is not None and made.address == url
        e2e_ms = result.summary.e2e_ms
        if same and e2e_ms is not None and not result.summary.refused:
            rounds = requests_of_a_run(levels.first, ()) / levels.first
            return (rounds + 1) * e2e_ms.mean / 1000
    return None


def _label(users: int) -> str:
    return f"{users} user{'s' * (users != 1)}"


def _run_of(result: BenchResult) -> LevelRun:
    summary = result.summary
    return LevelRun(summary.requests_ok + summary.requests_failed, summary.slo)


def _unjudged(result: BenchResult) -> str | None:
    """Return why a result says nothing about its level; None if it can be judged. Requests that
    failed keep no limit, so they can be judged unless all failed."""
    summary = result.summary
    if not summary.requests_ok:
        kinds = ", ".join(f"{count} {kind}" for kind, count in summary.errors.items())
        return f"no request succeeded ({kinds})" if kinds else "no request succeeded"
    for attained, limit in zip(summary.slo, parse_slo(result.spec.slo), strict=False):
        if attained.kept_pct is None:
            why = summary.absent.get(LATENCIES[limit.latency], "it was not measured")
            return f"{limit} cannot be judged: {limit.latency} is {why}"
    if not summary.slo:
        return "the result has no SLO"
    if summary.refused and not summary.requests_failed:
        return f"the result is invalid: {summary.refused[0]}"
    return None


def _rates(users: int, results: Sequence[BenchResult]) -> str:
    """Return what a user and a GPU get at the highest level that holds."""
    speeds = [result.summary.output_tok_s or 0.0 for result in results]
    tok_s = fmean(speeds)
    parts = [f"{four_digits(tok_s / users)} tok/s per user"]
    gpus = results[-1].summary.gpu
    count = len(gpus.gpus) if gpus is not None else 0
    if count:
        parts.append(f"{four_digits(tok_s / count)} tok/s per GPU")
    thrift = [r.summary.tok_per_joule for r in results]
    known = [value for value in thrift if value is not None]
    if known:
        parts.append(f"{fmean(known):.3g} tok/J")
    return f"at {_label(users)}: {', '.join(parts)}"
