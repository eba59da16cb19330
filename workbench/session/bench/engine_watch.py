"""The engine's own metrics before, during and after one benchmark, read from the engine's metrics
page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from workbench.hosts.task_cancellation import cancel_and_wait
from workbench.model.known_values import known_values
from workbench.model.server_run import EngineMetrics
from workbench.server import engine_counters
from workbench.session.bench.gpu_meter import RequestCounts

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.model.bench import EngineDuring
    from workbench.server.small_requests import AskPath

READ_INTERVAL_S = 1.0
COUNTERS_SETTLE_S = 3.0  # at most: the counters lag the last answer by up to a second
_UNCHANGED_COUNTERS_S = 1.2  # counters that do not change for this long have settled
_POLL_INTERVAL_S = 0.1


class EngineWatch:
    """Reads the engine's metrics before, during and after a load: call `read_counters_before_load`,
    run the load inside `watch_during_load`, then call `read_counters_after_load`. No method raises
    an error for a metric that cannot be read: the metric is None and has a reason. `ask` requests
    pages of the server. If `engine` is None, the engine is identified by its metrics page.
    `on_reading` is called with each reading during the load."""

    def __init__(
        self,
        ask: AskPath,
        engine: Engine | None,
        on_reading: Callable[[EngineMetrics], None] = lambda reading: None,
    ) -> None:
        self._ask, self._hear = ask, on_reading
        self.engine = engine
        self._problem = ""  # why the engine could not be identified
        self._before = EngineMetrics()
        self._samples: list[EngineMetrics] = []

    async def identify_engine(self) -> None:
        """Identify the engine by its metrics page, if the engine is not known. The page is read at
        most once for this."""
        if self.engine is None and not self._problem:
            await self._identify_engine_from_metrics_page()

    async def read_counters(self) -> EngineMetrics:
        """Return the engine's present metrics. If they cannot be read, every metric is None and has
        the reason."""
        from workbench.server import metrics
        from workbench.server.readiness import ASKED_BY_QUERY
        from workbench.server.small_requests import make_get_without_body

        await self.identify_engine()
        if self.engine is None:
            return metrics.metrics_without_values(self._problem)
        return await metrics.fetch_metrics(
            make_get_without_body(self._ask, urlencode(ASKED_BY_QUERY)), self.engine
        )

    async def _identify_engine_from_metrics_page(self) -> None:
        from workbench.server import metrics

        answer = await self._ask("/metrics", None, metrics.TIMEOUT_S)
        if answer.status is None:
            self._problem = f"/metrics: {answer.problem}"
            return
        if answer.status != 200:
            self._problem = (
                f"/metrics answers with HTTP {answer.status}, so the engine is not known"
            )
            return
        self.engine = metrics.engine_of_metrics_page(answer.text)
        if self.engine is None:
            self._problem = "/metrics is not the page of an engine that Workbench knows"

    async def count_requests(self) -> RequestCounts:
        """Return the number of requests that the engine is serving or has queued now, None if it
        reports neither, and its counters of all requests so far."""
        now = await self.read_counters()
        known = known_values((now.running, now.waiting))
        return RequestCounts(sum(known) if known else None, _request_and_token_counters(now))

    async def read_counters_before_load(self) -> None:
        """Read the engine's counters before the load."""
        self._before = await self.read_counters()

    @asynccontextmanager
    async def watch_during_load(self) -> AsyncIterator[None]:
        """Read the engine's metrics every second while the block runs."""
        watch = asyncio.ensure_future(self._watch_counters())
        try:
            yield
        finally:
            await cancel_and_wait(watch)

    async def _watch_counters(self) -> None:
        while True:
            await asyncio.sleep(READ_INTERVAL_S)
            self._samples.append(await self.read_counters())
            self._hear(self._samples[-1])

    async def read_counters_after_load(
        self,
        t0_unix: float,
        t1_unix: float,
        is_complete: Callable[[EngineDuring], bool] = lambda counted: False,
    ) -> EngineDuring:
        """Return what the engine counted since the call of `read_counters_before_load`, and its
        other metrics between the two Unix times. Waits, at most 3 s, until `is_complete` is true of
        the result or the counters no longer change."""
        if not engine_counters.has_any_value(self._before):
            now = await self.read_counters()
            if not engine_counters.has_any_value(now):
                return engine_counters.counters_without_values(
                    next(iter(now.absent.values()), "no counters")
                )
        inside = [m for m in self._samples if t0_unix <= m.unix_s <= t1_unix]
        last, changed_s = EngineMetrics(), time.monotonic()
        until_s = changed_s + COUNTERS_SETTLE_S
        while True:
            now = await self.read_counters()
            found = engine_counters.summarize_counters(self._before, inside, now)
            if is_complete(found):
                return found
            moment_s = time.monotonic()
            if _request_and_token_counters(now) != _request_and_token_counters(last):
                last, changed_s = now, moment_s
            have_settled = moment_s - changed_s >= _UNCHANGED_COUNTERS_S and not now.running
            if have_settled or moment_s >= until_s:
                return found
            await asyncio.sleep(_POLL_INTERVAL_S)


def _request_and_token_counters(metrics: EngineMetrics) -> tuple[int | None, ...]:
    return metrics.requests_finished, metrics.prompt_tokens, metrics.generation_tokens
