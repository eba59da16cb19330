"""Reads configuration files of an engine, such as that of `vllm serve --config`, as recipes. They
contain flags by name, without dashes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.engines import registry
from workbench.engines.base import Engine
from workbench.engines.catalog import look_up_flag
from workbench.engines.command_line import EngineCommandLine
from workbench.recipes.imports.fields import flag_arguments
from workbench.recipes.imports.server_command import ServerCommand, plan_of_command
from workbench.recipes.recipe import Given, Notes, Recipe

FORM_TITLE = "engine configuration"


def recognizes(document: Mapping[str, Any]) -> bool:
    return _count_known_flags(_engine_of_document(document), document) * 2 > len(document)


def read(document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
    """Return the recipe in an engine's configuration file, whose fields are flags. The engine is
    the one that knows most of them. Raises InputError if an entry is asked for."""
    given.require_entry_among(FORM_TITLE, "entry")
    engine = _engine_of_document(document)
    words = flag_arguments(engine, document, notes, "")
    return Recipe(
        plan_of_command(ServerCommand(EngineCommandLine(engine, (), tuple(words))), notes),
        FORM_TITLE,
    )


def _engine_of_document(document: Mapping[str, Any]) -> Engine:
    return max(
        map(registry.get_engine, registry.engine_names()),
        key=lambda engine: _count_known_flags(engine, document),
    )


def _count_known_flags(engine: Engine, document: Mapping[str, Any]) -> int:
    catalog, count = engine.catalog(), 0
    for name, value in document.items():
        if isinstance(value, Mapping | list):
            continue
        if name in engine.model_flags or look_up_flag(catalog, name).spec is not None:
            count += 1
    return count
