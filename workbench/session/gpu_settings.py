"""GPU settings: planned, applied with a journal, reverted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.model.errors import HostError, SettingsError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.session.serving import Serving

if TYPE_CHECKING:  # loaded after the first frame, as in all modules of the session
    from workbench.gpu.settings.contrast import Clock, ContrastEvidence
    from workbench.gpu.settings.journal import Journal, Record
    from workbench.gpu.settings.preset_settings import Carried
    from workbench.gpu.settings.proof import Proof
    from workbench.gpu.settings.rights import Rights
    from workbench.gpu.settings.shared_register import LockChange
    from workbench.hosts.base import Host
    from workbench.model.gpu import Telemetry
    from workbench.model.preset import Preset
    from workbench.model.settings import Alteration, Drift, GpuSettings, SettingCommand, SettingsReport
    from workbench.session.state import PlanView


OFFER = "GPU settings that Workbench made are still on: r gives back what was before"
MADE_BY = {"dead": "who is gone", "alive": "another Workbench, which runs", "elsewhere": "from another machine"}


class Settings(Serving):
    _rights: Rights | None = None
    _looked_at: Host | None = None  # whose findings of before were read
    _looked_up: frozenset[Drift] = frozenset()  # differ from the journal, while nobody was changing it
    _looking_up = False
    register_dir: str | None = None  # where Workbenches of this host tell each other what they do
    _read_at = 0.0  # when the alterations were read last
    _lock_changes: frozenset[LockChange] = frozenset()  # of all Workbenches, as they were told then
    _carried: Carried = ()  # of the loaded preset

    async def rights(self) -> Rights:
        """Looked at again as long as they are not whole: a line in sudoers may have been added."""
        if self._rights is None or self._rights.refusal or self._rights.by_sudoers:
            from workbench.gpu.settings.rights import rights_on

            self._rights = await rights_on(self.host)
            self.update_host(
                can_change_gpus=self._rights.refusal, user=self._rights.user, sudo_password=self._rights.sudo_password
            )
        return self._rights

    async def _rights_with(self, password: str | None) -> Rights:
        """Kept by nobody: a password lives as long as the change that it is given for."""
        rights = await self.rights()
        if password is None:
            return rights
        from workbench.gpu.settings.rights import with_password

        return await with_password(self.host, rights, password)

    async def sudoers(self) -> str:
        """Write the file that lets this user change and revert every GPU setting of the host. SettingsError where sudo
        is not what decides."""
        from workbench.gpu.settings.apply import governors_on
        from workbench.gpu.settings.sudoers import sudoers

        rights = await self.rights()
        if not rights.by_sudoers:
            why = rights.refusal or "GPU settings can be changed here without sudo"
            raise SettingsError(f"no file for sudoers helps: {why}", host=self.host.name)
        reading, governors = await self.reading(), await governors_on(self.host)
        uuids = [info.uuid for info in reading.infos if info.uuid]
        return sudoers(rights.user, rights.nvidia_smi, rights.tee, uuids, sorted(governors.by_core), governors.sysfs)

    async def plan_gpu(self, wanted: GpuSettings, gpu: int | str | None = None) -> Sequence[SettingCommand]:
        return await self.plan_gpus({"all" if gpu is None else str(gpu): wanted})

    async def plan_gpus(
        self, wanted: Mapping[str, GpuSettings], rights: Rights | None = None
    ) -> Sequence[SettingCommand]:
        """`wanted` by GPU: an index, a UUID or "all"."""
        from workbench.gpu.settings.apply import governors_on, plan

        governors = await governors_on(self.host) if any(w.governor for w in wanted.values()) else None
        reading, rights = await self.reading(), rights or await self.rights()
        try:
            return plan(wanted, reading, rights, governors)
        except WorkbenchError as error:
            error.host = error.host or self.host.name
            raise

    async def apply_gpu(
        self,
        wanted: GpuSettings,
        gpu: int | str | None = None,
        *,
        dry_run: bool = False,
        trial_s: float | None = None,
        password: str | None = None,
    ) -> SettingsReport:
        selector = "all" if gpu is None else str(gpu)
        return await self.apply_gpus({selector: wanted}, dry_run=dry_run, trial_s=trial_s, password=password)

    async def apply_gpus(
        self,
        wanted: Mapping[str, GpuSettings],
        *,
        dry_run: bool = False,
        trial_s: float | None = None,
        password: str | None = None,
    ) -> SettingsReport:
        """One plan for several GPUs: applied whole, or given back."""
        rights = await self._rights_with(password)
        commands = await self.plan_gpus(wanted, rights)
        with self.busy("applying GPU settings"):
            report = await self._apply(commands, rights, dry_run=dry_run, trial_s=trial_s)
        if not dry_run:
            await self._settled(report)
        return report

    async def _apply(
        self, commands: Sequence[SettingCommand], rights: Rights, *, dry_run: bool, trial_s: float | None
    ) -> SettingsReport:
        """guarding.py puts a guard over it."""
        from workbench.gpu.settings.apply import apply

        return await apply(self.host, commands, dry_run=dry_run, rights=rights)

    async def revert_gpu(
        self,
        gpu: int | str | None = None,
        *,
        dry_run: bool = False,
        password: str | None = None,
        foreign: str | None = None,
    ) -> SettingsReport:
        """`foreign`: a value that someone else has set since: "keep" it, set "ours" again, or give the "original" back;
        without it such a setting is left alone."""
        from workbench.gpu.settings.apply import revert

        with self.busy("reverting GPU settings"):
            rights = await self._rights_with(password)
            report = await revert(self.host, gpu, dry_run=dry_run, rights=rights, foreign=foreign)
        if not dry_run:
            await self._settled(report)
        return report

    def preset_gpu_settings(self, preset_id: str | None = None) -> Sequence[tuple[str, GpuSettings, str]]:
        """(selector, settings, reason) that a preset carries: the loaded one, or the one that is named. Nothing is
        applied by this, nor by loading. Empty where none is loaded, or it carries none."""
        if preset_id is None:
            preset_id = self._editor.plan.preset_id if self._editor is not None else None
        return [] if preset_id is None else carried(self.preset(preset_id))

    def unapplied(self, preset_id: str | None, telemetry: Telemetry | None) -> tuple[str, ...]:
        """What of a preset's GPU settings is not set; nothing of a preset that is gone."""
        from workbench.gpu.settings.preset_settings import not_applied

        with suppress(WorkbenchError):
            wanted = self.preset_gpu_settings(preset_id) if preset_id else ()
            return not_applied(wanted, telemetry, self.state.alterations) if wanted else ()
        return ()

    async def look_at_carried(self) -> PlanView:
        """The plan, with the GPU settings of its preset held against a reading."""
        if self.state.telemetry is None and self.preset_gpu_settings():
            with suppress(WorkbenchError):
                await self.read_alterations()
                telemetry = await self.reading()
                self.update(unapplied=self.unapplied(self.editor.plan.preset_id, telemetry))
        return self.plan_view()

    def plan_view(self) -> PlanView:
        view = super().plan_view()
        if not self.state.unapplied:
            return view
        text = f"GPU settings of the preset: not applied ({', '.join(self.state.unapplied)})"
        fix = f"g applies them, or: workbench gpu set --preset {view.plan.preset_id}"
        return replace(view, findings=(*view.findings, Finding(Level.WARN, "gpu.not-applied", text, fix=fix)))

    def show_plan(self) -> None:
        self._carried = ()
        with suppress(WorkbenchError):
            self._carried = self.preset_gpu_settings()
        self._hold_carried()
        super().show_plan()

    def _hold_carried(self) -> bool:
        """Whether it changed what of the loaded preset's settings is not in force."""
        if not self._carried and not self.state.unapplied:
            return False
        from workbench.gpu.settings.preset_settings import not_applied

        now = not_applied(self._carried, self.state.telemetry, self.state.alterations)
        changed = now != self.state.unapplied
        if changed:
            self.update(unapplied=now)
        return changed

    async def gpu_processes(self) -> Sequence[tuple[int, int, str, bool]]:
        """(GPU index, pid, name, ours) of what runs on the GPUs; ours: of runs that Workbench started on this host. A
        process of another PID namespace has no name here."""
        from workbench.hosts import detached_process

        reading = await self.reading()
        runs = await detached_process.list_runs(self.host, f"{await self.host.state_dir()}/runs")
        ours = {pid for run in runs for pid in run.members}
        return [
            (sample.index, process.pid, process.name or "name not known here", process.pid in ours)
            for sample in reading.gpus
            for process in sample.processes or ()
        ]

    async def gpu_journal(self) -> tuple[Sequence[Record], Sequence[Mapping[str, Any]]]:
        """What Workbench changed on this host, with its owners' state and what a restart took away; and what was done,
        oldest first. A reload of the driver shows where the GPUs are being read."""
        state, told = await self._journal()
        return told, state.log

    async def _journal(self) -> tuple[Journal, Sequence[Record]]:
        """The journal, with what other Workbenches claim that is still in force, and what has become of its entries."""
        from workbench.gpu.settings import journal

        state, energy_j = await journal.read(self.host), self._energy_j()
        told = state.records(energy_j)
        if any(r.gone is not None for r in told):  # the reading may be older than the setting: ask again
            state, energy_j = await journal.read(self.host), await self._energy_now_j()
            told = state.records(energy_j)
        return replace(state, others=state.without_gone(energy_j).others), told

    async def standing(self, commands: Sequence[SettingCommand]) -> Sequence[SettingCommand]:
        """The commands of a plan, with a note where the value that is there is another's."""
        from workbench.gpu.settings.apply import standing

        return await standing(self.host, commands)

    async def _settled(self, report: SettingsReport) -> None:
        self._made = None  # a reading of before
        for outcome in (*report.outcomes, *report.rolled_back):
            self.record(outcome.command.typed, "ok" if outcome.ok else outcome.message)
        with suppress(HostError):  # the link was lost: what was done is told all the same, and read once it is back
            await self.read_alterations()
            self.update(offers=())  # the person has just seen to them
        if self._source is not None:
            await self._source.refresh()

    async def known_clocks(self, load: str) -> ContrastEvidence:
        """What the host's GPUs have shown under loads of the last day."""
        from workbench.gpu.settings import contrast

        return replace(await contrast.read(self.host), load=load, others=self.state.others)

    @property
    def locks_on(self) -> tuple[Alteration, ...]:
        """Of this host's GPUs, whoever set them."""
        from workbench.gpu.settings.drift import locks_on

        return locks_on(self.state.alterations, self.state.others)

    async def keep_clocks(
        self, known: ContrastEvidence, clocks: Sequence[Clock], proofs: Sequence[Proof]
    ) -> ContrastEvidence:
        """Add what a load has shown: the clocks, and which locks a contrast has proved."""
        from workbench.gpu.settings import contrast
        from workbench.model.settings import InForce

        proved = {(p.gpu_index, p.setting) for p in proofs if p.in_force is InForce.YES and p.setting in contrast.LOCKS}
        shown = [a for a in self.state.alterations if (a.gpu_index, a.setting) in proved]
        known = known.with_clocks(clocks).with_shown(shown)
        if clocks or shown:
            with suppress(HostError):  # the next one has less to compare with
                await contrast.write(self.host, known)
        return known

    async def take_proofs(self, proofs: Sequence[Proof]) -> None:
        """What a load has shown stands on each GPU's row until its settings change, here and where one looks next."""
        from workbench.gpu.settings import load_findings as findings
        from workbench.model.settings import InForce

        shown = {(p.gpu_index, p.short) for p in proofs if p.short and p.gpu_index >= 0}  # the host has no row
        kept = [f for f in self.state.gpu_findings if f[0] not in {index for index, _ in shown}]
        self.update(gpu_findings=(*kept, *sorted(shown)))
        for proof in proofs:
            if proof.in_force in (InForce.NO_EFFECT, InForce.CAPPED, InForce.CHANGED):
                self.notify(Level.WARN, f"{proof.where}: {proof.text}", "r gives back what was before")
        if shown:
            with suppress(HostError):  # the result has them too
                await findings.keep(self.host, self.state.gpu_findings, self.state.alterations)

    async def read_alterations(self) -> None:
        """What is altered here, whose it is where it is not ours, and what a restart has taken away."""
        from workbench.gpu.settings.apply import alteration, alteration_of
        from workbench.gpu.settings.load_findings import kept_of

        state, records = await self._journal()
        self.register_dir = state.register.directory
        found = tuple(alteration(r) for r in records if r.gone is None)
        changed = {a.gpu_index for a in set_difference(found, self.state.alterations)}
        findings = tuple(f for f in self.state.gpu_findings if f[0] not in changed)
        if found and self._looked_at is not self.host:  # what an earlier Workbench, or a command, has found
            findings, self._looked_at = await kept_of(self.host, found), self.host
        self.update(
            alterations=found,
            others=tuple(alteration_of(claim) for claim in state.others),
            others_problem=state.register.problem,
            drift=tuple(d for d in self.state.drift if d.setting in {a.setting for a in found}),
            offers=offers(records),
            gpu_findings=findings,
        )
        self._read_at, self._lock_changes = time.monotonic(), state.register.changes
        if gone := [r for r in records if r.gone is not None]:
            await self._tell_gone(gone)

    def _on_telemetry(self, telemetry: Telemetry) -> None:
        super()._on_telemetry(telemetry)
        self._compare(telemetry)
        if self._hold_carried():
            super().show_plan()

    def _compare(self, telemetry: Telemetry) -> None:
        """Look up a value that is not as journalled first, since a command or the guard may be changing both; it
        counts where the next reading shows it as well."""
        if not self.state.alterations:
            self._looked_up = frozenset()
            self.update(drift=())
            return
        if any("GPU settings" in work for work in self.state.busy):  # what was found stands until that is done
            self._looked_up = frozenset()
            return
        from workbench.gpu.settings.drift import drifts

        found = drifts(self.state.alterations, self.state.others, telemetry)
        lasting = tuple(d for d in found if d in self._looked_up)
        self._looked_up = frozenset(lasting)
        if len(lasting) < len(found) and not self._looking_up:
            self._looking_up = True
            self.spawn(self._look_up(frozenset(found)))
        for one in lasting:
            if one not in self.state.drift:
                text = f"{self.host.name}: {named(one.gpu_index)} {one.setting} {one.text}"
                self.notify(Level.WARN, text, "r asks what is to become of it")
        if lasting != self.state.drift:
            self.update(drift=lasting)

    async def cautions(self) -> Sequence[str]:
        """What to know before the settings are left on without a guard."""
        from workbench.gpu.settings.drift import cautions
        from workbench.gpu.telemetry.source import read_once

        return cautions(self.state.alterations, self.state.others, await read_once(self.host))

    async def _look_up(self, found: frozenset[Drift]) -> None:
        from workbench.gpu.settings.journal import is_being_changed

        try:
            if await is_being_changed(self.host):
                return  # the next reading asks again
            await self.read_alterations()
            self._looked_up |= found
        except WorkbenchError:  # the link is lost, which its state tells
            pass
        finally:
            self._looking_up = False

    async def _tell_gone(self, gone: Sequence[Record]) -> None:
        """Once: it is written down as told, where that can be done."""
        from workbench.gpu.settings.apply import forget_gone
        from workbench.gpu.settings.revert import shown

        what = ", ".join(f"{named(r.entry.gpu_index)} {r.entry.setting} {shown(r.entry.now)}" for r in gone)
        self.notify(Level.INFO, f"GPU settings of before are gone, since {gone[0].gone}: {what}")
        with suppress(WorkbenchError):
            await forget_gone(self.host, await self._energy_now_j())

    def _energy_j(self) -> dict[str, float]:
        return _energies(self.state.telemetry)

    async def _energy_now_j(self) -> dict[str, float]:
        """Read after the journal: a counter that is behind it then has begun anew."""
        from workbench.gpu.telemetry.source import read_once

        with suppress(WorkbenchError):
            return _energies(await read_once(self.host))
        return {}


