"""Whether altered settings hold, shown by driving the running server for some seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workbench.model.errors import BenchError, ServerError
from workbench.model.server_run import ServerState
from workbench.session.conditions import gpus_of
from workbench.session.measuring import Measuring
from workbench.session.state import BenchState

if TYPE_CHECKING:
    from workbench.gpu.settings.proof import Proof
    from workbench.model.bench import BenchSpec
    from workbench.model.settings import Alteration, SettingCommand
    from workbench.session.benched import Benched
    from workbench.session.driving import Driven
    from workbench.session.probing import Probes

VERIFY_S = 8.0
FILLS = {"concurrency": 32, "max_tokens": 256, "input_tokens": 128}  # enough to keep a GPU busy all the time
READABLE = ("persistence", "governor")  # what the host says of these is what holds, under load or not
NOTHING = "nothing was altered: no GPU setting of Workbench's is on"


@dataclass(frozen=True, slots=True)
class Verification:
    """`proofs`: one for each altered setting that the load could show. `unloaded`: altered settings of GPUs that the
    server does not use."""

    proofs: tuple[Proof, ...] = ()
    unloaded: tuple[str, ...] = ()
    target: str | None = None  # run id or URL; None: nothing was loaded, as there was nothing that only load shows
    seconds: float = 0.0
    output_tok_s: float | None = None
    gpus: tuple[int, ...] = ()
    simulated: bool = False
    notes: tuple[str, ...] = ()  # why a probe was not made

    @property
    def lines(self) -> tuple[str, ...]:
        """For a person: each setting, then what is true of all of a card's."""
        found = [*(f"{p.where}: {p.text}" for p in self.proofs), *self.unloaded, *self.notes]
        found += [f"{p.where}: {t.text}" for p in self.proofs for t in p.traps if t.text not in p.text]
        return tuple(dict.fromkeys(found)) or (NOTHING,)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for p in self.proofs for t in p.traps for source in t.sources))


