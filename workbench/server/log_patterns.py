"""Patterns of log lines whose cause and fix Workbench knows, and the search for the line that
explains a failure.

The search is fast enough for every line of a busy server. It first drops lines that differ from
earlier lines only in numbers, then searches many lines at once for fixed texts. Only lines that
contain one of these texts are checked by a regular expression.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, lru_cache
from itertools import filterfalse
from operator import attrgetter
from typing import Any, NamedTuple

from workbench.model.findings import Finding, Level, PlanChange, by_severity
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import ANY, parse_decimal
from workbench.server import native_backtraces, tracebacks
from workbench.server.tracebacks import Frame, RaisedError, TracebackReader

_LEVEL_OF_SEVERITY = {
    "critical": Level.ERROR,
    "fatal": Level.ERROR,
    "warn": Level.WARN,
    "hint": Level.HINT,
    "harmless": Level.INFO,
    "info": Level.INFO,
    "ok": Level.INFO,
}
_ONE_REQUEST_FAILED_TEXT = "one request failed, not the server"
_MAX_SEARCHED_CHARACTERS = 1500  # characters of a line that are searched
_MAX_EVIDENCE_CHARACTERS = 300  # of a line before a match, with which it is told
_WITHOUT_DIGITS = str.maketrans("", "", "0123456789abcdefABCDEF")  # numbers, ids and addresses
MAX_REMEMBERED_FORMS = 5000  # of lines that are remembered


@dataclass(frozen=True, slots=True)
class LogPattern:
    """One kind of log lines, which `regex` matches, with their cause and fix. `engines` names the
    engines that write them, () for all. What a pattern may be:

    only_last  a problem only while the line is the last one of the log
    general    names only the kind of an error; counts where no other pattern explains the error
    placed     names a file or a function of the engine, so that the finding names the engine's part
    follows    mostly follows from another error, beside which it is left out
    fix_first  names what to change, so that its fix stands before that of the engine's part

    `changes` has the plan changes of the fix by engine name, "" for any engine. Their values may
    refer to groups of `regex` (see engines/log_patterns.json)."""

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
    placed: bool = False
    follows: bool = False
    fix_first: bool = False
    changes: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    fixes: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The code of the findings about lines that match this pattern."""
        return f"log.{self.id}"

    @property
    def level(self) -> Level:
        return _LEVEL_OF_SEVERITY[self.severity]

    def applies_to(self, engine: str) -> bool:
        return not self.engines or engine in self.engines

    def level_of(self, line: str) -> Level:
        """Return the level of a finding about `line`: that of the pattern, but WARN in place of
        ERROR if the engine calls the line a warning, or wrote it where it handles a request."""
        if self.level is not Level.ERROR:
            return self.level
        goes_on = _is_marked_as_warning(line) or _REQUEST_HANDLER_LINE.search(line)
        return Level.WARN if goes_on else Level.ERROR

    def has_needle_in(self, lower_text: str) -> bool:
        """Return whether `lower_text`, in lower case, has one of the needles. Without one, the
        pattern cannot match."""
        return any(needle in lower_text for needle in self.needles)

    def matches(self, line: str) -> bool:
        # compiled when it is first needed
        return re.search(self.regex, line.rstrip(), re.IGNORECASE) is not None

    def make_finding(self, line: str, engine: str | None) -> Finding:
        """Return the finding about `line`, a log line of `engine` that matches this pattern. With
        None for the engine, it has plan changes only if they do not depend on the engine, or if the
        pattern has those of one engine only."""
        text = ". ".join(filter(None, (self.cause, self.note)))
        if self.severity == "harmless":
            text = f"harmless: {text}"
        if self.level is Level.ERROR and _REQUEST_HANDLER_LINE.search(line):
            text = f"{_ONE_REQUEST_FAILED_TEXT}: {text}"
        evidence = self._quote_match(line)
        changes = self._propose_changes(line[:_MAX_SEARCHED_CHARACTERS], engine)
        fix = self.fixes.get(engine or "", self.fix)
        part = _engine_part_of_path(_SOURCE_ROOT.sub("", evidence)) if self.placed else None
        if part is not None:
            text, fix = f"{text}, in {part.name}", f"{part.fix}; or else: {fix}"
        return Finding(
            self.level_of(line),
            self.code,
            text,
            fix=fix,
            source=self.source,
            evidence=evidence,
            changes=changes,
        )

    def _quote_match(self, line: str) -> str:
        """Return the plain line, or its end from the match on if that is late, as behind a progress
        bar."""
        text = strip_log_prefix(line)
        found = re.search(self.regex, line[:_MAX_SEARCHED_CHARACTERS], re.IGNORECASE)
        if found is None or found[0] in text:
            return text
        if found.start() <= _MAX_EVIDENCE_CHARACTERS:
            return text
        return strip_log_prefix(f"… {line[found.start() :]}")

    def _propose_changes(self, line: str, engine: str | None) -> tuple[PlanChange, ...]:
        found = re.search(self.regex, line, re.IGNORECASE)
        if found is None:
            return ()
        groups = found.groupdict()
        changes = []
        for name_form, value_form, *env in self._rows_of_plan_changes(engine):
            name = _insert_match_groups(name_form, groups)
            value = _insert_match_groups(value_form, groups)
            if _MISSING_GROUP in (name, value):
                return ()
            changes.append(PlanChange(str(name), value, bool(env)))
        return tuple(changes)

    def _rows_of_plan_changes(self, engine: str | None) -> Sequence[Sequence[Any]]:
        common = self.changes.get("", ())
        if engine is not None:
            return self.changes.get(engine, common)
        if len(self.changes) != 1:
            return common
        (only,) = self.changes.values()
        return only


_MISSING_GROUP = object()  # a group that the line lacks


def _insert_match_groups(text: Any, groups: Mapping[str, str | None]) -> Any:
    """Return the name or value of a plan change. `text` "{GROUP}" stands for the text or the number
    of that one of `groups`, those of the matched line, {"share": [A, B]} for the quotient of two,
    and any other text for itself. Return _MISSING_GROUP if a group is missing."""
    if isinstance(text, dict):
        first, second = (parse_decimal(groups[name], *ANY) for name in text["share"])
        return math.floor(100 * first / second) / 100 if first and second else _MISSING_GROUP
    if not isinstance(text, str) or not text.startswith("{"):
        return text
    value = groups[text[1:-1]]
    if value is None:
        return _MISSING_GROUP
    return int(value) if value.isdecimal() else value


@cache
def patterns_of_engine(engine: str | None = None) -> tuple[LogPattern, ...]:
    """Return the log patterns that apply to `engine`; None stands for those of all engines."""
    if engine is not None:
        return tuple(pattern for pattern in patterns_of_engine() if pattern.applies_to(engine))
    return tuple(
        LogPattern(
            **{
                **row,
                "needles": tuple(row["needles"]),
                "engines": tuple(row["engines"]),
            }
        )
        for row in _patterns_document()["patterns"]
    )


