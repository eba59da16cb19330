"""The session on simulated hosts: starting, queueing, cancelling, comparing, adopting, changing
hosts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest
from support.fake_host import FakeHost
from support.procs import alive, with_argument
from support.serving import free_port, session_on

from workbench.bench.runner import BenchCancelled
from workbench.hosts.base import HostKeyUnknown
from workbench.model.errors import BenchError, HostError, InputError, PlanError, ServerError
from workbench.model.server_run import ServerState
from workbench.session.bench import measurement
from workbench.session.session import Session
from workbench.session.state import SessionState
from workbench.store import paths

SHORT = {"requests": 3, "max_tokens": 8, "input_tokens": 16, "warmup": 0, "concurrency": 1}
LONG = {**SHORT, "requests": 1000, "max_tokens": 500}


@pytest.fixture(autouse=True)
def quick_engines(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.3")
    monkeypatch.setenv("WORKBENCH_SIM_NOISE", "0")


async def eventually(condition: Callable[[], object], what: str, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        await asyncio.sleep(0.02)


def on(scenario: Callable[[Session], Awaitable[None]], profile: str = "rtx-pro-6000") -> None:
    """`scenario` with a connected session; afterwards every run of its host is ended."""

    async def go() -> None:
        async with session_on(profile) as session:
            await asyncio.wait_for(scenario(session), 60)

    asyncio.run(go())


async def valid_result(session: Session) -> int:
    """Benchmark until a result is valid: on a busy machine the streams of a run of 30 ms may be
    idle, and only that is measured again."""
    for _ in range(10):
        result_id = await session.bench.benchmark_selected_run(**SHORT)
        if session.state.bench.last_id == result_id:
            return result_id
        assert all(
            "streams were in flight" in reason for reason in session.state.results[0].refused
        ), session.state.results[0].refused
    raise AssertionError("the streams of ten results were idle")


async def started(session: Session, **flags: str) -> str:
    if session.state.plan is None:
        await session.plans.load_preset("vllm-any")
    session.plans.set_flag("port", str(free_port()))
    for name, value in flags.items():
        session.plans.set_flag(name.replace("_", "-"), value)
    return await session.servers.start()


async def ready(session: Session) -> str:
    run_id = await started(session)
    assert (await session.servers.wait_ready(run_id, 20)).state is ServerState.READY
    return run_id


def workers() -> list[int]:
    """Benchmark workers of this process."""
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    return [pid for pid in with_argument("workbench.bench.worker") if pid in children]


@pytest.mark.long
@pytest.mark.slow
def test_a_benchmark_asked_for_too_early_runs_at_ready() -> None:
    async def scenario(session: Session) -> None:
        run_id = await started(session)
        assert (
            session.state.server is not None and session.state.server.state is ServerState.STARTING
        )
        assert await session.bench.benchmark_selected_run(**SHORT) is None
        assert session.state.bench.queued
        # stored even if it is refused: on a busy machine the streams of so short a run may be idle
        await eventually(lambda: session.state.bench.stored_id, "the queued benchmark")
        assert not session.state.bench.queued and not session.state.bench.running
        await eventually(lambda: session.state.results, "the row of its result")
        (row,) = session.state.results
        assert row.simulated and row.requests_ok == 3 and row.id == session.state.bench.stored_id
        assert any(run_id in a.command and "bench" in a.command for a in session.state.activity)

    on(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_benchmark_deletes_the_requests_of_results_beyond_keep_samples() -> None:
    async def scenario(session: Session) -> None:
        config = paths.config_file()
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text("[results]\nkeep_samples = 2\n")
        await ready(session)
        for _ in range(4):
            await session.bench.benchmark_selected_run(**SHORT)
        db = session.results.db
        assert len(session.state.results) == 4
        assert len(list(db.samples_dir.iterdir())) == 2
        kept = [bool(db.samples(row.id)) for row in session.state.results]
        assert kept == [True, True, False, False]  # the newest comes first

    on(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "fault", "cancel"])
def test_a_queued_benchmark_is_dropped(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "2")
    if how == "fault":
        monkeypatch.setenv("WORKBENCH_SIM_FAULT", "exit_at_start")

    async def scenario(session: Session) -> None:
        await started(session)
        with pytest.raises(InputError):
            await session.bench.benchmark_selected_run(requests=0)  # told now, not at READY
        assert await session.bench.benchmark_selected_run(**SHORT) is None
        if how == "stop":
            await session.servers.stop()
        elif how == "cancel":
            await session.bench.cancel()
        await eventually(lambda: not session.state.bench.queued, "the queue to be empty")
        if how != "cancel":
            assert session.state.bench.error == "the server did not become READY"
            with pytest.raises(BenchError):
                await session.bench.benchmark_selected_run(**SHORT)
        assert session.state.results == () and workers() == []

    on(scenario)


@pytest.mark.slow
def test_one_benchmark_at_a_time_and_a_cancel_leaves_neither_worker_nor_result() -> None:
    async def scenario(session: Session) -> None:
        run_id = await ready(session)
        bench = asyncio.create_task(session.bench.benchmark_selected_run(**LONG))
        await eventually(workers, "the worker")  # it is started before the load begins
        with pytest.raises(BenchError, match="another benchmark is running"):
            await session.bench.benchmark_selected_run(**SHORT)
        await session.bench.cancel()
        assert workers() == [] and not session.state.bench.running
        with pytest.raises(BenchCancelled):
            await bench
        bench = asyncio.create_task(session.bench.benchmark_selected_run(**LONG))
        await eventually(lambda: session.state.bench.running and workers(), "the load")
        await session.bench.cancel()
        assert workers() == []
        with pytest.raises(BenchCancelled):
            await bench
        assert (session.state.bench.running, session.state.bench.error) == (False, "cancelled")
        await session.results.refresh_result_rows()
        assert session.state.results == ()
        # Stopping the server ends the benchmark too: figures of a dying server are none.
        bench = asyncio.create_task(session.bench.benchmark_selected_run(**LONG))
        await eventually(workers, "the worker")
        await session.servers.stop(run_id)
        with pytest.raises(BenchCancelled):
            await bench
        await session.results.refresh_result_rows()
        assert session.state.results == () and workers() == []

    on(scenario)


@pytest.mark.slow
def test_closing_in_the_middle_of_a_benchmark_leaves_no_worker_and_a_living_server() -> None:
    async def scenario(session: Session) -> None:
        await ready(session)
        pid = session.state.server.pid if session.state.server else None
        bench = asyncio.create_task(session.bench.benchmark_selected_run(**LONG))
        await eventually(workers, "the worker")
        await session.close()
        assert workers() == [] and pid is not None and alive(pid)
        with pytest.raises(BenchCancelled):
            await bench

    on(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_after_an_invalid_result_only_the_step_says_why_nothing_was_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measurement, "prefix_cache_problem", lambda *_: "the prefix cache answered")

    async def scenario(session: Session) -> None:
        await ready(session)
        invalid = await session.bench.benchmark_selected_run(**SHORT)
        await session.bench.restart_and_compare_results()
        assert session.state.comparison is None
        said = [session.state.notice.text if session.state.notice else ""]
        assert any(
            f"because result {invalid} is invalid (the prefix cache answered)" in text
            for text in said
        ), said

    on(scenario)


@pytest.mark.slow
def test_restart_benchmark_compare_in_one_step() -> None:
    async def scenario(session: Session) -> None:
        first = await ready(session)
        before = await valid_result(session)
        session.plans.set_flag("enforce-eager", "on")
        assert [c.name for c in session.servers.changes_against_running()] == ["enforce-eager"]
        again = asyncio.create_task(session.bench.restart_and_compare_results(quality=False))
        await eventually(lambda: session.state.busy, "it to begin")
        with pytest.raises(BenchError, match="already being restarted for a comparison"):
            await session.bench.restart_and_compare_results()
        await again
        assert (
            session.state.run_id != first
            and session.servers.supervisor.status(first).state is ServerState.STOPPED
        )
        comparison = session.state.comparison
        assert comparison is not None and (comparison.a, comparison.b) == (
            before,
            session.state.mark_b,
        )
        assert "enforce-eager" in str(comparison.differences) and comparison.simulated
        assert session.state.results[0].label == "enforce-eager=on"
        assert (await session.results.get(comparison.b)).spec.requests == 3
        await session.results.delete(comparison.b)
        assert (
            session.state.comparison is None
            and session.state.mark_b is None
            and comparison.b not in {row.id for row in session.state.results}
        )

    on(scenario)


def test_two_starts_at_once_are_one_start() -> None:
    async def scenario(session: Session) -> None:
        await session.plans.load_preset("vllm-any")
        session.plans.set_flag("port", str(free_port()))
        outcomes = await asyncio.gather(
            session.servers.start(), session.servers.start(), return_exceptions=True
        )
        assert sorted(type(o).__name__ for o in outcomes) == ["ServerError", "str"]
        assert len(session.state.servers) == 1

    on(scenario)


@pytest.mark.slow
def test_a_run_of_a_session_that_was_killed_is_adopted_with_its_plan() -> None:
    port = free_port()
    code = (
        "import asyncio, sys\n"
        "from workbench.session.session import Session\n"
        "async def go():\n"
        "    s = Session.of_host(None, 'rtx-pro-6000')\n"
        "    await s.link.connect(); await s.plans.load_preset('vllm-any')\n"
        f"    s.plans.set_flag('port', '{port}'); s.plans.set_flag('max-num-seqs', '7')\n"
        "    print(await s.servers.start(), flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(go())"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert other.stdout is not None
    run_id = other.stdout.readline().strip()
    other.send_signal(signal.SIGKILL)
    other.communicate()

    async def scenario(session: Session) -> None:
        await session.servers.list_runs_and_select_one()
        assert session.state.run_id == run_id
        assert session.state.server is not None and session.state.server.adopted
        assert (await session.servers.wait_ready(run_id, 20)).state is ServerState.READY
        plan = session.state.plan
        assert plan is not None and plan.plan.flag("max-num-seqs") == 7
        assert session.servers.changes_against_running() == ()
        await eventually(lambda: len(session.log), "its log")
        assert "SIMULATED" in session.log.lines(0, 1)[0]
        pid = session.state.server.pid
        await session.servers.stop()
        assert pid is not None and not alive(pid)

    on(scenario)


def test_a_plan_whose_key_is_masked_is_never_offered_for_a_start() -> None:
    async def scenario(session: Session) -> None:
        await started(session, api_key="verysecret")
        other = Session.of_host(None, "rtx-pro-6000")
        try:
            await other.link.connect()
            await other.servers.list_runs_and_select_one()
            assert other.state.server is not None and other.state.plan is None
            with pytest.raises(PlanError, match="no plan is loaded"):
                await other.servers.start()
        finally:
            await other.close()

    on(scenario)


def test_listeners_hear_of_what_has_changed_and_of_nothing_else() -> None:
    async def scenario(session: Session) -> None:
        heard: list[frozenset[str]] = []

        def listener(state: SessionState, changed: frozenset[str]) -> None:
            assert state is session.state
            heard.append(changed)

        unsubscribe = session.subscribe(listener)
        session.core.update(run_id=None, log_revision=session.state.log_revision + 1)
        session.core.update(run_id=None)
        assert heard == [frozenset({"log_revision"})]
        unsubscribe()
        unsubscribe()
        session.core.update(run_id="x")
        assert len(heard) == 1

    on(scenario)


def test_errors_say_what_is_missing_and_leave_the_state_as_it_was() -> None:
    async def scenario(session: Session) -> None:
        for refused, kind in (
            (session.servers.start(), PlanError),
            (session.bench.benchmark_selected_run(), BenchError),
            (session.servers.stop(), ServerError),
            (session.results.compare(), InputError),
            (session.accept_host_key(), HostError),
            (session.plans.load_preset("nosuch"), InputError),
            (session.switch_host("sim:nosuch"), InputError),
            (session.bench.benchmark_run("nosuch"), ServerError),
        ):
            before = session.state
            with pytest.raises(kind) as told:
                await refused
            assert session.state == before
            assert told.value.next_step is not None or kind is HostError
        await session.plans.load_preset("vllm-any")
        session.plans.set_flag("tensor-parallel-size", "4")
        await session.telemetry.start()
        await eventually(
            lambda: session.state.telemetry and session.state.telemetry.infos, "the GPUs"
        )
        with pytest.raises(PlanError, match="the plan has 1 error"):
            await session.servers.start()
        assert session.state.servers == () and session.state.busy == ()

    on(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_another_host_brings_the_plan_along() -> None:
    async def scenario(session: Session) -> None:
        await session.open()
        await session.plans.load_preset("vllm-any")
        await ready(session)
        await session.bench.benchmark_selected_run(**SHORT)
        await eventually(
            lambda: session.state.plan and session.state.plan.installed, "the installed engine"
        )
        await session.switch_host("sim:gb10")
        state = session.state
        assert (state.host.name, state.servers, state.run_id, state.results) == (
            "sim:gb10",
            (),
            None,
            (),
        )
        assert state.plan is not None and state.presets
        await eventually(
            lambda: session.state.telemetry and session.state.telemetry.infos,
            "the GPUs of the other host",
        )
        assert (
            session.state.telemetry is not None
            and session.state.telemetry.infos[0].name == "NVIDIA GB10"
        )
        await eventually(
            lambda: session.state.plan and session.state.plan.installed, "the engine there"
        )
        await session.switch_host("sim:rtx-pro-6000")
        await eventually(lambda: session.state.server, "the server, adopted again")
        await eventually(lambda: session.state.results, "its results")

    on(scenario)


def test_examples_serve_on_a_simulated_host_only() -> None:
    async def scenario(session: Session) -> None:
        assert session.presets.missing_variables("sglang-mistral-large-awq-optimized") == {}
        await session.plans.load_preset("sglang-mistral-large-awq-optimized")
        assert session.state.plan is not None and session.state.plan.plan.model.startswith("/srv/")

    on(scenario)
    assert set(
        Session.of_host().presets.missing_variables("sglang-mistral-large-awq-optimized")
    ) == {
        "model",
        "triton_cache",
    }


class _Guarded(FakeHost):
    """Behind a host key that nobody knows yet."""

    def __init__(self) -> None:
        super().__init__(name="box", kind="ssh")
        self.accepted: list[str] = []

    async def connect(self) -> None:
        if not self.accepted:
            raise HostKeyUnknown(
                "box shows an unknown key", fingerprint="SHA256:abc", key_type="ssh-ed25519"
            )

    def accept_host_key(self, fingerprint: str) -> None:
        self.accepted.append(fingerprint)


def test_an_unknown_host_key_waits_for_the_person() -> None:
    async def go() -> None:
        host = _Guarded()
        session = Session(host)  # type: ignore[arg-type]
        try:
            await session.open()
            await eventually(lambda: session.state.host.unknown_key, "the question")
            assert (session.state.host.link, session.state.host.unknown_key) == (
                "failed",
                "SHA256:abc",
            )
            assert host.calls == []  # nothing is asked of a host that is not trusted
            await session.accept_host_key()
            assert session.state.host.unknown_key is None
            await eventually(lambda: session.state.host.link == "connected", "the link")
            assert host.accepted == ["SHA256:abc"]
            with pytest.raises(HostError):
                await session.accept_host_key()
        finally:
            await session.close()

    asyncio.run(go())


@pytest.mark.long
@pytest.mark.slow
def test_power_needs_two_seconds() -> None:
    async def scenario(session: Session) -> None:
        await ready(session)
        short = (
            await session.results.get(await session.bench.benchmark_selected_run(**SHORT) or 0)
        ).summary
        assert short.power_w is None and short.energy_j is None and short.tok_per_joule is None
        assert "too short for power readings, which are means over 1 s" in short.absent["power_w"]
        assert short.gpu is not None and short.gpu.power_w is None
        long: dict[str, Any] = {**SHORT, "requests": 20, "max_tokens": 128}
        full = (
            await session.results.get(await session.bench.benchmark_selected_run(**long) or 0)
        ).summary
        assert full.duration_s > 2 and full.gpu is not None and full.gpu.samples > 10
        assert (
            full.power_w is not None
            and full.energy_j is not None
            and full.tok_per_joule is not None
        )
        assert 100 < full.power_w < 600 and (full.gpu.sm_mhz or 0) > 2000
        assert full.energy_j == pytest.approx(full.power_w * full.duration_s, rel=0.15)
        assert full.tok_per_joule == pytest.approx(
            (full.output_tokens or 0) / full.energy_j, rel=0.02
        )

    on(scenario)


@pytest.mark.slow
def test_a_server_elsewhere_is_measured_without_our_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is no loopback address: a wildcard-bound simulated engine asked by this machine's
    name."""

    async def scenario(session: Session) -> None:
        run_id = await started(session, host="0.0.0.0")
        status = await session.servers.wait_ready(run_id, 20)
        assert status.state is ServerState.READY, status.reason
        elsewhere = Session.of_host()
        try:
            await elsewhere.link.connect()
            result_id = await elsewhere.bench.benchmark_url(
                f"http://0.0.0.0:{status.port}", **SHORT
            )
            found = await elsewhere.results.get(result_id)
            assert found.summary.requests_ok == 3 and found.conditions.simulated
            assert "the GPUs of 0.0.0.0 are not known" in found.summary.absent["power_w"]
            assert found.conditions.host == "0.0.0.0" and found.conditions.gpus == ()
        finally:
            await elsewhere.close()

    on(scenario)
