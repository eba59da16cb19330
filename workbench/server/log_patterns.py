"""Known lines of engine logs with their cause and a fix, and the search for the line that explains a failure.

The search is fast enough for every line of a busy server: it first looks for fixed texts in many lines at once. Only
lines that contain one of these texts are checked by a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from workbench.model.findings import Finding, Level

_LEVELS = {
    "critical": Level.ERROR,
    "fatal": Level.ERROR,
    "warn": Level.WARN,
    "hint": Level.HINT,
    "info": Level.INFO,
    "ok": Level.INFO,
}
_LONGEST_LINE = 1500  # characters of a line that are searched


@dataclass(frozen=True, slots=True)
class LogPattern:
    """A known line of an engine's log. `engines` is empty if the line can occur in the log of any engine. `only_last`
    means that the line is a problem only if it stays the last line of the log."""

    id: str
    regex: re.Pattern[str]
    needles: tuple[str, ...]
    severity: str
    engines: tuple[str, ...]
    cause: str
    fix: str
    source: str
    sample: str
    note: str | None = None
    only_last: bool = False

    @property
    def level(self) -> Level:
        return _LEVELS[self.severity]

    def finding(self, line: str) -> Finding:
        text = f"{self.cause}. {self.note}" if self.note else self.cause
        evidence = plain(line)
        return Finding(self.level, f"log.{self.id}", text, fix=self.fix, source=self.source, evidence=evidence)


@cache
def patterns(engine: str | None = None) -> tuple[LogPattern, ...]:
    """Return the known log lines of `engine`, or those of all engines."""
    if engine is not None:
        return tuple(p for p in patterns() if not p.engines or engine in p.engines)
    import json
    from importlib.resources import files

    rows = json.loads(files("workbench.engines").joinpath("log_patterns.json").read_text("utf-8"))["patterns"]
    return tuple(
        LogPattern(
            **{
                **row,
                "regex": re.compile(row["regex"], re.IGNORECASE),
                "needles": tuple(row["needles"]),
                "engines": tuple(row["engines"]),
            }
        )
        for row in rows
    )


def match(lines: Sequence[str], engine: str | None = None) -> tuple[Finding, ...]:
    """Return a finding for each known log line that occurs in `lines`, in the order of the lines. The first occurrence
    of each is its evidence."""
    found = [(index, p.finding(line)) for p, index, line in _matches(lines, engine)]
    return tuple(finding for _, finding in sorted(found, key=lambda item: item[0]))


def stuck(last_line: str, engine: str | None = None) -> tuple[Finding, ...]:
    """Return the known explanations for a server that is not ready and whose log has ended with `last_line` for
    minutes."""
    return tuple(p.finding(last_line) for p in patterns(engine) if p.only_last and p.regex.search(last_line))


def _matches(lines: Sequence[str], engine: str | None) -> Iterator[tuple[LogPattern, int, str]]:
    text = "\n".join(lines)
    lower = text.lower()  # keeps the newlines in place, unlike other offsets
    possible = [p for p in patterns(engine) if not p.only_last and any(n in lower for n in p.needles)]
    if not possible:
        return
    split, split_lower = text.split("\n"), lower.split("\n")
    for pattern in possible:
        candidates = (i for i, line in enumerate(split_lower) if any(n in line for n in pattern.needles))
        lines_of_it = (i for i in candidates if pattern.regex.search(split[i][:_LONGEST_LINE]))
        hit = next((i for i in lines_of_it if not _SOURCE.match(plain(split[i]))), None)
        if hit is not None:
            yield pattern, hit, split[hit]


# The first real error

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
# "(EngineCore pid=12) ERROR 11-21 00:30:10 [core.py:402] ", "[2026-11-20 23:41:58 TP0] ", "0.00.100.000 E srv   "
_PREFIX = re.compile(
    r"^(?:\([\w ]+?(?: pid=\d+)?\)\s*)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\s+(?:\d\d-\d\d \d\d:\d\d:\d\d\s+\[[^\]]*\]\s?)?"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s*"
    r"|\d+\.\d\d\.\d{3}\.\d{3} (?P<letter>[IWEDT]) \S+\s*)?"
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|OutOfResources))(?::|$)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^During handling of|^The above exception")
_PLAIN_ERROR = re.compile(
    r"^(?:[\w./-]+(?: [a-z]+)?: )?(?:fatal )?error: |^(?:\S+: )?(?:(?:line )?\d+: )?\S+: (?:command )?not found$|"
    r"^Fatal Python error|^Segmentation fault|^Killed$|^terminate called|^Bus error|: No such file or directory$",
    re.IGNORECASE,
)
# Lines that only report that something else went wrong.
_WRAPPER = re.compile(
    r"EngineCore failed to start|Engine core initialization failed|WorkerProc initialization failed|"
    r"EngineCore encountered a fatal error|EngineDeadError|See root cause above|Scheduler hit an exception|"
    r"Received sigquit from a child|SIGQUIT received|child process.*(?:died|exited|failed)|crashed with exit code|"
    r"exiting due to|Failed to init server|output_handler failed|^Error in [\w ]*completion[\w ]*\.$",
    re.IGNORECASE,
)
_EMPTIEST = re.compile(r"output_handler failed|^Error in [\w ]*completion")  # any other wrapper says more
_SOURCE = re.compile(r"raise\b|(?:return )?[\w.]+\($")  # a line of source code in a traceback: the message follows it
# Errors of one request or of an optional part, after which a server continues to run.
_HARMLESS = re.compile(r"Error with model error=|Ignore import error|Exception ignored in|resource_tracker")
_VALUE_ERROR = re.compile(r"^\s+(?:Value error, )?(?P<why>\S.*?) \[type=\w+")


def first_error(lines: Sequence[str], engine: str | None = None) -> str | None:
    """Return the log line that explains the failure, without time and level; None if no line looks like an error.

    It is the first known fatal line. Otherwise it is the first exception or error that does not merely report another
    one.
    """
    split = "\n".join(lines).split("\n")
    known = [(i, line) for p, i, line in _matches(split, engine) if p.level is Level.ERROR]
    if known:
        return plain(min(known)[1])
    wrapper: str | None = None
    for index, line in enumerate(split):
        error, message = _error_in(line)
        if not error:
            continue
        if "ValidationError" in message and (detail := _detail(split[index + 1 : index + 6])):
            return detail
        if not _WRAPPER.search(message):
            return message
        wrapper = message if wrapper is None or _EMPTIEST.search(wrapper) else wrapper
    return wrapper


def plain(line: str) -> str:
    """Return a log line as plain text of at most 500 characters, without colour, control characters, process name, time
    and level."""
    bare = _bare(line)
    prefix = _PREFIX.match(bare)
    return bare[prefix.end() if prefix else 0 :].strip()[:500]


def _bare(line: str) -> str:
    text = _ANSI.sub("", line[:_LONGEST_LINE])
    return "".join(c for c in text if c.isprintable() or c == "\t").rstrip()


def _error_in(line: str) -> tuple[bool, str]:
    bare = _bare(line)
    prefix = _PREFIX.match(bare)
    rest = bare[prefix.end() :] if prefix else bare
    noise = _TRACEBACK.search(rest) or _HARMLESS.search(rest) or rest.startswith((" ", "\t", "~", "^"))
    if noise or not rest.strip():
        return False, ""
    marked = prefix is not None and (prefix["level"] in ("ERROR", "CRITICAL", "FATAL") or prefix["letter"] == "E")
    if prefix is not None and (prefix["level"] in ("DEBUG", "INFO", "WARNING") or prefix["letter"] in tuple("IWDT")):
        return False, ""
    error = marked or bool(_EXCEPTION.match(rest) or _PLAIN_ERROR.search(rest))
    return error, rest.strip()[:500]


def _detail(following: Sequence[str]) -> str | None:
    """Return the explanation of a pydantic ValidationError from the lines that follow its first line; None if they
    contain none."""
    for line in following:
        bare = _bare(line)
        prefix = _PREFIX.match(bare)
        if found := _VALUE_ERROR.match(bare[prefix.end() :] if prefix else bare):
            return found["why"][:500]
    return None
