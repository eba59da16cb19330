"""Patterns of log lines whose cause and fix Workbench knows, and the search for the line that
explains a failure.

The search is fast enough for every line of a busy server. It first drops lines that differ from
earlier lines only in numbers, then searches many lines at once for fixed texts. Only lines that
contain one of these texts are checked by a regular expression.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, lru_cache
from typing import Any

from workbench.model.findings import Finding, Level, PlanChange, by_severity
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import ANY, decimal

_LEVELS = {
    "critical": Level.ERROR,
    "fatal": Level.ERROR,
    "warn": Level.WARN,
    "hint": Level.HINT,
    "harmless": Level.INFO,
    "info": Level.INFO,
    "ok": Level.INFO,
}
_LONGEST_LINE = 1500  # characters of a line that are searched
_NUMBERS = str.maketrans("", "", "0123456789abcdefABCDEF")  # numbers, ids and addresses
MOST_FORMS = 5000  # of lines that are remembered


@dataclass(frozen=True, slots=True)
class LogPattern:
    """One kind of log lines, with their cause and fix. `regex` matches such a line. `engines` names
    the engines that write it, () stands for all. `only_last` means that it is a problem only while
    it is the last line of the log. `general` means that it explains only the kind of an error, and
    applies to error lines that no other pattern explains. `changes` has the plan changes of the fix
    by engine name, "" for any engine. Their values may refer to groups of `regex` (see
    engines/log_patterns.json)."""

    id: str
    regex: str
    needles: tuple[str, ...]
    severity: str
    engines: tuple[str, ...]
    cause: str
    fix: str
    source: str
    sample: str
    note: str | None = None
    only_last: bool = False
    general: bool = False
    changes: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    fixes: Mapping[str, str] = field(default_factory=dict)

    @property
    def level(self) -> Level:
        return _LEVELS[self.severity]

    def is_in(self, line: str) -> bool:
        # compiled when it is first needed
        return re.search(self.regex, line, re.IGNORECASE) is not None

    def finding(self, line: str, engine: str | None) -> Finding:
        """Return the finding about `line`, a log line of `engine` that matches this pattern. If
        `engine` is None, the finding has plan changes only if they do not depend on the engine or
        exist for one engine only."""
        text = f"{self.cause}. {self.note}" if self.note else self.cause
        text = f"harmless: {text}" if self.severity == "harmless" else text
        evidence, changes = plain(line), self._changes(line[:_LONGEST_LINE], engine)
        code = f"log.{self.id}"
        return Finding(
            self.level,
            code,
            text,
            fix=self.fixes.get(engine or "", self.fix),
            source=self.source,
            evidence=evidence,
            changes=changes,
        )

    def _changes(self, line: str, engine: str | None) -> tuple[PlanChange, ...]:
        only = (
            next(iter(self.changes.values())) if len(self.changes) == 1 and engine is None else ()
        )
        rows = self.changes.get(engine or "") or self.changes.get("") or only
        found = re.search(self.regex, line, re.IGNORECASE) if rows else None
        if found is None:
            return ()
        groups = found.groupdict()
        filled = [
            (_filled(name, groups), _filled(value, groups), bool(env)) for name, value, *env in rows
        ]
        missing = any(_UNKNOWN in (name, value) for name, value, _ in filled)
        return (
            ()
            if missing
            else tuple(PlanChange(str(name), value, env) for name, value, env in filled)
        )


_UNKNOWN = object()  # a group that the line lacks


def _filled(text: Any, groups: Mapping[str, str | None]) -> Any:
    """Return `text`, the name or value of a plan change, with `groups`, the parts of the matched
    log line, filled in. "{GROUP}" becomes the text or number of that group, and {"share": [A, B]}
    the quotient of two groups. Return _UNKNOWN if a group is missing."""
    if isinstance(text, dict):
        first, second = (decimal(groups[name], *ANY) for name in text["share"])
        return math.floor(100 * first / second) / 100 if first and second else _UNKNOWN
    name = text[1:-1] if isinstance(text, str) and text.startswith("{") else None
    if name is None:
        return text
    value = groups[name]
    if value is None:
        return _UNKNOWN
    return int(value) if value.isdecimal() else value


@cache
def patterns(engine: str | None = None) -> tuple[LogPattern, ...]:
    """Return the log patterns that apply to `engine`, or the patterns of all engines."""
    if engine is not None:
        return tuple(p for p in patterns() if not p.engines or engine in p.engines)
    return tuple(
        LogPattern(
            **{
                **row,
                "needles": tuple(row["needles"]),
                "engines": tuple(row["engines"]),
            }
        )
        for row in _document()["patterns"]
    )


@cache
def _document() -> dict[str, Any]:
    import json
    from importlib.resources import files

    document: dict[str, Any] = json.loads(
        files("workbench.engines").joinpath("log_patterns.json").read_text("utf-8")
    )
    return document


def match(lines: Sequence[str], engine: str | None = None) -> tuple[Finding, ...]:
    """Return one finding for each log pattern that matches a line of `lines`, in the order of the
    lines. The evidence of a finding is the first line that matches."""
    found = [(index, p.finding(line, engine)) for p, index, line in _matches(lines, engine)]
    return tuple(finding for _, finding in sorted(found, key=lambda item: item[0]))


@lru_cache(maxsize=4096)
def explain(line: str, engine: str | None = None) -> Finding | None:
    """Return the most severe finding about one line of a log; None if no log pattern matches the
    line."""
    return next(iter(by_severity(match((line,), engine))), None)


def stuck(
    last_line: str, engine: str | None, phase: str | None, silent_s: float
) -> tuple[Finding, ...]:
    """Return findings with possible reasons why a starting server has written nothing after
    `last_line` for `silent_s` seconds. `phase` is the start-up phase that the log reported last."""
    known = (
        p.finding(last_line, engine) for p in patterns(engine) if p.only_last and p.is_in(last_line)
    )
    why = next(row for row in _document()["phases"] if re.search(row["phase"], phase or ""))
    text = (
        f"no new line in the log for {silent_s // 60:.0f} min, in the phase "
        f"“{phase or 'starting'}”: {why['cause']}"
    )
    evidence = plain(last_line) or None
    return *known, Finding(Level.WARN, "start.stuck", text, fix=why["fix"], evidence=evidence)


class LogScan:
    """Searches a growing log for lines that match a log pattern. `found` has one finding for each
    pattern, in the order of the log, with the first matching line as its evidence.

    A busy log repeats a few kinds of lines with different numbers. A line that differs from an
    earlier line only in its numbers is not searched again, which makes the search 20 times cheaper.
    """

    def __init__(self, engine: str | None = None) -> None:
        self.engine = engine
        self.found: tuple[Finding, ...] = ()
        self._codes: set[str] = set()
        self._forms: set[str] = set()

    @property
    def to_act_on(self) -> tuple[Finding, ...]:
        """The findings about the log that are more than information (above the level INFO), the
        most severe first."""
        told = without_consequences(self.found)
        return by_severity(finding for finding in told if finding.level is not Level.INFO)

    def feed(self, lines: Sequence[str], forms: Sequence[str], first: int | None) -> None:
        """Search new lines of the log for known problems, and add findings to `found`. `forms` are
        the same lines without their numbers, from `forms_of`. `first` is the number of the first
        new line in the log, counted from 1, or None if unknown."""
        fresh = set(forms) - self._forms
        if not fresh:
            return
        self._forms = self._forms | fresh if len(self._forms) < MOST_FORMS else fresh
        chosen = [index for index, form in enumerate(forms) if form in fresh]
        for pattern, index, line in sorted(
            _matches([lines[i] for i in chosen], self.engine), key=lambda m: m[1]
        ):
            finding = pattern.finding(line, self.engine)
            if finding.code not in self._codes:
                self._codes.add(finding.code)
                number = first + chosen[index] if first is not None else None
                self.found = (*self.found, replace(finding, line=number))


def forms_of(lines: Sequence[str]) -> list[str]:
    """Return the lines without digits and without the letters a to f, which occur in numbers and
    addresses. Two lines that differ only in numbers thus become equal."""
    text = "\n".join(lines)
    if text.isascii():
        return text.translate(_NUMBERS).split("\n")
    # ASCII is translated 30 times faster.
    return [line.translate(_NUMBERS) if line.isascii() else line for line in lines]


def _matches(lines: Sequence[str], engine: str | None) -> Iterator[tuple[LogPattern, int, str]]:
    text = "\n".join(lines)
    lower = text.lower()  # keeps the newlines in place, unlike other offsets
    possible = [
        p for p in patterns(engine) if not p.only_last and any(n in lower for n in p.needles)
    ]
    if not possible:
        return
    split, split_lower = text.split("\n"), lower.split("\n")
    specific = [p for p in possible if not p.general]
    for pattern in possible:
        candidates = (
            i for i, line in enumerate(split_lower) if any(n in line for n in pattern.needles)
        )
        lines_of_it = (i for i in candidates if pattern.is_in(split[i][:_LONGEST_LINE]))
        unquoted = (i for i in lines_of_it if not _is_quoted(split[i]))
        if pattern.general:
            unquoted = (i for i in unquoted if _is_unexplained_error(split[i], specific))
        hit = next(unquoted, None)
        if hit is not None:
            yield pattern, hit, split[hit]


def _is_unexplained_error(line: str, specific: Sequence[LogPattern]) -> bool:
    """Return whether the line reports an error itself that none of the `specific` patterns
    explains."""
    error, message = _error_in(line)
    if not error or _WRAPPER.search(message):
        return False
    return not any(pattern.is_in(line[:_LONGEST_LINE]) for pattern in specific)


@cache
def _general_codes() -> frozenset[str]:
    return frozenset(f"log.{pattern.id}" for pattern in patterns() if pattern.general)


def without_consequences(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings without those of general patterns that probably follow from an error with
    a known cause. If no other finding has the level ERROR, only the first general one remains: the
    errors after it mostly follow from it."""
    kept = tuple(findings)
    general = [finding for finding in kept if finding.code in _general_codes()]
    known = any(f.level is Level.ERROR and f.code not in _general_codes() for f in kept)
    dropped = general if known else general[1:]
    return tuple(finding for finding in kept if finding not in dropped)


