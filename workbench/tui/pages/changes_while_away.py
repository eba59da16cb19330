"""The message at the start of a screen about what happened since the last one closed, and its rows
on the activity page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.model.counts import count_of, format_four_digits
from workbench.session.changes_while_away import last_server_change_unix_s
from workbench.tui.cells import Row, pad_text, paragraph_rows, rows_beside_label
from workbench.tui.formats import (
    altered_setting_texts,
    day_and_time_text,
    enclose_nonempty_text,
    time_of_day_or_date_text,
)

if TYPE_CHECKING:
    from workbench.model.server_run import ServerStatus
    from workbench.model.setting_records import Alteration
    from workbench.session.bench.row import BenchRow
    from workbench.session.changes_while_away import ChangesSinceLastScreen

_DAY_S = 86_400.0
_SERIES = {"A/B": "experiment"}  # by the word in the list of results


def changes_since_leaving_text(since: ChangesSinceLastScreen, gpu_count: int) -> str:
    """Return the message in one line: the change itself if there is one, else how many of each kind
    there are. `gpu_count` is the number of GPUs of the host."""
    changes = [text for _, text in _change_times_and_texts(since, gpu_count)]
    if len(changes) > 1:
        changes = _change_count_texts(since)
    what = ", ".join(changes)
    return f"since you left at {_leave_time_text(since.left_unix_s)}: {what} (l lists it)"


def changes_since_leaving_rows(
    since: ChangesSinceLastScreen | None, gpu_count: int, width: int
) -> list[Row]:
    """Return the rows of the activity page about what happened since the last screen closed; [] if
    nothing happened or if `since` is None."""
    if since is None or not since.has_changes:
        return []
    rows: list[Row] = [((f"Since you left at {_leave_time_text(since.left_unix_s)}", "title"),)]
    times, texts = [], []
    for unix_s, text in _change_times_and_texts(since, gpu_count):
        times.append(_change_time_text(unix_s))
        texts.append(text)
    cells = max(map(len, times)) + 2
    for at, text in zip(times, texts, strict=True):
        lines = paragraph_rows(text, max(20, width - cells), "text", "    ")
        rows += rows_beside_label(pad_text(at, cells), "dim", lines)
    return [*rows, ()]


def _leave_time_text(unix_s: float) -> str:
    """Return the time of day; with the date in front if it is a day or more ago."""
    at = day_and_time_text(unix_s)
    if time.time() - unix_s >= _DAY_S:
        return at
    return at.partition(" ")[2]


def _change_time_text(unix_s: float) -> str:
    """Return the time of a change as text; "" for 0.0, an unknown time."""
    if not unix_s:
        return ""
    return time_of_day_or_date_text(unix_s)


def _change_times_and_texts(
    since: ChangesSinceLastScreen, gpu_count: int
) -> Iterator[tuple[float, str]]:
    """Yield each change with its time, 0.0 if its time is not known."""
    for row in since.results:
        yield row.unix_s, _result_text(row)
    for server in since.servers:
        yield last_server_change_unix_s(server), _server_text(server)
    by_user: dict[str | None, list[Alteration]] = {}
    for alteration in since.settings:
        by_user.setdefault(alteration.by, []).append(alteration)
    for of_user in by_user.values():
        at_unix_s = max(one.changed_unix_s for one in of_user)
        for text in altered_setting_texts(of_user, gpu_count):
            yield at_unix_s, text
    if since.guard_did:
        yield 0.0, f"the guard {since.guard_did}"


def _result_text(row: BenchRow) -> str:
    series = row.series
    if series is not None:
        name = f"{_SERIES.get(series.kind, series.kind)} {series.number}"
        return name + enclose_nonempty_text(": ", series.said)
    if row.refused:
        return f"result {row.id} is rejected: {row.refused[0]}"
    text = f"result {row.id}: {row.label}"
    if row.output_tok_s is not None:
        text += f", {format_four_digits(row.output_tok_s)} tok/s"
    return text


def _server_text(server: ServerStatus) -> str:
    if server.state.has_ended:
        return f"{server.title} {server.state}{enclose_nonempty_text(': ', server.reason)}"
    if server.is_ready:
        return f"{server.title} became {server.state_word.upper()}"
    return f"{server.title} was started"


def _change_count_texts(since: ChangesSinceLastScreen) -> list[str]:
    kinds = Counter({"result": 0})  # it is named first
    for row in since.results:
        kind = "result"
        if row.series is not None:
            kind = _SERIES.get(row.series.kind, row.series.kind)
        kinds[kind] += 1
    counts = [(number, kind, "") for kind, number in kinds.items()]
    ended = sum(server.state.has_ended for server in since.servers)
    counts += [
        (ended, "server ended", "servers ended"),
        (len(since.servers) - ended, "server started", "servers started"),
        (len(since.settings), "GPU setting changed", "GPU settings changed"),
        (int(bool(since.guard_did)), "revert by the guard", ""),
    ]
    return [count_of(number, noun, plural) for number, noun, plural in counts if number]
