"""The host's link and its GPUs' readings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.hosts.base import HostKeyUnknown, HostUnreachable
from workbench.model.errors import HostError, SettingsError
from workbench.model.findings import Level
from workbench.session.planning import Planning

if TYPE_CHECKING:
    from workbench.gpu.source import TelemetrySource
    from workbench.hosts.link import LinkEvent
    from workbench.model.gpu import Telemetry
    from workbench.session.api import History

_LOOK_S = 1.0  # how often the age of the readings is judged


class NoHistory:
    """Before the first reading."""

    def series(self, gpu_index: int, metric: str, count: int) -> Sequence[float | None]:
        return ()


class Watching(Planning):
    interval_s = 1.0
    _source: TelemetrySource | None = None

    @property
    def history(self) -> History:
        return self._source.history if self._source else NoHistory()

    async def connect(self) -> None:
        """Make the link; the state says how it went. Raises HostUnreachable."""
        listen = getattr(self.host, "on_link", None) or getattr(getattr(self.host, "inner", None), "on_link", None)
        if listen is not None and self.state.host.link == "connecting":
            listen(self._on_link)
        started = time.monotonic()
        try:
            await self.host.connect()
        except HostKeyUnknown as error:
            self.update_host(link="failed", message=error.message, unknown_key=error.fingerprint)
            raise
        except HostUnreachable as error:
            self.update_host(link="failed", message=str(error.message), unknown_key=None)
            raise
        latency = None if self.host.kind == "local" else (time.monotonic() - started) * 1000
        self.update_host(link="connected", message=None, unknown_key=None, latency_ms=latency, lost_since_unix_s=None)

    def _on_link(self, event: LinkEvent) -> None:
        if event.connected:
            self.update_host(link="connected", message=None, lost_since_unix_s=None)
            self.notify(Level.INFO, f"the link to {event.host} is back after {event.outage_s:.0f} s")
        else:
            why = event.reason or "the link was lost"
            self.update_host(link="lost", message=why, lost_since_unix_s=time.time())

    async def accept_host_key(self) -> None:
        fingerprint = self.state.host.unknown_key
        accept = getattr(self.host, "accept_host_key", None)
        if fingerprint is None or accept is None:
            raise HostError("no host key is waiting for an answer", host=self.host.name)
        accept(fingerprint)
        self.update_host(link="connecting", unknown_key=None, message=None)
        self.spawn(self.begin())

    async def begin(self) -> None:
        """Connect and start all that watches; session.py fills this in."""
        await self.connect()

    # ---- readings

    async def watch_gpus(self) -> TelemetrySource:
        """Start the readings; once. Returns their source."""
        if self._source is None:
            from workbench.gpu.source import TelemetrySource

            self._source = TelemetrySource(self.host, self.interval_s, self._on_telemetry)
            await self._source.start()
            self.spawn(self._judge_age())
        return self._source

    def _on_telemetry(self, telemetry: Telemetry) -> None:
        before = self.state.telemetry
        known = before is not None and before.infos == telemetry.infos
        self.update(telemetry=telemetry, telemetry_monotonic_s=time.monotonic(), telemetry_problem=None)
        if not known and telemetry.infos:
            self.gpus_changed()

    async def _judge_age(self) -> None:
        while self._source is not None:
            self.update(telemetry_problem=self._source.problem)
            await asyncio.sleep(_LOOK_S)

    async def stop_watching(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            await source.close()

    async def reading(self) -> Telemetry:
        """The newest reading, or one made now. SettingsError when the GPUs cannot be read at all."""
        if self.state.telemetry is not None and self._source is not None and (self._source.age_s or 0) < 5:
            return self.state.telemetry
        from workbench.gpu.source import read_once

        telemetry = await read_once(self.host)
        if not telemetry.gpus and telemetry.driver.message is None:
            raise SettingsError("no GPU was found", host=self.host.name)
        return telemetry