def _is_quoted(line: str) -> bool:
    """Return whether the line only quotes a text: a line of source code in a traceback, the prompt
    of a request, or all settings of the engine with their values."""
    bare = plain(line)
    return bool(_SOURCE.match(bare) or _REQUEST.match(bare) or _SETTINGS.search(bare))


# The first real error

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_IS_ERROR = ("ERROR", "CRITICAL", "FATAL", "E")  # levels
_NO_ERROR = ("DEBUG", "INFO", "WARNING", "I", "W", "D", "T")
# What stands in front of the message of a line: who wrote it, then the level or the time.
_PREFIX = re.compile(
    r"""
    # Kubernetes: "2026-07-30T07:27:23.496Z stderr F "; CI: "[2026-07-30T07:27:23.496Z]   "
    ^(?:\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)\]?\s
    (?:std(?:out|err)\ [FP]\ )?)?
    (?:\[(?:rank|ray)\ \d+\]\ )?  # of a server on several hosts
    (?:[\w.-]+\s+\|\ )?  # docker compose: "tabbyapi-1  | "
    # journal: "Aug 19 18:34:27 gpu vllm[12]: "
    (?:[A-Z][a-z]{2}\ [\ \d]\d\ \d\d:\d\d:\d\d\ \S+\ \S+\[\d+\]:\ )?
    (?:\((?:[\w\ ]+|[^()]{0,60}\bpid=\d+)\)\ ?){0,3}  # vLLM: "(EngineCore pid=12) "
    (?:
      # vLLM: "ERROR 11-21 00:30:10 [core.py:402] "
      (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\s+
      (?:\d\d-\d\d\ \d\d:\d\d:\d\d\s+(?:\[[^\]]*\]|[\w./]+:\d+\])\ ?)?
      # TabbyAPI: "2025-04-30 13:18:44.754 ERROR:    "
      | \d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d[.,]\d{3}\ (?P<tabby>[A-Z]+):\ {1,4}
      | (?P<uvicorn>ERROR|CRITICAL):\ {4}  # uvicorn, and TabbyAPI before 2025
      # SGLang: "[2026-11-20 23:41:58 TP0] "
      | \[\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d[^\]]*\]\s*
      | \[rank\d+\]:\ ?
      # llama.cpp: "0.00.100.000 E srv   "
      | (?:\[\d+\]\ )?\d+\.\d\d\.\d{3}\.\d{3}\ (?P<letter>[IWEDT])\ (?:[a-z]{3,4}\s+)?
    )?
    """,
    re.VERBOSE,
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|OutOfResources))(?::|$)"
)
# C++: the line after "terminate called after throwing an instance of ..."
_UNCAUGHT = re.compile(r"^\s+what\(\):\s+(\S.*)")
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|^During handling of|^The above "
    r"exception"
)
_PLAIN_ERROR = re.compile(
    r"^(?:[\w./-]+(?: [a-z]+)?: )?(?:fatal )?error: |^s\w+: fatal: "  # srun, sbatch, slurmd
    r"|^(?:docker: )?Error response from daemon: "
    r"|^(?:\S+: )?(?:(?:line )?\d+: )?\S+: (?:command )?not found$"
    r"|^Fatal Python error|^Segmentation fault|^Killed$|^terminate called|^Bus error"
    r"|^Illegal instruction|: No such file or directory$"
    r"|GGML_ASSERT\(|GGML_ASSERT: |GGML_ABORT|Assertion [`'].*['’] failed"
    r"|^(?:\S+: )?CUDA error\b|^nvcc fatal|(?:\(\d+\)|:\d+:\d+): (?:fatal |catastrophic )?error:"
    r"|^error loading model: |^\w+: error loading model|^llama_\w+: failed to (?:eval|decode)",
    re.IGNORECASE,
)
# Lines that only report that something else went wrong.
_WRAPPER = re.compile(
    r"EngineCore failed to start|Engine core initialization failed"
    r"|WorkerProc initialization failed|EngineCore encountered a fatal error|EngineDeadError"
    r"|See root cause above|Scheduler hit an exception|Received sigquit from a child"
    r"|SIGQUIT received|child process.*(?:died|exited|failed)|crashed with exit code"
    r"|exiting due to|Failed to init server|output_handler failed|^Error in [\w ]*completion[\w ]*\.$"
    r"|WorkerProc hit an exception|^terminate called after throwing"
    r"|Worker proc \S+ died unexpectedly|scheduler is dead\.|Executor failed\.$"
    r"|^ninja: |Ninja build failed|^\[\d+/\d+\] |^FAILED: |errors? detected in the compilation"
    r"|Exception in ASGI application|failed to load model|unable to load model|failed to create context|: CUDA error$",
    re.IGNORECASE,
)
# any other wrapper says more
_EMPTIEST = re.compile(r"output_handler failed|^Error in [\w ]*completion")
# A line of source code in a traceback: the message follows it.
_SOURCE = re.compile(
    r"""raise\b|(?:return )?[\w.]+\($|[rf]?["'](?!.*(?:Error|object)\b)|warnings\.warn\("""
)
# with the prompt, which anyone may write
_REQUEST = re.compile(r"Received request |Receive: obj=|Finish: obj=")
# the settings in force, which the engines write at each start
_SETTINGS = re.compile(
    r"server_args=(?:\w+\.)?ServerArgs\(|\bargs: Namespace\(|\bwith config: model=|non-default args: "
)
# Errors of one request or of an optional part, after which a server continues to run. What a
# scheduler writes when it ends a job, whose reason the launcher reports in full, is none of the
# server's either.
_HARMLESS = re.compile(
    r"Error with model error=|Ignore import error|Exception ignored "
    r"in|resource_tracker|^slurmstepd|^=>> PBS"
)
# The message of a pydantic ValidationError may end, with "[type=", some lines below.
_VALUE_ERROR = re.compile(
    r"^\s*Value error, (?P<why>\S.*?)(?: \[type=\w.*)?$|^\s+(?P<other>\S.*?) \[type=\w+"
)
_VALIDATION = re.compile(r"ValidationError|^\d+ validation errors? for ")


