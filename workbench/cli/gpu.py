"""gpu status, set, revert."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.dispatch import Command, emit
from workbench.cli.opened import asked, connected, note, say
from workbench.model.errors import InputError
from workbench.model.gpu import DriverStatus
from workbench.model.settings import ClockRange, GpuSettings, SettingsReport

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo, GpuSample


async def status(arguments: argparse.Namespace) -> int:
    from workbench.gpu.source import read_once

    async with connected(arguments) as session:
        telemetry = await read_once(session.host)
        await session.read_alterations()
        altered = [asdict(a) for a in session.state.alterations]
    gpus = [_gpu_json(telemetry.info(s.index), s) for s in telemetry.gpus]
    document = {
        "host": {"name": session.host.name, **asdict(telemetry.host)}, "driver": asdict(telemetry.driver),
        "gpus": gpus, "altered": altered, "simulated": telemetry.simulated,
    }  # fmt: skip
    if arguments.json:
        emit(document)
    else:
        _say_status(document, telemetry.driver.message)
    if telemetry.driver.status is DriverStatus.NO_LIBRARY:
        note("no GPU here? `workbench demo` shows everything on a simulated one")
    return 0 if telemetry.driver.status is DriverStatus.OK else 1


def _gpu_json(info: GpuInfo | None, sample: GpuSample) -> dict[str, Any]:
    """What does not change and what does, in one object; the reasons of both under `absent`."""
    static = asdict(info) if info else {}
    live = asdict(sample)
    both = {**static, **{k: v for k, v in live.items() if v is not None or k not in static}}
    return {**both, "absent": {**static.get("absent", {}), **live["absent"]}}


def _say_status(document: Mapping[str, Any], message: str | None) -> None:
    driver, host = document["driver"], document["host"]
    simulated = "  SIMULATED" if document["simulated"] else ""
    cuda = f", CUDA {driver['cuda_version']}" if driver["cuda_version"] else ""
    say(f"{host['name']}: driver {driver['driver_version'] or 'n/a'} ({driver['status']}){cuda}{simulated}")
    if message:
        say(f"  {message}")
    for gpu in document["gpus"]:
        state = f"{gpu['state']} {gpu.get('message') or ''}".rstrip()
        say(f"GPU{gpu['index']} {gpu.get('name', '?')}  {gpu['uuid']}  {state}")
        say("  " + "  ".join(_cell(gpu, *cell) for cell in _CELLS))
        if gpu["event_reasons"]:
            say(f"  clocks held by: {', '.join(gpu['event_reasons'])}")
        if gpu["absent"]:
            say("  n/a: " + "; ".join(f"{k} ({why})" for k, why in gpu["absent"].items()))
    for one in document["altered"]:
        say(f"altered: GPU{one['gpu_index']} {one['setting']} {one['before']} -> {one['now']} (workbench gpu revert)")


_CELLS = (
    ("sm_mhz", "SM {:.0f} MHz"), ("memory_mhz", "memory {:.0f} MHz"), ("power_w", "{:.0f} W"),
    ("power_limit_enforced_w", "of {:.0f} W"), ("gpu_util_pct", "util {:.0f} %"), ("temperature_c", "{:.0f} °C"),
    ("memory_used_bytes", "memory {:.1f} GiB"),
)  # fmt: skip


def _cell(gpu: Mapping[str, Any], name: str, shape: str) -> str:
    value = gpu.get(name)
    if value is None:
        return shape.replace("{:.0f}", "n/a").replace("{:.1f}", "n/a")
    return shape.format(value / 2**30 if name.endswith("_bytes") else value)


def _clocks(text: str | None, option: str) -> ClockRange | None:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1]:
        raise InputError(f"{option} {text!r} is not MHZ or MIN,MAX in MHz", next_step=f"for example {option} 210,2400")
    return ClockRange(*numbers)


def wanted(arguments: argparse.Namespace) -> GpuSettings:
    settings = GpuSettings(
        persistence=None if arguments.persistence is None else arguments.persistence == "on",
        power_limit_w=arguments.power_limit,
        gpu_clocks=_clocks(arguments.lock_gpu_clocks, "--lock-gpu-clocks"),
        memory_clocks=_clocks(arguments.lock_memory_clocks, "--lock-memory-clocks"),
        reset_gpu_clocks=arguments.reset_gpu_clocks,
        reset_memory_clocks=arguments.reset_memory_clocks,
    )
    if settings.empty:
        raise InputError("no setting was asked for", next_step="workbench gpu set --help")
    return settings


async def set_(arguments: argparse.Namespace) -> int:
    settings = wanted(arguments)
    selector = None if arguments.gpu == "all" else arguments.gpu
    async with connected(arguments) as session:
        commands = await session.plan_gpu(settings, selector)
        if not arguments.json:
            for command in commands:
                say(f"$ {shlex.join(command.argv)}")
        if not arguments.dry_run and not arguments.yes:
            if arguments.json or not sys.stdin.isatty():
                raise InputError("nobody can be asked here", next_step="add --yes, or --dry-run to see the commands")
            gpus = ", ".join(f"GPU{i}" for i in sorted({c.gpu_index for c in commands}))
            if not await asked(f"Run these on {session.host.name} ({gpus})? [y/N] "):
                note("nothing was changed")
                return 1
        report = await session.apply_gpu(settings, selector, dry_run=arguments.dry_run)
        simulated = session.state.simulated
    return _said(report, arguments.json, simulated)


async def revert(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        report = await session.revert_gpu(None if arguments.gpu == "all" else arguments.gpu)
        simulated = session.state.simulated
    if not report.outcomes and not arguments.json:
        say("nothing to revert")
    return _said(report, arguments.json, simulated)


def report_json(report: SettingsReport, simulated: bool) -> dict[str, Any]:
    return {
        "commands": [list(o.command.argv) for o in report.outcomes],
        "outcomes": [
            {
                "gpu": o.command.gpu_index, "uuid": o.command.gpu_uuid, "setting": o.command.setting, "ok": o.ok,
                "before": o.before, "requested": o.requested, "read_back": o.read_back,
                "in_force": str(o.in_force), "message": o.message, "right": o.command.right,
            }
            for o in report.outcomes
        ],
        "before": {f"gpu{o.command.gpu_index}.{o.command.setting}": o.before for o in report.outcomes},
        "requested": {f"gpu{o.command.gpu_index}.{o.command.setting}": o.requested for o in report.outcomes},
        "read_back": {f"gpu{o.command.gpu_index}.{o.command.setting}": o.read_back for o in report.outcomes},
        "in_force": {f"gpu{o.command.gpu_index}.{o.command.setting}": str(o.in_force) for o in report.outcomes},
        "journal": report.journal, "dry_run": report.dry_run, "ok": report.ok, "simulated": simulated,
    }  # fmt: skip


def _said(report: SettingsReport, as_json: bool, simulated: bool) -> int:
    if as_json:
        emit(report_json(report, simulated))
        return 0 if report.ok else 1
    for outcome in report.outcomes:
        told = "would run" if report.dry_run else "ok" if outcome.ok else "FAILED"
        force = "" if report.dry_run else f" (in force: {outcome.in_force})"
        command = outcome.command
        say(f"GPU{command.gpu_index} {command.setting}: {told}{force}  {outcome.before} -> {outcome.requested}"
            f"  {outcome.message}".rstrip())  # fmt: skip
    return 0 if report.ok else 1


COMMANDS: dict[str, Command] = {"gpu status": status, "gpu set": set_, "gpu revert": revert}
