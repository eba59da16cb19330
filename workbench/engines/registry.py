"""The engines by name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from workbench.engines.base import Engine
from workbench.model.errors import InputError

_NAMES = ("vllm", "sglang", "tabbyapi", "llamacpp")


def names() -> tuple[str, ...]:
    return _NAMES


@cache
def get(name: str) -> Engine:
    """The engine of that name. Its module, full of patterns to compile, is loaded when it is first asked for."""
    if name not in _NAMES:
        raise InputError(f"there is no engine {name!r}", next_step=f"use one of {', '.join(_NAMES)}")
    engine: Engine = getattr(import_module(f"workbench.engines.{name}"), name.capitalize())()
    return engine
