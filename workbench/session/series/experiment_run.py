"""The course of an experiment: which run is next, what follows a failure, and when the experiment
ends. Everything on hosts goes through the protocol `TestBed`, so that thousands of simulated
experiments can follow the same course (tests/benchmarks/bench_experiments.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from workbench.bench import experiment as design
from workbench.bench.compared_texts import describe_broken_text
from workbench.bench.metric_changes import find_metric
from workbench.bench.records import SERVER_ENDED_KINDS
from workbench.model.errors import BenchError, HostError, ServerError, WorkbenchError
from workbench.model.experiment import (
    INTERRUPTED,
    WARM_UP,
    Experiment,
    ExperimentRun,
    RunState,
    side_label,
)
from workbench.model.series_state import SeriesState
from workbench.session.series.conduct import (
    Design,
    SeriesEnding,
    SeriesStopped,
    TimeLimit,
    carry_out_series,
)

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.model.experiment import ExperimentSpec
    from workbench.model.quality import QualityResult
    from workbench.session.servers.arm_targets import ComparedSide
    from workbench.store.quality_db import QualityDb

ReportLine = Callable[[str], None]
NoteRunId = Callable[[str], Awaitable[None]]


class StartFailedError(ServerError):
    """Raised when the server of an arm does not become READY."""


class NothingServedError(BenchError):
    """Raised when no request of a run succeeded."""


class NotMeasuredError(BenchError):
    """Raised when a run has no value of the metric that decides the experiment."""


class NoAnswerError(BenchError):
    """Raised when the text of a run is no answer. A repetition could only hide that."""


# repeating does not help if the arm never succeeded
_HOPELESS_ERRORS = (StartFailedError, NothingServedError, NotMeasuredError)


class TestBed(Protocol):
    """The servers, GPU settings and benchmarks of an experiment. Each method's `arm` names the side
    that it works on: "A" or "B", or "A on HOST" if two hosts with equal hardware (twins) are used.
    Every method may raise WorkbenchError."""

    @property
    def started_run_id(self) -> str | None:
        """The run id of the server that the experiment has started last and not stopped, or None.
        It may have failed meanwhile."""
        ...

    async def must_compile_first(self, arm: str) -> bool:
        """Return whether the arm's server must compile before its next start, because this
        configuration was never started before."""
        ...

    async def start_or_reuse_server(self, arm: str, note_run_id: NoteRunId) -> str:
        """Return the run id of the arm's server, started if necessary. The server need not be READY
        yet. A new server is started for each run if the arms differ in anything that only a restart
        changes. `note_run_id` is called with the run id of a new server before its process starts.
        """
        ...

    async def await_server_and_apply_settings(
        self, arm: str, run_id: str, report_line: ReportLine
    ) -> None:
        """Wait until the server `run_id` is READY, or until the server at a URL answers, then apply
        the GPU settings of `arm`. `report_line` is called with texts on the progress. Raises
        StartFailedError if the server does not become READY."""
        ...

    async def stop_server_and_revert_settings(self) -> None:
        """Revert the GPU settings that the experiment has applied, then stop the server that the
        experiment uses."""
        ...

    async def wait_then_read_temperature_c(
        self, target_c: float | None, within_c: float, report_line: ReportLine
    ) -> float | None:
        """Wait, for a limited time, until the GPUs have cooled to `within_c` °C above `target_c`.
        `report_line` is called with texts on the progress. Return the last temperature in °C, or
        None if it is not known."""
        ...

    async def run_benchmark(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
        """Benchmark the arm's server with prompts made from the random seed `seed`. Return the
        stored result."""
        ...

    async def read_start_s_and_settings(
        self, arm: str, run_id: str
    ) -> tuple[float | None, Mapping[str, str]]:
        """Return what the arm's server says about itself: the seconds that its start took, if the
        experiment started it, and what its engine uses, by name. What cannot be read is None or
        left out."""
        ...

    async def restore_host_and_report(self, experiment: Experiment) -> Sequence[str]:
        """Revert the GPU settings, and stop the experiment's server unless a server ran before the
        experiment. Return notes for the user on what failed and on what keeps running."""
        ...


class AnswerComparison(Protocol):
    """The comparison of the answers of A and B, made while the servers of an experiment run anyway.
    Of its failures, only a lost link to the host ends the experiment."""

    async def measure_missing_answers(
        self, run: ExperimentRun, report_line: ReportLine
    ) -> QualityResult | None:
        """Measure the answers that are still missing on the server of a run that was benchmarked.
        Return the stored comparison once none is missing, before that None."""
        ...

    async def finish_comparison(self, *, experiment_done: bool) -> QualityResult | None:
        """Store the comparison of what was measured when the experiment ends, and return it. Return
        None and store nothing if it is stored already, or if steps are missing that a resumed
        experiment can measure. `experiment_done` says whether the experiment has made all of its
        runs."""
        ...

    def estimated_remaining_s(self) -> float:
        """Return the estimated seconds that the missing measurements take; 0 if not known."""
        ...


class AnswerComparisonFactory(Protocol):
    """Makes the comparisons of answers of experiments."""

    def answer_comparison_cost_text(
        self,
        spec: ExperimentSpec,
        concurrency: int,
        changed_settings: Sequence[str],
        engine_names: Collection[str],
        *,
        starts_servers_of_a: bool,
    ) -> str:
        """Return in a sentence how many requests comparing the answers adds to an experiment, and
        about how much time. `changed_settings` names the settings in which A and B differ, and
        `engine_names` the engines, as far as they are known."""
        ...

    async def create_or_restore_comparison(
        self,
        experiment: Experiment,
        sides: Mapping[str, ComparedSide],
        concurrency: int,
        db: QualityDb,
    ) -> AnswerComparison:
        """Return the comparison of the answers of an experiment, with what it has measured so
        far."""
        ...


class ExperimentConduct(Design[ExperimentRun]):
    """Carries out one experiment. `show_experiment` is called with it after each change, and `save`
    writes it to disk. `results` are the earlier results if the experiment is resumed, and `left_s`
    is the estimated duration in seconds, None if unknown. `quality` has the measured comparisons of
    answers, the newest first, and `answers` makes the experiment's own; None if it makes none."""

    def __init__(
        self,
        experiment: Experiment,
        bench: TestBed,
        *,
        save: Callable[[Experiment], Awaitable[None]],
        show_experiment: Callable[[Experiment], None] = lambda _: None,
        results: Sequence[BenchResult] = (),
        left_s: float | None = None,
        quality: Sequence[QualityResult] = (),
        answers: AnswerComparison | None = None,
    ) -> None:
        self.experiment = experiment
        self._answers = answers
        self._bench = bench
        self._save = save
        self._show_experiment = show_experiment
        self._results = {result.id: result for result in results}
        self._quality = quality
        self._first_estimate_s = left_s  # the estimate before the first run
        self._limit = TimeLimit(experiment.spec.max_minutes)
        self._end_notes: Sequence[str] = ()

    async def carry_out_experiment(self) -> Experiment:
        """Carry out the experiment and return it as done, failed or stopped. A cancelled task, a
        lost link or a failed server is not raised: the experiment's `error` has the reason. Raises
        StoreError if the experiment cannot be stored. An error that is a defect of Workbench is
        raised too, after the experiment was stored."""
        ending = await carry_out_series(self)
        if self._answers is not None:
            self._add_quality_result(
                await self._answers.finish_comparison(
                    experiment_done=ending.state == SeriesState.DONE
                )
            )
        self._record_ending(ending)
        await self._save(self.experiment)
        unexpected = ending.unexpected_error
        if unexpected is not None and not isinstance(unexpected, asyncio.CancelledError):
            raise unexpected
        return self.experiment

    def _record_ending(self, ending: SeriesEnding) -> None:
        state, error = ending.state, _end_reason(ending.cause)
        why = error if state == SeriesState.FAILED and error is not None else INTERRUPTED
        runs = tuple(design.mark_run_failed_if_unfinished(run, why) for run in self.experiment.runs)
        ended = replace(
            self.experiment,
            runs=runs,
            state=state,
            error=error,
            phase="",
            server=None,
            settings_on=False,
        )
        self.experiment = ended
        self._add_lines_to_note(*self._end_notes)
        self._update_verdict()
        self._estimate_time_left()
        self._show_experiment(self.experiment)

    async def prepare_series(self) -> None:
        if design.why_enough_pairs(self.experiment) is None:
            await self._make_warm_up_runs()

    def next_run(self) -> ExperimentRun | None:
        if design.why_enough_pairs(self.experiment) is not None:
            return None
        return design.next_run_to_make(self.experiment)

    def raise_if_stopped(self, run: ExperimentRun) -> None:
        """Raise SeriesStopped if the time limit leaves no room for another pair of runs. A pair
        that has begun is completed."""
        done = self.experiment.completed_pairs
        took = [r.took_s for r in self.experiment.runs if r.took_s is not None]
        in_pair = any(r.pair == done and r.state == RunState.DONE for r in self.experiment.runs)
        if not took or in_pair or self._limit.has_time_for(2 * fmean(took)):
            return
        raise SeriesStopped(
            f"the limit of {self._limit.minutes:g} min was reached after {done} of "
            f"{self.experiment.spec.pairs} pairs",
            next_step="resume the experiment with more --max-minutes; finished pairs are kept",
        )

    async def finish_series(self) -> None:
        why = design.why_enough_pairs(self.experiment)
        if why is not None and self.experiment.spec.until_pct is not None:
            self._add_lines_to_note(why)

    async def restore_host(self) -> None:
        self._end_notes = await self._bench.restore_host_and_report(self.experiment)

    # ---- one run

    async def _make_warm_up_runs(self) -> None:
        """Make the first runs, whose results are discarded because a cold machine is slower. By
        default this is one run on each host, or one run of each arm whose server must compile at
        its next start. With `throw_away` it is one run of each arm; if that is False, there is
        none. A failed run is repeated. A resumed experiment repeats these runs."""
        spec = self.experiment.spec
        if spec.throw_away is False:
            return
        arms = design.arm_order_of_pair(spec, self.experiment.completed_pairs)
        for host in spec.twins or (None,):
            chosen: Sequence[str] = arms
            if not spec.throw_away:
                again = self.experiment.restarts
                compiling = [
                    a
                    for a in arms
                    if again and await self._bench.must_compile_first(side_label(a, host))
                ]
                chosen = compiling or arms[:1]
            for arm in chosen:
                while (
                    await self.carry_out_run(design.create_warm_up_run(self.experiment, arm, host))
                ).state == RunState.FAILED:
                    pass

    async def _ensure_ready_server(self, arm: str, report_line: ReportLine) -> str:
        """Start the arm's server if needed, wait until it is READY, apply the arm's GPU settings,
        and return the run id."""
        run_id = await self._bench.start_or_reuse_server(arm, self._record_server_run_id)
        await self._record_server_run_id(self._bench.started_run_id)
        await self._bench.await_server_and_apply_settings(arm, run_id, report_line)
        return run_id

    async def _record_server_run_id(self, run_id: str | None) -> None:
        """Store which server the experiment starts, so that it can stop that server when it is
        resumed after a crash."""
        settings = design.changes_gpu_settings(self.experiment.spec)
        now = replace(self.experiment, server=run_id, settings_on=settings)
        if now != self.experiment:
            self.experiment = now
            await self._save_experiment()

    async def carry_out_run(self, run: ExperimentRun) -> ExperimentRun:
        """Carry out one run of the experiment. Return it with the state "done", "discarded" or
        "failed". A failed run may be repeated."""
        began = time.monotonic()
        title = f"{_run_text(run)}, {run.side_label}"

        def show_run_phase(text: str) -> None:
            self._show_phase(f"{title}: {text}")

        run = await self._store_run(replace(run, state=RunState.STARTING), f"{title}: starting")
        try:
            run = replace(
                run, run_id=await self._ensure_ready_server(run.side_label, show_run_phase)
            )
            run = replace(
                run, start_temperature_c=await self._wait_then_read_temperature_c(run, title)
            )
            run = await self._store_run(
                replace(run, state=RunState.MEASURING), f"{title}: measuring"
            )
            result = await self._bench.run_benchmark(
                run.side_label,
                run,
                design.workload_seed_of_pair(self.experiment.spec, max(0, run.pair)),
            )
        except HostError:
            raise
        except (BenchError, ServerError) as failure:
            return await self._store_failed_run(
                replace(run, took_s=time.monotonic() - began), _failure_line(failure), failure
            )
        run = replace(run, result_id=result.id, took_s=time.monotonic() - began)
        metric = self.experiment.spec.metric
        if (why := design.why_result_is_unusable(result.summary, metric)) is not None:
            if (garbage := describe_broken_text(result.summary)) is not None:
                step = "read the texts of the result, and start the arm's server by hand to try it"
                return await self._store_failed_run(
                    run, garbage, NoAnswerError(garbage, next_step=step)
                )
            if self._was_server_unreachable(run, result):
                return await self._store_failed_run(run, why, BenchError(why))
            if not result.summary.requests_ok:
                logs = "look for the cause in the server's log"
                if not self._is_server_at_url(run):
                    logs = f"{logs}: workbench logs {run.run_id}"
                return await self._store_failed_run(
                    run, why, NothingServedError(why, next_step=logs)
                )
            if (absent := design.why_metric_is_unusable(result.summary, metric)) is not None:
                return await self._store_failed_run(
                    run,
                    why,
                    NotMeasuredError(
                        absent, next_step="make the runs longer, or decide by another --metric"
                    ),
                )
            if run.pair != WARM_UP:
                return await self._store_failed_run(run, why, BenchError(why))
        run = replace(run, value=find_metric(metric).value_in(result.summary))
        ready_after_s, chosen = await self._bench.read_start_s_and_settings(
            run.side_label, run.run_id or ""
        )
        run = replace(run, ready_after_s=ready_after_s, chosen=chosen)
        if run.pair == WARM_UP:
            run = await self._store_run(replace(run, state=RunState.DISCARDED, error=why))
        else:
            self._results[result.id] = result
            run = await self._store_run(replace(run, state=RunState.DONE))
        await self._compare_answers(run, show_run_phase)
        return run

    async def _compare_answers(self, run: ExperimentRun, report_line: ReportLine) -> None:
        """Measure the answers of the run's server, if that is still to be done: after its
        benchmark, which they cannot disturb any more, and before the server of the next run starts.
        """
        if self._answers is None:
            return
        found = await self._answers.measure_missing_answers(run, report_line)
        self._show_phase("")
        if found is not None:
            self._add_quality_result(found)
            self._update_verdict()
            await self._save_experiment()

    def _add_quality_result(self, found: QualityResult | None) -> None:
        if found is not None:
            self._quality = (found, *self._quality)
            self.experiment = replace(self.experiment, quality_id=found.id)

    def _was_server_unreachable(self, run: ExperimentRun, result: BenchResult) -> bool:
        """Return whether no request succeeded because the server at a URL was away, for example
        because its owner restarts it. The next run waits for it
        (TestBed.await_server_and_apply_settings)."""
        none_served = not result.summary.requests_ok
        return (
            none_served
            and self._is_server_at_url(run)
            and set(result.summary.errors) <= SERVER_ENDED_KINDS
        )

    def _is_server_at_url(self, run: ExperimentRun) -> bool:
        target = design.arm_of(self.experiment.spec, run.arm).target
        return target is not None and target.url is not None

    async def _wait_then_read_temperature_c(self, run: ExperimentRun, title: str) -> float | None:
        within = self.experiment.spec.match_temperature_c
        if within is None:
            return None
        first = next(
            (
                r.start_temperature_c
                for r in self.experiment.runs
                if r.start_temperature_c is not None
            ),
            None,
        )
        temperature = await self._bench.wait_then_read_temperature_c(
            first, within, lambda text: self._show_phase(f"{title}: {text}")
        )
        if first is not None and temperature is not None and abs(temperature - first) > within:
            began = f"run {run.place + 1} ({run.arm}) began at {temperature:.0f} °C"
            self._add_lines_to_note(f"{began}, the first run at {first:.0f} °C")
        return temperature

    async def _store_failed_run(
        self, run: ExperimentRun, why: str, failure: WorkbenchError
    ) -> ExperimentRun:
        """Store a failed run and return it. The run and the other run of its pair are repeated
        later. Raises BenchError if a repetition would not help, or if the pair has failed too
        often."""
        run = await self._store_run(replace(run, state=RunState.FAILED, error=why))
        never = not any(
            r.arm == run.arm and r.state in design.MEASURED_STATES for r in self.experiment.runs
        )
        if isinstance(failure, NoAnswerError) or (isinstance(failure, _HOPELESS_ERRORS) and never):
            raise BenchError(f"{run.arm}: {failure.message}", next_step=failure.next_step)
        tries = design.count_failed_runs(self.experiment, run.pair)
        if tries >= design.MAX_TRIES_PER_PAIR:
            raise BenchError(
                f"{_run_text(run)} failed {tries} times; last error, in arm {run.arm}: "
                f"{failure.message}",
                next_step=failure.next_step,
            )
        return run

    # ---- state

    async def _store_run(self, run: ExperimentRun, phase: str = "") -> ExperimentRun:
        self.experiment = replace(design.add_or_replace_run(self.experiment, run), phase=phase)
        if run.state == RunState.DONE and self.experiment.completed_pairs > run.pair:
            self._update_verdict()
        self._estimate_time_left()
        if run.state in (RunState.DONE, RunState.DISCARDED, RunState.FAILED):
            await self._save_experiment()
        else:
            self._show_experiment(self.experiment)
        return run

    def _update_verdict(self) -> None:
        self.experiment = design.evaluate_experiment(self.experiment, self._results, self._quality)

    def _estimate_time_left(self) -> None:
        left = None
        if self.experiment.state == SeriesState.RUNNING:
            left = design.estimate_remaining_s(self.experiment)
            if left is None and self._first_estimate_s is not None:
                left = max(0.0, self._first_estimate_s - self._limit.elapsed_s)
            if left is not None and self._answers is not None:
                left += self._answers.estimated_remaining_s()
        self.experiment = replace(self.experiment, left_s=left)

    async def _save_experiment(self) -> None:
        await self._save(self.experiment)
        self._show_experiment(self.experiment)

    def _show_phase(self, text: str) -> None:
        self.experiment = replace(self.experiment, phase=text)
        self._show_experiment(self.experiment)

    def _add_lines_to_note(self, *lines: str) -> None:
        known = self.experiment.note.splitlines()
        self.experiment = replace(self.experiment, note="\n".join(dict.fromkeys([*known, *lines])))


def _run_text(run: ExperimentRun) -> str:
    return "discarded run" if run.pair == WARM_UP else f"pair {run.pair + 1}"


def _end_reason(cause: BaseException | None) -> str | None:
    """Return in one line what ended an experiment; None if all of its runs were made."""
    if cause is None:
        return None
    return _failure_line(cause) if isinstance(cause, WorkbenchError) else INTERRUPTED


def _failure_line(failure: WorkbenchError) -> str:
    """Return an error in one line, with its command and next step if it has them."""
    command = f"; command: {failure.command}" if failure.command else ""
    return failure.message + command + (f" ({failure.next_step})" if failure.next_step else "")
