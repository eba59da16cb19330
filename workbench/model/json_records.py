"""Records to JSON data and back, for all that is stored or sent between processes.

Fields that this version does not know are dropped, missing ones take their default, so that data written by another
version stays readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

Record = TypeVar("Record")


def to_json(record: Any) -> dict[str, Any]:
    """Return a dataclass as JSON data."""
    return asdict(record)


def from_json(kind: type[Record], data: Any) -> Record:
    """Return JSON data as a record of the dataclass `kind`, its fields checked and converted to their types.

    Raises ValueError that names the invalid or missing field.
    """
    import msgspec  # takes 30 ms to import, and the benchmark's worker only writes

    return msgspec.convert(data, kind, dec_hook=_from_its_json)


def _from_its_json(kind: Any, data: Any) -> Any:
    """Return `data` as a class that reads its own JSON data, such as GpuSettings."""
    return kind.from_json(data)


def with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping of fields with its lists as tuples, as dataclasses have them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
