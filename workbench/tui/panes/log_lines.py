"""Short log lines: the time, the level if it is above INFO, and the message.

Engines put 40 to 60 cells of process, date, level and source in front of each line. The lines with
which an engine reports its speed become columns. A log that is scrolled to the right, and the hit of
a search, show the whole line.
"""

from __future__ import annotations

import re
from functools import lru_cache

# the lines in which engines report their speed, every ten seconds and every so many tokens
_VLLM_SPEED = re.compile(
    r"Engine 0*(?P<engine>\d+): Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
    r"Avg generation throughput: (?P<gen>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs?, "
    r"Waiting: (?P<waiting>\d+) reqs?(?:.{0,200}?KV cache usage: (?P<kv>[\d.]+)%)?"
)
_SGLANG_SPEED = re.compile(
    r"Decode batch.{0,20}?#running-req: (?P<running>\d+), .{0,120}?token usage: (?P<used>[\d.]+), "
    r".{0,200}?gen throughput \(token/s\): (?P<gen>[\d.]+), #queue-req: (?P<waiting>\d+)"
)
# each line of a server on several hosts begins with its rank
_RANK = re.compile(r"\[(rank|ray) (\d+)\] ")
_WHO = r"(?:\((?P<who>\w+)[^)]*\) )?"
_VLLM = re.compile(_WHO + r"(?P<level>[A-Z]{4,8}) \d\d-\d\d (?P<time>\d\d:\d\d:\d\d) \[[^\]]*\] ?")
_SGLANG = re.compile(
    r"\[\d{4}-\d\d-\d\d (?P<time>\d\d:\d\d:\d\d)(?P<who>[^\]]*)\] "
    r"(?:(?P<level>[A-Z]{4,8}):? +)?"
)
_UVICORN = re.compile(_WHO + r"(?P<level>[A-Z]{4,8}): {2,}")
_ACCESS = re.compile(r'"(?P<what>[A-Z]{3,7} \S+) HTTP/[\d.]+" (?P<status>\d{3})')
_SEARCHED = 250  # characters of a line, in which its request is
OWN = "?asked_by=workbench"  # see ASKED_BY in workbench/server/readiness.py
_KEPT_KINDS = 512
_PROBES = ("/health", "/metrics", "/v1/models", "/model_info", "/get_model_info")


def is_access(text: str) -> bool:
    """Return whether a log line reports an HTTP request that succeeded, or a probe of the server
    such as /health."""
    found = _ACCESS.search(text, 0, _SEARCHED)
    if found is None:
        return False
    return found["status"] < "400" or found["what"].split(" ", 1)[1].startswith(_PROBES)


def is_own_poll(text: str) -> bool:
    """Return whether a log line reports a request with which Workbench watches the server, and
    which succeeded."""
    if OWN not in text[:_SEARCHED]:
        return False
    found = _ACCESS.search(text, 0, _SEARCHED)
    return found is not None and found["status"] < "400"


@lru_cache(_KEPT_KINDS)  # the newest lines are looked at again for each drawing
def kind_of(text: str) -> str:
    """Return what a log line shares with others that may stand in one row with it: OWN for a request
    with which Workbench watches the server, the condensed line for another request, "" otherwise."""
    if is_own_poll(text):
        return OWN
    return condensed(text) if is_access(text) else ""


def condensed(text: str) -> str:
    """Return the time, the level if it is above INFO, and the message of a log line: "12:03:07
    WARNING text" for "(EngineCore pid=7) WARNING 11-21 12:03:07 [loader.py:1] text", and "r0
    12:03:07 text" for a line of "[rank 0]". Unknown formats are unchanged."""
    rank = _RANK.match(text)
    if rank is not None:
        return (
            f"{'r' if rank[1] == 'rank' else rank[1]}{rank[2]} "
            f"{_without_source(text[rank.end() :])}"
        )
    return _without_source(text)


@lru_cache(_KEPT_KINDS)
def short_line(text: str, width: int) -> str:
    """Return a log line without its source. A line in which the engine reports its speed has
    columns, in the longest form that fits into `width` cells: tokens per second of prompts and of
    answers, running and waiting requests, and the share of the KV cache that is used."""
    line = condensed(text)
    found = _VLLM_SPEED.search(line) or _SGLANG_SPEED.search(line)
    if found is None:
        return line
    values = found.groupdict()
    lead = line[: found.start()]
    if values.get("engine") is not None:
        lead += f"e{values['engine']} "
    used = values.get("kv")
    if values.get("used") is not None:
        used = f"{100 * float(values['used']):.1f}"
    kv = f"{used}%" if used is not None else "n/a"
    rounded = f"{float(used):.0f}%" if used is not None else "n/a"
    gen, run, wait = f"{float(values['gen']):.0f}", values["running"], values["waiting"]
    prompt = values.get("prompt")
    asked = f"prompt/s {float(prompt):>6.0f}  " if prompt is not None else ""
    brief = f"p/s {float(prompt):.0f} " if prompt is not None else ""
    forms = (
        f"{lead}{asked}gen/s {gen:>6}  running {run:>3}  waiting {wait:>3}  KV {kv:>5}",
        f"{lead}{brief}g/s {gen} run {run} wait {wait} KV {kv}",
        f"{lead}g/s {gen} r {run}+{wait} KV {kv}",
        f"{lead}{gen}/s r {run}+{wait} KV {rounded}",
    )
    return next((form for form in forms if len(form) <= width), forms[-1])


def _without_source(text: str) -> str:
    found = _VLLM.match(text) or _SGLANG.match(text) or _UVICORN.match(text)
    if found is None:
        return text
    groups = found.groupdict()
    lead = [groups.get("time"), groups["level"] if groups["level"] not in (None, "INFO") else None]
    rest = text[found.end() :]
    access = _ACCESS.search(rest)
    if access is not None:
        rest = f"{access['what']} {access['status']}"
    return " ".join([part for part in lead if part] + [rest])
