"""The engine's own counters from its Prometheus page, under one set of names for every engine.

Which series hold a quantity is the engine's knowledge (`engine.metrics`). Several names are tried in order, since
engines rename them; the first that is on the page counts. Labels differ per version and per data-parallel part, so
series are matched by name only and summed (a share, like KV cache use, is averaged).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

from workbench.model.run import EngineMetrics

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 5.0
_AVERAGED = frozenset({"kv_use_pct"})
QUANTITIES = tuple(f.name for f in fields(EngineMetrics) if f.name not in ("unix_s", "absent"))


class Metered(Protocol):
    """The part of an engine that is needed here. `metrics`: quantity (a field of EngineMetrics) to series name(s);
    a share of 1 under "kv_use_pct" is turned into percent."""

    @property
    def title(self) -> str: ...
    @property
    def metrics_path(self) -> str | None: ...
    @property
    def metrics(self) -> Mapping[str, Any]: ...


async def fetch(http: httpx.AsyncClient, engine: Metered) -> EngineMetrics:
    """One reading. Where there is none, every quantity is None with the same reason; nothing is raised."""
    import httpx

    if engine.metrics_path is None:
        return _nothing(f"{engine.title} has no metrics page")
    try:
        response = await http.get(engine.metrics_path, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        return _nothing(f"{engine.metrics_path}: {str(error) or type(error).__name__}")
    if response.status_code != 200:
        hint = "; it was not switched on when the server was started" if response.status_code in (404, 501) else ""
        return _nothing(f"{engine.metrics_path} answers {response.status_code}{hint}")
    return parse(response.text, engine)


def parse(page: str, engine: Metered) -> EngineMetrics:
    """A Prometheus text page to EngineMetrics."""
    from prometheus_client.parser import text_string_to_metric_families

    names = {q: _names(engine.metrics.get(q)) for q in QUANTITIES}
    wanted = {name for several in names.values() for name in several}
    series: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name in wanted and math.isfinite(sample.value):
                    series.setdefault(sample.name, []).append(sample.value)
    except ValueError as error:
        return _nothing(f"{engine.metrics_path} is not a Prometheus page: {error}")
    values: dict[str, float | int] = {}
    absent: dict[str, str] = {}
    for quantity, several in names.items():
        found = next((series[n] for n in several if n in series), None)
        if found is not None:
            values[quantity] = 100.0 * sum(found) / len(found) if quantity in _AVERAGED else round(sum(found))
        elif several:
            absent[quantity] = f"{several[0]} is not on the page"
        else:
            absent[quantity] = f"{engine.title} does not count it"
    return EngineMetrics(**values, unix_s=time.time(), absent=absent)  # type: ignore[arg-type]


def _names(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _nothing(reason: str) -> EngineMetrics:
    return EngineMetrics(unix_s=time.time(), absent=dict.fromkeys(QUANTITIES, reason))
