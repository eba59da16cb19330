"""The state of a series of benchmarks: an experiment or a sweep."""

from __future__ import annotations

from enum import StrEnum


class SeriesState(StrEnum):
    """The state of an experiment or a sweep. A stopped or failed series can be resumed."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
