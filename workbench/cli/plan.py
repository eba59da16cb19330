"""The command `plan`, which prints the command line of a launch without starting the server. The
commands `start` and `sweep` load their plans with functions of this module."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.cli.host_words import add_host_options_to_fixes
from workbench.cli.open_session import connect_session, read_gpus_in_background
from workbench.cli.output import (
    format_finding_line,
    items_as_json,
    print_json,
    print_line,
    print_message,
)
from workbench.cli.registry import command
from workbench.cli.shared_options import CHANGES, PRESET, RUN_AS, parse_name_value_pairs
from workbench.model.errors import HostError
from workbench.model.findings import Level

if TYPE_CHECKING:
    from workbench.model.plan import Command, LaunchPlan, Node
    from workbench.session.session import Session


@command(
    "plan",
    "show the command, environment and findings of a launch, without starting it",
    PRESET,
    *CHANGES,
    *RUN_AS,
    examples=(
        "workbench plan vllm-any --var model=Qwen/Qwen3-0.6B",
        "workbench --host gpu-box plan vllm-any --set max-num-seqs=64 --env "
        "VLLM_LOGGING_LEVEL=DEBUG",
    ),
)
async def print_plan(arguments: argparse.Namespace) -> int:
    """Print the plan. Return the exit code: 2 if the plan cannot be started because a finding is an
    error, otherwise 0.
    """
    from workbench.model.secrets import mask_command

    async with connect_session(arguments) as session:
        planned = await load_plan(session, arguments)
        if session.plans.preset_gpu_settings():
            await session.plans.compare_gpu_settings_with_preset(session.gpu.alterations)
        view = session.plans.view()
        about_host = await session.servers.host_findings()
        findings = add_host_options_to_fixes((*view.findings, *about_host), arguments)
        view = replace(view, findings=findings)
        nodes = [
            (node, mask_command(found)) for node, found in session.plans.editor.node_commands()
        ]
        simulated = session.state.simulated
    launch = command_json(view.command) if view.command else {}
    if arguments.json:
        print_json(
            {
                "preset": planned.preset_id,
                "engine": planned.engine,
                "model": planned.model,
                "variables": variables_json(view.plan),
                "argv": launch.get("argv"),
                "env": launch.get("env", {}),
                "files": launch.get("files", {}),
                "workdir": launch.get("workdir"),
                "run_as": view.plan.run_as,
                "run_options": dict(view.plan.run_options),
                "run_command": command_json(view.run_command) if view.run_command else None,
                "nodes": [_node_json(node, found) for node, found in nodes],
                "findings": items_as_json(view.findings),
                "memory": view.memory,
                "catalog": view.catalog_version,
                "catalog_from": "engine" if view.catalog_asked else "shipped",
                "installed": view.installed,
                "installed_problem": view.installed_problem,
                "simulated": simulated,
            }
        )
    else:
        for node, found in nodes:
            print_line(f"# {node.name} ({node.node_title})")
            for name, why in node.origins.items():
                print_line(f"# {name}: {why}")
            print_line(found.shell_line)
        if view.start_command and not nodes:
            for name, text in view.run_command.files.items() if view.run_command else ():
                print_line(f"# file {name}:\n{text.rstrip()}")
            print_line(view.start_command.shell_line)
        if view.memory and view.memory not in {f.text for f in view.findings}:
            print_message(view.memory)
        for finding in view.findings:
            print_message(f"  {format_finding_line(finding)}")
    return 2 if any(f.level is Level.ERROR for f in view.findings) else 0


async def load_plan(session: Session, arguments: argparse.Namespace) -> LaunchPlan:
    """Load the preset that the command line names, apply the changes of the other options, find the
    engine and the model on the host, and return the plan."""
    async with read_gpus_in_background(session) as reading:
        planned = await asyncio.to_thread(_load_preset_plan, session, arguments)
        try:
            session.core.update(telemetry=await reading)
        except HostError as error:
            print_message(f"cannot read the GPUs: {error.message}")
    session.plans.edit_plan(planned, arguments.preset)
    if getattr(arguments, "trust", False):
        session.plans.trust_preset_parts()
    await session.plans.locate_engine()
    before = session.plans.editor.plan
    # not of clusters
    run_as, run_options = getattr(arguments, "run_as", None), getattr(arguments, "run_options", ())
    session.plans.editor.apply_assignments(
        arguments.sets, arguments.unsets, arguments.envs, run_as, run_options
    )
    if getattr(arguments, "trust", False):
        session.plans.trust_preset_parts()
    after = session.plans.editor.plan
    if (after.executable, after.run_as, after.run_options) != (
        before.executable,
        before.run_as,
        before.run_options,
    ):
        await session.plans.locate_engine()
    await session.plans.read_model_size(session.plans.editor)
    session.plans.show_plan()
    return session.plans.editor.effective_plan


def _load_preset_plan(session: Session, arguments: argparse.Namespace) -> LaunchPlan:
    from workbench.engines import set_executable

    planned = session.presets.make_plan(arguments.preset, parse_variables(arguments))
    if arguments.executable is None:
        return planned
    return set_executable(planned, arguments.executable)


def parse_variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the values that --var sets, by variable. Raises InputError for a value that is not of
    the form name=value.
    """
    step = "`workbench presets show ID` lists the variables"
    return parse_name_value_pairs("--var", arguments.variables, step)


def variables_json(plan: LaunchPlan) -> dict[str, Any]:
    """Return {variable: {"value", "from", "run_id"}} for each variable of the plan's preset. "from"
    is the kind of source of the value. Secrets are masked."""
    from workbench.model.secrets import mask_secrets_of_plan

    plan = mask_secrets_of_plan(plan)
    return {
        n: {"value": plan.variables[n], "from": s.kind, "run_id": s.run_id}
        for n, s in plan.sources.items()
    }


def _node_json(node: Node, command: Command) -> dict[str, Any]:
    about = command_json(command)
    place = {"name": node.name, "rank": node.rank, "role": node.role, "origins": dict(node.origins)}
    return {**place, **{n: about[n] for n in ("argv", "env", "workdir", "shell")}}


def command_json(command: Command) -> dict[str, Any]:
    return {
        "argv": list(command.argv),
        "env": dict(command.env),
        "files": dict(command.files),
        "workdir": command.workdir,
        "shell": command.shell_line,
    }
