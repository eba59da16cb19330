"""Presets, and parts of them, made from documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from workbench.store import preset_schema

T = TypeVar("T")


def from_document(kind: type[T], document: Mapping[str, Any]) -> T:
    """Return the dataclass of model/preset.py that a valid document describes."""
    one, wrong = preset_schema.read(kind, document)
    assert one is not None, wrong
    return one