@cache
def _patterns_of_any_line(engine: str | None) -> tuple[LogPattern, ...]:
    """Return the patterns of `engine` that match a line wherever it is in a log."""
    return tuple(pattern for pattern in patterns_of_engine(engine) if not pattern.only_last)


@cache
def _patterns_document() -> dict[str, Any]:
    import json
    from importlib.resources import files

    document: dict[str, Any] = json.loads(
        files("workbench.engines").joinpath("log_patterns.json").read_text("utf-8")
    )
    return document


def explain_lines(lines: Sequence[str], engine: str | None = None) -> tuple[Finding, ...]:
    """Return a finding for each log pattern of `engine` that matches one of `lines`, in their
    order; None stands for any engine. Its evidence is the first line that matches."""
    matches = sorted(_find_pattern_matches(lines, engine), key=attrgetter("line_index"))
    return tuple(match.pattern.make_finding(match.line, engine) for match in matches)


@lru_cache(maxsize=4096)
def explain_line(line: str, engine: str | None = None) -> Finding | None:
    """Return the most severe finding about one line of a log of `engine`, None for any engine. None
    if no log pattern matches the line."""
    return next(iter(by_severity(explain_lines((line,), engine))), None)


def stuck_start_findings(
    last_line: str, engine: str | None, phase: str | None, silent_s: float
) -> tuple[Finding, ...]:
    """Return the findings, one or more, about a starting server that has written nothing after
    `last_line` for `silent_s` seconds. `phase` is the start-up phase that the log reported last,
    None if unknown."""
    known = (
        p.make_finding(last_line, engine)
        for p in patterns_of_engine(engine)
        if p.only_last and p.matches(last_line)
    )
    stuck_phase = phase or "starting"
    why = _cause_and_fix_of_stuck_phase(stuck_phase)
    text = (
        f"no new line in the log for {silent_s // 60:.0f} min, in the phase "
        f"“{stuck_phase}”: {why['cause']}"
    )
    evidence = strip_log_prefix(last_line) or None
    return *known, Finding(Level.WARN, "start.stuck", text, fix=why["fix"], evidence=evidence)


def _cause_and_fix_of_stuck_phase(phase: str) -> Mapping[str, str]:
    """Return {"cause": …, "fix": …} of a start that does not come out of the phase `phase`, in
    general words for an unknown one."""
    rows = _patterns_document()["phases"]
    found: Mapping[str, str] = next(row for row in rows if re.search(row["phase"], phase))
    return found


def explain_unfinished_start(phase: str, last_line: str) -> Finding:
    """Return the finding about a log without an error that ends, with `last_line`, in the phase
    `phase` of a start."""
    why = _cause_and_fix_of_stuck_phase(phase)
    text = (
        f"the log has no error and ends in the phase “{phase}”. If the server still runs: {why['cause']}. "
        "If it does not, it was killed, and a killed process writes nothing"
    )
    fix = (
        f"{why['fix']}; whether the kernel killed it: sudo dmesg | grep -i -E 'killed process|oom'"
    )
    return Finding(
        Level.HINT,
        "log.no-error",
        text,
        fix=fix,
        source="phases of the engines",
        evidence=strip_log_prefix(last_line) or None,
    )


class LogScan:
    """Searches a growing log for lines that match a log pattern. `found` has one finding for each
    pattern, in the order of the log, with the first matching line as its evidence. A line that
    differs from an earlier one only in its numbers is not searched again: a busy log repeats a few
    kinds of lines, and the search takes a twentieth of the time."""

    def __init__(self, engine: str | None = None) -> None:
        self.engine = engine
        self.found: tuple[Finding, ...] = ()
        self._codes: set[str] = set()
        self._forms: set[str] = set()
        self._tracebacks = traceback_reader()

    @property
    def findings_above_info(self) -> tuple[Finding, ...]:
        """The findings about the log that may be causes, without those of the level INFO, the most
        severe first."""
        causes = find_possible_causes(self.found, self._tracebacks, self.engine)
        return by_severity(finding for finding in causes if finding.level is not Level.INFO)

    def search_new_lines(
        self, lines: Sequence[str], number_free_lines: Sequence[str], first_number: int | None
    ) -> None:
        """Search the new lines `lines` of the log, and add the findings to `found`.
        `number_free_lines` are the same lines from `remove_numbers_from_lines`. `first_number` is
        the number of the first of them in the log, from 1; None if unknown."""
        self._tracebacks.feed(lines, first_number)
        fresh = set(number_free_lines) - self._forms
        if not fresh:
            return
        self._forms = self._forms | fresh if len(self._forms) < MAX_REMEMBERED_FORMS else fresh
        chosen = [index for index, form in enumerate(number_free_lines) if form in fresh]
        matches = _find_pattern_matches([lines[index] for index in chosen], self.engine)
        for match in sorted(matches, key=attrgetter("line_index")):
            finding = match.pattern.make_finding(match.line, self.engine)
            if finding.code not in self._codes:
                self._codes.add(finding.code)
                number = None
                if first_number is not None:
                    number = first_number + chosen[match.line_index]
                self.found = (*self.found, replace(finding, line=number))


