"""A benchmark as the command line that asks for it."""

from __future__ import annotations

import json
from dataclasses import fields

from workbench.model.bench import BenchSpec
from workbench.model.secrets import SERVER_KEY_VARIABLE

_ALWAYS = ("concurrency", "requests", "max_tokens", "input_tokens", "warmup")
_WHERE_OTHER = ("seed", "rate", "arrival", "seconds", "length_spread", "endpoint")  # than without any option
_USUAL = {field.name: field.default for field in fields(BenchSpec)}


def options(spec: BenchSpec) -> tuple[str, ...]:
    """Words after `workbench bench RUN` that ask for the same workload, whatever a preset or a profile suggests. The
    file of the person's own prompts is called as in the result: its path was not kept."""
    words: list[str] = []
    for name in (*_ALWAYS, *_WHERE_OTHER):
        value = getattr(spec, name)
        if name in _ALWAYS or value != _USUAL[name]:
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    for name, limit_s in (("timeout", spec.timeout_s), ("stall-timeout", spec.stall_s), ("deadline", spec.deadline_s)):
        words += [f"--{name}", f"{limit_s:g}"] if limit_s is not None else []
    flags = {
        "until-steady": spec.until_steady,
        "shared-prefix": spec.shared_prefix,
        "no-stream": not spec.stream,
        "natural-lengths": not spec.ignore_eos,
    }
    words += [f"--{name}" for name, is_set in flags.items() if is_set]
    if spec.prompts_name:
        words += ["--prompts", spec.prompts_name.partition(" (")[0]]
    if spec.api_key_env and spec.api_key_env != SERVER_KEY_VARIABLE:
        words += ["--api-key-env", spec.api_key_env]
    words += [*(["--cacert", spec.ca_file] if spec.ca_file else []), *(["--insecure"] if spec.insecure else [])]
    if spec.extra_body:
        words += ["--extra-body", json.dumps(dict(spec.extra_body), ensure_ascii=False)]
    return tuple(words)
