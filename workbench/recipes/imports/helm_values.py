"""Reads values of the Helm chart of the vLLM production stack as recipes: one of the models in
servingEngineSpec.modelSpec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.engines import registry
from workbench.engines.command_line import EngineCommandLine
from workbench.model.findings import Level
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import as_list, as_table
from workbench.recipes.imports.fields import (
    add_unknown_field_notes,
    scalar_text,
    table_field,
    text_field,
    text_list_field,
)
from workbench.recipes.imports.kubernetes import parse_variables
from workbench.recipes.imports.server_command import (
    ServerCommand,
    no_server_finding,
    plan_of_command,
)
from workbench.recipes.recipe import Given, Notes, Recipe

FORM_TITLE = "Helm values"
_FLAGS = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
    "runner": "--runner",
    "convert": "--convert",
}
_SWITCHES = {
    "enableChunkedPrefill": "enable-chunked-prefill",
    "enablePrefixCaching": "enable-prefix-caching",
}
_OF_MODEL = (
    "name repository tag modelURL vllmConfig env raySpec enableLoRA enableTool toolCallParser "
    "modelRevision chatTemplate requestGPU hf_token lmcacheConfig"
)
_OF_CLUSTER = (
    "enabled annotations podAnnotations labels podLabels serviceAccountName serviceAnnotations "
    "priorityClassName replicaCount requestCPU requestMemory requestGPUType limitCPU limitMemory "
    "pvcStorage pvcAccessMode pvcMatchLabels pvcLabels pvcAnnotations storageClass shmSize "
    "initContainer nodeSelectorTerms nodeName tolerations tolerationsPolicy affinity "
    "runtimeClassName imagePullSecret extraVolumes extraVolumeMounts keda resources "
    "chatTemplateConfigMap envFromSecret"
)


def recognizes(document: Mapping[str, Any]) -> bool:
    return bool(_models_by_name(document))


def read(document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
    """Return the recipe of the model `given.entry`, or by default of the first model. Parts that
    are not understood are added to `notes`. Raises InputError if there is no such model."""
    models = _models_by_name(document)
    given.require_entry_among(FORM_TITLE, "model", models)
    chosen = given.entry or next(iter(models))
    model = models[chosen]
    if given.entry is None:
        notes.add_other_entries_notes("model", models, chosen)
    add_unknown_field_notes(model, f"{_OF_MODEL} {_OF_CLUSTER}", notes)
    for name in _OF_CLUSTER.split():
        if model.get(name) not in (None, "", [], {}):
            notes.add_left_out_note(name, "it places the server in the cluster")
    identity = text_field(model, "modelURL", notes)
    if not identity:
        notes.findings.insert(0, no_server_finding(FORM_TITLE, [chosen]))
        return Recipe(None, FORM_TITLE, chosen, chosen)
    words = (identity, *_model_arguments(model, notes))
    repository, tag = text_field(model, "repository", notes), text_field(model, "tag", notes)
    image = f"{repository}:{tag}" if repository and tag else ""
    env = parse_variables(model.get("env"), notes)
    if model.get("hf_token"):
        notes.add_left_out_note("hf_token", "its value stands in the cluster, or is a secret")
    start = EngineCommandLine(registry.get_engine("vllm"), (), words)
    plan = plan_of_command(ServerCommand(start, env, image=image), notes)
    return Recipe(plan, FORM_TITLE, chosen, chosen, gpus=_count_gpus(model, notes))


def _models_by_name(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return {name: model} of the models in a values file."""
    models = as_table(document.get("servingEngineSpec")).get("modelSpec")
    found = {}
    for at, model in enumerate(as_list(models)):
        if isinstance(model, Mapping):
            found[str(model.get("name") or at + 1)] = model
    return found


def _model_arguments(model: Mapping[str, Any], notes: Notes) -> list[str]:
    """Return the arguments that the chart makes from the fields of a model."""
    config = table_field(model, "vllmConfig", notes)
    words: list[str] = []
    if model.get("enableLoRA") is True:
        words.append("--enable-lora")
    if model.get("enableTool") is True:
        words.append("--enable-auto-tool-choice")
    if parser := text_field(model, "toolCallParser", notes):
        words += ["--tool-call-parser", parser]
    for field, flag in _SWITCHES.items():
        if isinstance(config.get(field), bool):
            words.append(f"--{flag}" if config[field] else f"--no-{flag}")
    chart_decides = "enablePrefixCaching" not in config and "raySpec" not in model
    if config and chart_decides:
        words.append("--no-enable-prefix-caching")  # as the chart does
    for field, flag in _FLAGS.items():
        if isinstance(config.get(field), str | int | float):
            words += [flag, scalar_text(config[field])]
    add_unknown_field_notes(
        config, f"{' '.join((*_SWITCHES, *_FLAGS))} extraArgs v0 v1", notes, "vllmConfig: "
    )
    words += [word.replace("$$", "$") for word in text_list_field(config, "extraArgs", notes)]
    if revision := text_field(model, "modelRevision", notes):
        words += ["--revision", revision]
    if text_field(model, "chatTemplate", notes):
        notes.add_left_out_note("chatTemplate", "it is a file of a volume of the cluster")
    if as_table(model.get("lmcacheConfig")).get("enabled"):
        notes.add(
            Level.WARN,
            "lmcache",
            "lmcacheConfig is left out: the preset starts vLLM without LMCache",
        )
    return words


def _count_gpus(model: Mapping[str, Any], notes: Notes) -> int | None:
    """Return the number of GPUs of all pods of a server; None if the model names no number. With
    Ray, the number of nodes is added to `notes`."""
    ray = as_table(model.get("raySpec"))
    if ray.get("enabled") is not True:
        return parse_whole_number(str(model.get("requestGPU")), 4)
    workers = _count_or_zero(model, "replicaCount")
    notes.add_left_out_note(
        f"the placement on {workers + 1} nodes",
        "add the nodes with their addresses to the preset",
    )
    total = _count_or_zero(model, "requestGPU") * workers
    total += _count_or_zero(as_table(ray.get("headNode")), "requestGPU")
    return total or None


def _count_or_zero(table: Mapping[str, Any], name: str) -> int:
    """Return the field `name`, a number or its text, as a whole number; 0 if it is none."""
    return parse_whole_number(str(table.get(name)), 4) or 0
