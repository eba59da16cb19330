"""GPU settings of the host: planned, applied and reverted. A journal on the host records changed
settings, and a guard process reverts them if Workbench ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from workbench.gpu.settings.alterations import warnings_without_guard
from workbench.gpu.settings.current_values import (
    CORES_NOT_READ,
    current_values_with_core_settings,
    read_core_settings,
)
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.allotment import read_gpu_allotment
from workbench.hosts.base import is_cluster
from workbench.model.errors import SettingsError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.gpu_allotment import (
    NO_ALLOTMENT,
    Allotment,
    visible_gpus_and_first_unknown_word,
)
from workbench.model.setting_commands import OF_CORES, list_core_setting_files
from workbench.model.settings import HOST, SETTINGS, label_of
from workbench.session.gpu.alterations import GpuAlterations
from workbench.session.gpu.guard import GpuGuard, check_trial_duration
from workbench.session.gpu.rights import GpuRights
from workbench.session.state import APPLYING_SETTINGS, REVERTING_SETTINGS

if TYPE_CHECKING:
    from workbench.gpu.settings.rights import Rights
    from workbench.hosts.cluster import ClusterHost
    from workbench.model.gpu import GpuInfo, Telemetry
    from workbench.model.setting_records import SettingCommand, SettingsReport
    from workbench.model.settings import GpuSettings
    from workbench.session.gpu.evidence import GpuEvidence
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.state_holder import StateHolder
    from workbench.store.config import ConfigStore


ALL_GPUS = "all"  # in place of the index or UUID of a GPU
_GPU_AND_SETTING = attrgetter("gpu_uuid", "setting")  # of an alteration


class ProcessOnGpu(NamedTuple):
    """A process on a GPU. `is_ours` says whether Workbench started it. If the name of the process
    cannot be read, `name` says so."""

    gpu_index: int
    pid: int
    name: str
    is_ours: bool


class GpuControl:
    """Changes GPU settings of the host. Its parts are `alterations` (the settings that Workbench
    has changed), `guard` (reverts these if this program ends), `rights` (the settings that this
    user may change) and `evidence` (clocks and proofs from earlier loads)."""

    def __init__(self, core: StateHolder, config: ConfigStore, telemetry: TelemetryWatch) -> None:
        self._core, self._telemetry = core, telemetry
        self.alterations = GpuAlterations(core, telemetry)
        self.rights = GpuRights(core)
        self.guard = GpuGuard(core, config, telemetry, self.alterations, self.rights)

    @cached_property
    def gpu_evidence(self) -> GpuEvidence:
        from workbench.session.gpu.evidence import GpuEvidence

        return GpuEvidence(self._core)

    async def sudoers_file_text(self) -> str:
        """Return the text of a sudoers file that lets this user change and revert every GPU setting
        of the host. Raises SettingsError if such a file would not help."""
        from workbench.gpu.settings.sudoers import sudoers_text

        rights = await self.rights.load_rights()
        if not rights.by_sudoers:
            why = rights.refusal or "GPU settings can be changed here without sudo"
            raise SettingsError(f"a sudoers file would not help: {why}", host=self._core.host.name)
        reading = await self._telemetry.get_recent_reading()
        cores = await read_core_settings(self._core.host)
        uuids = [info.uuid for info in reading.infos if info.uuid]
        files = [
            list_core_setting_files(key, cores.idle_states_by_core(key), cores.sysfs)
            for key in OF_CORES
        ]
        return sudoers_text(rights.user, rights.nvidia_smi, rights.tee, uuids, files)

    async def plan_setting_commands(
        self, settings: GpuSettings, gpu: int | str | None = None
    ) -> Sequence[SettingCommand]:
        """Return the commands that set `settings` on a GPU (None: on all). Raises WorkbenchError
        for a value outside the driver's limits."""
        return await self.plan_changes_by_gpu({_gpu_selector_or_all(gpu): settings})

    async def plan_changes_by_gpu(
        self, by_gpu: Mapping[str, GpuSettings], rights: Rights | None = None
    ) -> Sequence[SettingCommand]:
        """Return the commands that set the settings in `by_gpu`, whose keys name a GPU: an index, a
        UUID or "all". `rights` are the user's, read here if None. Raises WorkbenchError for a value
        outside the driver's limits."""
        from workbench.gpu.settings.plan import plan_commands

        host, cores, allotment = self._core.host, CORES_NOT_READ, NO_ALLOTMENT
        if not set(OF_CORES).isdisjoint(chain(*by_gpu.values())):
            cores = await read_core_settings(host)
        reading = await self._telemetry.get_recent_reading()
        rights = rights or await self.rights.load_rights()
        if is_cluster(host):
            reading = _select_head_gpus_in_reading(host, reading, by_gpu)
        if _has_gpu_setting(by_gpu.get(ALL_GPUS, {})):
            allotment = await read_gpu_allotment(host)
        try:
            if not allotment.is_from_scheduler:
                return plan_commands(by_gpu, reading, rights, cores)
            commands = plan_commands(
                by_gpu, _select_job_gpus_in_reading(reading, allotment), rights, cores
            )
            return _add_text_to_notes(commands, f"of all GPUs, only those that {allotment.job} has")
        except WorkbenchError as error:
            error.host = error.host or host.name
            raise

    async def apply_settings(
        self,
        settings: GpuSettings,
        gpu: int | str | None = None,
        *,
        dry_run: bool = False,
        trial_s: float | None = None,
        password: str | None = None,
    ) -> SettingsReport:
        """Set `settings` on a GPU (None: on all), with a guard process that reverts them if this
        session ends. After `trial_s` seconds the settings are reverted unless the user confirms
        them. `dry_run` changes nothing and reports the commands, and `password` goes to sudo's
        stdin only."""
        return await self.apply_settings_by_gpu(
            {_gpu_selector_or_all(gpu): settings},
            dry_run=dry_run,
            trial_s=trial_s,
            password=password,
        )

    async def apply_settings_by_gpu(
        self,
        by_gpu: Mapping[str, GpuSettings],
        *,
        dry_run: bool = False,
        trial_s: float | None = None,
        password: str | None = None,
        skipped: Collection[tuple[str, str]] = (),
        replaceable: Collection[tuple[str, str]] | None = None,
    ) -> SettingsReport:
        """Set the settings in `by_gpu`, whose keys name GPUs (index, UUID or "all"), with a guard
        process that reverts them if this session ends. If one setting fails, all are reverted, and
        after `trial_s` seconds they are reverted unless the user confirms them. `dry_run` changes
        nothing and reports the commands, and `password` goes to sudo's stdin only. `skipped` has
        (GPU UUID, key) of settings that are left as they are. `replaceable` has those whose value
        from somebody else may be replaced, None for all. Raises SettingsError if somebody else has
        set another one."""
        from workbench.gpu.settings import apply

        check_trial_duration(trial_s)
        with self._core.show_as_busy(APPLYING_SETTINGS):
            rights = await self.rights.load_rights_with_password(password)
            planned = await self.plan_changes_by_gpu(by_gpu, rights)
            commands = [
                command for command in planned if (command.gpu_uuid, command.setting) not in skipped
            ]
            if dry_run:
                return await apply.apply_commands(
                    self._core.host, commands, dry_run=True, rights=rights
                )
            report = await self.guard.apply_under_guard(commands, rights, trial_s, replaceable)
            await self._record_change_report(report)
            return report

    async def revert_settings(
        self,
        gpu: int | str | None = None,
        *,
        dry_run: bool = False,
        password: str | None = None,
        foreign: str | None = None,
        settings: Collection[str] | None = None,
    ) -> SettingsReport:
        """Restore the previous settings of a GPU (None: of all). `settings` are the keys of those
        to restore, None for all. `foreign` says what to do with a value that someone else has set
        since: "keep" that value, set "ours" again, or restore the "original". With None such a
        setting is not touched."""
        from workbench.gpu.settings import revert

        with self._core.show_as_busy(REVERTING_SETTINGS):
            rights = await self.rights.load_rights_with_password(password)
            report = await revert.revert_settings(
                self._core.host,
                gpu,
                dry_run=dry_run,
                rights=rights,
                foreign=foreign,
                settings=settings,
            )
            if not dry_run:
                await self._record_change_report(report)
            return report

    async def impossible_claim_texts(self) -> Sequence[str]:
        """Return a text about each claim of another user on a setting that this Workbench has
        altered too, if that user cannot have set the value. () without such claims; sudo is asked
        only if there are any."""
        from workbench.gpu.settings import journal, revert

        ours = set(map(_GPU_AND_SETTING, self._core.state.alterations))
        if ours.isdisjoint(map(_GPU_AND_SETTING, self._core.state.others)):
            return ()
        state = await journal.read_journal(self._core.host, with_log=False)
        rights = await self.rights.load_rights_with_password(None)
        _, found = await revert.drop_forged_claims_and_explain(self._core.host, state, rights)
        return tuple(found.values())

    async def _record_change_report(self, report: SettingsReport) -> None:
        """Record the outcomes of a change in the activity log, and read what is altered now."""
        for outcome in (*report.outcomes, *report.rolled_back):
            command, result = outcome.command, "ok" if outcome.ok else outcome.message
            if command.argv:
                self._core.record_command(command.shell_line, result)
            else:
                text = f"# {command.gpu_or_host_name} {label_of(command.setting)}: no command was needed"
                self._core.record_command(text, outcome.message or result)
        if report.recovery is not None:
            self._core.notify(Level.WARN, f"{self._core.host.name}: {report.recovery.text}")
            self._core.record_command(
                "# the journal of GPU settings was recovered", report.recovery.text
            )
        try:
            await self.alterations.read_altered_settings(after_change=True)
            self._core.update(offers=())  # the user has just seen to them
            await self._telemetry.refresh_gpu_readings()
        except Exception as error:  # the change is made, and its report must reach the user
            why = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
            self._core.record_command("# the altered settings could not be read again", why)

    async def add_notes_about_other_setters(
        self, commands: Sequence[SettingCommand]
    ) -> Sequence[SettingCommand]:
        """Return `commands`, with a note on each command whose setting was last set by another
        program."""
        from workbench.gpu.settings.apply import note_foreign_values_in_commands

        if not commands:
            return ()
        state = await self.alterations.read_altered_settings()
        reading = await self._telemetry.get_recent_reading()
        settings = {command.setting for command in commands}
        now = await current_values_with_core_settings(self._core.host, reading, settings)
        return note_foreign_values_in_commands(commands, state, now)

    async def warnings_without_guard(self) -> Sequence[str]:
        """Return warnings to show before the altered GPU settings stay on without a guard: values
        that have changed already, and settings that are easily lost."""
        state = self._core.state
        return warnings_without_guard(
            state.alterations, state.others, await read_telemetry_once(self._core.host)
        )

    async def gpu_processes(self) -> Sequence[ProcessOnGpu]:
        """Return each process on the GPUs, once for each GPU that it uses."""
        from workbench.hosts import detached_process

        host = self._core.host
        reading = await self._telemetry.get_recent_reading()
        hosts = [node.host for node in host.nodes] if is_cluster(host) else [host]
        ours: set[int] = set()
        for each in hosts:
            runs, _ = await detached_process.read_runs_and_unread_names(
                each, f"{await each.state_dir()}/runs"
            )
            ours.update(*(run.members for run in runs))
        found: list[ProcessOnGpu] = []
        for sample in reading.gpus:
            for process in sample.known_processes:
                title = "name not known here"
                if process.name or process.place:
                    title = process.title
                is_ours = not process.place and process.pid in ours
                found.append(ProcessOnGpu(sample.index, process.pid, title, is_ours))
        return found


