"""The command `presets apply`, which applies every part of a preset: the server, GPU and host
settings, the limit of open files, and the warm-up."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.gpu_text import (
    affected_gpu_lines,
    format_affected_gpus,
    guard_json,
    guard_lines,
    read_affected_gpus_and_processes,
)
from workbench.cli.host_words import add_host_options_to_lines
from workbench.cli.open_session import connect_session, warn_if_benchmark_runs
from workbench.cli.output import print_json, print_lines, print_message
from workbench.cli.plan import load_plan
from workbench.cli.questions import prompt_for_sudo_password, require_confirmation
from workbench.cli.registry import command, option
from workbench.cli.servers import status_json
from workbench.cli.shared_options import CHANGES, DRY_RUN, PRESET, RUN_AS, TRUST, YES
from workbench.cli.stop_signals import cancel_on_signals

if TYPE_CHECKING:
    from workbench.session.plans.preset_apply import AppliedPreset, PresetPart, PresetPreview
    from workbench.session.session import Session

LASTING = (
    "`workbench gpu revert` restores the settings, `workbench stop` ends the server; a restart of "
    "the host resets the "
    "CPU governor and the C-states"
)


@command(
    "presets apply",
    "apply all that a preset carries: shows the changes and asks, starts the server, applies the "
    "settings, warms it up",
    PRESET,
    *CHANGES,
    *RUN_AS,
    TRUST,
    option(
        "--timeout S",
        "time limit in seconds until the server is READY (1800)",
        float,
        default=1800.0,
    ),
    DRY_RUN,
    YES,
    examples=(
        "workbench presets apply vllm-any --var model=Qwen/Qwen3-0.6B --dry-run",
        "workbench --host gpu-box presets apply rtx-pro-6000-power-400w --yes",
    ),
)
async def apply_preset(arguments: argparse.Namespace) -> int:
    """Apply a preset. Return the exit code: 0 if every part is applied, otherwise 1."""
    from workbench.session.plans.preset_apply import PresetApply

    async with connect_session(arguments) as session:
        await load_plan(session, arguments)
        preset = PresetApply(session)
        whole = await preset.preview_preset()
        commands = [outcome.command for outcome in whole.outcomes]
        affected = await read_affected_gpus_and_processes(session, commands)
        if not arguments.json:
            print_lines([*_planned_part_lines(whole), *affected_gpu_lines(affected)])
        if arguments.dry_run:
            return _print_outcome_json(
                arguments, session, _preset_parts_json(whole.preset_id, whole.parts, dry_run=True)
            )
        await warn_if_benchmark_runs(session)
        on = ", ".join(filter(None, (session.host.name, format_affected_gpus(affected, commands))))
        problem = "nobody can be asked to confirm the changes"
        next_step = "add --yes to confirm, or --dry-run to see the changes"
        await require_confirmation(
            arguments, f"Apply this on {on}?", problem=problem, next_step=next_step
        )
        password = None
        if whole.first_missing_right:
            password = await prompt_for_sudo_password(session, arguments)
        async with cancel_on_signals():
            applied = await preset.apply_preset(
                whole,
                password=password,
                timeout_s=arguments.timeout,
                on_step=_make_step_reporter(arguments),
            )
        if not arguments.json:
            print_lines(add_host_options_to_lines(_applied_part_lines(applied), arguments))
        return _print_outcome_json(arguments, session, _applied_preset_json(applied))


def _make_step_reporter(arguments: argparse.Namespace) -> Callable[[str], None]:
    if arguments.json:
        return lambda text: None
    return print_message


def _print_outcome_json(
    arguments: argparse.Namespace, session: Session, document: dict[str, Any]
) -> int:
    if arguments.json:
        print_json({**document, "host": session.host.name, "simulated": session.state.simulated})
    return 0 if document["ok"] or document["dry_run"] else 1


def _preset_parts_json(
    preset_id: str, parts: Sequence[PresetPart], *, dry_run: bool
) -> dict[str, Any]:
    missing = [f"{part.text} ({part.problem})" for part in parts if part.problem]
    return {
        "preset": preset_id,
        "parts": list(map(asdict, parts)),
        "not_applied": missing,
        "dry_run": dry_run,
        "ok": not missing,
    }


def _applied_preset_json(applied: AppliedPreset) -> dict[str, Any]:
    report = applied.settings
    rolled_back, guard, recovery = 0, None, None
    if report is not None:
        rolled_back, guard = len(report.rolled_back), guard_json(report.guard)
        recovery = report.recovery
    return {
        **_preset_parts_json(applied.preset_id, applied.parts, dry_run=False),
        "run_id": applied.run_id,
        "server": status_json(applied.status),
        "rolled_back": rolled_back,
        "guard": guard,
        "journal_recovery": recovery.text if recovery else None,
    }


def _planned_part_lines(whole: PresetPreview) -> Iterator[str]:
    for part in whole.parts:
        yield part.text
        if part.command:
            yield f"  $ {part.command}"
        if part.problem:
            yield f"  ! cannot be applied: {part.problem}"
    problems = "\n".join(part.problem for part in whole.parts)
    for text in dict.fromkeys(outcome.message for outcome in whole.outcomes):
        if text and text not in problems:
            yield f"  {text}"


def _applied_part_lines(applied: AppliedPreset) -> Iterator[str]:
    for part in applied.parts:
        yield f"{'NOT applied' if part.problem else 'applied':<12}{part.text}"
        if part.problem:
            yield f"  {part.problem}"
    if applied.settings is not None:
        yield from guard_lines(applied.settings.guard)
    if applied.run_id is None:
        state = applied.status
        yield (
            f"{state.run_id} {state.state}: "
            f"{state.reason or 'no server runs, and no setting is changed'}"
        )
        return
    yield f"{applied.run_id} READY at {applied.status.url}"
    yield LASTING if applied.settings else "`workbench stop` ends the server"
