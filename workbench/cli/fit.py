"""The command `fit`, which shows the quantizations and context lengths of a model that fit on the
host's GPUs."""

from __future__ import annotations

import argparse

from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json_or_lines, print_message
from workbench.cli.registry import command, option
from workbench.model.errors import HostError, InputError, PresetError
from workbench.model.untrusted_numbers import parse_whole_number


@command(
    "fit",
    "show which quantizations, numbers of GPUs and context lengths of a model fit in the memory "
    "that is free now",
    option(
        "model PRESET|MODEL",
        "id of a preset, or a model: a hub id in the host's cache, a directory, a GGUF file",
    ),
    option("--context N,N", "context lengths in tokens (4096,32768,131072)"),
    option("--kv TYPE", "type of the KV cache, such as fp8 (the preset's, else 16 bit)"),
    option("--engine NAME", "engine that runs a MODEL (vllm; llamacpp for a GGUF file)"),
    examples=(
        "workbench fit vllm-llama-3.3-70b-2x-spark",
        "workbench --host gpu-box fit /models/Qwen3-32B --context 8192,40960",
    ),
)
async def print_fit_table(arguments: argparse.Namespace) -> int:
    """Print the table of quantizations and context lengths. Return the exit code: 2 if nothing fits
    or no table can be made, otherwise 0."""
    from workbench import engines
    from workbench.engines import registry
    from workbench.gpu.telemetry.source_of_host import read_telemetry_once
    from workbench.report.formats.terminal import block_lines
    from workbench.session.plans.model_fit import fit_report_blocks, fit_report_of_plan

    contexts = _parse_context_lengths(arguments.context)
    async with connect_session(arguments) as session:
        preset = arguments.model
        variables: dict[str, str] = {}
        try:
            session.presets.get(preset)
        except PresetError:
            engine = (
                engines.get_engine(arguments.engine)
                if arguments.engine
                else registry.guess_engine_for_model(arguments.model)
            )
            known = session.presets.preset_of_model(arguments.model, engine.name)
            preset = engine.general_preset
            if known is not None:
                print_message(f"the sizes are those of the preset {known}")
                preset = known
            else:
                name = _model_variable_name(session.presets.get(preset).model.id)
                variables = {name: arguments.model}
        try:
            session.core.update(telemetry=await read_telemetry_once(session.host))
        except HostError as error:
            print_message(f"cannot read the GPUs: {error.message}")
        session.plans.edit_plan(session.presets.make_plan(preset, variables), preset)
        if arguments.kv:
            for flag in session.plans.editor.engine.memory.cache_type_flags:
                session.plans.editor.set_flag(flag, arguments.kv)
        await session.plans.read_model_size(session.plans.editor)
        report = fit_report_of_plan(
            session.plans.editor.effective_plan, session.state.telemetry, contexts
        )
    print_json_or_lines(arguments.json, report.as_json(), block_lines(fit_report_blocks(report)))
    return 0 if any(row.fits for _, rows in report.groups for row in rows) else 2


def _model_variable_name(model_id: str) -> str:
    """Return the name of the variable that stands for the model in a general preset, such as
    "model" for "${model}"."""
    return model_id.strip("${}")


def _parse_context_lengths(text: str | None) -> list[int]:
    if not text:
        return []
    words = text.replace(" ", "").split(",")
    lengths = [parse_whole_number(word) or 0 for word in words]
    if not all(0 < length < 10**8 for length in lengths):
        raise InputError(
            f"--context {text[:60]!r} has no lengths in tokens",
            next_step="give lengths, for example --context 8192,32768",
        )
    return lengths
