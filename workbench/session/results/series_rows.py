"""Which results belong to an experiment or a sweep, with its verdict, so that a list can show the
series as one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from workbench.model.errors import WorkbenchError
from workbench.session.bench.result_rows import experiment_id_and_arm
from workbench.session.bench.row import SeriesView
from workbench.store import paths

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment
    from workbench.model.sweep import Sweep
    from workbench.session.bench.row import BenchRow


def series_by_result_id(rows: Sequence[BenchRow]) -> Mapping[int, SeriesView]:
    """Return {result id: its experiment or sweep} for those of `rows` that belong to one."""
    arms = {row.id: experiment_id_and_arm(row.tags) for row in rows}
    found: dict[int, SeriesView] = dict(_sweep_views_by_result_id({row.id for row in rows}))
    numbers = {arm[0] for arm in arms.values() if arm is not None}
    if not numbers:
        return found
    from workbench.store.experiments import ExperimentsDb  # most lists contain no experiment

    db = ExperimentsDb(paths.results_db())
    views: dict[int, SeriesView] = {}
    for number in numbers:
        views[number] = SeriesView("A/B", number, "")
        with suppress(WorkbenchError):  # a damaged one: its runs are still one row
            views[number] = SeriesView("A/B", number, experiment_outcome_text(db.get(number)))
    return {**found, **{row: views[arm[0]] for row, arm in arms.items() if arm is not None}}


def experiment_outcome_text(experiment: Experiment) -> str:
    return experiment.verdict or experiment.error or str(experiment.state)


def _sweep_views_by_result_id(shown_ids: set[int]) -> Mapping[int, SeriesView]:
    if not shown_ids or not paths.sweeps_dir().is_dir():
        return {}
    from workbench.store.sweeps import SweepStore

    found = {}
    for sweep in SweepStore(paths.sweeps_dir()).list():
        view = SeriesView("sweep", sweep.id, sweep_outcome_text(sweep))
        ids = (number for point in sweep.points for number in point.result_ids)
        found.update({number: view for number in ids if number in shown_ids})
    return found


def sweep_outcome_text(sweep: Sweep) -> str:
    """Return as text what a sweep varied, and why it failed, what it found or else its state."""
    said = sweep.error or sweep.knee_text or str(sweep.state)
    return f"{sweep.name}: {said}"
