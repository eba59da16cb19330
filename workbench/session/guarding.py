"""The guard over changed GPU settings, seen from the session: heartbeat, trial, keep, and what it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from workbench.hosts.base import Host
from workbench.model.errors import HostError, InputError, SettingsError, WorkbenchError
from workbench.model.findings import Level
from workbench.session.gpu_settings import Settings

if TYPE_CHECKING:
    from workbench.gpu.guard.client import GuardStatus
    from workbench.gpu.settings.rights import Rights
    from workbench.model.settings import GuardView, SettingCommand, SettingsReport

HEARTBEAT_S = 30.0
TRIAL_S = (1.0, 86_400.0)
BEATS = 6  # signs of life within the time after which the guard gives back
BEAT_S = (0.1, 5.0)
WATCHED_S = 3.0  # how often the guard is looked at while it watches others' settings
SELDOM_S = 20.0  # and while there is none
DRAWN_S = (2.5, 5.0)  # a screen that could not draw for so long is stalled


class Guarding(Settings):
    """`attend` for a program that stays: its heartbeat holds the settings that it makes."""

    guard_options: ClassVar[Mapping[str, float]] = {}  # guard.Guard's, for tests
    _attended = False
    _mine = False  # the guard waits for our heartbeat
    _applying = False
    _drawn_s: float | None = None
    _did_unix_s: float | None = None
    _lost_guard: str | None = None  # why another could not be started in place of one that was killed

    def attend(self) -> None:
        """Give signs of life from now on, in the background, and tell what the guard does. Ends with the session."""
        if not self._attended:
            self._attended = True
            self._nudged = asyncio.Event()
            self.spawn(self._attend())

    async def end_tasks(self) -> None:
        self._attended = self._mine = False
        self._did_unix_s = None
        await super().end_tasks()

    def alive(self) -> None:
        """The screen was drawn and the terminal has taken it. Once a front end has said so it has to go on saying it:
        a screen that nobody can see any more does not hold settings."""
        self._drawn_s = time.monotonic()

    async def heartbeat_s(self) -> float:
        if not self.config.path.exists():  # its schema takes 0.1 s to load
            return HEARTBEAT_S
        return (await asyncio.to_thread(lambda: self.config.config)).gpu.heartbeat_s

    async def read_guard(self) -> GuardView:
        """Ask the host once. HostError when it is out of reach."""
        from workbench.gpu.guard.client import look

        seen = await look(self.host)
        await self._take(seen)
        return seen.view

    async def confirm_gpu(self) -> GuardView:
        from workbench.gpu.guard.client import confirm

        view = await confirm(self.host, await self.heartbeat_s() if self._attended else None)
        self._mine = self._attended
        return await self._ordered("confirm", view)

    async def keep_gpu(self) -> GuardView:
        from workbench.gpu.guard.client import keep

        view = await keep(self.host)
        self._mine = False
        return await self._ordered("keep", view)

    async def _ordered(self, order: str, view: GuardView) -> GuardView:
        self.update(guard=view)
        self.record(f"workbench gpu {order}", view.problem or "ok")
        await self.read_alterations()
        self._nudge()
        return view

    async def _apply(
        self, commands: Sequence[SettingCommand], rights: Rights, *, dry_run: bool, trial_s: float | None
    ) -> SettingsReport:
        from workbench.gpu.guard.client import Terms, start
        from workbench.gpu.settings.apply import apply

        if trial_s is not None and not TRIAL_S[0] <= trial_s <= TRIAL_S[1]:
            raise InputError(f"a trial of {trial_s:g} s cannot be: {TRIAL_S[0]:g} to {TRIAL_S[1]:g} s")
        if dry_run:
            return await super()._apply(commands, rights, dry_run=True, trial_s=trial_s)
        terms = Terms(rights, await self.heartbeat_s() if self._attended else None, trial_s)

        async def guard() -> GuardView:
            view = await start(self.host, terms, **self.guard_options)
            if trial_s is not None and not view.running:
                raise SettingsError(
                    f"{view.problem or 'the guard did not start'}, and a trial needs one",
                    next_step="change it without --trial",
                )
            self.update(guard=view)
            return view

        self._mine = self._applying = self._attended
        self._nudge()
        try:
            return await apply(self.host, commands, rights=rights, guard=guard, watch=terms.watch)
        finally:
            self._applying = False
            self._nudge()

    # ---- signs of life

    def _nudge(self) -> None:
        if self._attended:
            self._nudged.set()

    async def _attend(self) -> None:
        while self._attended:
            heartbeat_s = await self.heartbeat_s()
            await self._look(heartbeat_s)
            if self._mine:
                pause = min(max(heartbeat_s / BEATS, BEAT_S[0]), BEAT_S[1])
            else:
                pause = WATCHED_S if self.state.guard and self.state.guard.running else SELDOM_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._nudged.wait()
            self._nudged.clear()

    async def _look(self, heartbeat_s: float) -> None:
        from workbench.gpu.guard.client import look, owner_id

        host = self.host
        try:
            seen = await look(host, owner_id() if self._mine and self._drawn(heartbeat_s) else "")
            if host is self.host:
                self._mine = self._applying or owner_id() in seen.owners or await self._without_guard(host, seen)
                await self._take(seen)
        except WorkbenchError:  # the link is lost, which its state tells
            return

    def _drawn(self, heartbeat_s: float) -> bool:
        limit_s = min(max(heartbeat_s / 2, DRAWN_S[0]), DRAWN_S[1])
        return self._drawn_s is None or time.monotonic() - self._drawn_s < limit_s

    async def _take(self, seen: GuardStatus) -> None:
        from workbench.gpu.guard.client import was_told

        view, before = seen.view, self.state.guard
        self.update(guard=view)
        news = view.did_unix_s is not None and view.did_unix_s != self._did_unix_s
        self._did_unix_s = view.did_unix_s
        stale = self._attended and time.monotonic() - self._read_at > SELDOM_S  # others may have changed something
        if before is None or before.running != view.running or news or stale:
            await self.read_alterations()
            if self._source is not None and not stale:
                await self._source.refresh()
        if news and self._attended and seen.told != str(view.did_unix_s):
            self.notify(Level.WARN, f"{self.host.name}: the guard {view.did}", f"its log is {view.log}")
            self.record(f"# the guard {view.did}")
            with suppress(HostError):
                await was_told(self.host, view.did_unix_s or 0.0)

    async def _without_guard(self, host: Host, seen: GuardStatus) -> bool:
        """Whether settings of ours are on that its guard has left alone, by being killed; another is started."""
        if not self._mine or seen.view.running:
            return False
        await self.read_alterations()
        if not any(
            a.extra.get("owner_state") == "this" and a.extra.get("state") != "kept" for a in self.state.alterations
        ):
            return False
        from workbench.gpu.guard.client import Terms, start
        from workbench.gpu.settings import journal

        async with journal.locked(host):
            view = await start(host, Terms(await self.rights(), await self.heartbeat_s()), **self.guard_options)
        if view.running:
            self._lost_guard = None
            self.notify(Level.WARN, f"{host.name}: the guard of the GPU settings was gone; another one watches now")
        elif view.problem != self._lost_guard:
            self._lost_guard = view.problem
            self.notify(Level.ERROR, f"{host.name}: no guard watches over the GPU settings: {view.problem}")
        return True
