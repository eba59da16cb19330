"""The comparison of the answers of two servers: A is measured twice, then B, and A again after a
restart. What A differs from itself is what this machine calls equal. The A that was started again
also scores the answers that B wrote, so that this costs no start of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.model.errors import BenchError, InputError, ServerError, WorkbenchError
from workbench.model.experiment import Experiment, ExperimentSpec
from workbench.model.findings import Level
from workbench.model.quality import QualityResult
from workbench.model.secrets import mask_argv, mask_secrets_of_arm
from workbench.session.quality.lineage import Lineage
from workbench.session.quality.measuring import (
    AGAIN_STEP,
    CHANGED_STEP,
    FIRST_STEP,
    JUDGED_STEP,
    Measuring,
    comparison_cost_lines,
)
from workbench.session.quality.scored_server import open_scored_server
from workbench.session.series.experiment_arms import ExperimentArms
from workbench.session.servers.arm_targets import ArmTargets, hold_measurement_locks
from workbench.session.state import QualityView
from workbench.session.uninterrupted import finish_despite_cancellation
from workbench.store import paths
from workbench.store.quality_db import QualityDb

if TYPE_CHECKING:
    from workbench.model.experiment import Arm
    from workbench.quality.own_measure import ItemScores
    from workbench.session.bench.benchmark_load import BenchmarkLoad
    from workbench.session.hosts.other_hosts import OtherHosts
    from workbench.session.plans.plans import Plans
    from workbench.session.plans.presets import Presets
    from workbench.session.quality.measuring import QualityOptions, ReportLine, ReportStep
    from workbench.session.quality.own_scores import OwnMeasureCommand
    from workbench.session.servers.arm_targets import BasePlans, ComparedSide
    from workbench.session.servers.servers import Servers
    from workbench.session.state_holder import StateHolder

_WORK_TITLE = "a comparison of answers"
_STOPPED_AND_RESTORED = "stopped: nothing was stored, and the servers that ran before were restored"
OWN_MEASURE_FAILED = "no scores of your measure"


class QualityComparisons:
    """Compares the answers of two servers of the session's host, or of other hosts."""

    def __init__(
        self,
        core: StateHolder,
        presets: Presets,
        plans: Plans,
        servers: Servers,
        hosts: OtherHosts,
    ) -> None:
        self._core, self._servers = core, servers
        self.lineage = Lineage(presets, servers)
        self.targets = ArmTargets(plans, hosts)
        self._running: asyncio.Task[Any] | None = None

    async def compare_and_show_progress(
        self, a: Arm, b: Arm, bases: BasePlans, options: QualityOptions
    ) -> QualityResult:
        """Compare the answers as `compare_answers` does, and show the progress and the outcome in
        the session's state. `stop` ends it."""
        with self.show_comparison(arm_arguments_text(a), arm_arguments_text(b)):
            result = await self.compare_answers(
                a, b, bases, options, self.report_finished_step, self.show_step
            )
            self.show_finding(result.summary)
            return result

    @contextmanager
    def show_comparison(
        self, a: str, b: str, stopped_text: str = _STOPPED_AND_RESTORED
    ) -> Iterator[None]:
        """Show a comparison in the session's state while the block measures it with
        `report_finished_step` and `show_step`. `a` and `b` name its sides. `stop` ends the task
        that runs the block, and `stopped_text` says what is then left."""
        self._core.update(quality=QualityView(a, b))
        self._running = asyncio.current_task()
        ended = ""
        try:
            yield
        except asyncio.CancelledError:
            ended = stopped_text
            raise
        except WorkbenchError as error:
            ended = error.message
            raise
        finally:
            self._running = None
            self._update_quality_view(running=False, stopping=False, step="", ended=ended)

    async def stop(self) -> None:
        """Stop the comparison that runs. Returns when the servers are restored."""
        work = self._running
        if work is not None:
            if not work.cancelling():  # a second cancellation would end the restoring
                self._update_quality_view(stopping=True)
                work.cancel()
            await asyncio.wait([work])

    def report_finished_step(self, text: str) -> None:
        """Add a line about what was done for the comparison."""
        view = self._core.state.quality
        self._update_quality_view(said=(*view.said, text) if view is not None else (), step="")

    def show_finding(self, text: str) -> None:
        """Show what the comparison has found."""
        self._update_quality_view(found=text)

    def show_step(self, step: str, done: int, total: int) -> None:
        """Show the current step and its progress: how many of its `total` texts are `done`."""
        self._update_quality_view(step=step, done=done, total=total)

    def _update_quality_view(self, **view_fields: Any) -> None:
        if (view := self._core.state.quality) is not None:
            self._core.update(quality=replace(view, **view_fields))

    async def compare_answers(
        self,
        a: Arm,
        b: Arm,
        bases: BasePlans,
        options: QualityOptions,
        report_line: ReportLine,
        on_step: ReportStep = lambda step, done, total: None,
    ) -> QualityResult:
        """Compare the answers of B with those of A, store the result and return it. `bases` are the
        plans that `targets` has looked up. `report_line` hears what is being done, and `on_step`
        also how far it is. Raises WorkbenchError if a server cannot be started or reached. A server
        that fails later ends the measurement, and the result then says so."""
        spec = ExperimentSpec(mask_secrets_of_arm(a), mask_secrets_of_arm(b), {})
        sides = await self.targets.make_checked_sides(spec, {"A": a, "B": b}, bases)
        for line in _warning_lines_of_plans(sides):
            report_line(line)
        began = time.time()
        async with self._lock_hosts_and_servers(sides):
            work = _RunningComparison(spec, sides, options, report_line, on_step)
            measured = await work.carry_out_comparison(self._core.host.name)
        result = work.add_user_scores(
            measured.quality_result((arm_arguments_text(a), arm_arguments_text(b)))
        )
        result = replace(result, unix_s=began, took_s=round(time.time() - began, 3))
        return await self.store_comparison(result)

    async def store_comparison(self, result: QualityResult) -> QualityResult:
        """Store a comparison, and return it with the id under which it is stored."""
        return await asyncio.to_thread(QualityDb(paths.results_db()).add, result)

    @asynccontextmanager
    async def _lock_hosts_and_servers(
        self, sides: Mapping[str, ComparedSide]
    ) -> AsyncIterator[None]:
        """Keep all other work from the servers while the block runs: that of this session, and
        measurements of other Workbenches on the same hosts."""
        async with hold_measurement_locks(sides, _WORK_TITLE):
            with (
                self._core.show_as_busy(_WORK_TITLE),
                self._servers.reserve_servers(_WORK_TITLE),
            ):
                yield


