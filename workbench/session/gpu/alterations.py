"""The GPU settings that Workbench changed on the host, read from the journal and compared with the
readings of the GPUs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from workbench.gpu.settings import journal
from workbench.gpu.settings.alterations import (
    alteration_of_claim,
    alteration_of_record,
    alterations_of_known_gpus,
    drop_entries_of_lost_settings,
    drop_entries_settled_by_others,
    find_drifts,
    is_left_to_former_claimant,
    select_locks_in_force,
)
from workbench.gpu.settings.unconfirmed_changes import (
    select_cut_off_changes,
    settle_cut_off_changes,
)
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.model.counts import gpus_text
from workbench.model.errors import WorkbenchError
from workbench.model.findings import Level
from workbench.model.setting_commands import PENDING, value_equals
from workbench.model.settings import label_of, setting_of
from workbench.session.state import JOURNAL_CHANGES

if TYPE_CHECKING:
    from workbench.gpu.settings.claims import SettingClaim
    from workbench.gpu.settings.journal import Journal, JournalEntry, Record
    from workbench.gpu.settings.register_client import LockChange
    from workbench.hosts.base import Host
    from workbench.model.gpu import Telemetry
    from workbench.model.setting_records import Alteration, Drift, Recovery
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.state_holder import StateHolder

REVERT_OFFER = "GPU settings that an earlier Workbench made are still on: press r to revert them"
CUT_CHANGE_OFFER = (
    "an earlier Workbench was cut off while it changed GPU settings: press r to revert those that"
    " it made"
)
_OWNER_TEXTS = {"alive": "another running Workbench", "elsewhere": "on another machine"}


class GpuAlterations:
    """Keeps in the session's state the GPU settings of the host that Workbench has altered, and
    those among them whose present value differs from the value in the journal."""

    def __init__(self, core: StateHolder, telemetry: TelemetryWatch) -> None:
        self._core = core
        # the host's directory in which Workbenches register their work
        self.register_dir: str | None = None
        self.never_sent = False  # this session began a change and lost the link before its command
        self.read_monotonic_s = 0.0  # time of the last `read`
        # by all Workbenches of the host, at that time
        self.lock_changes: frozenset[LockChange] = frozenset()
        self._findings_of: Host | None = None  # the host whose stored load findings were read
        self._checked: frozenset[Drift] = frozenset()  # drift that the journal did not explain
        self._checking = False
        telemetry.on_reading.append(self._update_drift_from_reading)

    @property
    def active_clock_locks(self) -> tuple[Alteration, ...]:
        """The clock locks on this host's GPUs, set by this Workbench or by others."""
        return select_locks_in_force(self._core.state.alterations, self._core.state.others)

    async def read_altered_settings(self, *, after_change: bool = False) -> Journal:
        """Read the altered settings, and who altered them, from the journal into the session's
        state. Notify the user of settings that a restart of the host or of the driver has reset.
        Return the journal, without its log. `after_change` says that the change which the state
        still lists as work under way has ended."""
        state, records = await self._read_host_journal(with_log=False)
        recovery = state.recovered
        if select_cut_off_changes(records) and (after_change or not self._is_changing_settings):
            await self._settle_and_report_cut_off_changes()
            state, records = await self._read_host_journal(with_log=False)
        if any(self._is_unclaimed_and_restored(record.entry, state.others) for record in records):
            await drop_entries_settled_by_others(self._core.host)
            state, records = await self._read_host_journal(with_log=False)
        self.register_dir = state.register.directory
        gone = [record for record in records if record.why_lost is not None]
        on = [record for record in records if record.why_lost is None]
        offered = [record for record in on if _can_offer_revert(record, state.others)]
        found = tuple(map(alteration_of_record, on))
        settings = {altered.setting for altered in found}
        findings = await self._gpu_indices_and_load_findings(found)
        present = self._core.state
        self._core.update(
            alterations=found,
            others=alterations_of_known_gpus(
                map(alteration_of_claim, state.others), present.telemetry
            ),
            drift=tuple(drift for drift in present.drift if drift.setting in settings),
            offers=revert_offer_texts(offered),
            gpu_findings=findings,
        )
        self._report_journal_recovery(recovery, is_written=state.recovered is None)
        self._core.update_host(
            others_problem=state.register.problem, journal_disk_full=state.disk_full
        )
        self.read_monotonic_s, self.lock_changes = time.monotonic(), state.register.changes
        if gone:
            await self._report_reset_settings(gone)
        return state

    async def _gpu_indices_and_load_findings(
        self, found: tuple[Alteration, ...]
    ) -> tuple[tuple[int, str], ...]:
        """Return pairs (GPU index, text): what loads have found about the altered settings `found`,
        of those GPUs whose settings have not changed since. On a host whose findings were not read
        yet, read those that an earlier session, or a command, has stored."""
        host, state = self._core.host, self._core.state
        if found and self._findings_of is not host:
            from workbench.gpu.settings.proof_files import read_effect_texts

            findings = await read_effect_texts(host, found)
            self._findings_of = host
            return findings
        changed = _changed_gpus(found, state.alterations)
        return tuple(finding for finding in state.gpu_findings if finding[0] not in changed)

    def _report_journal_recovery(self, found: Recovery | None, *, is_written: bool) -> None:
        """Notify the user if the journal was missing or damaged when it was read. `found` is its
        recovery then, None for a sound journal. `is_written` says whether this session has written
        the file anew since."""
        before, text = self._core.state.host.journal_recovery, None
        if found is not None:
            text = replace(found, is_written=is_written).text
        self._core.update_host(journal_recovery=text)
        if text not in (None, before):
            self._core.notify(Level.WARN, f"{self._core.host.name}: {text}")
            self._core.record_command("# the journal of GPU settings was recovered", text)

    @property
    def _is_changing_settings(self) -> bool:
        return not set(JOURNAL_CHANGES).isdisjoint(self._core.state.busy)

    async def _settle_and_report_cut_off_changes(self) -> None:
        """Find out what became of changes that were cut off, record it in the journal, and notify
        the user. Do nothing if the host cannot be reached or another Workbench changes settings."""
        with suppress(WorkbenchError):  # the link is lost again, or another Workbench changes them
            settled = await settle_cut_off_changes(self._core.host, never_sent=self.never_sent)
            texts = []
            for change in settled:
                gpu = change.entry.gpu_index
                texts.append((gpu, change.text.removeprefix(f"{gpu_name(gpu)} ")))
            outcomes = prefix_texts_with_gpus(texts)
            for outcome in outcomes:
                self._core.record_command("# a change of GPU settings was cut off", outcome)
            if outcomes:
                self._core.notify(Level.WARN, f"{self._core.host.name}: {'; '.join(outcomes)}")
            self.never_sent = False

    def _is_previous_value_in_reading(self, entry: JournalEntry) -> bool:
        """Return whether the last reading shows the previous value of `entry`."""
        telemetry, present = self._core.state.telemetry, None
        if telemetry is not None:
            present = setting_of(entry.setting).current_value(telemetry, entry.gpu_uuid)
        return value_equals(entry.setting, present, entry.before)

    def _is_unclaimed_and_restored(
        self, entry: JournalEntry, claims: Sequence[SettingClaim]
    ) -> bool:
        """Return whether the user to whom the setting was left no longer claims it, and the setting
        has its previous value again."""
        return is_left_to_former_claimant(entry, claims) and self._is_previous_value_in_reading(
            entry
        )

    async def read_journal_records_and_log(
        self,
    ) -> tuple[Sequence[Record], Sequence[Mapping[str, Any]]]:
        """Return (records, log entries) of the journal, the file on the host that records altered
        GPU settings. Both have the oldest first. The records include settings that a restart of the
        host or of the driver has reset."""
        state, records = await self._read_host_journal(with_log=True)
        return records, state.log

    async def _read_host_journal(self, *, with_log: bool) -> tuple[Journal, Sequence[Record]]:
        """Return the journal, which records the altered GPU settings of the host, and its records.
        Settings of other Workbenches that have been reset meanwhile are left out."""
        state = await journal.read_journal(self._core.host, with_log=with_log)
        telemetry = self._core.state.telemetry
        energy_j = telemetry.energy_j_by_uuid if telemetry is not None else {}
        records = state.records(energy_j)
        # the reading may be older than the setting
        if any(r.why_lost is not None for r in records):
            state = await journal.read_journal(self._core.host, with_log=with_log)
            energy_j = await self._read_energy_j_by_uuid()
            records = state.records(energy_j)
        return replace(
            state, others=state.without_entries_of_lost_settings(energy_j).others
        ), records

    async def _report_reset_settings(self, gone: Sequence[Record]) -> None:
        settings = ", ".join(record.entry.change_text for record in gone)
        self._core.notify(
            Level.INFO,
            f"these GPU settings have been reset, because {gone[0].why_lost}: {settings}",
        )
        with suppress(WorkbenchError):
            await drop_entries_of_lost_settings(self._core.host, gone)

    async def _read_energy_j_by_uuid(self) -> dict[str, float]:
        """Return the GPUs' energy counters in joules by UUID; {} if they cannot be read. They show
        whether the driver was reloaded."""
        with suppress(WorkbenchError):
            return (await read_telemetry_once(self._core.host)).energy_j_by_uuid
        return {}

    # ---- drift

    def _update_drift_from_reading(self, telemetry: Telemetry) -> None:
        """Show in the session's state where a reading differs from the journal. A difference counts
        only if it remains after the journal is read again, because a command or the guard may be
        changing both."""
        state = self._core.state
        # the journal may be read before the GPUs
        others = alterations_of_known_gpus(state.others, telemetry)
        if others != state.others:
            self._core.update(others=others)
        if not state.alterations:
            self._checked = frozenset()
            self._core.update(drift=())
            return
        if self._is_changing_settings:
            self._checked = frozenset()
            return
        full = state.host.journal_disk_full
        found = find_drifts(state.alterations, state.others, telemetry, full)
        lasting = tuple(drift for drift in found if drift in self._checked)
        self._checked = frozenset(lasting)
        if len(lasting) < len(found) and not self._checking:
            self._checking = True
            self._core.spawn(self._recheck_drift_against_journal(frozenset(found)))
        new = [drift for drift in lasting if drift not in state.drift]
        if new:  # one message, because a second one would replace the first
            texts = [(drift.gpu_index, f"{label_of(drift.setting)}: {drift.text}") for drift in new]
            self._core.notify(
                Level.WARN,
                f"{self._core.host.name}: {'; '.join(prefix_texts_with_gpus(texts))}",
                "press r (revert) to keep this value, or to set an earlier value again",
            )
        if lasting != state.drift:
            self._core.update(drift=lasting)

    async def _recheck_drift_against_journal(self, found: frozenset[Drift]) -> None:
        try:
            if await journal.is_journal_locked(self._core.host):
                return  # the next reading asks again
            await self.read_altered_settings()
            self._checked |= found
        except WorkbenchError:  # the link is lost, which `state.host` shows
            pass
        finally:
            self._checking = False


