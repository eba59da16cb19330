"""Benchmarks of the host's servers: running them, measuring GPUs and engine meanwhile, and storing
the results."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench import profiles
from workbench.bench.runner import BenchCancelled
from workbench.gpu.settings.disturbance import add_setters_to_reasons, lock_change_texts
from workbench.gpu.settings.preset_settings import texts_of_settings_not_applied
from workbench.hosts.base import HostUnreachable
from workbench.model.bench_cli_options import bench_cli_options
from workbench.model.errors import BenchError, StoreError, WorkbenchError
from workbench.model.experiment import Experiment
from workbench.model.findings import Level
from workbench.model.json_records import to_json
from workbench.model.load_spec import REPEATED
from workbench.model.secrets import mask_argv, mask_data
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.tune import TUNE
from workbench.server.model_fingerprint import ModelFingerprint, read_model_fingerprint
from workbench.session.bench.earlier_results import (
    find_earlier_comparable_result,
    tokenizer_of_server,
)
from workbench.session.bench.measurement import Measurement
from workbench.session.bench.result_rows import newest_valid_own_result_id
from workbench.session.bench.spec import repeated_fields_with_value
from workbench.session.bench.unfinished_benchmarks import outcome_as_client_message
from workbench.session.conditions import conditions_of_measurement, digest_of_load
from workbench.session.state import BenchState
from workbench.store import unfinished_benchmarks

if TYPE_CHECKING:
    from workbench.bench.energy import IdlePower
    from workbench.bench.records import BenchOutcome
    from workbench.gpu.settings.clock_contrasts import ContrastEvidence
    from workbench.gpu.settings.journal import Journal
    from workbench.gpu.settings.register_client import LockChange
    from workbench.model.answer_verdict import EarlierResult
    from workbench.model.bench import BenchProgress, BenchSpec, ResultId
    from workbench.model.gpu import Telemetry
    from workbench.model.setting_records import Alteration
    from workbench.session.bench.benchmark_load import BenchmarkLoad, ServerUnderTest
    from workbench.session.bench.measurement import MeasuredLoad
    from workbench.session.bench.server_load import ServerLoad
    from workbench.session.gpu.control import GpuControl
    from workbench.session.plans.plans import Plans
    from workbench.session.quality.restart_answers import AnswersOfRestart
    from workbench.session.results.results import Results
    from workbench.session.servers.servers import Servers
    from workbench.session.state import SessionState
    from workbench.session.state_holder import StateHolder

_RESTART_AND_COMPARE = "restart, benchmark, compare"
_MAX_EARLIER_RESULTS = 50  # among which one of the same model and load is looked for
_IDLE_POWER_VALID_S = 900.0
_ALTERATIONS_VALID_S = 1.0  # of the altered settings: a command has read them when it began


class Bench:
    """Benchmarks a server: that of the selected run, of a given run, or at a URL. If the selected
    server is still starting, `benchmark_selected_run` queues the benchmark until the server is
    READY. `answers` returns what compares the answers of a server with those before its restart."""

    def __init__(
        self,
        core: StateHolder,
        plans: Plans,
        servers: Servers,
        load: ServerLoad,
        gpu: GpuControl,
        results: Results,
        answers: Callable[[], AnswersOfRestart],
    ) -> None:
        self._core, self._plans, self._servers = core, plans, servers
        self._load, self._gpu, self._results = load, gpu, results
        self._answers = answers
        self._queued: dict[str, Any] | None = None
        # by server and settings: idle power, time
        self._idles: dict[tuple[Any, ...], tuple[IdlePower, float]] = {}
        # The last valid benchmark that the user asked for; loads of sweeps and proofs do not count.
        self.asked: BenchSpec | None = None
        self._change_note: Callable[..., None] | None = None  # of the benchmark that is measured
        servers.on_ready.append(self._run_queued_benchmark)
        servers.on_ended.append(self._drop_queued_benchmark)

    # ---- shapes

    def default_spec(self) -> BenchSpec:
        """Return the spec of the last valid benchmark that the user ran in this session. Without
        one, return the spec that the preset of the selected run suggests."""
        server = self._core.state.server
        return self.asked or self._load.make_spec(server.preset_id if server else None, {})

    def default_spec_fields(self) -> dict[str, Any]:
        """Return the fields of the default benchmark that are set, by name, as keyword arguments
        for a sweep or an experiment."""
        # the profile may be a preset's own word
        return repeated_fields_with_value(self.default_spec(), left_out=("profile",))

    def profile_titles_and_fields(self) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Return the benchmark profiles by name. Each is a pair (title, fields of BenchSpec by
        name)."""
        return {
            name: (title, profiles.spec_fields_of_profile(name))
            for name, title in profiles.title_by_profile_name().items()
        }

    # ---- the user's benchmark

    async def benchmark_selected_run(self, **overrides: Any) -> ResultId | None:
        """Benchmark the selected run with the given fields of BenchSpec. Return the id of the
        result. None if the benchmark was queued until the server is READY, or cancelled while the
        server was being started. Raises BenchError if there is no server to measure."""
        if self._servers.is_starting and not await self._queue_until_server_starts():
            return None
        status, host = self._core.state.server, self._core.host.name
        if status is None:
            raise BenchError(
                "no server is selected to benchmark",
                host=host,
                next_step="press s to start the plan under edit",
            )
        self._servers.check_not_reserved()
        # raises InputError before anything is queued
        spec = self._load.make_spec(status.preset_id, overrides)
        if status.state is ServerState.STARTING:
            self._queued = overrides
            self._core.update(bench=replace(self._core.state.bench, queued=True, error=None))
            return None
        if status.state is not ServerState.READY:
            raise BenchError(
                f"run {status.run_id} is {status.state}, not READY",
                host=host,
                next_step="press s to start the plan under edit",
            )
        return await self.run_requested_benchmark(status.run_id, spec, overrides)

    async def _queue_until_server_starts(self) -> bool:
        """Wait until the server that is being started is listed, and show the benchmark as queued
        meanwhile. Return False if the user cancelled the benchmark while it waited, else True."""
        self._core.update(bench=replace(self._core.state.bench, queued=True, error=None))
        await self._servers.wait_for_start()
        wanted = self._core.state.bench.queued
        self._core.update(bench=replace(self._core.state.bench, queued=False))
        return wanted

    async def run_requested_benchmark(
        self, run_id: str, requested: BenchSpec, overrides: dict[str, Any]
    ) -> ResultId:
        """Benchmark a run at the user's request, with the fields `overrides` of BenchSpec. Return
        the id of the result. If the result is valid, its spec `requested` becomes the default of
        the next benchmark."""
        result_id = await self.benchmark_run(run_id, **overrides)
        if not (await self._results.get(result_id)).summary.refused:
            self.asked = requested
        return result_id

    @contextmanager
    def _open_recovery_record(
        self, load: BenchmarkLoad
    ) -> Iterator[Callable[[BenchOutcome], None]]:
        """Keep a record of a benchmark on disk while the block runs. If this process is killed, the
        next Workbench stores what was measured (session/bench/unfinished_benchmarks.py). Yield a
        function that adds the outcome of the load to the record: the load client has ended then.
        Nothing is kept of a load that the user's own command makes."""
        kept = load.prestarted.worker.kept if load.prestarted.worker is not None else None
        if kept is None:  # a command of the user's own
            yield lambda _: None
            return
        there = load.prestarted.client == "host"
        name = unfinished_benchmarks.new_note_name() if there else Path(kept.path).stem
        about = {
            "host": self._core.host.name,
            "run_id": load.server.status.run_id if load.server.status else None,
            "address": load.server.address,
            "server_host": load.server.host,
            "gpus_known": load.server.gpus_known,
            "simulated": load.server.simulated,
            "client": load.prestarted.client,
            "kept": asdict(kept),
            "spec": to_json(replace(load.spec, prompts=(), trace=())),
            "series": _kind_and_id_of_running_series(self._core.state),
            "began_unix_s": time.time(),
            "pid": os.getpid(),
        }
        with unfinished_benchmarks.store_running_benchmark_note(name, about) as change:
            self._change_note = change
            try:
                yield lambda outcome: unfinished_benchmarks.store_final_message(
                    name, outcome_as_client_message(outcome)
                )
            finally:
                self._change_note = None

    def note_screen_closed_on_disk(self) -> None:
        """Add to the record of the running benchmark that its screen has closed. Do nothing if none
        is running."""
        if self._change_note is not None:
            self._change_note(alone=True)

    async def store_detached_benchmark(
        self, load: BenchmarkLoad, measured: MeasuredLoad
    ) -> ResultId:
        """Store `measured`, what a killed Workbench has measured of `load`. Return the id of the
        result."""
        files = await self._identify_model_files(load.server)
        ended_unix_s = measured.outcome.t1_unix or None
        result_id = await self._store_result(measured, load, files, ended_unix_s=ended_unix_s)
        await self._results.refresh_result_rows()
        return result_id

    def _take_queued_overrides(self, run_id: str) -> dict[str, Any] | None:
        """Return the overrides of the benchmark that is queued for a run, and drop it from the
        queue. None if none is queued for this run."""
        if run_id != self._core.state.run_id:
            return None
        overrides, self._queued = self._queued, None
        return overrides

    def _run_queued_benchmark(self, status: ServerStatus) -> None:
        overrides = self._take_queued_overrides(status.run_id)
        if overrides is not None:
            self._core.update(bench=replace(self._core.state.bench, queued=False))
            self._core.spawn_session_task(self._benchmark_queued_run(status.run_id, overrides))

    async def _benchmark_queued_run(self, run_id: str, overrides: dict[str, Any]) -> None:
        with suppress(BenchCancelled):  # by the user
            preset_id = self._servers.supervisor.status(run_id).preset_id
            await self.run_requested_benchmark(
                run_id, self._load.make_spec(preset_id, overrides), overrides
            )

    def _drop_queued_benchmark(self, status: ServerStatus) -> None:
        if self._take_queued_overrides(status.run_id) is not None:
            error = "the server did not become READY"
            self._core.update(bench=replace(self._core.state.bench, queued=False, error=error))

    async def cancel(self) -> None:
        """Cancel the benchmark that runs or is queued. Returns when its load has ended."""
        self._queued = None
        self._core.update(bench=replace(self._core.state.bench, queued=False))
        await self._load.cancel()

    # ---- any benchmark

    async def benchmark_run(self, run_id: str, **overrides: Any) -> ResultId:
        """Benchmark a run whose server is READY, with the fields `overrides` of BenchSpec. Return
        the id of the stored result."""
        async with self._load.open_load_on_run(run_id, overrides, prestart=True) as load:
            return await self._measure_load(load)

    async def benchmark_url(self, url: str, **overrides: Any) -> ResultId:
        """Benchmark the server at a base URL, started by others. Return the id of the stored
        result. The result has GPU metrics only if the URL is a loopback address, which means the
        session's host."""
        async with self._load.open_load_on_url(url, overrides, prestart=True) as load:
            return await self._measure_load(load)

    async def benchmark_target(
        self, run_id: str | None, url: str | None, **overrides: Any
    ) -> ResultId:
        """Benchmark the server at `url`, or if `url` is None the run `run_id`. Return the id of the
        stored result."""
        if url is not None:
            return await self.benchmark_url(url, **overrides)
        assert run_id is not None
        return await self.benchmark_run(run_id, **overrides)

    async def _measure_load(self, load: BenchmarkLoad) -> ResultId:
        last_id = self._core.state.bench.last_id
        self._core.update(bench=BenchState(running=True, spec=load.spec, last_id=last_id))
        error: str | None = None
        stored_id: int | None = None
        try:
            result_id = stored_id = await self._measure_and_store(load)
        except BenchCancelled as cancelled:
            error, stored_id = "cancelled", cancelled.result_id
            if cancelled.result_id is not None:
                error = (
                    "cancelled; the measured part is stored as result "
                    f"{cancelled.result_id}, marked partial"
                )
                await self._results.refresh_result_rows()
            raise
        except WorkbenchError as failure:
            error = failure.message
            raise
        finally:
            bench = replace(self._core.state.bench, running=False, error=error, stored_id=stored_id)
            self._core.update(bench=bench)
        self._core.record_command(_command_to_repeat_benchmark(load), f"result {result_id}")
        await self._results.refresh_result_rows()
        if not (await self._results.get(result_id)).summary.refused:
            # now in `state.results`
            self._core.update(bench=replace(self._core.state.bench, last_id=result_id))
        return result_id

    async def _measure_and_store(self, load: BenchmarkLoad) -> ResultId:
        server = load.server
        idle_key = self._idle_power_cache_key(load)
        idle, since_s = self._idles.get(idle_key, (None, 0.0))
        if time.monotonic() - since_s > _IDLE_POWER_VALID_S:
            idle = None
        alterations = self._gpu.alterations
        if time.monotonic() - alterations.read_monotonic_s > _ALTERATIONS_VALID_S:
            await alterations.read_altered_settings()
        locks, changes = alterations.active_clock_locks, alterations.lock_changes
        claimed = self._core.state.others
        known = await self._gpu.gpu_evidence.read_clocks_of_recent_loads(
            digest_of_load(load.spec, server)
        )
        files = await self._identify_model_files(load.server)
        earlier = await asyncio.to_thread(self._find_earlier_result, load, files)
        read: list[asyncio.Future[Journal]] = []
        with self._open_recovery_record(load) as keep_outcome:

            def record_sent_load(outcome: BenchOutcome) -> None:
                keep_outcome(outcome)
                read.append(asyncio.ensure_future(alterations.read_altered_settings()))

            measurement = Measurement(
                self._core.host,
                load,
                on_progress=self.show_progress,
                on_sent=record_sent_load,
                alterations=self._core.state.alterations,
                known=known,
                idle=idle,
                earlier=earlier,
            )
            try:
                measured = await measurement.measure_load()
                found = measured.idle
                if idle is None and found is not None and found.power_w is not None:
                    self._idles = {idle_key: (found, time.monotonic())}
                measured = await self._mark_lock_change_or_disconnect(
                    measured, read, locks, changes, known
                )
                new = [one for one in self._core.state.others if one not in claimed]
                refused = add_setters_to_reasons(measured.summary.refused, new, measured.gpus)
                measured = replace(measured, summary=replace(measured.summary, refused=refused))
            finally:
                for reading in read:
                    reading.cancel()
            result_id = await self._store_result(measured, load, files)
        await self._results.timelines.store_timeline(result_id, measured)
        if measured.outcome.partial and load.cancel.is_set():
            cancelled = BenchCancelled(
                f"the benchmark was cancelled; the measured part is stored as result {result_id}"
            )
            cancelled.result_id = result_id
            raise cancelled
        return result_id

    def _find_earlier_result(
        self, load: BenchmarkLoad, files: ModelFingerprint
    ) -> EarlierResult | None:
        tokenizer = tokenizer_of_server(
            load.server, load.spec, files, simulated=self._is_simulated(load)
        )
        with suppress(StoreError):
            return find_earlier_comparable_result(
                self._results.db.list(_MAX_EARLIER_RESULTS), load.spec, tokenizer
            )
        return None

    def _is_simulated(self, load: BenchmarkLoad) -> bool:
        server = load.server
        started = server.status is not None and server.status.simulated
        return self._core.state.simulated or server.simulated or started

    async def _mark_lock_change_or_disconnect(
        self,
        measured: MeasuredLoad,
        pending_readings: Sequence[Awaitable[Journal]],
        locks: Sequence[Alteration],
        changes: frozenset[LockChange],
        known_clocks: ContrastEvidence,
    ) -> MeasuredLoad:
        """Return `measured`, marked as invalid if clock locks changed during the benchmark, or as
        partial if the connection to the host was lost. `pending_readings` are calls that read the
        present settings. `locks` and `changes` are the clock locks and their recorded changes from
        before the load, and `known_clocks` has the clocks of earlier loads."""
        alterations = self._gpu.alterations
        try:
            await asyncio.gather(*pending_readings)
            meanwhile = alterations.lock_changes - changes
            if changed := lock_change_texts(
                locks, alterations.active_clock_locks, measured.gpus, meanwhile
            ):
                measured = measured.mark_clock_locks_changed(changed)
            else:
                await self._gpu.gpu_evidence.add_and_store_clocks(
                    known_clocks, measured.clocks, measured.proofs
                )
            await self._gpu.gpu_evidence.show_proofs_on_gpus(measured.proofs)
        except HostUnreachable as lost:
            return measured.mark_as_partial(lost)
        return measured

    def _idle_power_cache_key(self, load: BenchmarkLoad) -> tuple[Any, ...]:
        """Return the values on which the idle power of the GPUs depends: the server, and the
        altered GPU settings. Idle power is measured again only if one of these values has changed.
        """
        return load.run_id_or_url, *(
            (a.gpu_uuid, a.setting, str(a.now)) for a in self._core.state.alterations
        )

    def show_progress(self, progress: BenchProgress) -> None:
        """Show the progress of a load in the session's state."""
        self._core.update(bench=replace(self._core.state.bench, progress=progress))

    async def _store_result(
        self,
        measured: MeasuredLoad,
        load: BenchmarkLoad,
        files: ModelFingerprint,
        *,
        ended_unix_s: float | None = None,
    ) -> ResultId:
        """Store a result, of a measurement that ended now unless `ended_unix_s` says when. Return
        its id."""
        server = load.server
        # a result keeps their names and digests
        spec = replace(measured.outcome.spec, prompts=(), trace=())
        conditions = conditions_of_measurement(
            load.prestarted.client,
            spec,
            server,
            measured,
            self._gpu.alterations.active_clock_locks,
            simulated=self._is_simulated(load),
            model=files,
        )
        summary = measured.summary
        if why := load.prestarted.why_not_there:
            text = f"the load came from this machine through a tunnel: {why}"
            summary = replace(summary, notes=(*summary.notes, text))
        if others := self._load.other_owner_texts:
            text = f"somebody else measured on this host at the same time: {'; '.join(others)}"
            summary = replace(summary, marked=(*summary.marked, text))
        lost_s = self._load.duration_without_lock_s
        if lost_s is not None:
            text = (
                f"the measurement lock of this host was lost for {lost_s:.1f} s of the run: "
                "somebody else may have measured in that time"
            )
            summary = replace(summary, marked=(*summary.marked, text))
        if why := self._load.why_preset_is_unreadable(conditions.preset_id):
            text = f"the preset of this run cannot be read, so the load has nothing of it: {why}"
            summary = replace(summary, notes=(*summary.notes, text))
        if missing := self._unapplied_preset_setting_texts(
            conditions.preset_id, measured.telemetry
        ):
            text = f"GPU settings of the preset were not applied: {', '.join(missing)}"
            summary = replace(summary, notes=(*summary.notes, text))
        if server.status is not None and (
            parts := await self._servers.process_parts_missing_from_preset(server.status)
        ):
            text = f"the preset was not applied whole: {', '.join(parts)}"
            summary = replace(summary, notes=(*summary.notes, text))
        samples = measured.outcome.samples
        return await self._results.add_result(
            spec, conditions, summary, samples, unix_s=ended_unix_s
        )

    def _unapplied_preset_setting_texts(
        self, preset_id: str | None, telemetry: Telemetry | None
    ) -> tuple[str, ...]:
        """Return a text for each GPU or CPU setting of a preset that is not applied on the host. ()
        if the preset no longer exists."""
        with suppress(WorkbenchError):
            wanted = self._plans.preset_gpu_settings(preset_id) if preset_id else ()
            return texts_of_settings_not_applied(wanted, telemetry, self._core.state.alterations)
        return ()

    async def _identify_model_files(self, server: ServerUnderTest) -> ModelFingerprint:
        """Return a digest of the model files that the server was started with, or the reason if
        they cannot be identified."""
        status, record = server.status, server.record
        if status is None or record is None:
            return ModelFingerprint(None, "the server was not started by Workbench")
        if status.simulated:
            return ModelFingerprint(None, "a simulated engine loads no model")
        env, workdir = record.command.env, record.command.workdir
        try:
            return await read_model_fingerprint(
                self._core.host, record.plan, env, workdir, started_unix_s=status.started_unix_s
            )
        except HostUnreachable as lost:
            return ModelFingerprint(None, f"the model files could not be read: {lost.message}")

    # ---- the tuning loop

    def answer_comparison_cost_text(self) -> str:
        """Return in a sentence how many requests comparing the answers adds to
        `restart_and_compare_results`, and about how much time; "" if they are not compared."""
        if self.default_spec().endpoint == "embeddings":
            return ""
        return self._answers().answer_comparison_cost_text()

    async def restart_and_compare_results(self, *, quality: bool = True) -> None:
        """Restart the server with the plan under edit, repeat the last benchmark, and compare the
        two results. Without an earlier valid result, only measure the new server. If the plan
        changes a setting on which the answers depend, compare the answers before and after the
        restart too, unless `quality` is false. Raises BenchError if such a restart is under way
        already, or if the new server does not become READY."""
        host = self._core.host.name
        if _RESTART_AND_COMPARE in self._core.state.busy:
            raise BenchError(
                "the server is already being restarted for a comparison",
                host=host,
                next_step="wait for the result of that benchmark",
            )
        with self._core.show_as_busy(_RESTART_AND_COMPARE):
            rows = self._core.state.results
            before = self._core.state.bench.last_id or newest_valid_own_result_id(rows)
            shape, answers = {}, None
            if before is not None:
                earlier = await self._results.get(before)
                shape = self.fields_to_repeat_benchmark(earlier.spec)
                answers = await self._answers().measure_before_restart(earlier) if quality else None
            run_id = await self._servers.start()
            status = await self._servers.wait_ready(run_id)
            if status.state is not ServerState.READY:
                raise BenchError(
                    f"the restarted server is {status.state}, not READY, so nothing was measured",
                    host=host,
                    next_step="press e in the Log pane to see the first error",
                )
            after = await self.benchmark_run(run_id, **shape)
            if before is None:
                first = f"result {after} is stored"
                rejected = next((row for row in rows if not row.imported), None)
                if rejected is not None:
                    first += (
                        f" and compared with none, because result {rejected.id} is invalid "
                        f"({rejected.refused[0]})"
                    )
                self._core.notify(
                    Level.INFO, f"{first}: change one flag and press . again to compare"
                )
                return
            self._core.update(mark_a=before, mark_b=after, b_chosen=False)
            await self._results.compare(before, after)
            if (
                answers is not None
                and await self._answers().measure_after_restart(answers, run_id) is not None
            ):
                await self._results.compare(before, after)

    def fields_to_repeat_benchmark(self, spec: BenchSpec) -> dict[str, Any]:
        """Return the fields of BenchSpec that repeat the benchmark `spec` of a stored result.
        Results do not contain the user's prompts, trace and command, so they come from the last
        benchmark of this session. Raises BenchError if there is none or it used others."""
        shape = {name: getattr(spec, name) for name in REPEATED}
        if spec.profile not in profiles.PROFILE_NAMES:
            del shape["profile"]  # a preset's own word, which names no values
        if spec.text_source_name or spec.command:
            last = self.asked or self._core.state.bench.spec
            if last is None or _content_key_outside_results(last) != _content_key_outside_results(
                spec
            ):
                what = spec.text_source_name or "a command of your own"
                raise BenchError(
                    f"the last benchmark used {what}, which results do not contain, so it cannot "
                    "be repeated",
                    host=self._core.host.name,
                    next_step="press b and run that benchmark in this session first",
                )
            shape |= {"prompts": last.prompts, "trace": last.trace}
        return shape


