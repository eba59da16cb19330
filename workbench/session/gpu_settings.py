"""GPU settings: planned, applied with a journal, reverted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from workbench.model.errors import HostError
from workbench.model.findings import Level
from workbench.session.serving import Serving

if TYPE_CHECKING:  # loaded after the first frame, as in all modules of the session
    from workbench.gpu.proof import Proof
    from workbench.gpu.rights import Rights
    from workbench.model.settings import Alteration, GpuSettings, SettingCommand, SettingsReport


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
            self.update(offers=())  # the person has just seen to them
        if self._source is not None:
            await self._source.refresh()

    def take_proofs(self, proofs: Sequence[Proof]) -> None:
        """What a load has shown stands on each GPU's row until its settings change."""
        from workbench.model.settings import InForce

        shown = {(p.gpu_index, p.short) for p in proofs if p.short and p.gpu_index >= 0}  # the host has no row
        kept = [f for f in self.state.gpu_findings if f[0] not in {index for index, _ in shown}]
        self.update(gpu_findings=(*kept, *sorted(shown)))
        for proof in proofs:
            if proof.in_force in (InForce.NO_EFFECT, InForce.CAPPED):
                self.notify(Level.WARN, f"{proof.where}: {proof.text}", "r gives back what was before")

    async def read_alterations(self) -> None:
        from workbench.gpu.control import alterations

        found = await alterations(self.host)
        offers = ("GPU settings that Workbench made are still on: r gives back what was before",) if found else ()
        changed = {a.gpu_index for a in set_difference(found, self.state.alterations)}
        findings = tuple(f for f in self.state.gpu_findings if f[0] not in changed)
        self.update(alterations=found, offers=offers, gpu_findings=findings)


def set_difference(a: Sequence[Alteration], b: Sequence[Alteration]) -> list[Alteration]:
    """What is in one of them only: the settings that have changed."""
    known = [(x.gpu_index, x.setting, x.now, x.since_unix_s) for x in (*a, *b)]
    return [x for x, key in zip((*a, *b), known, strict=True) if known.count(key) == 1]
