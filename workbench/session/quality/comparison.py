"""The comparison of the answers of two servers: A is measured twice, and again after a restart, then
B. What A differs from itself is what this machine calls equal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from workbench.model.counts import count_of
from workbench.model.errors import BenchError, ServerError, WorkbenchError
from workbench.model.experiment import Experiment, ExperimentSpec
from workbench.model.quality import (
    NOT_MEASURED,
    GreedyAnswer,
    InstrumentProof,
    QualityResult,
    ScoredText,
)
from workbench.model.secrets import mask_argv
from workbench.quality.instrument import ANSWER_TOKENS, Instrument, requests_of
from workbench.quality.pieces import Pieces
from workbench.quality.verdict import Margins, judge
from workbench.session.quality.scored_server import ScoredServer, scored
from workbench.session.series.experiment_arms import Arms
from workbench.session.servers.arm_targets import ArmTargets
from workbench.session.uninterrupted import uninterrupted
from workbench.store import paths
from workbench.store.quality_db import QualityDb

if TYPE_CHECKING:
    from workbench.model.experiment import Arm
    from workbench.quality.texts import TextSet
    from workbench.session.bench.benchmark_load import Load
    from workbench.session.hosts.other_hosts import OtherHosts
    from workbench.session.plans.plans import Plans
    from workbench.session.servers.arm_targets import Bases, Side
    from workbench.session.servers.servers import Servers
    from workbench.session.state_holder import StateHolder

_WORK = "a comparison of answers"
CONCURRENCY = 8  # answers that are written together

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """How two servers are compared. `concurrency` is the number of answers that are written
    together, `restart` says whether A is measured again after a restart, and `anyway` whether a
    server that serves others is measured."""

    texts: TextSet
    concurrency: int = CONCURRENCY
    restart: bool = True
    anyway: bool = False
    margins: Margins = field(default_factory=Margins)


@dataclass
class _Measured:
    """What was measured so far."""

    a: tuple[ScoredText, ...] = ()
    b: tuple[ScoredText, ...] = ()
    floors: list[tuple[ScoredText, ...]] = field(default_factory=list)
    answers_a: tuple[GreedyAnswer, ...] = ()
    answers_again: tuple[GreedyAnswer, ...] = ()
    answers_b: tuple[GreedyAnswer, ...] = ()
    proofs: list[InstrumentProof] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    conditions: dict[str, dict[str, Any]] = field(default_factory=dict)
    pieces: dict[str, Pieces] = field(default_factory=dict)
    simulated: bool = False


class QualityComparisons:
    """Compares the answers of two servers of the session's host, or of other hosts."""

    def __init__(
        self,
        core: StateHolder,
        plans: Plans,
        servers: Servers,
        hosts: OtherHosts,
    ) -> None:
        self._core, self._servers = core, servers
        self.targets = ArmTargets(plans, hosts)

    async def compare(
        self, a: Arm, b: Arm, bases: Bases, options: QualityOptions, tell: Tell
    ) -> QualityResult:
        """Compare the answers of B with those of A, store the result and return it. `bases` are the
        plans that `targets` has looked up. `tell` hears what is being done. Raises WorkbenchError
        if a server cannot be started or reached. A server that fails later ends the measurement,
        and the result then says so."""
        spec = ExperimentSpec(_masked(a), _masked(b), {})
        sides = await self.targets.sides(spec, {"A": a, "B": b}, bases)
        began = time.time()
        async with self._reserved(sides):
            work = _Comparison(spec, sides, options, tell)
            measured = await work.carry_out(self._core.host.name)
        result = _judged(measured, (_words(a), _words(b)), options)
        result = replace(result, unix_s=began, took_s=round(time.time() - began, 3))
        return await asyncio.to_thread(QualityDb(paths.results_db()).add, result)

    @asynccontextmanager
    async def _reserved(self, sides: Mapping[str, Side]) -> AsyncIterator[None]:
        """Keep everything else from the servers while the block runs, also other Workbenches."""
        sessions = {side.session.host.name: side.session for side in sides.values() if side.on_host}
        async with AsyncExitStack() as stack:
            for name in sorted(sessions):
                await stack.enter_async_context(sessions[name].measurement_lock.hold(_WORK))
            stack.enter_context(self._core.busy(_WORK))
            stack.enter_context(self._servers.reserve(_WORK))
            yield


