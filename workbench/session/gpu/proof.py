"""Proof that altered GPU settings are in force: the running server is loaded for some seconds, and
the readings under that load are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.gpu.settings.disturbance import lock_change_texts
from workbench.gpu.settings.proof import assess_effects_of_settings
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.model.lazy_dataclass import dataclass
from workbench.model.settings import HOST_INDEX, label_of, setting_of
from workbench.session.bench.gpu_meter import Meter
from workbench.session.bench.sustained_load import DrivenLoad, drive_load
from workbench.session.conditions import digest_of_load, gpu_indices_of_plan
from workbench.session.gpu.clock_probe import (
    ClockProbe,
    choose_probes_and_notes,
    proofs_needing_probe,
)
from workbench.session.state import VERIFYING_SETTINGS, BenchState

if TYPE_CHECKING:
    from workbench.gpu.settings.proof import Proof
    from workbench.model.bench import BenchProgress
    from workbench.model.setting_records import Alteration, SettingCommand
    from workbench.session.bench.benchmark_load import BenchmarkLoad
    from workbench.session.bench.server_load import ServerLoad
    from workbench.session.gpu.clock_probe import Probes
    from workbench.session.gpu.control import GpuControl
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.state_holder import StateHolder

DEFAULT_VERIFY_S = 8.0
# keeps a GPU busy all the time
GPU_FILLING_LOAD = {"concurrency": 32, "max_tokens": 256, "input_tokens": 128}
NOTHING_TO_VERIFY = "nothing to verify: Workbench has changed no GPU setting on this host"


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of a verification of GPU settings. `proofs` has one proof for each altered
    setting that the readings under load can judge. `unloaded` has a text for each altered setting
    on a GPU that the server does not use."""

    proofs: tuple[Proof, ...] = ()
    unloaded: tuple[str, ...] = ()
    target: str | None = None  # run id or URL; None: no setting needed a load
    seconds: float = 0.0
    output_tok_s: float | None = None
    gpus: tuple[int, ...] = ()
    simulated: bool = False
    notes: tuple[str, ...] = ()  # why a probe was not made

    @property
    def verdict_lines(self) -> tuple[str, ...]:
        """The outcome of the verification as lines for the user: first one about each setting, then
        warnings about whole GPUs."""
        verdicts: list[str] = []
        warnings: list[str] = []
        for proof in self.proofs:
            verdicts.append(f"{proof.gpu_or_host_name}: {proof.text}")
            for trap in proof.traps:
                if trap.text not in proof.text:
                    warnings.append(f"{proof.gpu_or_host_name}: {trap.text}")
        found = dict.fromkeys((*verdicts, *self.unloaded, *self.notes, *warnings))
        return tuple(found) or (NOTHING_TO_VERIFY,)

    @property
    def trap_source_texts(self) -> tuple[str, ...]:
        """The published sources of the traps in the proofs, each once."""
        return tuple(
            dict.fromkeys(source for p in self.proofs for t in p.traps for source in t.sources)
        )


