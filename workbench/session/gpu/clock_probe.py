"""Probes of clock locks. A probe sets a clearly lower lock for 2 s under load, which shows whether
the clock follows locks at all, and then sets the previous lock again. If Workbench is killed
meanwhile, a guard process on the host does that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from workbench.gpu.settings.clock_contrasts import MIN_CONTRAST_MHZ, ContrastEvidence, MeasuredClock
from workbench.model.errors import SettingsError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.setting_commands import is_clock_lock
from workbench.model.setting_records import InForce
from workbench.model.settings import ClockRange, ClockSetting, GpuSettings, label_of, setting_of
from workbench.session.gpu.previous_settings import (
    PreviousValues,
    read_previous_values,
    restore_and_return_problem,
)
from workbench.session.uninterrupted import finish_despite_cancellation

if TYPE_CHECKING:
    from workbench.gpu.settings.proof import Proof
    from workbench.model.gpu import GpuInfo
    from workbench.model.setting_records import SettingCommand
    from workbench.session.bench.gpu_meter import Meter
    from workbench.session.bench.sustained_load import DrivenLoad
    from workbench.session.gpu.control import GpuControl
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.state_holder import StateHolder

PROBE_S = 2.0
CLOCK_RISE_S = 1.0  # of a load, in which clocks still rise
PROBE_CLOCK_SHARE = 0.75  # of the observed clock: a probe never makes a GPU hotter
Probes: TypeAlias = Mapping[str, Mapping[int, GpuSettings]]  # setting -> GPU -> the lock to try


def proofs_needing_probe(proofs: Sequence[Proof]) -> tuple[Proof, ...]:
    """Return the proofs that only a probe can decide: the clock under load agrees with the lock,
    but the clock might be the same without the lock."""
    return tuple(p for p in proofs if p.in_force is InForce.CONSISTENT and is_clock_lock(p.setting))


def choose_probes_and_notes(
    infos: Sequence[GpuInfo], proofs: Sequence[Proof]
) -> tuple[Probes, tuple[str, ...]]:
    """Return (probes, notes). The probes are the lower clock locks to try, by setting and GPU
    index, one for each lock in `proofs`. The notes name the GPUs that support no suitable lock."""
    found: dict[str, dict[int, GpuSettings]] = {}
    notes: list[str] = []
    by_index = {info.index: info for info in infos}
    for proof in proofs:
        mhz = choose_probe_clock_mhz(by_index.get(proof.gpu_index), proof.setting, proof.observed)
        if mhz is None:
            notes.append(
                f"{proof.gpu_or_host_name}: {label_of(proof.setting)} was not probed: the GPU has no "
                "clearly lower clock"
            )
        else:
            lock = GpuSettings({proof.setting: ClockRange(mhz, mhz)})
            found.setdefault(proof.setting, {})[proof.gpu_index] = lock
    return found, tuple(notes)


def choose_probe_clock_mhz(
    info: GpuInfo | None, setting: str, observed_mhz: float | None
) -> int | None:
    """Return the supported clock in MHz that is nearest to 75 % of the observed clock. None if no
    supported clock is clearly below the observed one."""
    entry = setting_of(setting)
    if info is None or observed_mhz is None or not isinstance(entry, ClockSetting):
        return None
    steps: tuple[int, ...] = getattr(info, entry.supported)
    lower = [mhz for mhz in steps if mhz < observed_mhz - 2 * MIN_CONTRAST_MHZ]
    if not lower:
        return None
    return min(lower, key=lambda mhz: abs(mhz - PROBE_CLOCK_SHARE * observed_mhz))


def _key_by_gpu_text(locks: Mapping[int, GpuSettings]) -> dict[str, GpuSettings]:
    """Return locks by the texts with which changes of settings name GPUs: "0" for GPU 0."""
    return {str(gpu): lock for gpu, lock in locks.items()}


class ClockProbe:
    """Runs probes of clock locks: short tries of a lower lock under load. A probe that fails gives
    a note with the reason."""

    def __init__(self, core: StateHolder, telemetry: TelemetryWatch, gpu: GpuControl) -> None:
        self._core, self._telemetry, self._gpu = core, telemetry, gpu

    async def probe_commands(self, probes: Probes) -> Sequence[SettingCommand]:
        """Return the commands that a run of `probes` would execute: for each setting those that set
        the probes' locks, then those that set the previous locks again."""
        found: list[SettingCommand] = []
        for setting, wanted in probes.items():
            previous = await self._previous_values(setting, wanted)
            found += await self._gpu.plan_changes_by_gpu(_key_by_gpu_text(wanted))
            found += await self._gpu.plan_changes_by_gpu(
                {str(gpu): one.settings for gpu, one in previous.items()}
            )
        return found

    async def probe_clocks_and_failure_texts(
        self,
        meter: Meter,
        probes: Probes,
        load: Callable[[float], Awaitable[DrivenLoad]],
        known: ContrastEvidence,
        password: str | None,
    ) -> tuple[list[MeasuredClock], tuple[str, ...]]:
        """Run the probes. Return (the GPUs' clocks under the probes, a note for each probe that
        failed). `meter` reads the GPUs, `load(seconds)` loads the server, and `known` has the
        clocks under earlier loads."""
        clocks: list[MeasuredClock] = []
        notes: list[str] = []
        for setting, wanted in probes.items():
            try:
                clocks += await self._probe_setting(meter, setting, wanted, load, known, password)
            except SettingsError as error:
                notes.append(f"{label_of(setting)} was not probed: {error.message}")
        return clocks, tuple(notes)

    async def _previous_values(
        self, setting: str, wanted: Mapping[int, GpuSettings]
    ) -> dict[int, PreviousValues]:
        return await read_previous_values(
            self._core.host, await self._telemetry.get_recent_reading(), setting, tuple(wanted)
        )

    async def _probe_setting(
        self,
        meter: Meter,
        setting: str,
        wanted: Mapping[int, GpuSettings],
        load: Callable[[float], Awaitable[DrivenLoad]],
        known: ContrastEvidence,
        password: str | None,
    ) -> tuple[MeasuredClock, ...]:
        previous = await self._previous_values(setting, wanted)
        self._gpu.guard.start_heartbeats()  # the guard reverts the lock of a probe that is killed
        try:
            report = await self._gpu.apply_settings_by_gpu(
                _key_by_gpu_text(wanted), password=password
            )
            for outcome in report.outcomes:
                if not outcome.ok:
                    text = f"{outcome.command.gpu_or_host_name}: {outcome.message}"
                    raise SettingsError(text, host=self._core.host.name)
            driven = await load(CLOCK_RISE_S + PROBE_S)
            return meter.clocks_under_load(
                driven.t0_s, driven.t1_s, self._core.state.alterations, known
            )
        finally:
            await finish_despite_cancellation(self._restore_previous_values(previous, password))

    async def _restore_previous_values(
        self, previous: Mapping[int, PreviousValues], password: str | None
    ) -> None:
        for gpu, one in previous.items():
            why = "the host is out of reach"
            with suppress(WorkbenchError):
                why = await restore_and_return_problem(
                    self._core.host, self._gpu, gpu, one, password
                )
            if why:
                text = (
                    f"GPU{gpu}: the clock lock from before the probe could not be set again ({why})"
                )
                self._core.notify(
                    Level.ERROR,
                    text,
                    "run `workbench gpu revert` now; otherwise the guard reverts the probe's lock",
                )
