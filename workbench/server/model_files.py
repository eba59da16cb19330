"""Reads the size and architecture of a model from its weight files and its config.json on a host.
No code in these files is executed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from workbench.engines.gguf import TruncatedError, parse_gguf_metadata_and_tensors
from workbench.engines.model_facts import (
    model_facts_from_config,
    model_facts_from_config_without_files,
    model_facts_from_gguf,
)
from workbench.engines.weight_files import Tensor, parse_tensors
from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_values_by_key
from workbench.model.errors import WorkbenchError
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.server.model_fingerprint import LOCATE_MODEL_SCRIPT, arguments_to_locate_model

_TIMEOUT_S = 20.0
# of a file: most headers, with their vocabulary, and the largest
_GGUF_HEADER_BYTES = (4 * 2**20, 64 * 2**20)
_READ_MODEL_SCRIPT = LOCATE_MODEL_SCRIPT + read_script(__file__, "read_model.sh")


async def read_model_facts(host: Host, plan: LaunchPlan, env: Mapping[str, str]) -> ModelFacts:
    """Return the size and architecture of the plan's model, from its files on `host`. `env` is the
    environment of its server. Never raises: if values are unknown, `missing` is the reason. Takes
    one round trip, and more for GGUF files."""
    model = plan.model
    try:
        done = await host.run(
            [
                "sh",
                "-c",
                _READ_MODEL_SCRIPT,
                "sh",
                *arguments_to_locate_model(plan, env, plan.workdir),
            ],
            timeout_s=_TIMEOUT_S,
        )
        facts, _, config = done.out.partition("config=\n")
        found = parse_values_by_key(facts.split("\n"))
        sizes = [parse_whole_number(value) or 0 for value in found["bytes"]]
        if found["gguf"]:
            return await _read_gguf(host, model, found["gguf"], sum(sizes))
    except (WorkbenchError, TimeoutError) as error:
        return ModelFacts(model, missing=f"the model's files could not be read: {error}")
    absent = len(found["absent"])
    document = _parse_json_object(config)
    if done.returncode == 0 and document and not sizes and not absent:
        return model_facts_from_config_without_files(
            model, document, source=f"config.json on {host.name}, without weight files"
        )
    if done.returncode or absent or not sizes:
        what = "no model files were found"
        if absent:
            what = f"{absent} of the model's weight files are missing"
        elif found["looked"]:
            what += f" in {found['looked'][0]}"
        return ModelFacts(model, missing=f"{what} on {host.name}")
    if not config:
        missing = "for a single model file, the bytes read per token are unknown"
        return ModelFacts(
            model, weight_bytes=float(sum(sizes)), missing=missing, source=f"the size of {model}"
        )
    if document is None:
        return ModelFacts(
            model, missing=f"the model's config.json on {host.name} is not valid JSON"
        )
    listed = list(map(parse_tensors, found["header"]))
    complete = len(listed) == len(sizes) and all(listed)
    return model_facts_from_config(
        model,
        document,
        sum(sizes),
        has_separate_head="yes" in found["head"],
        source=f"config.json and weight files on {host.name}",
        tensors=list(chain.from_iterable(listed)) if complete else (),
    )


def _parse_json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in `text`; None if it is anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    return document


async def _read_gguf(host: Host, model: str, paths: Sequence[str], size: int) -> ModelFacts:
    """Return the size and architecture of `model` from the headers of its GGUF files `paths`, whose
    total size is `size` bytes. If a header is damaged, only the size is known, and `missing` has
    the reason. Raises HostError."""
    metadata: Mapping[str, object] = {}
    unread = ModelFacts(model, weight_bytes=float(size), source=f"the size of {model}")
    tensors: list[Tensor] = []
    for path in paths:
        for limit in _GGUF_HEADER_BYTES:
            data = await host.read_file(path, limit=limit)
            try:
                found, listed = parse_gguf_metadata_and_tensors(data)
                break
            except TruncatedError:
                if len(data) < limit or limit == _GGUF_HEADER_BYTES[-1]:
                    return replace(
                        unread, missing=f"the header of {path} on {host.name} is cut off"
                    )
            except ValueError as error:
                return replace(unread, missing=f"{path} on {host.name}: {error}")
        metadata = metadata or found
        tensors += listed
    if not tensors:
        return replace(unread, missing=f"{paths[0]} on {host.name} has no tensors")
    return model_facts_from_gguf(
        model, metadata, tensors, source=f"the header of {paths[0]} on {host.name}"
    )
