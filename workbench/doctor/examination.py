"""The examination of one host. All parts are read in parallel, each with a time limit. A part that
fails or takes too long becomes a finding, and the other parts are still shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from workbench.doctor import engine_packages, host_values
from workbench.doctor.engine_packages import EnginePackages
from workbench.doctor.host_values import HostValues
from workbench.engines import registry
from workbench.hosts.base import Host, HostFacts, HostUnreachable
from workbench.model.errors import HostError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.gpu import DriverInfo, DriverStatus, GpuInfo, GpuSample, HostSample
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.model.gpu import Telemetry
    from workbench.server.engine_probe import InstalledEngine

T = TypeVar("T")
FACTS_S = 15.0
VALUES_S = 5.0
READING_S = 12.0  # a driver that hangs is known by then
GPUS_S = 18.0  # to end the telemetry agent too
ENGINES_S = 15.0
PACKAGES_S = 4.0
NOTHING = "nothing"  # from which a driver was read that was not read


@dataclass(frozen=True, slots=True)
class Examination:
    """What was read from a host: its properties, the driver, the GPUs, the installed engines and
    their Python packages."""

    facts: HostFacts
    values: HostValues = field(default_factory=HostValues)
    driver: DriverInfo = field(
        default_factory=lambda: DriverInfo(DriverStatus.ERROR, source=NOTHING)
    )
    gpus: tuple[GpuInfo, ...] = ()
    samples: tuple[GpuSample, ...] = ()
    host_sample: HostSample = field(default_factory=HostSample)
    engines: tuple[InstalledEngine, ...] = ()
    packages: tuple[EnginePackages, ...] = ()

    @property
    def was_driver_read(self) -> bool:
        """Whether the driver was asked. True also if no driver answered, which `driver` then
        says."""
        return self.driver.source != NOTHING

    @property
    def gpus_with_readings(self) -> Iterable[tuple[GpuInfo, GpuSample]]:
        """The GPUs that have a reading, each with its reading."""
        samples = {sample.uuid: sample for sample in self.samples}
        return ((gpu, samples[gpu.uuid]) for gpu in self.gpus if gpu.uuid in samples)

    @property
    def compute_capabilities(self) -> tuple[str, ...]:
        """The compute capabilities of the GPUs, such as "12.0", without duplicates."""
        return tuple(
            dict.fromkeys(gpu.compute_capability for gpu in self.gpus if gpu.compute_capability)
        )


class TimedParts:
    """Reads the parts of an examination. A part that fails or takes too long adds a finding to
    `problems`."""

    def __init__(self) -> None:
        self.problems: list[Finding] = []

    async def read_part_within_limit(
        self, part_name: str, work: Awaitable[T], limit_s: float, default: T
    ) -> T:
        """Return the result of `work`. If it fails or takes longer than `limit_s` seconds, add a
        finding about the part called `part_name` to `problems`, and return `default`. Raises
        HostUnreachable if there is no connection."""
        try:
            async with asyncio.timeout(limit_s):
                return await work
        except HostUnreachable:
            raise
        except TimeoutError:
            text = f"{part_name} could not be read within {limit_s:g} s"
            step = "`top` on this host shows what keeps it busy"
            self.problems.append(Finding(Level.WARN, "doctor.slow", text, fix=step))
        except WorkbenchError as error:
            text = f"{part_name} could not be read: {error.message}"
            step = error.next_step or "run the command by hand"
            self.problems.append(
                Finding(Level.WARN, "doctor.unread", text, fix=step, evidence=error.command)
            )
        return default


async def examine(host: Host, executables: Mapping[str, str], parts: TimedParts) -> Examination:
    """Examine `host`, and return what was read. `executables` has the path of the program that the
    user has chosen for an engine, by engine name. A part that cannot be read is empty, and
    `parts.problems` gets a finding. Raises HostUnreachable if there is no connection."""
    ports = [registry.get_engine(name).default_port for name in registry.engine_names()]
    facts, values, telemetry, found = await asyncio.gather(
        parts.read_part_within_limit(
            "the system", host.facts(), FACTS_S, HostFacts(host.name, host.kind)
        ),
        parts.read_part_within_limit(
            "limits, disk and processes",
            host_values.read_host_values(host, ports, VALUES_S),
            2 * VALUES_S,
            HostValues(),
        ),
        parts.read_part_within_limit("the GPUs", _read_telemetry(host), GPUS_S, None),
        _find_installed_engines(host, executables, parts),
    )
    packages = await parts.read_part_within_limit(
        "the engines' packages", _read_engine_packages(host, found, values), 2 * PACKAGES_S, ()
    )
    seen = Examination(facts, values, engines=found, packages=packages)
    if telemetry is None:
        return seen
    return replace(
        seen,
        driver=telemetry.driver,
        gpus=telemetry.infos,
        samples=telemetry.gpus,
        host_sample=telemetry.host,
    )


async def examine_for_engine_start(
    host: Host, engine: InstalledEngine | None, driver: DriverInfo, gpus: tuple[GpuInfo, ...]
) -> Examination:
    """Return what the start of an engine depends on: `driver` and `gpus`, which are known, and the
    packages of the engine's Python. Packages are left out if `engine` is None or if they cannot be
    read in time. Raises HostUnreachable if there is no connection."""
    seen = Examination(HostFacts(host.name, host.kind), driver=driver, gpus=gpus)
    if engine is None:
        return seen
    parts, values = TimedParts(), HostValues()
    if host.simulated:
        read = host_values.read_host_values(host, (), VALUES_S)
        values = await parts.read_part_within_limit(
            "the simulated packages", read, VALUES_S, values
        )
    packages = await parts.read_part_within_limit(
        "the engine's packages", _read_engine_packages(host, [engine], values), PACKAGES_S, ()
    )
    return replace(seen, packages=tuple(one for one in packages if one.engine == engine.engine))


async def _read_telemetry(host: Host) -> Telemetry:
    from workbench.gpu.telemetry.source_of_host import read_telemetry_once

    try:
        return await read_telemetry_once(host, READING_S)
    except HostUnreachable:
        raise
    except HostError as error:
        step = "`nvidia-smi` on this host shows whether the driver answers"
        raise HostError(error.message, host=error.host, next_step=step) from None


async def _find_installed_engines(
    host: Host, executables: Mapping[str, str], parts: TimedParts
) -> tuple[InstalledEngine, ...]:
    from workbench.server.engine_probe import InstalledEngine, probe_engine

    async def find_installed_engine(name: str) -> InstalledEngine:
        engine = registry.get_engine(name)
        chosen = (executables[name],) if name in executables else ()
        unread = InstalledEngine(name, None, problem="it could not be read")
        return await parts.read_part_within_limit(
            engine.title, probe_engine(host, engine, chosen), ENGINES_S, unread
        )

    return tuple(await asyncio.gather(*map(find_installed_engine, registry.engine_names())))


async def _read_engine_packages(
    host: Host, engines: Iterable[InstalledEngine], values: HostValues
) -> tuple[EnginePackages, ...]:
    if host.simulated:
        simulated = []
        for stack in values.stacks:
            engine, _, answer = stack.partition(" ")
            simulated.append(engine_packages.parse_packages(engine, None, answer))
        return tuple(simulated)
    asked = [
        engine_packages.ask_engine_python(
            host, e.engine, e.python, registry.get_engine(e.engine).packages, PACKAGES_S
        )
        for e in engines
        if e.path and e.python and registry.get_engine(e.engine).packages
    ]
    return tuple(await asyncio.gather(*asked))
