"""The timelines of results on the screen: one on its page, two aligned at their starts, and none."""

from __future__ import annotations

import asyncio

import pytest
from support.made_results import result
from support.real_screen import PROFILE, RealScreen, crashes, real_screen

from workbench.model.timeline import CLIENT_TOK_S, Event, EventKind, Key
from workbench.store import paths, result_timelines
from workbench.store.recording import CellWriter, Header, format_event
from workbench.store.results_db import ResultsDb
from workbench.tui.cells import row_width
from workbench.tui.widgets.result_timeline import aligned_timeline_rows, timeline_rows

T0 = 1_764_000_000


def stored(begin_s: int, watts: float, seconds: int = 60) -> int:
    """Store a result whose benchmark begins 10 s after its first second and has one power level.
    Return its id."""
    db, made = ResultsDb(paths.results_db()), result(host=f"sim:{PROFILE}")
    result_id = db.add(made.spec, made.conditions, made.summary, ())
    cells, lines = CellWriter(1), list[str]()
    for second in range(seconds + 15):
        busy = 10 <= second < 10 + seconds
        values: dict[Key, float | None] = {}
        for gpu in range(2):
            values[gpu, "power_w"] = watts if busy else 30.0
            values[gpu, "sm_mhz"] = 2400.0
            values[gpu, "gpu_util_pct"] = 99.0 if busy else 0.0
        if busy:
            values[CLIENT_TOK_S] = watts * 10
        at = begin_s + second
        lines += cells.add_reading(range(at, at + 1), values)
    lines += cells.finish_open_cells()
    marks = ((10, EventKind.BENCH_BEGIN), (10 + seconds, EventKind.BENCH_END))
    lines += [
        format_event(Event(begin_s + at, kind, "benchmark", None, result_id)) for at, kind in marks
    ]
    path = result_timelines.timeline_path(paths.data_dir(), db.uid(result_id))
    result_timelines.write_timeline(path, Header("box", True, 1, begin_s), lines)
    return result_id


def read(result_id: int) -> result_timelines.ResultTimeline:
    db = ResultsDb(paths.results_db())
    timeline = result_timelines.read_timeline(
        result_timelines.timeline_path(paths.data_dir(), db.uid(result_id))
    )
    assert timeline is not None
    return timeline


def test_the_page_of_a_result_has_its_timeline_and_two_are_aligned() -> None:
    a, b = stored(T0, 200.0), stored(T0 + 3607, 300.0, seconds=30)
    db, made = ResultsDb(paths.results_db()), result(host=f"sim:{PROFILE}")
    old = db.add(made.spec, made.conditions, made.summary, ())

    async def scenario(s: RealScreen) -> None:
        # the marks of the last screen are read by then, and replace none of these
        await s.until(
            lambda: len(s.state.results) == 3 and s.session.screen_memory.resumed is not None
        )
        s.session.results.toggle_comparison_mark(a, "A")
        s.session.results.toggle_comparison_mark(b, "B")
        await s.press("5", "i")
        await s.until(
            f"Timelines of #{a} and #{b}",
            f"A #{a} power",
            "400 / 600 W",
            f"B #{b} power",
            "600 / 600 W",
            "99 / 100 %",
        )
        await s.press("escape", "4", "enter")
        await s.until(f"Result #{old}")
        await s.until("no timeline was kept")

    async def main() -> None:
        async with real_screen() as s:
            await scenario(s)

    asyncio.run(main())
    assert not crashes(), crashes()[0].read_text()


@pytest.mark.parametrize("width", [40, 78, 118, 198])
def test_timelines_fit_every_width_and_begin_in_the_same_column(width: int) -> None:
    timelines = {
        "A #1": read(stored(T0, 200.0)),
        "B #2": read(stored(T0 + 3601, 300.0, seconds=700)),
    }
    rows = ["".join(text for text, _ in row) for row in aligned_timeline_rows(timelines, width)]
    assert all(len(row) <= width for row in rows)
    marks = [row for row in rows if "events" in row]
    assert len(marks) == 2 and marks[0].index("[") == marks[1].index("[")
    (axis,) = [row for row in rows if row.startswith("time")]
    assert axis.index("0 s") == marks[0].index("[")
    assert all(row_width(row) <= width for row in timeline_rows(None, width))
