"""Reads the Python tracebacks of a growing log: which error was raised first, and in which part of
the engine's code.

A failure of a server is written several times. The process that failed writes a chain of
tracebacks, and each process that waits for it writes one of its own. The first error that does not
merely report another one is the cause. The innermost frame that belongs to a known part of the
engine, such as quantization or LoRA, says where to look.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from operator import attrgetter

from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.server import native_backtraces

_MAX_ERRORS = 40  # that are kept: the first ones are the cause
_MAX_FRAMES = 200  # of one traceback
_MAX_MESSAGE_CHARACTERS = 500  # characters
_MAX_WRITERS = 64  # processes of which an unfinished traceback is kept
_MAX_OTHER_LINES = 500  # lines of other text within a traceback
_FRAME_LINE = re.compile(
    r"""
    # Python, and its faulthandler without the second comma; Rich breaks long lines before a word
    ^\s*(?:File\ )?"(?P<path>[^"]{1,400})",\ line\ (?P<line>\d{1,7}),?\ in
    (?:\ (?P<function>\S{1,120})|\s*$)
    # IPython
    | ^File\ (?P<shown_path>[^\s"]{1,400}?)(?::(?P<shown_line>\d{1,7}))?,\ in
    \ (?P<shown_function>[\w.<>]{1,120})\(
    """,
    re.VERBOSE,
)
_TRACEBACK_HEADING = "Traceback (most recent call last)"
_FRAME_WORD = "File "
_VALIDATION_ERROR_WORDS = " validation error"  # of pydantic, also without a traceback
_IGNORED_HEADING = "Exception ignored in"
_CRASH_HEADING = "Fatal Python error: "
_CAUSE_HEADING = "The above exception was the direct cause"
_HANDLING_HEADING = "During handling of the above exception"
_TRACEBACK_MARKS = (
    *(
        _CRASH_HEADING,
        _IGNORED_HEADING,
        _FRAME_WORD,
        _VALIDATION_ERROR_WORDS,
        _CAUSE_HEADING,
        _HANDLING_HEADING,
        _TRACEBACK_HEADING,
    ),
    *native_backtraces.BACKTRACE_MARKS,
)
_RAISED_ERROR_LINE = re.compile(
    r"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:\([A-Z]\w*\))?(?:: ?(?P<message>.*))?$"
)
_ASSERT_LINE = re.compile(r"^\s+assert ")
_BROKEN_LINE_PIECE = re.compile(
    r"^(?:[\w.<>/]*[\"')]{0,2}|File)\s*$"
)  # of a line that Rich has broken
# what stands before the package in the path of a file
_BEFORE_PACKAGE = (
    r"^.*(?:site|dist)-packages/|^.*/(?=(?:vllm|sglang|exllamav\d|flashinfer|transformers|torch)/)"
)
_PATH_TO_PACKAGE = re.compile(
    rf"{_BEFORE_PACKAGE}|^.*/python3\.\d+/|^.*/(?=(?:backends|endpoints)/)|^/"
)
_PACKAGE_IN_PATH = re.compile(rf"(?:{_BEFORE_PACKAGE})(?P<package>[A-Za-z]\w*)/")
_VALIDATION_MESSAGE = re.compile(r"\d+ validation errors? for \w+$")
# An error while one of these is handled says more: a look-up or an attempt has failed before it.
_ATTEMPT_ERRORS = re.compile(
    r"(?:KeyError|IndexError|StopIteration|CancelledError|Empty|ModuleNotFoundError|ImportError"
    r"|AttributeError|CalledProcessError|FileNotFoundError)$"
)
# Their messages have only what was looked up; an error raised from them says what that means.
_LOOKUP_ERRORS = ("KeyError", "IndexError", "StopIteration")
_MAX_FEW_WORDS = 5
_NUMPY_WARNING = "AttributeError: _ARRAY_API not found"  # then it imports the package all the same
# what Python calls when a process has ended its work
_CLEANUP_FUNCTIONS = ("_run_finalizers", "_exit_function", "__del__")
_REQUEST_HANDLER_PATH = re.compile(
    r"uvicorn/protocols|starlette/(?:middleware|_exception_handler)|fastapi/routing\.py (?:app|run_)"
    r"|entrypoints/openai/\S*serving\w*\.py (?:create_|_?preprocess|handle_request|_convert|\w+_generator)"
    r"|sglang/srt/managers/tokenizer_manager\.py (?:_wait_one_response|generate_request)"
    r"|/(?:tool_parsers?|reasoning|function_call)/\S+\.py (?:extract_|parse_|detect_|structure_info)"
)
# what a request or an answer must look like
_REQUEST_VALIDATION_ERROR = re.compile(
    r"validation errors? for (?:Chat|Completion|Embedding|Response|Rerank|Score|Message)\w*"
    r"(?:Request|Response|Choice|Message|Param)|BadRequestError: "
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call in a traceback: the path of the file, the function, and the number of the line in
    the file, None if unknown."""

    path: str
    function: str
    line: int | None = None

    @property
    def path_and_function(self) -> str:
        """The path of the file from its package on, and the function: "/vllm/awq.py forward"."""
        return f"/{_PATH_TO_PACKAGE.sub('', self.path)} {self.function}"

    @property
    def location_text(self) -> str:
        """The file with its line, the package and the function, as far as they are known:
        "awq.py:12 of vllm, create_weights"."""
        name = self.path.rpartition("/")[2]
        file = name if self.line is None else f"{name}:{self.line}"
        package = f" of {self.package}" if self.package else ""
        return f"{file}{package}, {self.function}"

    @property
    def package(self) -> str | None:
        """The package that the file belongs to; None if its path does not say."""
        found = _PACKAGE_IN_PATH.match(self.path)
        if not found:
            return None
        return found["package"]


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An error at the end of a traceback. `line` is its line in the log, and `number` the number of
    that, from 1, 0 if unknown. `kind` is the name of its class without the module. `frames` are the
    calls, the innermost last. `replaces` says that it was raised while the error before it was
    handled, and `caused` that the error before it is its cause."""

    line: str
    kind: str
    number: int
    frames: tuple[Frame, ...]
    replaces: bool = False
    caused: bool = False

    @property
    def is_commonly_caught(self) -> bool:
        """Whether the error is of a kind that code often catches, such as that of a failed
        look-up."""
        return bool(_ATTEMPT_ERRORS.search(self.kind))

    @property
    def ended_one_request(self) -> bool:
        """Whether the error ended the answer to one request, and not the server."""
        if _REQUEST_VALIDATION_ERROR.search(self.line):
            return True
        if any(frame.function == "lifespan" for frame in self.frames):
            return False  # the server was starting
        return any(_REQUEST_HANDLER_PATH.search(frame.path_and_function) for frame in self.frames)


@dataclass(slots=True)
class _OpenTraceback:
    """The traceback that one process is writing."""

    frames: list[Frame] = field(default_factory=list)
    replaces: bool = False
    caused: bool = False
    reading: bool = False
    ignored: bool = False  # Python goes on after its error
    crashed: RaisedError | None = None  # by a signal: its frames follow, the innermost first
    continues: int = 0  # lines that still belong to the message of its last error
    source: str = ""  # the line of code that the last call shows
    between: int = 0  # lines since its last call
    left: bool = False  # something else was written after its last call
    last: RaisedError | None = None  # the last call as evidence, without an error

    @property
    def expects_more_lines(self) -> bool:
        """Whether the next lines of the process may belong to this traceback."""
        return bool(self.reading or self.continues or self.crashed)


class TracebackReader:
    """Collects the errors at the ends of the tracebacks in a log, while its lines are added.
    `split` returns (name of the process that wrote a line, text that it wrote)."""

    def __init__(self, split: Callable[[str], tuple[str, str]]) -> None:
        self._split = split
        self._open: dict[str, _OpenTraceback] = {}
        self.errors: tuple[RaisedError, ...] = ()
        # lines of errors after which Python went on
        self.ignored: frozenset[int] = frozenset()
        self.native_calls: tuple[str, ...] = ()  # of the first backtrace of native code

    def feed(self, lines: Sequence[str], first_number: int | None) -> None:
        """Add the next lines of the log. `first_number` is the number in the log of the first of
        them, from 1; None if unknown."""
        if len(self.errors) >= _MAX_ERRORS:
            return
        waiting = any(one.expects_more_lines for one in self._open.values())
        if not waiting:
            text = "\n".join(lines)
            if not any(mark in text for mark in _TRACEBACK_MARKS):
                return
        for offset, line in enumerate(lines):
            self._read_line(line, 0 if first_number is None else first_number + offset)

    @property
    def unfinished_traceback(self) -> RaisedError | None:
        """The last traceback that the log ends within, so that its error is missing; None if there
        is none. `line` and `number` are those of its last call."""
        cut = (one.last for one in self._open.values() if one.reading and not one.left)
        return max(filter(None, cut), key=attrgetter("number"), default=None)

    def _read_line(self, line: str, number: int) -> None:
        writer, text = self._split(line)
        call = native_backtraces.parse_backtrace_call(text)
        if call is not None:
            if len(self.native_calls) < _MAX_FRAMES:
                self.native_calls = (*self.native_calls, call)
            return
        if text.startswith(_CRASH_HEADING):
            self._open[writer] = _OpenTraceback(crashed=RaisedError(text, "Fatal", number, ()))
            return
        if text.startswith(_IGNORED_HEADING):
            self._open[writer] = _OpenTraceback(ignored=True)
            return
        if _TRACEBACK_HEADING in text:
            if len(self._open) >= _MAX_WRITERS:
                self._open.clear()
            before = self._open.get(writer, _OpenTraceback())
            begun = _OpenTraceback([], before.replaces, before.caused, reading=True)
            begun.ignored = before.ignored
            self._open[writer] = begun
            return
        own = self._open.get(writer)
        if own is None:
            if not _is_in_traceback(text):
                return
            # the beginning of the traceback is not in the log
            own = self._open[writer] = _OpenTraceback()
        if text.startswith(_CAUSE_HEADING):
            own.caused = True
        elif text.startswith(_HANDLING_HEADING):
            own.replaces = True
        elif own.crashed is not None:
            self._read_line_of_crash(own, own.crashed, text)
        elif own.reading or _is_in_traceback(text):
            own.reading = True
            self._read_text_of_process(writer, text, number)
        elif own.continues and text.strip():
            last = self.errors[-1]
            line = f"{last.line} {text.strip()}"[:_MAX_MESSAGE_CHARACTERS]
            self.errors = (*self.errors[:-1], replace(last, line=line))
            own.continues -= 1

    def _read_line_of_crash(self, own: _OpenTraceback, crash: RaisedError, text: str) -> None:
        frame = _FRAME_LINE.match(text)
        if frame is not None and len(own.frames) < _MAX_FRAMES:
            own.frames.append(_frame_of_match(frame))
        elif own.frames:
            frames = tuple(reversed(own.frames))
            self.errors = (*self.errors, replace(crash, frames=frames))[:_MAX_ERRORS]
            own.crashed, own.frames = None, []
        else:
            own.between += 1
            if own.between >= _MAX_OTHER_LINES:
                own.crashed = None

    def _read_text_of_process(self, writer: str, text: str, number: int) -> None:
        own = self._open[writer]
        frame = _FRAME_LINE.match(text)
        if frame is not None:
            if len(own.frames) < _MAX_FRAMES:
                own.frames.append(_frame_of_match(frame))
            own.left, own.between = False, 0
            own.last = RaisedError(text.strip(), "", number, tuple(own.frames))
            return
        raised = _RAISED_ERROR_LINE.match(text)
        may_be_error = own.frames or _VALIDATION_MESSAGE.search(text)
        if raised is None or not may_be_error:
            if _ASSERT_LINE.search(text):
                own.source = text.strip()
            if not text[:1].isspace() and not _BROKEN_LINE_PIECE.match(text):
                own.left = True
            own.between += 1
            own.reading = own.between < _MAX_OTHER_LINES
            return
        kind = raised["kind"].rpartition(".")[2]
        message = text
        if text == "AssertionError" and own.source:
            message = f"{text}: {own.source}"
        error = RaisedError(message, kind, number, tuple(own.frames), own.replaces, own.caused)
        cleanup = any(frame.function in _CLEANUP_FUNCTIONS for frame in own.frames)
        if own.ignored or cleanup or message == _NUMPY_WARNING:
            self.ignored |= {number} - {0}
            del self._open[writer]
            return
        self.errors = (*self.errors, error)[:_MAX_ERRORS]
        for one in self._open.values():
            one.continues = 0
        own.frames, own.reading, own.replaces, own.caused = [], False, False, False
        own.source, own.last = "", None
        own.continues = _count_continuation_lines(text)


def _is_more_specific_than(error: RaisedError, earlier: RaisedError) -> bool:
    """Return whether `error` says more than `earlier`, the error before it from which it was
    raised."""
    if error.replaces and earlier.is_commonly_caught:
        return True
    if not error.caused:
        return False
    if earlier.kind not in _LOOKUP_ERRORS:
        return earlier.kind == "CalledProcessError"
    repeats = earlier.line.partition(": ")[2] in error.line
    return not repeats and len(error.line.split()) > _MAX_FEW_WORDS


def _is_in_traceback(text: str) -> bool:
    """Return whether a line is a call in a traceback, or the heading of a validation error of
    pydantic."""
    return bool(_FRAME_LINE.match(text) or _VALIDATION_MESSAGE.search(text))


def _frame_of_match(found: re.Match[str]) -> Frame:
    shown = "shown_" if found["path"] is None else ""  # by IPython
    function = found[f"{shown}function"] or "?"
    line = parse_whole_number(found[f"{shown}line"])
    return Frame(found[f"{shown}path"].replace("\\", "/"), function, line)


def _count_continuation_lines(message: str) -> int:
    """Return how many lines after the line `message` belong to the message of an error."""
    if _VALIDATION_MESSAGE.search(message):
        return 2  # the name of the field, then what is wrong with it
    return 1 if message.endswith(":") else 0


def find_root_error(
    errors: Sequence[RaisedError], only_reports_other_error: Callable[[str], bool]
) -> RaisedError | None:
    """Return that one of `errors`, in the order of the log, which caused the others.
    `only_reports_other_error` says of the line of an error whether it only reports another one;
    such errors are left out. None if no other is there."""
    chosen: RaisedError | None = None
    for error in errors:
        if only_reports_other_error(error.line):
            continue
        if chosen is None or _is_more_specific_than(error, chosen):
            chosen = error
        elif error.line != chosen.line:  # of another rank
            break
    return chosen
