"""The readings of the host's GPUs: continuous for a screen, single for a command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.gpu import remote_programs
from workbench.gpu.telemetry.source import TelemetrySource
from workbench.gpu.telemetry.source_of_host import create_telemetry_source, read_telemetry_once
from workbench.hosts.base import Host
from workbench.model.errors import SettingsError

if TYPE_CHECKING:
    from workbench.model.gpu import Telemetry
    from workbench.session.state_holder import StateHolder

DEFAULT_INTERVAL_S = 1.0
_FRESH_READING_S = 5.0  # the newest reading of a watched host answers a question if it is younger
# a single reading answers the further questions of the same command for this long
_SINGLE_READING_VALID_S = 2.0
_AGE_CHECK_INTERVAL_S = 1.0  # between two checks of the readings' age


class TelemetryWatch:
    """Keeps the newest reading of the GPUs in the session's state. The functions of `on_reading`
    are called with each reading. The functions of `on_gpus_changed` are called when the host's GPUs
    differ from those of the previous reading."""

    def __init__(self, core: StateHolder) -> None:
        self._core = core
        self._source: TelemetrySource | None = None
        # the last single reading, and its time
        self._single: tuple[Host, float, Telemetry] | None = None
        self.interval_s: float | None = None  # between readings; None: the interval of config.toml
        self.on_reading: list[Callable[[Telemetry], None]] = []
        self.on_gpus_changed: list[Callable[[], None]] = []

    @property
    def present_interval_s(self) -> float:
        """The seconds between two continuous readings."""
        return self.interval_s or DEFAULT_INTERVAL_S

    @property
    def is_reading(self) -> bool:
        """Whether the GPUs are being read continuously."""
        return self._source is not None

    async def start(self) -> TelemetrySource:
        """Begin to read the GPUs continuously, unless that has begun already. Return the source of
        the readings."""
        if self._source is None:
            self._source = create_telemetry_source(
                self._core.host,
                self.present_interval_s,
                self._publish_reading,
                keep_history=False,
            )
            await self._source.start()
            self._core.spawn(self._update_telemetry_problem())
        return self._source

    async def stop(self) -> None:
        """End the continuous reading of the GPUs."""
        source, self._source = self._source, None
        if source is not None:
            await source.close()

    async def set_interval(self, interval_s: float) -> None:
        """Set the time between two continuous readings, in seconds."""
        self.interval_s = interval_s
        if self._source is not None and self._source.interval_s != interval_s:
            await self._source.set_interval(interval_s)

    async def refresh_gpu_readings(self) -> None:
        """Discard the last single reading. If the GPUs are read continuously, also read the values
        that are usually read less often."""
        self._single = None
        if self._source is not None:
            await self._source.request_full_reading()

    async def get_recent_reading(self) -> Telemetry:
        """Return the newest reading if it is younger than 5 s (2 s if the GPUs are not read
        continuously), else a new one. Raises SettingsError if no GPU is found and the driver does
        not say why."""
        watched = self._fresh_continuous_reading()
        if watched is not None:
            return watched
        if self._single is not None:
            host, made_s, telemetry = self._single
            if host is self._core.host and time.monotonic() - made_s < _SINGLE_READING_VALID_S:
                return telemetry
        telemetry = await read_telemetry_once(self._core.host)
        if not telemetry.gpus and telemetry.driver.message is None:
            raise SettingsError(
                "no GPU was found",
                host=self._core.host.name,
                next_step="run `workbench doctor` to see why",
            )
        self._single = (self._core.host, time.monotonic(), telemetry)
        return telemetry

    def _fresh_continuous_reading(self) -> Telemetry | None:
        """Return the newest reading if the GPUs are read continuously and it is recent, else
        None."""
        if self._source is None or (self._source.age_s or 0) >= _FRESH_READING_S:
            return None
        return self._core.state.telemetry

    def _publish_reading(self, telemetry: Telemetry) -> None:
        """Show a reading in the session's state, and call the listeners with it. An exception of
        one listener is shown to the user, and the other listeners and the next readings follow."""
        try:
            self._show_reading(telemetry)
        except Exception as error:
            self._core.notify_internal_error(error)
        for hear in self.on_reading:
            try:
                hear(telemetry)
            except Exception as error:
                self._core.notify_internal_error(error)

    def _show_reading(self, telemetry: Telemetry) -> None:
        self._core.beat.record_gpu_reading()
        before = self._core.state.telemetry
        has_changed = before is None
        if before is not None and telemetry.infos:
            has_changed = telemetry.infos != before.infos
        self._core.update(
            telemetry=telemetry,
            telemetry_monotonic_s=time.monotonic(),
            telemetry_interval_s=self.present_interval_s,
        )
        self._core.update_host(telemetry_problem=self._telemetry_problem_text(telemetry))
        if has_changed:
            for listener in self.on_gpus_changed:
                listener()

    async def _update_telemetry_problem(self) -> None:
        keep = self._core.host.is_local and self._core.host.simulated is None
        while self._source is not None:
            telemetry = self._core.state.telemetry
            if telemetry is not None and keep:
                keep = False
                await asyncio.to_thread(remote_programs.cache_pynvml_for_agent)
            self._core.update_host(telemetry_problem=self._telemetry_problem_text(telemetry))
            await asyncio.sleep(
                self._core.beat.seconds_until_beat_near_pause_end(_AGE_CHECK_INTERVAL_S)
            )

    def _telemetry_problem_text(self, telemetry: Telemetry | None) -> str | None:
        """Return why no recent reading has arrived, or why `telemetry` lacks GPUs of the host. None
        if nothing is wrong."""
        if self._source is not None and self._source.problem:
            return self._source.problem
        return None if telemetry is None else telemetry.why_no_gpus
