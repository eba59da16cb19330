"""GPU and flag sweeps on simulated hosts: whatever happens, the GPU and the servers are as they
were."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.serving import free_port, session_on

from workbench.bench.runner import BenchCancelled
from workbench.cli.sweeps import sweep_lines
from workbench.engines.answer_settings import collect_answer_settings
from workbench.gpu.settings import journal
from workbench.hosts.base import Host, HostUnreachable
from workbench.model.bench import BenchSpec, BenchSummary, Conditions
from workbench.model.errors import BenchError, InputError, PlanError, ServerError, SettingsError
from workbench.model.experiment import Arm, Experiment
from workbench.model.quality import QualityResult
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.setting_records import SettingsReport
from workbench.model.settings import ClockRange, GpuSettings
from workbench.model.sweep import Sweep
from workbench.session.session import Session
from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.store.quality_db import QualityDb
from workbench.tui.widgets.comparison import comparison_rows

BRIEF: dict[str, Any] = {
    "requests": 4,
    "max_tokens": 8,
    "input_tokens": 16,
    "warmup": 0,
    "concurrency": 1,
}
QUICK: dict[str, Any] = {"requests": 4, "settle_s": 0}
PROFILE = "rtx-pro-6000"


@pytest.fixture(autouse=True)
def quick_engines(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_NOISE", "0")
    monkeypatch.setattr("workbench.session.series.gpu_sweep._RETRY_INTERVAL_S", 0.01)


def driver() -> SimState:
    return SimState(
        f"{os.environ['XDG_STATE_HOME']}/workbench/sim/{PROFILE}/driver",
        profiles.get_profile(PROFILE),
    )


def limit_w() -> float | None:
    return driver().settings()[0].limit_w


class Scripted(Session):
    """Real settings on a simulated driver; the server and what it measures are made up. `measured`:
    called before each result."""

    measured: Callable[[], Awaitable[None]] | None = None

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        ready = ServerStatus("run", "vllm", ServerState.READY, "here", engine_version="1")
        supervisor = self.servers.supervisor
        supervisor.status = lambda run_id: ready  # type: ignore[method-assign]
        supervisor.record = lambda run_id: SimpleNamespace(plan=None, engine_version=None)  # type: ignore[method-assign,assignment,return-value]
        self.servers.selected_or_ready_run_id = self._selected_or_ready_run  # type: ignore[method-assign]
        self.bench.benchmark_target = self._bench  # type: ignore[method-assign]

    async def _selected_or_ready_run(self) -> str:
        return "run"

    async def _bench(self, run_id: str | None, url: str | None, **fields: Any) -> int:
        watts = limit_w()
        if self.measured is not None:
            await self.measured()
        summary = BenchSummary(
            4, 0, {}, 1, 1, 0, 1.0, 50.0, 1.0, None, None, None, None, None, None, watts, 1.0, 0.1
        )
        conditions = Conditions(
            self.host.name,
            "vllm",
            "1",
            "m",
            gpu_settings={"gpu0.power_limit_w": watts},
            in_force={"gpu0.power_limit_w": "yes"},
            simulated=True,
        )
        return self.results.db.add(BenchSpec("http://x", "m"), conditions, summary)


def settings_only(scenario: Callable[[Scripted], Awaitable[None]]) -> None:
    async def go() -> None:
        session = Scripted.of_host(None, PROFILE)
        assert isinstance(session, Scripted)
        try:
            await session.link.connect()
            await asyncio.wait_for(scenario(session), 60)
        finally:
            await session.close()

    asyncio.run(go())


def with_servers(
    scenario: Callable[[Session, str], Awaitable[None]], *, start: bool = True
) -> None:
    """`scenario` with a plan and a READY run ("" without)."""

    async def go() -> None:
        async with session_on(PROFILE) as session:
            await session.plans.load_preset("vllm-any")
            session.plans.set_flag("port", str(free_port()))
            run_id = ""
            if start:
                run_id = await session.servers.start()
                assert (await session.servers.wait_ready(run_id, 20)).state is ServerState.READY
            await asyncio.wait_for(scenario(session, run_id), 60)

    asyncio.run(go())


def states(sweep: Sweep) -> list[str]:
    return [p.state for p in sweep.points]


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 55
    while not condition():
        assert time.monotonic() < end, f"waited 20 s for {what}"
        await asyncio.sleep(0.02)


# -- a GPU setting


@pytest.mark.slow
def test_each_value_is_measured_and_kept_and_the_limit_of_the_start_is_back() -> None:
    async def scenario(session: Scripted) -> None:
        sweep = await session.sweeps.run_gpu_setting_sweep("power_limit_w", ["500", "300"], **QUICK)
        assert sweep.state == "done" and states(sweep) == ["done"] * 2 and sweep.simulated
        assert (
            limit_w() in (600.0, None) and (await journal.read_journal(session.host)).entries == ()
        )
        results = [await session.results.get(p.result_ids[0]) for p in sweep.points]
        assert [r.conditions.gpu_settings["gpu0.power_limit_w"] for r in results] == [500.0, 300.0]
        assert [p.in_force for p in sweep.points] == ["yes", "yes"]
        assert session.sweeps.sweep_store.get(sweep.id) == sweep == session.state.sweep
        assert any("sweep" in a.command for a in session.state.activity)
        # the list of results said "running", and its last result stood beside the sweep
        said = [row.series.said for row in session.state.results if row.series is not None]
        assert len(said) == 2 and not any("running" in text for text in said)

    settings_only(scenario)


@pytest.mark.slow
@pytest.mark.long
def test_back_to_an_earlier_change_of_ours_with_its_journal_entry() -> None:
    async def scenario(session: Scripted) -> None:
        assert (await session.gpu.apply_settings(GpuSettings(power_limit_w=450.0))).ok
        before = (await journal.read_journal(session.host)).entries
        sweep = await session.sweeps.run_gpu_setting_sweep(
            "power_limit_w", ["600", "300"], **QUICK
        )  # 600: as it was before all of it
        assert states(sweep) == ["done", "done"], sweep
        assert limit_w() == 450.0 and (await journal.read_journal(session.host)).entries == before
        await session.gpu.revert_settings()
        assert limit_w() in (600.0, None)

    settings_only(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_back_to_no_lock_and_back_to_the_lock_that_was_on() -> None:
    async def scenario(session: Scripted) -> None:
        first = await session.sweeps.run_gpu_setting_sweep(
            "gpu_clocks", ["1500", "210-2000"], **QUICK
        )
        assert any(
            "an earlier clock lock is not known, so the default is set at the end" in n
            for n in first.notes
        )
        assert driver().settings()[0].gpu_lock_mhz is None
        assert (await session.gpu.apply_settings(GpuSettings(gpu_clocks=ClockRange(2100, 2100)))).ok
        locked = driver().settings()[0].gpu_lock_mhz
        sweep = await session.sweeps.run_gpu_setting_sweep("gpu_clocks", ["1500", "1800"], **QUICK)
        assert states(sweep) == ["done", "done"] and driver().settings()[0].gpu_lock_mhz == locked
        assert not any("earlier clock lock" in note for note in sweep.notes)
        await session.gpu.revert_settings()

    settings_only(scenario)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("power_limit_w", ["300", "9000"]),
        ("gpu_clocks", ["1500", "9000"]),
        ("power_limit_w", ["300", "x"]),
    ],
)
def test_a_value_that_cannot_be_is_told_before_anything_is_touched(
    setting: str, values: list[str]
) -> None:
    async def scenario(session: Scripted) -> None:
        with pytest.raises(InputError):
            await session.sweeps.run_gpu_setting_sweep(setting, values, **QUICK)
        assert (
            session.sweeps.sweep_store.list() == ()
            and (await journal.read_journal(session.host)).log == ()
        )

    settings_only(scenario)


def test_without_a_ready_server_nothing_is_touched() -> None:
    async def scenario(session: Session, run_id: str) -> None:
        with pytest.raises(ServerError, match="no server is READY"):
            await session.sweeps.run_gpu_setting_sweep("power_limit_w", ["300", "400"], **QUICK)
        assert session.sweeps.sweep_store.list() == ()

    with_servers(scenario, start=False)


@pytest.mark.long
@pytest.mark.slow
def test_a_setter_that_changes_nothing_fails_its_points_and_the_sweep() -> None:
    async def scenario(session: Scripted) -> None:
        driver().set_faults(ignored=["limit_w"])
        sweep = await session.sweeps.run_gpu_setting_sweep(
            "power_limit_w", ["500", "400", "300"], **QUICK
        )
        driver().set_faults(ignored=None)
        assert states(sweep) == ["failed", "failed", "skipped"] and sweep.state == "failed"
        assert "600" in str(sweep.points[0].error) and "2 values in a row" in str(sweep.error)

    settings_only(scenario)


@pytest.mark.slow
def test_one_value_that_cannot_be_set_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(session: Scripted) -> None:
        apply = session.gpu.apply_settings_by_gpu

        async def refuses_400(wanted: Any, **options: Any) -> SettingsReport:
            if any(w.get("power_limit_w") == 400.0 for w in wanted.values()):
                raise SettingsError("the driver did not like it")
            return await apply(wanted, **options)

        monkeypatch.setattr(session.gpu, "apply_settings_by_gpu", refuses_400)
        sweep = await session.sweeps.run_gpu_setting_sweep("power_limit_w", ["400", "300"], **QUICK)
        assert states(sweep) == ["failed", "done"] and sweep.state == "done"
        assert sweep.points[0].error == "the driver did not like it" and limit_w() in (600.0, None)

    settings_only(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("state", [ServerState.READY, ServerState.CRASHED])
def test_a_point_that_fails_ends_it_only_where_the_server_is_gone(
    state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(session: Scripted) -> None:
        async def first_fails() -> None:
            session.measured = None
            status = ServerStatus("run", "vllm", state, "here")
            monkeypatch.setattr(session.servers.supervisor, "status", lambda run_id: status)
            raise BenchError("reset by peer")

        session.measured = first_fails
        sweep = await session.sweeps.run_gpu_setting_sweep("power_limit_w", ["500", "400"], **QUICK)
        assert states(sweep) == ["failed", "done" if state is ServerState.READY else "skipped"]
        assert sweep.points[0].error == "reset by peer" and limit_w() in (600.0, None)

    settings_only(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["cancel_sweep", pytest.param("close", marks=pytest.mark.long), "task"]
)
def test_cancelled_while_it_measures(how: str) -> None:
    async def scenario(session: Scripted) -> None:
        measuring = asyncio.Event()

        async def long() -> None:
            measuring.set()
            assert session.sweeps._stop is not None
            await session.sweeps._stop.wait()
            raise BenchCancelled("cancelled")

        session.measured = long
        work = asyncio.create_task(
            session.sweeps.run_gpu_setting_sweep("power_limit_w", ["500", "300"], **QUICK)
        )
        await asyncio.wait_for(measuring.wait(), 20)
        assert limit_w() == 500.0
        if how == "task":  # as Ctrl-C does it
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        else:
            await (
                session.sweeps.cancel() if how == "cancel_sweep" else session._cancel_measurements()
            )
            assert limit_w() in (600.0, None)
            assert (await work).state == "stopped"
        assert (
            limit_w() in (600.0, None) and (await journal.read_journal(session.host)).entries == ()
        )
        (kept,) = session.sweeps.sweep_store.list()
        assert kept.state == "stopped" and states(kept) == ["skipped", "skipped"]

    settings_only(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_load_that_begins_after_the_cancel_is_cancelled_too() -> None:
    """The cancel must not miss a load that is only about to begin, and wait until it has run to its
    end."""

    async def scenario(session: Scripted) -> None:
        measuring = asyncio.Event()

        async def begins_late() -> None:
            measuring.set()
            assert session.sweeps._stop is not None
            await session.sweeps._stop.wait()
            async with session.server_load._lock_host_and_prestart_client(
                "a benchmark", "run", None, gpus_known=False
            ) as (
                cancel,
                _,
            ):
                await cancel.wait()
            raise BenchCancelled("cancelled")

        session.measured = begins_late
        work = asyncio.create_task(
            session.sweeps.run_gpu_setting_sweep("power_limit_w", ["500", "300"], **QUICK)
        )
        await asyncio.wait_for(measuring.wait(), 20)
        await asyncio.wait_for(session.sweeps.cancel(), 20)
        assert (await work).state == "stopped" and limit_w() in (600.0, None)

    settings_only(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("back_after", [3, None])
def test_a_link_that_is_cut_when_the_setting_is_to_be_given_back(
    back_after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried until the link is back; where it stays away the person is told, and journal and
    guard are left."""
    monkeypatch.setattr(
        "workbench.session.series.gpu_sweep.RESTORE_TIMEOUT_S", 20.0 if back_after else 0.1
    )

    async def scenario(session: Scripted) -> None:
        apply, cut = session.gpu.apply_settings_by_gpu, []

        async def cut_off(wanted: Any, **options: Any) -> SettingsReport:
            if any(w.get("power_limit_w") == 600.0 for w in wanted.values()):
                cut.append(1)
                if back_after is None or len(cut) <= back_after:
                    raise HostUnreachable("the link is cut", host="here")
            return await apply(wanted, **options)

        monkeypatch.setattr(session.gpu, "apply_settings_by_gpu", cut_off)
        sweep = await session.sweeps.run_gpu_setting_sweep("power_limit_w", ["500", "300"], **QUICK)
        assert states(sweep) == ["done", "done"]
        if back_after:
            assert (
                sweep.state == "done" and limit_w() in (600.0, None) and len(cut) == back_after + 1
            )
            return
        assert sweep.state == "failed" and "GPU0: power limit was not restored" in str(sweep.error)
        assert limit_w() == 300.0 and len((await journal.read_journal(session.host)).entries) == 1
        monkeypatch.setattr(session.gpu, "apply_settings_by_gpu", apply)
        await session.gpu.revert_settings()

    settings_only(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_settings_that_are_given_back_behind_its_back_are_not_measured_as_set() -> None:
    async def scenario(session: Scripted) -> None:
        async def the_guard_comes() -> None:
            driver().change_setting(0, limit_w=600.0)

        session.measured = the_guard_comes
        sweep = await session.sweeps.run_gpu_setting_sweep("power_limit_w", ["500", "300"], **QUICK)
        assert states(sweep) == ["failed", "skipped"] and (
            "was reverted during the measurement"
        ) in str(sweep.error)

    settings_only(scenario)


# -- flags


@pytest.mark.slow
def test_flags_are_screened_the_best_is_compared_and_nothing_is_left_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(session: Session, run_id: str) -> None:
        asked: list[Any] = []

        async def compared(a: Any, b: Any, **options: Any) -> Experiment:
            asked.append((a, b, options))
            return Experiment(7, 0.0, "here", None, verdict="better by a lot")  # type: ignore[arg-type]

        monkeypatch.setattr(session.experiments, "run_experiment", compared)
        session.plans.set_flag("max-num-seqs", "2")
        speeds = iter((50.0, 70.0))

        async def measured(run: str, **fields: Any) -> int:
            assert session.servers.supervisor.status(run).state is ServerState.READY
            flags = session.servers.supervisor.record(run).plan.flags  # type: ignore[union-attr]
            summary = BenchSummary(
                4,
                0,
                {},
                1,
                1,
                0,
                1.0,
                next(speeds),
                1.0,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
            )
            conditions = Conditions(
                "here", "vllm", "1", "m", flags={f.name: f.value for f in flags}
            )
            return session.results.db.add(BenchSpec("http://x", "m"), conditions, summary)

        monkeypatch.setattr(session.bench, "benchmark_run", measured)
        sweep = await session.sweeps.run_flag_sweep({"max-num-seqs": ["2", "8"]}, pairs=2, **BRIEF)
        # what is there, once
        assert [p.label for p in sweep.points] == ["start: max-num-seqs=2", "max-num-seqs=8"]
        assert states(sweep) == ["done", "done"] and [p.x for p in sweep.points] == [2.0, 8.0], (
            sweep
        )
        results = [await session.results.get(p.result_ids[0]) for p in sweep.points]
        assert [r.conditions.flags["max-num-seqs"] for r in results] == [2, 8]
        ((a, b, options),) = asked
        assert a == Arm() and b.sets == ("max-num-seqs=8",)
        answers = {"quality": True, "quality_texts": ""}
        assert options == {
            "pairs": 2,
            "bench": BRIEF,
            "on_experiment_stored": options["on_experiment_stored"],
            **answers,
        }
        assert (
            sweep.experiment_id == 7
            and ("max-num-seqs=8 against the current values: better by a lot") in sweep.notes
        )
        assert any("only a value that was compared in pairs is claimed" in n for n in sweep.notes)
        alive = [s for s in await session.servers.supervisor.runs() if s.state is ServerState.READY]
        assert alive == []

    with_servers(scenario, start=False)


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_of_a_flag_that_changes_answers_says_that_quality_was_not_measured() -> None:
    async def scenario(session: Session, run_id: str) -> None:
        sweep = await session.sweeps.run_flag_sweep({"kv-cache-dtype": ["fp8"]}, pairs=0, **BRIEF)
        assert states(sweep) == ["done", "done"], sweep
        assert sweep.quality == "quality not measured"
        assert "quality not measured" in [line.strip() for line in sweep_lines(sweep)][:6]
        comparison = await session.results.compare(*(p.result_ids[0] for p in sweep.points))
        assert comparison.quality == "quality not measured"
        assert comparison.answer_changes == ("kv-cache-dtype",)
        rows = comparison_rows(comparison, 80)
        assert any(text.startswith("quality not measured") for row in rows[:3] for text, _ in row)
        a, b = [await session.results.get(p.result_ids[0]) for p in sweep.points]
        summary = "its answers are the same within 0.001 KLD"
        measured = QualityResult(
            "A",
            "B",
            "same",
            summary,
            simulated=True,
            conditions_a=collect_answer_settings(a.conditions),
            conditions_b=collect_answer_settings(b.conditions),
        )
        QualityDb(session.results.db.path).add(measured)
        comparison = await session.results.compare(a.id, b.id)
        assert (comparison.quality, comparison.quality_verdict) == (summary, "same")
        report = await session.reports.report_text("md", [[a.id], [b.id]])
        assert summary in report

    with_servers(scenario, start=False)


@pytest.mark.long
@pytest.mark.slow
def test_a_value_that_does_not_start_is_a_failed_point_and_what_ran_before_runs_again() -> None:
    async def scenario(session: Session, run_id: str) -> None:
        plan = session.plans.editor.plan
        # 96 GB cannot hold it: the engine ends by itself. Too small a number the catalog's check
        # refuses.
        sweep = await session.sweeps.run_flag_sweep(
            {"gpu-memory-utilization": ["0.001"]}, pairs=0, **BRIEF
        )
        assert sweep.points[1].state == "failed" and sweep.points[0].result_ids, sweep
        assert "not started: " in str(sweep.points[1].error)
        assert "none of the values could be measured" in str(sweep.error)
        assert session.plans.editor.plan == plan
        again = [s for s in await session.servers.supervisor.runs() if s.alive]
        assert len(again) == 1 and again[0].run_id != run_id
        assert (
            session.servers.supervisor.record(again[0].run_id).plan
            == session.servers.supervisor.record(run_id).plan
        )

    with_servers(scenario)


@pytest.mark.slow
def test_a_cancelled_flag_sweep_gives_the_server_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(session: Session, run_id: str) -> None:
        monkeypatch.setenv("WORKBENCH_SIM_START_S", "30")
        work = asyncio.create_task(
            session.sweeps.run_flag_sweep({"max-num-seqs": ["8", "16"]}, **BRIEF)
        )
        await until(lambda: session.state.run_id != run_id, "the first start")
        started = session.state.run_id
        monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
        await session.sweeps.cancel()
        sweep = await work
        assert sweep.state == "stopped" and states(sweep) == ["skipped"] * 3
        alive = [s.run_id for s in await session.servers.supervisor.runs() if s.alive]
        assert len(alive) == 1 and alive[0] not in (run_id, started)

    with_servers(scenario)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"max-num-seqs": []},
        {"max-num-seqs": ["many"]},
        {"max-num-seqs": ["1"], "block-size": ["16"], "swap-space": ["1"]},
    ],
)
def test_a_grid_that_cannot_be_is_told_before_anything_is_started(
    flags: dict[str, list[str]],
) -> None:
    async def scenario(session: Session, run_id: str) -> None:
        with pytest.raises((InputError, PlanError)):
            await session.sweeps.run_flag_sweep(flags, **BRIEF)
        assert (
            session.sweeps.sweep_store.list() == ()
            and await session.servers.supervisor.runs() == ()
        )

    with_servers(scenario, start=False)