def _select_head_gpus_in_reading(
    host: ClusterHost, reading: Telemetry, by_gpu: Iterable[str]
) -> Telemetry:
    """Return the part of a cluster's reading that comes from its first node, the head. Raises
    SettingsError if `by_gpu` names a GPU of another node, because GPU settings are changed on one
    host at a time."""
    head = host.nodes[0].name
    own = [info for info in reading.infos if info.node == head]
    uuids = {info.uuid for info in own}
    node_of_gpu: dict[str, str | None] = {}
    for info in reading.infos:
        if info.node != head:
            node_of_gpu |= dict.fromkeys({str(info.index), info.uuid, ALL_GPUS} - uuids, info.node)
    for node in filter(None, map(node_of_gpu.get, by_gpu)):
        raise SettingsError(
            f"these GPU settings concern {node}, and settings are changed on one host at a time",
            host=host.name,
            next_step=f"use `workbench --host {node} gpu set …` for {node}, and name only GPUs of "
            f"{head} with --gpu",
        )
    return _select_gpus_in_reading(reading, own)


def _select_gpus_in_reading(reading: Telemetry, infos: Sequence[GpuInfo]) -> Telemetry:
    """Return the part of a reading that concerns the GPUs `infos`."""
    indices = {info.index for info in infos}
    samples = tuple(sample for sample in reading.gpus if sample.index in indices)
    return replace(reading, infos=tuple(infos), gpus=samples)


