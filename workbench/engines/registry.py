"""The registry of engines: find an engine by its name, by a text or by a process.

What lists of presets and of processes need is here and not in the classes, which take 0.5 MiB: a
screen without a server does not load them.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.engines.base import Engine


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """How an engine is called in a narrow column, and how its processes are recognized. The
    patterns are valid for both grep -E and Python's re."""

    short_engine_name: str  # at most four letters
    process_pattern: str  # part of a server's command line
    server_pattern: str = ""  # the same, but only of the server itself; "": not recognizable
    worker_pattern: str = (
        ""  # beginning of the command line of a worker, which can outlive its server
    )
    process_priority: int = 0  # of several patterns that match, the one with the highest counts


_ENGINES = {
    "vllm": KnownEngine(
        "vllm",
        "vllm",
        r"\bvllm serve\b|vllm\.entrypoints",
        "VLLM::(EngineCore|Worker|DPCoordinator)",
    ),
    "sglang": KnownEngine(
        "sgl",
        "sglang",
        r"\bsglang serve\b|sglang\.launch_server",
        "sglang::(scheduler|detokenizer)",
        process_priority=2,  # a model or an environment may be named after vLLM
    ),
    "tabbyapi": KnownEngine(
        "tab",
        "[tT]abby",
        process_priority=-1,  # a directory or a model may have such a name
    ),
    "llamacpp": KnownEngine(
        "lcpp",
        r"llama-server|llama_cpp\.server",
        r"\bllama-server\b",
        process_priority=1,
    ),
}
_NAMES = tuple(_ENGINES)


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines. Each name is also that of a module in this package."""
    return _NAMES


@cache
def get_engine(name: str) -> Engine:
    """Return the engine called `name`. Its module is imported at the first call, because it
    compiles many patterns.

    Raises InputError if there is no such engine.
    """
    if name not in _NAMES:
        raise InputError(
            f"there is no engine {name!r}", next_step=f"use one of {', '.join(_NAMES)}"
        )
    engine: Engine = getattr(import_module(f"workbench.engines.{name}"), name.capitalize())()
    return engine


def join_engine_process_patterns() -> str:
    """Return a regular expression that finds the servers of all engines in a list of command lines.
    It is valid for both grep -E and Python's re."""
    return "|".join(engine.process_pattern for engine in _ENGINES.values())


def recognize_engine_of_process(command_line: str) -> str:
    """Return the name of the engine to which a process with this command line belongs; "" if it
    belongs to none. If several match, the one with the highest priority counts."""
    found = [name for name in _NAMES if re.search(_ENGINES[name].process_pattern, command_line)]
    return max(found, key=lambda name: _ENGINES[name].process_priority, default="")


def find_engine(name: str | None) -> Engine | None:
    """Return the engine called `name`. None if `name` is None or is not an engine of Workbench, as
    in some imported results."""
    return get_engine(name) if name in _NAMES else None


def find_engine_named_in_text(text: str) -> Engine | None:
    """Return the engine that a text names in any spelling, such as "vLLM", "llama-cpp" or
    "vllm/vllm-openai:v0.11". None if it names none.
    """
    letters = "".join(c for c in text.lower() if c.isalnum())
    for name in _NAMES:
        if name in letters:
            return get_engine(name)
    engines = map(get_engine, _NAMES)  # imports them all, so the names are looked for first
    return next((each for each in engines if each.image and each.image in text), None)


def join_engine_worker_patterns() -> str:
    """Return a regular expression that matches the command line of a worker process of any engine.
    It is valid for both grep -E and Python's re."""
    return f"^({'|'.join(filter(None, (one.worker_pattern for one in _ENGINES.values())))})"


def join_server_and_worker_patterns() -> str:
    """Return a regular expression that matches the command line of a server or worker process of
    any engine."""
    servers = filter(None, (engine.server_pattern for engine in _ENGINES.values()))
    return "|".join([join_engine_worker_patterns(), *servers])


def guess_engine_for_model(model: str) -> Engine:
    """Return the engine that usually serves a model: the first one in the list that loads it, which
    is llama.cpp for a GGUF file, otherwise vLLM."""
    files = model.endswith(".gguf")
    return next(engine for engine in map(get_engine, _NAMES) if engine.loads_gguf == files)


def short_engine_name(name: str) -> str:
    """Return the short name of an engine, which has at most four letters. For an unknown engine,
    return `name` unchanged.
    """
    return _ENGINES[name].short_engine_name if name in _ENGINES else name
