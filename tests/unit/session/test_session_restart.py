"""A restart that cannot succeed leaves the server that runs alone, and one that failed leads back to
what ran."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.serving import free_port
from test_session_loop import eventually, on, ready

from workbench.hosts.base import FileError
from workbench.model.errors import BenchError, HostError, PlanError, ServerError, WorkbenchError
from workbench.model.experiment import Arm
from workbench.model.server_run import ServerState, ServerStatus
from workbench.session.session import Session

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick_engines(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.3")
    monkeypatch.setenv("WORKBENCH_SIM_NOISE", "0")


@contextmanager
def missing_program(session: Session, patch: pytest.MonkeyPatch) -> Iterator[str]:
    session.plans.editor.set_flag("executable", "/nonexistent/vllm")
    yield "/nonexistent/vllm does not exist"


@contextmanager
def busy_port(session: Session, patch: pytest.MonkeyPatch) -> Iterator[str]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        session.plans.set_flag("port", str(port))
        yield f"port {port} is in use by process {os.getpid()}"


@contextmanager
def full_disk(session: Session, patch: pytest.MonkeyPatch) -> Iterator[str]:
    write = session.host.write_file

    async def refused(path: str, data: bytes, **options: Any) -> None:
        if path.endswith("/plan.json"):
            raise FileError(f"cannot write {path}: No space left on device", host="sim")
        await write(path, data, **options)

    with patch.context() as patched:
        patched.setattr(session.host, "write_file", refused)
        yield "No space left on device"


WAYS = {"program": missing_program, "port": busy_port, "disk": full_disk}


def run_names() -> list[str]:
    root = Path(os.environ["XDG_STATE_HOME"])
    return sorted(path.name for path in root.glob("**/runs/*"))


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("way", WAYS)
def test_a_start_that_cannot_succeed_leaves_the_running_server(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(session: Session) -> None:
        run_id = await ready(session)
        with WAYS[way](session, monkeypatch) as message:
            with pytest.raises((ServerError, HostError), match=message):
                await session.servers.start()
            with pytest.raises((BenchError, ServerError, HostError), match=message):
                await session.bench.restart_and_compare_results()
        assert session.servers.supervisor.status(run_id).state is ServerState.READY
        assert run_names() == [run_id]  # nothing is left of the starts
        assert session.state.run_id == run_id and not session.state.busy
        session.plans.undo()
        if way == "port":
            assert await session.servers.start() != run_id

    on(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("way", WAYS)
def test_an_experiment_or_a_sweep_that_cannot_start_leaves_the_running_server(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(session: Session) -> None:
        run_id = await ready(session)
        shape = {"requests": 1, "max_tokens": 4, "input_tokens": 8, "warmup": 0}
        with WAYS[way](session, monkeypatch) as message:
            with pytest.raises(WorkbenchError, match=message):
                made = await session.experiments.run_experiment(
                    Arm(), Arm(sets=("max-num-seqs=7",)), bench=shape, pairs=1
                )
                raise WorkbenchError(made.error or "")
            if way != "disk":  # which the first value of the sweep meets
                sweep = await session.sweeps.run_flag_sweep({"max-num-seqs": ["7", "8"]}, **shape)
                assert message in (sweep.error or ""), sweep
        assert session.servers.supervisor.status(run_id).state is ServerState.READY

    on(scenario)


def test_the_new_server_takes_over_the_port_of_the_one_that_it_replaces() -> None:
    async def scenario(session: Session) -> None:
        first = await ready(session)
        supervisor, listings = session.servers.supervisor, 0
        list_runs = supervisor.runs

        async def counted(*how: Any) -> tuple[ServerStatus, ...]:
            nonlocal listings
            listings += 1
            return await list_runs(*how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(supervisor, "runs", counted)
            assert await session.servers.find_start_problem() is None
            assert "host.port" not in {f.code for f in await session.servers.find_start_warnings()}
        assert listings == 1  # each starts a program on the host
        second = await session.servers.start()
        status = await session.servers.wait_ready(second, 20)
        before = session.servers.supervisor.status(first)
        assert (status.state, before.state) == (ServerState.READY, ServerState.STOPPED)
        assert status.port == before.port and status.replaces == first
        assert session.state.goes_back_to is None

    on(scenario)


@pytest.mark.long
def test_after_a_failed_restart_one_call_starts_what_ran_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(session: Session) -> None:
        first = await ready(session)
        session.plans.set_flag("max-num-seqs", "77")
        with monkeypatch.context() as patched:
            patched.setenv("WORKBENCH_SIM_FAULT", "exit_at_start")
            failed = await session.servers.start()
            await session.servers.wait_ready(failed, 20)
            again = await session.servers.start()  # a second try does not forget what ran
            await session.servers.wait_ready(again, 20)
        await eventually(lambda: session.state.goes_back_to == first, "the way back")
        notice = session.state.notice
        assert notice is not None and f"workbench restart {first}" in (notice.next_step or "")
        back = await session.servers.restart_replaced_server()
        status = await session.servers.wait_ready(back, 20)
        plan = session.servers.supervisor.record(back).plan
        assert status.state is ServerState.READY and plan.flag("max-num-seqs") is None
        assert session.plans.editor.plan.flag("max-num-seqs") == 77  # what is edited stays
        assert session.state.goes_back_to is None

    on(scenario)


@pytest.mark.long
def test_the_next_session_knows_the_way_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(session: Session) -> None:
        first = await ready(session)
        monkeypatch.setenv("WORKBENCH_SIM_FAULT", "exit_at_start")
        failed = await session.servers.start()
        await session.servers.wait_ready(failed, 20)
        other = Session.of_host(None, "rtx-pro-6000")
        try:
            await other.link.connect()
            other.plans.edit_plan(session.plans.editor.plan, "the same plan")
            await other.servers.list_runs_and_select_one()
            assert (other.state.run_id, other.state.goes_back_to) == (failed, first)
        finally:
            await other.close()

    on(scenario)


@pytest.mark.long
def test_what_was_started_with_a_secret_comes_back_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(session: Session) -> None:
        await session.plans.load_preset("vllm-any")
        session.plans.set_flag("api-key", "open-sesame")
        first = await ready(session)
        other = Session.of_host(None, "rtx-pro-6000")
        try:
            await other.link.connect()
            await other.servers.list_runs_and_select_one()
            with pytest.raises(PlanError, match="api-key is a secret"):
                await other.servers.start_again(first)
            assert other.servers.supervisor.status(first).state is ServerState.READY
        finally:
            await other.close()
        again = await session.servers.start_again(first)  # this session knows it
        assert (await session.servers.wait_ready(again, 20)).state is ServerState.READY
        assert session.servers.supervisor.api_key(again) == "open-sesame"

    on(scenario)


def test_a_restart_that_would_find_too_little_memory_is_refused() -> None:
    async def scenario(session: Session) -> None:
        first = await ready(session)
        other = await ready_beside(session, first)
        session.core.update(telemetry=await session.telemetry.get_recent_reading())
        found = await session.servers.host_findings()  # of a third server beside these two
        assert [finding.code for finding in found] == ["host.port", "host.memory"]
        session.plans.set_flag("gpu-memory-utilization", "0.9")
        session.plans.set_flag("port", str(free_port()))
        (finding,) = await session.servers.host_findings()
        assert finding.code == "host.memory" and "GiB are free now" in finding.text
        with pytest.raises(ServerError, match="GiB are free now"):
            await session.servers.start()  # in place of the second one; the first one stays
        states = {session.servers.supervisor.status(run).state for run in (first, other)}
        assert states == {ServerState.READY}

    on(scenario)


async def ready_beside(session: Session, first: str) -> str:
    """Start a second small server beside a large one, and select it."""
    session.plans.set_flag("gpu-memory-utilization", "0.05")
    session.plans.set_flag("port", str(free_port()))
    session.core.update(run_id=None)
    second = await session.servers.start()
    status = await session.servers.wait_ready(second, 20)
    assert status.state is ServerState.READY, status.reason
    return second


def test_after_an_undo_nothing_is_said_about_the_program_that_was_typed() -> None:
    async def scenario(session: Session) -> None:
        plans = session.plans
        await plans.load_preset("vllm-any")
        await eventually(lambda: plans.editor.host_context.installed, "the engine")
        await plans.set_executable("/nonexistent/vllm")
        assert plans.view().installed_problem
        plans.undo()  # before the host was searched again
        view = plans.view()
        assert view.installed_problem is None and view.installed is None
        assert "engine.missing" not in [finding.code for finding in view.findings]
        await eventually(lambda: plans.view().installed, "the engine")
        # a search for the program that was typed ends after the undo
        plans.editor.set_flag("executable", "/nonexistent/vllm")
        search = asyncio.ensure_future(plans.locate_engine())
        await asyncio.sleep(0)
        plans.undo()
        await search
        await eventually(lambda: plans.view().installed, "the engine")
        assert plans.view().installed_problem is None

    on(scenario)
