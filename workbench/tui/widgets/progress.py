"""The rows above the footer about running work, such as a measurement or a start: what is running,
its progress, the time left, what it waits for, and the key that stops it. Without such work there
are no rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerState
from workbench.tui.cells import Painted, Row, Run, justify_row, row_width
from workbench.tui.countdown import Countdown
from workbench.tui.formats import (
    bench_progress_text,
    duration_text,
    gauge_text,
    is_load_check_running,
    number_text,
    remaining_time_text,
    time_of_day_text,
)
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.bench import BenchProgress
    from workbench.model.measurement_owner import MeasurementOwner
    from workbench.model.server_run import ServerStatus
    from workbench.session.state import ModelWorkView, QualityView, SessionState

GAUGE_CELLS = (6, 24)  # fewest and most
MOST_ROWS = 2


@dataclass(frozen=True, slots=True)
class RunningWork:
    """Running work, such as a benchmark, with the texts for one row about it. `fraction` is the
    completed fraction from 0 to 1, None if unknown. `left` is a text about the time left."""

    what: str
    how_far: str
    left: str = ""
    fraction: float | None = None
    key: str = ""  # that stops the work
    stops: str = "stops"
    sign: str = "~"

    def make_row(self, width: int) -> Row:
        """Return the row about this work in `width` cells. The progress bar takes the cells that
        the texts leave."""
        left: Row = ((f"{self.sign} ", "warn"), (self.what, "warnb"), (f"  {self.how_far}", "text"))
        right: list[Run] = []
        if self.left:
            right.append((f"  {self.left}", "strong"))
        if self.key:
            right += [(f"  {self.key} ", "key"), (self.stops, "dim")]
        room = min(GAUGE_CELLS[1], width - row_width((*left, *right)) - 2)
        if self.fraction is not None and room >= GAUGE_CELLS[0]:
            left = (*left, ("  ", "text"), (gauge_text(min(1.0, self.fraction), room), "warn"))
        return justify_row(left, tuple(right), width)


def starting_server(state: SessionState) -> ServerStatus | None:
    """Return the selected server while it starts; None otherwise."""
    server = state.server
    if server is None or server.state is not ServerState.STARTING:
        return None
    return server


def describe_server_start(server: ServerStatus, state: SessionState) -> RunningWork:
    """Return the texts of the row about a server that is starting. The time left is estimated from
    the newest start of the same engine and model that became READY."""
    same = (s for s in state.servers if (s.engine, s.model) == (server.engine, server.model))
    starts_s = (one.ready_after_s for one in same if one.ready_after_s is not None)
    usual_s = next(starts_s, None)  # newest first, as the state lists the servers
    now_s = time.time()
    took_s = max(0.0, now_s - (server.started_unix_s or now_s))
    left, fraction = "time left: after a first start", None
    if usual_s:
        fraction = min(1.0, took_s / usual_s)
        left = f"longer than the last start, {duration_text(usual_s)}"
        if took_s < usual_s:
            left = remaining_time_text(usual_s - took_s)
    how_far = f"{server.phase or 'process runs'}, {duration_text(took_s)}"
    return RunningWork(f"{server.engine} starts", how_far, left, fraction, "x")


def describe_bench(state: SessionState) -> RunningWork:
    """Return the texts of the row about the running benchmark. The time left is estimated from the
    completed requests or the elapsed seconds."""
    p, seconds = state.bench.progress, state.bench.time_limit_s
    if p is None:
        return RunningWork("benchmark", "starting", key="K", stops="cancels")
    rate = f"{p.in_flight} in flight"
    if p.output_tokens:
        rate = f"{number_text(p.output_tok_s)} tok/s"
    how_far = f"{bench_progress_text(state)}  {rate}"
    if p.failed:
        how_far += f"  {p.failed} failed"
    left_s = fraction = None
    if p.phase == "measuring":
        left_s, fraction = _estimate_remaining_s_and_fraction(p, seconds)
    return RunningWork("benchmark", how_far, remaining_time_text(left_s), fraction, "K", "cancels")


def _estimate_remaining_s_and_fraction(
    progress: BenchProgress, fixed_duration_s: float | None
) -> tuple[float | None, float | None]:
    """Return the seconds left of a benchmark that measures, and the completed fraction; (None,
    None) if they are not known. `fixed_duration_s` is its duration; None if that is not fixed."""
    if fixed_duration_s:
        remaining_s = max(0.0, fixed_duration_s - progress.elapsed_s)
        return remaining_s, progress.elapsed_s / fixed_duration_s
    if progress.done < max(1, progress.in_flight):
        return None, None
    # The requests in flight are half done on average. Before the first of them have ended, that is
    # a guess that may be wrong by a multiple.
    worked = progress.done + progress.in_flight / 2
    remaining_s = progress.elapsed_s / worked * max(0, progress.total - worked)
    return remaining_s, progress.done / max(1, progress.total)


def describe_quality_comparison(view: QualityView) -> RunningWork:
    """Return the texts of the row about the running comparison of answers."""
    if view.stopping:
        return RunningWork("comparison of answers", "stopping, servers are restored")
    if not view.total or not view.step:
        how_far = "starting"
        if view.said:
            how_far = view.said[-1]
        return RunningWork("comparison of answers", how_far, key="K")
    how_far = f"{view.step} {view.done}/{view.total}"
    return RunningWork("comparison of answers", how_far, fraction=view.done / view.total, key="K")


def describe_model_work(work: ModelWorkView) -> RunningWork:
    """Return the texts of the row about the running copy, download or hashing of a model."""
    from workbench.model.model_copy import size_text  # not for the first frame

    if not work.total:
        return RunningWork(work.what, work.text or "starting", key="K", stops="cancels")
    how_far = f"{size_text(work.done)} of {size_text(work.total)}"
    left_s = None
    if work.bytes_s > 0:
        how_far += f", {size_text(round(work.bytes_s))}/s"
        if work.done < work.total:
            left_s = (work.total - work.done) / work.bytes_s
    return RunningWork(
        work.what, how_far, remaining_time_text(left_s), work.done / work.total, "K", "cancels"
    )


def describe_measurement_of_others(owner: MeasurementOwner) -> RunningWork:
    """Return the texts of the row about the measurement of another Workbench on this host."""
    what = owner.what
    if owner.since_unix_s is not None:
        what = f"since {time_of_day_text(owner.since_unix_s)}: {what}"
    return RunningWork(f"{owner.owner_text} measures", what, sign=G.alert)


class ProgressRows(Painted):
    GROUND = "bar"
    FIELDS = frozenset(
        {"bench", "experiment", "sweep", "quality", "servers", "run_id", "busy", "host"}
    )

    def __init__(self) -> None:
        super().__init__(id="progress")
        self.display = False
        self._measured = Countdown()  # of the experiment or the sweep
        self.counted: tuple[str, float, float] | None = None  # text, monotonic start, seconds
        self.works: list[RunningWork] = []

    def show(self, state: SessionState) -> None:
        """Draw a row for each running work, up to MOST_ROWS; hide the widget if there is none."""
        before, self.works = len(self.works), self.list_running_work(state)[:MOST_ROWS]
        if len(self.works) != before:
            self.display = bool(self.works)
            self.styles.height = max(1, len(self.works))
            self._painted = []
        if self.works:
            self.repaint()

    def list_running_work(self, state: SessionState) -> list[RunningWork]:
        """Return a row for each running work, measurements first."""
        series = self._describe_series(state)
        measured = series or self._describe_load_check_or_bench(state)
        found: list[RunningWork] = []
        if measured is not None:
            found.append(measured)
        elif state.running_quality is not None:
            found.append(describe_quality_comparison(state.running_quality))
        server = starting_server(state)
        if server is not None and series is None and not state.bench.queued:
            found.append(describe_server_start(server, state))
        if state.host.model_work is not None:
            found.append(describe_model_work(state.host.model_work))
        if not found and state.busy:
            found.append(RunningWork(state.busy[-1], "under way"))
        if state.host.measured_by is not None:
            found.append(describe_measurement_of_others(state.host.measured_by))
        return found

    def series_remaining_s(self, state: SessionState) -> float | None:
        """Return the seconds left of the running experiment or sweep; None if unknown. A sweep ends
        with an experiment: while that runs, its estimate is the better one. The pages call this
        method too, so that there is one number."""
        for one in state.running_series:
            if one.left_s is not None:
                return self._measured.remaining_s_now(one, one.left_s)
        return None

    def _describe_series(self, state: SessionState) -> RunningWork | None:
        """Return the texts of the row about the running experiment or sweep; None if neither is
        running."""
        experiment, sweep = state.experiment, state.sweep
        now, remaining_s = bench_progress_text(state), self.series_remaining_s(state)
        if experiment is not None and experiment.state == "running":
            from workbench.tui.widgets.experiment import count_done_and_total_runs, current_run_text

            done, count = count_done_and_total_runs(experiment)
            left = remaining_time_text(remaining_s)
            what = f"A/B experiment {experiment.id}"
            how_far = current_run_text(experiment, now) or "starting"
        elif sweep is not None and sweep.state == "running":
            from workbench.tui.widgets.sweep import current_point_text, sweep_remaining_time_text

            done, count = sweep.measured_value_count, len(sweep.points)
            left = sweep_remaining_time_text(sweep, remaining_s)
            what = sweep.description
            how_far = f"{done} of {count} {sweep.points_noun}{current_point_text(sweep, now)}"
        else:
            return None
        server = starting_server(state)
        if server is not None and server.phase:
            how_far += f", {server.phase}"
        return RunningWork(what, how_far, left, done / max(1, count), "K")

    def _describe_load_check_or_bench(self, state: SessionState) -> RunningWork | None:
        """Return the texts of the row about the running check of GPU settings, or about the running
        or waiting benchmark; None if there is none."""
        if self.counted is not None:
            what, began, seconds = self.counted
            done = min(seconds, time.monotonic() - began)
            how_far = f"{done:.0f}/{seconds:.0f} s"
            return RunningWork(
                what, how_far, remaining_time_text(seconds - done), done / seconds, "K"
            )
        if state.bench.running:
            if is_load_check_running(state):
                how_far = bench_progress_text(state)
                return RunningWork("checking GPU settings under load", how_far, key="K")
            return describe_bench(state)
        if not state.bench.queued:
            return None
        server = starting_server(state)
        if server is None:
            return RunningWork("benchmark", "waits for READY", key="K", stops="cancels")
        start = describe_server_start(server, state)
        how_far = f"waits for READY: {start.how_far}"
        return RunningWork("benchmark", how_far, start.left, start.fraction, "K", "cancels")

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return [work.make_row(width) for work in self.works]
