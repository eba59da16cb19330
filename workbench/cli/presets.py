"""presets, flags, plan: what can be said without starting anything."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.dispatch import Command, emit
from workbench.cli.open_session import connected, note, say
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level

if TYPE_CHECKING:
    from workbench.model.plan import Command as Command_
    from workbench.model.plan import LaunchPlan, Node
    from workbench.model.preset import DocumentClaim, GpuSettingsEntry, HostSetting, Variable
    from workbench.session.session import Session


def presets_list(arguments: argparse.Namespace) -> int:
    from workbench.store.presets import PresetLibrary

    entries = PresetLibrary().list()
    if arguments.json:
        return emit({"presets": [e.as_json() for e in entries]})
    width = max((len(e.id) for e in entries), default=0)
    for entry in entries:
        if entry.error:
            say(f"{entry.id:<{width}}  ! {entry.error.text} ({entry.path})")
        else:
            say(f"{entry.id:<{width}}  {entry.engine:<9} {entry.status:<12} {entry.hardware}  {entry.title}")
    return 0


def presets_show(arguments: argparse.Namespace) -> int:
    from workbench.session.session import Session

    preset = Session.of_host().preset(arguments.id)
    if arguments.json:
        return emit(preset.model_dump(mode="json", by_alias=True))
    say(f"{preset.id}: {preset.title}\n\n{preset.summary}\n")
    say(f"engine    {preset.engine.name} {preset.engine.versions or ''}")
    hardware, made_for = preset.hardware, preset.benchmark
    if preset.engine.executable:
        say(f"program   {shlex.join(map(preset.filled, preset.engine.executable))}")
    if preset.engine.workdir:
        say(f"in        {preset.filled(preset.engine.workdir)}")
    say(f"model     {preset.filled(preset.model.id)} {preset.model.quantization or ''}")
    say(f"hardware  {hardware.count} x {', '.join(hardware.gpu_names) or 'any NVIDIA GPU'}")
    say(f"platform  {hardware.platform or 'any'}")
    say(f"baseline  {preset.baseline or 'none'}")
    say(f"benchmark {made_for.profile}, {made_for.requests} requests, concurrency {made_for.concurrency}")
    say(f"from      {preset.provenance.document} ({preset.provenance.status}) {preset.provenance.note or ''}")
    _say_settings(preset.flags, preset.env)
    for node in preset.nodes:
        say(f"node {node.rank}: {node.name}")
        _say_settings(node.flags, node.env)
    for title, lines in (
        ("Asks for", [f"{n}: {v.description}{_usual(v)}" for n, v in preset.variables.items()]),
        ("GPU settings, never applied by loading", [_gpu_settings(g) for g in preset.gpu_settings]),
        ("Settings of the host, never applied", [_because(f"{h.name} = {h.value}", h) for h in preset.host_settings]),
        ("Caveats", preset.caveats),
        ("Claims", [f"[{c.verdict}] {c.text} -> {c.correct} ({c.basis}{_lines(c)})" for c in preset.claims]),
        (
            "Results",
            [f"{r.metric} {r.value:g} {r.unit}: {r.conditions} ({r.status}; {r.source})" for r in preset.references],
        ),
    ):
        if lines:
            say(f"\n{title}:")
            for line in lines:
                say(f"  {line}")
    return 0


def _say_settings(flags: Mapping[str, Any], env: Mapping[str, str]) -> None:
    for name, value in flags.items():
        say(f"  --{name}" if value is True else f"  --{name} {value if isinstance(value, str) else json.dumps(value)}")
    for name, value in env.items():
        say(f"  {name}={value}")


def _usual(variable: Variable) -> str:
    if variable.default is not None:
        return f" (default {variable.default})"
    return f" (e.g. {variable.example})" if variable.example else ""


def _gpu_settings(entry: GpuSettingsEntry) -> str:
    named = entry.model_dump(exclude={"gpu", "reason"}, exclude_none=True)
    return _because(f"GPU {entry.gpu}: {', '.join(f'{name} {value}' for name, value in named.items())}", entry)


def _because(text: str, entry: GpuSettingsEntry | HostSetting) -> str:
    return f"{text} ({entry.reason})" if entry.reason else text


def _lines(claim: DocumentClaim) -> str:
    return f"; lines {claim.lines}" if claim.lines else ""


def presets_check(arguments: argparse.Namespace) -> int:
    from workbench.store.presets import PresetLibrary

    library = PresetLibrary()
    found: list[dict[str, Any]] = []
    failed = False
    for file in arguments.files:
        findings = library.check(Path(file))
        failed = failed or any(f.level is Level.ERROR for f in findings)
        found.append(
            {
                "file": file,
                "ok": not any(f.level is Level.ERROR for f in findings),
                "findings": [f.as_json() for f in findings],
            }
        )
        if not arguments.json:
            say(f"{file}: {'ok' if not findings else ''}")
            _say_findings(findings)
    if arguments.json:
        emit({"files": found})
    return 2 if failed else 0


def presets_path(arguments: argparse.Namespace) -> int:
    from workbench.store import paths

    own, shipped = str(paths.own_presets_dir()), str(paths.shipped_presets_dir())
    if arguments.json:
        return emit({"own": own, "shipped": shipped})
    say(f"own      {own}\nshipped  {shipped}")
    return 0


def flags(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from workbench import engines

    engine = engines.get(arguments.engine)
    catalog = engine.catalog(arguments.engine_version)
    wanted = engines.search(catalog, arguments.search) if arguments.search else list(catalog.flags.values())
    if arguments.json:
        return emit({"engine": engine.name, "version": catalog.version, "flags": [asdict(f) for f in wanted]})
    note(f"{engine.title} {catalog.version}: {len(wanted)} of {len(catalog.flags)} flags")
    for spec in wanted:
        shape = "|".join(spec.choices[:6]) if spec.choices else str(spec.kind)
        default = "" if spec.default is None else f" = {engines.format_value(spec.default)}"
        say(f"--{spec.name} {shape}{default}  {spec.help}")
    return 0


def variables_of(arguments: argparse.Namespace) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in arguments.variables:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--var {pair!r} is not name=value", next_step="workbench presets show ID names them")
        values[name] = value
    return values


async def take_plan(session: Session, arguments: argparse.Namespace) -> LaunchPlan:
    """Load the preset, see what this host has to run it, and apply the assignments of the command line."""
    from workbench.engines import with_executable
    from workbench.gpu.telemetry.source import read_once
    from workbench.model.errors import HostError

    planned = session.plan_of(arguments.preset, variables_of(arguments))
    try:
        session.update(telemetry=await read_once(session.host))
    except HostError as error:
        note(f"GPUs not read: {error.message}")
    if arguments.executable is not None:
        planned = with_executable(planned, arguments.executable)
    session.take_plan(planned, arguments.preset)
    if getattr(arguments, "trust", False):
        session.trust()
    await session.look_for_engine()
    looked_for = session.editor.plan.executable
    session.editor.assign(arguments.sets, arguments.unsets, arguments.envs)
    if session.editor.plan.executable != looked_for:
        await session.look_for_engine()
    await session.look_for_model(session.editor)
    session.show_plan()
    return session.editor.effective


async def plan(arguments: argparse.Namespace) -> int:
    """argv, environment, files, nodes and findings. Exits 2 when findings are errors: such a plan cannot be started."""
    from workbench.model.secrets import mask_command

    async with connected(arguments) as session:
        planned = await take_plan(session, arguments)
        view = await session.look_at_carried()
        command = view.command
        nodes = [(n, mask_command(c)) for n, c in session.editor.node_commands()]
        document = {
            "preset": planned.preset_id,
            "engine": planned.engine,
            "model": planned.model,
            "variables": variables_json(view.plan),
            "argv": list(command.argv) if command else None,
            "env": dict(command.env) if command else {},
            "files": dict(command.files) if command else {},
            "workdir": command.workdir if command else None,
            "nodes": [_node_json(node, c) for node, c in nodes],
            "findings": [f.as_json() for f in view.findings],
            "memory": view.memory,
            "catalog": view.catalog_version,
            "installed": view.installed,
            "installed_problem": view.installed_problem,
            "simulated": session.state.simulated,
        }
    code = 2 if any(f.level is Level.ERROR for f in view.findings) else 0
    if arguments.json:
        emit(document)
        return code
    for node, its in nodes:
        say(f"# {node.name} (rank {node.rank})\n{its.shell()}")
    if command and not nodes:
        say(command.shell())
    if view.memory and view.memory not in {f.text for f in view.findings}:
        note(view.memory)
    _say_findings(view.findings)
    return code


def variables_json(plan: LaunchPlan) -> dict[str, Any]:
    """Return each variable of the preset with its value and where that comes from; secrets are masked."""
    from workbench.model.secrets import mask_plan

    plan = mask_plan(plan)
    return {n: {"value": plan.variables[n], "from": s.kind, "run_id": s.run_id} for n, s in plan.sources.items()}


def _node_json(node: Node, command: Command_) -> dict[str, Any]:
    return {
        "name": node.name,
        "rank": node.rank,
        "argv": list(command.argv),
        "env": dict(command.env),
        "workdir": command.workdir,
        "shell": command.shell(),
    }


def _say_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        place = f"{finding.place}: " if finding.place else ""
        fix = f" — {finding.fix}" if finding.fix else ""
        note(f"  {finding.level}: {place}{finding.text}{fix}")


COMMANDS: dict[str, Command] = {
    "presets list": presets_list,
    "presets show": presets_show,
    "presets check": presets_check,
    "presets path": presets_path,
    "flags": flags,
    "plan": plan,
}
