"""The settings of a running server, requested and in force, as blocks."""

from __future__ import annotations

from workbench.model.counts import count_of
from workbench.model.in_force import NOT_REPORTED, InForceReport, InForceRow
from workbench.report.blocks import Alert, Block, Table, TextBlock

_MOST_TEXT = 48  # characters of a value; a longer one, such as a JSON object, is cut


def settings_in_force_blocks(report: InForceReport) -> list[Block]:
    """Return the number of settings that differ from what was asked, the table of all settings, and
    the sources that could not be read."""
    differing = count_of(report.differing_setting_count, "setting differs", "settings differ")
    mark = "warning" if report.differing_setting_count else ""
    table = Table(
        head=("", "setting", "asked", "in force", "where read"),
        rows=tuple(map(_setting_row, report.rows)),
        marks=tuple(map(_status_mark, report.rows)),
    )
    blocks: list[Block] = [TextBlock(f"{differing} from what was asked", mark=mark), table]
    if report.notes:
        blocks.append(Alert("warning", "Not everything could be read", report.notes))
    return blocks


def _setting_row(row: InForceRow) -> tuple[str, ...]:
    asked = _shorten_text(row.asked or "-")
    in_force = _shorten_text(row.in_force or NOT_REPORTED)
    return "!" if row.differs else "", row.name, asked, in_force, row.where


def _status_mark(row: InForceRow) -> str:
    if row.differs:
        return "warning"
    if row.in_force is None:
        return "dim"
    return ""


def _shorten_text(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    return f"{text[: _MOST_TEXT - 1]}…"
