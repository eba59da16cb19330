"""Reads configuration files of llama-swap as recipes: the command of one model, with the macros
filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.model.untrusted_text import as_table
from workbench.recipes.imports.containers import parse_environment
from workbench.recipes.imports.fields import (
    add_unknown_field_notes,
    fill_in_placeholders,
    table_field,
    text_field,
    text_list_field,
)
from workbench.recipes.imports.server_command import ServerCommand, no_server_finding
from workbench.recipes.imports.shell_script import find_server_commands, recipe_of_commands
from workbench.recipes.recipe import Given, Notes, Recipe

FORM_TITLE = "llama-swap configuration"
_MACRO = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")
_OF_PROXY = (
    "name description aliases proxy ttl checkEndpoint unlisted useModelName filters "
    "metadata concurrencyLimit"
)


def recognizes(document: Mapping[str, Any]) -> bool:
    models = as_table(document.get("models")).values()
    return any("cmd" in model for model in map(as_table, models))


def read(document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
    """Return the recipe of the model `given.entry`, or by default of the first model whose command
    starts a server. Parts that are not understood are added to `notes`. Raises InputError if there
    is no such model."""
    models = table_field(document, "models", notes)
    given.require_entry_among(FORM_TITLE, "model", models)
    chosen = given.entry or _choose_default_model_name(document, models)
    notes.add_other_entries_notes("model", models, chosen)
    model = table_field(models, chosen, notes)
    add_unknown_field_notes(model, f"cmd cmdStop env macros {_OF_PROXY}", notes, f"{chosen}: ")
    if model.get("cmdStop"):
        notes.add_not_run_warning("the stop command", model["cmdStop"])
    commands = _server_commands_of_model(document, chosen, model, notes)
    if not commands:
        notes.findings.insert(0, no_server_finding(FORM_TITLE, [chosen]))
        return Recipe(None, FORM_TITLE, chosen, chosen)
    return replace(
        recipe_of_commands(commands, notes, FORM_TITLE),
        name=chosen,
        title=text_field(model, "name", notes) or chosen,
    )


def _choose_default_model_name(document: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """Return the name of the first model whose command starts a server, else of the first model."""
    for name, model in models.items():
        if isinstance(model, Mapping) and _server_commands_of_model(document, name, model, Notes()):
            return name
    return next(iter(models))


def _server_commands_of_model(
    document: Mapping[str, Any], name: str, model: Mapping[str, Any], notes: Notes
) -> list[ServerCommand]:
    """Return the server commands in the command of the model called `name`."""
    macros = {
        **table_field(document, "macros", notes),
        **table_field(model, "macros", notes),
        "MODEL_ID": name,
    }
    own = parse_environment(text_list_field(model, "env", notes), notes)
    env = {key: _fill_in_macros(text, macros, notes) for key, text in own.items()}
    lines = [
        line
        for line in text_field(model, "cmd", notes).split("\n")
        if not line.lstrip().startswith("#")
    ]
    text = " ".join(line.rstrip().removesuffix("\\") for line in lines)
    return find_server_commands(_fill_in_macros(text, macros, notes), notes, env=env)


def _fill_in_macros(text: str, macros: Mapping[str, Any], notes: Notes) -> str:
    text = fill_in_placeholders(text, _MACRO, {name: str(value) for name, value in macros.items()})
    # ${PORT} is a port that llama-swap chooses; without the flag the engine's own default holds.
    text = re.sub(r"(?:--port|-p)[ =]\$\{PORT\}", "", text)
    return _MACRO.sub(
        lambda found: notes.add_variable_and_get_reference(
            found[1].removeprefix("env."), FORM_TITLE
        ),
        text,
    )
