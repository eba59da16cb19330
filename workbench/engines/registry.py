"""The engines by name."""

from __future__ import annotations

from workbench.engines.base import Engine
from workbench.engines.llamacpp import Llamacpp
from workbench.engines.sglang import Sglang
from workbench.engines.tabbyapi import Tabbyapi
from workbench.engines.vllm import Vllm
from workbench.model.errors import InputError

_ENGINES: dict[str, Engine] = {e.name: e for e in (Vllm(), Sglang(), Tabbyapi(), Llamacpp())}


def names() -> tuple[str, ...]:
    return tuple(_ENGINES)


def get(name: str) -> Engine:
    try:
        return _ENGINES[name]
    except KeyError:
        raise InputError(f"there is no engine {name!r}", next_step=f"use one of {', '.join(_ENGINES)}") from None
