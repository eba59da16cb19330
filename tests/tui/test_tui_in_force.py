"""The page that compares what was asked of the server with what is in force, on the real screen."""

from __future__ import annotations

import asyncio

import pytest
from support.real_screen import on_free_port, real_screen


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_asked_and_in_force_of_a_running_server(
    clean_environment: None, size: tuple[int, int]
) -> None:
    async def go() -> None:
        on_free_port()
        async with real_screen(size=size) as screen:
            await screen.press("W")
            await screen.until("no run is selected")
            await screen.serve()
            await screen.press("W")
            await screen.until(
                "Asked and in force", "where read" if size[0] > 100 else "/v1/models"
            )
            await screen.until("max model length", "262144", "KV cache, tokens", "/metrics")
            await screen.press("escape")
            await screen.until(lambda: "Asked and in force" not in screen.text)

    asyncio.run(go())
