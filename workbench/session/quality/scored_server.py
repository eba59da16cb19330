"""One server whose answers are compared: which engine it is, its requests, and whether it serves
others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.bench import tls
from workbench.engines.answer_settings import collect_answer_settings
from workbench.model.bench import Conditions
from workbench.model.counts import count_of
from workbench.model.errors import BenchError, InputError
from workbench.model.secrets import mask_secrets_of_plan
from workbench.quality.instrument import Instrument, Progress
from workbench.quality.lanes import interface_class
from workbench.server.kept_connection import open_keep_alive_connection
from workbench.server.small_requests import AskPath, Reply
from workbench.session.bench.engine_watch import EngineWatch

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.session.bench.benchmark_load import BenchmarkLoad

_COUNTERS_INTERVAL_S = (
    1.0  # between two readings of the counters of a server that is idle otherwise
)
_UNCOUNTED_PATHS = (
    "/tokenize",
    "/v1/token/encode",
    "/v1/token/decode",
)  # not requests for the counters


class ScoredServer:
    """A server under `load`. `ask` makes requests, and `watch` reads the engine's counters."""

    def __init__(
        self, load: BenchmarkLoad, ask: AskPath, watch: EngineWatch, engine: Engine
    ) -> None:
        self.load, self.engine = load, engine
        self._ask, self._watch = ask, watch
        self._sent = 0
        self._before: int | None = None

    @property
    def title(self) -> str:
        """The run or the URL of the server."""
        status = self.load.server.status
        return f"run {status.run_id}" if status is not None else self.load.server.address

    def make_instrument(self, on_progress: Progress) -> Instrument:
        """Return the instrument for this server. Raises BenchError if its engine gives no log
        probabilities that Workbench knows of."""
        name = self.engine.score_interface
        if name is None:
            raise BenchError(f"{self.engine.title} gives no log probabilities of a text")
        return Instrument(
            interface_class(name)(self._send_request, self.load.spec.model), on_progress
        )

    async def check_no_other_clients(self) -> None:
        """Raise InputError if the server serves others now: their requests would change the
        answers, and the scores would take memory that their requests need."""
        serving = await self.describe_other_clients_now()
        if serving:
            raise InputError(serving, next_step="wait until it is idle, or add --anyway")

    async def describe_other_clients_now(self) -> str:
        """Return a sentence if the server serves others now; "" if it does not, as far as it says.
        No request of this comparison may be in flight."""
        first = await self._watch.count_requests()
        await asyncio.sleep(_COUNTERS_INTERVAL_S)
        second = await self._watch.count_requests()
        busy = max(first.in_flight or 0, second.in_flight or 0)
        if not busy and first.counted == second.counted:
            return ""
        said = f"it has {count_of(busy, 'request')}" if busy else "its counters move"
        return f"{self.title} serves others ({said}), and its answers depend on their requests"

    async def start_counting_requests(self) -> None:
        """Begin to count the requests of others."""
        self._before = (await self._watch.read_counters()).requests_finished

    async def describe_other_clients_requests(self) -> str:
        """Return a sentence about the requests of others that ended since
        `start_counting_requests`, or why they are not known; "" if there were none."""
        read = await self._watch.read_counters()
        after = read.requests_finished
        if after is None or self._before is None:
            why = read.absent.get("requests_finished", "its counter could not be read at first")
            return f"whether {self.title} served others meanwhile is not known: {why}"
        if after - self._before <= self._sent:
            return ""
        count = count_of(after - self._before - self._sent, "request")
        return f"{self.title} served {count} of others meanwhile"

    @property
    def conditions(self) -> dict[str, Any]:
        """The settings of the server on which its answers depend, by name."""
        record, status = self.load.server.record, self.load.server.status
        known = Conditions(
            host=self.load.server.host,
            engine=self.engine.name,
            engine_version=None,
            model=self.load.spec.model,
            address=self.load.server.address,
        )
        if record is not None:
            plan = mask_secrets_of_plan(record.plan)
            known = replace(
                known,
                engine_version=record.engine_version,
                model=plan.model or self.load.spec.model,
                argv=record.command.argv,
                env=dict(record.command.env),
                flags=plan.flag_values,
                image=status.image if status is not None else None,
            )
        return collect_answer_settings(known)

    @property
    def simulated(self) -> bool:
        record = self.load.server.record
        return self.load.server.simulated or (record is not None and record.simulated)

    async def _send_request(self, path: str, body: Mapping[str, Any], timeout_s: float) -> Reply:
        self._sent += path not in _UNCOUNTED_PATHS
        return await self._ask(path, body, timeout_s)


@asynccontextmanager
async def open_scored_server(load: BenchmarkLoad) -> AsyncIterator[ScoredServer]:
    """Open the server of a load for scores while the block runs. Raises BenchError if its engine is
    not known."""
    spec, key = load.spec, load.server_api_key
    async with open_keep_alive_connection(spec.url, key, lambda: tls.tls_context(spec)) as ask:
        watch = EngineWatch(ask, load.server.engine)
        await watch.identify_engine()
        if watch.engine is None:
            problem = next(iter((await watch.read_counters()).absent.values()), "it has no metrics")
            raise BenchError(
                f"the engine of {load.server.address} is not known: {problem}",
                next_step="start the server with its metrics, or give the run of Workbench",
            )
        yield ScoredServer(load, ask, watch, watch.engine)
