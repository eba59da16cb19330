"""The standard streams, made safe: for text that the encoding does not have, a full disk, and
closed file descriptors.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import Any

from workbench.model.errors import WorkbenchError

# Replacements on a terminal without UTF-8.
_ASCII = {
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "±": "+/-",
    "×": "x",
    "·": "-",
    "°": " deg ",
    "µ": "u",
    "≥": ">=",
    "≤": "<=",
    "→": "->",
    "“": '"',
    "”": '"',
    "’": "'",
}
_ERRORS = "workbench.ascii"


class OutputLost(WorkbenchError):
    """The error for a failed write to standard output. Its message contains the reason."""


def configure_standard_streams() -> None:
    """Make the standard streams accept any text, and replace each closed stream with /dev/null.

    Afterwards, a failing write to standard output raises OutputLost, or BrokenPipeError if the
    program that reads it has ended.
    """
    codecs.register_error(_ERRORS, _replacement_text_and_end_index)
    for descriptor in (0, 1, 2):  # a file that is opened later must not become standard output
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _ClosedStdout() if sys.stdout is None else _Stdout(sys.stdout)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open until the process ends
    elif isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=_ERRORS)


def redirect_stdout_to_null() -> None:
    """Redirect standard output to /dev/null, so that Python's flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _replacement_text_and_end_index(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


class _Stdout(io.TextIOWrapper):
    """Standard output that raises OutputLost with the reason when a write fails."""

    def __init__(self, stream: Any) -> None:
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors=_ERRORS,
            line_buffering=stream.line_buffering,
        )

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _output_lost_error(error.strerror) from error

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _output_lost_error(error.strerror) from error


class _ClosedStdout(io.StringIO):
    """A replacement for a standard output that is closed. It discards the text, and raises
    OutputLost when it is flushed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written = False

    def write(self, text: str) -> int:
        self.written = True
        return len(text)

    def flush(self) -> None:
        if self.written:
            self.written = False
            raise _output_lost_error("it is closed")

    def fileno(self) -> int:
        return 1


def _output_lost_error(reason: str | None) -> OutputLost:
    return OutputLost(
        f"cannot write to standard output: {reason}",
        next_step="the command may have finished its work, so check that before you repeat the "
        "command",
    )
