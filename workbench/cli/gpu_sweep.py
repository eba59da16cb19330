"""The command `gpu sweep`, which benchmarks the running server at several values of one GPU
setting."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from workbench.cli.gpu_settings import NEXT_STEP_UNATTENDED, setting_option
from workbench.cli.gpu_text import (
    affected_gpu_lines,
    format_affected_gpus,
    read_affected_gpus_and_processes,
    setting_command_lines,
)
from workbench.cli.gpu_verify import TARGET, refuse_run_with_url
from workbench.cli.load_options import CONCURRENCY, SIZE, read_load_options
from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json, print_line, print_lines, print_message
from workbench.cli.questions import can_prompt, prompt_for_sudo_password, require_confirmation
from workbench.cli.registry import command, make_exclusive_options, option
from workbench.cli.servers import wait_for_ready_run_id
from workbench.cli.shared_options import DRY_RUN, IF_MEASURED, YES
from workbench.cli.stop_signals import cancel_on_signals
from workbench.cli.sweeps import (
    SWEEP_ID,
    load_sweep_to_resume,
    make_point_reporter,
    print_sweep,
    report_resume_command_if_cancelled,
)
from workbench.model.settings import SWEPT

if TYPE_CHECKING:
    from workbench.model.setting_records import SettingCommand
    from workbench.session.session import Session

    Plan = Mapping[str, Sequence[SettingCommand]]  # commands by the label of the value


@command(
    "gpu sweep",
    "benchmark the running server at several values of a GPU setting, then restore the current "
    "value",
    *TARGET,
    make_exclusive_options(
        *(
            setting_option(s, f"{s.metavar.removesuffix('|reset')},…", f"values of the {s.label}")
            for s in SWEPT
        ),
        required=True,
    ),
    option("--gpu I|UUID", "GPU by index or UUID (default: the GPUs that the server uses)"),
    option("--settle S", "longest time to wait for a steady state before each value (30)", float),
    option(
        "--pairs N",
        "pairs of runs that compare the best value with the current one (3; 0: no comparison)",
        int,
    ),
    option("--runs N", "runs of each value (1)", int, default=1),
    CONCURRENCY,
    *SIZE,
    DRY_RUN,
    YES,
    examples=("workbench gpu sweep RUN --power-limit 300,350,400,450",),
)
async def sweep_setting(arguments: argparse.Namespace) -> int:
    refuse_run_with_url(arguments)
    setting = next(s for s in SWEPT if getattr(arguments, s.key) is not None)
    values = [part.strip() for part in getattr(arguments, setting.key).split(",") if part.strip()]
    async with (
        connect_session(arguments) as session,
        cancel_on_signals(),
        report_resume_command_if_cancelled(session),
    ):
        run_id = await wait_for_ready_run_id(session, arguments.run)
        password = None
        if arguments.dry_run or not arguments.yes or sys.stdin.isatty():
            if run_id is None and arguments.url is None and arguments.gpu is None:
                run_id = await session.servers.selected_or_ready_run_id()
            plan = await session.sweeps.list_gpu_sweep_commands(
                setting.key, values, arguments.gpu, run_id=run_id
            )
            if arguments.dry_run:
                return await _print_sweep_commands(session, arguments, plan)
            password = await _confirm_and_read_sudo_password(
                session, arguments, f"Set {', '.join(values)} one after the other", plan
            )
        session.subscribe(make_point_reporter(arguments))
        sweep = await session.sweeps.run_gpu_setting_sweep(
            setting.key,
            values,
            arguments.gpu,
            run_id=run_id,
            url=arguments.url,
            settle_s=arguments.settle,
            pairs=arguments.pairs,
            runs=arguments.runs,
            password=password,
            **read_load_options(arguments),
        )
    return print_sweep(sweep, arguments.json)


@command(
    "gpu sweep resume",
    "resume a sweep of a GPU setting that ended early: first the missing values, then the pairs",
    SWEEP_ID,
    DRY_RUN,
    IF_MEASURED,
    YES,
    examples=("workbench gpu sweep resume 2",),
)
async def resume_gpu_sweep(arguments: argparse.Namespace) -> int:
    stored = load_sweep_to_resume(arguments, "gpu sweep", "a sweep of a GPU setting")
    async with (
        connect_session(arguments) as session,
        cancel_on_signals(),
        report_resume_command_if_cancelled(session),
    ):
        plan = await session.sweeps.list_resume_commands(stored.id)
        if arguments.dry_run:
            return await _print_sweep_commands(session, arguments, plan)
        password = await _confirm_and_read_sudo_password(
            session, arguments, "Set the missing values one after the other", plan
        )
        session.subscribe(make_point_reporter(arguments, stored))
        sweep = await session.sweeps.resume(stored.id, password=password)
    return print_sweep(sweep, arguments.json)


async def _confirm_and_read_sudo_password(
    session: Session, arguments: argparse.Namespace, action: str, plan: Plan
) -> str | None:
    """Show the commands that the sweep will run and ask the user to agree. `action` is the
    beginning of the question. Return the password for sudo; None if sudo is not needed or needs no
    password."""
    if not arguments.yes:
        first = next(iter(plan.values()))
        affected = await read_affected_gpus_and_processes(session, first)
        if can_prompt(arguments):
            print_lines([*setting_command_lines(first), *affected_gpu_lines(affected)])
        where = f"{session.host.name} ({format_affected_gpus(affected, first)})"
        question = f"{action} on {where}, and restore the current value at the end?"
        problem = "nobody can be asked to confirm the sweep"
        await require_confirmation(
            arguments, question, problem=problem, next_step=NEXT_STEP_UNATTENDED
        )
    needs_right = any(c.right for commands in plan.values() for c in commands)
    return await prompt_for_sudo_password(session, arguments) if needs_right else None


async def _print_sweep_commands(session: Session, arguments: argparse.Namespace, plan: Plan) -> int:
    """Print the commands that the sweep would run, without running them. Return the exit code: 1 if
    the user may not run one of them, otherwise 0.
    """
    rights = list(dict.fromkeys(c.right for commands in plan.values() for c in commands if c.right))
    if arguments.json:
        notes = list(dict.fromkeys(c.note for cs in plan.values() for c in cs if c.note))
        steps = [
            {"label": label, "commands": [list(c.argv) for c in commands]}
            for label, commands in plan.items()
        ]
        print_json(
            {
                "host": session.host.name,
                "dry_run": True,
                "ok": not rights,
                "simulated": session.state.simulated,
                "steps": steps,
                "commands": [argv for step in steps for argv in step["commands"]],
                "rights": rights,
                "notes": notes,
                **await read_affected_gpus_and_processes(session, next(iter(plan.values()))),
            }
        )
        return int(bool(rights))
    for label, commands in plan.items():
        print_line(f"# {label}")
        print_lines(setting_command_lines(commands))
    for right in rights:
        print_message(right)
    return int(bool(rights))
