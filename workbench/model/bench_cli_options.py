"""Conversion of a workload into the command-line options that produce the same workload."""

from __future__ import annotations

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
        of_the_server = option.field == "api_key_env" and value == SERVER_KEY_VARIABLE
        of_other_loads = bool(spec.command) and option.field not in FOR_OWN_COMMAND
        of_the_trace = bool(spec.trace_name) and option in OF_A_TRACE
        of_own_prompts = option.field == "content" and bool(spec.prompts_name) and value == "words"
        left_out = of_the_server or of_other_loads or of_the_trace or of_own_prompts
        if option.field not in _LEFT_OUT and not left_out:
            words += option.command_line_words(value)
    return tuple(words)
