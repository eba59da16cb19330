"""Standard output that a command can rely on: any text, any encoding, a full disk, a closed descriptor."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from typing import Any

from workbench.model.errors import WorkbenchError
from workbench.model.untrusted_text import escaped

# What a terminal without UTF-8 shows instead.
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
    """Standard output cannot be written."""


def prepare() -> None:
    """Make the standard streams accept any text, and open /dev/null for each that is closed.

    A write to standard output that fails raises OutputLost, or BrokenPipeError when the reader has gone.
    """
    codecs.register_error(_ERRORS, _replaced)
    for descriptor in (0, 1, 2):  # a file that is opened later must not become standard output
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _Closed() if sys.stdout is None else _Stdout(sys.stdout)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open until the process ends
    elif isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=_ERRORS)


def discard_the_rest() -> None:
    """Point standard output at /dev/null, so that the interpreter's last flush is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def json_text(document: Any, indent: int | None = None) -> str:
    """Return `document` as JSON. Characters that a terminal would obey, or that standard output cannot encode, become
    \\u escapes."""
    text = escaped(json.dumps(document, ensure_ascii=False, indent=indent, default=str))
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(document, indent=indent, default=str)
    return text


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


class _Stdout(io.TextIOWrapper):
    """Standard output whose failed writes raise OutputLost with the reason."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream.buffer, encoding=stream.encoding, errors=_ERRORS, line_buffering=stream.line_buffering)

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _lost(error.strerror) from error

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _lost(error.strerror) from error


class _Closed(io.StringIO):
    """Stands for a closed standard output: collects nothing, and reports the loss at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.written = False

    def write(self, text: str) -> int:
        self.written = True
        return len(text)

    def flush(self) -> None:
        if self.written:
            self.written = False
            raise _lost("it is closed")

    def fileno(self) -> int:
        return 1


def _lost(reason: str | None) -> OutputLost:
    return OutputLost(
        f"cannot write to standard output: {reason}",
        next_step="what the command does besides printing may be done: look before you repeat it",
    )
