"""Reads recipes of the vLLM project (vllm-project/recipes). A recipe has a model, optional features
and variants, each with its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.engines import registry
from workbench.engines.command_line import EngineCommandLine
from workbench.model.flags import Origin
from workbench.model.untrusted_text import as_list, as_table
from workbench.recipes.imports.containers import parse_environment
from workbench.recipes.imports.fields import (
    add_unknown_field_notes,
    first_text_field,
    table_field,
    text_field,
    text_list_field,
)
from workbench.recipes.imports.server_command import ServerCommand, plan_of_command
from workbench.recipes.imports.vllm_placement import (
    add_memory_fit_note,
    choose_placement,
    collect_override_arguments_and_environment,
)
from workbench.recipes.recipe import Given, Notes, Recipe, shorten_value

FORM_TITLE = "vLLM recipe"
_KNOWN = (
    "hardware_opt_in_features strategy_hardware strategy_min_gpus default_hardware "
    "meta model features opt_in_features variants compatible_strategies hardware_overrides "
    "strategy_overrides guide "
    "kv_offload_support dependencies default_strategy omni"
)
_OF_MODEL = (
    "model_id base_args base_env docker_image min_vllm_version architecture parameter_count "
    "active_parameters context_length"
)
_OF_VARIANT = (
    "model_id precision vram_minimum_gb description label extra_args extra_env tp "
    "hardware_overrides min_vllm_version docker_image"
)


def recognizes(document: Mapping[str, Any]) -> bool:
    return "model_id" in as_table(document.get("model"))


def read(document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
    """Return the recipe of the variant `given.entry`, or by default of the variant "default", with
    all features that the recipe switches on by default. The number of GPUs and the parallelism are
    those that the variant needs on the GPUs of the host. Parts that are not understood are added to
    `notes`. Raises InputError if there is no such variant."""
    model, meta = table_field(document, "model", notes), table_field(document, "meta", notes)
    variants = table_field(document, "variants", notes)
    given.require_entry_among(FORM_TITLE, "variant", variants)
    chosen = given.entry or "default"
    variant = table_field(variants, chosen, notes)
    add_unknown_field_notes(document, _KNOWN, notes)
    add_unknown_field_notes(model, _OF_MODEL, notes, "model: ")
    add_unknown_field_notes(variant, _OF_VARIANT, notes, f"the variant {chosen}: ")
    placement = choose_placement(document, variant, given, notes)
    arguments = text_list_field(model, "base_args", notes)
    env = parse_environment(model.get("base_env"), notes)
    optional = text_list_field(document, "opt_in_features", notes)
    for name, feature in table_field(document, "features", notes).items():
        if name in optional:
            notes.add_left_out_note(
                f"the feature {name}", "the recipe does not switch it on by default"
            )
        elif isinstance(feature, Mapping):
            arguments += text_list_field(feature, "args", notes)
            env |= parse_environment(feature.get("env"), notes)
            add_unknown_field_notes(
                feature, "args env description label", notes, f"the feature {name}: "
            )
    arguments += text_list_field(variant, "extra_args", notes)
    env |= parse_environment(variant.get("extra_env"), notes)
    more, more_env = collect_override_arguments_and_environment(
        document, variant, placement.strategy, given, notes
    )
    arguments += more
    env |= parse_environment(more_env, notes)
    _add_ignored_field_notes(document, chosen, variants, notes)
    add_memory_fit_note(document, variants, chosen, placement, given, notes)
    engine = registry.get_engine("vllm")
    identity = first_text_field(notes, (variant, "model_id"), (model, "model_id"))
    if identity:
        arguments.insert(0, identity)
    start = EngineCommandLine(engine, (), tuple(arguments))
    image = _nvidia_image(variant, notes) or _nvidia_image(model, notes)
    plan = plan_of_command(ServerCommand(start, env, image=image), notes)
    for flag, value in placement.flags.items():
        if plan.flag(flag) is None:
            plan = plan.with_flag(flag, value, Origin.PRESET)
    least = first_text_field(notes, (variant, "min_vllm_version"), (model, "min_vllm_version"))
    title = text_field(meta, "title", notes) or identity
    about = text_field(meta, "description", notes)
    versions = f">={least}" if least[:1].isdecimal() else None
    return Recipe(
        replace(plan, engine_versions=versions),
        FORM_TITLE,
        f"{title} {chosen}",
        f"{title}, {chosen}",
        about,
        gpus=placement.gpus,
        memory_gib=placement.memory_gib,
        depends_on_gpus=True,
    )


def _nvidia_image(table: Mapping[str, Any], notes: Notes) -> str:
    """Return the container image for NVIDIA GPUs in the field docker_image; "" if there is none. A
    value that is not understood is added to `notes`."""
    image = table.get("docker_image")
    if isinstance(image, Mapping):
        image = image.get("nvidia")
    if isinstance(image, str):
        return image
    if image is not None:
        notes.add_not_understood_warning("docker_image", image)
    return ""


def _add_ignored_field_notes(
    document: Mapping[str, Any], chosen: str, variants: Mapping[str, Any], notes: Notes
) -> None:
    notes.add_other_entries_notes("variant", variants, chosen)
    for name in ("hardware_opt_in_features", "default_hardware"):
        if document.get(name):
            notes.add_left_out_note(
                name, f"Workbench does not choose by it: {shorten_value(document[name])}"
            )
    if document.get("omni"):
        notes.add_left_out_note(
            "omni", "Workbench does not start servers of images, video or audio"
        )
    for one in as_list(document.get("dependencies")):
        step = one.get("command", one) if isinstance(one, Mapping) else one
        notes.add_not_run_warning("an installation step", step)