class _Comparison:
    """One comparison that is being carried out."""

    def __init__(
        self, spec: ExperimentSpec, sides: Mapping[str, Side], options: QualityOptions, tell: Tell
    ) -> None:
        self._spec, self._sides, self._options, self._tell = spec, sides, options, tell
        self._arms = Arms(spec, sides, restarts=True)
        self._done = _Measured()

    async def carry_out(self, host: str) -> _Measured:
        """Measure A and B, and restore the servers that ran before."""
        done = self._done
        new = Experiment(0, time.time(), host, self._spec, restarts=True)
        new = replace(new, replaces=self._arms.replaced())
        await self._arms.prepare(new)
        try:
            await self._measure()
        finally:

            async def restore() -> None:
                # so that the server that ran before is started again, and not B goes on
                with suppress(WorkbenchError):  # then give_back says what still runs
                    await self._arms.clear()
                done.notes += await self._arms.give_back(new)

            await uninterrupted(restore())
        return done

    async def _measure(self) -> None:
        if not self._options.anyway:
            for side in self._sides.values():
                if side.standing is not None:
                    async with self._load(side, side.standing) as load, scored(load) as server:
                        await server.check_alone()
        async with self._server("A") as server:
            await self._first(server)
        if self._options.restart and self._sides["A"].standing is None:
            await self._later("A, started again", "A", self._again)
        await self._later("B", "B", self._changed)

    async def _later(
        self, title: str, name: str, measure: Callable[[ScoredServer], Awaitable[None]]
    ) -> None:
        """Measure a side after A was measured. A server that does not start or answer ends the
        comparison, and what was measured before is kept."""
        if self._done.problems:
            return
        try:
            async with self._server(name, title) as server:
                await measure(server)
        except (BenchError, ServerError) as error:
            self._done.problems.append(f"{title}: {error.message}")

    @asynccontextmanager
    async def _server(self, name: str, title: str = "") -> AsyncIterator[ScoredServer]:
        """Start the server of a side, or use the one that runs, while the block runs."""
        side, title = self._sides[name], title or name
        run_id = side.standing
        if run_id is None:
            self._tell(f"{title}: starting")
            run_id = await self._arms.server(name)
            await self._arms.ready(name, run_id, lambda text: self._tell(f"{title}: {text}"))
        async with self._load(side, run_id) as load, scored(load) as server:
            await server.begin()
            self._done.simulated = self._done.simulated or server.simulated
            self._done.conditions.setdefault(name, server.conditions)
            yield server
            # Workbench itself asks a server that it has started whether it is well.
            others = await server.others() if side.standing is not None else ""
            if others:
                self._done.notes.append(others)

    @asynccontextmanager
    async def _load(self, side: Side, run_id: str) -> AsyncIterator[Load]:
        loads = side.session.load
        opened = loads.at_url(side.url, {}) if side.url is not None else loads.at_run(run_id, {})
        async with opened as load:
            yield load

    # ---- what is measured of each side

    async def _first(self, server: ScoredServer) -> None:
        instrument = self._instrument(server, "A")
        proven = await self._prove(instrument, "A")
        if proven:
            began = time.monotonic()
            self._done.a = await self._score(instrument, "A")
            took_s = time.monotonic() - began
            self._tell(f"A: one scoring took {took_s:.0f} s")
            self._done.floors.append(await self._score(instrument, "A, again"))
        self._done.answers_a = await self._write(instrument, "A")
        self._done.answers_again = await self._write(instrument, "A, again")

    async def _again(self, server: ScoredServer) -> None:
        instrument = self._instrument(server, "A, started again")
        if all(proof.usable for proof in self._done.proofs):
            self._done.floors.append(await self._score(instrument, "A, started again"))

    async def _changed(self, server: ScoredServer) -> None:
        instrument = self._instrument(server, "B")
        if await self._prove(instrument, "B") and self._done.a:
            self._done.b = await self._score(instrument, "B")
        self._done.answers_b = await self._write(instrument, "B")

    def _instrument(self, server: ScoredServer, title: str) -> Instrument:
        def show(what: str, done: int, total: int) -> None:
            if done == total:
                self._tell(f"{title}: {total} {what}")

        instrument = server.instrument(show)
        self._done.pieces.setdefault(title[:1], instrument.pieces)  # "A, started again" is A
        return instrument

    async def _prove(self, instrument: Instrument, side: str) -> bool:
        proof = await instrument.prove(self._options.texts.texts, side)
        self._done.proofs.append(proof)
        if proof.usable:
            self._tell(
                f"{side}: the instrument is proven, {proof.positions} positions scored in two ways "
                f"differ by at most {proof.largest:.2g}"
            )
        else:
            self._tell(f"{side}: instrument not usable: {proof.reason}")
        return proof.usable

    async def _score(self, instrument: Instrument, title: str) -> tuple[ScoredText, ...]:
        if self._done.problems:
            return ()
        scores = await instrument.score(self._options.texts.texts)
        if scores.problem:
            self._done.problems.append(f"{title}: {scores.problem}")
        return scores.texts

    async def _write(self, instrument: Instrument, title: str) -> tuple[GreedyAnswer, ...]:
        if self._done.problems:
            return ()
        written = await instrument.write(
            self._options.texts.texts, concurrency=self._options.concurrency
        )
        if written.problem:
            self._done.problems.append(f"{title}: {written.problem}")
        return written.answers


