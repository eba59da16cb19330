"""Explains a whole log: finds the lines with a known cause, the first error, and the warnings and
errors without a known cause."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from workbench.model.findings import Finding, Level, by_severity
from workbench.model.lazy_dataclass import dataclass
from workbench.server import log_patterns
from workbench.server.log_lines import LogRing, level_of_line
from workbench.server.log_patterns import has_error, line_number_of

_MAX_UNKNOWN_LINES = 20  # lines that are kept
_BINARY_LINE_DIVISOR = 8  # a line of which one in so many characters was no text is binary
# Of lines that differ from all before them, so many characters are searched for log patterns; after
# them, as many of lines with a sign of a problem; and always the last lines of the log.
_MAX_SEARCHED_CHARACTERS = 2_000_000
_SEARCHED_LAST_LINES = 500
_LINES_OF_ONE_FAILURE = 30
_SIGNS_OF_ERROR = (
    *("error", "fail", "exception", "assert", "fatal", "abort", "killed", "cannot", "could not"),
    *("unable", "not found", "warn", "traceback", "cuda", "nccl", "terminat", "died", "crash"),
    *("refused", "denied", "invalid", "unsupported"),
)
_MARKED_LEVELS = ("warn", "error")
# A request that the server answered, or an idle server.
_ANSWERED_REQUEST = re.compile(
    r'"POST /(?:v1/|generate|completion|chat|api/)\S* HTTP/1\.[01]" 200|request: POST \S+ \S+ 200'
    r"|all slots are idle|\| model loaded \|"
    r"|release: id +\d+ \| task \d+ \| stop processing|Decode batch.{0,20}#running-req: [1-9]"
    r"|Avg generation throughput: (?!0\.0 )[\d.]+ tokens/s, Running: [1-9]"
)
# A process of the server that does not go on.
_FAILED_SERVER = re.compile(
    r"EngineDeadError|EngineCore encountered a fatal error|hit an exception|[Rr]eceived sigquit"
    r"|died unexpectedly|terminate called|core dumped|GGML_ASSERT|GGML_ABORT|Fatal Python error"
    r"|Segmentation fault"
)
# of uvicorn and vLLM, which end without an error when they are asked to
_SHUTDOWN_LINE = re.compile(r"INFO:?\s+Shutting down$|\bShutting down FastAPI HTTP server")
_STOP_CODES = ("log.stopped", "log.slurm-time")  # from outside
_PROBLEM_LEVELS = (Level.ERROR, Level.WARN)


@dataclass(frozen=True, slots=True)
class _LineKind:
    """What a line of a log tells: the finding about it, None if no log pattern matches, the engines
    that it names, and whether the server became ready, answers requests, has a process that failed
    for good, or shuts down. `unknown` says that it is a warning or an error without a finding."""

    finding: Finding | None
    engines: tuple[str, ...]
    ready: bool
    answers: bool
    failed: bool
    shuts_down: bool
    unknown: bool


class ExplainedLog:
    """Collects the explanation of a log while its lines are added: findings about lines with a
    known cause, the other warnings and errors, and the first error. Memory is bounded. `engine` is
    the one that wrote the log; None stands for the engine that the log names most often, or for all
    engines if it names none."""

    def __init__(self, engine: str | None = None) -> None:
        self._engine = engine
        self._lines = LogRing()
        self._found: dict[str, Finding] = {}
        self._counts: Counter[str] = Counter()
        self._kinds: dict[str, _LineKind] = {}  # by the form of a line
        self._last: dict[str, int] = {}  # the last line of each finding
        self._ready = 0  # the last line that reports that the server serves
        self._answered = 0  # the last line about a request that it answered
        self._shut_down = 0  # the first line that reports that it ends, and no failure before
        self._failed = 0  # the last line that reports that a process of it failed for good
        self._searched_chars = 0  # of lines that differed from all before them
        self._tracebacks = log_patterns.traceback_reader()
        self._named: Counter[str] = Counter()  # lines that name an engine
        self._unknown_lines = 0
        self._unread = ""
        self._last_numbered = math.inf  # the lines after it have no known number
        self._unknown: list[tuple[int, str]] = []  # number and text of warnings and errors

    def add_lines(self, lines: Sequence[str]) -> None:
        if not lines:
            return
        self._tracebacks.feed(lines, self._lines.total + 1)
        with_forms = list(zip(lines, log_patterns.remove_numbers_from_lines(lines), strict=True))
        fresh = self._select_lines_to_search(
            {
                form: line
                for line, form in with_forms
                if form not in self._kinds and not _is_binary(line)
            }
        )
        needles = log_patterns.find_needles(tuple(fresh.values()), self._engine)
        for number, (line, form) in enumerate(with_forms, self._lines.total + 1):
            kind = self._kinds.get(form)
            if kind is None:
                if form not in fresh:
                    continue
                if len(self._kinds) >= log_patterns.MAX_REMEMBERED_FORMS:
                    self._kinds.clear()
                kind = self._kinds[form] = self._classify_line(line, needles)
            self._record_line_kind(kind, line, number)
        self._lines.extend(lines)

    def _select_lines_to_search(self, lines_by_form: Mapping[str, str]) -> Mapping[str, str]:
        """Return those of `lines_by_form` that are searched: all, or only those with a sign of a
        problem after _MAX_SEARCHED_CHARACTERS of the log, which bounds the time."""
        chosen = lines_by_form
        if self._searched_chars > _MAX_SEARCHED_CHARACTERS:
            text = "\n".join(lines_by_form.values()).lower()
            signs = [sign for sign in _SIGNS_OF_ERROR if sign in text]
            if self._searched_chars > 2 * _MAX_SEARCHED_CHARACTERS:
                signs.clear()
            chosen = {
                form: line
                for form, line in lines_by_form.items()
                if _reports_ready(line) or _contains_any(line.lower(), signs)
            }
        self._searched_chars += sum(map(len, chosen.values()))
        return chosen

    def _match_patterns_in_last_lines(self) -> None:
        """Search the last lines of the log, if it was too long to search all of its lines."""
        if self._searched_chars <= _MAX_SEARCHED_CHARACTERS:
            return
        last = self._lines.lines()[-_SEARCHED_LAST_LINES:]
        needles = log_patterns.find_needles(last, self._engine)
        first = self._lines.total - len(last) + 1
        for number, line in enumerate(last, first):
            kind = self._classify_line(line, needles)
            if kind.finding is not None and kind.finding.code not in self._found:
                self._record_line_kind(kind, line, number)

    def record_unread_section(self, notice: str) -> None:
        """Record that the next section of the log is not read, as the text `notice` says. The lines
        after it get no number."""
        self._unread = notice
        self._last_numbered = self._lines.total

    def _number_unless_after_gap(self, number: int | None) -> int | None:
        """Return `number`, the number of a line in memory, as its number in the log. None after a
        section that was not read, and for None."""
        if number is None or number > self._last_numbered:
            return None
        return number

    def _classify_line(self, line: str, needles: Sequence[str]) -> _LineKind:
        """Return what a line tells. `needles` are the texts of log patterns that it may contain,
        from `log_patterns.find_needles`."""
        named = _log_keywords_by_engine() if self._engine is None else {}
        binary = _is_binary(line)
        finding = (
            None if binary else log_patterns.explain_line_by_needles(line, self._engine, needles)
        )
        marked = finding is None and level_of_line(line) in _MARKED_LEVELS
        return _LineKind(
            finding,
            tuple(name for name, words in named.items() if _contains_any(line, words)),
            ready=_reports_ready(line),
            answers=bool(_ANSWERED_REQUEST.search(line)),
            failed=bool(_FAILED_SERVER.search(line)),
            shuts_down=bool(_SHUTDOWN_LINE.search(line)),
            unknown=marked and not log_patterns.is_in_traceback(line),
        )

    def _record_line_kind(self, kind: _LineKind, line: str, number: int) -> None:
        if kind.engines:
            self._named.update(kind.engines)
        if kind.ready:
            self._ready = number
        if kind.answers:
            self._answered = number
        if kind.failed:
            self._failed = number
        is_first_shutdown = kind.shuts_down and not self._shut_down
        if is_first_shutdown and self._failed <= self._ready:
            self._shut_down = number
        if kind.finding is not None:
            code = kind.finding.code
            if self._is_new_cause(kind.finding):
                self._found.pop(code, None)  # findings stay in the order of their lines
                self._found[code] = replace(kind.finding, line=number)
            self._counts[code] += 1
            self._last[code] = number
        elif kind.unknown:
            self._unknown_lines += 1
            if len(self._unknown) < _MAX_UNKNOWN_LINES:
                self._unknown.append((number, log_patterns.strip_log_prefix(line)))

    def _is_new_cause(self, finding: Finding) -> bool:
        """Return whether the finding replaces the stored one with its code: there is none, or the
        finding is an error, and the server was ready or answered requests after the stored one."""
        first = self._found.get(finding.code)
        if first is None:
            return True
        return finding.is_error and line_number_of(first) < self._last_success_line_number

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings about the log lines added so far, one for each known cause, the most severe
        first. Errors that probably follow from a known one are left out."""
        self._match_patterns_in_last_lines()
        engine = self._engine_of_log
        found = self._found.values()
        own = found if engine is None else _findings_of_engine(found, engine)
        passed = self._find_recovery_lines(own)
        stopped = self._find_stop_line_number(own)
        own = [self._downgrade_by_later_lines(finding, passed, stopped) for finding in own]
        raised = {error.number for error in self._tracebacks.errors} - {0}
        no_causes = passed.keys() | {number for number in raised if number > stopped}
        before = {number for number in raised if number < self._last_success_line_number}
        causes = log_patterns.find_possible_causes(
            own, self._tracebacks, engine, no_causes | before
        )
        if before and not has_error(causes):
            causes = log_patterns.find_possible_causes(own, self._tracebacks, engine, no_causes)
        if not has_error(causes):
            causes = (*causes, *self._explain_end_without_pattern(causes, engine))
        ended = (self._with_engine_fix_and_level(finding, engine) for finding in causes)
        return by_severity(
            replace(one, line=self._number_unless_after_gap(one.line)) for one in ended
        )

    def _explain_end_without_pattern(
        self, known_findings: Sequence[Finding], engine: str | None
    ) -> Sequence[Finding]:
        """Return the findings, at most one, about the end of a log that no log pattern explains: a
        traceback that is cut off, an error, a report about another process, or a start that does
        not go on. `known_findings` are those so far."""
        cut = self._tracebacks.unfinished_traceback
        if cut is not None:
            return (log_patterns.explain_cut_traceback(cut),)
        lines = self._lines.lines()
        error = self._find_logged_error(lines, engine)
        if error is None:
            return self._explain_end_without_error(lines, known_findings)
        if any(one.evidence == error.text for one in known_findings):
            return ()
        number = 0 if self._lines.dropped else error.index + 1
        of_request = log_patterns.is_of_request_handler(lines[error.index])
        ignored = of_request or number in self._tracebacks.ignored
        if ignored or number > self._find_stop_line_number(known_findings):
            return ()
        if error.only_reports:
            return self._explain_error_report(error, lines, known_findings)
        if number and any(_is_warning_near(one, number) for one in known_findings):
            return ()
        passed = 0 < self._ready < (number or self._lines.total)
        level = Level.WARN if passed else Level.ERROR
        finding = log_patterns.explain_error_by_its_text(error, number or None, level)
        shown = None if passed else self._later_phase_line_number(number)
        if shown is None:
            return (finding,)
        return (
            self._describe_nonfatal_error(finding, "went on with its start", shown, Level.HINT),
        )

    def _explain_end_without_error(
        self, lines: Sequence[str], known_findings: Sequence[Finding]
    ) -> Sequence[Finding]:
        """Return the finding, if any, about a log without an error that ends within a phase of the
        start."""
        if self._has_served or any(map(log_patterns.reports_process_end, known_findings)):
            return ()
        phase = self._last_start_phase()
        if not phase:
            return ()
        return (log_patterns.explain_unfinished_start(phase, lines[-1]),)

    def _explain_error_report(
        self,
        error: log_patterns.LoggedError,
        lines: Sequence[str],
        known_findings: Sequence[Finding],
    ) -> Sequence[Finding]:
        """Return the finding about `error`, which only reports that something else has failed. ()
        if one of `known_findings` names the end of a process."""
        quoted = log_patterns.explain_quoted_error(error)
        if quoted is not None:
            return (quoted,)
        if any(map(log_patterns.reports_process_end, known_findings)):
            return ()
        before = lines[error.index - 1] if error.index else ""
        return (log_patterns.explain_report_without_error(error, before),)

    def _later_phase_line_number(self, number: int) -> int | None:
        """Return the number of the later line in which the process that wrote the line `number`
        went on with its start; None if there is none, if `number` is 0, or if the line `number`
        belongs to a traceback or has no level."""
        if not number:
            return None
        (line,) = self._lines.lines(number - 1, 1)
        raised = any(one.number == number for one in self._tracebacks.errors)
        if raised or log_patterns.is_in_traceback(line):
            return None
        if not log_patterns.has_level(line):
            return None
        writer = log_patterns.writing_process_of_line(line)
        phases = self._phase_lines_and_processes_between(number, self._lines.total + 1)
        return next((one for one, who in phases if who == writer), None)

    def _find_logged_error(
        self, lines: Sequence[str], engine: str | None
    ) -> log_patterns.LoggedError | None:
        """Return the error in `lines` that explains the end: the first one after the server was
        ready or answered a request for the last time, or else the first one. None without an
        error."""
        success = 0 if self._lines.dropped else self._last_success_line_number
        later = log_patterns.find_logged_error(lines[success:], engine) if success else None
        if later is not None:
            return replace(later, index=later.index + success)
        return log_patterns.find_logged_error(lines, engine)

    @property
    def _last_success_line_number(self) -> int:
        """The number of the last line in which the server became ready or answered a request; 0 if
        there is none. Answers count only if no process of it has failed since it became ready."""
        if self._failed > self._ready:
            return self._ready
        return max(self._ready, self._answered)

    @property
    def _has_served(self) -> bool:
        return bool(self._ready or self._answered)

    def _with_engine_fix_and_level(self, finding: Finding, engine: str | None) -> Finding:
        """Return the finding with the fix for `engine`, if that is not None, and as a warning if
        the server became ready or answered requests after it."""
        if engine is not None:
            finding = log_patterns.add_fix_for_engine(finding, engine)
        return self._downgrade_error_before_success(finding)

    def _downgrade_error_before_success(self, finding: Finding) -> Finding:
        """Return the finding, as a warning if it is an error after whose last line the server
        became ready or answered requests."""
        last = self._last_line_number(finding)
        if not finding.is_error or not 0 < last < self._last_success_line_number:
            return finding
        if last < self._ready:
            return self._describe_nonfatal_error(finding, "became ready", self._ready, Level.WARN)
        return self._describe_nonfatal_error(
            finding, "answered requests", self._answered, Level.WARN
        )

    def _describe_nonfatal_error(
        self, finding: Finding, later_event: str, line: int, level: Level
    ) -> Finding:
        """Return the finding, with `level`, as one about an error that did not end the server. In
        the later `line`, the server did what `later_event` says, such as "became ready"."""
        number = self._number_unless_after_gap(line)
        place = "later" if number is None else f"in line {number}"
        text = f"{finding.text.rstrip('.')}. It did not end the server, which {later_event} {place}"
        return replace(finding, level=level, text=text)

    def _downgrade_by_later_lines(
        self, finding: Finding, recovery_lines: Mapping[int, int], stop_line: int
    ) -> Finding:
        """Return the finding, as a warning or a hint if lines after it show that it is no cause:
        those in `recovery_lines`, the line `stop_line`, or a success of the server."""
        if not finding.is_error:
            return finding
        later = recovery_lines.get(self._last_line_number(finding))
        if later is not None:
            shown = "went on with its start"
            return self._describe_nonfatal_error(finding, shown, later, Level.HINT)
        if line_number_of(finding) <= stop_line:
            return self._downgrade_error_before_success(finding)
        text = (
            f"{finding.text.rstrip('.')}. The server had begun to stop before, in line {stop_line}"
        )
        return replace(finding, level=Level.WARN, text=text)

    def _find_stop_line_number(self, findings: Iterable[Finding]) -> int:
        """Return the number of the first line which says that the server was stopped from outside,
        or shuts down without a failure. It is the number after the last line of the log if there is
        no such line, or if a start follows it, so that it is the end of an earlier server."""
        after_log = self._lines.total + 1
        lines = {line_number_of(one) for one in findings if one.code in _STOP_CODES}
        stop = min((lines | {self._shut_down}) - {0}, default=after_log)
        if (
            stop == after_log
            or self._lines.dropped
            or self._phase_lines_and_processes_between(stop, after_log)
        ):
            return after_log
        return stop

    def _last_line_number(self, finding: Finding) -> int:
        """Return the number of the last line that the finding is about; 0 if unknown."""
        return self._last.get(finding.code, line_number_of(finding))

    def _find_recovery_lines(self, findings: Iterable[Finding]) -> Mapping[int, int]:
        """Return {number of a line with an error: number of the later line in which its process
        went on with its start}. The last error ended the server, so it is left out, unless it is
        before the start and only its kind is known: then the script that starts the server wrote
        it."""
        raised = {one.number for one in self._tracebacks.errors if not one.ended_one_request}
        reported = {self._last_line_number(one) for one in findings if one.is_error}
        numbers = sorted((reported | raised) - {0})
        if not numbers or self._lines.dropped:
            return {}
        cut = self._tracebacks.unfinished_traceback
        end = max(numbers[-1], cut.number if cut is not None else 0)
        phases = self._phase_lines_and_processes_between(numbers[0], self._lines.total + 1)
        of_script = set[int]()
        if phases and not self._phase_lines_and_processes_between(0, numbers[-1]):
            of_script.update(
                map(self._last_line_number, filter(log_patterns.is_general_finding, findings))
            )
        passed = {}
        for number in numbers:
            (line,) = self._lines.lines(number - 1, 1)
            writer, until = log_patterns.writing_process_of_line(line), end
            if not writer and (number in raised or log_patterns.is_in_traceback(line)):
                continue  # no later line is known to be of the same process
            if number == end:
                if writer or number not in of_script:
                    continue
                until = self._lines.total + 1
            same = (one for one, who in phases if writer in ("", who))
            later = next((one for one in same if number < one < until), None)
            if later is not None:
                passed[number] = later
        return passed

    def _phase_lines_and_processes_between(
        self, first: int, last: int
    ) -> Sequence[tuple[int, str]]:
        """Return (number, process that wrote it) of each line between the lines `first` and `last`
        that reports a phase of the start. Progress bars do not count: they are often written
        late."""
        lines = self._lines.lines(first, last - first - 1)
        forms = log_patterns.remove_numbers_from_lines(lines) if lines else []
        phase_of_form: dict[str, str | None] = {}  # a busy log repeats a few forms of lines
        found = []
        for number, (line, form) in enumerate(zip(lines, forms, strict=True), first + 1):
            if form not in phase_of_form:
                phase_of_form[form] = self._parse_phase(line)
            phase = phase_of_form[form]
            if phase and "%" not in phase:
                found.append((number, log_patterns.writing_process_of_line(line)))
        return found

    @property
    def _engine_of_log(self) -> str | None:
        """The engine that wrote the log: the given one, or the one that the log names most often;
        None if it names none."""
        if self._engine is not None or not self._named:
            return self._engine
        ((engine, _),) = self._named.most_common(1)
        return engine

    def count_lines_of(self, finding: Finding) -> int:
        """Return in how many lines the log has what `finding` is about."""
        return self._counts[finding.code]

    def _last_start_phase(self) -> str | None:
        """Return the start-up phase that the log reports last, such as the loading of weights; None
        if the log reports none."""
        phases = map(self._parse_phase, reversed(self._lines.lines()))
        return next(filter(None, phases), None)

    def _parse_phase(self, line: str) -> str | None:
        """Return the start-up phase that a line reports; None if it reports none."""
        from workbench import engines

        names, named = engines.engine_names(), self._engine_of_log
        if named is not None and named in names:
            names = (named,)
        phases = (engines.get_engine(name).start_phase_in_log_line(line) for name in names)
        return next(filter(None, phases), None)

    def first_cause_or_error_line(self, findings: Sequence[Finding]) -> str | None:
        """Return the log line of the first error in `findings`, those about this log. Without one,
        return the first line that looks like an error, if the server neither served nor was
        stopped. None if there is no such line."""
        cause = _first_error_evidence(findings)
        stopped = any(map(log_patterns.reports_process_end, findings))
        if cause is not None or self._has_served or stopped:
            return cause
        return log_patterns.find_error_text(self._lines.lines(), self._engine)

    def as_json(self) -> dict[str, Any]:
        findings = self.findings
        return {
            "lines": self._lines.total,
            "unread": self._unread or None,
            "phase": self._last_start_phase(),
            "first_error": self.first_cause_or_error_line(findings),
            "findings": [{**f.as_json(), "count": self.count_lines_of(f)} for f in findings],
            "unknown_lines": self._unknown_lines,
            "unknown": [
                {"line": self._number_unless_after_gap(number), "text": text}
                for number, text in self._unknown
            ],
        }


