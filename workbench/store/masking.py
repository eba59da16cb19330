"""JSON data without secrets, for what is stored and what is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.model.secrets import MASK, is_secret_name, mask_text


def masked(data: Any, name: str = "") -> Any:
    """A copy of JSON data without secrets: values under a secret name, after a secret flag in a list, and anything
    that has the shape of a key."""
    if isinstance(data, Mapping):
        return {k: masked(v, str(k)) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [masked(v, name if is_secret_name(name) else flag) for flag, v in zip(_flags(data), data, strict=True)]
    if isinstance(data, str) and data:
        if is_secret_name(name):
            return MASK
        flag, equals, _ = data.partition("=")
        if equals and flag.startswith("-") and is_secret_name(flag.lstrip("-")):
            return f"{flag}={MASK}"
        return mask_text(data)
    return data


def _flags(arguments: Sequence[Any]) -> list[str]:
    """For each item of a command line the flag whose value it is, "" where it is none."""
    flags, before = [], ""
    for item in arguments:
        is_flag = isinstance(item, str) and item.startswith("-")
        flags.append("" if is_flag else before)
        before = item.lstrip("-") if is_flag else ""
    return flags
