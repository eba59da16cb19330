"""A lock at a clearly different clock for a moment, under load: whether the clock follows locks at all. The probe is a
setting like any other, with journal and guard; what was on before is set again after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from workbench.gpu.settings.contrast import CONTRAST_MHZ, LOCKS, Clock, ContrastEvidence
from workbench.model.errors import SettingsError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.settings import ClockRange, GpuSettings, InForce
from workbench.session.sweep_gpu import Start, give_back, start_of
from workbench.session.sweep_run import undisturbed

if TYPE_CHECKING:
    from workbench.gpu.settings.proof import Proof
    from workbench.model.gpu import GpuInfo
    from workbench.model.settings import SettingCommand
    from workbench.session.driving import Driven
    from workbench.session.guarding import Guarding
    from workbench.session.meter import Meter

PROBE_S = 2.0
RISE_S = 1.0  # before it counts, as in any load
Probes: TypeAlias = Mapping[str, Mapping[int, GpuSettings]]  # setting -> GPU -> the lock that is tried
LOWER = 0.75  # of the clock that is seen: a probe never makes a card hotter


def unsure(proofs: Sequence[Proof]) -> tuple[Proof, ...]:
    return tuple(p for p in proofs if p.in_force is InForce.CONSISTENT and p.setting in LOCKS)


def chosen(infos: Sequence[GpuInfo], proofs: Sequence[Proof]) -> tuple[Probes, tuple[str, ...]]:
    """The other lock of each lock in `proofs`, and why one has none."""
    found: dict[str, dict[int, GpuSettings]] = {}
    notes: list[str] = []
    by_index = {info.index: info for info in infos}
    for proof in proofs:
        mhz = probe_mhz(by_index.get(proof.gpu_index), proof.setting, proof.observed)
        if mhz is None:
            notes.append(f"{proof.where}: no probe of {proof.setting}: the card has no clearly lower clock")
        else:
            lock = GpuSettings(**{proof.setting: ClockRange(mhz, mhz)})  # type: ignore[arg-type]
            found.setdefault(proof.setting, {})[proof.gpu_index] = lock
    return found, tuple(notes)


async def commands_of(session: Guarding, probes: Probes) -> Sequence[SettingCommand]:
    """What the probes run, and what sets the locks of before again."""
    found: list[SettingCommand] = []
    for setting, wanted in probes.items():
        start = await start_of(session, setting, tuple(wanted))
        found += await session.plan_gpus({str(gpu): one for gpu, one in wanted.items()})
        found += await session.plan_gpus({str(gpu): one.settings for gpu, one in start.items()})
    return found


async def probed(
    session: Guarding,
    meter: Meter,
    probes: Probes,
    load: Callable[[float], Awaitable[Driven]],
    known: ContrastEvidence,
    password: str | None,
) -> tuple[list[Clock], tuple[str, ...]]:
    """The clocks under probes, and why one was not made."""
    clocks: list[Clock] = []
    notes: list[str] = []
    for setting, wanted in probes.items():
        try:
            clocks += await _one(session, meter, setting, wanted, load, known, password)
        except SettingsError as error:
            notes.append(f"no probe of {setting}: {error.message}")
    return clocks, tuple(notes)


def probe_mhz(info: GpuInfo | None, setting: str, seen_mhz: float | None) -> int | None:
    """The supported clock next to LOWER of what is seen; None where none is clearly below it."""
    if info is None or seen_mhz is None:
        return None
    steps = info.supported_memory_mhz if setting == "memory_clocks" else info.supported_sm_mhz
    lower = [mhz for mhz in steps if mhz < seen_mhz - 2 * CONTRAST_MHZ]
    return min(lower, key=lambda mhz: abs(mhz - LOWER * seen_mhz)) if lower else None


async def _one(
    session: Guarding,
    meter: Meter,
    setting: str,
    wanted: Mapping[int, GpuSettings],
    load: Callable[[float], Awaitable[Driven]],
    known: ContrastEvidence,
    password: str | None,
) -> tuple[Clock, ...]:
    start = await start_of(session, setting, tuple(wanted))
    session.attend()  # a probe that is killed is one whose heartbeat stops
    try:
        report = await session.apply_gpus({str(gpu): one for gpu, one in wanted.items()}, password=password)
        failed = next((o for o in report.outcomes if not o.ok), None)
        if failed is not None:
            raise SettingsError(f"{failed.command.where}: {failed.message}", host=session.host.name)
        driven = await load(RISE_S + PROBE_S)
        return meter.clocks(driven.t0_s, driven.t1_s, session.state.alterations, known)
    finally:
        await undisturbed(_back(session, start, password))


async def _back(session: Guarding, start: dict[int, Start], password: str | None) -> None:
    for gpu, one in start.items():
        why = "the host is out of reach"
        with suppress(WorkbenchError):
            why = await give_back(session, gpu, one, password)
        if why:
            text = f"GPU{gpu}: the lock of before the probe is not on again ({why})"
            session.notify(Level.ERROR, text, "workbench gpu revert; its guard reverts it too")
