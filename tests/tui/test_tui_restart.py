"""Restarts on the real screen: one that cannot succeed is refused with its reason, and after one
that failed a key goes back to what ran."""

from __future__ import annotations

import socket

import pytest
from support.real_screen import RealScreen, on_free_port, shown
from support.serving import free_port

from workbench.model.server_run import ServerState

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick_engines(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.3")
    on_free_port()


def test_a_plan_that_cannot_start_offers_no_start_and_the_server_runs_on() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.serve()
        run_id = s.state.run_id
        s.session.plans.editor.set_flag("executable", "/nonexistent/vllm")
        s.session.plans.show_plan()
        await s.press("s")
        text = await s.until("/nonexistent/vllm does not exist", "The server that runs goes on.")
        assert "enter restart" not in text and "esc back to the plan" in text
        await s.press("enter", "escape", "full_stop")
        await s.until("no benchmark to repeat yet", "press b to benchmark the server that runs")
        s.session.core.update(bench=s.state.bench.__class__(last_id=1))
        await s.press("full_stop")
        text = await s.until("Again", "/nonexistent/vllm does not exist")
        assert "enter run" not in text
        await s.press("enter", "escape")
        assert (s.state.run_id, s.state.server.state) == (run_id, ServerState.READY)

    shown(scenario)


def test_the_page_before_a_start_warns_of_a_driver_and_packages_that_do_not_know_the_gpu() -> None:
    """Only the commands said so."""

    async def scenario(s: RealScreen) -> None:
        await s.session.plans.load_preset("sglang-any")
        s.session.plans.editor.set_flag("port", str(free_port()))
        s.session.plans.show_plan()
        await s.until("$ sglang serve", lambda: s.state.plan.installed)
        await s.press("s")
        text = await s.until(
            "driver 560.35.03 is older than sm_120", "torch of sglang is built without CUDA"
        )
        assert "enter start" in text
        await s.press("escape")

    shown(scenario, profile="rtx-5060ti-old-stack")


@pytest.mark.flaky(reruns=1)  # another test may take the free port before the server does
def test_a_port_in_use_is_named_and_a_key_takes_a_free_one() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.load()
        with socket.socket() as other:
            other.bind(("127.0.0.1", s.session.plans.editor.launch_command().port))
            other.listen()
            await s.press("s")
            text = await s.until("is in use by process", "f port=")
            assert "enter start" not in text
            await s.press("f")
            await s.until("enter start", lambda: "is in use" not in s.text)
            await s.press("enter")
            await s.until("READY vllm :")

    shown(scenario)


def test_after_a_failed_restart_a_key_of_the_footer_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(s: RealScreen) -> None:
        await s.serve()
        first = s.state.run_id
        await s.press("Z")
        await s.until("no restart has failed")
        with monkeypatch.context() as patched:
            patched.setenv("WORKBENCH_SIM_FAULT", "exit_at_start")
            await s.press("s")
            await s.until("enter restart")
            await s.press("enter")
            await s.until("FAILED vllm", "Z Go back", "press Z, or run")
        await s.press("Z")
        await s.until("READY vllm :", lambda: "Z Go back" not in s.text)
        assert s.state.run_id != first

    shown(scenario)


@pytest.mark.long
def test_what_is_edited_and_what_runs_are_told_apart() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.serve()
        assert "not running: " not in s.text
        s.session.plans.set_flag("enforce-eager", "off")
        s.session.plans.set_flag("tensor-parallel-size", "2")
        text = await s.until("2 changes not running: ")
        (row,) = [line for line in text.splitlines() if " tensor-parallel-size" in line]
        assert "+" in row.split("tensor")[0]  # beside the sign of a finding, if it has one
        await s.press("s")
        await s.until("enter restart")
        await s.press("enter")
        await s.until(lambda: "not running: " not in s.text, "READY vllm :")

    shown(scenario)
