"""A restart with a changed plan, whose benchmark is repeated: it compares the answers before and after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support.serving import eventually, free_port, session_on

from workbench.model.errors import BenchError
from workbench.model.quality import NOT_MEASURED
from workbench.model.server_run import ServerState
from workbench.quality import texts
from workbench.session.quality.restart_answers import AnswersOfRestart
from workbench.session.quality.scored_server import ScoredServer
from workbench.session.session import Session

SHORT = {"requests": 4, "max_tokens": 8, "input_tokens": 16, "warmup": 1, "concurrency": 2}

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "200")
    monkeypatch.setattr("workbench.session.quality.scored_server._COUNTERS_INTERVAL_S", 0.05)
    few = replace(texts.shipped_text_set(), texts=texts.shipped_text_set().texts[:2])
    monkeypatch.setattr("workbench.quality.texts.shipped_text_set", lambda: few)


def measured(scenario: Callable[[Session, str], Awaitable[None]]) -> None:
    """Run `scenario` with a session whose READY server was benchmarked, and with its run id."""

    async def go() -> None:
        async with session_on("rtx-pro-6000") as session:
            await session.plans.load_preset("vllm-any")
            session.plans.set_flag("port", str(free_port()))
            run_id = await session.servers.start()
            await session.servers.wait_ready(run_id, 20)
            result = await session.bench.benchmark_selected_run(**SHORT)
            # on a busy machine a run of some ms may be invalid, and it is repeated all the same
            session.core.update(bench=replace(session.state.bench, last_id=result))
            await asyncio.wait_for(scenario(session, run_id), 60)

    asyncio.run(go())


def test_a_changed_cache_is_compared_before_and_after_the_restart() -> None:
    async def scenario(session: Session, first: str) -> None:
        assert session.bench.answer_comparison_cost_text() == "", "nothing is changed yet"
        session.plans.set_flag("kv-cache-dtype", "fp8")
        cost = session.bench.answer_comparison_cost_text()
        assert cost.startswith(
            "A and B differ in kv-cache-dtype, so their answers are compared too"
        )
        assert cost.endswith(
            "A twice and B once, beside the runs; this usually takes seconds, and minutes on a "
            "slow server"
        )
        await session.bench.restart_and_compare_results()
        (found,) = await session.results.list_quality_results()
        assert (found.a, found.b) == (first, session.state.run_id)
        assert found.conditions_b["flag kv-cache-dtype"] == "fp8"
        assert found.forks is not None and found.forks.concurrency == 2, "as in the benchmark"
        assert [measure.floor is not None for measure in found.measures] == [True] * 4
        comparison = session.state.comparison
        assert comparison is not None and comparison.quality_id == found.id
        assert comparison.quality == found.summary
        assert session.state.quality is not None and not session.state.quality.running
        session.plans.set_flag("kv-cache-dtype", "auto")
        assert found.took_s is not None
        assert session.bench.answer_comparison_cost_text().endswith(
            f"the last one of this model here took {found.took_s:.0f} s"
        ), "it gave no time, although it had measured one"

    measured(scenario)


@pytest.mark.long
def test_answers_that_are_not_compared_are_not_measured_and_the_comparison_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object) -> None:
        raise AssertionError("the answers were measured")

    async def scenario(session: Session, first: str) -> None:
        session.plans.set_flag("kv-cache-dtype", "fp8")
        monkeypatch.setattr(AnswersOfRestart, "measure_before_restart", never)
        await session.bench.restart_and_compare_results(quality=False)
        comparison = session.state.comparison
        assert comparison is not None and comparison.quality == NOT_MEASURED

    measured(scenario)


@pytest.mark.long
def test_a_stop_while_a_is_measured_leaves_the_server_as_it_was() -> None:
    async def scenario(session: Session, first: str) -> None:
        session.plans.set_flag("kv-cache-dtype", "fp8")
        work = asyncio.create_task(session.bench.restart_and_compare_results())
        await eventually(lambda: session.state.quality and session.state.quality.step)
        await session.quality.stop()
        assert work.cancelled()
        view = session.state.quality
        assert view is not None and view.ended.startswith("stopped: the server was not restarted")
        assert session.state.run_id == first and not session.state.busy
        assert session.servers.supervisor.status(first).state is ServerState.READY
        assert not await session.results.list_quality_results()

    measured(scenario)


@pytest.mark.long
def test_an_instrument_that_fails_leaves_the_speed_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(_: ScoredServer) -> None:
        raise BenchError("the server broke off")

    async def scenario(session: Session, first: str) -> None:
        session.plans.set_flag("kv-cache-dtype", "fp8")
        monkeypatch.setattr(ScoredServer, "start_counting_requests", fails)
        said: list[str] = []
        session.subscribe(
            lambda state, changed: said.append(state.notice.text if state.notice else "")
        )
        await session.bench.restart_and_compare_results()
        comparison = session.state.comparison
        assert comparison is not None and comparison.quality == NOT_MEASURED
        assert f"{NOT_MEASURED}: A: the server broke off" in said

    measured(scenario)
