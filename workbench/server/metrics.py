"""The engine's own counters from its Prometheus page, under one set of names for every engine.

Which series hold a quantity is the engine's knowledge (`engine.metrics`). Several names are tried in order, since
engines rename them; the first that is on the page counts. Labels differ per version and per data-parallel part, so
series are matched by name only and summed (a share, like KV cache use, is averaged).
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
_MOST = 2.0**53  # of a count: beyond it no float is one, and no database takes it


async def fetch(http: httpx.AsyncClient, engine: Engine) -> EngineMetrics:
    """One reading. Where there is none, every quantity is None with the same reason; nothing is raised."""
    import httpx

    if engine.metrics_path is None:
        return nothing(f"{engine.title} has no metrics page")
    try:
        response = await http.get(engine.metrics_path, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        return nothing(f"{engine.metrics_path}: {str(error) or type(error).__name__}")
    if response.status_code != 200:
        off = engine.metrics_flag and response.status_code in (404, 501)
        hint = f"; the server was started without --{engine.metrics_flag}" if off else ""
        return nothing(f"{engine.metrics_path} answers {response.status_code}{hint}")
    return parse(response.text, engine)


def parse(page: str, engine: Engine) -> EngineMetrics:
    """A Prometheus text page to EngineMetrics."""
    from prometheus_client.parser import text_string_to_metric_families

    names = {field: tuple(engine.metrics.get(quantity, ())) for field, quantity in _QUANTITIES.items()}
    wanted = {name for several in names.values() for name in several}
    series: dict[str, list[float]] = {}
    # vLLM's page is 100 KB of histograms, read every second during a benchmark: the rest of it is left out.
    ours = "\n".join(line for line in page.splitlines() if line.startswith(tuple(wanted)))
    try:
        for family in text_string_to_metric_families(ours + "\n" if ours else page):
            for sample in family.samples:
                if sample.name in wanted and abs(sample.value) <= _MOST:  # no NaN either
                    series.setdefault(sample.name, []).append(sample.value)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return nothing(f"{engine.metrics_path} is not a Prometheus page: {error}")
    values: dict[str, float | int] = {}
    absent: dict[str, str] = {}
    for field, several in names.items():
        found = next((series[n] for n in several if n in series), None)
        if found is not None:
            values[field] = 100.0 * sum(found) / len(found) if field == "kv_use_pct" else round(sum(found))
        elif several:
            absent[field] = f"{several[0]} is not on the page"
        else:
            absent[field] = f"{engine.title} does not count it"
    hits, prompt = values.get("prefix_hit_tokens"), values.get("prompt_tokens")
    if hits is not None and prompt is not None:
        if engine.cached_beside_prompt:
            prompt = values["prompt_tokens"] = prompt + hits
        if "prefix_queries" not in engine.metrics:  # every prompt token is looked up
            values["prefix_query_tokens"] = prompt
            absent.pop("prefix_query_tokens", None)
    return EngineMetrics(**values, unix_s=time.time(), absent=absent)  # type: ignore[arg-type]


def engine_of(page: str) -> Engine | None:
    """Whose page this is, by the names of its series; None for a page of something else."""
    from workbench import engines

    for engine in map(engines.get, engines.names()):
        prefixes = {name.partition(":")[0] + ":" for several in engine.metrics.values() for name in several}
        if any(line.startswith(tuple(prefixes)) for line in page.splitlines()) and prefixes:
            return engine
    return None


def nothing(reason: str) -> EngineMetrics:
    """No reading, and why."""
    return EngineMetrics(unix_s=time.time(), absent=dict.fromkeys(_QUANTITIES, reason))
