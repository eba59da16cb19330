"""The engine beside the GPUs on the screen: its rows at every size, its values under the cursor,
and its reasons."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_canned import NOW
from support.fake_session import FakeSession

from workbench.model.engine_live import EngineView
from workbench.model.timeline import ENGINE

VALUES = {
    "generation_tok_s": 1391.4,
    "prompt_tok_s": 12_345.0,
    "running": 16,
    "waiting": 8,
    "kv_use_pct": 34.2,
}
ONCE = {
    "generation_tok_s": 777.0,
    "prompt_tok_s": 0.0,
    "running": 3,
    "waiting": 0,
    "kv_use_pct": 5.0,
}


def serving(gpus: int, problem: str | None = None) -> FakeSession:
    """Return a session whose engine has been watched for 40 s; 6 and 5 s ago, which are one cell of
    a long graph, its values were others."""
    session = FakeSession(gpus)
    now = int(NOW) + session.ticks
    for second in range(now - 40, now + 1):
        for field, value in (ONCE if second in (now - 6, now - 5) else VALUES).items():
            session.timeline.history.add((ENGINE, field), second, value)
    view = EngineView("run", "vLLM :8000", {} if problem else VALUES, {}, problem)
    session.push(engine=view)
    return session


def strip_text(d: Any) -> str:
    return "\n".join(d.row(1 + n) for n in range(d.app.main.strip.size.height))


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_the_engine_is_drawn_at_every_size(drive: Any, size: tuple[int, int], gpus: int) -> None:
    async def scenario(d: Any) -> None:
        text = strip_text(d)
        for wanted in ("tok/s", "1,391", "queue", "16+8", "KV", "34%"):
            assert wanted in text, text
        if size == (200, 60):
            assert "prompt" in text and "12.3k" in text
        assert d.app.main.strip.size.height <= size[1] * 0.55

    drive(scenario, session=serving(gpus), size=size)


def test_the_cursor_shows_what_the_engine_did_in_that_second(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        for _ in range(3):
            await d.press("left_square_bracket")
        await d.until(lambda: "777" in strip_text(d))
        assert "3+0" in strip_text(d) and "5%" in strip_text(d)

    drive(scenario, session=serving(4))


def test_a_page_that_cannot_be_read_is_a_row_with_the_reason(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        last = d.row(d.app.main.strip.size.height)
        assert (
            "vLLM :8000: the server was started without --metrics"
        ) in last and "tok/s" not in last

    drive(scenario, session=serving(1, "the server was started without --metrics"))


def test_without_a_server_there_are_no_rows(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        assert "tok/s" not in strip_text(d)
        height = d.app.main.strip.size.height
        d.session.push(engine=EngineView("run", "vLLM :8000", VALUES))
        d.session.tick()
        await d.until(lambda: d.app.main.strip.size.height > height and "1,391" in strip_text(d))

    drive(scenario, session=FakeSession(1))
