"""The experiment that compares the best value of a sweep with the value before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from workbench.bench.metric_changes import BETTER
from workbench.bench.runner import BenchCancelled
from workbench.model.bench import format_half_width
from workbench.model.errors import WorkbenchError
from workbench.model.series_state import SeriesState
from workbench.session.series.conduct import SeriesStopped

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment
    from workbench.session.series.sweep_progress import SweepProgress

_SPEED_METRIC = "output_tok_s"


async def confirm_value_by_experiment(
    progress: SweepProgress,
    label: str,
    baseline_text: str,
    pending_experiment: Awaitable[Experiment],
) -> None:
    """Carry out the experiment `pending_experiment` of the value with this label, and note its
    outcome. `baseline_text` says in words what the value is compared with. Raises SeriesStopped or
    BenchCancelled if the experiment did not come to its end, so that the sweep can be resumed."""
    try:
        experiment = await pending_experiment
    except (BenchCancelled, SeriesStopped):
        raise
    except WorkbenchError as error:
        return progress.add_note(f"{label} was not compared in pairs: {error.message}")
    if experiment.state == SeriesState.FAILED:
        progress.change_sweep(experiment_id=experiment.id)
        return progress.add_note(f"{label} was not compared in pairs: {experiment.error}")
    confirmed, compared = False, experiment.comparison
    if compared is not None:
        is_better = compared.metrics[0].verdict == BETTER
        confirmed = is_better and experiment.state == SeriesState.DONE
        if compared.quality_verdict:
            progress.change_sweep(quality=f"{label}: {compared.quality}")
    progress.change_sweep(experiment_id=experiment.id, confirmed=confirmed)
    check_experiment_ended(progress, label, experiment)
    outcome = experiment.verdict or experiment.state
    return progress.add_note(
        f"{label} against {baseline_text}: {outcome}{_speed_change_text(experiment)}"
    )


def check_experiment_ended(progress: SweepProgress, label: str, experiment: Experiment) -> None:
    """Raise CancelledError, BenchCancelled or SeriesStopped if an experiment of a sweep was
    cancelled or stopped before its end."""
    task = asyncio.current_task()
    # a cancelled experiment ends in order, and returns
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    progress.raise_if_cancelled()
    if experiment.state == SeriesState.STOPPED:
        raise SeriesStopped(f"the comparison of {label} in pairs was stopped: {experiment.error}")


def _speed_change_text(experiment: Experiment) -> str:
    """Return the change of the tok/s of an experiment that decides by another metric, as text such
    as "; tok/s +3.1 % ± 0.4"; "" if it decides by the tok/s or the change is not known."""
    if experiment.comparison is None or experiment.spec.metric == _SPEED_METRIC:
        return ""
    speed = next((m for m in experiment.comparison.metrics if m.metric == _SPEED_METRIC), None)
    if speed is None or speed.change_pct is None or speed.interval_pct is None:
        return ""
    return f"; tok/s {speed.change_pct:+.1f} % ± {format_half_width(speed.interval_pct)}"