def _first_error_evidence(findings: Iterable[Finding]) -> str | None:
    """Return the log line that is the evidence of the first error among the findings; None if there
    is no error."""
    return next((finding.evidence for finding in findings if finding.is_error), None)


def _is_warning_near(finding: Finding, line_number: int) -> bool:
    """Return whether the finding is a warning about a line within _LINES_OF_ONE_FAILURE of the line
    `line_number`."""
    if finding.level is not Level.WARN or not finding.line:
        return False
    return abs(finding.line - line_number) <= _LINES_OF_ONE_FAILURE


def explain_lines_in_memory(ring: LogRing, engine: str | None) -> ExplainedLog:
    """Return the explanation of the lines of a log in memory, `ring`, which the engine `engine`
    wrote; None for an unknown one."""
    explained = ExplainedLog(engine)
    lines, gap = ring.lines(), ring.gap_index
    if gap is None:
        explained.add_lines(lines)
        return explained
    explained.add_lines(lines[: gap + 1])
    explained.record_unread_section(lines[gap])
    explained.add_lines(lines[gap + 1 :])
    return explained


def find_line_of_cause(lines: Sequence[str], engine: str | None) -> str | None:
    """Return the line with the most severe error in `lines` of a log; None if they have none, or
    only report that something else failed."""
    explained = ExplainedLog(engine)
    explained.add_lines(lines)
    return _first_error_evidence(explained.findings)