def _has_gpu_setting(wanted: Mapping[str, object]) -> bool:
    return any(setting.key in wanted for setting in SETTINGS if not setting.of_host)


def _select_job_gpus_in_reading(reading: Telemetry, allotment: Allotment) -> Telemetry:
    """Return the part of a reading that concerns the GPUs of the scheduler's job in which the
    host's commands run. Raises SettingsError if these GPUs are not known."""
    found, unknown = visible_gpus_and_first_unknown_word(allotment.visible or "", reading.infos)
    if unknown is not None or not found:
        raise SettingsError(
            f"{allotment.job} has the GPUs {allotment.visible!r}, which are not all GPUs of this "
            "host",
            next_step="name the GPUs of the job with --gpu",
        )
    return _select_gpus_in_reading(reading, found)


def _add_text_to_notes(commands: Sequence[SettingCommand], note: str) -> Sequence[SettingCommand]:
    """Return `commands` with a further note on each command for a GPU."""
    found = []
    for command in commands:
        notes = (command.note, note) if command.gpu_uuid != HOST else (command.note,)
        found.append(replace(command, note="; ".join(part for part in notes if part)))
    return tuple(found)


def _gpu_selector_or_all(gpu: int | str | None) -> str:
    return ALL_GPUS if gpu is None else str(gpu)
