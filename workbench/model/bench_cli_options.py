"""Conversion of a workload into the command-line options that produce the same workload."""

from __future__ import annotations

import json
from dataclasses import fields

from workbench.model.bench import BenchSpec
from workbench.model.secrets import SERVER_KEY_VARIABLE

_ALWAYS = ("concurrency", "requests", "max_tokens", "input_tokens", "warmup")
_IF_NOT_DEFAULT = ("seed", "rate", "arrival", "seconds", "length_spread", "endpoint", "slo")
_DEFAULTS = {field.name: field.default for field in fields(BenchSpec)}


def options(spec: BenchSpec) -> tuple[str, ...]:
    """Return the options to append to `workbench bench RUN` so that it produces the workload
    `spec`, whatever a preset or a profile suggests. A prompt file appears by its name only, because
    its path is not stored with the result."""
    words: list[str] = []
    for name in (*_ALWAYS, *_IF_NOT_DEFAULT):
        value = getattr(spec, name)
        if name in _ALWAYS or value != _DEFAULTS[name]:
            words += [
                f"--{name.replace('_', '-')}",
                f"{value:g}" if isinstance(value, float) else str(value),
            ]
    for name, limit_s in (
        ("timeout", spec.timeout_s),
        ("stall-timeout", spec.stall_s),
        ("deadline", spec.deadline_s),
    ):
        if limit_s is not None:
            words += [f"--{name}", f"{limit_s:g}"]
    flags = {
        "until-steady": spec.until_steady,
        "shared-prefix": spec.shared_prefix,
        "no-stream": not spec.stream,
        "natural-lengths": not spec.ignore_eos,
        "random-weights": spec.random_weights,
    }
    words += [f"--{name}" for name, is_set in flags.items() if is_set]
    if spec.prompts_name:
        words += ["--prompts", spec.prompts_name.partition(" (")[0]]
    if spec.api_key_env and spec.api_key_env != SERVER_KEY_VARIABLE:
        words += ["--api-key-env", spec.api_key_env]
    if spec.ca_file:
        words += ["--cacert", spec.ca_file]
    if spec.client:
        words += ["--client", spec.client]
    if spec.insecure:
        words.append("--insecure")
    if spec.extra_body:
        words += ["--extra-body", json.dumps(dict(spec.extra_body), ensure_ascii=False)]
    return tuple(words)
