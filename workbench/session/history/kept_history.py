"""The history of a host on disk. When a screen opens, the readings and events that earlier screens
stored are shown before its own. What the screen reads is appended to the files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from workbench.model.findings import Level
from workbench.session.state import BenchState

if TYPE_CHECKING:
    from workbench.model.timeline import Event, Key
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.history.timeline import Timeline
    from workbench.session.state_holder import StateHolder
    from workbench.store.history_files import HistoryWriter
    from workbench.store.recording import CellWriter


class KeptHistory:
    """Writes the history of the host's readings and events to files, from the first reading on.
    After the call of `read`, what earlier screens wrote is shown, too. `close` writes what is not
    on disk yet."""

    def __init__(self, core: StateHolder, timeline: Timeline, telemetry: TelemetryWatch) -> None:
        self._core, self._timeline = core, timeline
        self._writer: HistoryWriter | None = None
        self._reads = False
        self._cells: tuple[CellWriter, ...] = ()
        timeline.on_values.append(self._take)
        timeline.on_event.append(self._take_event)
        timeline.on_clear.append(self.close)
        telemetry.on_gpus_changed.append(self._take_infos)

    def read(self) -> None:
        """Insert the readings and events that earlier screens stored into the timeline, now and
        after each later change of the host. Reading one day takes half a second of CPU, so call
        this after the screen is first drawn."""
        if self._writer is not None and not self._reads:
            self._core.spawn(self._load(self._writer))
        self._reads = True

    def close(self) -> None:
        """Write the last values and close the files. A later reading opens new files."""
        writer, self._writer = self._writer, None
        if writer is not None:
            for cells in self._cells:
                for line in cells.end():
                    writer.write(cells.step_s, line)
            writer.close()

    def _take(self, seconds: range, values: Mapping[Key, float | None]) -> None:
        writer = self._writer or self._open()
        for cells in self._cells:
            for line in cells.add(seconds, values):
                writer.write(cells.step_s, line)

    def _take_infos(self) -> None:
        from workbench.store.history_files import STEPS_S
        from workbench.store.recording import infos_line

        telemetry = self._core.state.telemetry
        if telemetry is not None:
            (self._writer or self._open()).write(
                STEPS_S[-1], infos_line(time.time(), telemetry.infos)
            )

    def _take_event(self, event: Event) -> None:
        from workbench.store.history_files import STEPS_S
        from workbench.store.recording import event_line

        (self._writer or self._open()).write(STEPS_S[-1], event_line(event))

    def _open(self) -> HistoryWriter:
        from workbench.store.history_files import STEPS_S, HistoryWriter, directory
        from workbench.store.recording import CellWriter, Header

        host, simulated = self._core.host.name, self._core.state.simulated
        folder = directory(host, simulated=simulated)
        loop = asyncio.get_running_loop()

        def tell(problem: str) -> None:
            loop.call_soon_threadsafe(self._tell, problem)

        header = Header(host, simulated, STEPS_S[0], time.time())
        self._writer = writer = HistoryWriter(folder, header, tell)
        self._cells = tuple(CellWriter(step_s) for step_s in STEPS_S)
        if self._reads:
            self._core.spawn(self._load(writer))
        return writer

    async def _load(self, writer: HistoryWriter) -> None:
        """Insert the history that other screens of this host have written to disk into the
        timeline, before the readings of this screen."""
        from workbench.store import history_files

        older = await asyncio.to_thread(
            history_files.load, writer.folder, self._core.host.name, time.time(), writer.name
        )
        if writer is self._writer:  # still the same host
            self._timeline.put_under(older.history)
            bench = self._core.state.bench
            # none since this screen opened
            if older.cut is not None and bench == BenchState(last_id=bench.last_id):
                at = datetime.fromtimestamp(older.cut.unix_s).astimezone()
                error = f"{older.cut.text} at {at:%H:%M}; nothing of it is stored"
                self._core.update(bench=replace(bench, error=error))

    def _tell(self, problem: str) -> None:
        text = f"the history of the GPUs is not kept on disk: {problem}"
        self._core.notify(
            Level.WARN,
            text,
            "the graphs of this screen continue; free disk space, or make the directory writable",
        )
