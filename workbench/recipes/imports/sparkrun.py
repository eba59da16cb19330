"""Reads recipes (YAML) of sparkrun, and of spark-vllm-docker with recipe version 1. They contain a
command template, or settings by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.engines import registry
from workbench.engines.command_line import EngineCommandLine
from workbench.model.plan import LaunchPlan
from workbench.model.untrusted_text import as_table
from workbench.recipes.imports.containers import parse_environment, use_host_paths
from workbench.recipes.imports.fields import (
    add_unknown_field_notes,
    count_field,
    fill_in_placeholders,
    first_text_field,
    flag_arguments,
    scalar_text,
    table_field,
    text_field,
    text_list_field,
)
from workbench.recipes.imports.server_command import ServerCommand, no_server_finding
from workbench.recipes.imports.shell_script import find_server_commands, recipe_of_commands
from workbench.recipes.recipe import Given, Notes, Recipe

FORM_TITLE = "sparkrun recipe"
_KNOWN = (
    "recipe_version sparkrun_version name description model model_revision runtime runtime_version "
    "container command "
    "defaults env mode min_nodes max_nodes solo_only cluster_only metadata benchmark "
    "stop_after_post maintainer draft_model volumes"
)
_HOOKS = (
    "build_args",
    "mods",
    "pre_exec",
    "post_exec",
    "post_commands",
    "patches",
    "builder",
    "builder_config",
)
_OF_CONTAINER = ("executor_config", "runtime_config", "distribution_config")
_FIELDS = frozenset((*_KNOWN.split(), *_HOOKS, *_OF_CONTAINER))
_HOLE = re.compile(r"\{(\w+)\}")


def recognizes(document: Mapping[str, Any]) -> bool:
    fields = document.keys()
    if "services" in fields:
        return False
    if "command" in fields and fields & {"container", "defaults"}:
        return True
    return "model" in fields and bool(fields & {"runtime", "recipe_version"})


def read(document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
    """Return the recipe in a sparkrun document, with the changes of the variant `given.entry`;
    without a plan if it starts no server. Its installation hooks, which are programs, are added to
    `notes` and never run. Raises InputError if there is no such variant."""
    document = _apply_variant(document, notes, given)
    hooks = [(name, document[name]) for name in _HOOKS if document.get(name)]
    for name, value in hooks:
        for one in value if isinstance(value, list) else [value]:
            notes.add_not_run_warning(f"the recipe's {name}", one)
    for name in _OF_CONTAINER:
        if document.get(name):
            notes.add_left_out_note(
                name, "it configures the container, and a preset starts the engine itself"
            )
    add_unknown_field_notes(document, " ".join((_KNOWN, *_HOOKS, *_OF_CONTAINER)), notes)
    defaults = table_field(document, "defaults", notes)
    env = parse_environment(document.get("env"), notes)
    volumes = [_expand_home_in_volume(one) for one in text_list_field(document, "volumes", notes)]
    commands = _server_commands_of_recipe(document, defaults, env, notes)
    title = first_text_field(notes, (document, "name"), (document, "model"))
    if not commands:
        notes.findings.insert(
            0, no_server_finding(FORM_TITLE, [text_field(document, "runtime", notes)])
        )
        return Recipe(None, FORM_TITLE, title=title)
    for command in commands:
        command.image = text_field(document, "container", notes)
        if command.image:  # the program is one of the image
            command.start = replace(command.start, executable=())
            use_host_paths(command, volumes, notes)
    recipe = recipe_of_commands(commands, notes, FORM_TITLE)
    nodes = count_field(document, "min_nodes") or (2 if document.get("cluster_only") is True else 1)
    if nodes > 1:
        notes.add_left_out_note(
            f"the placement on {nodes} nodes", "add the nodes with their addresses to the preset"
        )
    metadata = table_field(document, "metadata", notes)
    about = first_text_field(notes, (document, "description"), (metadata, "description"))
    plan = recipe.plan
    if plan is not None:
        plan = _with_model_fields(plan, document, notes)
    return replace(
        recipe,
        plan=plan,
        name=title,
        title=title,
        about=about,
        gpus=recipe.gpus or (nodes if nodes > 1 else None),
    )


def _with_model_fields(plan: LaunchPlan, document: Mapping[str, Any], notes: Notes) -> LaunchPlan:
    """Return the plan with the document's model and revision in place of those that it lacks."""
    if not plan.model:
        plan = replace(plan, model=text_field(document, "model", notes))
    revision = text_field(document, "model_revision", notes)
    if revision and plan.flag("revision") is None:
        plan = plan.with_flag("revision", revision)
    return plan


def _expand_home_in_volume(volume: str) -> str:
    """Return a volume with the home directory of the user as an absolute path."""
    return f"{Path.home()}{volume[1:]}" if volume.startswith("~/") else volume


def _apply_variant(document: Mapping[str, Any], notes: Notes, given: Given) -> Mapping[str, Any]:
    """Return the document with the changes of the variant `given.entry`. A field of a variant
    replaces the document's field of this name, otherwise one of its defaults. Without an entry, the
    document is returned as it is, and the variants are added to `notes`."""
    variants = table_field(document, "variants", notes)
    given.require_entry_among(FORM_TITLE, "variant", variants)
    rest = {name: value for name, value in document.items() if name != "variants"}
    notes.add_other_entries_notes("variant", variants, given.entry)
    if given.entry is None:
        return rest
    variant = table_field(variants, given.entry, notes)
    defaults = dict(table_field(document, "defaults", notes))
    for name, value in variant.items():
        if name == "defaults":
            defaults |= as_table(value)
        elif name == "env" and isinstance(value, Mapping):
            rest["env"] = {**table_field(document, "env", notes), **value}
        elif name in document or name in _FIELDS:
            rest[name] = value
        else:
            defaults[name] = value
    return {**rest, "defaults": defaults}


def _server_commands_of_recipe(
    document: Mapping[str, Any], defaults: Mapping[str, Any], env: dict[str, str], notes: Notes
) -> list[ServerCommand]:
    template = text_field(document, "command", notes)
    if template:
        values = {
            **{k: v for k, v in defaults.items() if not isinstance(v, dict | list)},
            "model": document.get("model"),
        }
        used = set(_HOLE.findall(f"{template} {defaults}"))
        for name, value in defaults.items():
            if name not in used:
                notes.add_left_out_note(
                    f"defaults: {name} = {value}", "the command does not use it"
                )
        text = fill_in_placeholders(
            template, _HOLE, {k: scalar_text(v) for k, v in values.items() if v is not None}
        )
        return find_server_commands(text, notes, env=env)
    runtime = text_field(document, "runtime", notes) or "vllm"  # as sparkrun does
    engine = registry.find_engine_named_in_text(runtime)
    if engine is None:
        return []
    arguments = list(flag_arguments(engine, defaults, notes, "defaults: "))
    return [ServerCommand(EngineCommandLine(engine, (), tuple(arguments)), env)]
