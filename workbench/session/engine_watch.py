"""The engine's own counters around one benchmark: control traffic, read beside the load and never in its path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from workbench.hosts.task_cancellation import end
from workbench.model.server_run import EngineMetrics

if TYPE_CHECKING:
    import httpx

    from workbench.engines.base import Engine
    from workbench.model.bench import EngineDuring
    from workbench.session.gpu_meter import Load

INTERVAL_S = 1.0
SETTLE_S = 3.0  # at most; the counters lag the last answer by up to a second
_STILL_S = 1.2  # unchanged for so long: they have settled
_LOOK_S = 0.1


class EngineView:
    """`before` once nothing of the run was sent, `watching` around it, then `after`. Nothing is raised: where the
    engine shows no counters every figure is None with the reason."""

    def __init__(self, http: httpx.AsyncClient, engine: Engine | None) -> None:
        self._http = http
        self.engine = engine  # None: guessed by its page
        self._problem: str | None = None
        self._before: EngineMetrics | None = None
        self._samples: list[EngineMetrics] = []

    async def identify(self) -> None:
        """Set `engine`, once, where its page tells it."""
        if self.engine is None and self._problem is None:
            await self._guess()

    async def read(self) -> EngineMetrics:
        from workbench.server import metrics

        await self.identify()
        if self.engine is None:
            return metrics.nothing(self._problem or "the engine is not known")
        return await metrics.fetch(self._http, self.engine)

    async def _guess(self) -> None:
        import httpx

        from workbench.server import metrics

        try:
            answer = await self._http.get("/metrics", timeout=metrics.TIMEOUT_S)
        except httpx.HTTPError as error:
            self._problem = f"/metrics: {str(error) or type(error).__name__}"
            return
        if answer.status_code != 200:
            self._problem = f"/metrics answers {answer.status_code}: which engine it is is not known"
            return
        self.engine = metrics.engine_of(answer.text)
        if self.engine is None:
            self._problem = "/metrics is no page of an engine that Workbench knows"

    async def load(self) -> Load:
        from workbench.session.gpu_meter import Load

        now = await self.read()
        known = [v for v in (now.running, now.waiting) if v is not None]
        return Load(sum(known) if known else None, _counted(now))

    async def before(self) -> None:
        self._before = await self.read()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Reads every second."""
        watch = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            await end(watch)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self._samples.append(await self.read())

    async def after(
        self, t0_unix: float, t1_unix: float, settled: Callable[[EngineDuring], bool] | None = None
    ) -> EngineDuring:
        """What the engine counted since `before`, when its counters stand still or, sooner, when they are what
        `settled` waits for; the gauges between t0 and t1."""
        from workbench.server import engine_counters

        if self._before is None or not engine_counters.readable(self._before):
            now = await self.read()
            if not engine_counters.readable(now):
                return engine_counters.nothing(next(iter(now.absent.values()), "no counters"))
        before = self._before or EngineMetrics()
        inside = [m for m in self._samples if t0_unix <= m.unix_s <= t1_unix]
        last, changed = EngineMetrics(), time.monotonic()
        until = changed + SETTLE_S
        while True:
            now = await self.read()
            found = engine_counters.summarize(before, inside, now)
            if settled is not None and settled(found):
                return found
            moment = time.monotonic()
            if _counted(now) != _counted(last):
                last, changed = now, moment
            if moment >= until or (moment - changed >= _STILL_S and not now.running):
                return found
            await asyncio.sleep(_LOOK_S)


def _counted(metrics: EngineMetrics) -> tuple[int | None, ...]:
    return metrics.requests_finished, metrics.prompt_tokens, metrics.generation_tokens
