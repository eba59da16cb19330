"""A night of watches as blocks, as a document for a morning's mail, and as JUnit XML for CI."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from xml.sax.saxutils import escape, quoteattr

from workbench.model.change_points import find_change_points
from workbench.model.counts import count_of
from workbench.model.untrusted_text import clean_text
from workbench.model.watch import ALARM, ANSWERS, FAILED, START, Loss, Night, NightEntry
from workbench.report.blocks import (
    Block,
    Document,
    Heading,
    Items,
    Table,
    TextBlock,
    simulated_alert,
)
from workbench.report.format_values import NA, format_metric_value

_MARKS = {ALARM: "bad", FAILED: "warning"}
_METRIC = "output_tok_s"
_WORDS = {ANSWERS: "its answers differ"}


def night_document(night: Night, earlier: Sequence[Night] = ()) -> Document:
    """Return a night as a document. `earlier` are the nights before it, newest first, whose speeds
    the history shows."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(night.unix_s))
    blocks = night_blocks(night, earlier)
    simulated = any(entry.simulated for entry in night.entries)
    return Document(f"Night {night.id} of the watches", when, tuple(blocks), simulated)


def night_blocks(night: Night, earlier: Sequence[Night] = ()) -> list[Block]:
    """Return the blocks on what a night has found: one row for each watch, then what the engines
    chose differently, and the speeds of the nights before. `earlier` are these nights, newest
    first."""
    blocks = simulated_alert(any(entry.simulated for entry in night.entries))
    alarms = len(night.alarm_entries)
    lead, mark = "no alarm", ""
    if alarms:
        lead, mark = count_of(alarms, "alarm"), "bad"
    failed = sum(entry.state == FAILED for entry in night.entries)
    if failed:
        lead += f"; {count_of(failed, 'watch', 'watches')} failed"
    if not night.done:
        lead += "; the night is not finished"
    blocks += [TextBlock(lead, lead=True, mark=mark), _night_table(night)]
    for entry in night.entries:
        blocks += _engine_choice_blocks(entry)
    for entry in night.entries:
        blocks += _watch_history_blocks(entry, [night, *earlier])
    return blocks


def watch_outcome_clause(entry: NightEntry) -> str:
    """Return in one clause what came of a watch: its alarms, or why it failed, or its state."""
    if entry.state == FAILED:
        return entry.error
    alarms = [format_loss(loss) for loss in entry.losses if loss.alarm]
    if alarms:
        return "; ".join(alarms)
    return entry.state


def format_loss(loss: Loss) -> str:
    if loss.measure in _WORDS:
        return _WORDS[loss.measure]
    if loss.measure == START:
        more_pct = 100 / (1 - loss.loss_pct / 100) - 100
        return f"{loss.measure} {more_pct:+.1f} % ({loss.pairs} pairs)"
    return f"{loss.measure} {-loss.loss_pct:+.1f} % ({loss.pairs} pairs)"


def _night_table(night: Night) -> Table:
    rows = tuple(map(_night_row, night.entries))
    head = (
        "",
        "preset",
        "candidate",
        "host",
        "version",
        "pinned",
        "outcome",
        "answers",
        "experiments",
    )
    marks = tuple(_MARKS.get(entry.state, "") for entry in night.entries)
    return Table(head, rows, marks=marks, importance=(0, 0, 0, 0, 2, 3, 0, 4, 1))


def _night_row(entry: NightEntry) -> tuple[str, ...]:
    watch, experiments = entry.watch, filter(None, (entry.first_id, entry.second_id))
    return (
        entry.state,
        watch.preset,
        watch.candidate,
        watch.host_text,
        entry.version or NA,
        entry.pinned_version or NA,
        watch_outcome_clause(entry),
        entry.quality or NA,
        ", ".join(map(str, experiments)) or NA,
    )


def _engine_choice_blocks(entry: NightEntry) -> list[Block]:
    if not entry.chosen:
        return []
    title = f"What the engine chose differently: {entry.watch.watch_name}"
    return [Heading(title), Table(("", "pinned", "candidate"), entry.chosen)]