def first_error(lines: Sequence[str], engine: str | None = None) -> str | None:
    """Return the log line that explains the failure, without time and level; None if no line looks
    like an error. See `logged_error`."""
    found = logged_error(lines, engine)
    return found.text if found else None


@dataclass(frozen=True, slots=True)
class LoggedError:
    """The line of a log that explains a failure. `only_reports` says that the line only reports
    that something else went wrong, and that no line says what."""

    text: str  # without time and level
    only_reports: bool = False


def logged_error(lines: Sequence[str], engine: str | None = None) -> LoggedError | None:
    """Return the line of a log that explains a failure; None if no line looks like an error.

    It is the first line that matches a log pattern of the level ERROR that is not general. If there
    is none, it is the first exception or error that does not merely report an earlier error.
    """
    split = "\n".join(lines).split("\n")
    known = [
        (i, line)
        for p, i, line in _matches(split, engine)
        if p.level is Level.ERROR and not p.general
    ]
    if known:
        return LoggedError(plain(min(known)[1]))
    wrapper: str | None = None
    for index, line in enumerate(split):
        error, message = _error_in(line)
        if not error:
            continue
        detail = _detail(split[index + 1 : index + 6]) if _VALIDATION.search(message) else None
        if detail is not None:
            return LoggedError(detail)
        if message == "AssertionError":
            message = _with_condition(message, split[max(0, index - 4) : index])
        if not _WRAPPER.search(message):
            return LoggedError(message)
        wrapper = message if wrapper is None or _EMPTIEST.search(wrapper) else wrapper
    return None if wrapper is None else LoggedError(wrapper, only_reports=True)


