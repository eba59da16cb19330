"""The session's connection to the guard. The guard is a process on the host that reverts changed
GPU settings when the session's heartbeats stop. The session sends these heartbeats, starts and
confirms trials of settings, and reports the guard's actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.gpu.guard import client
from workbench.gpu.guard.client import GuardTerms
from workbench.gpu.settings import journal
from workbench.hosts.file_signatures import ChangeSignature, read_file_signatures
from workbench.model.errors import HostError, InputError, SettingsError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.setting_commands import REGISTER_PREFIX

if TYPE_CHECKING:
    from workbench.gpu.guard.client import GuardStatus
    from workbench.gpu.settings.journal import Journal
    from workbench.gpu.settings.rights import Rights
    from workbench.hosts.base import Host
    from workbench.model.setting_records import GuardView, SettingCommand, SettingsReport
    from workbench.session.gpu.alterations import GpuAlterations
    from workbench.session.gpu.rights import GpuRights
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.state_holder import StateHolder
    from workbench.store.config import ConfigStore

HEARTBEAT_S = 30.0
TRIAL_RANGE_S = (1.0, 86_400.0)
HEARTBEATS_PER_TIMEOUT = 6  # heartbeats within the time after which the guard reverts the settings
HEARTBEAT_INTERVAL_RANGE_S = (0.1, 5.0)  # between two heartbeats
GUARD_LOOK_INTERVAL_S = 3.0  # between two looks at a guard that watches the settings of others
IDLE_LOOK_INTERVAL_S = 20.0  # between two looks when no guard runs
STALLED_SCREEN_RANGE_S = (2.5, 5.0)  # a screen that was not drawn for this long is stalled


class GpuGuard:
    """This session's connection to the guard, a process on the host. After the call of
    `start_heartbeats`, the session sends heartbeats. If they stop, the guard reverts the GPU
    settings that the session applied. `options` change the guard's time limits in tests."""

    options: Mapping[str, float] = {}

    def __init__(
        self,
        core: StateHolder,
        config: ConfigStore,
        telemetry: TelemetryWatch,
        alterations: GpuAlterations,
        rights: GpuRights,
    ) -> None:
        self._core, self._config, self._telemetry = core, config, telemetry
        self._alterations, self._rights = alterations, rights
        self._attended = False
        self._nudged = asyncio.Event()  # look at the guard now
        self._ours = False  # the guard waits for this session's heartbeat
        self._applying = False
        self._drawn_s: float | None = None  # when the screen was drawn last
        self._did_unix_s: float | None = None  # the guard's last action that was reported
        self._start_problem: str | None = None  # why a guard that was killed could not be replaced
        # of the files of guard and journal at the last look
        self._marks: ChangeSignature | None = None

    def start_heartbeats(self) -> None:
        """Begin to send heartbeats and to report the guard's actions, in the background."""
        if not self._attended:
            self._attended = True
            self._core.spawn(self._send_heartbeats())

    def stop_heartbeats(self) -> None:
        """Stop sending heartbeats to the guard."""
        self._attended = self._ours = False
        self._did_unix_s = None

    def record_screen_drawn(self) -> None:
        """Record that the screen was drawn now. After the first call, heartbeats are sent only
        while the calls continue, because settings must not stay on behind a stalled screen."""
        self._drawn_s = time.monotonic()

    async def read_heartbeat_timeout_s(self) -> float:
        """Return the number of seconds without a heartbeat after which the guard reverts the
        settings. It is the setting `gpu.heartbeat_s` of config.toml."""
        config = self._config
        if not config.path.exists():  # the schema takes 0.1 s to load
            return HEARTBEAT_S
        return (await asyncio.to_thread(lambda: config.config)).gpu.heartbeat_s

    async def read_guard_state(self) -> GuardView:
        """Read the guard's state from the host and show it in the session's state. Raises HostError
        if the host does not answer."""
        seen = await client.read_guard_status(self._core.host)
        await self._show_guard_status(seen)
        return seen.view

    async def confirm_trial_settings(self) -> GuardView:
        """Confirm GPU settings that are on trial: they stay on after the trial, as long as this
        session sends heartbeats. Return the guard's state."""
        view = await client.confirm_setting_trials(
            self._core.host, await self.read_heartbeat_timeout_s() if self._attended else None
        )
        self._ours = self._attended
        return await self._record_guard_command("confirm", view)

    async def leave_settings_on_unguarded(self) -> GuardView:
        """Leave the altered GPU settings on: from now on, the guard does not revert them when
        heartbeats stop. Return the guard's state."""
        view = await client.mark_all_settings_kept(self._core.host)
        self._ours = False
        return await self._record_guard_command("keep", view)

    async def _record_guard_command(self, command_word: str, view: GuardView) -> GuardView:
        self._core.update(guard=view)
        self._core.record_command(f"workbench gpu {command_word}", view.problem or "ok")
        await self._alterations.read_altered_settings()
        self._nudged.set()
        return view

    async def apply_under_guard(
        self,
        commands: Sequence[SettingCommand],
        rights: Rights,
        trial_s: float | None,
        replaceable: Collection[tuple[str, str]] | None = None,
    ) -> SettingsReport:
        """Apply planned commands, with a guard process that reverts the settings if this session
        ends. With `trial_s`, the guard also reverts them after that many seconds unless the user
        confirms them. `replaceable` has (GPU UUID, key) of the settings whose value from somebody
        else may be replaced, None for all. Raises SettingsError if somebody else has set another
        one, or if a trial gets no guard."""
        from workbench.gpu.settings.apply import apply_commands

        terms = GuardTerms(
            rights, await self.read_heartbeat_timeout_s() if self._attended else None, trial_s
        )

        async def start_guard(journal: Journal) -> GuardView:
            view = await client.start_guard(self._core.host, terms, journal, **self.options)
            is_guarded = view.running and view.guarding
            if trial_s is not None and not is_guarded:
                why = view.problem or "the guard did not start"
                if view.running:
                    why = f"the guard (process {view.pid}) does not guard it: {why}"
                raise SettingsError(
                    f"{why}; a trial needs a guard that reverts its settings",
                    next_step="remove the cause, then repeat the command: without --trial, nothing "
                    "reverts the setting by itself",
                )
            self._core.update(guard=view)
            return view

        self._ours = self._applying = self._attended
        self._nudged.set()
        beats = None
        if not self._attended:
            beats = asyncio.create_task(self._send_heartbeats_during_change())
        try:
            return await apply_commands(
                self._core.host,
                commands,
                rights=rights,
                guard=start_guard,
                watch=terms.guard_instructions_for,
                seen=replaceable,
            )
        except WorkbenchError:  # raised only before the first command
            self._alterations.never_sent = True
            raise
        finally:
            self._applying = False
            self._nudged.set()
            if beats is not None:
                beats.cancel()
                await asyncio.gather(beats, return_exceptions=True)

    async def _send_heartbeats_during_change(self) -> None:
        """Send heartbeats until this task is cancelled, so that the guard does not take the change
        for one that was cut off."""
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_RANGE_S[1])
            with suppress(HostError):
                await client.read_guard_status(self._core.host, client.own_heartbeat_file_name())

    # ---- heartbeats

    async def _send_heartbeats(self) -> None:
        while self._attended:
            heartbeat_s = await self.read_heartbeat_timeout_s()
            await self._check_guard(heartbeat_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._delay_before_guard_check_s(heartbeat_s)):
                    await self._nudged.wait()
            self._nudged.clear()

    def _delay_before_guard_check_s(self, heartbeat_s: float) -> float:
        """Return the time until the next heartbeat, or the next look at the guard."""
        if self._ours:
            return _clamp(heartbeat_s / HEARTBEATS_PER_TIMEOUT, HEARTBEAT_INTERVAL_RANGE_S)
        guard = self._core.state.guard
        if guard is not None and guard.running:
            return GUARD_LOOK_INTERVAL_S
        return IDLE_LOOK_INTERVAL_S

    async def _check_guard(self, heartbeat_s: float) -> None:
        host, owner = self._core.host, client.own_heartbeat_file_name()
        try:
            is_read = self._core.state.guard is None and await self._read_alterations_if_possible()
            marks = await self._file_signatures_if_sufficient(host)
            if marks is not None and marks == self._marks:
                return
            # a starved screen may not be drawn for long, and its change goes on all the same
            alive = self._applying or self._was_screen_drawn_recently(heartbeat_s)
            seen = await client.read_guard_status(host, owner if self._ours and alive else "")
            if host is not self._core.host:
                return
            started = None
            waits_for_us = self._applying or owner in seen.owners
            if not waits_for_us:
                started = await self._replace_lost_guard(host, seen)
            if started is not None:  # what is shown must not speak of the guard before it
                seen = replace(seen, view=started)
                waits_for_us = True
            self._ours = waits_for_us or self._applying
            await self._show_guard_status(seen, is_read)
            deadline, view = None, seen.view
            if self._ours and view.guarding and view.heartbeat_s is not None:
                deadline = time.time() + heartbeat_s
            self._core.update(guard_deadline_unix_s=deadline)
            self._marks = marks
        except WorkbenchError:  # the link is lost, which `state.host` shows
            return

    async def _read_alterations_if_possible(self) -> bool:
        """Read the altered settings from the journal before the guard's state is first read. Return
        whether they could be read."""
        with suppress(WorkbenchError):  # is told when they are read again
            await self._alterations.read_altered_settings()
            return True
        return False

    async def _file_signatures_if_sufficient(self, host: Host) -> ChangeSignature | None:
        """Return the signatures of the files that show what guard and other Workbenches do. None
        while these files do not suffice: if a guard runs or settings are altered, the state of
        processes counts as well."""
        state, register = self._core.state, self._alterations.register_dir
        if register is None or self._ours or self._applying:
            return None
        if state.alterations or state.others:
            return None
        guard = state.guard
        if guard is not None and (guard.running or guard.problem):
            return None
        home = await client.guard_directory(host)
        files = (f"{home}/state.json", f"{home}/told", await journal.journal_path_on(host))
        marks = read_file_signatures(host, files, [(register, REGISTER_PREFIX)])
        return None if marks is None else (host, *marks)

    def _was_screen_drawn_recently(self, heartbeat_s: float) -> bool:
        if self._drawn_s is None:
            return True
        limit_s = _clamp(heartbeat_s / 2, STALLED_SCREEN_RANGE_S)
        return time.monotonic() - self._drawn_s < limit_s

    async def _show_guard_status(self, seen: GuardStatus, is_read: bool = False) -> None:
        """Show the guard's state. Read the altered settings, unless they were read just now
        (`is_read`), if somebody may have changed them."""
        view, before = seen.view, self._core.state.guard
        self._core.update(guard=view)
        acted = view.did_unix_s not in (None, self._did_unix_s)
        self._did_unix_s = view.did_unix_s
        # Others may have changed something since the journal was read.
        age_s = time.monotonic() - self._alterations.read_monotonic_s
        is_stale = self._attended and age_s > IDLE_LOOK_INTERVAL_S
        has_changed = not is_read
        if before is not None:
            has_changed = before.running != view.running
        if has_changed or acted or is_stale:
            await self._alterations.read_altered_settings()
            if not is_stale and self._telemetry.is_reading:
                await self._telemetry.refresh_gpu_readings()
        if self._attended and acted and seen.seen_action != str(view.did_unix_s):
            host = self._core.host
            self._core.notify(
                Level.WARN, f"{host.name}: the guard {view.did}", f"the guard's log is {view.log}"
            )
            self._core.record_command(f"# the guard {view.did}")
            with suppress(HostError):
                await client.mark_guard_action_seen(host, view.did_unix_s or 0.0)

    async def _replace_lost_guard(self, host: Host, seen: GuardStatus) -> GuardView | None:
        """Start a new guard if the guard of this session's GPU settings was killed, or if the link
        was lost before it could start. Return the state of the new guard; if it could not be
        started, that state has the problem. None if no new guard was needed."""
        if not self._ours or seen.view.running:
            return None
        await self._alterations.read_altered_settings()
        if all(a.state == "kept" for a in self._core.state.alterations if a.owner_state == "this"):
            return None
        async with journal.locked_journal(host) as held:
            terms = GuardTerms(
                await self._rights.load_rights(), await self.read_heartbeat_timeout_s()
            )
            view = await client.start_guard(host, terms, held.journal, **self.options)
        self._core.update(guard=view)  # before the message about it
        if view.running:
            self._start_problem = None
            lost = "was killed" if seen.view.problem else "was not started"
            text = f"the guard of the GPU settings {lost}; a new guard watches over them now"
            self._core.notify(Level.WARN, f"{host.name}: {text}")
        elif view.problem != self._start_problem:
            self._start_problem = view.problem
            self._core.notify(
                Level.ERROR, f"{host.name}: no guard watches over the GPU settings: {view.problem}"
            )
        return view


def _clamp(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def check_trial_duration(trial_s: float | None) -> None:
    """Raise InputError if GPU settings cannot be on trial for `trial_s` seconds, after which the
    guard reverts them. None, for no trial, is allowed."""
    if trial_s is not None and not TRIAL_RANGE_S[0] <= trial_s <= TRIAL_RANGE_S[1]:
        raise InputError(
            f"a trial of {trial_s:g} s is not possible",
            next_step=f"give a duration of {TRIAL_RANGE_S[0]:g} to {TRIAL_RANGE_S[1]:g} s",
        )