def remove_numbers_from_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines without digits and the letters a to f, so that two lines that differ only in
    numbers or addresses become equal. A line that is not ASCII may stay as it is."""
    text = "\n".join(lines)
    if text.isascii():
        return text.translate(_WITHOUT_DIGITS).split("\n")
    # ASCII is translated 30 times faster.
    return [line.translate(_WITHOUT_DIGITS) if line.isascii() else line for line in lines]


class _PatternMatch(NamedTuple):
    """A log pattern, and the first of the searched lines that it matches, with its index."""

    pattern: LogPattern
    line_index: int
    line: str


def _find_pattern_matches(
    lines: Sequence[str], engine: str | None, allowed_patterns: Sequence[LogPattern] | None = None
) -> Iterator[_PatternMatch]:
    text = "\n".join(lines)
    lower = text.lower()  # keeps the newlines in place, unlike other offsets
    searched = _patterns_of_any_line(engine) if allowed_patterns is None else allowed_patterns
    possible = [pattern for pattern in searched if pattern.has_needle_in(lower)]
    if not possible:
        return
    split, split_lower = text.split("\n"), lower.split("\n")
    better = [pattern for pattern in possible if not pattern.general]
    for pattern in possible:
        candidates = (i for i, line in enumerate(split_lower) if pattern.has_needle_in(line))
        hits = (i for i in candidates if _line_reports_pattern(split[i], pattern, better))
        hit = next(hits, None)
        if pattern.general:
            better.append(pattern)
        if hit is not None:
            yield _PatternMatch(pattern, hit, split[hit])


def _line_reports_pattern(line: str, pattern: LogPattern, preferred: Sequence[LogPattern]) -> bool:
    """Return whether the pattern matches the line, and the line itself reports it: it does not
    quote a text, and an error is one of the server. A general pattern also needs an error that none
    of `preferred` explains."""
    if not pattern.matches(line[:_MAX_SEARCHED_CHARACTERS]) or _only_quotes_text(line):
        return False
    if pattern.level is Level.ERROR and _is_no_failure_of_server(line):
        return False
    return not pattern.general or _is_unexplained_error(line, preferred)


def _is_no_failure_of_server(line: str) -> bool:
    """Return whether the line is about one request or an optional part of the engine, or has a
    level that is only information."""
    if _OPTIONAL_PART_LINE.search(line) or _LINE_ABOUT_REQUEST.search(line):
        return True
    return _parse_level(line) in _INFO_LEVELS


def find_needles(lines: Sequence[str], engine: str | None = None) -> tuple[str, ...]:
    """Return those needles of the patterns of `engine`, None for all engines, that `lines` contain,
    in lower case. A line without one of them matches no pattern. They are far fewer than all."""
    lower = "\n".join(lines).lower()
    return tuple(needle for needle in _pattern_numbers_by_needle(engine) if needle in lower)


def explain_line_by_needles(
    line: str, engine: str | None, needles: Sequence[str]
) -> Finding | None:
    """Return what `explain_line` returns, for one of many lines. `needles` are from `find_needles`
    of all of them. None if no pattern matches."""
    lower, numbers_of = line.lower(), _pattern_numbers_by_needle(engine)
    numbers = set[int]().union(*(numbers_of[needle] for needle in needles if needle in lower))
    patterns = _patterns_of_any_line(engine)
    among = [patterns[number] for number in sorted(numbers)]
    matches = _find_pattern_matches((line,), engine, among)
    found = (match.pattern.make_finding(match.line, engine) for match in matches)
    return next(iter(by_severity(found)), None)


@cache
def _pattern_numbers_by_needle(engine: str | None) -> Mapping[str, Sequence[int]]:
    """Return {needle: indexes in `_patterns_of_any_line(engine)` of the patterns that have it}."""
    numbers: dict[str, list[int]] = {}
    for number, pattern in enumerate(_patterns_of_any_line(engine)):
        for needle in pattern.needles:
            numbers.setdefault(needle, []).append(number)
    return numbers


def _is_unexplained_error(line: str, better: Sequence[LogPattern]) -> bool:
    """Return whether the line is an error that does not only report another one, and that none of
    the patterns `better` matches."""
    error, message = _parse_is_error_and_text(line)
    if not error or _WRAPPER_LINE.search(message):
        return False
    return not any(pattern.matches(line[:_MAX_SEARCHED_CHARACTERS]) for pattern in better)


@cache
def _codes_of_patterns(trait: str) -> frozenset[str]:
    """Return the codes of the log patterns whose field `trait`, such as "general", is True."""
    return frozenset(one.code for one in patterns_of_engine() if getattr(one, trait))


_OF_KERNEL = re.compile(r"\]:? (?:segfault at|general protection)|\btraps: ")


def _is_about_kernel_line(finding: Finding) -> bool:
    """Return whether a finding is about a line of the kernel's log, which reports the crash of a
    process and never its cause."""
    return _OF_KERNEL.search(finding.evidence or "") is not None


def drop_consequences(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings without those that probably follow from another error. Of those that name
    only the kind of an error, and of those about the end of a process, only the first remains, and
    none beside a specific cause."""
    found = tuple(findings)
    # lines of the kernel's log are pasted in: where they stand says nothing
    following = sorted(filter(reports_process_end, found), key=_is_about_kernel_line)
    first_line = next(map(line_number_of, following), 0)
    causes = [one for one in filterfalse(reports_process_end, found) if one.is_error]
    explained = any(
        not is_general_finding(one) or line_number_of(one) <= first_line for one in causes
    )
    kept = _exclude_findings(found, following if explained else following[1:])
    general = list(filter(is_general_finding, kept))
    known = any(map(_names_cause, kept))
    return _exclude_findings(kept, general if known else general[1:])


def _exclude_findings(
    findings: Iterable[Finding], dropped: Collection[Finding]
) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding not in dropped)


def has_error(findings: Iterable[Finding]) -> bool:
    """Return whether one of the findings is an error."""
    return any(finding.is_error for finding in findings)


def line_number_of(finding: Finding) -> int:
    """Return the number in the log of the line that the finding is about; 0 if unknown."""
    return finding.line or 0


# The kind of an error, and the part of the engine in which it was raised

# of llama.cpp: what stands before it is the directory of whoever built it
_SOURCE_ROOT = re.compile(r"\S*[/\\](?=(?:ggml[/\\])?src[/\\]|ggml-|common[/\\]|tools[/\\])")


@dataclass(frozen=True, slots=True)
class EnginePart:
    """A part of an engine's code, such as quantization. `path` is a regular expression for its
    files and calls. `name` stands after "in". `fix` says what to try if this part fails."""

    path: str
    name: str
    fix: str


@cache
def _engine_parts() -> tuple[EnginePart, ...]:
    return tuple(EnginePart(**row) for row in _patterns_document()["parts"])


@lru_cache(maxsize=256)
def _engine_part_of_path(path: str) -> EnginePart | None:
    return next((part for part in _engine_parts() if re.search(part.path, path)), None)


def find_engine_part_name(text: str) -> str | None:
    """Return the name of the part of an engine's code that `text`, a path or a call, belongs to;
    None if it belongs to none."""
    part = _engine_part_of_path(text)
    if part is None:
        return None
    return part.name


def add_fix_for_engine(finding: Finding, engine: str) -> Finding:
    """Return the finding with the fix that its log pattern has for `engine` in place of the common
    one. It is unchanged if there is no such fix."""
    pattern = _patterns_by_code().get(finding.code)
    if pattern is None or engine not in pattern.fixes:
        return finding
    common, own = pattern.fix, pattern.fixes[engine]
    return replace(finding, fix=(finding.fix or common).replace(common, own))


@cache
def _patterns_by_code() -> Mapping[str, LogPattern]:
    return {pattern.code: pattern for pattern in patterns_of_engine()}


def findings_of_engine(findings: Iterable[Finding], engine: str) -> tuple[Finding, ...]:
    """Return the findings whose log pattern applies to `engine`."""
    others = _codes_of_other_engines(engine)
    return tuple(finding for finding in findings if finding.code not in others)


@cache
def _codes_of_other_engines(engine: str) -> frozenset[str]:
    return frozenset(p.code for p in patterns_of_engine() if not p.applies_to(engine))


def traceback_reader() -> TracebackReader:
    """Return a new reader for the tracebacks of one log."""
    return TracebackReader(_writer_and_text)


