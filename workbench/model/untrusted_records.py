"""Conversion of JSON objects from other programs to dataclasses, field by field.

The type of a field decides what it accepts, and the unit in its name decides which numbers are
possible (untrusted_numbers.py). A value of another type and an impossible number become absent with
a reason, so that one of them costs only its own field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeAlias, TypeVar

from workbench.model.untrusted_numbers import range_of_field, why_number_is_impossible
from workbench.model.untrusted_text import NAME_CHARS, clean_text

Record = TypeVar("Record")
MOST_ITEMS = 4096  # of a list or an object

Reader: TypeAlias = Callable[[str, Any], Any]  # field, value -> value; ValueError says why not
_NO_READERS: Mapping[str, Reader] = {}


def read_fields_and_reasons(
    kind: Any, json_object: Any, readers: Mapping[str, Reader] = _NO_READERS
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (values, reasons): the fields of the dataclass `kind` that `json_object` has, and for
    each impossible value the reason why it is left out. A null and a field that `kind` lacks are
    left out without a reason. `readers` has the readers of fields with other types than numbers,
    texts and lists of these. Raises ValueError if `json_object` is no object."""
    if not isinstance(json_object, Mapping):
        raise ValueError(f"{kind.__name__} is not an object")
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    known = _readers_by_field(kind)
    for field, value in json_object.items():
        reader = readers.get(field, known.get(field))
        if value is None or reader is None:
            continue
        try:
            values[field] = reader(field, value)
        except ValueError as why:
            reasons[field] = str(why)
    return values, reasons


def read_record(
    kind: type[Record], json_object: Any, readers: Mapping[str, Reader] = _NO_READERS
) -> Record:
    """Return an instance of the dataclass `kind` from a JSON object, as `read_fields_and_reasons`
    reads it. If the dataclass has a field `absent`, it gets the reasons of the impossible values.
    Raises ValueError if a field without a default has no usable value."""
    return build_record(kind, *read_fields_and_reasons(kind, json_object, readers))


def build_record(kind: type[Record], values: dict[str, Any], reasons: Mapping[str, str]) -> Record:
    """Return an instance of the dataclass `kind` from `values` and `reasons` as
    `read_fields_and_reasons` returns them. A field that may be None and has no value gets None.
    Raises ValueError if another field without a default has no usable value."""
    of: Any = kind
    for name in _required_fields(of):
        if name not in values:
            raise ValueError(f"{kind.__name__} has no usable {name}")
    if "absent" in _readers_by_field(of):
        values["absent"] = {**values.get("absent", {}), **reasons}
    return kind(**{**_optional_fields_as_none(of), **values})


@cache
def _required_fields(kind: Any) -> tuple[str, ...]:
    return _fields_without_default(kind, may_be_none=False)


@cache
def _optional_fields_as_none(kind: Any) -> dict[str, None]:
    """Return None for each field that has no default but may be None."""
    return dict.fromkeys(_fields_without_default(kind, may_be_none=True))


def _fields_without_default(kind: Any, *, may_be_none: bool) -> tuple[str, ...]:
    found = []
    for field in fields(kind):
        has_default = (field.default, field.default_factory) != (MISSING, MISSING)
        if not has_default and str(field.type).endswith("| None") == may_be_none:
            found.append(field.name)
    return tuple(found)


@cache
def _readers_by_field(kind: Any) -> dict[str, Reader | None]:
    return {f.name: _READERS.get(str(f.type).removesuffix(" | None")) for f in fields(kind)}


def _check_number(field: str, value: Any) -> float:
    lowest, highest = range_of_field(field)
    if why := why_number_is_impossible(value, lowest, highest):
        raise ValueError(why)
    number: float = value
    return number


def _check_integer(field: str, value: Any) -> int:
    number = _check_number(field, value)
    if not isinstance(number, int):
        raise ValueError("not a whole number")
    return number


def _check_text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return clean_text(value, NAME_CHARS)


def _require_bool(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _make_list_reader(item: Reader) -> Reader:
    def read_list(field: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            raise ValueError(f"not a list of at most {MOST_ITEMS} values")
        return tuple(item(field, one) for one in value)

    return read_list


def _check_texts_by_name(field: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MOST_ITEMS:
        raise ValueError("not an object of texts")
    return {_check_text(field, name): _check_text(field, text) for name, text in value.items()}


_READERS: dict[str, Reader] = {  # by the type of a field, without "| None"
    "int": _check_integer,
    "float": _check_number,
    "str": _check_text,
    "bool": _require_bool,
    "tuple[int, ...]": _make_list_reader(_check_integer),
    "tuple[str, ...]": _make_list_reader(_check_text),
    "Mapping[str, str]": _check_texts_by_name,
}
