"""Changes of a TOML document that keep its comments and format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_into_table(target: Any, wanted: Mapping[str, Any]) -> None:
    """Change the TOML table `target` so that its contents equal `wanted`. Values that are equal
    already keep their comments and format."""
    present = target.unwrap()
    for key in present:
        if wanted.get(key) is None:
            del target[key]
    for key, value in wanted.items():
        if value is None:
            continue
        if isinstance(value, Mapping) and isinstance(present.get(key), Mapping):
            merge_into_table(target[key], value)
        elif key not in present or present[key] != value or type(present[key]) is not type(value):
            target[key] = drop_none_values(value)


def drop_none_values(value: Any) -> Any:
    """Return `value` without the entries that are None, because TOML has no null."""
    if isinstance(value, Mapping):
        return {k: drop_none_values(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [drop_none_values(v) for v in value if v is not None]
    return value
