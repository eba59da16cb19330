"""READY? on the screen, with the real session and a simulated engine whose text is garbage."""

from __future__ import annotations

import pytest
from support.real_screen import PROFILE, RealScreen, on_free_port, shown

from workbench.session.session import Session

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    on_free_port()


async def _start(screen: RealScreen) -> None:
    await screen.load()
    await screen.press("s")
    await screen.until("enter start")
    await screen.press("enter")


def test_garbage_is_ready_with_a_question_mark_on_every_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_FAULT", "garbage")

    async def first(screen: RealScreen) -> None:
        await _start(screen)
        await screen.until("? READY? vllm :", "degenerate output")
        proved = screen.state.server.text.unix_s
        await screen.press("3", "i")
        page = await screen.until("Known lines of the log", "it answered")
        assert "!!!!!!!!" in page
        await screen.press("escape", "a")
        await screen.until("asking vllm")
        await screen.until(lambda: screen.state.server.text.unix_s > proved, "it answered")
        # Another screen on the same host: the reason is read from the run's directory.
        other = Session.of_host(None, PROFILE)
        await other.link.connect()
        await other.servers.list_runs_and_select_one()
        assert other.state.server is not None and other.state.server.state_word == "ready?"
        await other.close()

    shown(first)


@pytest.mark.long
def test_the_demo_is_ready_without_a_question_mark() -> None:
    async def demo(screen: RealScreen) -> None:
        await _start(screen)
        text = await screen.until("READY vllm :")
        assert "READY?" not in text
        assert screen.state.server.text.answers == 13
        assert "The code word is maple." in screen.state.server.text.excerpt

    shown(demo)
