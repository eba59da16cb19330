"""The engine's own counters, read from its Prometheus page. They have the same names for all
engines.

`engine.metrics` lists the possible names of the Prometheus series for each counter, because engines
rename their series from version to version. The first name that the page contains is used. Labels
are ignored, because they differ between versions too: the values of all series with this name are
added, or averaged for a share such as KV cache use.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from workbench.model.server_run import EngineMetrics
from workbench.model.untrusted_numbers import EXACT, decimal, number
from workbench.server.small_requests import Get

if TYPE_CHECKING:
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
_LIVE = {"live_prompt_tokens": "prompt_tokens", "live_generation_tokens": "generation_tokens"}
_AFTER_NAME = ("{", " ", "\t")
_MOST_SERIES = 2000  # of one name: more would take long each second


async def fetch(get: Get, engine: Engine, timeout_s: float = TIMEOUT_S) -> EngineMetrics:
    """Return one reading of the engine's counters. Never raises: if the page cannot be read, every
    value is None and `absent` says why. `live_generation_tokens` includes the tokens of running
    requests even if the engine itself adds a request's tokens to its counter only when the request
    ends."""
    if engine.metrics_path is None:
        return no_metrics(f"{engine.title} has no metrics page")
    page = await get(engine.metrics_path, timeout_s)
    if page.status is None:
        return no_metrics(f"the metrics page {engine.metrics_path} cannot be read: {page.problem}")
    if page.status != 200:
        off = engine.metrics_flag and page.status in (404, 501)
        hint = f"; the server was started without --{engine.metrics_flag}" if off else ""
        return no_metrics(
            f"the metrics page {engine.metrics_path} answers HTTP status {page.status}{hint}"
        )
    read = parse(page.text, engine)
    if engine.slots_path is None or read.generation_tokens is None:
        return read
    # The engine's counter does not contain the output tokens of the requests that run now.
    slots = await get(engine.slots_path, timeout_s)
    running = _tokens_of_slots(slots.body) if slots.status == 200 else None
    if running is None:
        why = (
            f"{engine.title} counts output tokens when a request ends, and {engine.slots_path} "
            "answers "
        )
        why += f"HTTP status {slots.status}" if slots.status else f"nothing: {slots.problem}"
        return replace(
            read,
            live_generation_tokens=None,
            absent={**read.absent, "live_generation_tokens": why},
            unix_s=time.time(),
        )
    return replace(
        read, live_generation_tokens=read.generation_tokens + running, unix_s=time.time()
    )


def _tokens_of_slots(body: Any) -> int | None:
    """Return the number of output tokens that all running requests have so far. `body` is
    llama.cpp's JSON list of slots, each of which processes one request. None if it is not such a
    list."""
    try:
        busy = [slot for slot in body if slot["is_processing"]]
        counts = [_number(step["n_decoded"]) for slot in busy for step in slot["next_token"]]
    except (ValueError, KeyError, TypeError):
        return None
    return None if None in counts else round(sum(filter(None, counts)))


def parse(page: str, engine: Engine) -> EngineMetrics:
    """Return the engine's counters from `page`, the text of its Prometheus page. Values that the
    page lacks are None, and `absent` has the reasons."""
    page = f"\n{page}"  # every line has a line break before it
    values: dict[str, float | int] = {}
    absent: dict[str, str] = {}
    for field, names in _names(engine).items():
        found = _first_series(page, names)
        share = sum(found) / len(found) if found and field == "kv_use_pct" else None
        if share is not None and not 0.0 <= share <= 1.0:
            absent[field] = (
                f"the engine reports {100 * share:.0f} %, and a share of the KV "
                "cache is at most 100 %"
            )
        elif share is not None:
            values[field] = 100.0 * share
        elif found and sum(found) > EXACT:
            absent[field] = f"the engine reports {sum(found):.3g}, which is no possible count"
        elif found:
            values[field] = round(sum(found))
        elif names:
            absent[field] = f"the engine's metrics page does not contain {names[0]}"
        else:
            absent[field] = f"{engine.title} does not report this metric"
    if not values and "\n# TYPE " not in page:
        return no_metrics(f"{engine.metrics_path} is not a Prometheus page")
    hits, prompt = values.get("prefix_hit_tokens"), values.get("prompt_tokens")
    if hits is not None and prompt is not None:
        if engine.cached_beside_prompt:
            prompt = values["prompt_tokens"] = prompt + hits
        if "prefix_queries" not in engine.metrics:  # this engine looks up every prompt token
            values["prefix_query_tokens"] = prompt
            absent.pop("prefix_query_tokens", None)
    for field, counter in _LIVE.items():
        parts = [_series(page, name) for name in engine.live_metrics.get(counter, ())]
        if parts and all(parts):
            values[field] = round(sum(map(sum, parts)))
        elif counter in values:
            values[field] = values[counter]
        else:
            absent[field] = absent[counter]
    return EngineMetrics(**values, unix_s=time.time(), absent=absent)  # type: ignore[arg-type]


@cache
def _names(engine: Engine) -> dict[str, tuple[str, ...]]:
    return {
        field: tuple(engine.metrics.get(quantity, ())) for field, quantity in _QUANTITIES.items()
    }


def _first_series(page: str, names: Sequence[str]) -> list[float]:
    """Return the values of all series with the first of `names` that the page has."""
    for name in names:
        found = _series(page, name)
        if found:
            return found
    return []


def _series(page: str, name: str) -> list[float]:
    """Return the values of all series called `name`; [] if there are none, or more than
    _MOST_SERIES. A name such as 'requests{reason="stop"}' selects the series with that label.

    vLLM's page has 100 KB of histograms and is read every second, so the page is searched for the
    name instead of being parsed.
    """
    found: list[float] = []
    name, _, label = name.partition("{")
    label, begin = label.rstrip("}"), f"\n{name}"
    at = page.find(begin)
    while at >= 0:
        end = page.find("\n", at + 1)
        rest = page[at + len(begin) : end if end >= 0 else None]
        if rest[:1] in _AFTER_NAME and label in rest:
            words = rest.rpartition("}")[2].split(None, 1)
            value = decimal(words[0], 0, EXACT) if words else None
            if value is not None:
                found.append(value)
                if len(found) > _MOST_SERIES:
                    return []
        at = page.find(begin, at + len(begin))
    return found


def _number(text: str | float) -> float | None:
    """Return a value of the page as a float; None if the value is not a number from 0 to 2^53."""
    return decimal(text, 0, EXACT) if isinstance(text, str) else number(text, 0, EXACT)


def engine_of(page: str) -> Engine | None:
    """Return the engine that produced this Prometheus page, recognized by the prefix of its series;
    None if it is no known engine."""
    from workbench import engines

    for engine in map(engines.get, engines.names()):
        prefixes = {
            name.partition(":")[0] + ":" for several in engine.metrics.values() for name in several
        }
        if any(line.startswith(tuple(prefixes)) for line in page.splitlines()) and prefixes:
            return engine
    return None


def no_metrics(reason: str) -> EngineMetrics:
    """Return a reading in which every value is None, with `reason` as the reason for each."""
    return EngineMetrics(unix_s=time.time(), absent=dict.fromkeys((*_QUANTITIES, *_LIVE), reason))
