"""The host's link and its GPUs' readings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.hosts.base import Ask, Host, HostKeyUnknown
from workbench.model.errors import HostError, SettingsError
from workbench.model.findings import Level
from workbench.session.planning import Planning

if TYPE_CHECKING:
    from workbench.gpu.telemetry.source import TelemetrySource
    from workbench.hosts.base import LinkEvent
    from workbench.model.gpu import Telemetry
    from workbench.session.api import History

INTERVAL_S = 1.0
_FRESH_S = 5.0  # a reading of a watched host that is younger answers a question
_MADE_S = 2.0  # and one that was made for a question, the next ones of the same command
_LOOK_S = 1.0  # how often the age of the readings is judged


class NoHistory:
    """Before the first reading."""

    def series(self, gpu_index: int, metric: str, count: int) -> Sequence[float | None]:
        return ()


class Watching(Planning):
    ask: Ask | None = None  # asks the user for a passphrase, password or code; the front end sets it
    interval_s: float | None = None  # between readings; None: as config.toml says
    _source: TelemetrySource | None = None
    _made: tuple[Host, float, Telemetry] | None = None  # the last reading made for a question, and when
    _listened: Host | None = None  # whose link we hear of

    @property
    def history(self) -> History:
        return self._source.history if self._source else NoHistory()

    @property
    def _reached(self) -> Any:
        """What the link leads to: the host itself, or the one that a simulated host lies on."""
        return self.host

    async def connect(self) -> None:
        """Make the link; the state says how it went. Raises HostUnreachable."""
        if self._listened is not self.host:
            self._listened = self.host
            self._reached.on_link(self._on_link)
        self._reached.ask = self._login_question()
        try:
            await self.host.connect()
        except HostError as error:
            self._give_up(error)
            raise
        self.update_host(link="connected", message=None, unknown_key=None, lost_since_unix_s=None, retries=0)

    def _login_question(self) -> Ask | None:
        """Return what asks the user for a login secret of this host, by name; None if no front end can ask."""
        if self.ask is None:
            return None
        ask, host = self.ask, self.host.name

        async def question(prompt: str) -> str | None:
            return await ask(f"{host}: {prompt}")

        return question

    def _give_up(self, why: HostError) -> None:
        unknown = why.fingerprint if isinstance(why, HostKeyUnknown) else None
        self.update_host(link="failed", message=why.message, unknown_key=unknown)

    def _on_link(self, event: LinkEvent) -> None:
        if event.connected:
            self.update_host(link="connected", message=None, lost_since_unix_s=None, retries=0)
            self.notify(Level.INFO, f"the link to {event.host} is back after {event.outage_s:.0f} s")
            if self._source is not None:
                self.spawn(self.look_around())
        elif event.refused is not None:
            self._give_up(event.refused)
        else:
            since = self.state.host.lost_since_unix_s if event.retries else time.time()
            why = event.reason or "the link was lost"
            self.update_host(link="lost", message=why, lost_since_unix_s=since, retries=event.retries)

    async def look_around(self) -> None:
        """Find out what may have changed while nobody looked; session.py adds to it."""
        if not self.host.is_local:
            self.update_host(latency_ms=(await self.host.facts()).latency_ms)

    def trust_host_key(self) -> None:
        """The person said yes to the key that the state shows. Then connect again."""
        fingerprint = self.state.host.unknown_key
        if fingerprint is None:
            raise HostError("no host key is waiting for an answer", host=self.host.name)
        self._reached.accept_host_key(fingerprint)
        self.update_host(link="connecting", unknown_key=None, message=None)

    async def accept_host_key(self) -> None:
        self.trust_host_key()
        self.spawn(self.begin())

    async def begin(self) -> None:
        """Connect and start all that watches; session.py fills this in."""
        await self.connect()

    # ---- readings

    async def watch_gpus(self) -> TelemetrySource:
        """Start the readings; once. Returns their source."""
        if self._source is None:
            from workbench.gpu.telemetry.source import TelemetrySource

            self._source = TelemetrySource(self.host, self.interval_s or INTERVAL_S, self._on_telemetry)
            await self._source.start()
            self.spawn(self._judge_age())
        return self._source

    async def read_every(self, interval_s: float) -> None:
        self.interval_s = interval_s
        if self._source is not None:
            await self._source.set_interval(interval_s)

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
        if self.state.telemetry is not None and self._source is not None and (self._source.age_s or 0) < _FRESH_S:
            return self.state.telemetry
        if self._made is not None and self._made[0] is self.host and time.monotonic() - self._made[1] < _MADE_S:
            return self._made[2]
        from workbench.gpu.telemetry.source import read_once

        telemetry = await read_once(self.host)
        if not telemetry.gpus and telemetry.driver.message is None:
            raise SettingsError("no GPU was found", host=self.host.name)
        self._made = (self.host, time.monotonic(), telemetry)
        return telemetry
