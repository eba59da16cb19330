"""The engine's own counters, read from its Prometheus page. They have the same names for all
engines.

`engine.metrics` lists the possible names of the Prometheus series for each counter, because engines
rename their series from version to version. The first name that the page contains is used. Labels
are ignored, because they differ between versions too: the values of all series with this name are
added, or averaged for a share such as KV cache use.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from workbench.model.server_run import EngineMetrics
from workbench.model.untrusted_numbers import EXACT, number_or_none, parse_decimal
from workbench.server.small_requests import GetPath

if TYPE_CHECKING:
    from workbench.engines.base import Engine

TIMEOUT_S = 5.0
_GAUGE_FIELDS = {  # field of EngineMetrics: quantity of engines.base.METRICS
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
_LIVE_COUNT_FIELDS = {
    "live_prompt_tokens": "prompt_tokens",
    "live_generation_tokens": "generation_tokens",
}
_MAX_SERIES_PER_NAME = 2000  # of one name: more would take long each second
_MAX_LINES = 50_000  # of all names
LinesByName = dict[str, list[str]]  # what follows the name in each line of a series, by name


async def fetch_metrics(
    get: GetPath, engine: Engine, timeout_s: float = TIMEOUT_S
) -> EngineMetrics:
    """Return one reading of the engine's counters. Never raises: a value that cannot be read is
    None, and `absent` says why. `live_generation_tokens` has the tokens of running requests, also
    for an engine that counts them when a request ends."""
    if engine.metrics_path is None:
        return metrics_without_values(f"{engine.title} has no metrics page")
    page = await get(engine.metrics_path, timeout_s)
    if page.status is None:
        return metrics_without_values(
            f"the metrics page {engine.metrics_path} cannot be read: {page.problem}"
        )
    if page.status != 200:
        off = engine.metrics_flag and page.status in (404, 501)
        hint = f"; the server was started without --{engine.metrics_flag}" if off else ""
        return metrics_without_values(
            f"the metrics page {engine.metrics_path} answers HTTP status {page.status}{hint}"
        )
    read = parse_metrics(page.text, engine)
    if engine.slots_path is None or read.generation_tokens is None:
        return read
    # The engine's counter does not contain the output tokens of the requests that run now.
    slots = await get(engine.slots_path, timeout_s)
    running = _count_slot_tokens(slots.body) if slots.status == 200 else None
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


def _count_slot_tokens(body: Any) -> int | None:
    """Return how many output tokens all running requests have so far, by `body`, llama.cpp's JSON
    list of slots, each of which processes one request. None if it is not such a list."""
    try:
        busy = [slot for slot in body if slot["is_processing"]]
        counts = [_parse_value(step["n_decoded"]) for slot in busy for step in slot["next_token"]]
    except (ValueError, KeyError, TypeError):
        return None
    if None in counts:
        return None
    return round(sum(filter(None, counts)))


def parse_metrics(page: str, engine: Engine) -> EngineMetrics:
    """Return the engine's counters from `page`, the text of its Prometheus page. Values that the
    page lacks are None, and `absent` has the reasons."""
    page = f"\n{page}"  # every line has a line break before it
    lines = _lines_of_read_series(page, engine)
    values: dict[str, float | int] = {}
    absent: dict[str, str] = {}
    for field, names in _metric_names(engine).items():
        value = _value_or_reason(field, _values_of_first_series(lines, names), names, engine)
        if isinstance(value, str):
            absent[field] = value
        else:
            values[field] = value
    if not values and "\n# TYPE " not in page:
        return metrics_without_values(f"{engine.metrics_path} is not a Prometheus page")
    _derive_prompt_and_prefix_counts(values, absent, engine)
    _add_live_counts(values, absent, lines, engine)
    return EngineMetrics(**values, unix_s=time.time(), absent=absent)  # type: ignore[arg-type]


def _value_or_reason(
    field: str, found: Sequence[float], names: Sequence[str], engine: Engine
) -> float | str:
    """Return the value of `field` from `found`, the values of its series: their sum, or for a share
    their mean in %. Return the reason, as text, if there is none. `names` are those of the
    series."""
    if not names:
        return f"{engine.title} does not report this metric"
    if not found:
        return f"the engine's metrics page does not contain {names[0]}"
    if field == "kv_use_pct":
        share = sum(found) / len(found)
        if 0.0 <= share <= 1.0:
            return 100.0 * share
        return (
            f"the engine reports {100 * share:.0f} %, and a share of the KV cache is at most 100 %"
        )
    if sum(found) > EXACT:
        return f"the engine reports {sum(found):.3g}, which is no possible count"
    return round(sum(found))


def _derive_prompt_and_prefix_counts(
    values: dict[str, float | int], absent: dict[str, str], engine: Engine
) -> None:
    """Add the tokens from the prefix cache to the prompt tokens in `values`, if the engine counts
    them apart. Use the prompt tokens as the looked-up ones if the engine does not count these. Do
    nothing if one of the two counts is unknown."""
    hits, prompt = values.get("prefix_hit_tokens"), values.get("prompt_tokens")
    if hits is None or prompt is None:
        return
    if engine.cached_beside_prompt:
        prompt = values["prompt_tokens"] = prompt + hits
    if "prefix_queries" not in engine.metrics:
        values["prefix_query_tokens"] = prompt
        absent.pop("prefix_query_tokens", None)


def _add_live_counts(
    values: dict[str, float | int],
    absent_reasons: dict[str, str],
    lines: LinesByName,
    engine: Engine,
) -> None:
    """Add the counts that also rise while requests run to `values`, or the reason to
    `absent_reasons`. An engine without series for them gets its counts of ended requests in their
    place."""
    for field, counter in _LIVE_COUNT_FIELDS.items():
        parts = [_values_of_series(lines, name) for name in engine.live_metrics.get(counter, ())]
        if parts and all(parts):
            values[field] = round(sum(map(sum, parts)))
        elif counter in values:
            values[field] = values[counter]
        else:
            absent_reasons[field] = absent_reasons[counter]


@cache
def _metric_names(engine: Engine) -> dict[str, tuple[str, ...]]:
    return {
        field: tuple(engine.metrics.get(quantity, ())) for field, quantity in _GAUGE_FIELDS.items()
    }


def _lines_of_read_series(page: str, engine: Engine) -> LinesByName:
    """Return what follows the name in each line of the series that `parse_metrics` reads, by name.
    At most _MAX_LINES lines are read. `page` must begin with a line break."""
    # one search for all names: vLLM's page has 100 KB of histograms, and is read every second
    lines: LinesByName = {}
    for line in islice(_metric_pattern(engine).finditer(page), _MAX_LINES):
        lines.setdefault(line[1], []).append(line[2])
    return lines


@cache
def _metric_pattern(engine: Engine) -> re.Pattern[str]:
    wanted = (*_metric_names(engine).values(), *engine.live_metrics.values())
    names = {name.partition("{")[0] for several in wanted for name in several}
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    return re.compile(f"\\n({'|'.join(map(re.escape, longest_first))})([{{ \\t][^\\n]*)")


def _values_of_first_series(found: LinesByName, names: Sequence[str]) -> list[float]:
    """Return the values of all series with the first of `names` that has any; [] if none has."""
    return next(filter(None, (_values_of_series(found, name) for name in names)), [])


def _values_of_series(found: LinesByName, name: str) -> list[float]:
    """Return the values of all series called `name`; [] if there are none, or more than
    _MAX_SERIES_PER_NAME. A name such as 'requests{reason="stop"}' means those with that label."""
    name, _, label = name.partition("{")
    label, lines = label.rstrip("}"), found.get(name, ())
    if len(lines) > _MAX_SERIES_PER_NAME:
        return []
    values: list[float] = []
    for rest in lines:
        words = rest.rpartition("}")[2].split(None, 1) if label in rest else ()
        value = parse_decimal(words[0], 0, EXACT) if words else None
        if value is not None:
            values.append(value)
    return values


def _parse_value(text: str | float) -> float | None:
    """Return a value of an answer as a float; None if it is not a number from 0 to EXACT (2^53)."""
    return (
        parse_decimal(text, 0, EXACT) if isinstance(text, str) else number_or_none(text, 0, EXACT)
    )


def engine_of_metrics_page(page: str) -> Engine | None:
    """Return the engine that wrote the Prometheus page `page`, by the prefix of its series; None if
    no known engine did."""
    from workbench import engines

    for engine in map(engines.get_engine, engines.engine_names()):
        prefixes = {
            name.partition(":")[0] + ":" for several in engine.metrics.values() for name in several
        }
        if any(line.startswith(tuple(prefixes)) for line in page.splitlines()):
            return engine
    return None


def metrics_without_values(reason: str) -> EngineMetrics:
    """Return a reading in which every value is None, and `absent` has `reason` for each."""
    return EngineMetrics(
        unix_s=time.time(), absent=dict.fromkeys((*_GAUGE_FIELDS, *_LIVE_COUNT_FIELDS), reason)
    )
