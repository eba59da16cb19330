"""Benchmarks of the host's servers, their results, and what two of them say of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.model.bench import BenchResult, BenchSpec, Comparison
from workbench.model.errors import BenchError, InputError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.run import ServerState, ServerStatus
from workbench.session.conditions import ceiling_of, conditions_of, gpus_of, rows_of
from workbench.session.gpu_settings import Settings
from workbench.session.meter import Meter
from workbench.session.state import BenchState, CeilingView

if TYPE_CHECKING:
    from workbench.bench.records import BenchOutcome
    from workbench.model.bench import BenchProgress, BenchSummary
    from workbench.model.gpu import GpuInfo, Telemetry
    from workbench.model.plan import LaunchPlan
    from workbench.store.results import ResultsDb

_SHOWN = 100  # newest results in the state
_KEY_VARIABLE = "WORKBENCH_SERVER_KEY"  # carries a run's API key to the worker, in its environment only


class Measuring(Settings):
    _results: ResultsDb | None = None
    _cancel: asyncio.Event | None = None
    _queued: dict[str, Any] | None = None

    @property
    def results_db(self) -> ResultsDb:
        if self._results is None:
            from workbench.store import paths
            from workbench.store.results import ResultsDb

            self._results = ResultsDb(paths.results_db())
        return self._results

    # ---- results

    async def read_results(self) -> None:
        """This host's newest results into the state, and where the newest single-stream one lies."""
        found = await asyncio.to_thread(self.results_db.list, None)
        mine = [r for r in found if r.conditions.host == self.host.name][:_SHOWN]
        self.update(results=rows_of(mine), ceiling=_ceiling_view(mine))

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

        from workbench.store.export import export

        result = await self.result(result_id)
        samples = await asyncio.to_thread(self.results_db.samples, result_id) if form == "json" else ()
        simulated = "-simulated" if result.conditions.simulated else ""
        path = Path.cwd() / f"workbench-result-{result_id}{simulated}.{form}"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(export(result, form, samples))
        except OSError as error:
            raise InputError(
                f"{path} was not written: {error.strerror}", next_step="move it away, or export as another form"
            ) from None
        return str(path)

    async def compare(self, a: int | None = None, b: int | None = None) -> Comparison:
        from workbench.bench.compare import compare

        a, b = a or self.state.mark_a, b or self.state.mark_b
        if a is None or b is None:
            ids = [row.id for row in self.state.results]
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
        """What the preset suggests, changed by `overrides` (fields of BenchSpec)."""
        suggested: dict[str, Any] = {}
        if preset_id is not None:
            try:
                bench = self.preset(preset_id).benchmark
                suggested = {
                    "profile": bench.profile, "concurrency": bench.concurrency[0], "requests": bench.requests,
                    "input_tokens": bench.input_tokens, "max_tokens": bench.max_tokens, "warmup": bench.warmup,
                }  # fmt: skip
            except WorkbenchError:
                suggested = {}  # a preset that is gone: the general shape serves
        merged = {**suggested, **{k: v for k, v in overrides.items() if v is not None}}
        for name in ("concurrency", "requests", "max_tokens", "input_tokens"):
            if name in merged and (not isinstance(merged[name], int) or merged[name] < 1):
                raise InputError(f"{name.replace('_', ' ')} must be a whole number of at least 1")
        if merged.get("warmup", 0) < 0:
            raise InputError("warmup must be 0 or more")
        return BenchSpec(**{"url": "", "model": "", **merged})

    def bench_defaults(self) -> BenchSpec:
        server = self.state.server
        return self.state.bench.spec or self.spec_of(server.preset_id if server else None, {})

    async def bench(self, **overrides: Any) -> int | None:
        status = self.state.server
        if status is None:
            raise BenchError("no server is selected", host=self.host.name, next_step="s starts the plan")
        if self.state.bench.running:
            raise BenchError("a benchmark is running", next_step="wait for it, or cancel it with b")
        if status.state is ServerState.STARTING:
            self._queued = overrides
            self.update(bench=replace(self.state.bench, queued=True, error=None))
            return None
        if status.state is not ServerState.READY:
            raise BenchError(f"the server is {status.state}, not READY", host=self.host.name, next_step="s starts it")
        return await self.bench_run(status.run_id, **overrides)

    def server_ready(self, status: ServerStatus) -> None:
        super().server_ready(status)
        if self._queued is not None and status.run_id == self.state.run_id:
            overrides, self._queued = self._queued, None
            self.update(bench=replace(self.state.bench, queued=False))
            self.spawn(self.bench_run(status.run_id, **overrides))

    def server_ended(self, status: ServerStatus) -> None:
        super().server_ended(status)
        if self._queued is not None and status.run_id == self.state.run_id:
            self._queued = None
            self.update(bench=replace(self.state.bench, queued=False, error="the server did not become READY"))

    async def bench_run(self, run_id: str, **overrides: Any) -> int:
        """Benchmark a READY run through a forwarded port; the id of the stored result."""
        status = self.supervisor.status(run_id)
        if status.state is not ServerState.READY or status.port is None:
            raise BenchError(f"run {run_id} is {status.state}, not READY", host=self.host.name,
                             next_step="workbench servers shows the runs")  # fmt: skip
        forward = await self.host.forward(status.port)
        try:
            spec = self.spec_of(status.preset_id, overrides)
            spec = replace(spec, url=f"http://127.0.0.1:{forward.local_port}",
                           model=spec.model or status.served_model or status.model)  # fmt: skip
            key = self.supervisor.api_key(run_id)
            env = {_KEY_VARIABLE: key} if key and spec.api_key_env is None else {}
            spec = replace(spec, api_key_env=_KEY_VARIABLE) if env else spec
            return await self.measure(spec, status, env)
        finally:
            await forward.close()

    async def measure(
        self, spec: BenchSpec, status: ServerStatus | None = None, env: dict[str, str] | None = None
    ) -> int:
        """Run `spec`, add what the GPUs did meanwhile, store it. `status` None: a server that others started."""
        from workbench.bench import runner

        cancel = self._cancel = asyncio.Event()
        self.update(bench=BenchState(running=True, spec=spec, last_id=self.state.bench.last_id))
        error: str | None = None
        try:
            async with Meter(self.host) as meter:
                outcome = await runner.run(spec, on_progress=self._progress, cancel=cancel, env=env)
                telemetry = await meter.after(outcome.t1_unix)
                gpus = gpus_of(self._record_plan(status), telemetry.infos if telemetry else ())
                summary = meter.with_gpus(outcome, gpus)
            result_id = await self._store(outcome, summary, status, gpus, telemetry)
        except runner.BenchCancelled:
            error = "cancelled"
            raise
        except WorkbenchError as failure:
            error = failure.message
            raise
        finally:
            self._cancel = None
            self.update(bench=replace(self.state.bench, running=False, error=error))
        self.record(_command(spec, status), f"result {result_id}")
        self.update(bench=replace(self.state.bench, last_id=result_id))
        await self.read_results()
        return result_id

    def _progress(self, progress: BenchProgress) -> None:
        self.update(bench=replace(self.state.bench, progress=progress))

    async def cancel_bench(self) -> None:
        self._queued = None
        if self._cancel is not None:
            self._cancel.set()
        elif self.state.bench.queued:
            self.update(bench=replace(self.state.bench, queued=False))

    def _record_plan(self, status: ServerStatus | None) -> LaunchPlan | None:
        return self.supervisor.record(status.run_id).plan if status else None

    async def _store(
        self,
        outcome: BenchOutcome,
        summary: BenchSummary,
        status: ServerStatus | None,
        gpus: tuple[int, ...],
        telemetry: Telemetry | None,
    ) -> int:
        conditions = conditions_of(
            self.host.name,
            "local" if self.host.kind == "local" else "tunnel",
            outcome.spec,
            status=status,
            record=self.supervisor.record(status.run_id) if status else None,
            telemetry=telemetry,
            alterations=self.state.alterations,
            gpus=gpus,
            simulated=self.state.simulated or bool(status and status.simulated),
            ceiling_tok_s=ceiling_of(self._record_plan(status), [i for i in _infos(telemetry) if i.index in gpus]),
        )
        samples = [r.as_json() for r in outcome.requests]
        return await asyncio.to_thread(self.results_db.add, outcome.spec, conditions, summary, samples)

    async def restart_bench_compare(self) -> None:
        """The tuning loop in one key: the shape of the last benchmark, against its result."""
        before = self.state.bench.last_id or (self.state.results[0].id if self.state.results else None)
        shape: dict[str, Any] = {}
        if before is not None:
            spec = (await self.result(before)).spec
            shape = {n: getattr(spec, n) for n in ("concurrency", "requests", "max_tokens", "input_tokens", "warmup")}
        run_id = await self.start()
        status = await self.wait_ready(run_id)
        if status.state is not ServerState.READY:
            raise BenchError(f"the server is {status.state}: nothing was measured", host=self.host.name,
                             next_step="the log shows the first error (e)")  # fmt: skip
        after = await self.bench_run(run_id, **shape)
        if before is not None:
            self.update(mark_a=before, mark_b=after)
            await self.compare(before, after)
        else:
            self.notify(Level.INFO, "the first result: change one thing and press . again to compare")


def _infos(telemetry: Telemetry | None) -> Sequence[GpuInfo]:
    return telemetry.infos if telemetry else ()


def _known(result_id: int | None) -> int:
    assert result_id is not None
    return result_id


def _command(spec: BenchSpec, status: ServerStatus | None) -> str:
    target = status.run_id if status else f"--url {spec.url} --model {spec.model}"
    return (
        f"workbench bench {target} --concurrency {spec.concurrency} --requests {spec.requests}"
        f" --max-tokens {spec.max_tokens} --input-tokens {spec.input_tokens} --warmup {spec.warmup}"
    )


def _ceiling_view(results: list[BenchResult]) -> CeilingView | None:
    """Of the newest single-stream result whose limit is known."""
    for result in results:
        limit = result.conditions.ceiling_tok_s
        if result.spec.concurrency == 1 and limit:
            return CeilingView(limit, result.summary.per_stream_tok_s, "memory bandwidth")
    return None