def gpu_name(gpu_index: int) -> str:
    """Return "GPU" with the index of a GPU, such as "GPU0". A negative index stands for a setting
    of the host and gives "host"."""
    return "host" if gpu_index < 0 else f"GPU{gpu_index}"


def prefix_texts_with_gpus(texts: Iterable[tuple[int, str]]) -> list[str]:
    """Return each text once, after the GPUs that it is about: "GPU0-3 power limit: …". `texts` are
    pairs (GPU index, text)."""
    groups: dict[str, set[int]] = {}
    for gpu_index, text in texts:
        groups.setdefault(text, set()).add(gpu_index)
    return [f"{gpus_text(indexes)} {text}" for text, indexes in groups.items()]


def _can_offer_revert(record: Record, others: Sequence[SettingClaim]) -> bool:
    """Return whether a revert of the setting can be offered now. False for a setting that was left
    to another user, as long as that user claims it."""
    return not record.entry.user_setting_is_left_to or is_left_to_former_claimant(
        record.entry, others
    )


def revert_offer_texts(records: Sequence[Record]) -> tuple[str, ...]:
    """Return texts about altered GPU settings for a screen that opens. One text offers to revert
    the settings that an ended Workbench process has left, and others name running Workbench
    processes with altered settings. Settings of this process, and settings that a user keeps on
    deliberately, are left out."""
    by_owner: dict[str, list[JournalEntry]] = {}
    for record in records:
        if record.why_lost is None and record.entry.state != "kept":
            by_owner.setdefault(record.owner, []).append(record.entry)
    found = []
    states_of_dead = {entry.state for entry in by_owner.get("dead", ())}
    if states_of_dead:
        found.append(CUT_CHANGE_OFFER if states_of_dead == {PENDING} else REVERT_OFFER)
    for owner, name in _OWNER_TEXTS.items():
        entries = by_owner.get(owner, ())
        who = sorted({f"{entry.who}, process {entry.owner.get('pid')}" for entry in entries})
        if who:
            found.append(f"GPU settings are altered by {' and '.join(who)} ({name})")
    return tuple(found)


_ALTERATION_IDENTITY = attrgetter("gpu_index", "setting", "now", "since_unix_s")


def _changed_gpus(a: Sequence[Alteration], b: Sequence[Alteration]) -> set[int]:
    """Return the indices of the GPUs whose altered settings differ between `a` and `b`."""
    differing = set(map(_ALTERATION_IDENTITY, a)) ^ set(map(_ALTERATION_IDENTITY, b))
    return {identity[0] for identity in differing}
