"""What belongs to the result under the cursor of the Bench pane: the comparison of the Compare
pane, until the user marks B, and the reasons for figures that it lacks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support import made_results as made
from support.fake_session import FakeSession
from support.real_screen import real_screen

from workbench.model.findings import Finding, Level
from workbench.session.session import Session
from workbench.store import paths, screen_state
from workbench.store.results_db import ResultsDb


@pytest.mark.slow
def test_compare_is_about_the_selected_result_until_b_is_marked(clean_environment: None) -> None:
    db = ResultsDb(paths.results_db())

    async def go() -> None:
        session = Session.of_host()
        for _ in range(3):
            one = made.result(1, host="box")
            here = replace(one.conditions, host=session.host.name)
            db.add(one.spec, here, one.summary)
        first, second, third = 1, 2, 3
        async with real_screen(session=session) as screen:
            await screen.until(lambda: len(screen.state.results) == 3)
            await screen.press("4", "down", "down", "a", "up")
            await screen.until(f"A #{first} vs B #{second}  (selected)")
            await screen.press("up")
            await screen.until(f"A #{first} vs B #{third}  (selected)")
            await screen.press("B")
            await screen.until("B is marked: B unmarks")
            await session.results.compare_result_under_cursor(second)
            assert screen.state.comparison.b == third and screen.state.mark_b == third
            assert screen_state.read_screen_state(session.host.name)["b_chosen"] is True
            await screen.press("B", "down")  # unmarked again
            await screen.until(f"A #{first} vs B #{second}  (selected)")

    asyncio.run(go())


def test_reasons_and_advice_are_read_whole_or_name_their_key(drive: Any) -> None:
    why = "the run took 0.8 s, too short for power readings, which are means over 1 s"
    long = "decoding reaches only 11 % of the limit by the memory bandwidth; " * 3
    held = "its mean is between 52.4 and 55.2 ms and " + "so on " * 40
    row = made.bench_row(1, "baseline", 420.0, power_absent=why, ttft_absent=held, requests_ok=8)
    advice = (
        Finding(Level.HINT, "limit", long.strip()),
        Finding(Level.HINT, "last", "the last one"),
    )

    async def scenario(d: Any) -> None:
        d.session.push(results=(replace(row, advice=advice),))
        await d.press("4")
        await d.until(lambda: "no W and tok/J (#1): the run took 0.8 s" in d.text)
        said = " ".join(d.text.split())
        assert "which are means over 1 s" in said and "the last one" in said
        assert long.split(";")[0] in said
        assert "enter: all" in said and "TTFT withheld (#1): its mean is between 52.4" in said

    drive(scenario, session=FakeSession(1), size=(80, 24))
