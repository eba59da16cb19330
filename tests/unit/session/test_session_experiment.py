"""An experiment as the screen sees it: progress in the state, nobody between its runs, stopped and
gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import made_results
from support.serving import free_port

from workbench.model.errors import BenchError, InputError, ServerError, SettingsError
from workbench.model.experiment import Arm, ArmTarget, Experiment, ExperimentRun, RunState
from workbench.model.series_state import SeriesState
from workbench.model.server_run import ServerState
from workbench.model.settings import GpuSettings
from workbench.session.bench.spec import spec_from_fields
from workbench.session.session import Session
from workbench.session.state import SessionState

SHAPE = {"requests": 4, "max_tokens": 8, "input_tokens": 16, "warmup": 0, "concurrency": 2}
ARMS = Arm(), Arm(envs=("TRIED=1",))


async def _on_a_session(scenario: Callable[[Session], Awaitable[None]]) -> None:
    session = Session.of_host(None, "rtx-pro-6000")
    try:
        await session.link.connect()
        await asyncio.wait_for(scenario(session), 110)
    finally:
        await session.experiments.stop()
        for status in await session.servers.supervisor.runs():
            await session.servers.supervisor.stop(status.run_id, grace_s=1)
        await session.close()


@pytest.mark.slow
@pytest.mark.long
def test_progress_is_in_the_state_and_it_is_stopped_and_resumed(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 0.0)
    seen: list[Experiment] = []

    def look(state: SessionState, changed: frozenset[str]) -> None:
        if "experiment" in changed and state.experiment is not None:
            seen.append(state.experiment)

    async def until(session: Session, work: asyncio.Task[Experiment], pairs: int) -> Experiment:
        """The experiment once so many pairs are complete and a run is measured; AssertionError if
        it ends before."""
        while not (
            seen and seen[-1].completed_pairs >= pairs and seen[-1].phase.endswith("measuring")
        ):
            assert not work.done(), work.result()
            await asyncio.sleep(0.02)
        return seen[-1]

    async def scenario(session: Session) -> None:
        await session.plans.load_preset("vllm-any")
        session.plans.set_flag("port", str(free_port()))
        session.subscribe(look)
        work = asyncio.create_task(
            session.experiments.run_experiment(
                *ARMS, pairs=3, bench=SHAPE, throw_away=False, order_seed=4
            )
        )
        now = await until(session, work, 1)
        assert now.phase == "pair 2, B: measuring" and "experiment" in session.state.busy
        assert now.left_s is not None and now.left_s > 0
        for meddling in (
            session.servers.start,
            session.bench.benchmark_selected_run,
            session.bench.restart_and_compare_results,
        ):
            with pytest.raises(ServerError, match="an experiment is running and needs the server"):
                await meddling()
        with pytest.raises(BenchError, match="another experiment is running"):
            await session.experiments.run_experiment(*ARMS)
        await session.experiments.stop()
        stopped = await work
        assert (stopped.state, stopped.completed_pairs, session.state.experiment) == (
            "stopped",
            1,
            stopped,
        )
        assert session.state.busy == () and session.state.server is not None
        assert session.state.server.state is ServerState.STOPPED, "what it started is ended"

        seen.clear()
        done = await session.experiments.resume(stopped.id)
        assert (done.state, done.completed_pairs) == (
            "done",
            3,
        ) and session.state.experiment == done
        assert [r.state for r in done.runs].count("done") == 6
        widths = {
            e.completed_pairs: e.comparison.metrics[0].interval_pct for e in seen if e.comparison
        }
        assert widths[1] is None and widths[2] is not None and widths[3] is not None
        left = {e.completed_pairs: e.left_s for e in seen if e.left_s is not None}
        assert left[1] > left[2] > 0.0
        assert seen[0].runs[0] == stopped.runs[0], "what it had is kept"
        with pytest.raises(InputError, match="is finished"):
            await session.experiments.resume(done.id)

    asyncio.run(_on_a_session(scenario))


def test_a_trace_is_found_from_another_directory_and_says_how_long_it_takes(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "2023-11-16 18:15:{}.5,100,5"
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    (tmp_path / "day.csv").write_text("\n".join([header, rows.format("10"), rows.format("40")]))
    monkeypatch.chdir(tmp_path)
    bench = {"trace_file": "day.csv", "speed": 2.0}

    async def scenario(session: Session) -> None:
        await session.plans.load_preset("vllm-any")
        spec = session.experiments.experiment_spec(*ARMS, bench=bench)
        assert spec.bench["trace_file"] == str(tmp_path / "day.csv")
        assert bench["trace_file"] == "day.csv"
        b = Arm(target=ArmTarget("http://127.0.0.1:9", url="http://127.0.0.1:9"))
        a = Arm(target=ArmTarget("http://127.0.0.1:8", url="http://127.0.0.1:8"))
        left_s = session.experiments.estimate_duration_s(
            a, b, bench=bench, pairs=1, throw_away=False
        )
        assert left_s == pytest.approx(2 * (15.0 + 4.0))

    asyncio.run(_on_a_session(scenario))


def test_an_experiment_keeps_the_content_of_its_prompts(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored experiment that names no content was made by an older Workbench with words."""

    class Seen(Exception):
        pass

    async def scenario(session: Session) -> None:
        await session.plans.load_preset("vllm-any")
        experiments = session.experiments
        spec = experiments.experiment_spec(*ARMS, bench=SHAPE)
        assert spec.bench == {**SHAPE, "content": "text"}
        assert experiments.experiment_spec(*ARMS, bench={"content": "words"}).bench == {
            "content": "words"
        }
        seen: list[Experiment] = []

        async def conduct(experiment: Experiment, sides: object) -> Experiment:
            seen.append(experiment)
            raise Seen

        monkeypatch.setattr(experiments, "_carry_out_experiment", conduct)
        for bench in (SHAPE, spec.bench):
            stored = Experiment(
                0,
                0.0,
                "sim:rtx-pro-6000",
                replace(spec, bench=bench),
                state=SeriesState.STOPPED,
                simulated=True,
            )
            number = experiments.db.add(stored).id
            with pytest.raises(Seen):
                await experiments.resume(number)
        assert [one.spec.bench["content"] for one in seen] == ["words", "text"]

    asyncio.run(_on_a_session(scenario))


