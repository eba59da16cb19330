"""No size, page or state ends the screen: every page with data, at every size, on the real session."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_results import experiment, result, samples, sweep
from support.real_screen import PROFILE, RealScreen, crashes, on_free_port, real_screen

from workbench.store import paths
from workbench.store.experiments import ExperimentsDb
from workbench.store.results_db import ResultsDb
from workbench.tui.widgets.interval import Axis, change_and_interval_row, make_axis

HOST = f"sim:{PROFILE}"
QUICK = ((120, 40), (60, 20), (53, 24), (20, 5), (61, 24), (200, 60), (80, 24))

# what brings a page up from the main screen, and what of it must have stood there
PAGES: dict[str, tuple[str, ...]] = {
    "presets": ("1",),
    "preset detail": ("1", "i"),
    "launch": ("2",),
    "all flags": ("2", "a"),
    "flag": ("2", "enter"),
    "variable": ("2", "E"),
    "log": ("3",),
    "runs": ("3", "o"),
    "results": ("4",),
    "result": ("4", "enter"),
    "note": ("4", "n"),
    "export": ("4", "e"),
    "plot": ("4", "t"),
    "filter": ("4", "f"),
    "compare": ("c",),
    "experiments": ("5", "o"),
    "experiment": ("X",),
    "new experiment": ("X", "n"),
    "sweep": ("S",),
    "new sweep": ("S", "n"),
    "gpus": ("6",),
    "settings": ("g",),
    "bench": ("b",),
    "bench details": ("b", "ctrl+o"),
    "start": ("s",),
    "stop": ("x",),
    "again": ("full_stop",),
    "command": ("v",),
    "save": ("w",),
    "host": ("h",),
    "activity": ("l",),
    "explain": ("question_mark",),
    "help": ("f1",),
    "palette": ("ctrl+p",),
    "zoom": ("z",),
    "quit": ("q",),
}


def stored() -> None:
    """Store results and an experiment of this host, as an earlier screen did."""
    db, experiments = ResultsDb(paths.results_db()), ExperimentsDb(paths.results_db())
    made = result(host=HOST)
    ids = [db.add(made.spec, made.conditions, made.summary, samples()) for _ in range(6)]
    e = experiment()
    runs = tuple(replace(run, result_id=ids[n]) for n, run in enumerate(e.runs))
    experiments.add(replace(e, host=HOST, runs=runs))


Sizes = Callable[[], tuple[tuple[int, int], ...]]


async def every_page(s: RealScreen, names: Iterable[str], sizes: Sizes) -> None:
    for name in names:
        keys = PAGES[name]
        await s.resize(*QUICK[0])
        await s.press(*keys)
        for size in sizes():
            await s.resize(*size)
            assert len(s.text.splitlines()) == size[1], (name, size)
            assert not crashes(), (name, size, crashes()[0].read_text())
        while s.app.screen is not s.app.main or s.app.main.panes.pages.visible_page:
            await s.press("escape")
        if s.app.main.panes.zoomed:
            await s.press("z")


def through_all(monkeypatch: pytest.MonkeyPatch, sizes: Sizes) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.1")
    stored()
    on_free_port()

    async def scenario() -> None:
        async with real_screen() as s:
            await s.serve()
            await s.until("4 x A100", lambda: len(s.state.results) == 6)
            s.session.results.toggle_comparison_mark(1, "A")
            s.session.results.toggle_comparison_mark(2, "B")
            s.session.core.update(bench=replace(s.state.bench, last_id=6))
            e = await s.session.experiments.get(1)
            for state in ("done", "running", "stopped", "failed"):
                s.session.core.update(
                    experiment=replace(
                        e, state=state, left_s=100.0, error="lost" if state == "failed" else ""
                    ),
                    sweep=replace(sweep(), state=state, host=HOST),
                )
                await every_page(
                    s, PAGES if state == "done" else ("experiment", "sweep", "compare"), sizes
                )

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.slow
def test_no_size_ends_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    through_all(monkeypatch, lambda: QUICK)


@pytest.mark.long
def test_no_size_of_many_ends_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(8)
    grid = [(columns, rows) for columns in range(20, 201, 5) for rows in range(5, 61, 5)]
    through_all(monkeypatch, lambda: tuple(dice.sample(grid, 40)))


@pytest.mark.long
@pytest.mark.slow
def test_an_experiment_is_drawn_at_every_width() -> None:
    """A resize to 60 columns ended the page (D1)."""
    stored()

    async def scenario() -> None:
        async with real_screen() as s:
            s.session.core.update(experiment=await s.session.experiments.get(1))
            await s.press("X")
            assert "pair 1" in s.text
            for columns in range(20, 100, 3):
                await s.resize(columns, 24)
                assert not crashes(), (columns, crashes()[0].read_text())

    asyncio.run(scenario())


@given(
    st.lists(st.tuples(st.floats(-1e4, 1e4), st.floats(0, 1e4)), max_size=6),
    st.integers(-80, 90),
    st.floats(-1e5, 1e5),
)
def test_an_axis_has_room_or_is_left_out(
    spans: list[tuple[float, float]], cells: int, change: float
) -> None:
    axis = make_axis(spans, cells)
    assert axis.cells == 0 or (axis.cells % 2 == 1 and 9 <= axis.cells <= cells)
    assert (
        len(axis.label_text())
        == axis.cells
        == sum(
            len(text) for text, _ in change_and_interval_row(axis, change, abs(change) / 3, "text")
        )
    )


def test_the_words_of_a_narrow_axis_do_not_touch() -> None:
    assert Axis(300, 13).label_text().split() == ["0"] and Axis(300, 31).label_text().split() == [
        "-300",
        "%",
        "0",
        "+300",
        "%",
    ]


def test_a_defect_in_drawing_is_shown_and_the_screen_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Any:
        raise IndexError("--api-key sesame")

    async def scenario() -> None:
        async with real_screen() as s:
            await s.until("4 x A100", lambda: s.state.presets)
            monkeypatch.setattr(s.pane("results"), "rows", broken)
            monkeypatch.setattr(s.app.main.controllers.view, "toggle_pane_zoom", broken)
            s.pane("results").repaint()
            await s.press("f1")
            await s.until("pick a preset: type letters")
            await s.press("escape", "z")
            text = await s.until(
                "a defect in Workbench: IndexError", "please report it with the file", "4 x A100"
            )
            assert "sesame" not in text
            await s.press("p")  # keys still work
            await s.until(lambda: s.app.query("Search"))

    asyncio.run(scenario())
    kept = crashes()
    assert (
        len(kept) == 2
        and "sesame" not in Path(kept[0]).read_text()
        and kept[0].stat().st_mode & 0o777 == 0o600
    )