def _kind_and_id_of_running_series(state: SessionState) -> tuple[str, int] | None:
    """Return (kind, id) of the series that measures now; None if none does. The kind is "tune",
    "sweep" or "experiment". A sweep goes before an experiment that runs as a part of it, because
    the sweep resumes that experiment."""
    if not state.running_series:
        return None
    series = state.running_series[-1]
    if isinstance(series, Experiment):
        return "experiment", series.id
    return "tune" if series.kind == TUNE else "sweep", series.id


def _content_key_outside_results(spec: BenchSpec) -> tuple[object, ...]:
    """Return the names and the command that identify the content of a load that results do not
    contain: prompts, trace and command."""
    return spec.prompts_name, spec.trace_name, spec.command


def _command_to_repeat_benchmark(load: BenchmarkLoad) -> str:
    """Return the command that repeats a benchmark, without secrets."""
    spec, status, preset_id = load.spec, load.server.status, None
    words: list[str] = ["workbench", "bench"]
    if status is None:
        words += ["--url", load.server.address, "--model", spec.model]
    else:
        words.append(status.run_id)
        preset_id = status.preset_id
    masked = replace(spec, extra_body=mask_data(spec.extra_body))
    words += bench_cli_options(masked, preset_id)
    if spec.command:
        words += ["--", *mask_argv(spec.command)]
    return shlex.join(words)