def _findings_of_engine(findings: Iterable[Finding], engine: str) -> Sequence[Finding]:
    """Return the findings whose log pattern applies to `engine`, and in the place of each other one
    the finding that the patterns of `engine` give about its line, if they give one."""
    found = tuple(findings)
    own = log_patterns.findings_of_engine(found, engine)
    instead: dict[str, Finding] = {}
    for other in found:
        if other in own or other.evidence is None:
            continue
        finding = log_patterns.explain_line(other.evidence, engine)
        if finding is not None:
            instead[finding.code] = replace(finding, line=other.line)
    for finding in own:
        instead.pop(finding.code, None)
    return (*own, *instead.values())


def _is_binary(line: str) -> bool:
    """Return whether so many characters of a line were no text that it is not searched."""
    return line.count("\ufffd") * _BINARY_LINE_DIVISOR > len(line)


@cache
def _log_keywords_by_engine() -> Mapping[str, tuple[str, ...]]:
    from workbench import engines

    return {name: engines.get_engine(name).log_words for name in engines.engine_names()}


@cache
def _all_ready_words() -> tuple[str, ...]:
    from workbench import engines

    return tuple(
        word for name in engines.engine_names() for word in engines.get_engine(name).ready_words
    )


def _reports_ready(line: str) -> bool:
    return _contains_any(line, _all_ready_words())


def _contains_any(line: str, words: Sequence[str]) -> bool:
    return any(word in line for word in words)
