"""A/B experiments: defined against the plan, watched, stopped, gone on with, looked at again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.findings import Level
from workbench.tui.actions.base import Actions

if TYPE_CHECKING:
    from workbench.model.experiment import Arm, Experiment
    from workbench.session.state import SessionState
    from workbench.tui.modals.experiment_form import Wanted
    from workbench.tui.modals.live import ExperimentPage
    from workbench.tui.widgets.status_bar import StatusBar


class ExperimentActions(Actions):
    _trails: dict[int, dict[int, tuple[float, float]]] | None = None  # experiment -> pairs -> change, half width
    status_bar: StatusBar

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
        await self.app.push_screen(self._new_experiment_page(), self._experiment_left)

    def _new_experiment_page(self, fixed: Experiment | None = None) -> ExperimentPage:
        from workbench.tui.modals.live import ExperimentPage

        trail = lambda number: (self._trails or {}).get(number, {})  # noqa: E731
        left = self.status_bar.measured.left
        return ExperimentPage(self.session.state, left, self._act_on_experiment, trail, fixed)

    async def _experiment_left(self, outcome: str | None) -> None:
        if outcome == "new":
            await self.new_experiment()
        elif outcome == "list":
            self.action_experiments()

    def _act_on_experiment(self, page: ExperimentPage, outcome: str) -> None:
        """What is asked of the one that the page shows; the page stays."""
        e = page.shown
        if outcome == "stop":
            from workbench.tui.modals.live import STOPPING

            page.ask(STOPPING)
            self.attempt(lambda: self.session.stop_experiment(), failed=lambda: page.refused(self.session.state))
        elif e is not None:
            pairs = e.spec.pairs + 2 if outcome == "more" else None
            page.ask("going on")
            self.attempt(
                lambda: self.session.resume_experiment(e.id, pairs=pairs),
                self._ended,
                failed=lambda: page.refused(self.session.state),
            )

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
                changes = [
                    PlanChange("flag", n, old.get(n), new.get(n)) for n in {**old, **new} if old.get(n) != new.get(n)
                ]
                about = f"A is the configuration of result #{state.mark_a}, B the plan under edit."
        arms = arms_of(changes)
        if isinstance(arms, str):
            return Arm(), Arm(), f"A and B start from the plan; what runs cannot be A, for {arms}."
        if changes:
            return *arms, about
        return Arm(), Arm(), "A is the plan as it is loaded. Write what B changes."

    def _ask(self, a: Arm, b: Arm, about: str) -> None:
        from workbench.tui.modals.experiment_form import Wanted, experiment_form, parse

        spec, shape = self.session.bench_defaults(), dict(self.session.bench_shape())
        load = f"{spec.requests} requests at {spec.concurrency} streams"

        def estimate(wanted: Wanted) -> float | None:
            try:
                return self.session.experiment_estimate_s(wanted.a, wanted.b, bench=shape, **wanted.options)
            except Exception:  # told where it is started; a form is no place for it
                return None

        async def decided(values: dict[str, str] | None) -> None:
            wanted = parse(values) if values else None
            if isinstance(wanted, Wanted) and values:
                self.session.keep_form("experiment", values)
                await self._start_experiment(wanted, shape)

        last = dict(self.session.last_form("experiment"))
        if a != b:  # what differs now counts for more than what was asked last
            last = {name: value for name, value in last.items() if name not in ("a", "b")}
        self.app.push_screen(experiment_form(a, b, about, load, estimate, last), decided)

    async def _start_experiment(self, wanted: Wanted, shape: Mapping[str, Any]) -> None:
        """Its page stands at once, so that the next key meets it."""
        page = self._new_experiment_page()
        page.ask("starting: both configurations are checked before anything is touched", blank=True)
        await self.app.push_screen(page, self._experiment_left)
        self.attempt(
            lambda: self.session.experiment(wanted.a, wanted.b, bench=shape, **wanted.options),
            self._ended,
            failed=lambda: page.refused(self.session.state),
        )

    def action_experiments(self) -> None:
        self.attempt(lambda: self.session.experiments(), self._listed)

    def _listed(self, found: Sequence[Experiment]) -> None:
        if not found:
            self.say("no experiment has been made on this host", next_step="X makes one")
            return
        from workbench.tui.cells import pad
        from workbench.tui.formats import clock
        from workbench.tui.modals.base import PickModal
        from workbench.tui.widgets.experiment import arm_words

        def text(e: Experiment) -> str:
            arms = f"{' '.join(arm_words(e.spec.a)) or 'plan'} > {' '.join(arm_words(e.spec.b)) or 'plan'}"
            return f"{e.id:>4} {pad(e.state, 8)} {clock(e.unix_s)}  {e.pairs_done} pairs  {arms}  {e.verdict}"

        items = [(str(e.id), text(e), "text") for e in found]

        def chosen(number: str | None) -> None:
            if number is not None:
                self.attempt(lambda: self.session.experiment_called(int(number)), self._show)

        shown = self.session.state.experiment
        picker = PickModal("Experiments", items, chosen=str(shown.id) if shown else "", filter=True, free=False)
        self.app.push_screen(picker, chosen)

    def _show(self, e: Experiment) -> None:
        """One from the list, with its comparison. The one that is carried out now goes on under the eyes."""
        now = self.session.state.experiment
        page = self._new_experiment_page(None if now is not None and now.id == e.id else e)
        self.app.push_screen(page, self._experiment_left)
