"""Texts of values that may be unknown."""

from __future__ import annotations


def format_unless_empty(template: str, value: object) -> str:
    """Return `template` with `value` in place of {}, or "" if the value is None, 0, False or
    empty."""
    return template.format(value) if value else ""


def join_nonempty(*parts: str | None) -> str:
    """Return the parts that are not empty, joined by commas."""
    return ", ".join(filter(None, parts))