def _watch_history_blocks(entry: NightEntry, nights: Sequence[Night]) -> list[Block]:
    """Return the blocks with the nights of a watch, newest first; [] with fewer than two. The speed
    of the candidate is in percent of the pinned arm of the same night, so a change point of this
    share is one of the candidate. A change point of the pinned arm's speed is the machine's."""
    known, speeds, pinned, percents = [], [], [], []
    for night in nights:
        for one in night.entries:
            if one.watch.watch_name != entry.watch.watch_name:
                continue
            if one.speed and one.pinned_speed:
                known.append((night, one))
                speeds.append(one.speed)
                pinned.append(one.pinned_speed)
                percents.append(100 * one.speed / one.pinned_speed)
    if len(known) < 2:
        return []
    changes = (
        _change_text_by_index("candidate", percents),
        _change_text_by_index("machine", pinned),
    )
    versions = [one.version for _, one in known]
    rows, marks = [], []
    for place, (night, one) in enumerate(known):
        events = _change_texts_at_index(place, changes)
        is_first = place + 1 == len(versions)
        if not is_first and versions[place + 1] != one.version:
            events.insert(0, "new version")
        rows.append(
            (
                time.strftime("%m-%d", time.localtime(night.unix_s)),
                one.version or NA,
                format_metric_value(_METRIC, pinned[place]),
                format_metric_value(_METRIC, speeds[place]),
                f"{percents[place]:.1f} %",
                _percent_bar(percents[place]),
                one.state,
                "; ".join(events),
            )
        )
        marks.append(_MARKS.get(one.state, ""))
    head = ("night", "version", "pinned tok/s", "tok/s", "of pinned", "80 to 110 %", "outcome", "")
    # 80 columns have room for the bars, not for the speeds that they compare
    table = Table(head, tuple(rows), frozenset({2, 3, 4}), tuple(marks), (0, 3, 5, 4, 0, 2, 1, 0))
    return [
        Heading(f"History: {entry.watch.watch_name}"),
        table,
        TextBlock(_newest_change_sentence(known, changes)),
    ]


def _change_text_by_index(series_name: str, newest_first: Sequence[float]) -> dict[int, str]:
    """Return {index of a night: text} for the change points of a series, such as "machine −3.0 %".
    Each is at the index of its first night."""
    last = len(newest_first) - 1
    found = find_change_points(newest_first[::-1])
    return {last - one.index: f"{series_name} {one.change_pct:+.1f} %" for one in found}


def _newest_change_sentence(
    nights_and_entries: Sequence[tuple[Night, NightEntry]],
    texts_by_index: Sequence[Mapping[int, str]],
) -> str:
    """Return a sentence about the newest change point, or that there is none."""
    places = set(chain.from_iterable(texts_by_index))
    if not places:
        return f"No change point in {count_of(len(nights_and_entries), 'night')}."
    place = min(places)
    events = " and ".join(_change_texts_at_index(place, texts_by_index))
    night, one = nights_and_entries[place]
    return f"Newest change: {events} from night {night.id} on, version {one.version or NA}."


def _change_texts_at_index(index: int, texts_by_index: Sequence[Mapping[int, str]]) -> list[str]:
    return [texts[index] for texts in texts_by_index if index in texts]


def _percent_bar(percent: float) -> str:
    """Return a bar that is empty at 80 percent or less and full at 110 or more, with a half block
    for each percent."""
    percents = max(0, min(30, round(percent - 80)))
    return "█" * (percents // 2) + "▌" * (percents % 2)


def verdict_items(night: Night) -> Items:
    """Return a line with the verdict of each watch's first experiment, for those that have one."""
    lines = (
        f"{entry.watch.watch_name}: {entry.verdict}" for entry in night.entries if entry.verdict
    )
    return Items(tuple(lines))


def night_junit_xml(night: Night) -> str:
    """Return the night as JUnit XML: one test case for each watch, which fails with an alarm."""
    failed = sum(entry.state == FAILED for entry in night.entries)
    cases = "".join(map(_junit_case, night.entries))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="workbench watch" tests="{len(night.entries)}" '
        f'failures="{len(night.alarm_entries)}" errors="{failed}" time="{night.took_s:.1f}">\n'
        f"{cases}</testsuite>\n"
    )


def _junit_case(entry: NightEntry) -> str:
    simulated = "SIMULATED " if entry.simulated else ""
    watch = entry.watch
    name = quoteattr(clean_text(f"{simulated}{watch.candidate} on {watch.host_text}"))
    start = f"  <testcase classname={quoteattr(clean_text(watch.preset))} name={name}>"
    said = clean_text(watch_outcome_clause(entry))
    if entry.state == ALARM:
        inner = f"<failure message={quoteattr(said)}>{escape(clean_text(entry.verdict))}</failure>"
    elif entry.state == FAILED:
        inner = f"<error message={quoteattr(said)}/>"
    else:
        inner = f"<system-out>{escape(clean_text(entry.verdict))}</system-out>"
    return f"{start}{inner}</testcase>\n"
