"""Conversion of JSON objects from other programs to dataclasses, field by field.

The type of a field decides what it accepts, and the unit in its name decides which numbers are
possible (untrusted_numbers.py). A value of another type and an impossible number become absent with
a reason, so that one of them costs only its own field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, TypeAlias, TypeVar

from workbench.model.untrusted_numbers import range_of, why_impossible
from workbench.model.untrusted_text import NAME_CHARS, clean

Record = TypeVar("Record")
MOST_ITEMS = 4096  # of a list or an object
Reader: TypeAlias = Callable[[str, Any], Any]  # field, value -> value; ValueError says why not


def read(
    kind: Any, said: Any, readers: Mapping[str, Reader] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (values, reasons): the fields of the dataclass `kind` that the JSON object `said` has,
    and for each impossible value the reason why it is left out. `readers` has the readers of fields
    with other types than numbers, texts and lists of these. Raises ValueError if `said` is not an
    object."""
    if not isinstance(said, Mapping):
        raise ValueError(f"{kind.__name__} is not an object")
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for field, reader in _readers_of(kind).items():
        value = said.get(field)
        chosen = (readers or {}).get(field, reader)
        if value is None or chosen is None:
            continue
        try:
            values[field] = chosen(field, value)
        except ValueError as why:
            reasons[field] = str(why)
    return values, reasons


def record(kind: type[Record], said: Any, readers: Mapping[str, Reader] | None = None) -> Record:
    """Return an instance of the dataclass `kind` from a JSON object, as `read` reads it. If the
    dataclass has a field `absent`, it gets the reasons of the impossible values. Raises ValueError
    if a field without a default has no usable value."""
    values, reasons = read(kind, said, readers)
    of: Any = kind
    for name in _needed(of):
        if name not in values:
            raise ValueError(f"{kind.__name__} has no usable {name}")
    if "absent" in _readers_of(of):
        values["absent"] = {**values.get("absent", {}), **reasons}
    return kind(**{**_nothing(of), **values})


@cache
def _needed(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in _without_default(kind) if not str(f.type).endswith("| None"))


@cache
def _nothing(kind: Any) -> dict[str, None]:
    """Return None for each field that has no default but may be None."""
    return {f.name: None for f in _without_default(kind) if str(f.type).endswith("| None")}


def _without_default(kind: Any) -> list[Field[Any]]:
    both = MISSING, MISSING
    return [f for f in fields(kind) if (f.default, f.default_factory) == both]


@cache
def _readers_of(kind: Any) -> dict[str, Reader | None]:
    return {f.name: _READERS.get(str(f.type).removesuffix(" | None")) for f in fields(kind)}


def _number(field: str, value: Any) -> float:
    if why := why_impossible(value, *range_of(field)):
        raise ValueError(why)
    number: float = value
    return number


def _whole(field: str, value: Any) -> int:
    number = _number(field, value)
    if not isinstance(number, int):
        raise ValueError("not a whole number")
    return number


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return clean(value, NAME_CHARS)


def _flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _list_of(item: Reader) -> Reader:
    def read_list(field: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            raise ValueError(f"not a list of at most {MOST_ITEMS} values")
        return tuple(item(field, one) for one in value)

    return read_list


def _texts_by_name(field: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MOST_ITEMS:
        raise ValueError("not an object of texts")
    return {_text(field, name): _text(field, text) for name, text in value.items()}


_READERS: dict[str, Reader] = {  # by the type of a field, without "| None"
    "int": _whole,
    "float": _number,
    "str": _text,
    "bool": _flag,
    "tuple[int, ...]": _list_of(_whole),
    "tuple[str, ...]": _list_of(_text),
    "Mapping[str, str]": _texts_by_name,
}
