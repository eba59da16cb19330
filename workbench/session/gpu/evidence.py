"""Evidence from loads about GPU settings: clocks under load, proofs of which settings are in force,
and short texts on these proofs for the rows of the GPUs on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.gpu.settings.clock_contrasts import does_clock_refute_its_lock
from workbench.gpu.settings.proof_files import (
    read_measured_clocks,
    store_effect_texts,
    store_measured_clocks,
)
from workbench.model.errors import HostError
from workbench.model.findings import Level
from workbench.model.setting_commands import is_clock_lock
from workbench.model.setting_records import InForce

if TYPE_CHECKING:
    from workbench.gpu.settings.clock_contrasts import ContrastEvidence, MeasuredClock
    from workbench.gpu.settings.proof import Proof
    from workbench.model.setting_records import Alteration
    from workbench.session.state_holder import StateHolder


class GpuEvidence:
    """Stores on the host what loads have shown about GPU settings, that is clocks under load and
    proofs of which settings are in force. Later loads and other Workbenches read them."""

    def __init__(self, core: StateHolder) -> None:
        self._core = core

    async def read_clocks_of_recent_loads(self, load_digest: str) -> ContrastEvidence:
        """Return the clocks of the host's GPUs under the loads of the last day. They are compared
        with the clocks under the next load, whose digest is `load_digest`."""
        return replace(
            await read_measured_clocks(self._core.host),
            load=load_digest,
            others=self._core.state.others,
        )

    async def add_and_store_clocks(
        self, known: ContrastEvidence, clocks: Sequence[MeasuredClock], proofs: Sequence[Proof]
    ) -> ContrastEvidence:
        """Return `known` with the clocks under a load, the clock locks that `proofs` show to be in
        force, and those that the clocks show to have no effect. Also store it on the host, unless
        nothing was added or the host cannot be written."""
        shown = self._own_locks_with_verdict(proofs, InForce.YES)
        against = {
            (c.gpu_uuid, c.setting) for c in clocks if does_clock_refute_its_lock(c, known.clocks)
        }
        without_effect = self._own_locks_with_verdict(proofs, InForce.NO_EFFECT)
        refuted = [a for a in without_effect if (a.gpu_uuid, a.setting) in against]
        known = known.with_clocks(clocks).with_shown_effects(shown).with_refuted_effects(refuted)
        if clocks or shown:
            with suppress(HostError):  # the next load has less to compare with
                await store_measured_clocks(self._core.host, known)
        return known

    def _own_locks_with_verdict(
        self, proofs: Sequence[Proof], verdict: InForce
    ) -> list[Alteration]:
        """Return the clock locks of this Workbench about which `proofs` have this verdict."""
        judged = set()
        for proof in proofs:
            if proof.in_force is verdict and is_clock_lock(proof.setting):
                judged.add((proof.gpu_index, proof.setting))
        return [a for a in self._core.state.alterations if (a.gpu_index, a.setting) in judged]

    async def show_proofs_on_gpus(self, proofs: Sequence[Proof]) -> None:
        """Show on the row of each GPU whether its altered settings are in force, in this session
        and in later ones, until the settings of that GPU change. Notify the user of settings that
        are not in force."""
        # the host has no row
        shown = {(p.gpu_index, p.short) for p in proofs if p.short and p.gpu_index >= 0}
        judged = {gpu_index for gpu_index, _ in shown}
        kept = (f for f in self._core.state.gpu_findings if f[0] not in judged)
        self._core.update(gpu_findings=(*kept, *sorted(shown)))
        for proof in proofs:
            if proof.in_force in (InForce.NO_EFFECT, InForce.CAPPED, InForce.CHANGED):
                self._core.notify(
                    Level.WARN,
                    f"{proof.gpu_or_host_name}: {proof.text}",
                    "press r to revert the GPU settings",
                )
        if shown:
            with suppress(HostError):  # the result contains the proofs, too
                await store_effect_texts(
                    self._core.host, self._core.state.gpu_findings, self._core.state.alterations
                )
