"""The application without a screen: one host, its GPUs, servers, settings and results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.hosts.base import AuthFailed, Host, HostKeyChanged, HostKeyUnknown, HostUnreachable
from workbench.model.errors import HostError, InputError, WorkbenchError
from workbench.session.hosts import host_called, known_names
from workbench.session.resuming import Resuming
from workbench.session.state import HostView, SessionState
from workbench.session.watching import INTERVAL_S

if TYPE_CHECKING:
    from workbench.session.api import SessionApi

_OF_PERSON = (
    "presets",
    "presets_problem",
    "presets_read",
    "plan",
    "activity",
    "notice",
)  # these stay when the host changes

_TRY_AGAIN_S = 5.0
_GIVE_BACK_S = 15.0  # for a sweep to set the GPU back when the session closes
_AGENT_FIRST_S = 0.3  # so long the list of presets waits for the agent's start


class Session(Resuming):
    """`open` for a screen (everything watched), `connect` for one command."""

    @classmethod
    def of_host(cls, name: str | None = None, simulate: str | None = None) -> Session:
        return cls(host_called(name, simulate))

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._watched = asyncio.Event()  # the agent is being started
        self._again = asyncio.Event()  # the user does not want to wait for the next try
        self._beginning = False

    async def open(self) -> None:
        """Start what a screen needs, in the background; what fails shows in the state."""
        self.spawn(self.begin())
        self.spawn(self._read_own_files())

    async def _read_own_files(self) -> None:
        with suppress(TimeoutError):  # the agent starts in the time that reading the files takes
            await asyncio.wait_for(self._watched.wait(), _AGENT_FIRST_S)
        await asyncio.to_thread(self.library.list)  # parsing takes 0.1 s, in which keys and figures go on
        self.list_presets()
        await self.read_results()
        await self.resume()
        await self._use_config()

    async def _use_config(self) -> None:
        """How often to read the GPUs, and what is wrong with config.toml. In a thread: its schema takes 0.1 s to load,
        which is spared where there is no such file."""
        if not self.config.path.exists():
            return
        ui = (await asyncio.to_thread(lambda: self.config.config)).ui
        for finding in self.config.findings:
            self.notify(finding.level, finding.text, finding.fix)
        if self.interval_s is None and ui.refresh_s != INTERVAL_S:
            await self.read_every(ui.refresh_s)

    async def begin(self) -> None:
        self._beginning = True
        try:
            await self._reach()
        finally:
            self._beginning = False
        await self.watch_gpus()
        self._watched.set()
        self.attend()
        await self.look_around()
        self.spawn(self.watch_runs())

    async def _reach(self) -> None:
        """Connect; a host that does not answer is tried until it does, since it may be starting."""
        told = False
        while True:
            try:
                return await self.connect()
            except (AuthFailed, HostKeyChanged, HostKeyUnknown):
                raise  # only the person can help
            except HostUnreachable as error:
                if not told:
                    self.notify_error(error)
                told = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._again.wait(), _TRY_AGAIN_S)
                self._again.clear()

    async def look_around(self) -> None:
        """After connecting, and when a lost link is back. What fails shows in the state."""
        looks = [super().look_around, self.adopt, self.read_alterations, self.rights, self.look_at_turn]
        if self._editor is not None:  # a plan that was loaded before the host could be asked
            looks.append(self.look_for_engine)
        for look in looks:
            try:
                await look()
            except WorkbenchError as error:
                self.notify_error(error)

    async def close(self) -> None:
        """Servers and GPU settings stay as they are; a benchmark is cancelled, nothing of it is stored; sweeps and
        experiments give back what they have set."""
        await self._end_loads()
        await self.leave_hosts()
        await self._let_go()
        await self.host.close()

    async def _end_loads(self) -> None:
        with suppress(TimeoutError):  # with a cut link nothing can be given back here: that is the guard's
            await asyncio.wait_for(self.cancel_sweep(), _GIVE_BACK_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stop_experiment(), _GIVE_BACK_S)
        await self.cancel_bench()

    async def _let_go(self) -> None:
        await self.end_tasks()
        await self.stop_watching()
        await self.close_servers()

    # ---- choices

    def bench_profiles(self) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        from workbench.bench import profiles

        return {name: (title, profiles.fields(name)) for name, title in profiles.titles().items()}

    # ---- other hosts

    def known_hosts(self) -> Sequence[str]:
        return known_names()

    async def try_again(self) -> None:
        if self.state.host.link != "failed":
            raise InputError(f"{self.host.name} is {self.state.host.link}", next_step="h works on another host")
        self.update_host(link="connecting", message=None)
        if self._beginning:
            self._again.set()
        else:
            self.spawn(self.begin())

    async def switch_host(self, name: str) -> None:
        """Leave this host as it is and watch another. The plan under edit comes along."""
        host: Host = await asyncio.to_thread(host_called, name)  # loads the ssh library, in which the screen would hang
        await self._end_loads()
        # This may run in a task of the session itself, which must not cancel itself.
        current = asyncio.current_task()
        if current in self._tasks:
            self._tasks.discard(current)
        await self._let_go()
        with suppress(HostError):
            await self.host.close()
        self.host = host
        self._rights = None
        simulated = host.simulated
        fresh = SessionState(host=HostView(name=host.name, kind=host.kind, simulated=simulated))
        of_host = {field: getattr(fresh, field) for field in fresh.__dataclass_fields__ if field not in _OF_PERSON}
        self.update(**{**of_host, "log_revision": self.state.log_revision + 1})
        if self._editor is not None:
            self._editor.around = replace(
                self._editor.around, gpus=(), installed=None, installed_version=None, installed_problem=None, models={}
            )
            self.show_plan()
        await self.open()


if TYPE_CHECKING:

    def _is_what_front_ends_ask_for(session: Session) -> SessionApi:
        return session