class Verifying(Measuring):
    _probes: Probes | None = None  # of what the last load left open

    async def verify_gpu(
        self, seconds: float = VERIFY_S, *, probe: bool = False, password: str | None = None
    ) -> Sequence[str]:
        """What a load shows, in words. `probe`: try what `probe_commands` named, and nothing else."""
        from workbench.session import probing

        tried, self._probes = self._probes, None
        found = await self.verify(seconds, probe=(tried or {}) if probe else False, password=password)
        if not probe:
            infos = (await self.reading()).infos if found.proofs else ()
            self._probes, _ = probing.chosen(infos, probing.unsure(found.proofs))
        return found.lines

    async def probe_commands(self) -> Sequence[SettingCommand]:
        """What a probe of the clocks would run that the last load proved nothing of, and what sets yours again."""
        from workbench.session import probing

        return await probing.commands_of(self, self._probes or {})

    async def verify(
        self,
        seconds: float = VERIFY_S,
        run_id: str | None = None,
        url: str | None = None,
        *,
        probe: bool | Probes = False,
        password: str | None = None,
        **bench: Any,
    ) -> Verification:
        """Load the run (the selected or newest READY one where neither is named), and judge every altered setting.
        `probe`: where a clock proves nothing, try another lock for PROBE_S and set the first again; True: one that is
        chosen from what the load shows."""
        await self.read_alterations()
        altered = self.state.alterations
        if not altered:
            return Verification(simulated=self.state.simulated)
        if run_id is None and url is None and all(a.setting in READABLE for a in altered):
            return await self._verify_by_reading(altered)
        with self.busy("verifying GPU settings"):
            async with self.aim(run_id, url, {**FILLS, **bench}) as (spec, benched, env):
                found = await self._verify(seconds, spec, benched, env, altered, (probe, password))
        await self.take_proofs(found.proofs)
        said = "; ".join(p.short for p in found.proofs if p.short)
        self.record(f"workbench gpu verify {found.target} --seconds {seconds:g}", said)
        return found

    async def _verify_by_reading(self, altered: Sequence[Alteration]) -> Verification:
        """Without a load, and so without a server: the host tells."""
        from workbench.gpu.settings.proof import judge_all
        from workbench.gpu.telemetry.source import read_once

        proofs = judge_all(altered, (), await read_once(self.host))
        await self.take_proofs(proofs)
        self.record("workbench gpu verify", "; ".join(p.text for p in proofs))
        return Verification(proofs, simulated=self.state.simulated)

    async def _verify(
        self,
        seconds: float,
        spec: BenchSpec,
        benched: Benched,
        env: dict[str, str],
        altered: Sequence[Alteration],
        probe: tuple[bool | Probes, str | None],
    ) -> Verification:
        from workbench.gpu.settings.disturbance import locks_changed
        from workbench.model.settings import HOST_INDEX
        from workbench.session import probing
        from workbench.session.conditions import load_of
        from workbench.session.driving import drive
        from workbench.session.meter import Meter

        self.update(bench=BenchState(running=True, spec=spec, last_id=self.state.bench.last_id))
        try:
            async with Meter(self.host) as meter:

                async def load(load_s: float) -> Driven:
                    return await drive(spec, env, self.cancelled, lambda so_far_s: so_far_s >= load_s, self._progress)

                known = await self.known_clocks(load_of(spec, benched))
                before, driven = self.locks_on, await load(seconds)
                await self.read_alterations()
                known = replace(known, others=self.state.others)
                gpus = gpus_of(benched.plan, meter.latest.infos if meter.latest else ())
                used = [a for a in altered if a.gpu_index in (*gpus, HOST_INDEX)]
                span = driven.t0_s, driven.t1_s
                notes = locks_changed(before, self.locks_on, gpus)
                known = replace(known, clocks=(), shown=()) if notes else known
                proofs = meter.proofs(*span, used, known)
                clocks = [] if notes else list(meter.clocks(*span, altered, known))
                if probe[0] and not notes and (unsure := probing.unsure(proofs)):
                    probes, why_none = probing.chosen(meter.latest.infos if meter.latest else (), unsure)
                    if not isinstance(probe[0], bool):
                        probes, why_none = probe[0], ()
                    tried, failed = await probing.probed(self, meter, probes, load, known, probe[1])
                    notes = (*why_none, *failed)
                    clocks += tried
                    proofs = meter.proofs(*span, used, known.with_clocks(tried))
                if clocks:
                    await self.keep_clocks(known, clocks, proofs)
        finally:
            self.update(bench=replace(self.state.bench, running=False))
        target = benched.status.run_id if benched.status else f"--url {spec.url}"
        return Verification(
            proofs,
            tuple(map(_unloaded, (a for a in altered if a not in used))),
            target,
            round(driven.t1_s - driven.t0_s, 1),
            driven.output_tok_s,
            gpus,
            self.state.simulated or benched.simulated,
            notes,
        )

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when the load that is running is to end."""
        assert self._cancel is not None
        return self._cancel

    @asynccontextmanager
    async def aim(
        self, run_id: str | None, url: str | None, overrides: dict[str, Any]
    ) -> AsyncIterator[tuple[BenchSpec, Benched, dict[str, str]]]:
        """At a run, a server by URL, or the one at hand. One whose GPUs cannot be read is refused."""
        if url is not None:
            async with self.aim_at_url(url, overrides) as aimed:
                if not aimed[1].gpus_known:
                    why = f"the GPUs of {aimed[1].host} are not known: only those of {self.host.name} are read"
                    raise BenchError(why, next_step="run this on the server's own host, or with --host")
                yield aimed
        else:
            async with self.aim_at_run(run_id or await self.run_at_hand(), overrides) as aimed:
                yield aimed

    async def run_at_hand(self) -> str:
        """The selected run, else the newest READY one."""
        if self.state.run_id is not None:
            return self.state.run_id
        ready = [s for s in await self.supervisor.runs() if s.state is ServerState.READY]
        if not ready:
            raise ServerError(
                "no server is READY here, and a setting shows under load only",
                host=self.host.name,
                next_step="workbench start PRESET --wait, or name one with --url",
            )
        return ready[0].run_id


def _unloaded(one: Alteration) -> str:
    return f"GPU{one.gpu_index}: {one.setting} is not checked: the server does not use this GPU"
