"""Reads the configuration file of TabbyAPI, config.yml, which has a section for each group of
flags."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.engines import registry
from workbench.engines.command_line import EngineCommandLine
from workbench.model.errors import InputError, error_reason
from workbench.model.findings import Level
from workbench.model.flags import Origin
from workbench.model.plan import LaunchPlan
from workbench.model.untrusted_text import as_table, clean_data, clean_text
from workbench.recipes import yaml_text
from workbench.recipes.imports.fields import flag_arguments, table_field
from workbench.recipes.imports.server_command import ServerCommand, plan_of_command
from workbench.recipes.recipe import Given, Notes, Recipe

FORM_TITLE = "TabbyAPI configuration"
ENGINE = "tabbyapi"
_USUAL_FILE = "config.yml"
_MODEL_DIRECTORIES = {  # section -> flag that names a directory below the source directory
    "model": "model_dir",
    "draft_model": "draft_model_dir",
    "lora": "lora_dir",
    "embeddings": "embedding_model_dir",
}
_LEAST_SECTIONS = 2


def recognizes(document: Mapping[str, Any]) -> bool:
    found = [name for name in _config_section_names() if isinstance(document.get(name), Mapping)]
    if {"model_dir", "model_name"} & as_table(document.get("model")).keys():
        return True
    return len(found) >= _LEAST_SECTIONS


def read(document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
    """Return the recipe in a config.yml. If it lies in TabbyAPI's source directory, the server
    starts there, and relative directories of models count from there."""
    given.require_entry_among(FORM_TITLE, "entry")
    source = given.directory
    if source is not None and not (source / "main.py").is_file():
        source = None
    return Recipe(_plan_of_config(document, notes, source), FORM_TITLE)


def add_settings_of_config_file(plan: LaunchPlan, notes: Notes, given: Given) -> LaunchPlan:
    """Return the plan of a command line with the settings of the configuration file that TabbyAPI
    reads: the file that the flag config names, otherwise config.yml in the working directory.
    Settings of the command line stay. If there is no such file, or if it cannot be read, which adds
    a warning to `notes`, the plan is returned as it is."""
    named = plan.flag("config")
    workdir = Path(plan.workdir) if plan.workdir else None
    start = workdir or given.directory or Path.cwd()
    path = start / (named if isinstance(named, str) else _USUAL_FILE)
    if named is None:
        is_there = workdir is not None and path.is_file()
        if not is_there:
            return plan
    try:
        with path.open("rb") as handle:
            data = handle.read(yaml_text.MAX_BYTES + 1)
        text = clean_text(data.decode("utf-8-sig", "replace"), len(data), lines=True)
        document = clean_data(yaml_text.load_yaml(text), yaml_text.MAX_BYTES, lines=True)
    except (OSError, InputError) as error:
        why = error_reason(error)
        fix = "give the path of the file from this directory, or import the file itself"
        notes.add(Level.WARN, "config", f"{path} is not read: {why}", "config", fix)
        return plan
    if not isinstance(document, Mapping):
        notes.add_not_understood_warning(f"the configuration file {path}")
        return plan
    from_file = _plan_of_config(document, notes, workdir)
    merged = replace(plan, model=plan.model or from_file.model).without_flag("config")
    for setting in from_file.flags:
        if merged.flag(setting.name) is None:
            merged = merged.with_flag(setting.name, setting.value, Origin.PRESET)
    return merged


def _plan_of_config(document: Mapping[str, Any], notes: Notes, source: Path | None) -> LaunchPlan:
    """Return the plan of a configuration file. `source` is TabbyAPI's source directory, None if it
    is unknown."""
    engine = registry.get_engine(ENGINE)
    words: list[str] = []
    loras = None
    for name in document:
        if name not in _config_section_names():
            notes.add_not_understood_warning(name, document[name])
            continue
        if document[name] in (None, ""):
            continue
        section = dict(table_field(document, name, notes))
        directory = section.get(_MODEL_DIRECTORIES.get(name, ""))
        if source is not None and isinstance(directory, str):
            section[_MODEL_DIRECTORIES[name]] = os.path.normpath(source / directory)
        if name == "lora":
            loras = section.pop("loras", None)
        words += flag_arguments(engine, section, notes, f"{name}: ")
    start = EngineCommandLine(engine, (), tuple(words))
    workdir = str(source) if source is not None else None
    plan = plan_of_command(ServerCommand(start, workdir=workdir), notes)
    if isinstance(loras, list) and loras:
        plan = plan.with_flag("loras", loras, Origin.PRESET)
    elif loras:
        notes.add_not_understood_warning("lora: loras", loras)
    return plan


def _config_section_names() -> frozenset[str]:
    """Return the names of the sections of config.yml."""
    flags = registry.get_engine(ENGINE).catalog().flags
    return frozenset(spec.group for spec in flags.values())
