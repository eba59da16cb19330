"""Conversion of a workload into the command-line options that produce the same workload."""

from __future__ import annotations

from typing import Any

from workbench.model.declared_options import DeclaredOption
from workbench.model.load_spec import OF_A_TRACE, OPTIONS, BenchSpec
from workbench.model.secrets import SERVER_KEY_VARIABLE

# The server is named beside the options. A profile is written as the values that it sets.
_LEFT_OUT = ("model", "profile", "command")
# options that also apply to the user's own benchmark command
FOR_OWN_COMMAND = frozenset({"model", "api_key_env", "ca_file", "insecure", "deadline_s"})
_NO_SUGGESTION = ("--profile", "quick")  # a profile replaces all that a preset suggests


def bench_cli_options(spec: BenchSpec, preset_id: str | None = None) -> tuple[str, ...]:
    """Return the options to append to `workbench bench RUN` so that it produces the workload
    `spec`. `preset_id` is the preset of the run, whose suggestion the options replace. A file of
    prompts or a trace appears by its name only, because its path is not stored with the result. The
    user's own benchmark command is not among the options."""
    words: list[str] = []
    if preset_id is not None and not spec.command:
        words += _NO_SUGGESTION
    for option in OPTIONS:
        value = getattr(spec, option.field)
        if option.field in ("prompts_name", "trace_name"):
            value = value.partition(" (")[0]
        if not _is_not_in_command(spec, option, value):
            words += option.command_line_words(value)
    return tuple(words)


def _is_not_in_command(spec: BenchSpec, option: DeclaredOption, value: Any) -> bool:
    """Return whether the command does without the option: the server, the trace, the user's own
    prompts or own command decide its value."""
    if option.field in _LEFT_OUT:
        return True
    if spec.command and option.field not in FOR_OWN_COMMAND:
        return True
    if spec.trace_name and option in OF_A_TRACE:
        return True
    if option.field == "content":
        return bool(spec.prompts_name) and value == "words"
    return option.field == "api_key_env" and value == SERVER_KEY_VARIABLE
