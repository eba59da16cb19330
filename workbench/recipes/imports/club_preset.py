"""Reads preset files (JSON) of GitHub repositories such as noonghunna/club-3090, in which users
share server configurations: hardware, runtime, model, serving, caveats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.engines import registry
from workbench.engines.command_line import EngineCommandLine
from workbench.recipes.imports.containers import parse_environment
from workbench.recipes.imports.fields import (
    add_unknown_field_notes,
    count_field,
    first_text_field,
    flag_arguments,
    table_field,
    text_field,
    text_list_field,
)
from workbench.recipes.imports.server_command import (
    ServerCommand,
    no_server_finding,
    plan_of_command,
)
from workbench.recipes.recipe import Given, Notes, Recipe

FORM_TITLE = "club preset"
_KNOWN = (
    "schema_version id title status provenance purpose hardware runtime model serving "
    "profile context env caveats"
)


def recognizes(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("runtime"), Mapping) and isinstance(
        document.get("serving"), Mapping
    )


def read(document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
    """Return the recipe in a preset file of the community (JSON); without a plan if Workbench does
    not know its engine. Parts that are not understood are added to `notes`. Raises InputError if an
    entry is asked for."""
    given.require_entry_among(FORM_TITLE, "entry")
    runtime, model = table_field(document, "runtime", notes), table_field(document, "model", notes)
    hardware = table_field(document, "hardware", notes)
    context = table_field(document, "context", notes)
    add_unknown_field_notes(document, f"{_KNOWN} known_evidence", notes)
    named = text_field(runtime, "engine", notes)
    engine = registry.find_engine_named_in_text(named)
    name, title = text_field(document, "id", notes), text_field(document, "title", notes)
    if engine is None:
        notes.findings.insert(0, no_server_finding(FORM_TITLE, [named]))
        return Recipe(None, FORM_TITLE, name, title)
    add_unknown_field_notes(runtime, "engine image version", notes, "runtime: ")
    serving = dict(table_field(document, "serving", notes))
    if not serving.keys() & {"max_model_len", "ctx_size", "context_length"} and count_field(
        context, "target_tokens"
    ):
        serving["max_model_len"] = context["target_tokens"]
    arguments = flag_arguments(engine, serving, notes, "serving: ")
    identity = first_text_field(notes, (model, "source"), (model, "id"))
    start = EngineCommandLine(engine, (), (f"--{engine.model_flags[0]}", identity, *arguments))
    env = parse_environment(document.get("env"), notes)
    command = ServerCommand(start, env, image=text_field(runtime, "image", notes))
    gpu = text_field(hardware, "gpu_model", notes)
    return Recipe(
        plan_of_command(command, notes),
        FORM_TITLE,
        name,
        title,
        text_field(document, "purpose", notes),
        gpus=count_field(hardware, "gpu_count"),
        gpu_names=(gpu,) if gpu else (),
        memory_gib=float(count) if (count := count_field(hardware, "vram_per_gpu_gb")) else None,
        caveats=tuple(text_list_field(document, "caveats", notes)),
    )
