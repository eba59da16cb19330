"""The registry of engines: find an engine by its name, by a text or by a process."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from workbench.engines.base import Engine
from workbench.model.errors import InputError

_NAMES = ("vllm", "sglang", "tabbyapi", "llamacpp")


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


def server_patterns() -> str:
    """Return a regular expression that finds the servers of all engines in a list of command lines.
    It is valid for both grep -E and Python's re."""
    return "|".join(get_engine(name).process_pattern for name in _NAMES)


def find_engine(name: str | None) -> Engine | None:
    """Return the engine called `name`. None if `name` is None or is not an engine of Workbench, as
    in some imported results."""
    return get_engine(name) if name in _NAMES else None


def engine_named_in(text: str) -> Engine | None:
    """Return the engine that a text names in any spelling, such as "vLLM", "llama-cpp" or
    "vllm/vllm-openai:v0.11". None if it names none.
    """
    letters = "".join(c for c in text.lower() if c.isalnum())
    for name in _NAMES:
        if name in letters:
            return get_engine(name)
    engines = map(get_engine, _NAMES)  # imports them all, so the names are looked for first
    return next((each for each in engines if each.image and each.image in text), None)


def worker_pattern() -> str:
    """Return a regular expression that matches the command line of a worker process of any engine.
    It is valid for both grep -E and Python's re."""
    return f"^({'|'.join(filter(None, (get_engine(name).worker_pattern for name in _NAMES)))})"


def leftover_pattern() -> str:
    """Return a regular expression that matches the command line of a server or worker process of
    any engine."""
    return "|".join(
        [worker_pattern(), *filter(None, (get_engine(name).server_pattern for name in _NAMES))]
    )


def usual_engine_for(model: str) -> Engine:
    """Return the engine that usually serves a model: the first one in the list that loads it, which
    is llama.cpp for a GGUF file, otherwise vLLM."""
    files = model.endswith(".gguf")
    return next(engine for engine in map(get_engine, _NAMES) if engine.loads_gguf == files)


def short_name(name: str) -> str:
    """Return the short name of an engine, which has at most four letters. For an unknown engine,
    return `name` unchanged.
    """
    engine = find_engine(name)
    return engine.short_name if engine else name
