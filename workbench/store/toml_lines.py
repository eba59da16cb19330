"""The line numbers of the fields in a TOML text, which neither tomllib nor tomlkit provides.

The numbers come from a shallow scan of a text that tomllib has parsed. They are exact enough for
messages only."""

from __future__ import annotations

import re
from collections.abc import Sequence

FieldPath = tuple[str | int, ...]

_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_KEY = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"^\s*(\[\[?)\s*({_KEY})\s*\]\]?\s*(?:#.*)?$")
_PAIR = re.compile(rf"^\s*({_KEY})\s*=\s*(.*)$")
_PARTS = re.compile(_PART)
_STRINGS_AND_COMMENTS = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'|#.*$""")


class LineIndex:
    """The line numbers of the fields in a TOML text, counted from 1."""

    def __init__(self, text: str) -> None:
        self._lines: dict[FieldPath, int] = {}
        self._arrays: dict[FieldPath, int] = {}
        self._index_lines(text)

    def line_of_field(self, path: Sequence[str | int]) -> int | None:
        """Return the line number of the field at `path`, such as ("claims", 2, "text"). If the
        field has no line of its own, return that of the innermost table that contains the field;
        None without such a table."""
        wanted = tuple(path)
        while wanted:
            if wanted in self._lines:
                return self._lines[wanted]
            wanted = wanted[:-1]
        return None

    def _index_lines(self, text: str) -> None:
        table: FieldPath = ()
        # delimiter of an open multi-line string; open brackets of a multi-line array
        closing, depth = "", 0
        for number, line in enumerate(text.split("\n"), 1):
            if closing:
                closing = _delimiter_if_still_open(line, closing)
            elif depth > 0:
                depth, closing = _open_brackets_and_string_delimiter(line, depth)
            elif header := _TABLE.match(line):
                table = self._resolve_table(_split_key(header[2]), array=header[1] == "[[")
                self._lines.setdefault(table, number)
            elif pair := _PAIR.match(line):
                self._lines.setdefault((*table, *_split_key(pair[1])), number)
                depth, closing = _open_brackets_and_string_delimiter(pair[2], 0)

    def _resolve_table(self, parts: tuple[str, ...], *, array: bool) -> FieldPath:
        """Return the path of the table whose header has the names `parts`. For an array of tables,
        the path contains the index of the newest entry."""
        path: FieldPath = ()
        for position, part in enumerate(parts):
            path = (*path, part)
            if array and position == len(parts) - 1:
                self._arrays[path] = self._arrays.get(path, -1) + 1
            if path in self._arrays:
                path = (*path, self._arrays[path])
        return path


def _split_key(key: str) -> tuple[str, ...]:
    return tuple(p[1:-1] if p[0] in "\"'" else p for p in _PARTS.findall(key))


def _open_brackets_and_string_delimiter(line: str, depth: int) -> tuple[int, str]:
    """Return (number of brackets open after `line`, delimiter of an open multi-line string). The
    delimiter is "" if no such string is open. `depth` is the number of brackets open before the
    line."""
    for delimiter in ('"""', "'''"):
        before, found, rest = line.partition(delimiter)
        if found:
            closing = _delimiter_if_still_open(rest, delimiter)
            return depth + _count_open_brackets(before), closing
    return max(0, depth + _count_open_brackets(line)), ""


def _count_open_brackets(text: str) -> int:
    bare = _STRINGS_AND_COMMENTS.sub("", text)
    return sum(map(bare.count, "[{")) - sum(map(bare.count, "]}"))


def _delimiter_if_still_open(line: str, delimiter: str) -> str:
    """Return the delimiter of a multi-line string that is open before `line` and not closed in it;
    "" if it is closed."""
    if delimiter in line:
        return ""
    return delimiter
