"""The keys of A/B experiments: start, show, stop, resume and list them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.model.counts import count_of
from workbench.model.errors import InputError, SettingsError, WorkbenchError
from workbench.model.experiment import AdvisedChange, Arm, Experiment
from workbench.model.findings import Level
from workbench.model.plan import PlanDifference
from workbench.model.settings import GpuSettings
from workbench.tui.cells import pad_text
from workbench.tui.controllers.series import (
    ChangeLookup,
    PreparedResume,
    RunMeasurement,
    SeriesController,
)
from workbench.tui.formats import time_of_day_text
from workbench.tui.modals.base import PickModal
from workbench.tui.modals.experiment_form import (
    RequestedExperiment,
    arms_from_plan_differences,
    experiment_form,
    metric_choice_label,
    parse_experiment_form,
)
from workbench.tui.modals.form import Values
from workbench.tui.modals.gpu_confirm import PlannedChange
from workbench.tui.modals.how_sure import ANSWERS, FORM, SHOW, experiment_precision_question
from workbench.tui.pages.live import ExperimentPage, MeasurementPage
from workbench.tui.panes.compare import Compare
from workbench.tui.widgets.experiment import format_arm_as_words

MORE_PAIRS = 2


class ExperimentController(SeriesController[Experiment]):
    STARTING = "starting: both configurations are checked before anything is changed"

    @property
    def latest_measurement(self) -> Experiment | None:
        return self.state.experiment

    def make_measurement_page(self, chosen: Experiment | None = None) -> ExperimentPage:
        return ExperimentPage(
            self.state,
            self.services.progress.series_remaining_s,
            self.run_page_action,
            self.pane_of_type(Compare).interval_histories.interval_history,
            chosen,
        )

    def open_latest_experiment(self) -> None:
        """Open the page of the experiment that the Compare pane shows."""
        if self.latest_measurement is None:
            self.show_message(
                "the Compare pane shows no experiment",
                next_step="press X to start an experiment, or o in the Compare pane to list all "
                "experiments",
            )
            return
        self.services.pages.open(self.make_measurement_page())

    async def stop_measurement(self) -> None:
        await self.session.experiments.stop()

    def prepare_resume(
        self, page: MeasurementPage, action: str
    ) -> PreparedResume[Experiment] | None:
        e = page.shown_measurement
        if not isinstance(e, Experiment):
            return None
        pairs: int | None = None
        if action == "more":
            pairs = e.spec.pairs + MORE_PAIRS
        experiments, gpu = self.session.experiments, self.controllers.gpu

        async def look_up_setting_changes() -> PlannedChange:
            return await gpu.planned_change_from_outcomes(
                await experiments.preview_resumed_setting_changes(e)
            )

        changes: ChangeLookup | None = None
        if _has_arm_with_gpu_settings(e.spec.a, e.spec.b):
            changes = look_up_setting_changes
        return PreparedResume("resuming", lambda _: experiments.resume(e.id, pairs=pairs), changes)

    def _start_experiment(
        self,
        a: Arm,
        b: Arm,
        run_experiment: RunMeasurement[Experiment],
        twin_hosts: Sequence[str] = (),
    ) -> None:
        """Start an experiment by calling `run_experiment`. If an arm has GPU settings, show the
        commands first, and start it if the user agrees."""

        async def look_up_setting_changes() -> PlannedChange:
            planned = await self.session.experiments.preview_setting_changes(a, b, twin_hosts)
            before = {(o.gpu_index, o.setting): o.before for o in self.state.alterations}
            shown = []
            for outcome in planned:
                key = outcome.command.gpu_index, outcome.command.setting
                shown.append(replace(outcome, before=before.get(key, outcome.before)))
            return await self.controllers.gpu.planned_change_from_outcomes(shown)

        changes: ChangeLookup | None = None
        if _has_arm_with_gpu_settings(a, b):
            changes = look_up_setting_changes
        self.start_measurement_after_consent(changes, run_experiment)

    def end_message_and_next_step(self, measured: Experiment) -> tuple[str, str]:
        outcome = measured.verdict or measured.error or measured.state
        return f"experiment {measured.id}: {outcome}", "press X to see the experiment"

    # a quick one
    async def open_measurement_page_or_form(self) -> None:
        """Open the page of the running experiment. If no experiment is running and the plan differs
        from the running server, or GPU settings are altered, ask how precisely to measure the
        effect of this change, and measure it. Otherwise open the last experiment, or the form of a
        new one."""
        found: tuple[Arm, Arm] | None = None
        if self.state.plan is not None and self.latest_measurement not in self.state.running_series:
            found = self._arms_of_plan_or_gpu_changes()
        if found is None:
            await super().open_measurement_page_or_form()
        elif self.can_measure_or_show_message():
            await self._ask_precision_of_change(*found)

    def _arms_of_plan_or_gpu_changes(self) -> tuple[Arm, Arm] | None:
        """Return the arms (A, B) of an experiment about what the user has changed. A is the running
        server and B the plan, or A has the original GPU settings and B the altered ones. Return
        None if nothing is changed, if no server is READY, or if the change cannot be written as an
        arm."""
        if self.state.ready_server is None:
            return None
        try:
            changes = self.session.servers.changes_against_running()
            if changes:
                return arms_from_plan_differences(changes)
        except WorkbenchError:  # the form explains what A cannot be
            return None
        altered: dict[str, Any] = {}
        for a in self.state.alterations:
            if altered.setdefault(a.setting, a.now) != a.now:
                return None  # an arm has one value for all GPUs
        if not altered or self.state.host.sudo_password:
            return None
        return Arm(), Arm(gpu=GpuSettings(altered))

    async def ask_precision_and_run_experiment(
        self,
        a: Arm,
        b: Arm,
        sentences: Sequence[str],
        advice: AdvisedChange,
        options: Mapping[str, Any],
    ) -> None:
        """Ask how many pairs of runs, or which precision, the user wants for the comparison of A
        and B, then run the experiment. The question shows `sentences`. `options` are the
        other options of the experiment, and its verdict is stored with `advice`, the advised change
        that B tests."""

        def make_run_for_answer(answer: Mapping[str, Any]) -> RunMeasurement[Experiment]:
            return lambda: self.session.experiments.run_experiment(
                a, b, advice=advice, **options, **answer
            )

        def open_full_form() -> None:
            self._open_suggested_form(a, b, sentences[0], advice, options)

        await self._ask_experiment_precision(
            a, b, sentences, options, make_run_for_answer, open_full_form
        )

    async def _ask_precision_of_change(self, a: Arm, b: Arm) -> None:
        spec, shape = (
            self.session.bench.default_spec(),
            dict(self.session.bench.default_spec_fields()),
        )
        load = f"{count_of(spec.requests, 'request')} at {count_of(spec.concurrency, 'stream')}"
        about = [f"Each run is {load}; tok/s decides. The first run is discarded."]
        if b.gpu:
            about.append(
                "The GPU settings are reverted first, B sets them for its runs, and they are "
                "reverted at the end."
            )
        else:
            about.append(
                "A is the running server, B the plan under edit. The server restarts for every run."
            )

        def make_run_for_answer(answer: Mapping[str, Any]) -> RunMeasurement[Experiment]:
            return lambda: self._revert_if_needed_and_run(a, b, bench=shape, **answer)

        await self._ask_experiment_precision(
            a, b, about, {"bench": shape}, make_run_for_answer, self.open_measurement_form
        )

    async def _ask_experiment_precision(
        self,
        a: Arm,
        b: Arm,
        sentences: Sequence[str],
        options: Mapping[str, Any],
        make_run_for_answer: Callable[[Mapping[str, Any]], RunMeasurement[Experiment]],
        open_full_form: Callable[[], Awaitable[None] | None],
    ) -> None:
        """Ask how many pairs of runs, or which precision, the user wants for the comparison of A
        and B. Then start the function that `make_run_for_answer` returns for the answer, or call
        `open_full_form` if the user wants more choices. The question shows `sentences` and the
        duration, which is estimated from `options`."""

        def estimate_s(answer: Mapping[str, Any]) -> float | None:
            try:
                return self.session.experiments.estimate_duration_s(a, b, **options, **answer)
            except WorkbenchError:  # the start shows the error
                return None

        async def start_or_open_as_answered(answer: str | None) -> None:
            if answer == FORM:
                shown = open_full_form()
                if shown is not None:
                    await shown
            elif answer == SHOW:
                self.open_latest_experiment()
            elif answer is not None:
                self._start_experiment(a, b, make_run_for_answer(ANSWERS[answer][1]))

        cost, earlier = self._warnings_and_answers_cost_text(a, b, options), None
        if cost:
            sentences = (*sentences, cost)
        if self.latest_measurement is not None:
            earlier = self.latest_measurement.id
        await self.app.push_screen(
            experiment_precision_question(a, b, sentences, estimate_s, earlier),
            start_or_open_as_answered,
        )

    def _warnings_and_answers_cost_text(self, a: Arm, b: Arm, options: Mapping[str, Any]) -> str:
        """Return sentences that say which values the engine may not have, and what comparing the
        answers adds. Return "" if there is neither, or if the start of the experiment will fail
        and say why."""
        experiments = self.session.experiments
        try:
            warnings = experiments.doubtful_value_warnings(a, b)
            cost = experiments.answer_comparison_cost_text(a, b, **options)
        except WorkbenchError:
            return ""
        return ". ".join(filter(None, (*warnings, cost)))

    async def _revert_if_needed_and_run(self, a: Arm, b: Arm, **options: Any) -> Experiment:
        """Run an experiment that compares the arms A and B. If B has GPU settings, first revert the
        altered settings, so that A runs without them. Raise SettingsError if they cannot be
        reverted."""
        if b.gpu:
            report = await self.session.gpu.revert_settings()
            if not report.ok:
                text = "the GPU settings could not be reverted, so A cannot be measured"
                step = "press r to try again and see which GPU settings are still altered"
                raise SettingsError(text, host=self.state.host.name, next_step=step)
        return await self.session.experiments.run_experiment(a, b, **options)

    # a new one
    async def open_measurement_form(self) -> None:
        if self.state.plan is None:
            self.show_message(
                "an experiment needs a plan, and none is loaded",
                Level.WARN,
                "press p to load a preset",
            )
        elif self.can_measure_or_show_message():
            self.run_in_background(
                self._suggest_arms_and_source_sentence(),
                lambda found: self._open_suggested_form(*found),
            )

    async def _suggest_arms_and_source_sentence(self) -> tuple[Arm, Arm, str]:
        """Return what the form of an experiment suggests: arm A, arm B, and a sentence that says
        where they come from. A is the running server, or else the configuration of the result
        marked A. B is the plan. Both arms are empty if nothing differs, or if the difference
        cannot be written as arms."""
        state = self.state
        changes = self.run_or_show_error(self.session.servers.changes_against_running, ())
        about = "A is the running server, B the plan under edit."
        if not changes and state.mark_a is not None and state.plan is not None:
            result = await self.session.results.get(state.mark_a)
            if result.conditions.engine == state.plan.plan.engine:
                new = state.plan.plan.flag_values
                changes = _flag_differences(result.conditions.flags, new)
                about = f"A is the configuration of result #{state.mark_a}, B the plan under edit."
        if not changes:
            return Arm(), Arm(), "A is the plan as it is loaded. Write into B what B changes."
        try:
            return *arms_from_plan_differences(changes), about
        except InputError as error:
            return (
                Arm(),
                Arm(),
                (f"A and B start from the plan. The running server cannot be A: {error.message}."),
            )

    def _open_suggested_form(
        self,
        a: Arm,
        b: Arm,
        source_sentence: str,
        advice: AdvisedChange | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the form of a new experiment with A and B as suggestions, and start the experiment
        if the user accepts. `source_sentence` says where A and B come from. `options` has the load
        and the metric for testing the advised change `advice`; with None, the load is that of the
        next benchmark."""
        given = options or {"bench": self.session.bench.default_spec_fields()}
        shape = dict(given["bench"])
        requests = "as many requests as fit"
        if "requests" in shape:
            requests = count_of(shape["requests"], "request")
        load = f"{requests} at {count_of(shape.get('concurrency', 1), 'stream')}"

        def estimate_experiment_s(wanted: RequestedExperiment) -> float | None:
            try:
                return self.session.experiments.estimate_duration_s(
                    wanted.a, wanted.b, bench=shape, **self._experiment_run_options(wanted)
                )
            except WorkbenchError:  # the start shows the error
                return None

        def warnings_and_cost_text(wanted: RequestedExperiment) -> str:
            return self._warnings_and_answers_cost_text(
                wanted.a, wanted.b, {"bench": shape, **self._experiment_run_options(wanted)}
            )

        def start_experiment_from_form(values: Values | None) -> None:
            if values is not None:
                wanted = parse_experiment_form(values)
                self.session.screen_memory.store_form("experiment", values)
                arms, options = (wanted.a, wanted.b), self._experiment_run_options(wanted)
                if advice is not None and arms == (a, b):
                    options["advice"] = advice
                self._start_experiment(
                    *arms,
                    lambda: self.session.experiments.run_experiment(*arms, bench=shape, **options),
                    options.get("twins", ()),
                )

        last = dict(self.session.screen_memory.last_form_values("experiment"))
        if "metric" in given:
            last["metric"] = metric_choice_label(given["metric"])
        if a != b:  # the present difference is a better suggestion than the last form's
            last.pop("a", None)
            last.pop("b", None)
        self.app.push_screen(
            experiment_form(
                a, b, source_sentence, load, estimate_experiment_s, warnings_and_cost_text, last
            ),
            start_experiment_from_form,
        )

    def _experiment_run_options(self, wanted: RequestedExperiment) -> dict[str, Any]:
        """Return the keyword arguments for `run_experiment` from the accepted form. If the user
        named a twin, a second host of the same type, `twins` is the pair (present host, twin)."""
        options = dict(wanted.options)
        if twin := options.pop("twin", None):
            options["twins"] = (self.state.host.name, twin)
        return options

    # earlier ones
    def pick_earlier_measurement(self) -> None:
        self.run_in_background(lambda: self.session.experiments.list(), self._show_experiment_list)

    def _show_experiment_list(self, stored: Sequence[Experiment]) -> None:
        found = [e for e in stored if e.was_run_on(self.state.host.name)]
        if not found:
            self.show_message(
                "no experiment has been run on this host",
                next_step="press X to start an experiment",
            )
            return

        def open_chosen_experiment(number: str | None) -> None:
            if number is not None:
                self.run_in_background(
                    lambda: self.session.experiments.get(int(number)), self._open_picked_experiment
                )

        items = [(str(e.id), _experiment_list_text(e), "text") for e in found]
        shown = ""
        if self.latest_measurement is not None:
            shown = str(self.latest_measurement.id)
        picker = PickModal("Experiments", items, chosen=shown, filter=True, free=False)
        self.app.push_screen(picker, open_chosen_experiment)

    def _open_picked_experiment(self, experiment: Experiment) -> None:
        """Open the page of an experiment that the user chose from a list. The page follows the
        running experiment only if the user chose that one."""
        if self._is_latest_experiment(experiment):
            self.services.pages.open(self.make_measurement_page())
        else:
            self.services.pages.open(self.make_measurement_page(experiment))

    def _is_latest_experiment(self, experiment: Experiment) -> bool:
        """Return whether it is the experiment that runs or was shown last."""
        return self.latest_measurement is not None and self.latest_measurement.id == experiment.id


def _has_arm_with_gpu_settings(a: Arm, b: Arm) -> bool:
    return bool(a.gpu or b.gpu)


def _flag_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[PlanDifference]:
    changes = []
    for name in {**old, **new}:
        before, now = old.get(name), new.get(name)
        if before != now:
            changes.append(PlanDifference("flag", name, before, now))
    return changes


def _experiment_list_text(e: Experiment) -> str:
    a, b = (" ".join(format_arm_as_words(arm)) or "plan" for arm in (e.spec.a, e.spec.b))
    return (
        f"{e.id:>4} {pad_text(e.state, 8)} {time_of_day_text(e.unix_s)}  {count_of(e.completed_pairs, 'pair'):<7}  "
        f"{a} > {b}  {e.verdict}"
    )
