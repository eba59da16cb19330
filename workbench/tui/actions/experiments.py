"""A/B experiments: defined against the plan, watched, stopped, gone on with, looked at again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.findings import Level
from workbench.tui.actions.base import Actions

if TYPE_CHECKING:
    from workbench.model.experiment import Arm, Experiment
    from workbench.session.state import SessionState
    from workbench.tui.modals.experiment_form import Wanted


class ExperimentActions(Actions):
    _trails: dict[int, dict[int, tuple[float, float]]] | None = None  # experiment -> pairs -> change, half width

    def series_changed(self, state: SessionState) -> None:
        """A page that is open on an experiment or a sweep is drawn again; how an interval narrowed is kept."""
        e = state.experiment
        if e is not None and e.comparison is not None:
            for metric in e.comparison.metrics:
                if metric.metric == e.spec.metric and metric.change_pct is not None and metric.interval_pct is not None:
                    if self._trails is None:
                        self._trails = {}
                    seen = self._trails.setdefault(e.id, {})
                    seen[e.pairs_done] = (metric.change_pct, metric.interval_pct)
        changed = getattr(self.app.screen, "state_changed", None)
        if changed is not None:
            changed(state)

    async def action_experiment(self) -> None:
        """The one that runs or was last; the form for a new one where there is none."""
        if self.session.state.experiment is not None:
            await self.action_experiment_page()
        else:
            await self.new_experiment()

    async def action_experiment_page(self) -> None:
        e = self.session.state.experiment
        if e is None:
            self.say("no experiment is shown", next_step="X makes one, o in 5 lists them")
            return
        from workbench.tui.modals.live import ExperimentPage

        trail = lambda: (self._trails or {}).get(self._shown_id, {})  # noqa: E731
        await self.app.push_screen(ExperimentPage(self.session.state, trail), self._experiment_chosen)

    @property
    def _shown_id(self) -> int:
        e = self.session.state.experiment
        return e.id if e is not None else -1

    def _experiment_chosen(self, outcome: str | None) -> None:
        e = self.session.state.experiment
        if outcome == "stop":
            self.attempt(lambda: self.session.stop_experiment(), lambda _: self._look_again())
        elif outcome == "resume" and e is not None:
            self._resume(e)
        elif outcome == "more" and e is not None:
            self._resume(e, pairs=e.spec.pairs + 2)
        elif outcome == "new":
            self.call_later(self.new_experiment)
        elif outcome == "list":
            self.call_later(self.action_experiments)

    def _look_again(self) -> None:
        self.call_later(self.action_experiment_page)

    def _resume(self, e: Experiment, pairs: int | None = None) -> None:
        self.attempt(lambda: self.session.resume_experiment(e.id, pairs=pairs), self._ended)
        self.set_timer(0.2, self._look_again)

    def _ended(self, e: Experiment) -> None:
        """The page is drawn by the state; without it the outcome is told."""
        from workbench.tui.modals.live import ExperimentPage

        if not isinstance(self.app.screen, ExperimentPage) and e.state != "running":
            self.say(f"experiment {e.id}: {e.verdict or e.error or e.state}", next_step="X shows it")

    async def new_experiment(self) -> None:
        state = self.session.state
        if state.plan is None:
            self.say("there is no plan to experiment with", Level.WARN, "p picks a preset")
            return
        if state.bench.running:
            self.say("something is being measured", next_step="K cancels it")
            return
        self.attempt(self._arms(), lambda found: self._ask(*found))

    async def _arms(self) -> tuple[Arm, Arm, str]:
        """A: what runs, else result A. B: the plan under edit. Both are texts to be changed in the form."""
        from workbench.model.experiment import Arm
        from workbench.model.plan import PlanChange
        from workbench.tui.modals.experiment_form import arms_of

        state = self.session.state
        changes = list(self.try_now(self.session.changes_against_running) or ())
        about = "A is what runs now, B the plan under edit."
        if not changes and state.mark_a is not None and state.plan is not None:
            result = await self.session.result(state.mark_a)
            if result.conditions.engine == state.plan.plan.engine:
                old, new = result.conditions.flags, {f.name: f.value for f in state.plan.plan.flags}
                changes = [PlanChange("flag", n, old.get(n), new.get(n)) for n in {**old, **new}
                           if old.get(n) != new.get(n)]  # fmt: skip
                about = f"A is the configuration of result #{state.mark_a}, B the plan under edit."
        arms = arms_of(changes)
        if isinstance(arms, str):
            return Arm(), Arm(), f"A and B start from the plan; what runs cannot be A, for {arms}."
        if not changes:
            about = "A is the plan as it is loaded. Write what B changes."
        return *arms, about

    def _ask(self, a: Arm, b: Arm, about: str) -> None:
        from workbench.tui.modals.experiment_form import Wanted, experiment_form, parse

        spec = self.session.bench_defaults()
        load = f"{spec.requests} requests at {spec.concurrency} streams"

        def estimate(wanted: Wanted) -> float | None:
            try:
                return self.session.experiment_estimate_s(wanted.a, wanted.b, **wanted.options)
            except Exception:  # told where it is started; a form is no place for it
                return None

        def decided(values: dict[str, str] | None) -> None:
            wanted = parse(values) if values else None
            if isinstance(wanted, Wanted):
                self.attempt(lambda: self.session.experiment(wanted.a, wanted.b, **wanted.options), self._ended)
                self.set_timer(0.2, self._look_again)

        self.app.push_screen(experiment_form(a, b, about, load, estimate), decided)

    def action_experiments(self) -> None:
        self.attempt(lambda: self.session.experiments(), self._listed)

    def _listed(self, found: Sequence[Experiment]) -> None:
        if not found:
            self.say("no experiment has been made on this host", next_step="X makes one")
            return
        from workbench.tui.formats import clock
        from workbench.tui.modals.base import PickModal
        from workbench.tui.paint import pad
        from workbench.tui.widgets.experiment import arm_words

        def text(e: Experiment) -> str:
            arms = f"{' '.join(arm_words(e.spec.a)) or 'plan'} > {' '.join(arm_words(e.spec.b)) or 'plan'}"
            return f"{e.id:>4} {pad(e.state, 8)} {clock(e.unix_s)}  {e.pairs_done} pairs  {arms}  {e.verdict}"

        by_id = {str(e.id): e for e in found}
        items = [(str(e.id), text(e), "text") for e in found]

        def chosen(number: str | None) -> None:
            if number in by_id:
                self.show_experiment(by_id[str(number)])

        picker = PickModal("Experiments", items, chosen=str(self._shown_id), filter=True, free=False)
        self.app.push_screen(picker, chosen)

    def show_experiment(self, e: Experiment) -> None:
        """One from the list. While another runs, only that one can be gone on with later."""
        from dataclasses import replace

        from workbench.tui.modals.live import ExperimentPage

        state = replace(self.session.state, experiment=e)
        page = ExperimentPage(state, lambda: (self._trails or {}).get(e.id, {}))
        page.fixed = True

        def chosen(outcome: str | None) -> None:
            if outcome == "resume":
                self._resume(e)
            elif outcome == "more":
                self._resume(e, pairs=e.spec.pairs + 2)
            elif outcome is not None:
                self._experiment_chosen(outcome)

        self.app.push_screen(page, chosen)