def find_possible_causes(
    findings: Iterable[Finding],
    tracebacks_read: TracebackReader,
    engine: str | None,
    survived_line_numbers: Collection[int] = (),
) -> tuple[Finding, ...]:
    """Return those of `findings`, all about one log, that may be causes: not those that probably
    follow from another error. `tracebacks_read` has the tracebacks of the log; those whose error is
    in one of the lines `survived_line_numbers` did not end their process. If no pattern explains
    the error that was raised first, one more finding names its kind and the engine's part that
    raised it."""
    errors = tuple(one for one in tracebacks_read.errors if one.number not in survived_line_numbers)
    of_requests = [error for error in errors if error.ended_one_request]
    of_server = [error for error in errors if not error.ended_one_request]
    described = []
    for finding in _drop_ignored_errors(findings, tracebacks_read.ignored, of_server):
        finding = _add_engine_part_of_line(finding, errors)
        if any(_is_in_lines_of_error(finding, error) for error in of_requests):
            finding = _downgrade_to_request_error(finding)
        described.append(finding)
    kept = _add_native_calls(drop_consequences(described), tracebacks_read.native_calls)
    first = _first_raised_error(of_server, of_requests)
    if first is None:
        return kept
    first = _choose_error_with_location(first, errors)
    general = next(filter(is_general_finding, kept), None)
    if general is not None and _precedes_and_explains_error(general, first, errors):
        return kept
    known = list(filter(_names_cause, kept))
    if known and not _precedes_causes(first, known, errors):
        return kept
    others = tuple(filterfalse(is_general_finding, kept))
    kind = _explain_error_kind(first, engine, {one.code for one in kept})
    return (kind, *others) if kind is not None else others


def _first_raised_error(
    of_server: Sequence[RaisedError], of_requests: Sequence[RaisedError]
) -> RaisedError | None:
    """Return the error that caused the others: one of `of_server` if one does not only report
    another error, else one of `of_requests`; of the server's, rather one that does not mostly
    follow from others. None if all only report another error."""
    for errors, is_consequence in (
        (of_server, _wraps_or_follows_another_error),
        (of_server, _is_wrapper_of_another_error),
        (of_requests, _is_wrapper_of_another_error),
    ):
        found = tracebacks.find_root_error(errors, is_consequence)
        if found is not None:
            return found
    return None


def _add_engine_part_of_line(finding: Finding, errors: Sequence[RaisedError]) -> Finding:
    """Return the finding with the engine's part that raised the error in its line, by the
    tracebacks of `errors`. It is unchanged if its pattern is not `placed`, or if no traceback has
    that error."""
    if finding.line is None or finding.code not in _codes_of_patterns("placed"):
        return finding
    for error in errors:
        if error.number == finding.line:
            return _add_source_location(finding, error)
    return finding


def _precedes_causes(
    error: RaisedError, causes: Sequence[Finding], errors: Sequence[RaisedError]
) -> bool:
    """Return whether all `causes` are in lines after `error` and those of `errors` that were raised
    from it, so that none of them explains it. False if code commonly catches such an error, if it
    ended one request only, or if its line is unknown."""
    if error.is_commonly_caught or error.ended_one_request:
        return False
    end = _last_line_number_of_chain(error, errors)
    return error.number > 0 and all(line_number_of(one) > end for one in causes)


def _last_line_number_of_chain(error: RaisedError, errors: Sequence[RaisedError]) -> int:
    """Return the number of the last line about `error`, with those of `errors` that were raised
    from it, or that other processes wrote with its text."""
    numbers = [error.number]
    for one in errors[errors.index(error) + 1 :]:
        follows = one.replaces or one.caused or one.line == error.line
        if not follows:
            break
        numbers.append(one.number)
    return max(numbers) + _DETAIL_LINES


def _drop_ignored_errors(
    findings: Iterable[Finding], ignored_line_numbers: frozenset[int], errors: Sequence[RaisedError]
) -> tuple[Finding, ...]:
    """Return the findings without those in the lines `ignored_line_numbers`, errors after which
    Python went on. They stay if each of `errors` only reports another one and no other finding is
    an error: nothing else says then why the server has ended."""
    found = tuple(findings)
    others = tuple(one for one in found if one.line not in ignored_line_numbers)
    if has_error(others):
        return others
    each_reports_another = tracebacks.find_root_error(errors, _is_wrapper_of_another_error) is None
    return found if errors and each_reports_another else others


def _choose_error_with_location(error: RaisedError, errors: Sequence[RaisedError]) -> RaisedError:
    """Return that one of `errors` with the line of `error` whose calls name a part of the engine;
    `error` if there is none. A process may repeat the error of another one, with calls that only
    wait for it."""
    same = (one for one in errors if one.line == error.line)
    return next(filter(_call_and_part_of_error, same), error)


def _find_crashed_call_and_part(calls: Sequence[str]) -> tuple[str, EnginePart | None]:
    """Return (innermost of `calls`, those of a backtrace, that belongs to a known part of the
    engine; that part). A call that only passes work on counts if there is no other. ("", None) if
    there is none."""
    passing: tuple[str, EnginePart | None] = ("", None)
    for call in native_backtraces.calls_of_crash(calls):
        part = _engine_part_of_path(call)
        if part is None:
            continue
        if not native_backtraces.is_forwarding_call(call):
            return call, part
        if not passing[0]:
            passing = call, part
    return passing


