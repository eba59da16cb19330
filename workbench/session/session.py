"""The application without a screen: one host, its GPUs, servers, settings and results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from workbench.hosts.base import Host
from workbench.model.errors import HostError, WorkbenchError
from workbench.session.hosts import host_called, known_names
from workbench.session.measuring import Measuring
from workbench.session.state import HostView, SessionState


class Session(Measuring):
    """`open` for a screen (everything watched), `connect` for one command."""

    @classmethod
    def of_host(cls, name: str | None = None, simulate: str | None = None) -> Session:
        return cls(host_called(name, simulate))

    async def open(self) -> None:
        """Start what a screen needs, in the background; what fails shows in the state."""
        self.spawn(self._read_own_files())
        self.spawn(self.begin())

    async def _read_own_files(self) -> None:
        self.list_presets()
        await self.read_results()
        for finding in self.config.findings:
            self.notify(finding.level, finding.text, finding.fix)

    async def begin(self) -> None:
        await self.connect()
        await self.watch_gpus()
        for work in (self.adopt, self.read_alterations, self.rights):
            try:
                await work()
            except WorkbenchError as error:
                self.notify_error(error)

    async def close(self) -> None:
        """Servers and GPU settings stay as they are."""
        await self.cancel_bench()
        await self._let_go()
        await self.host.close()

    async def _let_go(self) -> None:
        await self.end_tasks()
        await self.stop_watching()
        await self.close_servers()

    # ---- other hosts

    def known_hosts(self) -> Sequence[str]:
        return known_names()

    async def switch_host(self, name: str) -> None:
        """Leave this host as it is and watch another. The plan under edit comes along."""
        host: Host = host_called(name)
        await self.cancel_bench()
        # This may run in a task of the session itself, which must not cancel itself.
        current = asyncio.current_task()
        if current in self._tasks:
            self._tasks.discard(current)
        await self._let_go()
        with suppress(HostError):
            await self.host.close()
        self.host = host
        self._rights = None
        simulated = getattr(host, "simulated", None)
        kept = self.state
        fresh = SessionState(host=HostView(name=host.name, kind=host.kind, simulated=simulated))
        self.update(
            **{
                name: getattr(fresh, name)
                for name in fresh.__dataclass_fields__
                if name not in ("presets", "presets_problem", "plan", "activity", "notice", "log_revision")
            },
            log_revision=kept.log_revision + 1,
        )
        if self._editor is not None:
            self._editor.around = replace(
                self._editor.around, gpus=(), installed=None, installed_version=None, installed_problem=None
            )
            self.show_plan()
        await self.open()
