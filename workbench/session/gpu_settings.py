"""GPU settings: planned, applied with a journal, reverted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from workbench.model.errors import HostError
from workbench.model.settings import GpuSettings, SettingCommand, SettingsReport
from workbench.session.serving import Serving

if TYPE_CHECKING:
    from workbench.gpu.rights import Rights


class Settings(Serving):
    _rights: Rights | None = None

    async def rights(self) -> Rights:
        if self._rights is None:
            from workbench.gpu.rights import rights_on

            self._rights = await rights_on(self.host)
            self.update_host(can_change_gpus=self._rights.refusal, user=self._rights.user)
        return self._rights

    async def plan_gpu(
        self, wanted: GpuSettings, gpu: int | str | None = None
    ) -> Sequence[SettingCommand]:
        from workbench.gpu.plan import plan

        selector = "all" if gpu is None else str(gpu)
        return plan({selector: wanted}, await self.reading(), await self.rights())

    async def apply_gpu(
        self, wanted: GpuSettings, gpu: int | str | None = None, *, dry_run: bool = False
    ) -> SettingsReport:
        from workbench.gpu.control import apply

        commands = await self.plan_gpu(wanted, gpu)
        with self.busy("applying GPU settings"):
            report = await apply(self.host, commands, dry_run=dry_run)
        if not dry_run:
            await self._settled(report)
        return report

    async def revert_gpu(self, gpu: int | str | None = None) -> SettingsReport:
        from workbench.gpu.control import revert

        with self.busy("reverting GPU settings"):
            report = await revert(self.host, gpu)
        await self._settled(report)
        return report

    async def _settled(self, report: SettingsReport) -> None:
        for outcome in report.outcomes:
            self.record(shlex.join(outcome.command.argv), "ok" if outcome.ok else outcome.message)
        with suppress(HostError):  # the link was lost: what was done is told all the same, and read once it is back
            await self.read_alterations()
        if self._source is not None:
            await self._source.refresh()

    async def read_alterations(self) -> None:
        from workbench.gpu.control import alterations

        found = await alterations(self.host)
        offers = ("GPU settings that Workbench made are still on: r gives back what was before",) if found else ()
        self.update(alterations=found, offers=offers)