def _add_native_calls(findings: Sequence[Finding], calls: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings with the engine's part in which native code crashed, by `calls`, those of
    its backtrace. If none of them is an error, a finding about the crash is added. They are
    unchanged if the calls name no known part."""
    call, part = _find_crashed_call_and_part(calls)
    if part is None:
        return tuple(findings)
    where = f", in {part.name} ({native_backtraces.function_name_of(call)})"
    if has_error(findings):
        return tuple(_add_part_of_crash(one, part, where) for one in findings)
    crash = Finding(
        Level.ERROR,
        "log.native-crash",
        f"the program crashed in native code{where}",
        fix=part.fix,
        source="backtraces of gdb and glibc",
        evidence=call,
    )
    return (*(one for one in findings if not reports_process_end(one)), crash)


def _add_part_of_crash(finding: Finding, part: EnginePart, where: str) -> Finding:
    if finding.code not in _codes_of_patterns("placed") or ", in " in finding.text:
        return finding
    fix = f"{part.fix}; or else: {finding.fix}"
    return replace(finding, text=finding.text + where, fix=fix)


_DETAIL_LINES = 5  # after the first line of an error


def _is_in_lines_of_error(finding: Finding, error: RaisedError) -> bool:
    """Return whether the finding is about the line of `error` or one of the _DETAIL_LINES after it.
    False if the line of one of the two is unknown."""
    first = error.number
    return 0 < first <= line_number_of(finding) <= first + _DETAIL_LINES


# A compiler writes its reason, and then the traceback of a call that only says that it failed.
_CODES_WRITTEN_BEFORE = ("log.error-compile",)


def _precedes_and_explains_error(
    finding: Finding, error: RaisedError, errors: Sequence[RaisedError]
) -> bool:
    """Return whether the finding is about an error before `error` that explains it: of a compiler,
    and in none of the tracebacks of `errors`."""
    if not finding.is_error or finding.code not in _CODES_WRITTEN_BEFORE:
        return False
    if any(finding.line == one.number for one in errors):
        return False
    return 0 < line_number_of(finding) < error.number


def _downgrade_to_request_error(finding: Finding) -> Finding:
    """Return the finding as one about an error that ended only one request: at most a warning, and
    its text says so."""
    if finding.is_error:
        finding = replace(finding, level=Level.WARN)
    if finding.text.startswith(_ONE_REQUEST_FAILED_TEXT):
        return finding
    return replace(finding, text=f"{_ONE_REQUEST_FAILED_TEXT}: {finding.text}")


def _explain_error_kind(
    error: RaisedError, engine: str | None, known_codes: Collection[str]
) -> Finding | None:
    """Return the finding about `error`: of a pattern that names its kind, with its place in the
    engine's code, or else of one that explains the message as a whole. None if no pattern matches,
    or if a pattern whose code is in `known_codes` explains it."""
    pattern = _find_general_pattern(error.line, engine) or _find_cause_pattern(
        error.line, engine, known_codes
    )
    if pattern is None:
        return None
    finding = replace(pattern.make_finding(error.line, engine), line=error.number or None)
    if pattern.general:
        finding = _add_source_location(finding, error)
    return _downgrade_to_request_error(finding) if error.ended_one_request else finding


def _find_cause_pattern(
    line: str, engine: str | None, known_codes: Collection[str]
) -> LogPattern | None:
    """Return the pattern of `engine`, None for any, of the level ERROR that names the cause of the
    error in `line`, not only its kind. None if there is none, or if one whose code is in
    `known_codes` matches the line too."""
    found = [one for one in _find_patterns(line, engine) if not one.general]
    if any(one.code in known_codes for one in found):
        return None
    return next((one for one in found if one.level is Level.ERROR), None)


def _find_patterns(line: str, engine: str | None) -> list[LogPattern]:
    """Return the log patterns of `engine`, None for all engines, that match the line."""
    return [pattern for pattern in _patterns_of_any_line(engine) if pattern.matches(line)]


def _add_source_location(finding: Finding, error: RaisedError) -> Finding:
    """Return the finding about `error` with the engine's part that raised it, and what the engine
    did then, as far as its calls show them."""
    doing = _describe_engine_activity(error.frames)
    meanwhile = f", while {doing}" if doing else ""
    place = _call_and_part_of_error(error)
    if place is not None:
        text = f"{finding.text}, in {place.part.name} ({place.frame.location_text}){meanwhile}"
        fixes = _first_and_second_fix(finding, error, place.part)
        return replace(finding, text=text, fix="; or else: ".join(fixes))
    places = [frame.location_text for frame in error.frames if frame.package]
    raised = f", raised by {places[-1]}" if places else ""
    return replace(finding, text=f"{finding.text}{raised}{meanwhile}")


def _first_and_second_fix(
    finding: Finding, error: RaisedError, part: EnginePart
) -> tuple[str, str]:
    """Return (what to try first, what to try then), from the fix of the finding, the fix of the
    engine's part and the line of the error."""
    own = finding.fix or ""
    if _SAYS_WHAT_TO_DO.search(error.line):
        return "follow the line, which says what is wrong or missing", own
    if finding.code in _codes_of_patterns("fix_first"):
        return own, part.fix
    return part.fix, own


# A message with its own next step, beside which one for the part of the code would be a guess.
_SAYS_WHAT_TO_DO = re.compile(
    r"\b(?:[Pp]lease|must|should|expects?|requires?|[Nn]o \w+ \w+ are specified)\b"
    r"|(?:[.:;,] |\bor |\bto )(?:[Ss]et|[Uu]se|[Tt]ry|[Pp]rovide|[Ii]nstall|[Ss]pecify|[Ee]nable|[Dd]isable"
    r"|[Rr]un|[Ii]ncrease|[Dd]ecrease|[Rr]educe|[Ll]ower) \S"
)


def _describe_engine_activity(frames: Sequence[Frame]) -> str:
    """Return what the engine did in the calls `frames`, such as "it captured CUDA graphs"; "" if
    they do not show it."""
    rows = _patterns_document()["doings"]
    return next((row["doing"] for row in rows if _shows_activity(row, frames)), "")


def _shows_activity(row: Mapping[str, Any], frames: Sequence[Frame]) -> bool:
    shown = frames[-1:] if row.get("innermost") else frames
    return any(re.search(row["call"], one.path_and_function) for one in shown)


class _CallAndPart(NamedTuple):
    """Where an error was raised: a call, and the part of the engine to which it belongs."""

    frame: Frame
    part: EnginePart


def _call_and_part_of_error(error: RaisedError) -> _CallAndPart | None:
    """Return the innermost call of the error that belongs to a known part of the engine, with that
    part; None if there is none."""
    for frame in reversed(error.frames):
        part = _engine_part_of_path(frame.path_and_function)
        if part is not None:
            return _CallAndPart(frame, part)
    return None


@lru_cache(maxsize=256)
def _find_general_pattern(line: str, engine: str | None = None) -> LogPattern | None:
    """Return the general log pattern of `engine`, None for any, that matches the error in `line`.
    None if there is none, or if a pattern that is not general matches too."""
    found = _find_patterns(line, engine)
    if not all(one.general for one in found):
        return None
    return next(iter(found), None)


def _is_wrapper_of_another_error(line: str) -> bool:
    """Return whether the error in `line` only reports that something else went wrong."""
    return bool(_WRAPPER_LINE.search(line))


def _wraps_or_follows_another_error(line: str) -> bool:
    """Return whether the error in `line` only reports another one, or mostly follows from one."""
    if _is_wrapper_of_another_error(line):
        return True
    kind = _find_general_pattern(line)
    return kind is not None and kind.follows


def _writer_and_text(line: str) -> tuple[str, str]:
    """Return (process that wrote the line, what it wrote). The process is "" if the line's prefix
    does not name it."""
    prefix, text = _prefix_and_message(line)
    return " ".join(_WRITER_IN_PREFIX.findall(prefix)), text


def writing_process_of_line(line: str) -> str:
    """Return the name of the process that wrote the line, from the line's prefix; "" if the prefix
    has none."""
    return _writer_and_text(line)[0]


def _only_quotes_text(line: str) -> bool:
    """Return whether the line quotes a text in which any words may be: source code of a traceback,
    the prompt of a request, or all settings of the engine."""
    bare = strip_log_prefix(line)
    return bool(
        _SOURCE_LINE.match(bare) or _REQUEST_LINE.match(bare) or _SETTINGS_LINE.search(bare)
    )


# The first real error

_WRITER_IN_PREFIX = re.compile(r"pid=\d+|\b[TDPE]P\d+|rank ?\d+")  # in the prefixes of a line
_ANSI_SEQUENCE = re.compile(
    r"(?:\x1b|\^\[|#033)\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\^M$"
    r"| \[repeated \d+x across cluster\]"  # of Ray, which counts equal lines of its workers
)
_ERROR_LEVELS = ("ERROR", "CRITICAL", "FATAL", "E")  # levels
_INFO_LEVELS = ("DEBUG", "INFO", "I", "D", "T")
_WARNING_LEVELS = ("WARNING", "WARN", "W")
_LEVELS_BELOW_ERROR = ("DEBUG", "INFO", "WARNING", "I", "W", "D", "T")
# What stands in front of the message of a line: who wrote it, then the level or the time.
_PREFIX_PATTERN = r"""
    # Kubernetes: "2026-07-30T07:27:23.496Z stderr F "; CI: "[2026-07-30T07:27:23.496Z]   "
    ^(?:\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)\]?\s
    (?:std(?:out|err)\ [FP]\ )?)?
    (?:>\ |│\ )?  # quoted, or in a frame that Rich draws
    (?:\[(?:rank|ray)\ \d+\]\ )?  # of a server on several hosts
    (?:[\w.-]+\s+\|\ )?  # docker compose: "tabbyapi-1  | "
    # journal: "Aug 19 18:34:27 gpu vllm[12]: "
    (?:[A-Z][a-z]{2}\ [\ \d]\d\ \d\d:\d\d:\d\d\ (?:\S+\ )?\S+\[\d+\]:\ )?
    (?:\ +\|\ )?  # the frame of an exception group
    # "2024-05-26 14:51:19 | ERROR | stderr | ", "2024-07-13 15:07:34,930 - INFO - vLLM: "
    (?:\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d(?:[.,]\d{3})?\ (?:\|\ [A-Z]+\ \|\ \w+\ \|\ |-\ [A-Z]+\ -\ (?:\w+:\ )?))?
    # "2024-06-25 12:27:29.905 " in front of a traceback; "2024-12-19 21:40:35 ERROR 56542 [x.py:64] "
    (?:\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d\.\d{3}\ (?=\ |Traceback|[a-z_]+\.|[A-Z]\w+(?:Error|Exception)))?
    (?:\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d\ (?=ERROR\ \d|WARNING\ \d|INFO\ \d))?
    # Python's logging: "2024-11-25 12:44:20,292 - sglang - INFO - ", "[..] [ERROR] [MainThread] [x] >>> "
    (?:\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d(?:[.,]\d{3})?\ -\ [\w.]+\ -\ [A-Z]+\ -\ )?
    (?:\[\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d,\d{3}\]\ (?:\[[\w.]+\]\ ){1,4}>>>\ )?
    # vLLM: "(EngineCore pid=12) ", Ray: "(RayWorker pid=12, ip=192.0.2.7) "
    (?:\((?:[\w\ ]+|[^()]{0,60}\bpid=\d+(?:,\ ip=[\w.:]+)?)\)\ ?){0,3}
    """
# of other programs; those of the engines are Engine.log_prefix
_PREFIX_END_PATTERNS = (r"(?P<level>ERROR|CRITICAL):\ {4}", r"\[rank\d+\]:\ ?")  # uvicorn; torch
_TORCH_WARNING = re.compile(r"\S*\s?\[W(?:\d{3,4} \d\d:\d\d:\d\d\S*)? \w+\.cpp")
_EXCEPTION_LINE = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|OutOfResources|Timeout|Fault)"
    r"|Exception|Unsupported)(?::|$)"
)
# C++: the line after "terminate called after throwing an instance of ..."
_UNCAUGHT_CPP_ERROR = re.compile(r"^\s+what\(\):\s+(\S.*)", re.IGNORECASE)
_TRACEBACK_HEADING = re.compile(
    r"Traceback \(most recent call last\)|^During handling of|^The above "
    r"exception"
)
_PLAIN_ERROR_LINE = re.compile(
    r"^(?:[\w./-]+(?: [a-z]+)?: )?(?:fatal )?error: |^s\w+: fatal: "  # srun, sbatch, slurmd
    r"|^(?:docker: )?Error response from daemon: "
    r"|^(?:\S+: )?(?:(?:line )?\d+: )?\S+: (?:command )?not found$"
    r"|^Fatal Python error|^Segmentation fault|^Killed$|^terminate called|^Bus error"
    r"|^Illegal instruction|: No such file or directory$"
    r"|GGML_ASSERT\(|GGML_ASSERT: |GGML_ABORT|Assertion [`'].*['’] failed"
    r"|^(?:\S+: )?(?:CUDA|SYCL|CANN|OpenCL) error\b|^nvcc fatal|(?:\(\d+\)|:\d+:\d+): (?:fatal |catastrophic )?error:"
    r"|^Message: 'Received sigquit"
    r"|^libc\+\+abi: terminating"
    r"|^error loading model: |^\W*main ?: failed to |^\w+: error loading model|^llama_\w+: failed to (?:eval|decode)",
    re.IGNORECASE,
)
# Lines that only report that something else went wrong.
_WRAPPER_LINE = re.compile(
    r"^s\w+: error: \S+: tasks? [\d,-]+: |(?:EngineCore|WorkerProc) failed to start|Engine core initialization failed"
    r"|WorkerProc initialization failed|EngineCore encountered a fatal error|EngineDeadError"
    r"|See root cause above|\b\w+ hit an exception|Received sigquit from a child"
    r"|SIGQUIT received|child process.*(?:died|exited|failed)|crashed with exit code"
    r"|exiting due to|Failed to init server|output_handler failed|^Error in [\w ]*completion[\w ]*\.$"
    r"|^terminate called after throwing"
    r"|Engine background task failed|Task finished unexpectedly|Engine(?: loop)? (?:has )?died"
    r"|Engine process failed to start|EngineCore_?\w* (?:failed|died)|CancelledError(?:$|: Cancelled by)"
    r"|Exception in worker \w+ while processing method \w+\.$"
    r"|Background loop is stopped|Got fatal signal from worker|ExceptionGroup: unhandled"
    r"|Engine process \(pid|ZMQError|Background loop (?:is not running|has errored)"
    r"|FATAL ERROR with generation|^Error during completion|^Sent to request: |Task exception was never"
    r"|^(?:RuntimeError: )?(?:Worker failed with error|Error raised in subprocess)|^Error in [\w ]+$"
    r"|^Error in inspecting model architecture"
    r"|^future: <|exited with code -?\d+\. Check|CalledProcessError: Command .{0,200}models\.registry"
    r"|Error executing method|RayTaskError|^(?:KeyboardInterrupt|SystemExit)\b"
    r"|Initialization failed\. |died before responding|DeadError\b"
    r"|Worker proc \S+ died unexpectedly|^Worker \w+ pid \d+ died|scheduler is dead\.|Executor failed\.$"
    r"|^ninja: |Ninja build failed|^\[\d+/\d+\] |^FAILED: |errors? detected in the compilation"
    # what a client tells of a server that has ended
    r"|aiohttp\.(?:client|http)_exceptions\.(?:ClientPayload|TransferEncoding|ServerDisconnected)Error"
    r"|openai\.(?:APIConnection|InternalServer)Error"
    r"|server exited before becoming ready|^\w+ exited with code \d+$"
    r"|Exception in ASGI application|failed to load model|unable to load model|failed to create context|: CUDA error$",
    re.IGNORECASE,
)
# any other wrapper says more
_LEAST_TELLING_WRAPPER = re.compile(r"output_handler failed|^Error in [\w ]*completion")
# A line of source code in a traceback: the message follows it.
_SOURCE_LINE = re.compile(
    r"""raise\b|reason=|(?:return )?[\w.]+\($|[rf]?["'](?!undefined symbol|.*(?:Error|object)\b)"""
    r"""|warnings\.warn\("""
)
# with the prompt, which anyone may write
_REQUEST_LINE = re.compile(r"Received request |Receive: obj=|Finish: obj=")
# What a server says about one request, which it answers with an error and goes on.
_LINE_ABOUT_REQUEST = re.compile(
    r'"[A-Z]{3,7} /\S* HTTP/\d(?:\.\d)?" \d{3}|\blog_server_r(?:equest)?\b|\bsend_error: task id'
)
# the place in vLLM that wrote the line, in front of the message
_REQUEST_HANDLER_LINE = re.compile(
    r"ERROR [^\[]{0,40}\[(?:serving_\w+|\w*tool_parser|serving)\.py:\d+\]"
)
# the settings in force, which the engines write at each start
_SETTINGS_LINE = re.compile(
    r"server_args=(?:\w+\.)?ServerArgs\(|\bargs: Namespace\(|\bwith config: model=|non-default args: "
)
# What Python warns of, and a part that the engine can do without.
_OPTIONAL_PART_LINE = re.compile(
    r"\b[A-Z][a-z]+Warning: |Skipping import of|Failed to load image Python extension|^\s*#(?!# \S+ (?i:requires) )"
    r"|[Ff]alling back|, using: '|Failed to pickle inputs|[Uu]sing (?:special_|the default|default)"
    r"|No platform detected|\b[Rr]etrying\b|\bwill retry\b|\b[Tt]rying (?:again|to resume)\b"
    r"|thrown while requesting (?:HEAD|GET)\b|_report_usage|stats\.vllm\.ai|; setting \w+="
    r"|Failed to import from vllm\._(?!.*(?:undefined symbol|libtorch_hip))"
)
# Errors of one request or of an optional part, after which a server continues to run. What a
# scheduler writes when it ends a job, whose reason the launcher reports in full, is none of the
# server's either.
_HARMLESS_ERROR = re.compile(
    r"Error with model (?:error|object)=|Ignore import error|Exception ignored "
    r"in|resource_tracker|^NoneType: None$|^Exception:$|^slurmstepd|^=>> PBS"
)
# The message of a pydantic ValidationError may end, with "[type=", some lines below.
_VALIDATION_MESSAGE = re.compile(
    r"^\s*Value error, (?P<why>\S.*?)(?: \[type=\w.*)?$|^\s+(?P<other>\S.*?) \[type=\w+"
)
_VALIDATION_HEADING = re.compile(r"ValidationError|^\d+ validation errors? for ")


