"""The labels above the time axis: what a benchmark measured, by how much, and what was set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.fake_canned import NOW
from support.fake_session import FakeSession
from support.made_results import bench_row

from workbench.model.timeline import Event, EventKind
from workbench.session.bench.row import BenchRow, SeriesView
from workbench.session.bench.row_changes import (
    change_text,
    noise_pct_hiding_throughput_change,
    row_compared_in_label,
    throughput_change_pct,
)
from workbench.session.state import BenchState
from workbench.tui.formats import throughput_change_and_role
from workbench.tui.glyphs import choose_glyphs
from workbench.tui.panes.results import short_throughput_change_and_role
from workbench.tui.widgets.axis_labels import axis_labels
from workbench.tui.widgets.time_axis import Label, TimeView, label_row

BEFORE = bench_row(1, "baseline", 420.0, unix_s=NOW, concurrency=8, requests_ok=48, simulated=True)
OFF = replace(BEFORE, id=2, label="enforce-eager=off", output_tok_s=1402.0)
CAPPED = replace(OFF, id=3, label="power limit 170 W", output_tok_s=1401.0)


def worked(*rows: BenchRow) -> FakeSession:
    """Return a session with two benchmarks of 15 s with a restart between, a power limit, and a
    third benchmark, all in the last two minutes."""
    session = FakeSession(4)
    now = NOW + session.ticks

    def happened(ago_s: float, kind: EventKind, text: str = "", result: int | None = None) -> None:
        session.timeline.history.add_event_if_new(Event(now - ago_s, kind, text, None, result))

    for number, ago_s in ((1, 110), (2, 65), (3, 20)):
        happened(ago_s, EventKind.BENCH_BEGIN, f"benchmark {number}")
        happened(ago_s - 15, EventKind.BENCH_END, f"benchmark {number} ends", number)
    happened(90, EventKind.SERVER_START)
    happened(75, EventKind.SERVER_READY)
    happened(40, EventKind.SETTING_MADE, "GPU0-3 power limit 170 W")
    session.push(results=tuple(reversed(rows)), mark_a=1, mark_b=2)
    return session


def strip_rows(d: Any) -> list[str]:
    return [d.row(1 + n) for n in range(d.app.main.strip.size.height)]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_what_each_change_did_stands_on_the_axis(drive: Any, size: tuple[int, int]) -> None:
    async def scenario(d: Any) -> None:
        labels, axis = strip_rows(d)[-2:]
        assert axis.count("[") == axis.count("]") == 3 and "S" in axis and "g" in axis
        for wanted in ("A #1 420", "B #2 1,402", "+234 %", "170 W", "-0.1 %"):
            assert wanted in labels, labels
        # a label begins where its benchmark does
        assert labels.index("A #1") == axis.index("[")

    drive(scenario, session=worked(BEFORE, OFF, CAPPED), size=size)


def test_a_rejected_result_has_no_speed_on_the_axis(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        labels = strip_rows(d)[-2]
        assert "B #2 x" in labels and "1,402" not in labels and "+234" not in labels

    refused = replace(OFF, refused=("the text of the answers is garbage",))
    drive(scenario, session=worked(BEFORE, refused, CAPPED), size=(120, 40))


def test_a_running_benchmark_says_so(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        now = NOW + d.session.ticks
        d.session.timeline.history.add_event_if_new(
            Event(now - 10, EventKind.BENCH_BEGIN, "begins")
        )
        d.session.push(bench=BenchState(running=True))
        d.session.tick()
        await d.until(lambda: "measuring" in strip_rows(d)[-2])

    drive(scenario, size=(120, 40))


def test_a_row_for_labels_comes_with_the_first_thing_that_happened(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        height = d.app.main.strip.size.height
        text = "GPU0-3 power limit 170 W by the guard"
        event = Event(NOW + d.session.ticks - 20, EventKind.SETTING_REVERTED, text)
        d.session.timeline.history.add_event_if_new(event)
        d.session.tick()
        await d.until(lambda: d.app.main.strip.size.height == height + 1)
        assert "power limit 170 W" in strip_rows(d)[-2]

    drive(scenario, size=(120, 40))


def test_a_change_is_only_told_between_results_that_may_be_compared() -> None:
    rows = (CAPPED, OFF, BEFORE)
    assert (
        row_compared_in_label(CAPPED, rows) is OFF and row_compared_in_label(BEFORE, rows) is None
    )
    assert change_text(throughput_change_pct(OFF, BEFORE)) == "+234 %"
    assert change_text(throughput_change_pct(CAPPED, OFF)) == "-0.1 %"
    for other in (
        replace(OFF, concurrency=64),
        replace(OFF, refused=("no answer",)),
        replace(OFF, requests_failed=3),
        replace(OFF, output_tok_s=None),
        BEFORE,
    ):
        assert change_text(throughput_change_pct(other, BEFORE)) == ""
    assert throughput_change_pct(OFF, None) is None
    assert change_text(-0.01) == "0.0 %"


def test_a_run_of_an_experiment_is_not_compared_with_the_one_before() -> None:
    again = replace(OFF, id=3, series=SeriesView("A/B", 1, ""))
    assert row_compared_in_label(again, (again, OFF, BEFORE)) is None
    of_sweep = replace(again, series=SeriesView("sweep", 1, ""))
    assert row_compared_in_label(of_sweep, (of_sweep, OFF, BEFORE)) is OFF


def test_a_reverted_setting_near_the_right_end_says_its_value(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        text = "GPU0-3 power limit 250 W again"
        event = Event(NOW + d.session.ticks - 2, EventKind.SETTING_REVERTED, text)
        d.session.timeline.history.add_event_if_new(event)
        d.session.tick()
        await d.until(lambda: strip_rows(d)[-2].strip() in ("250 W", "limit 250 W", text[7:]))

    drive(scenario, size=(80, 24))


def test_the_console_of_linux_and_ascii_have_no_braille() -> None:
    assert choose_glyphs({"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}).braille
    assert not choose_glyphs({"TERM": "linux", "LANG": "en_US.UTF-8"}).braille
    assert not choose_glyphs({"TERM": "xterm", "LANG": "C"}).braille


def test_a_figure_without_room_is_not_read_as_one_of_the_result_before() -> None:
    """Two benchmarks of few seconds read "A #1 4,155 -45 %": the percentage was that of #2."""
    state = FakeSession().state
    first = replace(BEFORE, output_tok_s=4155.0)
    second = replace(OFF, output_tok_s=2289.0)
    state = replace(state, results=(second, first), mark_a=1, mark_b=2)
    events = [
        Event(NOW + at, kind, "b", None, number)
        for number, begin in ((1, 0.0), (2, 24.0))
        for at, kind in ((begin, EventKind.BENCH_BEGIN), (begin + 5.0, EventKind.BENCH_END))
    ]
    for cells in range(20, 90):
        window = TimeView().window(NOW + 30.0, cells)
        labels = axis_labels(window, events, state)
        text = "".join(run for run, _ in label_row(labels, cells))
        if "-45 %" in text:
            assert "#2" in text[: text.index("-45 %")].rpartition("#1")[2]


