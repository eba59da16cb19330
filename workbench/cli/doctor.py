"""The command `doctor`, which shows the properties of a host and the problems that keep Workbench from serving and
tuning on it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from workbench.cli.open_session import connected
from workbench.cli.output import emit_or_say, finding_text
from workbench.cli.registry import command
from workbench.model.errors import HostError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.gpu import DriverInfo, DriverStatus

if TYPE_CHECKING:
    from workbench.gpu.settings.rights import Rights
    from workbench.hosts.base import Host, HostFacts
    from workbench.model.gpu import GpuInfo
    from workbench.server.engine_probe import InstalledEngine


class Examination(NamedTuple):
    """The properties of a host that `workbench doctor` found."""

    facts: HostFacts
    driver: DriverInfo
    gpus: Sequence[GpuInfo]
    engines: Sequence[InstalledEngine]
    rights: Rights
    simulated: bool


@command(
    "doctor",
    "show facts about the host and what is missing on it",
    examples=("workbench --host gpu-box doctor",),
)
async def doctor(arguments: argparse.Namespace) -> int:
    from workbench import engines
    from workbench.server.engine_probe import probe

    problems: list[Finding] = []
    async with connected(arguments) as session:
        facts = await session.host.facts()
        driver, gpus = await _read_gpus(session.host)
        installed = await asyncio.gather(*(probe(session.host, engines.get(name)) for name in engines.names()))
        rights = await session.gpu.rights.get()
        for code, read in (("gpu.journal", session.gpu.alterations.read), ("results", session.results.refresh)):
            try:
                await read()
            except WorkbenchError as error:  # the other checks go on
                problems.append(Finding(Level.ERROR, code, error.message, fix=error.next_step))
        problems += _config_findings()
        altered = len(session.state.alterations)
        host = Examination(facts, driver, gpus, installed, rights, session.state.simulated)
    findings = [*problems, *_findings(host)]
    if altered:
        text = f"{altered} GPU settings changed by Workbench are still in force"
        findings.append(Finding(Level.WARN, "gpu.altered", text, fix="workbench gpu revert"))
    document = {
        "host": asdict(facts),
        "driver": asdict(driver),
        "gpus": [asdict(i) for i in gpus],
        "engines": [asdict(e) for e in installed],
        "can_change_gpus": rights.refusal is None,
        "findings": [f.as_json() for f in findings],
        "simulated": host.simulated,
    }
    return emit_or_say(arguments.json, document, [*_lines(host), *(f"{f.level}: {finding_text(f)}" for f in findings)])


def _config_findings() -> Sequence[Finding]:
    """Return the problems of config.toml."""
    from workbench.store.config import ConfigStore

    store = ConfigStore()
    if store.path.exists():  # its schema takes 0.1 s to load
        _ = store.config
    return store.findings


async def _read_gpus(host: Host) -> tuple[DriverInfo, Sequence[GpuInfo]]:
    """Return the state of the NVIDIA driver, and the GPUs. If the GPUs cannot be read, the state contains the
    reason.
    """
    from workbench.gpu.telemetry.source import read_once

    try:
        telemetry = await read_once(host)
    except HostError as error:
        return DriverInfo(DriverStatus.NO_LIBRARY, error.message, source="nothing"), ()
    return telemetry.driver, telemetry.infos


def _findings(host: Examination) -> Iterator[Finding]:
    facts, driver = host.facts, host.driver
    if driver.status is not DriverStatus.OK:
        code = "driver." + driver.status.replace(" ", "-")
        fix = "`workbench demo` needs no GPU" if driver.status is DriverStatus.NO_LIBRARY else None
        yield Finding(Level.WARN, code, driver.message or driver.status, fix=fix)
    if facts.python3 is None:
        text = "python3 is missing, so telemetry is read with nvidia-smi"
        yield Finding(Level.WARN, "host.python3", text, fix="install python3 on the host")
    elif facts.python3_version is None:
        text = f"{facts.python3} does not print its version: it is broken, or not a python3"
        yield Finding(Level.ERROR, "host.python3", text, fix="repair it, or put a working python3 first on PATH")
    if not any(e.path for e in host.engines):
        text = f"no engine was found on PATH ({', '.join(e.engine for e in host.engines)})"
        yield Finding(Level.WARN, "engine.none", text, fix="install one, or give its program with --executable PATH")
    for engine in host.engines:
        for path in engine.elsewhere:
            text = f"{'another' if engine.path else 'not on PATH, but'} {engine.engine} is at {path}"
            section = f"[executables.{json.dumps(facts.name)}]"
            fix = f'use --executable PATH, or write {engine.engine} = "PATH" under {section} in config.toml'
            yield Finding(Level.HINT, "engine.elsewhere", text, fix=fix)
    if host.rights.refusal:
        yield Finding(Level.HINT, "gpu.rights", f"GPU settings cannot be changed: {host.rights.refusal}")


def _lines(host: Examination) -> Iterator[str]:
    facts, driver = host.facts, host.driver
    yield f"host     {facts.name} ({facts.kind}){'  SIMULATED' if host.simulated else ''}"
    yield (
        f"system   {facts.os}, {facts.kernel}, {facts.arch}, {facts.cpu_count} CPUs, "
        f"{(facts.memory_total_bytes or 0) / 2**30:.0f} GiB, virtualization {facts.virtualization or 'unknown'}, "
        f"container {facts.container or 'none'}"
    )
    yield f"python3  {facts.python3 or 'not found'} {facts.python3_version or ''}"
    cuda = f", CUDA {driver.cuda_version}" if driver.cuda_version else ""
    yield f"driver   {driver.driver_version or driver.status}{cuda} (read from {driver.source})"
    for number, gpu in enumerate(host.gpus):
        yield f"GPU{number}     {gpu.name}"
    for engine in host.engines:
        if engine.path:
            yield f"engine   {engine.engine} {engine.version or '(version unknown)'} at {engine.path}"
