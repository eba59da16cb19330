"""A tune: candidates race in two blocks, then the best one meets the start preset in pairs of fresh
starts. Only these pairs say what was gained (bench/tune_race.py)."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any

from workbench.advisor.candidates import needs_at_least_same_memory
from workbench.bench import tune_race
from workbench.bench.metric_changes import BETTER
from workbench.bench.runner import BenchCancelled
from workbench.bench.tune_race import START, Noise
from workbench.model import tune
from workbench.model.bench import format_half_width
from workbench.model.counts import count_of
from workbench.model.errors import BenchError, HostError, PresetError, SettingsError, WorkbenchError
from workbench.model.experiment import Arm, RunState
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import KL
from workbench.model.series_state import SeriesState
from workbench.model.sweep import PointState, SweepPoint
from workbench.model.tune import gpu_settings_of_candidate, plan_assignments_of_candidate
from workbench.model.tune_standings import (
    UNMEASURED,
    Entry,
    format_entry_for_people,
    format_point_label,
    limit_broken_by_point,
    limit_broken_by_start,
    limit_error_text,
    log_gains_of_remaining_entries,
    parse_point_label,
    signed_log_of_goal,
)
from workbench.session.bench.find_users import measure_user_capacity
from workbench.session.bench.spec import seed_of_load
from workbench.session.conditions import gpu_indices_of_plan
from workbench.session.gpu.setting_texts import alterations_text, setting_failure_text
from workbench.session.series.conduct import SeriesStopped
from workbench.session.series.confirmation import (
    check_experiment_ended,
    confirm_value_by_experiment,
)
from workbench.session.series.flag_sweep import (
    FlagCombination,
    FlagSweep,
    can_assignments_change_answers,
)
from workbench.session.series.sweep_progress import point_fields_from_results
from workbench.session.uninterrupted import finish_despite_cancellation

if TYPE_CHECKING:
    from workbench.bench.tune_race import RaceSize
    from workbench.model.bench import BenchResult, BenchSummary, MetricChange, ResultId
    from workbench.model.experiment import Experiment
    from workbench.model.sweep import PointIndex
    from workbench.model.tune import Goal, TuneCandidate, TuneLimits, TuneSpec

_NOT_TRIED_TEXT = "not tried"
_ANSWERS_KEEP_LIMIT_TEXT = "its answers keep the limit on KLD"
_FIRST_SEED_OF_FINAL = 1000  # first seed of the final: its loads are none of the race
_MAX_LISTED_RESULTS = 24  # results that the preset names

# Returns the combination of an entry, or why no server can be started with it.
CombineEntry = Callable[[Sequence[str]], "FlagCombination | str"]
# Stores a plan with its title and evidence as a preset, and returns its id and its path.
SavePreset = Callable[[FlagCombination, str, Sequence[str]], Awaitable[tuple[str, str]]]


@dataclass
class Tune(FlagSweep):
    """Carries out a tune. The entries of its race are the assignments that a server adds to the
    start preset."""

    spec: TuneSpec | None = None
    size: RaceSize | None = None
    combine: CombineEntry | None = None
    save_preset: SavePreset | None = None
    began_anew: bool = True  # not resumed
    _took_s: list[float] = field(default_factory=list, init=False)  # of each start of the race
    _checks: int = field(default=0, init=False)  # comparisons of answers before the final
    _run_noise_pct: float | None = field(default=None, init=False)
    _answers_s: float = field(default=0.0, init=False)  # of comparing answers in the final

    async def prepare_series(self) -> None:
        await self._check_no_altered_settings()
        await super().prepare_series()
        await self._update_run_noise()
        await self._update_answer_comparison_duration()
        # answers are compared in the final, if the best one changes them
        self.progress.change_sweep(quality="")

    # ---- GPU settings

    @property
    def _changed_gpu_setting_keys(self) -> frozenset[str]:
        """The keys of the GPU settings that the candidates change."""
        each = (gpu_settings_of_candidate(candidate.sets) for candidate in self._spec.candidates)
        return frozenset(chain.from_iterable(each))

    async def _gpu_indices_of_plan(self) -> Sequence[int]:
        infos = (await self.parts.telemetry.get_recent_reading()).infos
        return gpu_indices_of_plan(self.combinations[0].editor.plan, infos)

    async def _check_no_altered_settings(self) -> None:
        """Raise SettingsError if a GPU setting that the candidates change is altered already. What
        a killed tune has left behind is reverted first. The guard does that too, but later."""
        if not self._changed_gpu_setting_keys:
            return
        self.parts.gpu.guard.start_heartbeats()  # it reverts the settings of a tune that is killed
        if self.progress.sweep.start is not None:
            await self._revert_settings()
        if self.progress.sweep.experiment_id is not None:
            return  # the race is over; the final reverts what it left on, and checks the others
        await self.parts.gpu.alterations.read_altered_settings()
        gpus, changed = await self._gpu_indices_of_plan(), self._changed_gpu_setting_keys
        on = [
            alteration
            for alteration in self.parts.core.state.alterations
            if alteration.setting in changed and alteration.gpu_index in gpus
        ]
        if on:
            raise SettingsError(
                f"GPU settings that Workbench altered are still on ({alterations_text(on)}), and "
                "the tune would change them",
                host=self.parts.core.host.name,
                next_step="revert them first: r on the screen, or workbench gpu revert",
            )

    async def prepare_started_server(self, run: int) -> None:
        settings = gpu_settings_of_candidate(self.combinations[run].sets)
        if not settings:
            return
        self.progress.change_sweep(start={"settings": sorted(settings)})
        await self.progress.save()
        for gpu in await self._gpu_indices_of_plan():
            report = await self.parts.gpu.apply_settings(settings, gpu)
            failed = report.first_failure
            if failed is not None:
                raise SettingsError(setting_failure_text(failed, "set"))

    async def _revert_settings(self) -> None:
        """Restore the GPU settings that a candidate changed. Raises SettingsError if that fails."""
        for gpu in await self._gpu_indices_of_plan():
            report = await self.parts.gpu.revert_settings(
                gpu, settings=self._changed_gpu_setting_keys
            )
            failed = report.first_failure
            if failed is not None:
                raise SettingsError(
                    setting_failure_text(failed, "reverted"),
                    host=self.parts.core.host.name,
                    next_step="run `workbench gpu revert`",
                )
        self.progress.change_sweep(start=None)

    # ---- the race

    def next_run(self) -> PointIndex | None:
        while (run := self.progress.next_planned_point_index) is not None:
            if self._is_too_late_for_start(run):
                self._skip_points_without_time()
                break
            if (why := self._predicted_start_failure_text(run)) is None:
                return run
            self.progress.change_point(run, state=PointState.FAILED, error=why)
        if self._current_block_number > 1 or self._is_too_late_for_second_block:
            return None
        self._add_second_race_block()
        return self.progress.next_planned_point_index

    def raise_if_stopped(self, run: int) -> None:
        self.progress.raise_if_cancelled()

    async def carry_out_run(self, run: int) -> None:
        began_s = time.monotonic()
        try:
            await super().carry_out_run(run)
        finally:
            if gpu_settings_of_candidate(self.combinations[run].sets):
                await finish_despite_cancellation(self._revert_settings())
        if self.progress.sweep.points[run].state == PointState.DONE:
            await self._store_broken_limit_or_failure(run)
        self._took_s.append(time.monotonic() - began_s)
        await self._update_run_noise()
        await self.progress.save()
        self._record_exclusion_of_point(run)
        await self.progress.save()

    async def _store_broken_limit_or_failure(self, run: int) -> None:
        """Store in a measured point which limit it breaks, or why it has no value."""
        results = await self.parts.results.get_all(self.progress.sweep.points[run].result_ids)
        if (broken := self._first_broken_limit_text(results)) is not None:
            self.progress.change_point(run, error=limit_error_text(broken))
        point = self.progress.sweep.points[run]
        if signed_log_of_goal(point, self._tune_goal) is None:
            why = self._unmeasured_goal_text(point, results)
            self.progress.change_point(run, state=PointState.FAILED, error=why)

    def _unmeasured_goal_text(self, point: SweepPoint, results: Sequence[BenchResult]) -> str:
        goal = self._tune_goal
        if getattr(point, goal.field) == 0:
            return f"{goal.title} is 0: no request kept the limits"
        name = goal.metric.partition(".")[0]
        for result in results:
            if why := result.summary.absent.get(name):
                return f"{goal.title} {UNMEASURED} ({why})"
        return f"{goal.title} {UNMEASURED}"

    def _record_exclusion_of_point(self, run: int) -> None:
        """Note why a point is out of the race, if it is. Raises BenchError if the start preset
        cannot be measured, because then there is nothing to compare with."""
        point = self.progress.sweep.points[run]
        if not point.error:
            return
        block, entry = parse_point_label(point.label)
        broken = limit_broken_by_point(point)
        if entry:
            note = f"{block}: {format_entry_for_people(entry)}: out, {point.error}"
        elif broken:
            note = (
                f"{point.label}: the start preset itself breaks a limit ({broken}); the tune looks "
                "for the best that keeps all"
            )
        elif block > 1:
            note = f"{point.label}: the start preset could not be measured again"
        else:
            self.progress.change_point(run, state=PointState.FAILED)
            raise BenchError(
                f"the start preset could not be measured: {point.error}",
                next_step="give longer runs (--requests, --seconds), or looser limits, whichever is the "
                "reason",
            )
        self.progress.add_note(note)

    def bench_fields_of_run(self, run: int) -> Mapping[str, Any]:
        """Return the load of a point as fields of BenchSpec, the same for all servers of a
        block."""
        block, _ = parse_point_label(self.progress.sweep.points[run].label)
        return {**self._bench_fields_of_tune, "seed": seed_of_load(self.bench) + block}

    @property
    def _bench_fields_of_tune(self) -> Mapping[str, Any]:
        """The load of the tune. A search for users begins with the number that the start preset has
        served, if that is known."""
        served = self.progress.sweep.points[0].users
        if self._spec.goal != tune.USERS or not served:
            return self.bench
        return {**self.bench, "concurrency": max(1, round(served))}

    async def measure_point_on_server(self, run_id: str, run: int) -> Sequence[BenchResult]:
        """Measure a point on its server, and return the results that count. If its runs differ by
        more than chance explains, make one more: the outlier does not count, and a candidate never
        leaves the race for it. () if a run raised an error."""
        found = await super().measure_point_on_server(run_id, run)
        runs = self._goal_logarithms_of_results(found)
        point = self.progress.sweep.points[run]
        if self._spec.goal == tune.USERS and self._run_noise_pct is None:
            return found  # a search takes long, and how much two of them differ is not known yet
        if point.state != PointState.DONE or not tune_race.runs_differ_beyond_noise(
            runs, self._run_noise_pct
        ):
            return found
        block, entry = parse_point_label(point.label)
        apart_pct = 100 * math.expm1(max(runs) - min(runs))
        self.progress.add_note(
            f"{block}: {format_entry_for_people(entry)}: its runs differ by {apart_pct:.0f} %, so one more decides"
        )
        try:
            one_more = await self.progress.run_with_one_repeat(
                run, lambda: self.benchmark_point(run_id, run)
            )
        except (BenchCancelled, HostError):
            raise
        except WorkbenchError as error:
            await self.progress.mark_point_failed(run, error.message)
            return ()
        found = [*found, one_more]
        runs = self._goal_logarithms_of_results(found)
        if len(runs) == len(found):
            left_out = found.pop(tune_race.index_of_outlier(runs))
            self.progress.add_note(
                f"{block}: {format_entry_for_people(entry)}: #{left_out.id} does not count"
            )
        self.progress.change_point(run, **point_fields_from_results(found))
        return found

    async def benchmark_point(self, run_id: str, run: PointIndex) -> ResultId:
        if self._spec.goal != tune.USERS:
            return await super().benchmark_point(run_id, run)
        bench = partial(self.parts.bench.benchmark_run, run_id)
        return await measure_user_capacity(bench, self.parts.results, self.bench_fields_of_run(run))

    @property
    def _tune_goal(self) -> Goal:
        return tune.find_goal(self._spec.goal)

    @property
    def _spec(self) -> TuneSpec:
        assert self.spec is not None
        return self.spec

    @property
    def _race_size(self) -> RaceSize:
        assert self.size is not None
        return self.size

    @property
    def _current_block_number(self) -> int:
        return max(parse_point_label(point.label)[0] for point in self.progress.sweep.points)

    def _predicted_start_failure_text(self, run: int) -> str | None:
        """Return why the server of a point would fail to start, known without a start; None if it
        may start."""
        _, entry = parse_point_label(self.progress.sweep.points[run].label)
        engine = self.combinations[0].editor.plan.engine
        for point in self.progress.sweep.points:
            if point.state != PointState.FAILED or "not started" not in (point.error or ""):
                continue
            failed = parse_point_label(point.label)[1]
            if failed and needs_at_least_same_memory(failed, entry, engine):
                return f"{_NOT_TRIED_TEXT}: {format_entry_for_people(failed)} did not start, and this needs more memory"
        return None

    def _add_second_race_block(self) -> None:
        gains = log_gains_of_remaining_entries(self.progress.sweep)
        if not gains:
            return
        start_keeps_limits = not limit_broken_by_start(self.progress.sweep)
        chosen = tune_race.select_second_block_entries(
            gains,
            self._race_size.kept,
            self._can_server_combine_changes,
            self._race_noise,
            start_keeps_limits=start_keeps_limits,
        )
        for rank, entry in enumerate(sorted(gains, key=gains.__getitem__, reverse=True), 1):
            changes = format_entry_for_people(entry)
            self.progress.add_note(
                f"1: {changes}: place {rank} with {_log_ratio_percent_text(gains[entry])} against the "
                f"start preset in one start; {_second_block_text(entry, gains, chosen, self._race_size.kept)}"
            )
        for entry in chosen:
            if entry not in gains:
                self.progress.add_note(
                    f"2: {format_entry_for_people(entry)}: joined, because each gained alone"
                )
        if not chosen:
            return
        entries = (START, *chosen)
        self.combinations = [*self.combinations, *map(self._combination_of_entry, entries)]
        self.progress.add_points(
            [SweepPoint(format_point_label(2, entry), None) for entry in entries]
        )

    @property
    def _race_noise(self) -> Noise:
        """The noise that the race takes for chance: the assumed one, or more if runs differ more
        here."""
        assumed = Noise()
        factor = max(1.0, (self._run_noise_pct or 0.0) / assumed.run_pct)
        return Noise(assumed.server_pct * factor, assumed.run_pct * factor)

    def _combination_of_entry(self, entry: Entry) -> FlagCombination:
        assert self.combine is not None
        found = self.combine(entry)
        if isinstance(found, str):
            raise WorkbenchError(found)
        return found

    def _can_server_combine_changes(self, entry: Entry) -> bool:
        """Return whether a server can have all of these changes: no flag twice, no new error."""
        names = [word.partition("=")[0] for word in entry]
        if len(set(names)) < len(names):
            return False
        assert self.combine is not None
        return not isinstance(self.combine(entry), str)

    # ---- limits and time

    def _first_broken_limit_text(self, results: Sequence[BenchResult]) -> str | None:
        """Return the first limit that one of the results does not keep; None if all do."""
        limits = self._spec.limits
        has_latency_limits = limits.slo and self._spec.goal not in tune.OF_LATENCIES
        for result in results:
            if has_latency_limits and (broken := _broken_latency_limit_text(result.summary)):
                return broken
            if broken := _broken_gpu_limit_text(result.summary, limits):
                return broken
        return None

    @property
    def _final_duration_s(self) -> float:
        return 2 * self._race_size.pairs * self._start_duration_s + self._answers_s

    @property
    def _start_duration_s(self) -> float:
        """The mean seconds of a start with its runs: of this command, or of earlier commands if
        this one has ended none. 0 before the first start has ended."""
        if self._took_s:
            return fmean(self._took_s)
        ended = sum(point.state == PointState.DONE for point in self.progress.sweep.points)
        return self.progress.worked_before_s / ended if ended else 0.0

    async def _update_answer_comparison_duration(self) -> None:
        """Read how long the newest comparison of the answers of this model took, if the final may
        compare answers. It stays 0 before the first comparison."""
        engine, plan = self.combinations[0].editor.engine.name, self.combinations[0].editor.plan
        self._answers_s = 0.0
        if not self.quality:
            return
        if not can_candidates_change_answers(engine, self._spec.candidates):
            return
        for result in await self.parts.results.list_quality_results():
            if result.took_s is not None and result.conditions_a.get("model") == plan.model:
                self._answers_s = result.took_s
                return

    def _is_too_late_for_start(self, run: int) -> bool:
        """Return whether the time limit has no room for another start of the race before the final.
        The start preset and one candidate are always measured."""
        if run < 2:
            return False
        return not self.progress.limit.has_time_for(self._start_duration_s + self._final_duration_s)

    @property
    def _is_too_late_for_second_block(self) -> bool:
        block = (1 + self._race_size.kept) * self._start_duration_s
        return not self.progress.limit.has_time_for(block + self._final_duration_s)

    def _skip_points_without_time(self) -> None:
        why = "the time that is left is needed for the final"
        skipped = []
        for index, point in enumerate(self.progress.sweep.points):
            if point.state == PointState.PLANNED:
                self.progress.change_point(index, state=PointState.SKIPPED, error=why)
                skipped.append(format_entry_for_people(parse_point_label(point.label)[1]))
        self.progress.add_note(f"{_NOT_TRIED_TEXT}, {why}: {', '.join(skipped)}")

    # ---- the final

    def confirmation_experiment_fields(self) -> dict[str, Any]:
        options = super().confirmation_experiment_fields()
        # the race has warmed the machine up, and compiled both servers
        return {
            **options,
            "bench": dict(self._bench_fields_of_tune),
            "metric": self._tune_goal.metric,
            "seed": seed_of_load(self.bench) + _FIRST_SEED_OF_FINAL,
            "throw_away": False,
        }

    async def finish_series(self) -> None:
        best = await self._choose_entry_for_final()
        gains = log_gains_of_remaining_entries(self.progress.sweep)
        if not gains:
            return self._record_no_improvement("no candidate could be measured within the limits")
        if best is None:
            return self._record_no_improvement(
                "no candidate was better than the start preset in the race"
            )
        name = shlex.join(best)
        block = self._current_block_number  # 1 if the time was up before the second
        for entry in gains:
            if entry != best:
                gain = _log_ratio_percent_text(gains[entry])
                self.progress.add_note(
                    f"{block}: {format_entry_for_people(entry)}: {gain} against the start preset in the race; "
                    f"out, {format_entry_for_people(best)} is ahead"
                )
        reason = "leads the race"
        if limit_broken_by_start(self.progress.sweep):
            reason = "keeps the limits, which the start preset breaks"
        self.progress.add_note(
            f"{format_entry_for_people(best)}: {reason}, with {_log_ratio_percent_text(gains[best])}, "
            "and meets the start preset in the final"
        )
        await self.progress.save()
        self.progress.raise_if_no_time_for(0.0)
        self.progress.raise_if_cancelled()
        await confirm_value_by_experiment(
            self.progress, name, "the start preset", self.run_experiment(_arm_of_entry(best))
        )
        number = self.progress.sweep.experiment_id
        if number is None:
            raise _no_verdict_error(f"{name} could not be compared in pairs")
        return await self._record_final_verdict(
            name, best, await self.parts.experiments.get(number)
        )

    async def _choose_entry_for_final(self) -> Entry | None:
        """Return the entry that meets the start preset in the final; None if none was better. A
        leader whose answers break the limit on KLD is out, and the next one leads."""
        while True:
            sweep = self.progress.sweep
            best = tune_race.select_final_entry(
                log_gains_of_remaining_entries(sweep),
                start_keeps_limits=not limit_broken_by_start(sweep),
            )
            if best is None or not self._should_compare_answers_before_final(best):
                return best
            if (broken := await self._compare_answers_for_broken_limit(best)) is None:
                self.progress.add_note(
                    f"{format_entry_for_people(best)}: {_ANSWERS_KEEP_LIMIT_TEXT}"
                )
                await self.progress.save()
                return best
            self._exclude_entry(best, limit_error_text(broken))
            await self.progress.save()

    def _should_compare_answers_before_final(self, entry: Entry) -> bool:
        """Return whether the answers of an entry are compared before the final: if they can break
        the limit, were not compared yet, and leave starts and time for the final."""
        limit = self.progress.limit
        engine = self.combinations[0].editor.plan.engine
        if self._spec.limits.kld is None or not can_assignments_change_answers(engine, entry):
            return False
        compared_note = f"{format_entry_for_people(entry)}: {_ANSWERS_KEEP_LIMIT_TEXT}"
        if compared_note in self.progress.sweep.notes:
            return False
        starts = self._server_starts_before_final + tune_race.ANSWER_CHECK_STARTS
        starts += 2 * self._race_size.pairs
        check_s = tune_race.ANSWER_CHECK_STARTS * self._start_duration_s
        return starts <= self._spec.starts and limit.has_time_for(check_s + self._final_duration_s)

    async def _compare_answers_for_broken_limit(self, entry: Entry) -> str | None:
        """Compare the answers of an entry with those of the start preset, in an experiment of one
        pair. Return the limit that they break; None if they keep it."""
        self.progress.add_note(
            f"{format_entry_for_people(entry)}: leads, and can answer otherwise: answers are compared"
        )
        self.progress.change_sweep(quality="")
        try:
            experiment = await self.run_experiment(_arm_of_entry(entry), pairs=1)
        except (BenchCancelled, SeriesStopped):
            raise
        except WorkbenchError as error:
            return f"the KLD {UNMEASURED} ({error.message})"
        self._checks += 1
        await self._update_answer_comparison_duration()
        check_experiment_ended(self.progress, format_entry_for_people(entry), experiment)
        if experiment.state == SeriesState.FAILED:
            return f"the KLD {UNMEASURED} ({experiment.error})"
        return await self._broken_kld_limit_text(await self.parts.experiments.get(experiment.id))

    async def _broken_kld_limit_text(self, experiment: Experiment) -> str | None:
        """Return how the answers of B break the limit on KLD; None if they keep it, or if there is
        no limit. An interval that reaches above the limit breaks it."""
        limit, comparison = self._spec.limits.kld, experiment.comparison
        if limit is None or comparison is None or not comparison.answer_changes:
            return None
        measured = []
        for result in await self.parts.results.list_quality_results():
            if result.id == comparison.quality_id:
                measured += [measure.value for measure in result.measures if measure.name == KL]
        if not measured:
            return f"the KLD {UNMEASURED}"
        worst = max(measured, key=lambda kld: math.inf if kld.high is None else kld.high)
        if worst.high is None:
            return f"KLD >= {worst.value:.2g}, of too few texts for an interval"
        if worst.high <= limit:
            return None
        return f"KLD >= {worst.value:.2g} (interval up to {worst.high:.2g}), limit {limit:g}"

    def _exclude_entry(self, entry: Entry, why: str) -> None:
        """Take an entry out of the race, and every entry that contains it, for the reason `why`."""

        for index, point in enumerate(self.progress.sweep.points):
            has_entry = set(entry) <= set(parse_point_label(point.label)[1])
            if has_entry and point.state == PointState.DONE:
                self.progress.change_point(index, error=why)
        self.progress.add_note(f"{format_entry_for_people(entry)}: out, {why}")

    @property
    def _server_starts_before_final(self) -> int:
        """The number of servers that were started so far, without those of the final."""
        starts = tune_race.ANSWER_CHECK_STARTS * self._checks
        for point in self.progress.sweep.points:
            was_not_tried = (point.error or "").startswith(_NOT_TRIED_TEXT)
            if point.state != PointState.SKIPPED and not was_not_tried:
                starts += 1
        return starts

    async def _record_final_verdict(self, name: str, best: Entry, experiment: Experiment) -> None:
        comparison = experiment.comparison
        if experiment.state != SeriesState.DONE or comparison is None:
            raise _no_verdict_error(f"the final of {name} failed: {experiment.error}")
        change = comparison.metrics[0]
        broken = await self._broken_limit_text_in_final(experiment, "B")
        broken = broken or await self._broken_kld_limit_text(experiment)
        if broken is not None:
            return self._record_no_improvement(f"in the final, {name} {limit_error_text(broken)}")
        breaks = await self._broken_limit_text_in_final(experiment, "A")
        is_better = change.verdict == BETTER
        if comparison.broken_answer_clause or not comparison.like_for_like:
            return self._record_no_improvement(
                f"{name} was not shown to be better in the final", change
            )
        if not is_better and breaks is None:
            why = f"{name} was not shown to be better in the final"
            if limit_broken_by_start(self.progress.sweep):
                why += ", in which the start preset kept the limits"
            return self._record_no_improvement(why, change)
        text = (
            self._final_gain_text(change, name)
            if is_better
            else self._limits_kept_text(change, name)
        )
        if breaks is not None:
            text += f"; the start preset breaks a limit ({breaks}), and this keeps all"
            self.progress.change_sweep(confirmed=True)
        if comparison.quality:
            text += f"; {comparison.quality}"
        text += f"; {self._tune_cost_text(experiment)}"
        self.progress.change_sweep(knee_text=text)
        return await self._write_preset(best, text, experiment)

    async def _broken_limit_text_in_final(self, experiment: Experiment, arm: str) -> str | None:
        """Return the first limit that the runs of an arm do not keep; None if they keep all."""
        results = await self.parts.results.get_all(experiment.finished_result_ids(arm))
        return self._first_broken_limit_text(results)

    def _final_gain_text(self, change: MetricChange, entry_text: str) -> str:
        assert change.change_pct is not None and change.interval_pct is not None
        sign = self._tune_goal.sign
        size = abs(change.change_pct)
        least = size - change.interval_pct
        return (
            f"{_signed_percent_text(sign * size)} % "
            f"(at least {_signed_percent_text(sign * least)} %) {self._tune_goal.title} with {entry_text}"
        )

    def _limits_kept_text(self, change: MetricChange, entry_text: str) -> str:
        if change.change_pct is None or change.interval_pct is None:
            return f"{entry_text} keeps the limits"
        width = format_half_width(change.interval_pct)
        gain = _signed_percent_text(change.change_pct)
        return f"{entry_text} keeps the limits with {gain} % ± {width} {self._tune_goal.title}"

    def _record_no_improvement(self, why: str, final: MetricChange | None = None) -> None:
        """Store as the result of the tune that nothing better was found, for the reason `why`, and
        which improvement the race would have found. `final` has the pairs of the final, which show
        how servers differ here; None if there was no final."""
        text = f"nothing better found: {why}"
        size = self._measured_race_size()
        if size is not None:
            text += f"; {self._detectable_gain_and_noise_text(size, final)}"
        self.progress.change_sweep(knee_text=text, confirmed=self.progress.sweep.confirmed)

    def _detectable_gain_and_noise_text(self, size: RaceSize, final: MetricChange | None) -> str:
        """Return which improvement the race would have found, and how much servers differ here."""
        pairs = final.pairs if final is not None else ()
        ratios = [math.log(b / a) for a, b in pairs if a and b]
        measured = tune_race.estimate_noise_from_final(self._run_noise_pct, ratios)
        noise = measured or self._noise_from_measured_runs
        differ = (
            f"servers differ by {_noise_text(noise.server_pct, is_measured=measured is not None)}"
        )
        if noise.run_pct:
            runs = _noise_text(noise.run_pct, is_measured=self._run_noise_pct is not None)
            differ += f" and runs by {runs}"
        else:
            differ += ", with the noise of their runs"
        return f"{_detectable_gain_text(tune_race.findable_gain_pct(size, noise))}: {differ}"

    @property
    def _noise_from_measured_runs(self) -> Noise:
        """The measured noise of runs, with the assumed one of servers."""
        if self._run_noise_pct is None:
            return Noise()
        return Noise(run_pct=self._run_noise_pct)

    async def _update_run_noise(self) -> None:
        """Read how the runs of one server differed, from the results of the race."""
        servers = []
        for point in self.progress.sweep.points:
            results = await self.parts.results.get_all(point.result_ids)
            servers.append(self._goal_logarithms_of_results(results))
        self._run_noise_pct = tune_race.run_noise_std_pct(servers)

    def _goal_logarithms_of_results(self, results: Sequence[BenchResult]) -> list[float]:
        """Return the natural logarithm of the metric of the goal for each result that has it."""
        name, _, part = self._tune_goal.metric.partition(".")
        values = [getattr(result.summary, name) for result in results]
        if part:
            values = [getattr(value, part) for value in values if value is not None]
        return [math.log(value) for value in values if value]

    def _measured_race_size(self) -> RaceSize | None:
        """Return the size of the race as it was: only candidates that were measured within the
        limits count. None if there was no race, or if the start preset does not keep the limits."""
        kept = set()
        for point in self.progress.sweep.points:
            block, entry = parse_point_label(point.label)
            if block == 1 and point.state == PointState.DONE and not point.error:
                kept.add(entry)
        count = len(kept) - 1
        if START not in kept or count < 1:
            return None
        return replace(
            self._race_size,
            candidates=count,
            kept=min(self._race_size.kept, tune_race.count_second_block_candidates(count)),
        )

    def _tune_cost_text(self, experiment: Experiment) -> str:
        done = sum(run.state == RunState.DONE for run in experiment.runs)
        text = count_of(self._server_starts_before_final + done, "start")
        if again := len(experiment.runs) - done:
            text += f" ({count_of(again, 'more start')} in pairs that were made again)"
        if not self.began_anew:
            return text
        elapsed_s = self.progress.elapsed_s
        if elapsed_s < 120:
            return f"{text}, {elapsed_s:.0f} s"
        return f"{text}, {elapsed_s / 60:.0f} min"

    async def _write_preset(self, best: Entry, text: str, experiment: Experiment) -> None:
        listed = experiment.finished_result_ids()[:_MAX_LISTED_RESULTS]
        simulated = "SIMULATED: " if self.progress.sweep.simulated else ""
        number = self.progress.sweep.id
        evidence = (
            f"{simulated}Tune {number} on {self.progress.sweep.host}: {text}.",
            f"Evidence: experiment {experiment.id}, results "
            f"{', '.join(f'#{result}' for result in listed)}; `workbench tune show {number}`.",
        )
        assert self.save_preset is not None
        try:
            name, path = await self.save_preset(
                self._combination_of_entry(best), str(number), evidence
            )
        except (PresetError, OSError) as error:
            problem = error.message if isinstance(error, PresetError) else str(error)
            self.progress.add_note(f"the preset could not be written: {problem}")
            return
        self.progress.add_note(
            f"wrote the preset {name} ({path}): `workbench presets apply {name}`"
        )


def can_candidates_change_answers(engine: str, candidates: Sequence[TuneCandidate]) -> bool:
    """Return whether one of the candidates can change what the model answers."""
    return any(can_assignments_change_answers(engine, candidate.sets) for candidate in candidates)


def _arm_of_entry(entry: Entry) -> Arm:
    return Arm(sets=plan_assignments_of_candidate(entry), gpu=gpu_settings_of_candidate(entry))


def _broken_latency_limit_text(summary: BenchSummary) -> str:
    """Return the first limit on latencies that a result does not keep; "" if it keeps all."""
    for limit in summary.slo:
        if limit.margin_pct is None:
            return f"{limit.limit} {UNMEASURED}"
        if limit.margin_pct < 0:
            return f"{limit.limit}: {limit.attained_share_text} of the requests kept it"
    return ""


def _broken_gpu_limit_text(summary: BenchSummary, limits: TuneLimits) -> str:
    """Return the first limit on power or temperature that a result does not keep; "" if it keeps
    both."""
    hottest_c = summary.gpu.temperature_c if summary.gpu else None
    limits_of_gpus = (
        ("power", "W", summary.power_w, limits.power_w),
        ("temperature", "°C", hottest_c, limits.temperature_c),
    )
    for name, unit, value, highest in limits_of_gpus:
        if highest is None:
            continue
        if value is None:
            return f"the {name} {UNMEASURED}"
        if value > highest:
            return f"{name} {value:.0f} {unit}, above {highest:g} {unit}"
    return ""


def _no_verdict_error(why: str) -> BenchError:
    """Return the error of a tune whose final came to no verdict. Such a tune can be resumed."""
    return BenchError(why, next_step="`workbench tune resume` carries the final out again")


def _log_ratio_percent_text(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def _detectable_gain_text(detectable_gain_pct: float | None) -> str:
    share_pct = 100 * tune_race.FOUND_TUNES_SHARE
    result = f"would have been found in {share_pct:.0f} % of such tunes"
    if detectable_gain_pct is None:
        gain = f"{tune_race.MAX_GAIN_PCT:g} %"
        result = f"would not have been found in {share_pct:.0f} % of such tunes"
    else:
        gain = f"{detectable_gain_pct:g} % or more"
    return f"an improvement of {gain} of one candidate {result}"


def _noise_text(percent: float, *, is_measured: bool) -> str:
    return f"{percent:.2g} % ({'measured in this tune' if is_measured else 'assumed'})"


def _second_block_text(
    entry: Entry, log_gains: Mapping[Entry, float], advancing: Sequence[Entry], max_advancing: int
) -> str:
    """Return in words whether an entry of the first block goes on to the second; if not, why."""
    if entry in advancing:
        if log_gains[entry] > 0:
            return "goes on"
        return "behind, but by no more than chance explains: it is started once more"
    if len(advancing) < max_advancing:
        return "out, too far behind for chance"
    alone = len(log_gains.keys() & advancing)
    return "out, only the best one goes on" if alone == 1 else f"out, not among the best {alone}"


def _signed_percent_text(percent: float) -> str:
    return f"{percent:+.1f}"