# What ended a process, by its exit code: a shell adds 128 to the number of a signal.
_EXIT_CODE = re.compile(
    r"(?:exit(?:ed)?(?: with)?(?: code)?|exitcode|return code|code)[:=]? ?(?P<minus>-)?(?P<number>\d{1,3})\b",
    re.IGNORECASE,
)
_TEXT_OF_SIGNAL: Mapping[int, str] = {
    signal.SIGKILL: "SIGKILL ended it: mostly the kernel or a container did, for lack of host memory",
    signal.SIGSEGV: "it crashed in native code (SIGSEGV)",
    signal.SIGABRT: "it ended itself after an error in native code (SIGABRT)",
    signal.SIGBUS: "a page of its memory was not there (SIGBUS): mostly /dev/shm is too small",
    signal.SIGILL: "the CPU does not know an instruction of the program (SIGILL)",
    signal.SIGTERM: "another process stopped it (SIGTERM), so that one knows the reason",
}


def _explain_exit_code(text: str) -> str | None:
    """Return what the exit code in `text` says about the end of a process, such as "SIGKILL ended
    it". None if there is none, or if it says nothing."""
    found = _EXIT_CODE.search(text)
    if found is None:
        return None
    number = int(found["number"])
    if not found["minus"]:
        number -= 128
    return _TEXT_OF_SIGNAL.get(number)


