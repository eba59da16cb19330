"""What the searches for a number of users and for a rate of requests share: a level of load is a
point of a sweep, is measured in one or more runs, and has a verdict."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from workbench.bench.runner import BenchCancelled
from workbench.model.counts import format_four_digits
from workbench.model.errors import BenchError, InputError, WorkbenchError
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.slo import LATENCIES, Limit, parse_slo
from workbench.model.sweep import PointState, SweepPoint
from workbench.session.series.conduct import Design
from workbench.session.series.sweep_parts import SweepParts, SweepTarget
from workbench.session.series.sweep_progress import SweepProgress, point_fields_from_results

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from workbench.bench.user_capacity import LevelVerdict
    from workbench.model.bench import BenchResult, BenchSpec, ResultId

_MAX_TRIES_PER_RUN = 3  # of a run whose latencies were not timed well enough


@dataclass
class LoadSearch(Design[float]):
    """Measures levels of load until the search has its answer or a run cannot be judged. Its runs
    are levels. `bench` has the fields of BenchSpec, with the SLO."""

    parts: SweepParts
    progress: SweepProgress
    target: SweepTarget
    bench: Mapping[str, Any]
    results: dict[float, list[BenchResult]] = field(default_factory=dict)
    _took_s: list[float] = field(default_factory=list)

    @property
    def slo_limits(self) -> tuple[Limit, ...]:
        return parse_slo(self.bench["slo"])

    @abstractmethod
    def verdict_on_level(self, level: float) -> LevelVerdict | None:
        """Return the verdict on a level; None if it was not measured."""

    @abstractmethod
    def highest_level_within_slo(self) -> float | None:
        """Return the highest level at which the server keeps the SLO; None if there is none."""

    @abstractmethod
    def search_result_text(self, *, ended: bool) -> str:
        """Return in a sentence what the search has found so far. `ended` says whether the search
        came to its end."""

    @abstractmethod
    def level_label(self, level: float) -> str:
        """Return the name of a level, such as "8 users"."""

    @abstractmethod
    def bench_fields_at_level(self, level: float) -> dict[str, Any]:
        """Return the fields of BenchSpec of the next run at a level."""

    @abstractmethod
    def estimated_remaining_s(self) -> float:
        """Return the estimated seconds that the search still takes."""

    def why_result_unusable(self, result: BenchResult) -> str | None:
        """Return why an invalid result says nothing about its level; None if it can be judged."""
        return next(iter(result.summary.refused), None)

    async def prepare_series(self) -> None:
        await self._load_stored_results()
        self._show_search_result(ended=False)

    def raise_if_stopped(self, level: float) -> None:
        self.progress.raise_if_cancelled()
        self.progress.raise_if_no_time_for(0.0)

    async def finish_series(self) -> None:
        self._show_search_result(ended=True)

    async def _load_stored_results(self) -> None:
        """Read the results of the levels that a search measured before it was stopped. A result
        that was deleted meanwhile is measured again."""
        for point in self.progress.sweep.points:
            found = []
            for result_id in point.result_ids:
                try:
                    result = await self.parts.results.get(result_id)
                except WorkbenchError:
                    continue
                if not self.why_no_verdict(result):
                    found.append(result)
            if found and point.x is not None:
                self.results[point.x] = found

    async def carry_out_run(self, level: float) -> None:
        index = self._index_of_level(level)
        self.progress.change_point(index, state=PointState.MEASURING)
        runs = self.results.get(level, [])
        bench = partial(
            self.parts.bench.benchmark_target,
            self.target.run_id,
            self.target.url,
            **self.bench_fields_at_level(level),
        )
        began_s = self.progress.elapsed_s
        try:
            result = await self._repeat_until_usable_result(index, bench)
        except WorkbenchError as error:
            await self._reset_level_after_failure(index, level, error)
            raise
        why = self.why_no_verdict(result)
        if why:
            unusable = BenchError(
                f"{self.level_label(level)}: {why}",
                host=self.parts.core.host.name,
                next_step="`workbench capacity resume` goes on with the levels that were measured",
            )
            await self._reset_level_after_failure(index, level, unusable)
            raise unusable
        self.results[level] = [*runs, result]
        self._took_s.append(self.progress.elapsed_s - began_s)
        self._show_level_means(index, level)
        await self.progress.save()

    async def _reset_level_after_failure(
        self, point_index: int, level: float, error: WorkbenchError
    ) -> None:
        """Show a level whose run has failed with `error` as it was before that run. If no other run
        of it was measured, mark it as failed, unless the user cancelled."""
        if self.results.get(level):
            self.progress.change_point(point_index, state=PointState.DONE)
            await self.progress.save()
        elif not isinstance(error, BenchCancelled):
            await self.progress.mark_point_failed(point_index, error.message)

    async def _repeat_until_usable_result(
        self, point_index: int, run_benchmark: Callable[[], Awaitable[ResultId]]
    ) -> BenchResult:
        """Measure until a result can be judged, at most _MAX_TRIES_PER_RUN times, and return the
        last result."""
        result = await self.progress.run_with_one_repeat(
            point_index, run_benchmark, self.why_result_unusable
        )
        for _ in range(_MAX_TRIES_PER_RUN - 1):
            why = self.why_no_verdict(result)
            if why is None or not result.summary.requests_ok:
                break
            self.progress.add_note(
                f"{self.progress.sweep.points[point_index].label}: measured again ({why})"
            )
            result = await self.progress.run_with_one_repeat(
                point_index, run_benchmark, self.why_result_unusable
            )
        return result

    @property
    def _levels_of_points(self) -> list[float | None]:
        """The level of each point, in the order of the points."""
        return [point.x for point in self.progress.sweep.points]

    def _index_of_level(self, level: float) -> int:
        levels = self._levels_of_points
        if level in levels:
            return levels.index(level)
        added = SweepPoint(self.level_label(level), float(level))
        ordered = sorted((*self.progress.sweep.points, added), key=lambda p: p.x or 0)
        self.progress.change_sweep(points=tuple(ordered))
        return self._levels_of_points.index(level)

    def _show_level_means(self, index: int, level: float) -> None:
        judged = self.verdict_on_level(level)
        assert judged is not None
        shown = self.results_shown_for_level(level)
        known = known_values(result.summary.slo_pct for result in shown)
        self.progress.change_point(
            index,
            **{
                **point_fields_from_results(shown),
                "result_ids": tuple(result.id for result in self.results[level]),
                "state": PointState.DONE,
                "error": None,
                "slo_verdict": str(judged.verdict),
                "slo_pct": fmean(known) if known else None,
            },
        )
        self._show_search_result(ended=False)
        self.progress.change_sweep(left_s=self.estimated_remaining_s())

    def _show_search_result(self, *, ended: bool) -> None:
        if not self.results:
            return
        holds = self.highest_level_within_slo()
        levels = self._levels_of_points
        index = levels.index(holds) if holds in levels else None
        self.progress.change_sweep(knee=index, knee_text=self.search_result_text(ended=ended))
        if ended and holds is not None:
            self.progress.add_note(
                f"at {self.level_label(holds)}: {', '.join(self.performance_texts_at_level(holds))}"
            )

    def results_shown_for_level(self, level: float) -> Sequence[BenchResult]:
        """Return those results of a level whose means are shown."""
        return self.results[level]

    def performance_texts_at_level(self, level: float) -> list[str]:
        """Return texts on the mean speed per GPU and the tokens per joule of a level, as far as
        they are known."""
        results = self.results_shown_for_level(level)
        tok_s = fmean(result.summary.output_tok_s or 0.0 for result in results)
        gpus = results[-1].summary.gpu
        count = len(gpus.gpus) if gpus is not None else 0
        parts = [f"{format_four_digits(tok_s / count)} tok/s per GPU"] if count else []
        known = known_values(result.summary.tok_per_joule for result in results)
        return [*parts, f"{fmean(known):.3g} tok/J"] if known else parts

    def why_no_verdict(self, result: BenchResult) -> str | None:
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
        invalid = None if summary.requests_failed else self.why_result_unusable(result)
        return f"the result is invalid: {invalid}" if invalid else None


def check_slo_limits(slo: str, search_name: str, max_percent: float) -> None:
    """Raise InputError if `slo` has no limits, or one on more than `max_percent` of the requests.
    `search_name` names the search that needs them."""
    if not slo:
        raise InputError(
            f"{search_name} needs limits, and there are none",
            next_step="give them, for example --slo 'ttft<=500@p95, tpot<=40@p95'",
        )
    for limit in parse_slo(slo):
        if limit.percent > max_percent:
            raise InputError(
                f"{limit}: no number of requests can show that all of them keep a limit",
                next_step=f"limit at most {max_percent:g} % of the requests, for example @p99",
            )


def check_searched_fields_unset(
    bench: Mapping[str, Any],
    option_by_field: Mapping[str, str],
    searched_text: str,
    limiting_options: str,
) -> None:
    """Raise InputError if `bench` has a field that a search sets itself. `option_by_field` has the
    option of each such field, `searched_text` says what the search sets, and `limiting_options`
    says which options limit that."""
    given = [option for name, option in option_by_field.items() if bench.get(name) is not None]
    if given:
        raise InputError(
            f"{', '.join(given)} cannot be given: the search sets {searched_text}",
            next_step=f"leave it out; {limiting_options}",
        )


def bench_spec_for_target(
    parts: SweepParts, target: SweepTarget, bench: dict[str, Any]
) -> BenchSpec:
    """Return the spec of a benchmark of `target`: the fields `bench`, and what the preset of its
    run adds. Raises InputError for a benchmark that cannot be carried out."""
    preset_id = None
    if target.run_id is not None:
        preset_id = parts.servers.supervisor.status(target.run_id).preset_id
    return parts.load.make_spec(preset_id, bench)