def _with_condition(message: str, before: Sequence[str]) -> str:
    """Return the message of an assertion without a text, with the condition that a traceback shows
    in one of the lines `before` it."""
    texts = [plain(line) for line in before]
    condition = next((text for text in reversed(texts) if text.startswith("assert ")), None)
    return f"{message}: {condition}" if condition else message


def plain(line: str) -> str:
    """Return a log line as plain text of at most 500 characters. Colours, control characters,
    process name, time and level are removed."""
    bare = _bare(line)
    prefix = _PREFIX.match(bare)
    return bare[prefix.end() if prefix else 0 :].strip()[:500]


def _bare(line: str) -> str:
    text = _ANSI.sub("", line[:_LONGEST_LINE])
    return "".join(c for c in text if c.isprintable() or c == "\t").rstrip()


def _error_in(line: str) -> tuple[bool, str]:
    bare = _bare(line)
    if uncaught := _UNCAUGHT.match(bare):
        return True, uncaught[1][:500]
    prefix = _PREFIX.match(bare)
    rest = bare[prefix.end() :] if prefix else bare
    noise = (
        _TRACEBACK.search(rest)
        or _HARMLESS.search(rest)
        or rest.startswith((" ", "\t", "~", "^", "raise "))  # source code of a traceback
    )
    if noise or not rest.strip():
        return False, ""
    kinds = ("level", "tabby", "uvicorn", "letter")
    level = next((prefix[kind] for kind in kinds if prefix[kind]), "") if prefix else ""
    if level in _NO_ERROR:
        return False, ""
    marked = level in _IS_ERROR
    error = marked or bool(_EXCEPTION.match(rest) or _PLAIN_ERROR.search(rest))
    return error, rest.strip()[:500]


def _detail(following: Sequence[str]) -> str | None:
    """Return the explanation in a pydantic ValidationError; None if there is none. `following` are
    the log lines after the error's first line."""
    for line in following:
        bare = _bare(line)
        prefix = _PREFIX.match(bare)
        if found := _VALUE_ERROR.match(bare[prefix.end() :] if prefix else bare):
            return (found["why"] or found["other"])[:500]
    return None
