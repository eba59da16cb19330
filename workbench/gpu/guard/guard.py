"""The guard: a small process on the GPU host that reverts GPU settings if Workbench no longer
watches over them.

The guard runs in a session of its own. Its instructions are in the journal, under each entry's
`watch`:

    heartbeat_s   revert after this many seconds without a heartbeat of the entry's owner; None: no heartbeat expected
    trial         the name of a trial; revert `trial_s` seconds after the guard first saw this name
    back          fields of the earlier entry; they are restored after a trial, or if the user had kept the setting

While a change is carried out, its entry is pending, and its Workbench sends heartbeats in any case.
If they stop then, the change was cut off: the guard reverts what the change has set, so that it is
made as a whole or not at all.

The guard does not revert a setting that the user chose to keep, that has no `watch`, or that was
changed before the host's last boot. It does not replace a value that another program has set since,
because only the user can decide about that value. If a GPU reaches its thermal limit, the guard
reverts all watched settings that let this GPU run hotter; a power limit or a clock lock that keeps
the GPU cooler stays. On SIGTERM, which systemd sends at a logout, the guard reverts all settings
that depend on a heartbeat or a trial, then ends. The guard measures times with the host's monotonic
clock, and a heartbeat is any change of a file's time, so changes of the wall clock have no effect.

A guard that runs as root through sudo sets only values that were in the journal at its start, when
sudo allowed the user to start it. Later changes of the journal can only remove settings from the
guard's work, because they were reverted, kept or confirmed. For a setting that was changed later, a
new guard takes over.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

from __future__ import annotations

import math
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence

from workbench.gpu.guard.due_reverts import (
    DueRevert,
    RevertResult,
    earlier_entry_fields_to_restore,
    gpu_and_setting_of,
    journal_after_reverts,
    restrict_entry_to_seen_values,
    results_text,
    setting_text,
    trial_end_monotonic_s,
    value_restored_by_revert,
    values_guard_may_set,
)
from workbench.gpu.guard.files import (
    GUARD_VERSION,
    GuardFiles,
    heartbeat_file_name,
    owner_token,
)
from workbench.gpu.guard.interruptible_sleep import InterruptibleSleep
from workbench.gpu.guard.privileges import Programs
from workbench.gpu.guard.temperatures import TemperatureReader
from workbench.gpu.process_facts import driver_module_load_id
from workbench.gpu.settings import claims
from workbench.gpu.settings.journal_file import UnreadableJournal
from workbench.model import setting_commands
from workbench.model.setting_commands import COOLING, HOST

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

    from workbench.gpu.guard.due_reverts import Entry

TICK_S = 0.25
IDLE_ROUND_TICKS = 4  # between two rounds while the kernel reports changes and nothing is due soon
TEMPERATURE_INTERVAL_S = 1.0
PUBLISHED_CHECK_S = 1.0  # interval of the checks that the host's register has the changes
BACKOFF_S = (1.0, 60.0)
# after such a pause of its own the guard cannot say that others were silent
SUSPENDED_AFTER_S = 2.0
ROUND_RECORD_INTERVAL_S = 5.0  # interval at which a completed round is written down
CUT_OFF_AFTER_S = 30.0  # without a heartbeat, after which a change counts as cut off
# a trial's owner that still locks the journal this long after its end counts as frozen
FROZEN_OWNER_AFTER_S = 10.0
CLOCK_JUMP_S = 1.0
UNWATCHED_SETTINGS_TEXT = (
    "the guard was asked to end, and settings that no heartbeat protects stay on: nothing reverts "
    "them if a GPU becomes too hot"
)


class Guard:
    """The guard's loop. Each round reads the journal and the heartbeats, and reverts the settings
    that are due."""

    def __init__(
        self,
        files: GuardFiles,
        programs: Programs,
        tick_s: float = TICK_S,
        heat_s: float = TEMPERATURE_INTERVAL_S,
        unfinished_s: float = CUT_OFF_AFTER_S,
    ) -> None:
        self.files, self.programs, self.tick_s = files, programs, tick_s
        self.unfinished_s = unfinished_s
        self.rest = InterruptibleSleep(files.at)
        self.temperatures = TemperatureReader(heat_s, self.rest.wake)
        self.stamp: list[int] | None = None
        self.entries: list[Entry] = []
        self.broken: str | None = None
        # of a root that serves a user: the entries that it may set
        self.seen: dict[tuple[str, str], Entry] | None = None
        self.unseen: list[str] = []
        # reverted, but the journal could not be written yet
        self.unrecorded: dict[tuple[str, str], RevertResult] = {}
        # by owner: the last heartbeat, and when the guard saw it
        self.beats: dict[str, tuple[int, float]] = {}
        self.others: tuple[claims.SettingClaim, ...] = ()
        self.hot: dict[str, str] = {}  # by GPU: the text of its temperature
        before = files.read_state()
        trials = before.get("trials") if before.get("boot_id") == files.boot_id else None
        self.trials: dict[str, float] = trials if isinstance(trials, dict) else {}
        self.did, self.did_unix_s = before.get("did"), before.get("did_unix_s")
        self.failed: str | None = None
        self.note: str | None = None  # the settings kept on a GPU at its thermal limit
        self.retry_at, self.backoff_s = 0.0, BACKOFF_S[0]
        self.tried: set[tuple[str, str]] = set()  # only these wait until retry_at
        self.ran_at = time.monotonic()
        self.since_unix_s = time.time()
        self.written_state: dict[str, Any] = {}
        self.to_end = False
        self.publish_again_at = self.write_round_at = 0.0

    def request_end(self, *_: object) -> None:
        self.to_end = True
        self.rest.wake()

    def run(self, after_round: Callable[[], None]) -> None:
        """Watch the settings until none is left to watch. Call `after_round` after each round. An
        exception in a round is logged, and the guard continues."""
        self.temperatures.start()
        self.files.write_pid()
        self.files.append_to_log(f"watching, process {os.getpid()}")
        while True:
            pause_s = self.tick_s
            try:
                if not self.run_round_and_should_continue():
                    return
                self.write_state()
                self.record_round_if_due()
                after_round()
                pause_s = self.pause_before_next_round_s()
            except Exception:
                self.files.append_to_log("a defect in the guard: " + traceback.format_exc())
                time.sleep(BACKOFF_S[0])
            self.rest.sleep(pause_s)

    def pause_before_next_round_s(self) -> float:
        """Return how many seconds the guard may rest before its next round: one tick if something
        is wrong or if the kernel does not report changes of the journal, otherwise up to
        IDLE_ROUND_TICKS ticks, but not beyond the next deadline."""
        is_wrong = self.hot or self.failed or self.broken or self.to_end
        if is_wrong or not self.entries or not self.rest.hears_changes:
            return self.tick_s
        left_s = min(self.next_deadlines(), default=math.inf) - time.monotonic()
        return min(max(left_s, self.tick_s), IDLE_ROUND_TICKS * self.tick_s)

    def next_deadlines(self) -> Iterator[float]:
        """Yield when each heartbeat is overdue and when each trial ends, in seconds of
        time.monotonic()."""
        yield from self.trials.values()
        for entry in self.entries:
            limit_s = self.heartbeat_limit_s(entry)
            if limit_s:
                # an entry that took effect again just now may have another owner
                _, seen_at = self.beats.get(heartbeat_file_name(entry), (0, time.monotonic()))
                yield seen_at + limit_s

    def record_round_if_due(self) -> None:
        if time.monotonic() >= self.write_round_at:
            self.write_round_at = time.monotonic() + ROUND_RECORD_INTERVAL_S
            self.files.record_completed_guard_round()

    def run_round_and_should_continue(self) -> bool:
        """Read the journal, the heartbeats and the temperatures once, and revert what is due.
        Return False if the guard must end, because nothing is left to watch, another guard took
        over, or all reverts after a SIGTERM are done."""
        # take the lock again if another program took the place that was offered
        self.files.try_to_acquire_guard_lock()
        asking = self.files.pid_that_requests_end()
        if asking is not None:
            if self.programs.may_replace_guard(asking) and self.files.try_to_hand_lock_over(asking):
                self.files.append_to_log("ending: another guard takes over")
                return False
            self.files.withdraw_guard_end_request()
            self.files.append_to_log(
                "another process asked this guard to make way but did not take over; "
                "this guard continues"
            )
        self.read_journal()
        self.republish_entries_lost_from_register()
        self.record_heartbeats_and_trials()
        self.record_gpus_at_thermal_limit()
        due = self.due_reverts()
        if time.monotonic() >= self.retry_at or any(
            one.gpu_and_setting not in self.tried for one in due
        ):
            self.revert_due_settings(due)
            self.ran_at = time.monotonic()
        if not due:
            self.clear_retry_state()
            if self.to_end:
                self.failed = UNWATCHED_SETTINGS_TEXT if self.entries else None
                reasons = filter(None, ("ending on SIGTERM", self.failed))
                self.files.append_to_log(": ".join(reasons))
                self.write_state(running=False)
                return False
        return bool(self.entries) or not self.end_if_nothing_to_watch()

    def clear_retry_state(self) -> None:
        """Clear the record of failed reverts, so that each is tried again at once."""
        self.failed, self.retry_at, self.backoff_s, self.tried = None, 0.0, BACKOFF_S[0], set()

    def read_journal(self) -> None:
        """Read the journal again if its file has changed. If it cannot be read, keep the earlier
        entries, and note the reason in `broken`."""
        stamp = self.files.read_mtime_inode_and_size()
        if stamp == self.stamp:
            return
        self.stamp = stamp
        try:
            self.entries = self.entries_to_watch(self.files.load())
            self.broken = None
        except UnreadableJournal as why:
            if self.seen is None and self.programs.user is not None:
                self.seen = {}
            if self.broken is None and self.entries:
                self.files.append_to_log(f"{why}; the guard uses its earlier contents")
            self.broken = str(why)

    def republish_entries_lost_from_register(self) -> None:
        """Publish the journal's entries again if the host's register has lost them, so that other
        users see the changes. Check that once per PUBLISHED_CHECK_S seconds. If the journal is lost
        too, publish the entries that the guard has in memory."""
        if not self.entries or time.monotonic() < self.publish_again_at:
            return
        self.publish_again_at = time.monotonic() + PUBLISHED_CHECK_S
        try:
            if not self.files.is_unpublished() or not self.files.try_to_lock(()):
                return
        except OSError:
            return
        try:
            self.read_journal()
            self.files.publish_in_register(
                self.entries if self.broken else self.files.load()["entries"]
            )
            self.files.append_to_log(
                "the register of the host had lost the settings; they are published again"
            )
        except UnreadableJournal:
            self.stamp = None  # the journal broke just now
        finally:
            self.files.release_lock()

    def entries_to_watch(self, journal: Mapping[str, Any]) -> list[Entry]:
        """Return those entries of the journal that this guard must watch: those of the present boot
        that have instructions and that the user has not chosen to keep. A guard that runs as root
        returns only entries that were in the journal at its start, with the values from then."""
        found = [
            entry
            for entry in journal["entries"]
            if entry.get("watch")
            and entry.get("state") != "kept"
            and entry["boot_id"] == self.files.boot_id
        ]
        if self.programs.user is None:
            return found
        by_key = {gpu_and_setting_of(entry): entry for entry in found}
        if self.seen is None:
            self.seen = by_key
        self.seen = {key: self.seen[key] for key in self.seen if key in by_key}
        self.unseen = [
            setting_text(e)
            for key, e in by_key.items()
            if key not in self.seen
            or values_guard_may_set(e) != values_guard_may_set(self.seen[key])
        ]
        return [restrict_entry_to_seen_values(by_key[key], self.seen[key]) for key in self.seen]

    # ---- the settings that are due

    def record_heartbeats_and_trials(self) -> None:
        """Record which owners have sent a heartbeat, and when each trial ends. If the guard itself
        was paused, for example because the machine slept, each owner gets the full heartbeat time
        again."""
        now = time.monotonic()
        if now - self.ran_at > SUSPENDED_AFTER_S + IDLE_ROUND_TICKS * self.tick_s:
            self.beats = {owner: (beat, now) for owner, (beat, _) in self.beats.items()}
        self.ran_at = now
        owners = {heartbeat_file_name(e) for e in self.entries if self.heartbeat_limit_s(e)}
        self.beats = {owner: known for owner, known in self.beats.items() if owner in owners}
        for owner in owners:
            beat = self.files.heartbeat_mtime_ns(owner)
            if owner not in self.beats or self.beats[owner][0] != beat:
                self.beats[owner] = (beat, now)
        lasts = {
            e["watch"]["trial"]: e["watch"]["trial_s"]
            for e in self.entries
            if e["watch"].get("trial")
        }
        self.trials = {
            trial: trial_end_monotonic_s(self.trials.get(trial), now + lasts[trial])
            for trial in lasts
        }

    def record_gpus_at_thermal_limit(self) -> None:
        """Record in `hot` the GPUs that are at their thermal limit. A GPU stays there until the
        settings that heat it are reverted, even if it cools down before. Record in `note` the
        watched settings that are kept because they cool such a GPU."""
        gpus = {e["gpu_uuid"]: e["gpu_index"] for e in self.entries if e["gpu_uuid"] != HOST}
        self.temperatures.set_watched_gpus(tuple(sorted(gpus)))
        heated = {e["gpu_uuid"] for e in self.entries if self.entry_heats_gpu(e)}
        hot = {}
        for uuid, index in gpus.items():
            reached = self.temperatures.text_if_at_limit(uuid)
            if uuid not in self.hot:
                if reached:
                    hot[uuid] = f"GPU{index} {reached}"
            elif reached or uuid in heated:
                hot[uuid] = self.hot[uuid]
        self.hot = hot
        stays = [
            e
            for e in self.entries
            if e["gpu_uuid"] in hot and e["setting"] in COOLING and not self.entry_heats_gpu(e)
        ]
        whys = "; ".join(dict.fromkeys(hot[e["gpu_uuid"]] for e in stays))
        note = None
        if stays:
            names = ", ".join(map(setting_text, stays))
            note = f"{names} kept, because a revert could make the GPU hotter: {whys}"
        if note and note != self.note:
            self.files.append_to_log(note)
        self.note = note

    def entry_heats_gpu(self, entry: Entry) -> bool:
        """Return whether the value of this journal entry lets its GPU become hotter than the value
        that a revert would set."""
        highest_mhz = self.temperatures.highest_mhz.get((entry["gpu_uuid"], entry["setting"]))
        return setting_commands.value_allows_more_heat(
            entry["setting"],
            entry["now"],
            value_restored_by_revert(DueRevert(entry, "", False)),
            highest_mhz,
        )

    def heartbeat_limit_s(self, entry: Entry) -> float | None:
        """Return the number of seconds without a heartbeat after which this journal entry is
        reverted. None if no heartbeat is expected."""
        limit_s: float | None = entry["watch"].get("heartbeat_s")
        if limit_s:
            return limit_s
        return self.unfinished_s if entry.get("state") == setting_commands.PENDING else None

    def heartbeat_is_overdue(self, entry: Entry) -> bool:
        limit_s = self.heartbeat_limit_s(entry)
        return (
            limit_s is not None
            and time.monotonic() - self.beats[heartbeat_file_name(entry)][1] > limit_s
        )

    def due_reverts(self) -> list[DueRevert]:
        found = []
        for entry in self.entries:
            why = self.revert_reason_and_is_trial(entry)
            if why is not None:
                found.append(DueRevert(entry, *why))
        return found

    def revert_reason_and_is_trial(self, entry: Entry) -> tuple[str, bool] | None:
        """Return (reason, trial) if the setting of this journal entry must be reverted now,
        otherwise None. `trial` is true if the revert ends a trial or undoes a change that was
        cut off: then it restores the value from before that."""
        watch, hot = entry["watch"], self.hot.get(entry["gpu_uuid"])
        limit_s = self.heartbeat_limit_s(entry)
        unfinished = entry.get("state") == setting_commands.PENDING
        if self.heartbeat_is_overdue(entry):
            cut = ", and the change was cut off" if unfinished else ""
            return f"no heartbeat for {limit_s:g} s{cut}", unfinished
        if hot and self.entry_heats_gpu(entry):
            return hot, False
        if self.to_end and (limit_s or watch.get("trial")):
            return "the guard was asked to end", unfinished or bool(watch.get("trial"))
        if watch.get("trial") and time.monotonic() >= self.trials[watch["trial"]]:
            return f"not confirmed within {watch['trial_s']:g} s", True
        return None

    def silent_owners(self, due: Sequence[DueRevert]) -> tuple[str, ...]:
        """Return those owners of the entries in `due` whose journal lock the guard may remove, as
        "BOOT_ID:PID:START_TIME": their heartbeat is overdue, or they count as frozen after the end
        of their trial."""
        found = set()
        for entry, _, trial in due:
            if self.heartbeat_is_overdue(entry) or (trial and self.owner_is_frozen(entry)):
                found.add(owner_token(entry))
        return tuple(found)

    def owner_is_frozen(self, entry: Entry) -> bool:
        """Return whether the trial of this entry ended more than FROZEN_OWNER_AFTER_S seconds ago,
        so that its owner counts as frozen. False if the entry has no trial, or if its owner sends
        heartbeats."""
        name = entry["watch"].get("trial")
        if name is None or entry["watch"].get("heartbeat_s"):
            return False
        return time.monotonic() > self.trials[name] + FROZEN_OWNER_AFTER_S

    # ---- reverting

    def revert_due_settings(self, due: Sequence[DueRevert]) -> None:
        """Lock the journal, read it again, and revert the settings that are still due; a setting of
        `due` may have been confirmed or reverted just before. Do nothing if the journal cannot be
        locked."""
        if not due or not self.lock_journal(self.silent_owners(due)):
            return
        try:
            self.read_journal()
            self.record_heartbeats_and_trials()
            due = sorted(
                self.due_reverts(),
                key=lambda d: (
                    d.entry["gpu_index"],
                    setting_commands.revert_position(d.entry["setting"]),
                ),
            )
            if not due:
                self.clear_retry_state()
                return
            self.files.append_to_log(
                "reverting: " + "; ".join(f"{setting_text(d.entry)} ({d.why})" for d in due)
            )
            keys = {one.gpu_and_setting for one in due}
            self.others = claims.drop_forged_claims(
                self.files.read_foreign_claims(), keys, self.programs.can_claimant_set_value
            )
            self.record_revert_results(self.revert_settings_in_parallel(due))
        finally:
            self.files.release_lock()

    def lock_journal(self, silent_owners: tuple[str, ...]) -> bool:
        """Try to lock the journal, and return whether the revert may go on. The locks of the owners
        `silent_owners` do not count. True also if a broken journal cannot be locked. If an intact
        journal cannot be locked because of an error, record the failure and return False."""
        try:
            return self.files.try_to_lock_twice(silent_owners)
        except OSError as error:
            if self.broken is None:
                self.record_failure_and_schedule_retry(
                    f"the journal cannot be locked: {error.strerror}"
                )
                return False
            return True  # a broken journal does not prevent the revert

    def revert_settings_in_parallel(self, due: Sequence[DueRevert]) -> list[RevertResult]:
        """Revert the settings in `due`: all GPUs in parallel, the settings of one GPU one after the
        other. Each GPU has a thread, because nvidia-smi can take seconds and can hang for one GPU.
        """
        self.tried = {one.gpu_and_setting for one in due}
        found: dict[tuple[str, str], RevertResult] = {}

        def revert_gpu(uuid: str) -> None:
            for one in due:
                if one.entry["gpu_uuid"] == uuid:
                    found[one.gpu_and_setting] = self.revert_setting(one)

        uuids = sorted({one.entry["gpu_uuid"] for one in due})
        threads = [threading.Thread(target=revert_gpu, args=(uuid,)) for uuid in uuids]
        with self.programs.as_root():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return [found[one.gpu_and_setting] for one in due]

    def revert_setting(self, due: DueRevert) -> RevertResult:
        """Revert a setting that is due, and return the result. If it was reverted already but could
        not be recorded, return that result. Never raises: a defect becomes a failed result."""
        untold = self.unrecorded.get(due.gpu_and_setting)
        # unless another program has set it since
        if untold is not None and untold.due.entry == due.entry:
            return untold
        try:
            return self.revert_unless_superseded(due)
        except Exception as error:
            return RevertResult(due, False, f"a defect in the guard: {error!r}")

    def revert_unless_superseded(self, due: DueRevert) -> RevertResult:
        """Set the previous value, and return the result. Set nothing if a restart has reset the
        setting, if it has its previous value already, or if somebody else has set it since."""
        programs, uuid, setting = self.programs, due.entry["gpu_uuid"], due.entry["setting"]
        gone = setting_commands.why_setting_has_no_effect(
            due.entry, self.files.boot_id, driver_start=driver_module_load_id(programs.sysfs)
        )
        if gone is not None:
            return RevertResult(due, True, gone, claims.DONE)
        back = earlier_entry_fields_to_restore(due)
        live = programs.current_value(uuid, setting)
        way = claims.decide_revert(due.entry, live, self.others, back["now"] if back else None)
        if way.do != claims.RESTORE:
            return RevertResult(due, True, way.why, way.do, way.by)
        failed = self.set_value_and_explain_failure(uuid, setting, way.value)
        now = programs.current_value(uuid, setting)
        outcome = setting_commands.was_restored_and_message(setting, way.value, now, failed)
        return RevertResult(due, *outcome)

    def set_value_and_explain_failure(self, uuid: str, setting: str, value: Any) -> str | None:
        """Run the commands that set `value`. Return the error of the last command that failed, None
        if none failed."""
        programs, of_cores = self.programs, setting in setting_commands.OF_CORES
        program = "tee" if of_cores else "nvidia-smi"
        steps = setting_commands.commands_to_set_value(
            uuid,
            setting,
            setting_commands.value_to_restore(value),
            nvidia_smi=programs.nvidia_smi,
            tee=programs.tee,
            cores={c.cpu: c.idle_states for c in programs.read_core_values(setting)}
            if of_cores
            else {},
            sysfs=programs.sysfs,
        )
        failed = None
        for step in steps:
            code, said = programs.run_setting_step(step)
            failed = setting_commands.why_command_failed(code, said, program) or failed
        return failed

    def record_revert_results(self, results: Sequence[RevertResult]) -> None:
        """Write the results of the reverts to the journal, to the guard's log and to its state
        file. An entry whose setting could not be reverted stays in the journal."""
        done = [r.due for r in results if r.ok]
        for due, ok, message, *_ in results:
            self.files.append_to_log(
                f"{setting_text(due.entry)}: {'' if ok else 'FAILED: '}{message}"
            )
        if done:
            self.did, self.did_unix_s = results_text(results), round(time.time(), 3)
            self.files.append_to_log(self.did)
        left = "; ".join(self.failure_text(r.due, r.message) for r in results if not r.ok)
        if self.broken is not None:  # the guard does not replace a file that it cannot read
            keys = {due.gpu_and_setting for due in done}
            self.entries = [e for e in self.entries if gpu_and_setting_of(e) not in keys]
            self.files.publish_in_register(self.entries)
        else:
            try:
                self.files.save(
                    journal_after_reverts(self.files.load(), results, self.files.boot_id)
                )
                self.unrecorded = {}
            except (OSError, UnreadableJournal) as error:
                self.unrecorded.update({r.due.gpu_and_setting: r for r in results if r.ok})
                left = "; ".join(filter(None, (left, f"the journal could not be updated: {error}")))
        if left:
            self.record_failure_and_schedule_retry(left)
        else:
            self.clear_retry_state()
        self.read_journal()

    def failure_text(self, due: DueRevert, message: str) -> str:
        entry = due.entry
        by_hand = setting_commands.shell_command_to_set(
            entry["gpu_uuid"], entry["setting"], value_restored_by_revert(due), self.programs.sysfs
        )
        return f"{setting_text(entry)} was not reverted ({due.why}): {message}. By hand: {by_hand}"

    def record_failure_and_schedule_retry(self, why: str) -> None:
        if why != self.failed:
            self.files.append_to_log(f"{why}; trying again")
        self.failed = why
        self.retry_at = time.monotonic() + self.backoff_s
        self.backoff_s = min(self.backoff_s * 2, BACKOFF_S[1])

    # ---- the end, and the state file

    def end_if_nothing_to_watch(self) -> bool:
        """End the guard if no entry is left to watch, and return whether it ended. The journal is
        locked meanwhile. A Workbench that adds entries holds the same lock until its guard has read
        them, so the guard cannot end just before it is needed."""
        try:
            if not self.files.try_to_lock(()):
                return False
        except OSError:
            if self.broken is None:
                return False
        self.stamp = None
        self.read_journal()
        if not self.entries:
            self.files.append_to_log("nothing is left to watch; ending")
            self.files.delete_heartbeat_files()
            self.write_state(running=False)
            self.files.release_guard_lock()
        self.files.release_lock()
        return not self.entries

    def write_state(self, running: bool = True) -> None:
        """Write state.json, which tells other programs what the guard watches and did. With
        `running` False, it says that the guard has ended."""
        wall, now = time.time(), time.monotonic()
        limits = {
            u: self.temperatures.limits[u]
            for u in self.temperatures.watched
            if u in self.temperatures.limits
        }
        # written anew only after the clock has jumped
        known = self.written_state.get("trials_until_unix_s", {})
        until = {}
        for trial, at in self.trials.items():
            end = round(wall + at - now, 1)
            has_jumped = abs(known.get(trial, 0.0) - end) >= CLOCK_JUMP_S
            until[trial] = end if has_jumped else known[trial]
        state = {
            "running": running,
            "version": GUARD_VERSION,
            "pid": os.getpid(),
            "boot_id": self.files.boot_id,
            "root": self.programs.root,
            "since_unix_s": round(self.since_unix_s, 3),
            "journal": self.stamp,
            "trials": self.trials,
            "trials_until_unix_s": until,
            "heartbeats": {
                heartbeat_file_name(e): e["watch"].get("heartbeat_s") for e in self.entries
            },
            "limits_c": limits,
            "did": self.did,
            "did_unix_s": self.did_unix_s,
            "note": self.note if running else None,
            "unseen": self.unseen,
            "problem": self.failed or (self.problem_text() if running or self.entries else None),
        }
        if state != self.written_state:
            self.written_state = state
            self.files.write_state(state)

    def problem_text(self) -> str | None:
        if self.broken:
            return self.broken
        if self.unseen:
            return (
                f"{', '.join(self.unseen)}: the journal changed after the guard's start, so the "
                "guard does not revert this setting"
            )
        return self.temperatures.problem