def test_the_percentage_of_b_names_the_result_before_it_where_that_is_not_a() -> None:
    """Two readers took "A #1 3,474   B #3 3,473 -1.1 %" for the difference of B from A."""
    state = FakeSession().state
    state = replace(state, results=(CAPPED, OFF, BEFORE), mark_a=1, mark_b=3)
    events = [
        Event(NOW, EventKind.BENCH_BEGIN, "b", None, 3),
        Event(NOW + 15.0, EventKind.BENCH_END, "b", None, 3),
    ]
    window = TimeView().window(NOW + 30.0, 90)
    (label,) = axis_labels(window, events, state)
    assert "".join(run for run, _ in label.texts[1]).endswith("-0.1 % vs #2")
    (of_two,) = axis_labels(window, events, replace(state, mark_a=2))
    assert "vs" not in "".join(run for form in of_two.texts for run, _ in form)


def test_the_label_of_a_benchmark_without_its_begin_stands_at_its_end() -> None:
    """In an experiment, a label stood at the left end of the axis, minutes before its run."""
    state = replace(FakeSession().state, results=(BEFORE,))
    window = TimeView().window(NOW + 30.0, 90)
    end = Event(NOW + 15.0, EventKind.BENCH_END, "b", None, 1)
    (label,) = axis_labels(window, [end], state)
    assert label.column == window.column_of_time(end.unix_s) > 0


