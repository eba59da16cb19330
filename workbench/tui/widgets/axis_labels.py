"""The labels above the time axis: what a benchmark measured, and which GPU setting was made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.model.timeline import Event, EventKind
from workbench.session.bench.row_changes import row_compared_in_label
from workbench.tui.cells import Row, Run, cut_text, join_rows
from workbench.tui.formats import (
    enclose_nonempty_text,
    number_text,
    short_preset_name,
    throughput_change_and_role,
)
from workbench.tui.widgets.time_axis import Label, Window, events_in_window

if TYPE_CHECKING:
    from workbench.session.bench.row import BenchRow
    from workbench.session.state import SessionState

SETTINGS = (EventKind.SETTING_MADE, EventKind.SETTING_TRIAL, EventKind.SETTING_REVERTED)
QUALITY = (EventKind.QUALITY_BEGIN, EventKind.QUALITY_END)
LABELLED = (EventKind.BENCH_BEGIN, EventKind.BENCH_END, *QUALITY, *SETTINGS)
_GPUS = re.compile(r"GPU[\d,-]+ ")
_BRIEF_CELLS = 26  # of what a comparison of answers found
_GAP: Run = (" ", "dim")


def axis_labels(window: Window, events: Sequence[Event], state: SessionState) -> list[Label]:
    """Return the labels of the window: one for each benchmark, each comparison of answers and each
    change of a GPU setting."""

    inside = events_in_window(events, window)
    labels = [
        *_gpu_setting_labels(window, inside),
        *_answer_comparison_labels(window, inside, state),
    ]
    begin: Event | None = None
    for event in inside:
        if event.kind is EventKind.BENCH_BEGIN:
            begin = event
        elif event.kind is EventKind.BENCH_END:
            # without its begin in the window, the label stands where the benchmark ended
            column = max(0, window.column_of_time((begin or event).unix_s))
            row = state.find_result(event.result_id)
            if row is not None:
                labels.append(Label(column, _result_labels_longest_first(row, state)))
            begin = None
    if begin is not None and state.bench.running:
        labels.append(Label(window.column_of_time(begin.unix_s), ((("measuring", "dim"),),)))
    return labels


def _result_labels_longest_first(row: BenchRow, state: SessionState) -> tuple[Row, ...]:
    """Return the forms of the label of a result, the longest one first: its number, its speed, and
    the change in percent against the result before it. Beside the mark A or B, the label names that
    earlier result. For a rejected result, the forms have an "x", the shortest one only that."""
    marks = {state.mark_a: ("A ", "a"), state.mark_b: ("B ", "b")}
    mark, role = marks.get(row.id, ("", "strong"))
    number: Row = ((f"{mark}#{row.id}", role),)
    if row.refused:
        return (
            (*number, (" x rejected", "bad")),
            (*number, (" x", "bad")),
            (("x", "bad"),),
        )
    before = row_compared_in_label(row, state.results)
    change = throughput_change_and_role(row, before)
    changed: Row = ()
    against: Row = ()
    if change[0]:
        changed = (change,)
        if mark and before is not None and before.id not in marks:
            against = ((f"vs #{before.id}", "dim"),)
    speed = number_text(row.output_tok_s)
    name: Row = ((short_preset_name(row.label, row.engine), "text"),)
    figure = changed or ((speed, "strong"),)
    forms = (
        (number, name, ((f"{speed} tok/s", "strong"),), changed, against),
        (number, ((f"{speed} tok/s", "strong"),), changed, against),
        (number, ((speed, "strong"),), changed, against),
        (number, ((speed, "strong"),), changed),
        (number, figure, against),
        (number, figure),
        (number,),
    )
    return tuple(join_rows(filter(None, form), _GAP) for form in forms)


def _answer_comparison_labels(
    window: Window, events: Sequence[Event], state: SessionState
) -> Iterator[Label]:
    """Yield a label for each comparison of answers: what it found, or that it is under way."""
    begin: Event | None = None
    for event in events:
        if event.kind is EventKind.QUALITY_BEGIN:
            begin = event
        elif event.kind is EventKind.QUALITY_END:
            column = max(0, window.column_of_time((begin or event).unix_s))
            found = event.text.partition(" ends: ")[2]
            said = found.removeprefix("its ")  # "its answers are the same within 0.001 KLD"
            if said == found:
                said = f"answers: {found}"
            forms = (said, cut_text(said, _BRIEF_CELLS), "answers")
            texts = tuple(((text, "strong"),) for text in dict.fromkeys(forms))
            yield Label(column, texts, gives_way=True)
            begin = None
    if begin is not None and state.running_quality is not None:
        text = (("comparing answers", "dim"),)
        yield Label(window.column_of_time(begin.unix_s), (text,), gives_way=True)


def _gpu_setting_labels(window: Window, events: Sequence[Event]) -> Iterator[Label]:
    """Yield the labels of the changes of GPU settings. Changes in the same column share a label."""
    texts: dict[int, list[str]] = {}
    for event in events:
        if event.kind in SETTINGS:
            text = _GPUS.sub("", event.text, count=1)
            texts.setdefault(window.column_of_time(event.unix_s), []).append(text)
    for column, several in texts.items():
        first, *more = dict.fromkeys(several)
        rest = enclose_nonempty_text(" +", len(more), " more")
        brief = first.partition(" by ")[0]
        words = brief.removesuffix(" again").split(" ")
        forms = (f"{first}{rest}", brief, " ".join(words[-3:]), " ".join(words[-2:]))
        yield Label(column, tuple(((text, "warn"),) for text in forms))