def cost_lines(prefill: bool | None, options: QualityOptions, restarted: bool) -> Sequence[str]:
    """Return what a comparison will do, before it starts. `prefill` says whether the engine of A
    scores a whole prompt in one request; None if the engine is not known yet."""
    texts = options.texts.texts
    short = sum(not text.long for text in texts)
    times = 3 if restarted else 2
    requests = {way: requests_of(texts, prefill=way) for way in (True, False)}
    each = f"{requests[True]} to {requests[False]} requests"
    if prefill is not None:
        each = f"{requests[prefill]} requests"
    return (
        f"{count_of(len(texts), 'text')} of the set {options.texts.name}, version "
        f"{options.texts.version}: {each} each time, one at a time",
        f"{count_of(short, 'answer')} of at most {ANSWER_TOKENS} tokens each time, "
        f"{options.concurrency} together",
        f"A is measured {times} times, B once",
    )


def _judged(measured: _Measured, names: tuple[str, str], options: QualityOptions) -> QualityResult:
    result = judge(
        measured.a,
        measured.b,
        floors=measured.floors,
        greedy_a=measured.answers_a,
        greedy_b=measured.answers_b,
        greedy_floor=measured.answers_again,
        proofs=measured.proofs,
        names=names,
        text_set=(options.texts.name, options.texts.version),
        margins=options.margins,
        simulated=measured.simulated,
        pieces=(measured.pieces.get("A", {}), measured.pieces.get("B", {})),
    )
    if measured.problems and result.verdict == NOT_MEASURED:
        result = replace(result, summary=f"{NOT_MEASURED}: {measured.problems[0]}")
    return replace(
        result,
        notes=(*measured.problems, *measured.notes, *result.notes),
        conditions_a=measured.conditions.get("A", {}),
        conditions_b=measured.conditions.get("B", {}),
    )


def _masked(arm: Arm) -> Arm:
    return replace(arm, sets=mask_argv(arm.sets), envs=mask_argv(arm.envs))


def _words(arm: Arm) -> str:
    return " ".join(_masked(arm).words)