def happened_at(d: Any, *events: tuple[float, EventKind, str]) -> None:
    for ago_s, kind, said in events:
        d.session.timeline.history.add_event_if_new(
            Event(NOW + d.session.ticks - ago_s, kind, said)
        )
    d.session.tick()


@pytest.mark.parametrize(("lasted_s", "where"), [(4, "now (! slowed)"), (40, "[!throttled")])
def test_a_throttle_mark_is_explained_also_in_a_short_benchmark(
    drive: Any, lasted_s: float, where: str
) -> None:
    async def scenario(d: Any) -> None:
        happened_at(
            d,
            (60, EventKind.BENCH_BEGIN, "benchmark of 8 streams begins"),
            (58, EventKind.THROTTLE, "GPU0 throttled: SW power cap"),
            (60 - lasted_s, EventKind.BENCH_END, "benchmark of 8 streams ends"),
        )
        await d.until(lambda: where in strip_rows(d)[-1])

    drive(scenario, size=(80, 24))


def test_a_comparison_of_answers_is_a_span_with_what_it_found(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        said = "its answers are the same within 0.001 KLD"
        happened_at(
            d,
            (80, EventKind.QUALITY_BEGIN, "comparison of answers begins"),
            (30, EventKind.QUALITY_END, f"comparison of answers ends: {said}"),
        )
        await d.until(lambda: "answers are the same within 0.001 KLD" in strip_rows(d)[-2])
        assert "{answers~" in strip_rows(d)[-1] and "~}" in strip_rows(d)[-1]

    drive(scenario, size=(120, 40))


def test_a_comparison_of_answers_takes_no_room_from_results() -> None:
    def label(column: int, *texts: str, **rest: Any) -> Label:
        return Label(column, tuple(((text, "text"),) for text in texts), **rest)

    results = [label(0, "A #2 419 tok/s", "#2"), label(30, "B #3 1,396 tok/s +233 %", "#3")]
    alone = label_row(results, 60)
    answers = label(36, "the answers are the same", "answers", gives_way=True)
    assert label_row([*results, answers], 60) == alone, "there is no room behind B"
    row = label_row([*results, label(18, "answers", gives_way=True)], 60)
    text = "".join(part for part, _ in row)
    assert text == "A #2 419 tok/s    answers     B #3 1,396 tok/s +233 %"


def test_a_change_that_may_be_chance_is_no_gain() -> None:
    small = replace(OFF, id=3, output_tok_s=1428.6, rate_error_pct=1.0)
    assert noise_pct_hiding_throughput_change(
        small, replace(OFF, rate_error_pct=0.9)
    ) == pytest.approx(2.96, abs=0.01)
    assert throughput_change_and_role(small, replace(OFF, rate_error_pct=0.9)) == (
        "+1.9 % ±3",
        "text",
    )
    # a larger change, and one of runs that do not say how much they vary
    larger = replace(small, output_tok_s=1500.0)
    assert throughput_change_and_role(larger, replace(OFF, rate_error_pct=0.9)) == (
        "+7.0 %",
        "good",
    )
    assert throughput_change_and_role(small, OFF) == ("+1.9 %", "good")
    # a narrow column keeps the change, without its decimal
    wide = replace(small, rate_error_pct=19.5)
    base = replace(OFF, rate_error_pct=0.9)
    assert short_throughput_change_and_role(wide, base, 9) == ("+1.9%±43", "text")
    assert short_throughput_change_and_role(wide, base, 8) == ("+2%±43", "text")
