"""Conversion of a workload into the command-line options that produce the same workload."""

from __future__ import annotations

from workbench.model.load_spec import OPTIONS, BenchSpec
from workbench.model.secrets import SERVER_KEY_VARIABLE

# The server is named beside the options. A profile is written as the values that it sets.
_LEFT_OUT = ("model", "profile", "command")


def options(spec: BenchSpec) -> tuple[str, ...]:
    """Return the options to append to `workbench bench RUN` so that it produces the workload
    `spec`. A prompt file appears by its name only, because its path is not stored with the
    result."""
    words: list[str] = []
    for option in OPTIONS:
        value = getattr(spec, option.field)
        if option.field == "prompts_name":
            value = value.partition(" (")[0]
        of_the_server = option.field == "api_key_env" and value == SERVER_KEY_VARIABLE
        if option.field not in _LEFT_OUT and not of_the_server:
            words += option.written(value)
    return tuple(words)
