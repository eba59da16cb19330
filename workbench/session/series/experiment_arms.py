"""The servers and GPU settings of an experiment's arms: set up for a run, benchmarked, and restored
at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from workbench.bench import experiment as design
from workbench.bench.runner import BenchCancelled
from workbench.model.errors import BenchError, ServerError, SettingsError, WorkbenchError
from workbench.model.experiment import Experiment, ExperimentRun, ExperimentSpec
from workbench.model.known_values import known_values
from workbench.model.plan import plan_differences
from workbench.model.secrets import mask_secrets_of_plan
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.tune import USERS
from workbench.session.bench.find_users import measure_user_capacity
from workbench.session.conditions import gpu_indices_of_plan
from workbench.session.gpu.setting_texts import alterations_text, setting_failure_text
from workbench.session.series.conduct import SeriesStopped
from workbench.session.series.experiment_run import NoteRunId, ReportLine, StartFailedError
from workbench.session.uninterrupted import finish_despite_cancellation

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.model.plan import LaunchPlan
    from workbench.model.setting_records import Alteration
    from workbench.session.plans.plan_editor import PlanEditor
    from workbench.session.servers.arm_targets import ComparedSide
    from workbench.session.session import Session

RESTART_TIMEOUT_S = 300.0  # the longest wait for a server at a URL that does not answer
SETTLE_TIMEOUT_S = 300.0  # the longest wait for a temperature
_POLL_INTERVAL_S = 2.0


class ExperimentArms:
    """Carries out the runs of an experiment on real hosts. `sides` has the host and the server of
    each side by name: "A" and "B", or "A on HOST" if two hosts with equal hardware (twins) are
    used. `restarts` says whether each run gets a new server, and `earlier` has the results before a
    resumed experiment was interrupted."""

    def __init__(
        self,
        spec: ExperimentSpec,
        sides: Mapping[str, ComparedSide],
        *,
        restarts: bool,
        earlier: Sequence[BenchResult] = (),
    ) -> None:
        self._spec = spec
        self._sides = sides
        self._restarts = restarts
        self._arm = next(iter(sides))  # the side that is on now, or was last
        self._run: str | None = None  # the server that is on and may be stopped
        self._run_side: ComparedSide | None = None  # its host
        self.started_run_id: str | None = None  # the server that is on if the experiment started it
        self._keep_on = False  # a server ran before, so the last one stays on
        self._before: tuple[Session, str] | None = None  # its host and run, once it was stopped
        # by run: the seconds that its start took, and what its engine says that it uses
        self._reported: dict[str, tuple[float | None, Mapping[str, str]]] = {}
        self._settings_arm: str | None = None  # the arm whose GPU settings are on
        # of the synthetic prompts, the same in all runs
        self._fit = next((r.spec.prompt_fitting_fields for r in earlier), {})

    @property
    def _sessions(self) -> Sequence[Session]:
        return list({id(side.session): side.session for side in self._sides.values()}.values())

    def run_id_to_stop(self) -> str | None:
        """Return the id of the selected run if the experiment must stop that run before it starts a
        server of its own. None if no run is selected, or if the selected run can stay."""
        to_stop = filter(None, map(self._selected_server_to_stop, self._sessions))
        return next((status.run_id for status in to_stop), None)

    async def prepare_hosts(self, experiment: Experiment) -> None:
        """Stop the server and revert the settings that this experiment left behind if it crashed
        before. Then find the servers that run now. Raises SettingsError if other GPU settings are
        altered."""
        for session in self._sessions:
            statuses = await session.servers.supervisor.runs()
            await self._stop_leftover_server(session, statuses, experiment)
            selected = session.state.server
            # a resumed one measures the same server
            if selected is None and experiment.runs and not self._restarts:
                selected = self._find_server_of_arm_a(session, statuses, experiment.server)
            if selected is None or selected.run_id == experiment.server:
                continue
            if self._must_stop_server(selected):
                self._keep_on = True
                if not self._restarts and self._can_serve_as_arm_a(session, selected):
                    self._run, self._run_side = selected.run_id, self._sides["A"]
        await self._check_servers_can_start()
        if design.changes_gpu_settings(self._spec):
            for session in self._sessions:
                # the guard reverts the settings of an experiment that is killed
                session.gpu.guard.start_heartbeats()
            await self.check_no_altered_settings(revert=experiment.settings_on)

    async def _stop_leftover_server(
        self, session: Session, statuses: Sequence[ServerStatus], experiment: Experiment
    ) -> None:
        """Stop the server that a killed experiment left behind, and select the one that ran before
        it if it still runs."""
        live = {status.run_id for status in statuses if status.state.is_alive}
        if experiment.server in live:
            await session.servers.stop_run_quietly(experiment.server)
        if session.state.server is None and experiment.replaces in live:
            # the killed experiment had not ended it yet
            await session.servers.select(experiment.replaces)

    def _find_server_of_arm_a(
        self, session: Session, statuses: Sequence[ServerStatus], leftover: str | None
    ) -> ServerStatus | None:
        for status in statuses:
            if status.run_id != leftover and self._can_serve_as_arm_a(session, status):
                return status
        return None

    async def _check_servers_can_start(self) -> None:
        """Raise ServerError, while the servers that run still do, if the server of a side could not
        be started on its host."""
        for name, side in self._sides.items():
            if side.editor is None:
                continue
            try:
                await side.session.servers.check_start_on_host(
                    side.editor, self._server_stopped_before_start(side)
                )
            except ServerError as error:
                error.message = f"{name}: {error.message}"
                raise

    def _server_stopped_before_start(self, side: ComparedSide) -> ServerStatus | None:
        """Return the server that is stopped before the first start on the host of `side`; None if
        none is."""
        if self._run is None or self._run_side is None or self._run_side.session != side.session:
            return self._selected_server_to_stop(side.session)
        return side.session.servers.supervisor.status(self._run)

    def _must_stop_server(self, status: ServerStatus) -> bool:
        """Return whether the experiment must stop this server before it starts one of its own: the
        server is live, and no arm measures it."""
        sides = self._sides.values()
        if not status.state.is_alive or status.run_id in [side.run_id for side in sides]:
            return False
        return None in [side.measured_run_id_or_url for side in sides]

    def _can_serve_as_arm_a(self, session: Session, status: ServerStatus) -> bool:
        """Return whether a server is READY and has the configuration of arm A, so that it need not
        be started again."""
        side = self._sides["A"]
        if side.editor is None or side.session is not session:
            return False
        if status.state is not ServerState.READY:
            return False
        plan = session.servers.supervisor.record(status.run_id).plan
        return _have_same_configuration(plan, mask_secrets_of_plan(side.editor.effective_plan))

    async def check_no_altered_settings(self, *, revert: bool = False) -> None:
        """Raise SettingsError if a GPU setting that the arms change is altered already. With
        `revert`, try to revert it first. Any other altered setting is equal in all runs."""
        for arm, side in self._sides.items():
            await side.session.gpu.alterations.read_altered_settings()
            on = await self._altered_settings(side)
            if on and revert:
                await self._revert_gpu_settings_of_arm(arm)
                on = await self._altered_settings(side)
            if on:
                raise SettingsError(
                    f"GPU settings that Workbench altered are still on ({alterations_text(on)}) and "
                    "would distort the comparison",
                    host=side.session.host.name,
                    next_step="revert the settings first: r on the screen, or workbench gpu revert",
                )

    # ---- the test bed

    async def must_compile_first(self, arm: str) -> bool:
        editor = self._sides[arm].editor
        if editor is None or not editor.engine.compiles_at_first_start:
            return False
        plan = mask_secrets_of_plan(editor.effective_plan)
        supervisor = self._sides[arm].session.servers.supervisor
        for status in await supervisor.runs():
            if status.ready_unix_s is None or status.engine != editor.engine.name:
                continue
            if _have_same_configuration(supervisor.record(status.run_id).plan, plan):
                return False
        return True

    async def start_or_reuse_server(self, arm: str, note_run_id: NoteRunId | None = None) -> str:
        self._arm, side = arm, self._sides[arm]
        if self._run is not None and self._restarts:
            await self.stop_server_and_revert_settings()
        if side.editor is None:
            return side.measured_run_id_or_url or ""
        if self._run is not None:
            return self._run
        self._run_side = side
        # a cancelled run must end this server too
        return await finish_despite_cancellation(
            self._launch_server(side.session, side.editor, note_run_id)
        )

    async def _launch_server(
        self, session: Session, editor: PlanEditor, note_run_id: NoteRunId | None
    ) -> str:
        """Start the server of an arm, in place of the selected one if that must be stopped, and
        return its run id."""
        replaced = self._selected_server_to_stop(session)
        if replaced is not None:
            self._before = (session, replaced.run_id)
        status = await session.servers.launch_unchecked_plan(editor, replaced, note_run_id)
        self._run = self.started_run_id = status.run_id
        return status.run_id

    def _selected_server_to_stop(self, session: Session) -> ServerStatus | None:
        """Return the selected server of a host if the experiment must stop it before a start, else
        None."""
        selected = session.state.server
        if selected is None or not self._must_stop_server(selected):
            return None
        return selected

    async def await_server_and_apply_settings(
        self, arm: str, run_id: str, report_line: ReportLine
    ) -> None:
        """Wait until the server is READY, or until the server at a URL answers, then apply the
        arm's GPU settings. `report_line` is called with texts on the progress. Raises
        StartFailedError if the server does not become READY."""
        side = self._sides[arm]
        if side.url is not None:
            await self._wait_until_answers(side, side.url, report_line)
        else:
            status = await side.session.servers.wait_ready(run_id)
            if status.state is ServerState.STOPPED:
                raise SeriesStopped(f"run {run_id} was stopped")
            if status.state is not ServerState.READY:
                raise _start_failed_error(status)
        await self._apply_gpu_settings_of_arm(arm)

    async def _wait_until_answers(
        self, side: ComparedSide, url: str, report_line: ReportLine
    ) -> None:
        """Wait until the server at `url` answers: whoever runs it may have restarted it. Raises
        StartFailedError if it does not answer within RESTART_TIMEOUT_S seconds."""
        began = time.monotonic()
        while True:
            try:
                async with side.session.server_load.open_load_on_url(url, dict(self._spec.bench)):
                    return
            except BenchError as error:
                waited_s = time.monotonic() - began
                if waited_s > RESTART_TIMEOUT_S:
                    raise StartFailedError(
                        f"{error.message}; Workbench waited {RESTART_TIMEOUT_S:.0f} s for it",
                        host=side.session.host.name,
                        next_step="resume the experiment when the server runs; finished pairs are "
                        "kept",
                    ) from None
                report_line(
                    f"waiting for the server, since {error.message} "
                    f"({waited_s:.0f} of at most {RESTART_TIMEOUT_S:.0f} s)"
                )
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def stop_server_and_revert_settings(self) -> None:
        if self._settings_arm is not None:
            await self._revert_gpu_settings_of_arm(self._settings_arm)
        run_id, self._run = self._run, None
        if run_id is not None and self._run_side is not None:
            await self._run_side.session.servers.stop_run_quietly(run_id)
            self.started_run_id = None

    async def wait_then_read_temperature_c(
        self, target_c: float | None, within_c: float, report_line: ReportLine
    ) -> float | None:
        """Wait until the GPUs have cooled to at most `within_c` °C above `target_c`, at most
        SETTLE_TIMEOUT_S seconds. `report_line` is called with texts on the progress. Return the
        last temperature in °C, None if it is not known."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            now_c = await self._hottest_gpu_c()
            if now_c is None or target_c is None:
                return now_c
            highest_c = target_c + within_c
            if now_c <= highest_c or time.monotonic() > deadline:
                return now_c
            report_line(f"waiting until the GPU has cooled from {now_c:.0f} to {highest_c:.0f} °C")
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _hottest_gpu_c(self) -> float | None:
        side = self._sides[self._arm]
        telemetry = await side.session.telemetry.get_recent_reading()
        gpus = gpu_indices_of_plan(side.plan, telemetry.infos)
        each_c = (sample.temperature_c for sample in telemetry.gpus if sample.index in gpus)
        return max(known_values(each_c), default=None)

    async def run_benchmark(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
        side = self._sides[arm]
        session, run_id = side.session, side.run_id or self._run
        if side.url is None and run_id is None:
            raise ServerError(f"no server runs for arm {arm}", host=session.host.name)
        shape = {**self._spec.bench, "seed": seed, **self._fit}
        try:
            bench = partial(session.bench.benchmark_target, run_id, side.url)
            if self._spec.metric == USERS:
                result_id = await measure_user_capacity(bench, session.results, shape)
            else:
                result_id = await bench(**shape)
        except BenchCancelled:
            raise SeriesStopped("the benchmark was cancelled") from None
        result = await session.results.get(result_id)
        self._fit = self._fit or result.spec.prompt_fitting_fields
        return result

    async def read_start_s_and_settings(
        self, arm: str, run_id: str
    ) -> tuple[float | None, Mapping[str, str]]:
        side = self._sides[arm]
        if side.url is not None or not run_id:
            return None, {}
        if run_id not in self._reported:
            supervisor, chosen = side.session.servers.supervisor, dict[str, str]()
            with suppress(WorkbenchError):  # the result counts without it
                report = await supervisor.read_settings_in_force(run_id)
                for row in report.rows:
                    if row.kind == "engine" and row.in_force is not None:
                        chosen[row.name] = row.in_force
            ready_after_s = None
            if side.measured_run_id_or_url is None and run_id == self.started_run_id:
                ready_after_s = supervisor.status(run_id).ready_after_s
            self._reported[run_id] = ready_after_s, chosen
        return self._reported[run_id]

    async def restore_host_and_report(self, experiment: Experiment) -> Sequence[str]:
        notes = []
        if self._settings_arm is not None:
            try:
                await self._revert_gpu_settings_of_arm(self._settings_arm)
            except WorkbenchError as error:
                notes.append(
                    f"GPU settings were not reverted: {error.message} (run `workbench gpu revert`)"
                )
        notes.append(await self._restore_server_and_report(experiment))
        return list(filter(None, notes))

    async def _restore_server_and_report(self, experiment: Experiment) -> str:
        """Leave a server on if one ran before the experiment, otherwise stop the last one. Return a
        note about it; "" if there is nothing to report."""
        if self._keep_on and (note := await self._restart_previous_server_and_report()):
            return note
        if self.started_run_id is None:
            return ""
        if self._keep_on:
            arm = experiment.runs[-1].side_label if experiment.runs else "A"
            return (
                f"a server ran before the experiment, so {self.started_run_id} with {arm}'s "
                "configuration keeps running"
            )
        try:
            await self.stop_server_and_revert_settings()
        except WorkbenchError as error:
            return (
                f"run {self.started_run_id} was not stopped: {error.message} (run `workbench stop "
                f"{self.started_run_id}`)"
            )
        return ""

    async def _restart_previous_server_and_report(self) -> str:
        """If the experiment has stopped the server that ran before, and none of its own runs now,
        start the earlier one again. Return a note about it; "" if there was nothing to do."""
        if self._before is None:
            return ""
        session, run_id = self._before
        supervisor = session.servers.supervisor
        if (
            self.started_run_id is not None
            and supervisor.status(self.started_run_id).may_still_be_running
        ):
            return ""
        try:
            status = await session.servers.launch_unchecked_plan(
                session.servers.editor_of_run(run_id)
            )
        except WorkbenchError as error:
            return (
                f"the server that ran before ({run_id}) was not started again: {error.message} "
                f"(run `workbench restart {run_id}`)"
            )
        return f"the server that ran before ({run_id}) was started again as {status.run_id}"

    # ---- GPU settings

    async def _apply_gpu_settings_of_arm(self, arm: str) -> None:
        wanted, side = design.arm_of(self._spec, arm).gpu, self._sides[arm]
        if self._settings_arm is not None:
            if await self._have_same_settings(self._settings_arm, arm):
                return
            await self._revert_gpu_settings_of_arm(self._settings_arm)
        if not wanted:
            return
        self._settings_arm = arm
        for gpu in await side.gpu_indexes_or_all():
            report = await side.session.gpu.apply_settings(wanted, gpu)
            failed = report.first_failure
            if failed is not None:
                raise SettingsError(
                    f"{arm}: {setting_failure_text(failed, 'set')}", host=side.session.host.name
                )

    async def _have_same_settings(self, a: str, b: str) -> bool:
        """Return whether two arms have the same settings on the same GPUs."""
        side_a, side_b = self._sides[a], self._sides[b]
        if design.arm_of(self._spec, a).gpu != design.arm_of(self._spec, b).gpu:
            return False
        return (
            side_a.session is side_b.session
            and await side_a.gpu_indexes_and_uses_all() == await side_b.gpu_indexes_and_uses_all()
        )

    async def _revert_gpu_settings_of_arm(self, arm: str) -> None:
        side = self._sides[arm]
        for gpu in await side.gpu_indexes_or_all():
            report = await side.session.gpu.revert_settings(
                gpu, settings=self._changed_setting_keys
            )
            failed = report.first_failure
            if failed is not None:
                raise SettingsError(
                    setting_failure_text(failed, "reverted"), host=side.session.host.name
                )
        self._settings_arm = None

    @property
    def _changed_setting_keys(self) -> frozenset[str]:
        """The keys of the GPU settings that the arms change."""
        return frozenset[str]().union(
            *(design.arm_of(self._spec, name).gpu for name in self._sides)
        )

    async def _altered_settings(self, side: ComparedSide) -> list[Alteration]:
        """Return the settings of the side's GPUs that are altered now and that the arms change."""
        gpus, every = await side.gpu_indexes_and_uses_all()
        changed = self._changed_setting_keys
        on = [altered for altered in side.session.state.alterations if altered.setting in changed]
        if every:
            return on
        return [altered for altered in on if altered.gpu_index in gpus]


def _start_failed_error(status: ServerStatus) -> StartFailedError:
    fixes = [finding.fix for finding in status.findings[:1]]
    why = status.reason or "its log has the cause"
    return StartFailedError(
        f"the server did not start: {why}",
        host=status.host,
        next_step=next(filter(None, fixes), f"workbench logs {status.run_id}"),
    )


def _have_same_configuration(a: LaunchPlan | None, b: LaunchPlan) -> bool:
    if a is None or a.engine_version not in (None, b.engine_version):
        return False
    return {change.name for change in plan_differences(a, b)} <= {"port"}