class _RunningComparison:
    """One comparison that is being carried out."""

    def __init__(
        self,
        spec: ExperimentSpec,
        sides: Mapping[str, ComparedSide],
        options: QualityOptions,
        report_line: ReportLine,
        on_step: ReportStep,
    ) -> None:
        self._spec, self._sides, self._report_line = spec, sides, report_line
        self._arms = ExperimentArms(spec, sides, restarts=True)
        self._measuring = Measuring(options, report_line, on_step=on_step)
        self._own: dict[str, ItemScores] = {}  # step -> the scores of the user's own measure
        self._own_problem = ""

    async def carry_out_comparison(self, host: str) -> Measuring:
        """Measure A and B, and restore the servers that ran before. Return the measurements, which
        have the reason if they ended early."""
        parts = self._measuring.parts
        new = Experiment(0, time.time(), host, self._spec, restarts=True)
        new = replace(new, replaces=self._arms.run_id_to_stop())
        await self._arms.prepare_hosts(new)
        try:
            await self._measure_both_sides()
        finally:

            async def restore_servers() -> None:
                # so that the server that ran before is started again, and not B goes on
                with suppress(WorkbenchError):  # then restore_host_and_report says what still runs
                    await self._arms.stop_server_and_revert_settings()
                parts.notes += tuple(await self._arms.restore_host_and_report(new))

            await finish_despite_cancellation(restore_servers())
        return self._measuring

    async def _measure_both_sides(self) -> None:
        options = self._measuring.options
        for side in self._sides.values():
            if side.measured_run_id_or_url is not None:
                async with (
                    side.open_benchmark_load(side.measured_run_id_or_url) as load,
                    open_scored_server(load) as server,
                ):
                    await self._measuring.check_no_other_clients(server, anyway=options.anyway)
        await self._measure_step_on_server(FIRST_STEP)
        await self._measure_step_or_end_early(CHANGED_STEP)
        standing = self._sides["A"].measured_run_id_or_url is not None
        if standing and self._measuring.can_score_answers_of_b():
            await self._score_answers_of_b()
        elif options.restart and not standing:
            await self._measure_step_or_end_early(AGAIN_STEP)

    async def _score_answers_of_b(self) -> None:
        """Let an A that still runs score the answers of A and of B. If it does not answer any more,
        a note says so, and the comparison goes on without these scores."""
        if self._measuring.parts.problems:
            return
        try:
            await self._measure_step_on_server(JUDGED_STEP)
        except (BenchError, ServerError) as error:
            self._measuring.record_unscored_answers(error.message)

    async def _measure_step_or_end_early(self, step: str) -> None:
        """Measure a step after A was measured. A server that does not start or answer ends the
        comparison, and what was measured before is kept."""
        if self._measuring.parts.problems:
            return
        try:
            await self._measure_step_on_server(step)
        except (BenchError, ServerError) as error:
            self._measuring.end_measuring_early(f"{step}: {error.message}")

    async def _measure_step_on_server(self, step: str) -> None:
        """Start the server of a step, or use the one that runs, and measure it."""
        name = CHANGED_STEP if step == CHANGED_STEP else FIRST_STEP
        side = self._sides[name]
        run_id = side.measured_run_id_or_url
        if run_id is None:
            self._report_line(f"{step}: starting")
            run_id = await self._arms.start_or_reuse_server(name)
            await self._arms.await_server_and_apply_settings(
                name, run_id, lambda text: self._report_line(f"{step}: {text}")
            )
        async with side.open_benchmark_load(run_id) as load, open_scored_server(load) as server:
            await self._measuring.measure_step(
                step, server, may_be_shared=side.measured_run_id_or_url is not None
            )
            if step in (FIRST_STEP, CHANGED_STEP):
                await self._run_user_score_command(step, load)
            if step == AGAIN_STEP and self._measuring.can_score_answers_of_b():
                await self._measuring.measure_step(JUDGED_STEP, server, may_be_shared=False)

    async def _run_user_score_command(self, step: str, load: BenchmarkLoad) -> None:
        """Run the user's own measure on the server of a step. If it fails, the comparison goes on,
        and a note says why."""
        command = self._measuring.options.own
        if command is None or self._own_problem:
            return
        from workbench.session.quality.own_scores import run_score_command

        try:
            self._own[step] = await run_score_command(
                command, load, self._report_line, f"{step}, your measure"
            )
        except (BenchError, InputError) as error:
            self._own_problem = f"{OWN_MEASURE_FAILED} of {step}: {error.message}"
            self._report_line(self._own_problem)

    def add_user_scores(self, result: QualityResult) -> QualityResult:
        """Return the result with the comparison of the user's own measure of both sides, or with a
        note on why there is none. Without such a measure, return the result as it is."""
        from workbench.quality.own_measure import add_user_measure_to_result, compare_item_scores

        command, problem = self._measuring.options.own, self._own_problem
        if command is not None and len(self._own) == len((FIRST_STEP, CHANGED_STEP)):
            try:
                found = compare_item_scores(
                    self._own[FIRST_STEP], self._own[CHANGED_STEP], mask_argv(command.argv)
                )
                return add_user_measure_to_result(result, found)
            except InputError as error:
                problem = f"{OWN_MEASURE_FAILED}: {error.message}"
        return replace(result, notes=(problem, *result.notes)) if problem else result


