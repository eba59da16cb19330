"""doctor: facts of a host, and what is missing on it for the loop."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.dispatch import Command, emit
from workbench.cli.opened import connected, say
from workbench.model.findings import Finding, Level
from workbench.model.gpu import DriverStatus

if TYPE_CHECKING:
    from workbench.gpu.rights import Rights
    from workbench.hosts.base import HostFacts
    from workbench.model.gpu import DriverInfo
    from workbench.server.probe import InstalledEngine


async def doctor(arguments: argparse.Namespace) -> int:
    from workbench import engines
    from workbench.gpu.source import read_once
    from workbench.server.probe import probe

    async with connected(arguments) as session:
        facts = await session.host.facts()
        telemetry = await read_once(session.host)
        installed = [await probe(session.host, engines.get(name)) for name in engines.names()]
        rights = await session.rights()
        await session.read_alterations()
        altered = session.state.alterations
    findings = _findings(facts, telemetry.driver, installed, rights)
    if altered:
        text = f"{len(altered)} GPU settings made by Workbench are still on"
        findings.append(Finding(Level.WARN, "gpu.altered", text, fix="workbench gpu revert"))
    if arguments.json:
        document: dict[str, Any] = {
            "host": asdict(facts), "driver": asdict(telemetry.driver), "gpus": [asdict(i) for i in telemetry.infos],
            "engines": [asdict(e) for e in installed], "can_change_gpus": rights.refusal is None,
            "findings": [f.as_json() for f in findings], "simulated": telemetry.simulated,
        }  # fmt: skip
        return emit(document)
    _say(facts, telemetry.driver, [i.name for i in telemetry.infos], installed, telemetry.simulated)
    for finding in findings:
        say(f"{finding.level}: {finding.text}{f' — {finding.fix}' if finding.fix else ''}")
    return 0


def _findings(
    facts: HostFacts, driver: DriverInfo, installed: list[InstalledEngine], rights: Rights
) -> list[Finding]:
    found = []
    if driver.status is not DriverStatus.OK:
        code = "driver." + driver.status.replace(" ", "-")
        fix = "workbench demo needs no GPU" if driver.status is DriverStatus.NO_LIBRARY else None
        found.append(Finding(Level.WARN, code, driver.message or driver.status, fix=fix))
    if facts.python3 is None:
        found.append(Finding(Level.WARN, "host.python3", "no python3: telemetry falls back to nvidia-smi",
                             fix="install python3 there"))  # fmt: skip
    if not any(e.path for e in installed):
        text = "no engine found on PATH (vllm, sglang, llama-server, TabbyAPI)"
        found.append(Finding(Level.WARN, "engine.none", text, fix="install one, or give a preset `executable`"))
    for engine in installed:
        found += [Finding(Level.HINT, "engine.elsewhere", f"{engine.engine} is not on PATH but at {path}",
                          fix="put it first on PATH, or name it as the preset's executable")
                  for path in engine.elsewhere]  # fmt: skip
    if rights.refusal:
        found.append(Finding(Level.HINT, "gpu.rights", f"GPU settings cannot be changed: {rights.refusal}"))
    return found


def _say(
    facts: HostFacts, driver: DriverInfo, gpus: list[str], installed: list[InstalledEngine], simulated: bool
) -> None:
    say(f"host     {facts.name} ({facts.kind}){'  SIMULATED' if simulated else ''}")
    say(f"system   {facts.os}, {facts.kernel}, {facts.arch}, {facts.cpu_count} CPUs, "
        f"{(facts.memory_total_bytes or 0) / 2**30:.0f} GiB, virtualization {facts.virtualization or 'unknown'}, "
        f"container {facts.container or 'none'}")  # fmt: skip
    say(f"python3  {facts.python3 or 'not found'} {facts.python3_version or ''}")
    say(f"driver   {driver.driver_version or driver.status} CUDA {driver.cuda_version or 'n/a'} ({driver.source})")
    for number, name in enumerate(gpus):
        say(f"GPU{number}     {name}")
    for engine in installed:
        if engine.path:
            say(f"engine   {engine.engine} {engine.version or '(version unknown)'} at {engine.path}")


COMMANDS: dict[str, Command] = {"doctor": doctor}