def explain_report_without_error(error: LoggedError, before: str) -> Finding:
    """Return the finding about a log in which `error`, a report that something else failed, is the
    only error. `before` is the line before it, "" if there is none."""
    last = strip_log_prefix(before)
    hint = f"; the line before it may say more: “{last}”" if last else ""
    end, how = _explain_exit_code(error.text), ": a process that was killed writes nothing"
    if end:
        how = f"; by its exit code, {end}"
    return Finding(
        Level.WARN,
        "log.reports-only",
        "this line only reports that something else has failed, whose own error is not in the log"
        f"{how}{hint}",
        fix="look at the lines before it in the whole log of all processes (of containers: docker logs), "
        "at the log of each rank, and in the kernel's log for a killed process (sudo dmesg | tail)",
        source="messages of the engines",
        evidence=error.text,
    )


# another process quotes the error of one whose traceback may be missing
_QUOTED_ERROR = re.compile(r"\bfailed with error ['\"](?P<error>.{3,400}?)['\"](?:,|\.|$)")


def explain_quoted_error(error: LoggedError) -> Finding | None:
    """Return the finding about the error of another process that the line of `error` quotes; None
    if it quotes none."""
    quoted = _QUOTED_ERROR.search(error.text)
    if quoted is None:
        return None
    raised = f"RuntimeError: {quoted['error']}"
    known = explain_line(raised) or explain_error_by_its_text(error, None, Level.ERROR)
    text = f"{known.text}. Another process reports this error, whose traceback is not in the log"
    return replace(known, text=text, evidence=error.text)


def is_general_finding(finding: Finding) -> bool:
    """Return whether the finding explains only the kind of an error."""
    return finding.code in _codes_of_patterns("general")


def _names_cause(finding: Finding) -> bool:
    """Return whether the finding is an error whose cause it names, not only its kind."""
    return finding.is_error and not is_general_finding(finding)


def reports_process_end(finding: Finding) -> bool:
    """Return whether the finding only reports the end of a process, such as a signal."""
    return finding.code in _codes_of_patterns("follows")


def explain_error_by_its_text(error: LoggedError, number: int | None, level: Level) -> Finding:
    """Return the finding, with `level`, about `error`, which no log pattern explains. `number` is
    that of its line, None if unknown."""
    other = _patterns_by_code()["log.error-other"]
    return Finding(
        level,
        "log.first-error",
        other.cause,
        fix=other.fix,
        source="the line itself",
        evidence=error.text,
        line=number,
    )


def explain_cut_traceback(cut: RaisedError) -> Finding:
    """Return the finding about a log that ends within the traceback `cut`, before its error."""
    place = _call_and_part_of_error(cut)
    doing = _describe_engine_activity(cut.frames)
    where = hint = ""
    if place is not None:
        where, hint = f" The last call is in {place.part.name}.", f"; until then: {place.part.fix}"
    if doing:
        where += f" It was made while {doing}."
    return Finding(
        Level.WARN,
        "log.unfinished",
        f"the log ends within a traceback, so the line with the error itself is missing.{where}",
        fix="read the log on to the end of this traceback (of containers: docker logs; of a file: its "
        f"last lines), and at the log of each rank{hint}",
        source="the form of Python's tracebacks",
        evidence=cut.line[:500],
        line=cut.number or None,
    )


