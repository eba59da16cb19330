"""Short log lines: the time, the level if it is above INFO, and the message.

Engines put 40 to 60 cells of process, date, level and source in front of each line. The lines with
which an engine reports its speed become columns. A log that is scrolled to the right, and the hit
of a search, show the whole line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.engines.base import Engine

# each line of a server on several hosts begins with its rank
_RANK = re.compile(r"\[(rank|ray) (\d+)\] ")
_UVICORN = re.compile(r"(?:\((?P<who>\w+)[^)]*\) )?(?P<level>[A-Z]{4,8}): {2,}")
_ACCESS = re.compile(
    # uvicorn, with which vLLM, SGLang and TabbyAPI serve
    r'"(?P<uvicorn>[A-Z]{3,7} \S+) HTTP/[\d.]+" (?P<uvicorn_status>\d{3})'
    # llama-server: method, path, address of the client, status
    r"|request: (?P<llama>[A-Z]{3,7} \S+) \S+ (?P<llama_status>\d{3})$"
)
_SEARCHED = 250  # characters of a line, in which its request is
OWN = "?asked_by=workbench"  # see ASKED_BY in workbench/server/readiness.py
_KEPT_KINDS = 512
_PROBES = ("/health", "/metrics", "/v1/models", "/model_info", "/get_model_info")


def _all_engines() -> Iterator[Engine]:
    from workbench import engines  # not for the first frame

    return map(engines.get_engine, engines.engine_names())


@cache
def _speed_line_patterns() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of the lines in which engines report their speed."""
    return tuple(filter(None, (engine.speed_log for engine in _all_engines())))


@cache
def _line_prefix_patterns() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of what stands in front of messages and becomes short."""
    return (*filter(None, (engine.shortened_log for engine in _all_engines())), _UVICORN)


def _request_and_status(text: str) -> tuple[str, str] | None:
    """Return (request, status) of the HTTP request that a log line reports, such as ("GET
    /metrics", "200"); None if the line reports no request."""
    found = _ACCESS.search(text, 0, _SEARCHED)
    if found is None:
        return None
    if found["uvicorn"] is not None:
        return found["uvicorn"], found["uvicorn_status"]
    return found["llama"], found["llama_status"]


def is_access_line(text: str) -> bool:
    """Return whether a log line reports an HTTP request that succeeded, or a probe of the server
    such as /health."""
    reported = _request_and_status(text)
    if reported is None:
        return False
    request, status = reported
    path = request.split(" ", 1)[1]
    return status < "400" or path.startswith(_PROBES)


def is_workbench_poll(text: str) -> bool:
    """Return whether a log line reports a request with which Workbench watches the server, and
    which succeeded."""
    if OWN not in text[:_SEARCHED]:
        return False
    reported = _request_and_status(text)
    return reported is not None and reported[1] < "400"


@lru_cache(_KEPT_KINDS)  # the newest lines are looked at again for each drawing
def line_group_key(text: str) -> str:
    """Return the key that log lines in one row share: OWN for a request with which Workbench
    watches the server; rank, request and status for another request that succeeded or is a probe.
    Return "" for any other line, which has a row of its own."""
    if is_workbench_poll(text):
        return OWN
    reported = _request_and_status(text)
    if reported is None or not is_access_line(text):
        return ""
    key = " ".join(reported)
    rank = _RANK.match(text)
    if rank is None:
        return key
    return rank[0] + key


def condense_log_line(text: str) -> str:
    """Return the time, the level if it is above INFO, and the message of a log line: "12:03:07
    WARNING text" for "(EngineCore pid=7) WARNING 11-21 12:03:07 [loader.py:1] text", and "r0
    12:03:07 text" for a line of "[rank 0]". Unknown formats are unchanged."""
    rank = _RANK.match(text)
    if rank is None:
        return _remove_source_prefix(text)
    kind = rank[1].replace("rank", "r")
    return f"{kind}{rank[2]} {_remove_source_prefix(text[rank.end() :])}"


@lru_cache(_KEPT_KINDS)
def format_log_line(text: str, width: int) -> str:
    """Return a log line without its source. A line in which the engine reports its speed has
    columns, in the longest form that fits into `width` cells: tokens per second of prompts and of
    answers, running and waiting requests, and the share of the KV cache that is used. A line that
    does not fit is not cut."""
    line = condense_log_line(text)
    found = next(filter(None, (pattern.search(line) for pattern in _speed_line_patterns())), None)
    if found is None:
        return line
    values = found.groupdict()
    lead = line[: found.start()]
    if values.get("engine") is not None:
        lead += f"e{values['engine']} "
    used = values.get("kv")
    if values.get("used") is not None:
        used = f"{100 * float(values['used']):.1f}"
    kv = rounded = "n/a"
    if used is not None:
        kv, rounded = f"{used}%", f"{float(used):.0f}%"
    gen, run, wait = f"{float(values['gen']):.0f}", values["running"], values["waiting"]
    asked = brief = ""
    if values.get("prompt") is not None:
        prompt = f"{float(values['prompt']):.0f}"
        asked, brief = f"prompt/s {prompt:>6}  ", f"p/s {prompt} "
    forms = (
        f"{lead}{asked}gen/s {gen:>6}  running {run:>3}  waiting {wait:>3}  KV {kv:>5}",
        f"{lead}{brief}g/s {gen} run {run} wait {wait} KV {kv}",
        f"{lead}g/s {gen} r {run}+{wait} KV {kv}",
        f"{lead}{gen}/s r {run}+{wait} KV {rounded}",
    )
    return next((form for form in forms if len(form) <= width), forms[-1])


def _remove_source_prefix(text: str) -> str:
    found = None
    for pattern in _line_prefix_patterns():  # a generator takes twice the time
        found = pattern.match(text)
        if found is not None:
            break
    if found is None:
        return text
    groups = found.groupdict()
    lead = [
        part for part in (groups.get("time"), groups["level"]) if part not in (None, "", "INFO")
    ]
    rest = text[found.end() :]
    access = _ACCESS.search(rest)
    if access is not None and access["uvicorn"] is not None:
        rest = f"{access['uvicorn']} {access['uvicorn_status']}"
    return " ".join([*lead, rest])
