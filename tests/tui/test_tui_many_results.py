"""The list of results when there are more of them than the screen reads at first."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support import made_results as made
from support.real_screen import real_screen

from workbench.session.session import Session
from workbench.store import paths
from workbench.store.results_db import ResultsDb
from workbench.tui.panes.results import ttft_text


@pytest.mark.slow
def test_older_results_appear_at_the_end_of_the_list_and_in_a_search(
    clean_environment: None,
) -> None:
    db = ResultsDb(paths.results_db())

    async def go() -> None:
        session = Session.of_host()
        one = made.result(host=session.host.name)
        db.add(one.spec, one.conditions, one.summary)
        made.multiply(db.path, 249)
        async with real_screen(session=session) as screen:
            await screen.until(lambda: len(screen.state.results) == 100)
            await screen.press("4", "end")
            await screen.until(
                "4 Bench  200+", lambda: screen.pane("results").current_item.id == 151
            )
            await screen.press("end")
            await screen.until(lambda: len(screen.state.results) == 250)
            assert screen.pane("results").current_item.id == 51 and "250+" not in screen.text
            await screen.press("f", *"copy42", "enter")
            await screen.until("copy42", lambda: [row.id for row in screen.state.results] == [43])
            await screen.press("escape")
            await screen.until(lambda: len(screen.state.results) == 100)

    asyncio.run(go())


def test_a_ttft_shows_its_doubt_and_a_withheld_one_says_why() -> None:
    known = made.bench_row(1, "run", 400.0, ttft_p50_ms=77.0, ttft_p90_ms=83.2)
    assert ttft_text(known, 13) == "77/83"
    doubted = replace(known, ttft_unsure_ms=0.62)
    assert ttft_text(doubted, 13) == "77/83 ±0.6"
    assert ttft_text(doubted, 10) == "77"  # the title of a narrow column names p50 alone
    assert ttft_text(made.bench_row(2, "run", 400.0), 13) == "n/a"
