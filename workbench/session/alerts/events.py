"""Alerts about events: what became of servers, benchmarks, experiments, sweeps and tunes, from the
changes of the session's state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from workbench.model.series_state import SeriesState
from workbench.model.server_run import ServerState
from workbench.session.history.timeline_events import benchmark_load_text, benchmark_outcome_text

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment
    from workbench.model.server_run import ServerStatus
    from workbench.model.sweep import Sweep
    from workbench.session.state import SessionState

RuleAndSentence = tuple[str, str]  # the name of a rule, and a sentence
WATCHED_FIELDS = frozenset({"servers", "bench", "experiment", "sweep", "host"})
# words in what the lock of a measurement says -> the rule of its end
_RULES_OF_OTHER_MEASUREMENTS = {
    "benchmark": "benchmark-done",
    "experiment": "series-done",
    "sweep": "series-done",
    "tune": "series-done",
}
Series = TypeVar("Series", "Experiment", "Sweep")
_RUNNING_STATES = (ServerState.READY, ServerState.UNRESPONSIVE)
_MIN_ALERT_INTERVAL_S = 60.0  # between two alerts about one server
_LATE_EVENT_S = 60.0  # an end that was that long ago is told with its time


class EventWatch:
    """Finds the events in each new state of one host. What `state` has already is no event."""

    def __init__(self, state: SessionState) -> None:
        self._before = state
        self._servers = {one.run_id: one.state for one in state.servers}
        self._silent_s: dict[str, float] = {}  # when a server was told to be silent

    def events_of_change(
        self, state: SessionState, changed: frozenset[str]
    ) -> Iterator[RuleAndSentence]:
        """Yield the events that follow from the changes since the last state. `changed` are the
        names of the changed fields."""
        before, self._before = self._before, state
        if "servers" in changed:
            yield from self._server_events(state)
        for field, find_events in _EVENT_FINDERS.items():
            if field in changed:
                yield from find_events(before, state)

    def _server_events(self, state: SessionState) -> Iterator[RuleAndSentence]:
        """Yield what became of servers that were seen in another state before. A lost link hides
        the state, and is no change of it."""
        for status in state.servers:
            if status.state is ServerState.UNKNOWN:
                continue
            before = self._servers.get(status.run_id)
            self._servers[status.run_id] = status.state
            if before is None or before is status.state or status.others:
                continue
            for rule, text in _events_of_server(before, status):
                if rule != "server-silent" or self._is_unresponsive_alert_due(status.run_id):
                    yield rule, text

    def _is_unresponsive_alert_due(self, run_id: str) -> bool:
        """Return whether to raise an alert that a server is silent: not within a minute after the
        last one, because a server may answer now and then. If so, record that it is raised now."""
        now_s = time.monotonic()
        if now_s - self._silent_s.get(run_id, -math.inf) < _MIN_ALERT_INTERVAL_S:
            return False
        self._silent_s[run_id] = now_s
        return True


def _events_of_server(before: ServerState, status: ServerStatus) -> Iterator[RuleAndSentence]:
    name = status.title
    reason = f": {status.reason}" if status.reason else ""
    if status.state is ServerState.READY and before is ServerState.STARTING:
        text = f"{name} is READY"
        if status.text_problem:
            text += f"?: {status.text_problem}"
        elif status.ready_after_s:
            text += f" after {status.ready_after_s:.0f} s"
        yield "server-ready", text
    elif status.state is ServerState.FAILED:
        yield "server-failed", f"the start of {name} failed{reason}"
    elif status.state is ServerState.CRASHED:
        yield "server-ended", f"{name} ended unexpectedly{_end_time_text_if_late(status)}{reason}"
    elif status.state is ServerState.UNRESPONSIVE and before in _RUNNING_STATES:
        yield "server-silent", f"{name} no longer answers{reason}"


def _end_time_text_if_late(status: ServerStatus) -> str:
    """Return when a server ended, such as " at 03:15", if that was found at least a minute late,
    such as after a lost link. Otherwise, or if the time is not known, return ""."""
    ended = status.ended_unix_s
    if ended is None or time.time() - ended < _LATE_EVENT_S:
        return ""
    return time.strftime(" at %H:%M", time.localtime(ended))


def _events_of_benchmark(before: SessionState, state: SessionState) -> Iterator[RuleAndSentence]:
    """Yield the end of a benchmark, unless it is a run of a series, which is told as a whole."""
    if not before.bench.running or state.bench.running:
        return
    if before.running_series or state.running_series:
        return
    spec = before.bench.spec
    what = "a server" if spec is None else benchmark_load_text(spec)
    yield (
        "benchmark-done",
        f"the benchmark of {what} has ended: {benchmark_outcome_text(state.bench)}",
    )


def _events_of_other_workbench(
    before: SessionState, state: SessionState
) -> Iterator[RuleAndSentence]:
    """Yield the end of a measurement of another Workbench on the host. Yield nothing while this
    session runs a benchmark, which takes its place."""
    owner = before.host.measured_by
    if owner is None or owner == state.host.measured_by or state.bench.running:
        return
    for word, rule in _RULES_OF_OTHER_MEASUREMENTS.items():
        if word in owner.what:
            yield rule, f"{owner.what} by {owner.owner_text} has ended"
            return


def _find_ended_series(before: Series | None, now: Series | None) -> Series | None:
    """Return the series as it is now, if it was running in the state before and has ended; else
    None."""
    if before is None or now is None or before.id != now.id:
        return None
    has_ended = before.state is SeriesState.RUNNING and now.state is not SeriesState.RUNNING
    return now if has_ended else None


def _events_of_experiment(before: SessionState, state: SessionState) -> Iterator[RuleAndSentence]:
    experiment = _find_ended_series(before.experiment, state.experiment)
    if experiment is None:
        return
    from workbench.session.results.series_rows import experiment_outcome_text

    yield "series-done", f"experiment {experiment.id}: {experiment_outcome_text(experiment)}"


def _events_of_sweep(before: SessionState, state: SessionState) -> Iterator[RuleAndSentence]:
    sweep = _find_ended_series(before.sweep, state.sweep)
    if sweep is None:
        return
    from workbench.model.tune import TUNE
    from workbench.session.results.series_rows import sweep_outcome_text

    kind = "tune" if sweep.kind == TUNE else "sweep"
    yield "series-done", f"{kind} {sweep.id}: {sweep_outcome_text(sweep)}"


# changed field of the state -> the events that follow from it
_EVENT_FINDERS: dict[str, Callable[[SessionState, SessionState], Iterator[RuleAndSentence]]] = {
    "bench": _events_of_benchmark,
    "host": _events_of_other_workbench,
    "experiment": _events_of_experiment,
    "sweep": _events_of_sweep,
}
