"""gpu status; set, revert and journal are in gpu_settings.py."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli import gpu_guard, gpu_settings
from workbench.cli.dispatch import Command, emit
from workbench.cli.open_session import connected, note, say
from workbench.model.gpu import DriverStatus

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo, GpuSample


async def status(arguments: argparse.Namespace) -> int:
    from workbench.gpu.settings.drift import drifts
    from workbench.gpu.telemetry.source import read_once
    from workbench.model.errors import HostError

    async with connected(arguments) as session:
        telemetry = await read_once(session.host)
        session.update(telemetry=telemetry)  # with it, a reload of the driver shows
        guard, journal_problem = None, None
        try:
            await session.read_alterations()
            guard = await session.read_guard()
        except HostError as error:  # the GPUs can be shown without the journal
            journal_problem = error
        altered = [asdict(a) for a in session.state.alterations]
        drift = drifts(session.state.alterations, session.state.others, telemetry)
    gpus = [_gpu_json(telemetry.info(s.index), s) for s in telemetry.gpus]
    document = {
        "host": {"name": session.host.name, **asdict(telemetry.host)},
        "driver": asdict(telemetry.driver),
        "gpus": gpus,
        "altered": altered,
        "drift": [asdict(d) for d in drift],
        "others": [asdict(a) for a in session.state.others],
        "others_problem": session.state.others_problem,
        "guard": asdict(guard) if guard else None,
        "journal_problem": journal_problem.message if journal_problem else None,
        "simulated": telemetry.simulated,
        "error": None if telemetry.driver.status is DriverStatus.OK else telemetry.driver.message,
    }
    if arguments.json:
        emit(document)
    else:
        _say_status(document, telemetry.driver.message)
        for line in gpu_settings.others_lines(session.state):
            say(line)
        for line in gpu_guard.guard_lines(guard, did=True) if guard else ():
            say(line)
    if journal_problem is not None:
        note(f"settings made by Workbench are not known: {journal_problem}")
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
    from workbench.gpu.settings.revert import shown
    from workbench.session.gpu_settings import named

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
        where, kept = named(one["gpu_index"]), ", kept on" if one["extra"].get("state") == "kept" else ""
        change = f"{one['setting']} {shown(one['before'])} -> {shown(one['now'])}"
        say(f"altered: {where} {change}{kept} (workbench gpu revert)")
        for other in document["drift"]:
            if (other["gpu_uuid"], other["setting"]) == (one["gpu_uuid"], one["setting"]):
                say(f"  {other['text']}")


_CELLS = (
    ("sm_mhz", "SM {:.0f} MHz"),
    ("memory_mhz", "memory {:.0f} MHz"),
    ("power_w", "{:.0f} W"),
    ("power_limit_enforced_w", "of {:.0f} W"),
    ("gpu_util_pct", "util {:.0f} %"),
    ("temperature_c", "{:.0f} °C"),
    ("memory_used_bytes", "memory {:.1f} GiB"),
)


def _cell(gpu: Mapping[str, Any], name: str, shape: str) -> str:
    value = gpu.get(name)
    if value is None:
        return shape.replace("{:.0f}", "n/a").replace("{:.1f}", "n/a")
    return shape.format(value / 2**30 if name.endswith("_bytes") else value)


wanted = gpu_settings.wanted  # "power-limit=400" of an experiment's arm is read as gpu set reads it
COMMANDS: dict[str, Command] = {"gpu status": status, **gpu_settings.COMMANDS, **gpu_guard.COMMANDS}
