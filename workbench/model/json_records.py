"""Conversion of dataclasses to JSON data and back, for everything that is stored or sent between
processes.

Reading drops unknown fields and gives missing fields their default, so that data of another version
stays readable.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

Record = TypeVar("Record")

# msgspec 0.22 crashes the process if two threads read the first record of a type at once.
_READING = threading.RLock()


def to_json(record: Any) -> dict[str, Any]:
    """Return a dataclass instance as JSON data, with nested dataclasses as dicts."""
    return asdict(record)


def from_json(kind: type[Record], data: Any) -> Record:
    """Return an instance of the dataclass `kind` from JSON data, with its fields checked and
    converted to their types.

    Raises ValueError that names the invalid or missing field.
    """
    import msgspec  # takes 30 ms to import, and the benchmark's worker only writes

    with _READING:
        return msgspec.convert(data, kind, dec_hook=_call_from_json)


def to_bytes(record: Any) -> bytes:
    """Return a large dataclass instance as JSON text, 20 times as fast as by `to_json`."""
    import msgspec

    return msgspec.json.encode(record)


def from_bytes(kind: type[Record], data: bytes) -> Record:
    """Return the instance of the dataclass `kind` that `to_bytes` wrote. Raises ValueError that
    names the invalid or missing field."""
    import msgspec

    with _READING:
        return msgspec.json.decode(data, type=kind)


def _call_from_json(kind: Any, data: Any) -> Any:
    return kind.from_json(data)


def field_values_with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a dataclass's field values in which each list is a tuple, because frozen
    dataclasses use tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
