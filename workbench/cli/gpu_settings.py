"""The commands `gpu set`, `revert`, `confirm`, `keep` and `sudoers`, which change GPU settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench.cli.gpu_text import (
    FOREIGN_NEXT,
    affected_gpu_lines,
    format_affected_gpus,
    guard_json,
    guard_lines,
    read_affected_gpus_and_processes,
    setting_command_lines,
    settings_report_lines,
)
from workbench.cli.host_words import add_host_options, add_host_options_to_lines
from workbench.cli.open_session import connect_session, warn_if_benchmark_runs
from workbench.cli.output import (
    print_json,
    print_json_or_lines,
    print_line,
    print_lines,
    print_message,
)
from workbench.cli.questions import can_prompt, prompt_for_sudo_password, require_confirmation
from workbench.cli.registry import OneOf, Option, command, make_exclusive_options, option
from workbench.cli.shared_options import DRY_RUN, YES
from workbench.cli.stop_signals import cancel_on_signals
from workbench.model.errors import InputError
from workbench.model.setting_records import SettingCommand, SettingOutcome, SettingsReport
from workbench.model.settings import (
    DEFAULT,
    HOST,
    SETTINGS,
    GpuSettings,
    Setting,
    label_of,
    value_to_store,
)

if TYPE_CHECKING:
    from workbench.model.setting_records import GuardView
    from workbench.session.session import Session


def setting_option(setting: Setting, metavar: str, help: str, **keywords: Any) -> Option:
    """Return the command-line option that sets a GPU setting, with all its aliases."""
    names = " ".join(f"--{name}" for name in (setting.name, *setting.aliases))
    return option(f"{names} {metavar}", help, dest=setting.key, **keywords)


def _make_setting_option(setting: Setting) -> Option | OneOf:
    if setting.choices:
        return setting_option(setting, "", setting.help, choices=setting.choices)
    set_it = setting_option(setting, setting.metavar, setting.help)
    if not setting.reset_name:
        return set_it
    text = f"reset the {setting.label} to the driver's default"
    reset = option(
        f"--{setting.reset_name}", text, action="store_const", const=DEFAULT, dest=setting.key
    )
    return make_exclusive_options(set_it, reset)


SETTING_OPTIONS = tuple(_make_setting_option(setting) for setting in SETTINGS)
SET_FOREIGN_NEXT = (
    "add --foreign keep (leave that value) or --foreign replace (set yours; a revert restores that "
    "value); --yes alone does not decide it"
)
CUT_OFF = (
    "the change was cut off; the guard reverts what it has set, and `workbench gpu status` shows it"
)
REVERT_CUT_OFF = (
    "what was not reverted yet is still set; `workbench gpu status` shows it, and `workbench gpu "
    "revert` goes on"
)
NEXT_STEP_UNATTENDED = "add --yes to confirm, or --dry-run to see the commands"


@command(
    "gpu set",
    "change GPU settings: shows the commands and asks, records the current values, and reads the "
    "new ones back",
    option("--gpu I|UUID|all", "GPU by index or UUID, or all of them (all)", default="all"),
    *SETTING_OPTIONS,
    option("--preset ID", "apply the GPU settings of this preset; loading the preset does not"),
    option(
        "--trial SECONDS",
        "revert the settings after so many seconds, unless `workbench gpu confirm` keeps them",
        float,
    ),
    option(
        "--foreign",
        "for a value that somebody else has set: keep it, or replace it, so that a revert restores "
        "it",
        choices=("keep", "replace"),
    ),
    DRY_RUN,
    YES,
    examples=(
        "workbench gpu set --gpu 0 --power-limit 400 --dry-run",
        "workbench gpu set --gpu all --power-limit 400 --trial 300 --yes",
    ),
)
async def set_gpu_settings(arguments: argparse.Namespace) -> int:
    if arguments.trial is not None and not arguments.trial > 0:
        raise InputError(f"--trial {arguments.trial:g} is not a number of seconds above 0")
    async with connect_session(arguments) as session:
        settings = _read_settings_by_gpu(arguments, session)
        commands = await session.gpu.add_notes_about_other_setters(
            await session.gpu.plan_changes_by_gpu(settings)
        )
        foreign = {(c.gpu_uuid, c.setting) for c in commands if c.foreign}
        kept = set()
        if arguments.foreign == "keep":
            kept = foreign
        left: list[SettingCommand] = []
        changes: list[SettingCommand] = []
        for one in commands:
            chosen = left if (one.gpu_uuid, one.setting) in kept else changes
            chosen.append(one)
        commands = changes
        for one in left:
            print_message(f"kept: {_format_externally_set_value(one)}")
        affected = await read_affected_gpus_and_processes(session, commands)
        if not arguments.json:
            print_lines([*setting_command_lines(commands), *affected_gpu_lines(affected)])
            if not commands:
                print_line("nothing to set")
        if commands and not arguments.dry_run:
            await warn_if_benchmark_runs(session)
            if (
                foreign
                and arguments.foreign is None
                and (arguments.yes or not can_prompt(arguments))
            ):
                raise InputError(_format_replaced_settings(commands), next_step=SET_FOREIGN_NEXT)
            question = f"Run these commands on {session.host.name} ({format_affected_gpus(affected, commands)})?"
            problem = "nobody can be asked to confirm the commands"
            await require_confirmation(
                arguments, question, problem=problem, next_step=NEXT_STEP_UNATTENDED
            )
        password = None
        if not arguments.dry_run and any(c.right for c in commands):
            password = await prompt_for_sudo_password(session, arguments)
        async with cancel_on_signals(CUT_OFF):
            report = await session.gpu.apply_settings_by_gpu(
                settings,
                dry_run=arguments.dry_run,
                trial_s=arguments.trial,
                password=password,
                skipped=kept,
                replaceable=None if arguments.foreign == "replace" else foreign - kept,
            )
        more = {**affected, "kept": [_format_externally_set_value(one) for one in left]}
        return _print_settings_report(report, arguments, session, more)


def _format_externally_set_value(command: SettingCommand) -> str:
    """Return the value that somebody else has set and the command would replace, as text."""
    return f"{command.gpu_or_host_name} {label_of(command.setting)}: {command.note}"


def _format_replaced_settings(commands: Sequence[SettingCommand]) -> str:
    where = [_format_externally_set_value(one) for one in commands if one.foreign]
    return f"somebody else has set a value that this would replace ({'; '.join(where)})"


def read_settings_options(arguments: argparse.Namespace) -> GpuSettings:
    """Return the GPU settings on the command line. Raises InputError if there are none, or if some
    are given together with --preset.
    """
    given = {}
    for setting in SETTINGS:
        text = getattr(arguments, setting.key)
        if text is not None:
            given[setting.key] = setting.parse(text)
    settings = GpuSettings(given)
    if not settings and arguments.preset is None:
        raise InputError(
            "no GPU setting is given", next_step="`workbench gpu set --help` lists the settings"
        )
    if settings and arguments.preset is not None:
        raise InputError(
            "--preset and other settings are given together",
            next_step="give either --preset or single settings",
        )
    return settings


def _read_settings_by_gpu(
    arguments: argparse.Namespace, session: Session
) -> dict[str, GpuSettings]:
    """Return the GPU settings on the command line or in the preset, by GPU selector such as "all"
    or "0". A preset names its GPUs itself, but --gpu takes precedence. Raises InputError if the
    preset has no GPU settings."""
    settings = read_settings_options(arguments)
    if arguments.preset is None:
        return {arguments.gpu: settings}
    found: dict[str, GpuSettings] = {}
    for selector, suggested, reason in session.plans.preset_gpu_settings(arguments.preset):
        gpu = selector if arguments.gpu == "all" else arguments.gpu
        found[gpu] = GpuSettings({**found.get(gpu, {}), **suggested})
        if reason:
            print_message(f"{arguments.preset}: {reason}")
    if not found:
        raise InputError(f"preset {arguments.preset} has no GPU settings")
    return found


@command(
    "gpu revert",
    "restore the values from before Workbench changed them",
    option(
        "--gpu I|UUID|host|all",
        "GPU by index or UUID, the host's own settings, or all (all)",
        default="all",
    ),
    DRY_RUN,
    option(
        "--foreign",
        "for a value that another program has set since: keep it, set Workbench's value again, or "
        "restore the "
        "value from before Workbench",
        choices=("keep", "ours", "original"),
    ),
    option(
        "--yes",
        "no effect (revert never asks); accepted so that scripts can pass --yes to "
        "both set and revert",
    ),
    examples=("workbench gpu revert --gpu 0",),
)
async def revert_gpu_settings(arguments: argparse.Namespace) -> int:
    async with connect_session(arguments) as session:
        gpu = arguments.gpu
        if gpu == "all":
            gpu = None
        if not arguments.dry_run:
            await warn_if_benchmark_runs(session)
        report = await _revert_unless_interrupted(session, gpu, arguments)
        if any(o.command.right for o in report.outcomes) and not arguments.dry_run:
            password = await prompt_for_sudo_password(session, arguments)
            if password is not None:
                report = await _revert_unless_interrupted(session, gpu, arguments, password)
        if not arguments.json:
            if not report.outcomes:
                print_line("nothing to revert")
            if arguments.dry_run:
                print_lines(
                    setting_command_lines([o.command for o in report.outcomes if o.command.argv])
                )
        code = _print_settings_report(report, arguments, session)
        of_others = any(o.foreign or o.left_to for o in report.outcomes)
        if of_others and not arguments.json:
            print_message(add_host_options(FOREIGN_NEXT, arguments))
        return code


async def _revert_unless_interrupted(
    session: Session,
    gpu: int | str | None,
    arguments: argparse.Namespace,
    password: str | None = None,
) -> SettingsReport:
    async with cancel_on_signals(REVERT_CUT_OFF):
        return await session.gpu.revert_settings(
            gpu, dry_run=arguments.dry_run, password=password, foreign=arguments.foreign
        )


@command(
    "gpu sudoers",
    "print a sudoers file that allows setting and reverting without a password",
    examples=("workbench gpu sudoers > workbench-sudoers",),
)
async def print_sudoers_file(arguments: argparse.Namespace) -> int:
    from workbench.gpu.settings.sudoers import SUDOERS_PATH

    async with connect_session(arguments) as session:
        text, host = await session.gpu.sudoers_file_text(), session.host.name
    if arguments.json:
        return print_json({"host": host, "path": SUDOERS_PATH, "sudoers": text})
    sys.stdout.write(text)
    return 0


@command(
    "gpu confirm",
    "end a trial and keep its settings in force, under the guard",
    examples=("workbench gpu confirm",),
)
async def confirm_trial_settings(arguments: argparse.Namespace) -> int:
    async with connect_session(arguments) as session:
        text = "confirmed: the settings stay in force"
        return await _print_guard_state(
            arguments, text, await session.gpu.guard.confirm_trial_settings(), session
        )


@command(
    "gpu keep",
    "keep the settings in force without a guard; the journal records the decision",
    examples=("workbench gpu keep",),
)
async def keep_settings_without_guard(arguments: argparse.Namespace) -> int:
    async with connect_session(arguments) as session:
        text = (
            "kept: the settings stay in force without a guard; `workbench gpu revert` "
            "restores the previous values"
        )
        return await _print_guard_state(
            arguments, text, await session.gpu.guard.leave_settings_on_unguarded(), session
        )


async def _print_guard_state(
    arguments: argparse.Namespace, text: str, view: GuardView, session: Session
) -> int:
    warnings = await session.gpu.warnings_without_guard()
    document = {
        "guard": asdict(view),
        "warnings": warnings,
        "ok": True,
        "simulated": session.state.simulated,
    }
    lines = [text, *(f"warning: {w}" for w in warnings), *guard_lines(view)]
    named = add_host_options_to_lines(lines, arguments)
    return print_json_or_lines(arguments.json, document, named)


def _print_settings_report(
    report: SettingsReport,
    arguments: argparse.Namespace,
    session: Session,
    affected: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Print the outcome of each setting. Return the exit code: 0 if all settings are as requested,
    otherwise 1."""
    if arguments.json:
        print_json(
            {
                **_settings_report_json(report, session.host.name, session.state.simulated),
                **affected,
            }
        )
    else:
        print_lines(add_host_options_to_lines(settings_report_lines(report), arguments))
    return 0 if report.ok else 1


