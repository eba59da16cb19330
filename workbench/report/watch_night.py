"""A night of watches as blocks, as a document for a morning's mail, and as JUnit XML for CI."""

from __future__ import annotations

import time
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from workbench.model.counts import count_of
from workbench.model.untrusted_text import clean
from workbench.model.watch import ALARM, ANSWERS, FAILED, START, Loss, Night, NightEntry
from workbench.report.blocks import SIMULATED, Block, Document, Heading, Items, Table, TextBlock
from workbench.report.format_values import NA, metric_number

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
    """Return what a night has found: one line for each watch, then what the engines chose
    differently, and the speeds of the nights before."""
    blocks: list[Block] = [SIMULATED] if any(e.simulated for e in night.entries) else []
    alarms = len(night.alarms)
    lead = count_of(alarms, "alarm") if alarms else "no alarm"
    failed = sum(entry.state == FAILED for entry in night.entries)
    if failed:
        lead += f"; {count_of(failed, 'watch', 'watches')} failed"
    if not night.done:
        lead += "; the night is not finished"
    blocks.append(TextBlock(lead, lead=True, mark="bad" if alarms else ""))
    blocks.append(_table(night))
    blocks += [block for entry in night.entries for block in _chosen(entry)]
    for entry in night.entries:
        blocks += _history(entry, [night, *earlier])
    return blocks


def outcome(entry: NightEntry) -> str:
    """Return what came of a watch, in one clause."""
    if entry.state == FAILED:
        return entry.error
    alarms = [loss_text(loss) for loss in entry.losses if loss.alarm]
    if alarms:
        return "; ".join(alarms)
    return entry.state


def loss_text(loss: Loss) -> str:
    if loss.measure in _WORDS:
        return _WORDS[loss.measure]
    if loss.measure == START:
        more_pct = 100 / (1 - loss.loss_pct / 100) - 100
        return f"{loss.measure} {more_pct:+.1f} % ({loss.pairs} pairs)"
    return f"{loss.measure} {-loss.loss_pct:+.1f} % ({loss.pairs} pairs)"


def _table(night: Night) -> Table:
    rows = tuple(
        (
            entry.state,
            entry.watch.preset,
            entry.watch.candidate,
            entry.version or NA,
            entry.pinned_version or NA,
            outcome(entry),
            entry.quality or NA,
            ", ".join(f"{one}" for one in (entry.first_id, entry.second_id) if one) or NA,
        )
        for entry in night.entries
    )
    head = (
        "",
        "preset",
        "candidate",
        "version",
        "pinned",
        "outcome",
        "answers",
        "experiments",
    )
    marks = tuple(_MARKS.get(entry.state, "") for entry in night.entries)
    return Table(head, rows, marks=marks, importance=(0, 0, 0, 2, 3, 0, 4, 1))


def _chosen(entry: NightEntry) -> list[Block]:
    if not entry.chosen:
        return []
    title = f"What the engine chose differently: {entry.watch.name}"
    return [Heading(title), Table(("", "pinned", "candidate"), entry.chosen)]


def _history(entry: NightEntry, nights: Sequence[Night]) -> list[Block]:
    """Return the nights of a watch, newest first, with the versions and the speed of the candidate
    in percent of the pinned arm of the same night, which is free of what the machine does. A new
    version is a change point."""
    rows, marks = [], []
    known = [
        (night, one)
        for night in nights
        for one in night.entries
        if one.watch.name == entry.watch.name and one.speed and one.pinned_speed
    ]
    if len(known) < 2:
        return []
    for place, (night, one) in enumerate(known):
        before = known[place + 1][1] if place + 1 < len(known) else None
        is_new = before is not None and before.version != one.version
        assert one.speed is not None and one.pinned_speed is not None
        ratio = 100 * one.speed / one.pinned_speed
        rows.append(
            (
                time.strftime("%Y-%m-%d", time.localtime(night.unix_s)),
                one.version or NA,
                "new version" if is_new else "",
                metric_number(_METRIC, one.pinned_speed),
                metric_number(_METRIC, one.speed),
                f"{ratio:.1f} %",
                _bar(ratio),
                one.state,
            )
        )
        marks.append(_MARKS.get(one.state, ""))
    head = ("night", "version", "", "pinned tok/s", "tok/s", "of pinned", "", "outcome")
    title = f"History: {entry.watch.name}"
    return [Heading(title), Table(head, tuple(rows), frozenset({3, 4, 5}), tuple(marks))]


def _bar(percent: float) -> str:
    """Return a bar from 80 to 110 percent, in which differences of a percent can be seen."""
    return "█" * max(0, min(30, round(percent - 80)))


def note_lines(night: Night) -> Items:
    """Return the verdicts of the first experiments, one for each watch."""
    lines = (f"{entry.watch.name}: {entry.verdict}" for entry in night.entries if entry.verdict)
    return Items(tuple(lines))


def junit(night: Night) -> str:
    """Return the night as JUnit XML: one test case for each watch, which fails with an alarm."""
    failed = sum(entry.state == FAILED for entry in night.entries)
    cases = "".join(map(_case, night.entries))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="workbench watch" tests="{len(night.entries)}" '
        f'failures="{len(night.alarms)}" errors="{failed}" time="{night.took_s:.1f}">\n'
        f"{cases}</testsuite>\n"
    )


def _case(entry: NightEntry) -> str:
    simulated = "SIMULATED " if entry.simulated else ""
    name = quoteattr(clean(f"{simulated}{entry.watch.candidate}"))
    start = f"  <testcase classname={quoteattr(clean(entry.watch.preset))} name={name}>"
    said = clean(outcome(entry))
    if entry.state == ALARM:
        inner = f"<failure message={quoteattr(said)}>{escape(clean(entry.verdict))}</failure>"
    elif entry.state == FAILED:
        inner = f"<error message={quoteattr(said)}/>"
    else:
        inner = f"<system-out>{escape(clean(entry.verdict))}</system-out>"
    return f"{start}{inner}</testcase>\n"