def test_an_experiment_goes_on_only_with_the_file_that_it_began_with(
    clean_environment: None, tmp_path: Path
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one"}')

    async def scenario(session: Session) -> None:
        await session.plans.load_preset("vllm-any")
        bench = {**SHAPE, "prompts_file": str(path)}
        spec = session.experiments.experiment_spec(*ARMS, bench=bench)
        sent = made_results.result()
        prompts = spec_from_fields(None, bench).prompts_name
        ran = replace(sent, spec=replace(sent.spec, prompts_name=prompts))
        number = session.results.db.add(ran.spec, ran.conditions, ran.summary)
        runs = (ExperimentRun(0, 0, "A", RunState.DONE, number),)
        stored = Experiment(
            0,
            0.0,
            "sim:rtx-pro-6000",
            spec,
            runs,
            state=SeriesState.STOPPED,
            simulated=True,
        )
        begun = session.experiments.db.add(stored).id
        path.write_text('{"prompt": "another"}')
        with pytest.raises(InputError, match=r"its runs sent mine.jsonl \(1 .* is mine.jsonl"):
            await session.experiments.resume(begun)

    asyncio.run(_on_a_session(scenario))


@pytest.mark.slow
def test_an_experiment_under_altered_settings_is_refused_and_names_them_as_the_screen_does(
    clean_environment: None,
) -> None:
    async def scenario() -> None:
        session = Session.of_host(None, "rtx-pro-6000")
        try:
            await session.link.connect()
            await session.plans.load_preset("vllm-any")
            session.plans.set_flag("port", str(free_port()))
            assert (await session.gpu.apply_settings(GpuSettings(power_limit_w=450.0), 0)).ok
            lower = Arm(gpu=GpuSettings(power_limit_w=400.0))
            with pytest.raises(SettingsError, match=r"altered are still on \(GPU0 power limit\)"):
                await session.experiments.run_experiment(Arm(), lower, pairs=1, bench=SHAPE)
            assert await session.experiments.list() == () and session.state.experiment is None
        finally:
            await session.gpu.revert_settings()
            await session.close()

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.slow
def test_a_setting_that_is_equal_in_both_arms_stays_on_and_does_not_block(
    clean_environment: None,
) -> None:
    """Persistence mode, which `doctor` advises, is on before, during and after the experiment."""

    async def scenario(session: Session) -> None:
        await session.plans.load_preset("vllm-any")
        session.plans.set_flag("port", str(free_port()))
        session.plans.set_env("WORKBENCH_SIM_START_S", "0.2")
        session.plans.set_env("WORKBENCH_SIM_SPEEDUP", "50")
        assert (await session.gpu.apply_settings(GpuSettings(persistence=True), 0)).ok
        arms = [Arm(gpu=GpuSettings(power_limit_w=watts)) for watts in (500.0, 400.0)]
        ended = await session.experiments.run_experiment(*arms, pairs=1, bench=SHAPE)
        assert ended.state == SeriesState.DONE, ended.error
        await session.gpu.alterations.read_altered_settings()
        assert [a.setting for a in session.state.alterations] == ["persistence"]
        await session.gpu.revert_settings()

    asyncio.run(_on_a_session(scenario))


def test_a_value_that_the_engine_may_not_have_is_named_before_the_first_run(
    clean_environment: None,
) -> None:
    """An engine that starts for minutes refused it at its first start."""
    session = Session.of_host(None, "rtx-pro-6000")
    session.plans.edit_plan(session.presets.make_plan("vllm-any"), "vllm-any")
    wrong = Arm(sets=("kv_cache_dtype=nonsense", "max-num-seqs=64"))
    (said,) = session.experiments.doubtful_value_warnings(Arm(sets=("kv-cache-dtype=fp8",)), wrong)
    assert said.startswith("B: kv-cache-dtype is 'nonsense'") and "one of auto" in said
    plan = session.presets.make_plan("sglang-any")
    target = ArmTarget("sglang-any")
    at_target = Arm(sets=("kv-cache-dtype=nonsense",), target=target)
    (said,) = session.experiments.doubtful_value_warnings(
        Arm(target=target), at_target, {"B": plan}
    )
    assert said.startswith("B: kv-cache-dtype is 'nonsense', which is not one of the choices")
    known = Arm(target=ArmTarget("url", url="http://127.0.0.1:9"))
    assert session.experiments.doubtful_value_warnings(known, known, {}) == []
