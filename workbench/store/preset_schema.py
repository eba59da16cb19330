"""The check of a TOML document against the dataclasses of model/preset.py: types, rules, and names of fields.

Written here, because a library for schemas takes longer to load than everything else that `plan` needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from workbench.model.findings import Finding, Level
from workbench.store.toml_lines import FieldPath

MAX_FINDINGS = 100  # of one file, errors first

T = TypeVar("T")
Found = list[tuple[FieldPath, Finding]]
_Reader = Callable[[Any, FieldPath, Found], Any]
_BAD: Any = object()
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def read(kind: type[T], document: Mapping[str, Any]) -> tuple[T | None, Found]:
    """Return the dataclass `kind` that a document describes, None if it does not describe one, and what is wrong in the
    document: at most MAX_FINDINGS places."""
    found: Found = []
    made = _reader(kind)(document, (), found)  # type: ignore[arg-type]
    return None if made is _BAD else made, found


def printable(text: str) -> str:
    """Return the first 60 characters, with unprintable ones escaped."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:60])


def shown(value: Any) -> str:
    """Return a value in the form in which messages quote it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{printable(value)}"'
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return str(value)[:60]


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    close = get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else None


# A reader returns the value of its type, or _BAD after it has noted what is wrong.


@cache
def _reader(kind: Any) -> _Reader:
    made = _MAKERS.get(get_origin(kind), _table if is_dataclass(kind) else _plain)
    return made(kind)


def _note(found: Found, path: FieldPath, code: str, text: str, fix: str | None = None) -> Any:
    if len(found) < MAX_FINDINGS:
        found.append((path, Finding(Level.ERROR, f"preset.{code}", text, fix=fix)))
    return _BAD


def _wrong_type(found: Found, path: FieldPath, kind: Any, value: Any) -> Any:
    return _note(found, path, "wrong-type", f"expected {_expected(kind)}, found {shown(value)}")


def _plain(kind: Any) -> _Reader:
    """Return the reader of text, a number, true or false, or any value. Text loses spaces at its ends."""

    def read(value: Any, path: FieldPath, found: Found) -> Any:
        if kind is Any:
            return value
        if kind is str and isinstance(value, str):
            return value.strip()
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        if kind in (int, bool) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        return _wrong_type(found, path, kind, value)

    return read


def _ruled(kind: Any) -> _Reader:
    """Return the reader of a type with rules."""
    read_plain, rules = _reader(get_args(kind)[0]), kind.__metadata__

    def read(value: Any, path: FieldPath, found: Found) -> Any:
        made = read_plain(value, path, found)
        for rule in rules:
            if made is not _BAD and not rule.holds(made):
                return _note(found, path, "wrong-value", f"expected {rule.expected}, found {shown(value)}")
        return made

    return read


def _union(kind: Any) -> _Reader:
    """Return the reader of one of several types, or of a type that may be missing."""
    members = [member for member in get_args(kind) if member is not NoneType]
    readers = [_reader(member) for member in members]

    def read(value: Any, path: FieldPath, found: Found) -> Any:
        if value is None and NoneType in get_args(kind):
            return None
        if len(readers) == 1:
            return readers[0](value, path, found)
        for reader in readers:
            if (made := reader(value, path, [])) is not _BAD:
                return made
        return _wrong_type(found, path, kind, value)

    return read


def _literal(kind: Any) -> _Reader:
    choices = get_args(kind)

    def read(value: Any, path: FieldPath, found: Found) -> Any:
        if any(type(value) is type(choice) and value == choice for choice in choices):
            return value
        text = f"expected {_expected(kind)}, found {shown(value)}"
        return _note(found, path, "wrong-type", text, did_you_mean(str(value), map(str, choices)))

    return read


def _list(kind: Any) -> _Reader:
    read_item = _reader(get_args(kind)[0])

    def read(value: Any, path: FieldPath, found: Found) -> Any:
        if not isinstance(value, list):
            return _wrong_type(found, path, kind, value)
        made = [read_item(each, (*path, index), found) for index, each in enumerate(value)]
        return _BAD if _BAD in made else made

    return read


def _tuple(kind: Any) -> _Reader:
    readers = [_reader(inner) for inner in get_args(kind)]

    def read(value: Any, path: FieldPath, found: Found) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            return _wrong_type(found, path, kind, value)
        made = tuple(read(each, (*path, n), found) for n, (read, each) in enumerate(zip(readers, value, strict=True)))
        return _BAD if _BAD in made else made

    return read


def _dict(kind: Any) -> _Reader:
    read_name, read_value = map(_reader, get_args(kind))

    def read(value: Any, path: FieldPath, found: Found) -> Any:
        if not isinstance(value, Mapping):
            return _wrong_type(found, path, kind, value)
        made = {
            read_name(name, (*path, name), found): read_value(each, (*path, name), found)
            for name, each in value.items()
        }
        return _BAD if _BAD in made or _BAD in made.values() else made

    return read


def _table(kind: Any) -> _Reader:
    types = get_type_hints(kind, include_extras=True)
    readers = {field.name: _reader(types[field.name]) for field in fields(kind)}
    required = _required(kind)

    def read(value: Any, path: FieldPath, found: Found) -> Any:
        if not isinstance(value, Mapping):
            return _wrong_type(found, path, kind, value)
        unknown = [name for name in value if name not in readers]
        for name in unknown:
            text = f"unknown field; expected one of {', '.join(readers)}"
            _note(found, (*path, name), "unknown-field", text, did_you_mean(name, readers))
        missing = [name for name in required if name not in value]
        for name in missing:
            _note(found, (*path, name), "missing-field", f"missing; expected {_expected(types[name])}")
        made = {name: read(value[name], (*path, name), found) for name, read in readers.items() if name in value}
        return _BAD if unknown or missing or _BAD in made.values() else kind(**made)

    return read


_MAKERS: Mapping[Any, Callable[[Any], _Reader]] = {
    Annotated: _ruled,
    Union: _union,
    UnionType: _union,
    Literal: _literal,
    list: _list,
    tuple: _tuple,
    dict: _dict,
}


def _required(kind: Any) -> list[str]:
    return [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]


def _expected(kind: Any) -> str:
    """Return the name of a type for messages."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _expected(inner[0])
    if origin is Literal:
        return "one of " + ", ".join(f'"{c}"' if isinstance(c, str) else str(c) for c in inner)
    if origin in (Union, UnionType):
        return " or ".join(_expected(member) for member in inner if member is not NoneType)
    if origin in (list, tuple):
        return f"a list{f' of {len(inner)}' if origin is tuple else ''} ({_expected(inner[0])})"
    if is_dataclass(kind):
        required = _required(kind)
        return "a table" + (f" with {', '.join(required)}" if required else "")
    return "a table" if origin is dict else _NAMES.get(kind, "a value")
