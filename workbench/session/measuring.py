"""Benchmarks of the host's servers, their results, and what two of them say of a change."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.model.errors import BenchError, InputError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.server_run import ServerState, ServerStatus
from workbench.session.benched import Benched, start_ahead
from workbench.session.conditions import ceiling_of, conditions_of, rows_of
from workbench.session.guarding import Guarding
from workbench.session.state import BenchState, CeilingView

if TYPE_CHECKING:
    from workbench.bench.energy import Idle
    from workbench.hosts.base import Host
    from workbench.model.bench import BenchProgress, BenchResult, BenchSpec, Comparison
    from workbench.model.gpu import GpuInfo, Telemetry
    from workbench.server.model_fingerprint import ModelBytes
    from workbench.session.benched import Ahead, Measured
    from workbench.session.state import BenchRow
    from workbench.store.results_db import ResultsDb

SHOWN_RESULTS = 100  # newest results in the state
_AGAIN = "restart, benchmark, compare"
_IDLE_HOLDS_S = 900.0


class Measuring(Guarding):
    _results: ResultsDb | None = None
    _queued: dict[str, Any] | None = None
    _cancel: asyncio.Event | None = None  # of the benchmark that is running
    _benched: str | None = None  # its run
    _ahead: Ahead | None = None  # what was started for it
    # The shape of the user's last benchmark that was not rejected; loads of sweeps and proofs are none.
    wait_turn = False  # whether to wait where somebody else measures on the host
    tell_turn: Callable[[str], None] | None = None  # hears of that; else the activity does
    _asked: BenchSpec | None = None

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._measuring = asyncio.Lock()
        self._turns = 0  # how deep this session holds the host's turn to measure
        self._idles: dict[tuple[Any, ...], tuple[Idle, float]] = {}  # of (server, settings), when

    @property
    def results_db(self) -> ResultsDb:
        if self._results is None:
            from workbench.store import paths
            from workbench.store.results_db import ResultsDb

            self._results = ResultsDb(paths.results_db())
        return self._results

    # ---- results

    async def read_results(self) -> None:
        """This host's newest results into the state, and where the newest single-stream one lies."""
        found = await asyncio.to_thread(self.results_db.list, None)
        mine = [r for r in found if r.conditions.host == self.host.name][:SHOWN_RESULTS]
        self.update(results=rows_of(mine), ceiling=ceiling_view(mine))

    async def result(self, result_id: int) -> BenchResult:
        return await asyncio.to_thread(self.results_db.get, result_id)

    async def delete_result(self, result_id: int) -> None:
        await asyncio.to_thread(self.results_db.delete, result_id)
        gone = {name: None for name in ("mark_a", "mark_b") if getattr(self.state, name) == result_id}
        comparison = self.state.comparison
        if comparison is not None and result_id in (comparison.a, comparison.b):
            gone["comparison"] = None
        self.update(**gone)
        await self.read_results()

    def mark(self, result_id: int, which: str) -> None:
        name = {"A": "mark_a", "B": "mark_b"}.get(which.upper())
        if name is None:
            raise InputError(f"{which!r} is no mark", next_step="A or B")
        self.update(**{name: None if getattr(self.state, name) == result_id else result_id})

    async def export_result(self, result_id: int, form: str) -> str:
        """Write result-ID.FORM into the current directory; never over a file that is there."""
        from pathlib import Path

        from workbench.report.content import Report
        from workbench.report.registry import output_format

        chosen = output_format(form)
        result = await self.result(result_id)
        samples = await asyncio.to_thread(self.results_db.samples, result_id) if chosen.with_requests else ()
        simulated = "-simulated" if result.conditions.simulated else ""
        path = Path.cwd() / f"workbench-result-{result_id}{simulated}.{form}"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(chosen.render(Report.of_result(result, samples)))
        except OSError as error:
            raise InputError(
                f"{path} was not written: {error.strerror}", next_step="move it away, or export as another form"
            ) from None
        return str(path)

    async def compare(self, a: int | None = None, b: int | None = None) -> Comparison:
        from workbench.bench.compare import compare

        a, b = a or self.state.mark_a, b or self.state.mark_b
        if a is None or b is None:
            ids = [row.id for row in self.state.results if not (row.imported or row.refused)]
            given = {a, b} - {None}
            others = [i for i in ids if i not in given]
            if len(others) + len(given) < 2:
                raise InputError("comparing needs two results", next_step="b runs a benchmark; a and B mark two")
            if a is None and b is None:
                a, b = others[1], others[0]  # the older is A
            else:
                a, b = (a, others[0]) if b is None else (others[0], b)
        comparison = compare(await self.result(_known(a)), await self.result(_known(b)))
        self.update(comparison=comparison)
        return comparison

    # ---- running

    def spec_of(self, preset_id: str | None, overrides: dict[str, Any]) -> BenchSpec:
        """What the preset suggests, changed by `overrides` (fields of BenchSpec, and "prompts_file")."""
        from workbench.session.bench_spec import spec_from

        suggested = None
        if preset_id is not None:
            with suppress(WorkbenchError):  # a preset that is gone: the general shape serves
                suggested = self.preset(preset_id).benchmark
        return spec_from(suggested, overrides)

    def bench_defaults(self) -> BenchSpec:
        server = self.state.server
        return self._asked or self.spec_of(server.preset_id if server else None, {})

    def benched_before(self) -> bool:
        return self._asked is not None

    def bench_shape(self) -> dict[str, Any]:
        from workbench.session.bench_spec import SHAPE

        spec = self.bench_defaults()
        fields = {name: getattr(spec, name) for name in SHAPE if name != "profile"}  # which may be a word of a preset
        return {name: value for name, value in fields.items() if value not in (None, (), {}, "")}

    async def bench(self, **overrides: Any) -> int | None:
        status = self.state.server
        if status is None:
            raise BenchError("no server is selected", host=self.host.name, next_step="s starts the plan")
        self._nobody_measures()
        asked = self.spec_of(status.preset_id, overrides)  # what cannot be run is told now
        if status.state is ServerState.STARTING:
            self._queued = overrides
            self.update(bench=replace(self.state.bench, queued=True, error=None))
            return None
        if status.state is not ServerState.READY:
            raise BenchError(f"the server is {status.state}, not READY", host=self.host.name, next_step="s starts it")
        return await self._bench_asked(status.run_id, asked, overrides)

    def server_ready(self, status: ServerStatus) -> None:
        super().server_ready(status)
        if self._queued is not None and status.run_id == self.state.run_id:
            overrides, self._queued = self._queued, None
            self.update(bench=replace(self.state.bench, queued=False))
            self.spawn(self._bench_queued(status.run_id, overrides))

    async def _bench_queued(self, run_id: str, overrides: dict[str, Any]) -> None:
        from workbench.bench.runner import BenchCancelled

        with suppress(BenchCancelled):  # the person did that
            preset_id = self.supervisor.status(run_id).preset_id
            await self._bench_asked(run_id, self.spec_of(preset_id, overrides), overrides)

    async def _bench_asked(self, run_id: str, asked: BenchSpec, overrides: dict[str, Any]) -> int:
        """What the user asked for; the next form starts from it unless its result is rejected."""
        result_id = await self.bench_run(run_id, **overrides)
        if not (await self.result(result_id)).summary.refused:
            self._asked = asked
        return result_id

    def server_ended(self, status: ServerStatus) -> None:
        super().server_ended(status)
        if self._queued is not None and status.run_id == self.state.run_id:
            self._queued = None
            self.update(bench=replace(self.state.bench, queued=False, error="the server did not become READY"))

    async def bench_run(self, run_id: str, **overrides: Any) -> int:
        """Benchmark a READY run through a forwarded port; the id of the stored result."""
        async with self.aim_at_run(run_id, overrides, ahead=True) as (spec, benched, env):
            return await self._measure(spec, benched, env)

    async def bench_url(self, url: str, **overrides: Any) -> int:
        """Benchmark a server that others started, by its base URL; the id of the stored result.

        A loopback address is one of the session's host. What is elsewhere is measured without GPU figures: whose they
        would be is not known.
        """
        async with self.aim_at_url(url, overrides, ahead=True) as (spec, benched, env):
            return await self._measure(spec, benched, env)

    @asynccontextmanager
    async def aim_at_run(
        self, run_id: str, overrides: dict[str, Any], *, ahead: bool = False
    ) -> AsyncIterator[tuple[BenchSpec, Benched, dict[str, str]]]:
        """What a load on a READY run needs: the whole spec, whom it measures, and the worker's environment. No other
        load runs meanwhile. `ahead`: `_measure` follows, and what it needs starts now."""
        from workbench.model.secrets import SERVER_KEY_VARIABLE

        status = self.supervisor.status(run_id)
        if status.state is not ServerState.READY or status.port is None:
            raise BenchError(
                f"run {run_id} is {status.state}, not READY",
                host=self.host.name,
                next_step="workbench servers shows the runs",
            )
        spec = _with_usable_key(self.spec_of(status.preset_id, overrides))
        async with self._alone(run_id, spec if ahead else None), _forwarded(self.host, status.port) as port:
            spec = replace(
                spec, url=f"http://127.0.0.1:{port}", model=spec.model or status.served_model or status.model
            )
            key = self.supervisor.api_key(run_id)
            env = {SERVER_KEY_VARIABLE: key} if key and spec.api_key_env is None else {}
            spec = replace(spec, api_key_env=SERVER_KEY_VARIABLE) if env else spec
            yield spec, Benched(self.host.name, status, self.supervisor.record(run_id)), env

    @asynccontextmanager
    async def aim_at_url(
        self, url: str, overrides: dict[str, Any], *, ahead: bool = False
    ) -> AsyncIterator[tuple[BenchSpec, Benched, dict[str, str]]]:
        """The same for a server that others started."""
        from workbench.session import addresses

        address = addresses.parse(url)
        spec = _with_usable_key(self.spec_of(None, overrides))
        async with self._alone(None, spec if ahead else None, address.loopback), AsyncExitStack() as stack:
            base = address.base
            if address.loopback and not self.host.is_local:
                base = f"http://127.0.0.1:{await stack.enter_async_context(_forwarded(self.host, address.port))}"
            served = await addresses.ask(base, spec)
            if not (model := spec.model or served.model):
                raise BenchError(f"{base}/v1/models named no model: {served.problem}", next_step="give --model")
            where = self.host.name if address.loopback else address.hostname
            benched = Benched(where, simulated=served.simulated, gpus_known=address.loopback, address=address.base)
            yield replace(spec, url=base, model=model), benched, {}

    @asynccontextmanager
    async def _alone(self, run_id: str | None, spec: BenchSpec | None, gpus_known: bool = True) -> AsyncIterator[None]:
        """One benchmark at a time: two would measure one another. `spec`: of one that is measured now; what that
        starts ahead is gone when the next may begin."""
        if self._measuring.locked():
            raise BenchError("a benchmark is running", host=self.host.name, next_step="wait for it, or cancel it")
        what = f"a benchmark of run {run_id}" if run_id else "a benchmark of a server"
        async with self._measuring, self.turn(what) if gpus_known else nullcontext():
            self._cancel, self._benched = asyncio.Event(), run_id
            try:
                if spec is None:
                    yield
                else:
                    async with start_ahead(self.host, worker=not spec.command, meter=gpus_known) as self._ahead:
                        yield
            finally:
                self._cancel = self._benched = self._ahead = None

    async def look_elsewhere(self) -> None:
        """Find who else measures on this host, too."""
        await super().look_elsewhere()
        if self.host.connected:
            await self.look_at_turn()

    async def look_at_turn(self) -> None:
        """Say in the state which other Workbench measures on this host."""
        from workbench.gpu.measurement_lock import holder

        ours, directory = self._turns > 0, self.register_dir
        found = None if ours or directory is None else await holder(self.host, directory)
        self.update(measured_by=None if self._turns else found)

    @asynccontextmanager
    async def turn(self, what: str) -> AsyncIterator[None]:
        """The host's turn to measure, against every other Workbench of any user; BenchError where one of them has it.
        An experiment or a sweep holds it for all of its runs."""
        from workbench.gpu.measurement_lock import turn_on

        tell = self.tell_turn or (lambda text: self.record(f"# {text}"))
        async with nullcontext() if self._turns else turn_on(self.host, what, wait=self.wait_turn, tell=tell):
            self._turns += 1
            self.update(measured_by=None)
            try:
                yield
            finally:
                self._turns -= 1

    async def _measure(self, spec: BenchSpec, benched: Benched, env: dict[str, str]) -> int:
        """Run `spec`, add what the GPUs did meanwhile, store it."""
        from workbench.bench import runner

        self.update(bench=BenchState(running=True, spec=spec, last_id=self.state.bench.last_id))
        error: str | None = None
        try:
            result_id = await self._run_and_store(spec, benched, env)
        except runner.BenchCancelled as cancelled:
            error = "cancelled"
            if cancelled.result_id is not None:
                error = f"cancelled; what was measured is kept as #{cancelled.result_id}, marked partial"
                await self.read_results()
            raise
        except WorkbenchError as failure:
            error = failure.message
            raise
        finally:
            self.update(bench=replace(self.state.bench, running=False, error=error))
        self.record(_command(spec, benched.status), f"result {result_id}")
        await self.read_results()
        if not (await self.result(result_id)).summary.refused:
            self.update(bench=replace(self.state.bench, last_id=result_id))  # a row of the results by now
        return result_id

    async def _run_and_store(self, spec: BenchSpec, benched: Benched, env: dict[str, str]) -> int:
        from workbench.bench.runner import BenchCancelled
        from workbench.gpu.settings.disturbance import locks_changed
        from workbench.session.benched import Measurement
        from workbench.session.conditions import load_of

        assert self._cancel is not None
        server = benched.status.run_id if benched.status else spec.url
        # Idle power is another where a setting or the server is.
        standing = (server, *((a.gpu_uuid, a.setting, str(a.now)) for a in self.state.alterations))
        idle, since = self._idles.get(standing, (None, 0.0))
        if time.monotonic() - since > _IDLE_HOLDS_S:
            idle = None
        await self.read_alterations()
        before, seen, known = self.locks_on, self._lock_changes, await self.known_clocks(load_of(spec, benched))
        measured = await Measurement(
            self.host,
            spec,
            benched,
            env,
            cancel=self._cancel,
            on_progress=self._progress,
            alterations=self.state.alterations,
            known=known,
            idle=idle,
            ahead=self._ahead,
        ).run()
        if idle is None and measured.idle is not None and measured.idle.power_w is not None:
            self._idles = {standing: (measured.idle, time.monotonic())}
        await self.read_alterations()
        if changed := locks_changed(before, self.locks_on, measured.gpus, self._lock_changes - seen):
            measured = measured.with_locks_changed(changed)
        else:
            await self.keep_clocks(known, measured.clocks, measured.proofs)
        await self.take_proofs(measured.proofs)
        result_id = await self._store(measured, benched)
        if measured.outcome.partial:
            cancelled = BenchCancelled(f"the benchmark was cancelled; what it had measured is kept as #{result_id}")
            cancelled.result_id = result_id
            raise cancelled
        return result_id

    def _progress(self, progress: BenchProgress) -> None:
        self.update(bench=replace(self.state.bench, progress=progress))

    async def cancel_bench(self) -> None:
        """Returns when its worker is gone."""
        self._queued = None
        self.update(bench=replace(self.state.bench, queued=False))
        if self._cancel is not None:
            self._cancel.set()
            async with self._measuring:
                pass

    async def _stop(self, run_id: str) -> ServerStatus:
        if self._benched == run_id:  # figures of a dying server are none
            await self.cancel_bench()
        return await super()._stop(run_id)

    async def _store(self, measured: Measured, benched: Benched) -> int:
        outcome, telemetry, gpus = measured.outcome, measured.telemetry, measured.gpus
        memory_mhz = measured.summary.gpu.memory_mhz if measured.summary.gpu else None
        spec = replace(outcome.spec, prompts=())  # a result keeps their name and digest
        conditions = conditions_of(
            benched.host,
            "local" if self.host.is_local else "tunnel",
            spec,
            status=benched.status,
            record=benched.record,
            telemetry=telemetry,
            locks=self.locks_on,
            gpus=gpus,
            simulated=self.state.simulated or benched.simulated or bool(benched.status and benched.status.simulated),
            ceiling=ceiling_of(benched.plan, [i for i in _infos(telemetry) if i.index in gpus], memory_mhz),
            in_force={f"{p.place}.{p.setting}": str(p.in_force) for p in measured.proofs},
            findings={f"{p.place}.{p.setting}": p.text for p in measured.proofs},
            model=await self._model_bytes(benched),
        )
        conditions = replace(conditions, engine=conditions.engine or measured.engine, address=benched.address)
        summary = measured.summary
        if missing := self.unapplied(conditions.preset_id, telemetry):
            text = f"GPU settings of the preset: not applied ({', '.join(missing)})"
            summary = replace(summary, notes=(*summary.notes, text))
        samples = [r.as_json() for r in outcome.requests]
        return await asyncio.to_thread(self.results_db.add, spec, conditions, summary, samples)

    async def _model_bytes(self, benched: Benched) -> ModelBytes:
        """Which files the server under test was started with, as far as that can be told."""
        from workbench.server.model_fingerprint import ModelBytes, identify

        status, record = benched.status, benched.record
        if status is None or record is None:
            return ModelBytes(None, "the server was not started by Workbench")
        if status.simulated:
            return ModelBytes(None, "a simulated engine loads no model")
        env, workdir = record.command.env, record.command.workdir
        return await identify(self.host, record.plan, env, workdir, started_unix_s=status.started_unix_s)

    async def restart_bench_compare(self) -> None:
        """The tuning loop in one key: the shape of the last benchmark, against its result."""
        if _AGAIN in self.state.busy:
            raise BenchError("that is under way", host=self.host.name, next_step="wait for its result")
        with self.busy(_AGAIN):
            await self._restart_bench_compare()

    async def _restart_bench_compare(self) -> None:
        before = self.state.bench.last_id or last_usable(self.state.results)
        shape: dict[str, Any] = {}
        if before is not None:
            spec = (await self.result(before)).spec
            shape = self._shape_again(spec)
        run_id = await self.start()
        status = await self.wait_ready(run_id)
        if status.state is not ServerState.READY:
            raise BenchError(
                f"the server is {status.state}: nothing was measured",
                host=self.host.name,
                next_step="the log shows the first error (e)",
            )
        after = await self.bench_run(run_id, **shape)
        if before is not None:
            self.update(mark_a=before, mark_b=after)
            await self.compare(before, after)
        else:
            self.notify(Level.INFO, "the first result: change one thing and press . again to compare")

    def _shape_again(self, spec: BenchSpec) -> dict[str, Any]:
        """Overrides that ask for the same again. The person's own prompts and command are not taken from what is
        stored, only from what this session ran."""
        from workbench.session.bench_spec import SHAPE

        shape = {name: getattr(spec, name) for name in SHAPE}
        if spec.prompts_name or spec.command:
            last = self._asked or self.state.bench.spec
            if last is None or (last.prompts_name, last.command) != (spec.prompts_name, spec.command):
                what = spec.prompts_name or "a command of your own"
                raise BenchError(
                    f"the last result is of {what}, which this session has not run",
                    host=self.host.name,
                    next_step="run that benchmark again first",
                )
            shape["prompts"] = last.prompts
        return shape