def _settings_report_json(report: SettingsReport, host: str, simulated: bool) -> dict[str, Any]:
    return {
        "host": host,
        "commands": [list(o.command.argv) for o in report.outcomes if o.command.argv],
        "outcomes": [_outcome_json(o) for o in report.outcomes],
        "before": _join_values_by_setting(report.outcomes, "before"),
        "requested": _join_values_by_setting(report.outcomes, "requested"),
        "read_back": _join_values_by_setting(report.outcomes, "read_back"),
        "in_force": {_gpu_and_setting_key(o): str(o.in_force) for o in report.outcomes},
        "rolled_back": [_outcome_json(o) for o in report.rolled_back],
        "guard": guard_json(report.guard),
        "journal": report.journal,
        "journal_recovery": report.recovery.text if report.recovery else None,
        "dry_run": report.dry_run,
        "ok": report.ok,
        "simulated": simulated,
    }


def _join_values_by_setting(outcomes: Sequence[SettingOutcome], field: str) -> dict[str, Any]:
    """Return the value of `field` (such as the previous value) of each outcome, by GPU and setting:
    {"gpu0.gpu_clocks": value}. If several commands change one setting, such as the governor of each
    CPU core, different values are joined with spaces."""
    found: dict[str, Any] = {}
    for outcome in outcomes:
        key, value = _gpu_and_setting_key(outcome), value_to_store(getattr(outcome, field))
        found[key] = value if found.get(key, value) == value else f"{found[key]} {value}"
    return found


def _gpu_and_setting_key(outcome: SettingOutcome) -> str:
    where = f"gpu{outcome.command.gpu_index}"
    if outcome.command.gpu_uuid == HOST:
        where = "host"
    return f"{where}.{outcome.command.setting}"


def _outcome_json(o: SettingOutcome) -> dict[str, Any]:
    return {
        "gpu": o.command.gpu_index,
        "uuid": o.command.gpu_uuid,
        "setting": o.command.setting,
        "ok": o.ok,
        "before": value_to_store(o.before),
        "before_known": o.before_known,
        "requested": value_to_store(o.requested),
        "read_back": value_to_store(o.read_back),
        "in_force": str(o.in_force),
        "foreign": o.foreign,
        "message": o.message,
        "right": o.command.right,
        "command": o.command.shell_line,
        "note": o.command.note,
    }