class GpuVerifier:
    """Verifies the altered GPU settings of the host. A verification shows its load in `state.bench`
    and its findings on the rows of the GPUs."""

    def __init__(
        self, core: StateHolder, telemetry: TelemetryWatch, gpu: GpuControl, load: ServerLoad
    ) -> None:
        self._core, self._telemetry, self._gpu, self._load = core, telemetry, gpu, load
        self._probe = ClockProbe(core, telemetry, gpu)
        self._open: Probes = {}  # the probes that would decide what the last load left open

    async def verify_and_report_lines(
        self, seconds: float = DEFAULT_VERIFY_S, *, probe: bool = False, password: str | None = None
    ) -> Sequence[str]:
        """Load the selected run, or else the newest READY one, for `seconds` to check which altered
        GPU settings are in force. Return the findings as lines. With `probe`, also run the probes
        whose commands `probe_commands` returned."""
        probes, self._open = self._open, {}
        found = await self.verify_alterations(
            seconds, probe=probes if probe else False, password=password
        )
        if not probe and found.proofs:
            infos = (await self._telemetry.get_recent_reading()).infos
            self._open, _ = choose_probes_and_notes(infos, proofs_needing_probe(found.proofs))
        return found.verdict_lines

    async def probe_commands(self) -> Sequence[SettingCommand]:
        """Return the commands of further probes, short tries of a lower clock lock, for the locks
        on which the last verification proved nothing. () if there is no such lock."""
        return await self._probe.probe_commands(self._open)

    async def verify_alterations(
        self,
        seconds: float = DEFAULT_VERIFY_S,
        run_id: str | None = None,
        url: str | None = None,
        *,
        probe: bool | Probes = False,
        password: str | None = None,
        **bench: Any,
    ) -> Verification:
        """Load a server (by default the selected run, or else the newest READY one) for `seconds`,
        and judge by the readings whether each altered GPU setting is in force. Without an altered
        setting there is no load and no proof; if none needs a load and no server is given, a
        reading is enough. With `probe`, a lower clock is tried for each clock lock on which this
        load proves nothing: the given probes, or suitable ones if `probe` is True. `bench` has
        fields of BenchSpec, and `password` is for sudo."""
        await self._gpu.alterations.read_altered_settings()
        altered = self._core.state.alterations
        if not altered:
            return Verification(simulated=self._core.state.simulated)
        is_load_needed = any(setting_of(a.setting).proof != "reading" for a in altered)
        if not is_load_needed and run_id is None and url is None:
            return await self._verify_by_reading(altered)
        with self._core.show_as_busy(VERIFYING_SETTINGS):
            async with self._load.open_load_on_server(
                run_id, url, {**GPU_FILLING_LOAD, **bench}
            ) as load:
                found = await self._verify_under_load(seconds, load, altered, probe, password)
        await self._gpu.gpu_evidence.show_proofs_on_gpus(found.proofs)
        findings = "; ".join(p.short for p in found.proofs if p.short)
        self._core.record_command(
            f"workbench gpu verify {found.target} --seconds {seconds:g}", findings
        )
        return found

    async def _verify_by_reading(self, altered: Sequence[Alteration]) -> Verification:
        proofs = assess_effects_of_settings(altered, (), await read_telemetry_once(self._core.host))
        await self._gpu.gpu_evidence.show_proofs_on_gpus(proofs)
        self._core.record_command("workbench gpu verify", "; ".join(p.text for p in proofs))
        return Verification(proofs, simulated=self._core.state.simulated)

    async def _verify_under_load(
        self,
        seconds: float,
        load: BenchmarkLoad,
        altered: Sequence[Alteration],
        probe: bool | Probes,
        password: str | None,
    ) -> Verification:
        self._core.update(
            bench=BenchState(running=True, spec=load.spec, last_id=self._core.state.bench.last_id)
        )
        try:
            async with Meter(self._core.host) as meter:
                return await self._verify_with_meter(meter, seconds, load, altered, probe, password)
        finally:
            self._core.update(bench=replace(self._core.state.bench, running=False))

    async def _verify_with_meter(
        self,
        meter: Meter,
        seconds: float,
        load: BenchmarkLoad,
        altered: Sequence[Alteration],
        probe: bool | Probes,
        password: str | None,
    ) -> Verification:
        def show_progress(progress: BenchProgress) -> None:
            self._core.update(bench=replace(self._core.state.bench, progress=progress))

        async def run_load(load_s: float) -> DrivenLoad:
            return await drive_load(
                load.spec, load.env, load.cancel, lambda so_far_s: so_far_s >= load_s, show_progress
            )

        alterations, evidence = self._gpu.alterations, self._gpu.gpu_evidence
        known = await evidence.read_clocks_of_recent_loads(digest_of_load(load.spec, load.server))
        locks, driven = alterations.active_clock_locks, await run_load(seconds)
        await alterations.read_altered_settings()
        known = replace(known, others=self._core.state.others)
        infos = meter.latest_reading.infos if meter.latest_reading else ()
        gpus = gpu_indices_of_plan(load.server.plan, infos)
        used = [a for a in altered if a.gpu_index in (*gpus, HOST_INDEX)]
        span = driven.t0_s, driven.t1_s
        notes = lock_change_texts(locks, alterations.active_clock_locks, gpus)
        known = replace(known, clocks=(), shown=()) if notes else known
        proofs = meter.assess_settings_in_force(*span, used, known)
        clocks = [] if notes else list(meter.clocks_under_load(*span, altered, known))
        if probe and not notes and (open_proofs := proofs_needing_probe(proofs)):
            probes, skipped = (
                choose_probes_and_notes(infos, open_proofs) if probe is True else (probe, ())
            )
            tried, failed = await self._probe.probe_clocks_and_failure_texts(
                meter, probes, run_load, known, password
            )
            notes = (*skipped, *failed)
            clocks += tried
            proofs = meter.assess_settings_in_force(*span, used, known.with_clocks(tried))
        if clocks:
            await evidence.add_and_store_clocks(known, clocks, proofs)
        return Verification(
            proofs,
            tuple(unused_gpu_text(a) for a in altered if a not in used),
            load.run_id_or_url if load.server.status else f"--url {load.spec.url}",
            round(driven.t1_s - driven.t0_s, 1),
            driven.output_tok_s,
            gpus,
            self._core.state.simulated or load.server.simulated,
            notes,
        )


def unused_gpu_text(altered: Alteration) -> str:
    """Return the sentence that a setting was not checked, because the server does not use its
    GPU."""
    return (
        f"GPU{altered.gpu_index}: {label_of(altered.setting)} was not checked, because the server does not use "
        "this GPU"
    )