def _energies(telemetry: Telemetry | None) -> dict[str, float]:
    gpus = telemetry.gpus if telemetry else ()
    return {gpu.uuid: gpu.energy_j for gpu in gpus if gpu.energy_j is not None}


def named(gpu_index: int) -> str:
    return "host" if gpu_index < 0 else f"GPU{gpu_index}"


def offers(records: Sequence[Record]) -> tuple[str, ...]:
    """What to ask at start: whether to give back what a dead Workbench left on. Of one that lives it is said whose the
    settings are; what was left on deliberately is not asked about again."""
    on = [r for r in records if r.gone is None and r.entry.state != "kept" and r.owner != "this"]
    found = []
    if any(r.owner == "dead" for r in on):
        found.append(OFFER)
    for owner in ("alive", "elsewhere"):
        who = sorted({f"{r.entry.who}, process {r.entry.owner.get('pid')}" for r in on if r.owner == owner})
        if who:
            found.append(f"GPU settings are on by {' and '.join(who)} ({MADE_BY[owner]})")
    return tuple(found)


def carried(preset: Preset) -> list[tuple[str, GpuSettings, str]]:
    """A preset's settings, by GPU; the governor is the host's, whatever GPU is named."""
    from workbench.model.settings import ClockRange, GpuSettings

    return [
        (
            str(entry.gpu),
            GpuSettings(
                persistence=entry.persistence,
                power_limit_w=entry.power_limit_w,
                gpu_clocks=ClockRange(*entry.lock_gpu_clocks_mhz) if entry.lock_gpu_clocks_mhz else None,
                memory_clocks=ClockRange(*entry.lock_memory_clocks_mhz) if entry.lock_memory_clocks_mhz else None,
                governor=entry.governor,
            ),
            entry.reason or "",
        )
        for entry in preset.gpu_settings
    ]


def set_difference(a: Sequence[Alteration], b: Sequence[Alteration]) -> list[Alteration]:
    """What is in one of them only: the settings that have changed."""
    known = [(x.gpu_index, x.setting, x.now, x.since_unix_s) for x in (*a, *b)]
    return [x for x, key in zip((*a, *b), known, strict=True) if known.count(key) == 1]
