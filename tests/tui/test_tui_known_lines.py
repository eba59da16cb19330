"""What is known of log lines, beside the lines and on a page of its own, on the real screen."""

from __future__ import annotations

import asyncio

import pytest
from support.real_screen import on_free_port, real_screen


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_running_server_shows_cause_and_fix_of_its_known_lines(
    clean_environment: None, size: tuple[int, int]
) -> None:
    async def go() -> None:
        on_free_port()
        async with real_screen(size=size) as screen:
            await screen.serve()
            await screen.press("3", "z", "home")
            await screen.until("! enforce-eager: no CUDA graphs", "fix: unset enforce-eager")
            await screen.until("findings (i)" if size[0] > 80 else "i known lines")
            assert all(f.level != "info" for f in screen.state.server.findings)
            await screen.press("i")
            await screen.until("Known lines of the log", "line ", "fix: unset enforce-eager")
            await screen.until("f or t: --unset enforce-eager")
            await screen.press("t")
            await screen.until("no valid result to compare with")
            await screen.press("f")
            await screen.until("changed in the plan: --unset enforce-eager")
            plan = screen.session.plans.editor
            assert plan.plan.flag("enforce-eager") is None
            await screen.press("f")
            await screen.until("the plan under edit has this already")
            await screen.press("escape", "2", "u")
            await screen.until(lambda: plan.plan.flag("enforce-eager") is True)
            await screen.press("3", "i")
            await screen.until("Known lines of the log")
            await screen.press("escape")
            await screen.until(lambda: "Known lines of the log" not in screen.text)

    asyncio.run(go())
