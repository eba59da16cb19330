"""Reads recipes of the vLLM project (vllm-project/recipes). A recipe has a model, optional features
and variants, each with its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.engines import registry
from workbench.engines.command_line import StartOfEngine
from workbench.model.errors import InputError
from workbench.recipes.imports.containers import environment
from workbench.recipes.imports.fields import rest_of, table_of, text_of, words_of
from workbench.recipes.imports.server_command import ServerCommand, plan_of
from workbench.recipes.recipe import Notes, Recipe, short

FORM = "vLLM recipe"
_KNOWN = (
    "hardware_opt_in_features strategy_hardware strategy_min_gpus default_hardware "
    "meta model features opt_in_features variants compatible_strategies hardware_overrides "
    "strategy_overrides guide "
    "kv_offload_support dependencies default_strategy omni"
)
_OVERRIDES = ("hardware_overrides", "strategy_overrides", "strategy_hardware", "strategy_min_gpus")


def recognizes(document: Mapping[str, Any]) -> bool:
    model = document.get("model")
    return isinstance(model, Mapping) and "model_id" in model


def read(document: Mapping[str, Any], notes: Notes, entry: str | None = None) -> Recipe:
    """Return the recipe of the variant `entry`, or by default of the variant "default", with all
    features that the recipe switches on by default. Parts that are not understood are added to
    `notes`. Raises InputError if there is no variant `entry`."""
    model, meta = table_of(document, "model", notes), table_of(document, "meta", notes)
    variants = table_of(document, "variants", notes)
    chosen = entry or "default"
    if entry is not None and entry not in variants:
        raise InputError(
            f"the recipe has no variant {entry!r}",
            next_step=f"choose one of the recipe's variants: {', '.join(variants)}"
            if variants
            else "import the recipe without a variant: it has none",
        )
    variant = table_of(variants, chosen, notes)
    rest_of(document, _KNOWN, notes)
    arguments = words_of(model, "base_args", notes)
    env = environment(model.get("base_env"), notes)
    optional = words_of(document, "opt_in_features", notes)
    for name, feature in table_of(document, "features", notes).items():
        if name in optional:
            notes.left_out(f"the feature {name}", "the recipe does not switch it on by default")
        elif isinstance(feature, Mapping):
            arguments += words_of(feature, "args", notes)
            env |= environment(feature.get("env"), notes)
    arguments += words_of(variant, "extra_args", notes)
    env |= environment(variant.get("extra_env"), notes)
    _note_the_rest(document, chosen, variants, notes)
    engine = registry.get("vllm")
    identity = text_of(variant, "model_id", notes) or text_of(model, "model_id", notes)
    image = model.get("docker_image")
    image = image.get("nvidia") if isinstance(image, Mapping) else image
    start = StartOfEngine(engine, (), (identity, *arguments) if identity else tuple(arguments))
    plan = plan_of(
        ServerCommand(start, env, image=image if isinstance(image, str) else None), notes
    )
    least = text_of(model, "min_vllm_version", notes)
    title = text_of(meta, "title", notes) or identity
    about = text_of(meta, "description", notes)
    versions = f">={least}" if least[:1].isdecimal() else None
    return Recipe(
        replace(plan, engine_versions=versions),
        FORM,
        f"{title} {chosen}",
        f"{title}, {chosen}",
        about,
    )


def _note_the_rest(
    document: Mapping[str, Any], chosen: str, variants: Mapping[str, Any], notes: Notes
) -> None:
    for name in variants:
        if name != chosen:
            notes.left_out(f"the variant {name}", f"--entry {name} reads it")
    for name in _OVERRIDES:
        for key, value in table_of(document, name, notes).items():
            notes.left_out(f"{name} for {key}", f"Workbench does not choose them: {short(value)}")
    dependencies = document.get("dependencies")
    for one in dependencies if isinstance(dependencies, list) else ():
        notes.refused(
            "an installation step", one.get("command", one) if isinstance(one, Mapping) else one
        )
