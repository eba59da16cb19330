"""Reading a preset file as text and as TOML, with limits on size and depth. A problem is returned
as a Finding."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from workbench.model.errors import error_reason
from workbench.model.findings import Finding, Level
from workbench.model.untrusted_numbers import parser_error_message

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
# the range of TOML; tomllib accepts larger numbers, which Python may be unable to print
MAX_NUMBER = 2**63

_POSITION = re.compile(r"^(.*) \(at line (\d+), column (\d+)\)$", re.DOTALL)
_QUOTED = re.compile(r"""\"[^"]*\"|'[^']*'""")


def read_preset_text(path: Path) -> str | Finding:
    """Return the text of a regular UTF-8 file of at most MAX_BYTES bytes, or a Finding that
    describes the problem."""
    file = str(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return _file_error_finding("preset.not-a-file", "not a regular file", file)
        with path.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error_reason(error)
        return _file_error_finding("preset.unreadable", f"cannot be read: {reason}", file)
    if len(data) > MAX_BYTES:
        return _file_error_finding(
            "preset.too-large", f"larger than {MAX_BYTES // 1024} KiB: not a preset", file
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return _file_error_finding(
            "preset.not-utf8", f"not UTF-8 text (byte 0x{data[error.start]:02x})", file, line
        )


def parse_preset_text(text: str, file: str | None = None) -> dict[str, Any] | Finding:
    """Return the TOML document in the text of a preset, or a Finding that describes the problem and
    its line. `file` is the file name for that Finding, None for a text that is in no file."""
    import tomllib  # the list of presets is kept, so that most screens parse none

    for number, line in enumerate(text.split("\n"), 1):
        # parsing it would take quadratic time
        if line.count(".") > MAX_DEPTH and _is_deep_key(line):
            return _file_error_finding("preset.too-deep", "nested too deep", file, number)
    try:
        document = tomllib.loads(text)
    except RecursionError:
        return _file_error_finding("preset.too-deep", "nested too deep", file)
    except ValueError as error:
        found = _POSITION.match(str(error))
        if not found:
            why = parser_error_message(error)
            return _file_error_finding("preset.bad-toml", f"not valid TOML: {why}", file)
        message = f"not valid TOML: {found[1]}, column {found[3]}"
        return _file_error_finding("preset.bad-toml", message, file, int(found[2]))
    if _nesting_depth(document) > MAX_DEPTH:
        return _file_error_finding("preset.too-deep", "nested too deep", file)
    if _largest_integer(document) > MAX_NUMBER:
        return _file_error_finding(
            "preset.bad-toml", "not valid TOML: a whole number of more than 64 bits", file
        )
    return document


def _is_deep_key(line: str) -> bool:
    """Return whether the line is a TOML key or table name with too many dotted parts. For a line of
    prose with many full stops, return False."""
    parts = _QUOTED.sub("q", line).split("=", 1)[0].strip(" \t[]").split(".")
    return len(parts) > MAX_DEPTH and all(len(part.split()) == 1 for part in parts)


def _file_error_finding(code: str, text: str, file: str | None, line: int | None = None) -> Finding:
    return Finding(Level.ERROR, code, text, file=file, line=line)


def _largest_integer(value: Any) -> int:
    """Return the largest absolute value among the integers in a document, 0 if it has none. The
    document must not be deeply nested."""
    if isinstance(value, dict | list):
        return max(map(_largest_integer, _inner_values(value)), default=0)
    return abs(value) if isinstance(value, int) else 0


def _nesting_depth(document: Any) -> int:
    level, depth = [document], 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        inner = chain.from_iterable(map(_inner_values, level))
        level = [value for value in inner if isinstance(value, dict | list)]
    return depth


def _inner_values(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
