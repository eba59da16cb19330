"""The history of the session's host: every reading of its GPUs and engine, and the events that
explain them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING

from workbench.model.timeline import (
    CLIENT_TOK_S,
    ENGINE,
    Event,
    EventKind,
    History,
    ReadingIntervals,
)
from workbench.session.history.timeline_events import EventSource

if TYPE_CHECKING:
    from workbench.model.bench import BenchProgress
    from workbench.model.gpu import Telemetry
    from workbench.model.timeline import Key
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.state import SessionState
    from workbench.session.state_holder import StateHolder

_LEAST_PROGRESS_S = 0.05  # a rate over less time says little
_PROGRESS_GAP_S = 3.0  # a longer time without progress belongs to another benchmark
# besides READINGS
MORE_GPU_FIELDS = ("memory_used_bytes", "memory_temperature_c", "pcie_rx_mb_s", "pcie_tx_mb_s")


class Timeline:
    """Keeps the `history` of the session's host, which begins when this object is built. When the
    session changes its host, the history begins anew.

    The functions of `on_values` are called with the Unix seconds and the values of each reading,
    those of `on_event` with each new event, those of `on_clear` when the history is cleared, and
    those of `on_loaded` when an older history has been inserted before the present one."""

    def __init__(self, core: StateHolder, telemetry: TelemetryWatch) -> None:
        self._core, self._telemetry = core, telemetry
        self._host = core.host
        self.history = History()
        self.on_values: list[Callable[[range, Mapping[Key, float | None]], None]] = []
        self.on_event: list[Callable[[Event], None]] = []
        self.on_clear: list[Callable[[], None]] = []
        self.on_loaded: list[Callable[[], None]] = []
        self._reset_recording_state()
        telemetry.on_reading.append(self._add_reading)
        core.subscribe(self._record_state_changes)

    def _reset_recording_state(self) -> None:
        self._pace = ReadingIntervals()
        self._progress: BenchProgress | None = None  # the last one of a benchmark
        self._events = EventSource(self._core.state)

    @property
    def is_reading_continuously(self) -> bool:
        """Whether the GPUs are read continuously, as for a screen. A command reads them only
        once."""
        return self._telemetry.is_reading

    def add_engine_values(self, values: Mapping[str, float | None], unix_s: float) -> None:
        """Add the engine's metrics of the second that contains `unix_s` to the history. `values`
        has them by field name, such as {"generation_tok_s": 812.0}, and None for a metric that is
        not known."""
        self._add_values(
            {(ENGINE, name): value for name, value in values.items()},
            range(int(unix_s), int(unix_s) + 1),
        )

    def add_event(self, kind: EventKind, text: str, *, unix_s: float | None = None) -> None:
        """Add an event of the whole host to the history, at the Unix time `unix_s`, by default
        now."""
        self._add_event(Event(unix_s or time.time(), kind, text))

    def add_older_history(self, older: History) -> None:
        """Insert an older history of this host before the present one, and call the functions of
        `on_loaded`."""
        self.history.prepend_history(older)
        for hear in self.on_loaded:
            hear()

    def _add_reading(self, telemetry: Telemetry) -> None:
        from workbench.model.gpu_readings import READINGS  # not for the first frame

        now = time.time()
        seconds = self._pace.seconds_covered_by_reading(now, self._telemetry.present_interval_s)
        fields = (*READINGS, *MORE_GPU_FIELDS)
        values: dict[Key, float | None] = {}
        for gpu in telemetry.gpus:
            values.update(
                zip(
                    _history_keys_of_gpu(gpu.index, fields),
                    _getter_of_gpu_fields(fields)(gpu),
                    strict=True,
                )
            )
        values.update(_clock_lock_keys_and_mhz(self._core.state))
        self._add_values(values, seconds)
        for event in self._events.events_in_reading(telemetry, now):
            self._add_event(event)

    def _add_values(self, values: Mapping[Key, float | None], seconds: range) -> None:
        self.history.add_reading_to_seconds(values, seconds)
        for hear in self.on_values:
            hear(seconds, values)

    def _record_state_changes(self, state: SessionState, changed: frozenset[str]) -> None:
        if self._core.host is not self._host:
            self._host = self._core.host
            self.history.clear()
            self._reset_recording_state()
            for hear in self.on_clear:
                hear()
            return
        if "bench" in changed and state.bench.progress is not None:
            self._add_client_throughput(state.bench.progress)
        for event in self._events.events_in_state(state, changed, time.time()):
            self._add_event(event)

    def _add_client_throughput(self, progress: BenchProgress) -> None:
        """Add the load client's output tokens per second since its last report to the history. The
        client reports several times a second."""
        before, self._progress = self._progress, progress
        if before is None or before.phase != progress.phase:
            return
        # by the client's clock: when a busy screen reads two reports says nothing about the rate
        took_s = progress.elapsed_s - before.elapsed_s
        tokens = progress.output_tokens - before.output_tokens
        if _LEAST_PROGRESS_S < took_s < _PROGRESS_GAP_S and tokens >= 0:
            now = int(time.time())
            self._add_values({CLIENT_TOK_S: tokens / took_s}, range(now, now + 1))

    def _add_event(self, event: Event) -> None:
        """Add an event to the history with secrets masked, because the history is kept on disk."""
        from workbench.model.secrets import mask_text, remembered_secrets

        event = replace(event, text=mask_text(event.text, remembered_secrets()))
        if self.history.add_event_if_new(event):
            for hear in self.on_event:
                hear(event)


@cache
def _history_keys_of_gpu(gpu: int, fields: tuple[str, ...]) -> tuple[Key, ...]:
    return tuple((gpu, name) for name in fields)


@cache
def _getter_of_gpu_fields(fields: tuple[str, ...]) -> attrgetter[tuple[float | None, ...]]:
    return attrgetter(*fields)


def _clock_lock_keys_and_mhz(state: SessionState) -> Iterator[tuple[Key, float | None]]:
    """Yield pairs (key in the history, MHz) for the lowest and the highest clock of each lock on
    the SM clock. No reading of the GPUs contains these clocks."""
    for one in (*state.others, *state.alterations):
        if one.setting == "gpu_clocks":
            yield (one.gpu_index, "sm_lock_min_mhz"), getattr(one.now, "min_mhz", None)
            yield (one.gpu_index, "sm_lock_max_mhz"), getattr(one.now, "max_mhz", None)