def comparison_plan_lines(
    a: Arm, b: Arm, bases: BasePlans, options: QualityOptions, engine_name: str | None = None
) -> list[str]:
    """Return lines on what a comparison of answers will measure, and in how many requests.
    `engine_name` is the engine of A, if A runs already and its engine is known."""
    from workbench import engines
    from workbench.quality.lanes import interface_class

    prefill = None
    engine = engines.find_engine(bases["A"].engine if "A" in bases else engine_name or "")
    if engine is not None and engine.score_interface is not None:
        prefill = interface_class(engine.score_interface).prefill
    restarted = options.restart and "A" in bases
    judged = options.judged and (restarted or "A" not in bases)
    return [
        f"A: {arm_arguments_text(a)}",
        f"B: {arm_arguments_text(b)}",
        *comparison_cost_lines(prefill, options, restarted=restarted, judged=judged),
        *([_score_command_line(options.own)] if options.own is not None else []),
    ]


def _warning_lines_of_plans(sides: Mapping[str, ComparedSide]) -> Iterator[str]:
    """Yield what is doubtful about the plans of the servers that are started, each sentence once: B
    may fail only after A was measured for minutes."""
    said: set[str] = set()
    for name, side in sides.items():
        findings = side.editor.findings() if side.editor is not None else ()
        for finding in findings:
            if finding.level is Level.WARN and finding.text not in said:
                said.add(finding.text)
                fix = f" — {finding.fix}" if finding.fix else ""
                yield f"{name}: warning: {finding.text}{fix}"


def _score_command_line(own: OwnMeasureCommand) -> str:
    return f"your measure, of A and then of B, at most {own.minutes:g} minutes each: {own.shown_command}"


def arm_arguments_text(arm: Arm) -> str:
    """Return the arguments of one arm of a comparison of answers as text, with secrets masked. ""
    for an arm without target and changes."""
    return " ".join(mask_secrets_of_arm(arm).target_and_change_texts)
