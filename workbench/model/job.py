"""The schedulers of cluster jobs, and a job in the list of the user's jobs."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.model.lazy_dataclass import dataclass

# of the schedulers, by the word of `--as`
SCHEDULERS: Mapping[str, str] = {"slurm": "Slurm", "pbs": "PBS"}
ANY_SCHEDULER = " or ".join(SCHEDULERS.values())


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the user that has not ended. A field is None if the scheduler does not report it."""

    scheduler: str  # the word of `--as`
    id: str
    name: str
    state: str  # in the scheduler's words
    queue: str | None = None  # partition or queue
    reason: str | None = None  # why a job waits
    node: str | None = None  # the first one
    gpus: str | None = None  # as they were asked for, such as "gpu:2"
    left_s: int | None = None  # until the walltime is over, or its whole walltime while it waits
    run_id: str | None = None  # of the run of Workbench that is this job
