"""The history of a host on disk. When a screen opens, the readings and events that earlier screens
stored are shown before its own. What the screen reads is appended to the files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from workbench.model.errors import StoreError
from workbench.model.findings import Level
from workbench.session.state import BenchState

if TYPE_CHECKING:
    from workbench.model.timeline import Event, Key
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.history.timeline import Timeline
    from workbench.session.state import SessionState
    from workbench.session.state_holder import StateHolder
    from workbench.store.history_files import HistoryWriter, LoadedHistory
    from workbench.store.recording import CellWriter

_HOST_RETURN = ("lost", "connected")  # how the link changes when the host is back


class KeptHistory:
    """Writes the history of the host's readings and events to files, from the first reading on.
    After the call of `load_stored_history`, what earlier screens wrote is shown, too. `close`
    writes what is not on disk yet."""

    def __init__(self, core: StateHolder, timeline: Timeline, telemetry: TelemetryWatch) -> None:
        self._core, self._timeline = core, timeline
        self._writer: HistoryWriter | None = None
        self._link = core.state.host.link
        self._reads = False
        self._cells: tuple[CellWriter, ...] = ()
        timeline.on_values.append(self._write_values)
        timeline.on_event.append(self._write_event)
        timeline.on_clear.append(self.close)
        core.subscribe(self._record_boot_after_reconnect)
        telemetry.on_gpus_changed.append(self._write_gpu_properties)

    def load_stored_history(self) -> None:
        """Insert the readings and events that earlier screens stored into the timeline, now and
        after each later change of the host. Reading one day takes half a second of CPU, so call
        this after the screen is first drawn."""
        if self._writer is not None and not self._reads:
            self._core.spawn(self._load_older_history(self._writer))
        self._reads = True

    def close(self) -> None:
        """Write the last values and close the files. A later reading opens new files."""
        writer, self._writer = self._writer, None
        if writer is not None:
            for cells in self._cells:
                for line in cells.finish_open_cells():
                    writer.write_line(cells.step_s, line)
            writer.close()

    def _get_writer(self) -> HistoryWriter:
        """Return the writer of the host's history files, which is opened at its first use."""
        return self._writer or self._open_writer()

    def _write_values(self, seconds: range, values: Mapping[Key, float | None]) -> None:
        writer = self._get_writer()
        for cells in self._cells:
            for line in cells.add_reading(seconds, values):
                writer.write_line(cells.step_s, line)

    def _write_gpu_properties(self) -> None:
        from workbench.store.history_files import STEPS_S
        from workbench.store.recording import format_gpu_infos

        telemetry = self._core.state.telemetry
        if telemetry is not None:
            line = format_gpu_infos(time.time(), telemetry.infos)
            self._get_writer().write_line(STEPS_S[-1], line)

    def _write_event(self, event: Event) -> None:
        from workbench.store.history_files import STEPS_S
        from workbench.store.recording import format_event

        self._get_writer().write_line(STEPS_S[-1], format_event(event))

    def _record_boot_after_reconnect(self, state: SessionState, changed: frozenset[str]) -> None:
        """Record under which boot the host runs when its link is back: it may have been started
        again."""
        link, self._link = self._link, state.host.link
        has_returned = "host" in changed and (link, self._link) == _HOST_RETURN
        if has_returned and self._writer is not None:
            self._core.spawn(self._record_boot_id(self._writer))

    async def _record_boot_id(self, writer: HistoryWriter) -> None:
        from workbench.hosts.boot import read_boot_id

        boot = await read_boot_id(self._core.host)
        if boot and writer is self._writer:  # still the same host
            writer.write_boot(boot)

    def _open_writer(self) -> HistoryWriter:
        from workbench.store.history_files import STEPS_S, HistoryWriter, history_directory
        from workbench.store.recording import CellWriter, Header

        host, simulated = self._core.host.name, self._core.state.simulated
        folder = history_directory(host, simulated=simulated)
        loop = asyncio.get_running_loop()

        def report_problem(problem: str) -> None:
            loop.call_soon_threadsafe(self._report_problem, problem)

        header = Header(host, simulated, STEPS_S[0], time.time())
        self._writer = writer = HistoryWriter(
            folder, header, report_problem, durable=self._core.host.is_local
        )
        self._core.spawn(self._record_boot_id(writer))
        self._cells = tuple(CellWriter(step_s) for step_s in STEPS_S)
        if self._reads:
            self._core.spawn(self._load_older_history(writer))
        return writer

    async def _load_older_history(self, writer: HistoryWriter) -> None:
        """Insert the history that other screens of this host have written to disk into the
        timeline, before the readings of this screen."""
        from workbench.store import history_files

        older = await asyncio.to_thread(
            history_files.load_history,
            writer.folder,
            self._core.host.name,
            time.time(),
            writer.name,
        )
        if writer is self._writer:  # still the same host
            self._timeline.add_older_history(older.history)
            await self._report_interrupted_benchmark(older.cut)
            await self._report_power_off(older)

    async def _report_power_off(self, older: LoadedHistory) -> None:
        """Notify the user if the host went off without a shutdown, unless an earlier screen under
        this boot has done so."""
        from workbench.hosts.boot import read_boot_id

        boot = await read_boot_id(self._core.host)
        if boot is None or older.find_unclean_previous_boot_end(boot) is None:
            return
        if any(one.boot_id == boot for one in older.boots):
            return
        from workbench.doctor.power_off import read_last_power_off_finding
        from workbench.model.errors import HostError

        try:
            found = await read_last_power_off_finding(self._core.host, older, boot)
        except HostError:
            return  # H asks again
        if found is not None:
            begin = found.text.partition(". ")[0]
            self._core.notify(found.level, f"{begin}: H shows its last minute", found.fix)

    async def _report_interrupted_benchmark(self, unfinished_event: Event | None) -> None:
        """Show that a benchmark was lost with its Workbench. Do nothing if `unfinished_event`, its
        end, is None, if a part of it is stored, or if a benchmark has run since this screen
        opened."""
        if unfinished_event is None:
            return
        host = self._core.host.name
        if not await asyncio.to_thread(_is_nothing_stored_of_benchmark, unfinished_event, host):
            return
        bench = self._core.state.bench
        if bench == BenchState(last_id=bench.last_id):
            at = datetime.fromtimestamp(unfinished_event.unix_s).astimezone()
            error = f"{unfinished_event.text} at {at:%H:%M}; nothing of it is stored"
            self._core.update(bench=replace(bench, error=error))

    def _report_problem(self, problem: str) -> None:
        text = f"the history of the GPUs is not kept on disk: {problem}"
        self._core.notify(
            Level.WARN,
            text,
            "the graphs of this screen continue; free disk space, or make the directory writable",
        )


def _is_nothing_stored_of_benchmark(unfinished_event: Event, host: str) -> bool:
    """Return whether nothing is stored of a benchmark whose Workbench ended before it did: neither
    a note, of which a part of it can still be kept, nor a result that was stored since."""
    from workbench.store import paths, unfinished_benchmarks
    from workbench.store.results_db import ResultsDb

    if unfinished_benchmarks.find_benchmark_notes(host):
        return False
    try:
        newest = ResultsDb(paths.results_db()).list(1, host=host)
    except StoreError:
        return True
    return not any(result.unix_s >= unfinished_event.unix_s for result in newest)