def find_error_text(lines: Sequence[str], engine: str | None = None) -> str | None:
    """Return the text of the log line that explains the failure, without time and level; None if no
    line looks like an error. It is the line that `find_logged_error` finds."""
    found = find_logged_error(lines, engine)
    if not found:
        return None
    return found.text


@dataclass(frozen=True, slots=True)
class LoggedError:
    """The line of a log that explains a failure. `only_reports` says that it only reports that
    something else went wrong, and that no line says what. `index` is that of the line among those
    that were searched."""

    text: str  # without time and level
    only_reports: bool = False
    index: int = 0


def find_logged_error(lines: Sequence[str], engine: str | None = None) -> LoggedError | None:
    """Return the line of a log of `engine`, None for any, that explains a failure; None if no line
    looks like an error. It is the first one that matches a pattern of the level ERROR that is not
    general. Without one, it is the first exception or error that does not only report another one;
    if all only report one, it is one of these, with `only_reports`."""
    split = "\n".join(lines).split("\n")
    first_of_form: dict[str, int] = {}  # a busy log repeats a few forms of lines
    for index, form in enumerate(remove_numbers_from_lines(split)):
        first_of_form.setdefault(form, index)
    distinct = list(first_of_form.values())
    known = [
        (distinct[i], line)
        for p, i, line in _find_pattern_matches([split[index] for index in distinct], engine)
        if p.level_of(line) is Level.ERROR and not p.general
    ]
    if known:
        index, line = min(known)
        return LoggedError(strip_log_prefix(line), index=index)
    wrapper: LoggedError | None = None
    for index in distinct:
        error, message = _parse_is_error_and_text(split[index])
        if not error:
            continue
        detail = _find_validation_detail(message, split[index + 1 : index + 6])
        if detail is not None:
            return LoggedError(detail, index=index)
        if message == "AssertionError":
            message = _add_assert_condition(message, split[max(0, index - 4) : index])
        if not _WRAPPER_LINE.search(message):
            return LoggedError(message, index=index)
        if wrapper is None or _LEAST_TELLING_WRAPPER.search(wrapper.text):
            wrapper = LoggedError(message, only_reports=True, index=index)
    return wrapper


def _add_assert_condition(message: str, preceding_lines: Sequence[str]) -> str:
    """Return `message`, an assertion error without a text, with the condition in the last of
    `preceding_lines` that shows one. It is unchanged if none does."""
    for text in map(strip_log_prefix, reversed(preceding_lines)):
        if text.startswith("assert "):
            return f"{message}: {text}"
    return message


@cache
def _prefix_pattern() -> re.Pattern[str]:
    """Return the pattern of what stands in front of the message of a log line. At most one of its
    groups matches: the level of the line."""
    from workbench import engines  # each compiles many patterns

    own = (engines.get_engine(name).log_prefix for name in engines.engine_names())
    # the level of each has a group of its own, because a pattern has no two groups of one name
    ends = (
        end.replace("?P<level>", f"?P<level{number}>")
        for number, end in enumerate((*filter(None, own), *_PREFIX_END_PATTERNS))
    )
    return re.compile(f"{_PREFIX_PATTERN}(?:{'|'.join(ends)})?", re.VERBOSE)


def strip_log_prefix(line: str) -> str:
    """Return the message of a log line as plain text, at most 500 characters: without colours,
    control characters, process name, time and level."""
    return _prefix_and_message(line)[1].strip()[:500]


def _prefix_and_message(line: str) -> tuple[str, str]:
    """Return (what stands in front of the message, message) of a log line without colours."""
    bare = _remove_control_characters(line)
    prefix = _prefix_pattern().match(bare)
    end = prefix.end() if prefix else 0
    return bare[:end], bare[end:]


def _remove_control_characters(line: str) -> str:
    text = _ANSI_SEQUENCE.sub("", line[:_MAX_SEARCHED_CHARACTERS])
    if not text.isprintable():
        text = "".join(c for c in text if c.isprintable() or c == "\t")
    return text.rstrip()


def is_in_traceback(line: str) -> bool:
    """Return whether the line is a heading, a call or source code of a traceback, and so no error
    of its own."""
    text = _writer_and_text(line)[1]
    return text.startswith((" ", "\t", "~", "^")) or bool(_TRACEBACK_HEADING.search(text))


def _parse_level(line: str) -> str:
    """Return the level that the engine wrote in front of the message, such as "WARNING"; "" without
    one."""
    return _level_of_prefix(_prefix_pattern().match(_remove_control_characters(line)))


def is_of_request_handler(line: str) -> bool:
    """Return whether the line is an error that the engine wrote where it handles a request."""
    return bool(_REQUEST_HANDLER_LINE.search(line))


def has_level(line: str) -> bool:
    """Return whether the engine wrote a level in front of the message: it logged the line, and did
    not end with it."""
    return bool(_parse_level(line))


def _is_marked_as_warning(line: str) -> bool:
    """Return whether the engine calls the line a warning, or torch does, as in
    "[W816 03:37:28.339207773 socket.cpp:764] "."""
    return _parse_level(line) in _WARNING_LEVELS or bool(_TORCH_WARNING.match(line))


def _level_of_prefix(prefix: re.Match[str] | None) -> str:
    if not prefix:
        return ""
    return next(filter(None, prefix.groups()), "")


def _parse_is_error_and_text(line: str) -> tuple[bool, str]:
    bare = _remove_control_characters(line)
    if uncaught := _UNCAUGHT_CPP_ERROR.match(bare):
        return True, uncaught[1][:500]
    prefix = _prefix_pattern().match(bare)
    rest = bare[prefix.end() :] if prefix else bare
    text, level = rest.strip()[:500], _level_of_prefix(prefix)
    if _is_never_error(rest) or level in _LEVELS_BELOW_ERROR:
        return False, ""
    if level in _ERROR_LEVELS:
        return True, text
    return bool(_EXCEPTION_LINE.match(rest) or _PLAIN_ERROR_LINE.search(rest)), text


_SOURCE_CODE_STARTS = (" ", "\t", "~", "^", "raise ", "else: raise ")  # in a traceback


def _is_never_error(text: str) -> bool:
    """Return whether `text`, the message of a line, is blank, a part of a traceback, or an error
    after which a server goes on."""
    if not text.strip() or text.startswith(_SOURCE_CODE_STARTS):
        return True
    return bool(_TRACEBACK_HEADING.search(text) or _HARMLESS_ERROR.search(text))


def _find_validation_detail(heading: str, following: Sequence[str]) -> str | None:
    """Return what a pydantic ValidationError says is wrong, from `following`, the log lines after
    its first line, `heading`. None if `heading` begins no such error, or if they do not say."""
    if not _VALIDATION_HEADING.search(heading):
        return None
    for line in following:
        if found := _VALIDATION_MESSAGE.match(_prefix_and_message(line)[1]):
            return (found["why"] or found["other"])[:500]
    return None
