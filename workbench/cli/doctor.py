"""doctor: facts of a host, and what is missing on it for the loop."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.dispatch import Command, emit
from workbench.cli.open_session import connected, say
from workbench.model.errors import HostError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.gpu import DriverInfo, DriverStatus

if TYPE_CHECKING:
    from workbench.gpu.settings.rights import Rights
    from workbench.hosts.base import Host, HostFacts
    from workbench.model.gpu import GpuInfo
    from workbench.server.engine_probe import InstalledEngine


async def doctor(arguments: argparse.Namespace) -> int:
    from workbench import engines
    from workbench.server.engine_probe import probe

    findings: list[Finding] = []
    async with connected(arguments) as session:
        facts = await session.host.facts()
        driver, gpus = await _gpus(session.host)
        installed = await asyncio.gather(*(probe(session.host, engines.get(name)) for name in engines.names()))
        rights = await session.rights()
        for code, look in (("gpu.journal", session.read_alterations), ("results", session.read_results)):
            try:
                await look()
            except WorkbenchError as error:  # one thing that is broken hides nothing else
                findings.append(Finding(Level.ERROR, code, error.message, fix=error.next_step))
        altered, simulated = session.state.alterations, session.state.simulated
        findings += session.config.findings
    findings += _findings(facts, driver, installed, rights)
    if altered:
        text = f"{len(altered)} GPU settings made by Workbench are still on"
        findings.append(Finding(Level.WARN, "gpu.altered", text, fix="workbench gpu revert"))
    if arguments.json:
        document: dict[str, Any] = {
            "host": asdict(facts),
            "driver": asdict(driver),
            "gpus": [asdict(i) for i in gpus],
            "engines": [asdict(e) for e in installed],
            "can_change_gpus": rights.refusal is None,
            "findings": [f.as_json() for f in findings],
            "simulated": simulated,
        }
        return emit(document)
    _say(facts, driver, [i.name for i in gpus], installed, simulated)
    for finding in findings:
        say(f"{finding.level}: {finding.text}{f' — {finding.fix}' if finding.fix else ''}")
    return 0


async def _gpus(host: Host) -> tuple[DriverInfo, Sequence[GpuInfo]]:
    """The driver's state and the GPUs; on a host where nothing can read them, that is the state."""
    from workbench.gpu.telemetry.source import read_once

    try:
        telemetry = await read_once(host)
    except HostError as error:
        return DriverInfo(DriverStatus.NO_LIBRARY, error.message, source="nothing"), ()
    return telemetry.driver, telemetry.infos


def _findings(
    facts: HostFacts, driver: DriverInfo, installed: Sequence[InstalledEngine], rights: Rights
) -> list[Finding]:
    found, host = [], json.dumps(facts.name)
    if driver.status is not DriverStatus.OK:
        code = "driver." + driver.status.replace(" ", "-")
        fix = "workbench demo needs no GPU" if driver.status is DriverStatus.NO_LIBRARY else None
        found.append(Finding(Level.WARN, code, driver.message or driver.status, fix=fix))
    if facts.python3 is None:
        found.append(
            Finding(
                Level.WARN,
                "host.python3",
                "no python3: telemetry falls back to nvidia-smi",
                fix="install python3 there",
            )
        )
    elif facts.python3_version is None:
        text = f"{facts.python3} does not tell its version: it is no python3 that runs, or it prints something else"
        found.append(Finding(Level.ERROR, "host.python3", text, fix="repair it, or put a python3 before it on PATH"))
    if not any(e.path for e in installed):
        text = "no engine found on PATH (vllm, sglang, llama-server)"
        found.append(
            Finding(Level.WARN, "engine.none", text, fix="install one, or name its program: --executable PATH")
        )
    for engine in installed:
        found += [
            Finding(
                Level.HINT,
                "engine.elsewhere",
                f"{'another' if engine.path else 'not on PATH, but'} {engine.engine} is at {path}",
                fix=f'--executable PATH, or {engine.engine} = "PATH" under [executables.{host}] in config.toml',
            )
            for path in engine.elsewhere
        ]
    if rights.refusal:
        found.append(Finding(Level.HINT, "gpu.rights", f"GPU settings cannot be changed: {rights.refusal}"))
    return found


def _say(
    facts: HostFacts, driver: DriverInfo, gpus: list[str], installed: Sequence[InstalledEngine], simulated: bool
) -> None:
    say(f"host     {facts.name} ({facts.kind}){'  SIMULATED' if simulated else ''}")
    say(
        f"system   {facts.os}, {facts.kernel}, {facts.arch}, {facts.cpu_count} CPUs, "
        f"{(facts.memory_total_bytes or 0) / 2**30:.0f} GiB, virtualization {facts.virtualization or 'unknown'}, "
        f"container {facts.container or 'none'}"
    )
    say(f"python3  {facts.python3 or 'not found'} {facts.python3_version or ''}")
    cuda = f", CUDA {driver.cuda_version}" if driver.cuda_version else ""
    say(f"driver   {driver.driver_version or driver.status}{cuda} (by {driver.source})")
    for number, name in enumerate(gpus):
        say(f"GPU{number}     {name}")
    for engine in installed:
        if engine.path:
            say(f"engine   {engine.engine} {engine.version or '(version unknown)'} at {engine.path}")


COMMANDS: dict[str, Command] = {"doctor": doctor}
