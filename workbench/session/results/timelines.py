"""The timelines of results: what the GPUs and the engine did from a little before a benchmark to a
little after."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.model.errors import StoreError
from workbench.model.timeline import Event, EventKind, History
from workbench.store import recording, result_timelines

if TYPE_CHECKING:
    from workbench.gpu.telemetry.reading_buffer import Moment
    from workbench.session.bench.measurement import MeasuredLoad
    from workbench.session.history.timeline import Timeline
    from workbench.session.state_holder import StateHolder
    from workbench.store.result_timelines import ResultTimeline
    from workbench.store.results_db import ResultsDb

KEPT_BEFORE_RUN_S, KEPT_AFTER_RUN_S = 10, 5
# of a benchmark's readings
_KEPT_GPU_FIELDS = ("power_w", "sm_mhz", "memory_mhz", "temperature_c", "gpu_util_pct", "limit_w")
_MARKED_EVENTS = (EventKind.BENCH_BEGIN, EventKind.BENCH_END)


class ResultTimelines:
    """Stores and reads the timelines of results in the directory of the database."""

    def __init__(self, core: StateHolder, timeline: Timeline, db: ResultsDb) -> None:
        self._core, self._timeline, self._db = core, timeline, db

    async def get(self, result_id: int) -> ResultTimeline | None:
        """Return the timeline of a result; None if the result was imported, or was stored by a
        version without timelines. Raises StoreError if the timeline is damaged."""
        return await asyncio.to_thread(
            lambda: result_timelines.read_timeline(self.path_of_timeline(result_id))
        )

    def path_of_timeline(self, result_id: int) -> Path:
        """Return the path of the timeline of a result. The file may not exist."""
        return result_timelines.timeline_path(self._db.path.parent, self._db.uid(result_id))

    async def store_timeline(self, result_id: int, measured: MeasuredLoad) -> None:
        """Store the timeline of a result that has just been measured. While a screen reads the
        GPUs, the seconds after the benchmark are added in the background. A timeline that cannot be
        written is left out, with a message."""
        await self._write_timeline(result_id, measured)
        if self._timeline.is_reading_continuously:
            self._core.spawn(self._rewrite_timeline_after_last_reading(result_id, measured))

    async def _rewrite_timeline_after_last_reading(
        self, result_id: int, measured: MeasuredLoad
    ) -> None:
        await asyncio.sleep(max(0.0, measured.outcome.t1_unix + KEPT_AFTER_RUN_S + 2 - time.time()))
        await self._write_timeline(result_id, measured)

    async def _write_timeline(self, result_id: int, measured: MeasuredLoad) -> None:
        begin_s, end_s = measured.outcome.t0_unix, measured.outcome.t1_unix
        first_s, last_s = int(begin_s) - KEPT_BEFORE_RUN_S, int(end_s) + KEPT_AFTER_RUN_S
        step_s = math.ceil((last_s - first_s) / (result_timelines.MOST_POINTS - 2))
        text = f"benchmark of result {result_id}"
        marks = [
            Event(at, kind, text, result_id=result_id)
            for at, kind in zip((begin_s, end_s), _MARKED_EVENTS, strict=True)
        ]
        around = (
            e
            for e in self._timeline.history.events
            if first_s <= e.unix_s <= last_s and e.kind not in _MARKED_EVENTS
        )
        events = sorted([*marks, *around], key=lambda event: event.unix_s)
        read = _history_of_readings(measured.moments)
        lines = [
            *recording.format_history([read, self._timeline.history], first_s, last_s, step_s),
            *map(recording.format_event, events),
        ]
        if measured.telemetry is not None:
            lines.insert(0, recording.format_gpu_infos(begin_s, measured.telemetry.infos))
        header = recording.Header(self._core.host.name, self._core.state.simulated, step_s, begin_s)
        try:
            path = self.path_of_timeline(result_id)
            await asyncio.to_thread(result_timelines.write_timeline, path, header, lines)
        except StoreError as error:
            self._core.notify_error(error)


def _history_of_readings(moments: Sequence[Moment]) -> History:
    """Return the readings of a benchmark, which came at 10 Hz, as a history."""
    history, shift_s = History(), time.time() - time.monotonic()
    for moment in moments:
        for gpu in moment.gpus:
            for name in _KEPT_GPU_FIELDS:
                history.add((gpu.gpu_index, name), moment.at_s + shift_s, getattr(gpu, name))
    return history
