"""Replacements for the parts of the standard library that the load client uses and Python 3.10
lacks. Imported first on a host, where the client may run under an older Python than Workbench
itself."""

from __future__ import annotations

import enum

if not hasattr(enum, "StrEnum"):

    class _StrEnum(str, enum.Enum):  # noqa: UP042
        __str__ = str.__str__

    enum.StrEnum = _StrEnum  # type: ignore[misc,assignment]
