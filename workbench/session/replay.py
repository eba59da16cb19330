"""A session that plays a recording in place of a host. Readings and events appear at the pace at
which they were recorded. No command can be run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.hosts.base import LOOPBACK, BaseHost, Completed, Forward, HostFacts, Stream
from workbench.model.engine_live import EngineView
from workbench.model.errors import HostError, InputError
from workbench.model.findings import Level
from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.gpu_readings import READINGS
from workbench.model.timeline import ENGINE, Event, EventKind
from workbench.session.history.timeline import MORE_GPU_FIELDS, Timeline
from workbench.session.session import Session
from workbench.session.state import BenchState, ReplayView
from workbench.store import recording
from workbench.store.recording import Cell, Infos, Item

REPLAY_SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
TICK_INTERVAL_S = 0.1  # between two looks for what is due
LONG_GAP_S = 30.0  # a longer gap of the recording is left out
_LONG_GAP_SHOWN_S = 2.0  # of such a gap
_RECORDED_FIELDS = frozenset((*READINGS, *MORE_GPU_FIELDS))
# without what follows from others
_SAMPLE_FIELDS = _RECORDED_FIELDS & {each.name for each in fields(GpuSample)}
_WHOLE_NUMBER_FIELDS = frozenset({"sm_mhz", "memory_mhz", "memory_used_bytes"})


class RecordedHost(BaseHost):
    """The host of a recording. Every command on it raises HostError."""

    kind = "recording"
    connected = True

    def __init__(self, name: str) -> None:
        self.name = name

    def _recording_only_error(self) -> HostError:
        text = "this is a recording: nothing runs on it and nothing can be changed"
        return HostError(
            text,
            host=self.name,
            next_step="leave with q, and open the host itself with `workbench`",
        )

    async def _run(
        self,
        argv: Sequence[str],
        input: bytes,
        timeout_s: float,
        env: Mapping[str, str] | None,
    ) -> Completed:
        raise self._recording_only_error()

    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Stream:
        raise self._recording_only_error()

    async def state_dir(self) -> str:
        raise self._recording_only_error()

    async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        raise self._recording_only_error()

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        raise self._recording_only_error()

    async def forward(self, port: int, address: str = LOOPBACK) -> Forward:
        raise self._recording_only_error()

    async def facts(self) -> HostFacts:
        return HostFacts(self.name, self.kind)


class Replay(Session):
    """A session that plays a recording. `speed` is the speed at the beginning, 1.0 for that of the
    recording; `toggle_pause` and `change_speed` change the speed. Raises InputError if the file is
    not a recording."""

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        self._header, self._items = recording.open_recording(path)
        super().__init__(RecordedHost(self._header.host))
        self._infos: tuple[GpuInfo, ...] = ()
        self._next: Item | None = None
        self._position_s = self._header.unix_s
        self.core.update(presets_read=True, results_read=True)
        self.core.update_host(link="connected", replay=ReplayView(self._header.unix_s, speed))

    @cached_property
    def timeline(self) -> Timeline:
        made = Timeline(self.core, self.telemetry)
        made.history.clock = lambda: self._position_s
        return made

    @property
    def _replay_view(self) -> ReplayView:
        assert self.core.state.host.replay is not None
        return self.core.state.host.replay

    async def open(self, *, before_screen: bool = False) -> None:
        """Begin to play the recording. With `before_screen` do nothing, because the screen is not
        loaded yet."""
        if before_screen:
            return
        self._next = next(self._items, None)
        if self._next is not None:
            self._position_s = self._next.unix_s
        self.core.spawn(self._play_recording())

    def toggle_pause(self) -> None:
        """Pause the recording, or continue it."""
        self._show_view(paused=not self._replay_view.paused)

    def change_speed(self, steps: int) -> None:
        """Play faster (`steps` 1) or slower (-1), by a factor of two for each step, within
        REPLAY_SPEEDS."""
        nearest = min(
            range(len(REPLAY_SPEEDS)), key=lambda i: abs(REPLAY_SPEEDS[i] - self._replay_view.speed)
        )
        self._show_view(speed=REPLAY_SPEEDS[min(max(nearest + steps, 0), len(REPLAY_SPEEDS) - 1)])

    async def switch_host(self, name: str) -> None:
        raise InputError(
            "a recording has one host, so no other host can be opened",
            next_step="leave with q, then open the other host",
        )

    def _show_view(self, **changes: Any) -> None:
        self.core.update_host(replay=replace(self._replay_view, **changes))

    async def _play_recording(self) -> None:
        before_s = time.monotonic()
        while self._next is not None:
            await asyncio.sleep(TICK_INTERVAL_S)
            now_s = time.monotonic()
            elapsed_s, before_s = now_s - before_s, now_s
            if not self._replay_view.paused:
                self._advance_recording(self._position_s + elapsed_s * self._replay_view.speed)
        self._show_view(ended=True, paused=True)
        self.core.notify(
            Level.INFO, "the recording ends here", "press [ or ] to move in time, q to leave"
        )

    def _advance_recording(self, until_s: float) -> None:
        """Show the content of the recording up to the Unix time `until_s`."""
        cell: Cell | None = None
        for item in self._items_until(until_s):
            if isinstance(item, Cell):
                cell = item
                self.timeline.history.add_reading_to_seconds(
                    cell.values, range(cell.unix_s, cell.unix_s + self._header.step_s)
                )
            elif isinstance(item, Infos):
                self._infos = item.infos
            elif isinstance(item, Event):
                self._show_event(item)
        if self._next is not None and self._next.unix_s - until_s > LONG_GAP_S:
            until_s = self._next.unix_s - _LONG_GAP_SHOWN_S
        self._position_s = until_s
        self._show_view(unix_s=float(int(until_s)))
        if cell is not None:
            self._show_recorded_values(cell)

    def _items_until(self, until_s: float) -> Iterator[Item]:
        # a recording may have any number of lines for one second
        until_monotonic_s = time.monotonic() + TICK_INTERVAL_S / 2
        while self._next is not None and self._next.unix_s <= until_s:
            if time.monotonic() >= until_monotonic_s:
                return
            yield self._next
            self._next = next(self._items, None)

    def _show_event(self, event: Event) -> None:
        self.timeline.history.add_event_if_new(event)
        self.core.notify(Level.INFO, event.text)
        if event.kind in (EventKind.BENCH_BEGIN, EventKind.BENCH_END):
            self.core.update(bench=BenchState(running=event.kind is EventKind.BENCH_BEGIN))

    def _show_recorded_values(self, cell: Cell) -> None:
        by_gpu: dict[int, dict[str, float]] = {}
        for (gpu, name), value in cell.values.items():
            by_gpu.setdefault(gpu, {})[name] = value
        engine = by_gpu.pop(ENGINE, None)
        samples = tuple(
            _sample_from_values(gpu, values, self._infos) for gpu, values in sorted(by_gpu.items())
        )
        known = {info.index for info in self._infos}
        unknown = tuple(GpuInfo(s.index, s.uuid, "GPU") for s in samples if s.index not in known)
        telemetry = Telemetry(
            float(cell.unix_s),
            float(cell.unix_s),
            DriverInfo(source="recording"),
            HostSample(),
            (*self._infos, *unknown),
            samples,
            self._header.simulated,
        )
        view = EngineView("recording", "engine", engine) if engine else None
        self.core.update(engine=view, telemetry=telemetry, telemetry_monotonic_s=time.monotonic())


def _sample_from_values(
    gpu: int, values: Mapping[str, float], infos: Sequence[GpuInfo]
) -> GpuSample:
    """Return a reading of a GPU with the recorded values. Every value that was not recorded is
    None, with the reason in `absent`."""
    info = next((i for i in infos if i.index == gpu), None)
    known: dict[str, Any] = {
        name: round(value) if name in _WHOLE_NUMBER_FIELDS else value
        for name, value in values.items()
        if name in _SAMPLE_FIELDS
    }
    absent = dict.fromkeys(_SAMPLE_FIELDS - known.keys(), "not in the recording")
    return GpuSample(
        gpu,
        info.uuid if info else "",
        power_limit_enforced_w=values.get("limit_w"),
        memory_total_bytes=info.memory_total_bytes if info else None,
        absent=absent,
        **known,
    )