def last_usable(rows: Sequence[BenchRow]) -> int | None:
    """Of rows, newest first, the newest that was measured here and may be used."""
    return next((row.id for row in rows if not row.imported and not row.refused), None)


def _with_usable_key(spec: BenchSpec) -> BenchSpec:
    """A key that no header can carry is told before anything starts. Raises InputError."""
    from workbench.model.api_key import api_key

    if spec.api_key_env is not None:
        api_key(spec.api_key_env, os.environ)
    return spec


@asynccontextmanager
async def _forwarded(host: Host, port: int) -> AsyncIterator[int]:
    """A port of this machine that leads to `port` on the host's loopback."""
    forward = await host.forward(port)
    try:
        yield forward.local_port
    finally:
        await forward.close()


def _infos(telemetry: Telemetry | None) -> Sequence[GpuInfo]:
    return telemetry.infos if telemetry else ()


def _known(result_id: int | None) -> int:
    assert result_id is not None
    return result_id


def _command(spec: BenchSpec, status: ServerStatus | None) -> str:
    """As it may be shown: without secrets."""
    from workbench.model.bench_cli_options import options
    from workbench.model.secrets import mask_argv, mask_data

    words = [status.run_id] if status else ["--url", spec.url, "--model", spec.model]
    if spec.command:
        return shlex.join(["workbench", "bench", *words, "--", *mask_argv(spec.command)])
    return shlex.join(["workbench", "bench", *words, *options(replace(spec, extra_body=mask_data(spec.extra_body)))])


def ceiling_view(results: Sequence[BenchResult]) -> CeilingView | None:
    """Of the newest single-stream result that was not rejected and whose limit is known."""
    for result in results:
        limit = result.conditions.ceiling_tok_s
        if result.spec.concurrency == 1 and limit and not result.summary.refused:
            basis = result.conditions.ceiling_basis or "memory bandwidth"
            return CeilingView(limit, result.summary.per_stream_tok_s, basis, result.id)
    return None
