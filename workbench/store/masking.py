"""JSON data without secrets, for what is stored and what is exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.secrets import MASK, is_secret_name, mask_text


def masked(data: Any, name: str = "") -> Any:
    """A copy of JSON data without secrets: values under a secret name, after a secret flag in a list, and anything
    that has the shape of a key."""
    if isinstance(data, Mapping):
        return {k: masked(v, str(k)) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        before = ["", *(x if isinstance(x, str) and x.startswith("-") else "" for x in data)]
        return [masked(v, name if is_secret_name(name) else b.lstrip("-")) for b, v in zip(before, data, strict=False)]
    if isinstance(data, str) and data:
        if is_secret_name(name) and not data.startswith("-"):
            return MASK
        flag, equals, _ = data.partition("=")
        if equals and flag.startswith("-") and is_secret_name(flag.lstrip("-")):
            return f"{flag}={MASK}"
        return mask_text(data)
    return data
