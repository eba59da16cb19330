"""The engine's own counters, read from its Prometheus page, under names that are the same for all engines.

`engine.metrics` lists the names of the Prometheus series for each quantity. Engines rename their series, so several
names are tried and the first one on the page is used. Labels are ignored, because they differ between versions: all
series of a name are added up, or averaged for a share such as KV cache use.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from workbench.model.server_run import EngineMetrics

if TYPE_CHECKING:
    import httpx

    from workbench.engines.base import Engine

TIMEOUT_S = 5.0
_QUANTITIES = {  # field of EngineMetrics: quantity of engines.base.METRICS
    "running": "running",
    "waiting": "waiting",
    "kv_use_pct": "kv_usage",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "requests_finished": "requests",
    "prefix_hit_tokens": "prefix_hits",
    "prefix_query_tokens": "prefix_queries",
    "preemptions": "preemptions",
    "spec_draft_tokens": "drafted",
    "spec_accepted_tokens": "accepted",
}
_MOST = 2.0**53  # larger counts are not exact as float and do not fit the database


async def fetch(http: httpx.AsyncClient, engine: Engine) -> EngineMetrics:
    """Return one reading of the engine's counters. Never raises: if the page cannot be read, every value is None and
    `absent` says why."""
    import httpx

    if engine.metrics_path is None:
        return no_metrics(f"{engine.title} has no metrics page")
    try:
        response = await http.get(engine.metrics_path, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        return no_metrics(
            f"the metrics page {engine.metrics_path} cannot be read: {str(error) or type(error).__name__}"
        )
    if response.status_code != 200:
        off = engine.metrics_flag and response.status_code in (404, 501)
        hint = f"; the server was started without --{engine.metrics_flag}" if off else ""
        return no_metrics(f"the metrics page {engine.metrics_path} answers HTTP status {response.status_code}{hint}")
    return parse(response.text, engine)


def parse(page: str, engine: Engine) -> EngineMetrics:
    """Return the engine's counters from the text of its Prometheus page. Values that the page lacks are None, and
    `absent` says why."""
    from prometheus_client.parser import text_string_to_metric_families

    names = {field: tuple(engine.metrics.get(quantity, ())) for field, quantity in _QUANTITIES.items()}
    wanted = {name for several in names.values() for name in several}
    series: dict[str, list[float]] = {}
    # vLLM's page is 100 KB of histograms and is read every second during a benchmark: parse only the wanted lines.
    relevant = "\n".join(line for line in page.splitlines() if line.startswith(tuple(wanted)))
    try:
        for family in text_string_to_metric_families(relevant + "\n" if relevant else page):
            for sample in family.samples:
                if sample.name in wanted and abs(sample.value) <= _MOST:  # no NaN either
                    series.setdefault(sample.name, []).append(sample.value)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return no_metrics(f"{engine.metrics_path} is not a Prometheus page: {error}")
    values: dict[str, float | int] = {}
    absent: dict[str, str] = {}
    for field, several in names.items():
        found = next((series[n] for n in several if n in series), None)
        if found is not None:
            values[field] = 100.0 * sum(found) / len(found) if field == "kv_use_pct" else round(sum(found))
        elif several:
            absent[field] = f"the engine's metrics page does not contain {several[0]}"
        else:
            absent[field] = f"{engine.title} does not report this metric"
    hits, prompt = values.get("prefix_hit_tokens"), values.get("prompt_tokens")
    if hits is not None and prompt is not None:
        if engine.cached_beside_prompt:
            prompt = values["prompt_tokens"] = prompt + hits
        if "prefix_queries" not in engine.metrics:  # this engine looks up every prompt token
            values["prefix_query_tokens"] = prompt
            absent.pop("prefix_query_tokens", None)
    return EngineMetrics(**values, unix_s=time.time(), absent=absent)  # type: ignore[arg-type]


def engine_of(page: str) -> Engine | None:
    """Return the engine whose series are on this Prometheus page, or None if the page belongs to no known engine."""
    from workbench import engines

    for engine in map(engines.get, engines.names()):
        prefixes = {name.partition(":")[0] + ":" for several in engine.metrics.values() for name in several}
        if any(line.startswith(tuple(prefixes)) for line in page.splitlines()) and prefixes:
            return engine
    return None


def no_metrics(reason: str) -> EngineMetrics:
    """Return engine counters in which every value is None, with `reason` for each."""
    return EngineMetrics(unix_s=time.time(), absent=dict.fromkeys(_QUANTITIES, reason))
