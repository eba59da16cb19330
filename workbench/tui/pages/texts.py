"""The rows of pages: the keys, explanations of words and flags, a preset, and the activity log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.counts import count_of
from workbench.model.findings import Finding, Level, by_severity
from workbench.model.in_force import NOT_REPORTED
from workbench.session.state import Activity
from workbench.store.preset_text import preset_sections
from workbench.tui.cells import Row, beside, cell, cut, pad, paragraph
from workbench.tui.formats import clock, value_text
from workbench.tui.glyphs import LEVELS, G
from workbench.tui.panes.launch import about_text

if TYPE_CHECKING:
    from workbench.model.flags import FlagRow
    from workbench.model.in_force import InForceReport
    from workbench.model.preset import Preset
    from workbench.session.plans.model_fit import FitReport
    from workbench.store.glossary import Term
    from workbench.tui.bindings import ScreenKey

WIDE_TABLE = 100  # cells from which the table of what is in force has a column for the place
SIGNS = {
    "": (" ", "text"),
    "good": ("ok", "good"),
    "warn": ("!", "warn"),
    "unproven": ("?", "warn"),
    "bad": ("x", "bad"),
}


def help_rows(
    keys: Sequence[ScreenKey[Any]], panes: Sequence[tuple[str, str]], width: int
) -> list[Row]:
    """Return the rows of the help page: the keys of each pane, page and list, then the signs on the
    screen with their meanings. `panes` are pairs (name, title) in the order of the page."""
    rows: list[Row] = []
    intro = (
        "Load a preset, start it, bench; find a flag and change it; restart, bench and compare; "
        "change GPU settings, revert them:"
    )
    rows += paragraph(f"{intro}  p  s  b  /  .  g  r", width, "dim")
    for where, title in (("", "Everywhere"), *panes):
        rows += [(), ((title, "title"),)]
        for k in keys:
            if k.where == where:
                rows += beside(
                    pad(f"  {k.shown}", 12), "key", paragraph(k.help, max(20, width - 12))
                )
    signs = (
        f"{G.on} ready  ~ under way  {G.alert} altered or throttled  ! warning or does not "
        "fit  x failed  "
    )
    signs += "* edited  o your own  n/a not given"
    rows += [
        (),
        (("Signs", "title"),),
        *paragraph(f"  {signs}", width, "text", "  "),
    ]
    terms = (
        "? explains the terms on the screen, and in the Launch pane the flag under the cursor; : "
        "finds a term by name."
    )
    return [*rows, (), (("Terms", "title"),), *paragraph(f"  {terms}", width, "text", "  ")]


def term_rows(terms: Iterable[Term], width: int) -> list[Row]:
    """Return the words of the glossary with their meanings."""
    rows: list[Row] = []
    for term in terms:
        rows += beside(
            pad(term.term, 18) + "  ", "strong", paragraph(term.means, max(20, width - 20))
        )
    return rows


def fit_page_rows(report: FitReport, files: Sequence[str], width: int) -> list[Row]:
    """Return the rows of the page "What fits": the table of quantizations and GPUs, and the lines
    `files` about the files of the model. Lines longer than `width` are wrapped."""
    from workbench.session.plans.model_fit import table_lines

    rows: list[Row] = []
    for line in table_lines(report):
        role = "text"
        if line.startswith("GPU"):
            role = "title"
        elif line.startswith("weights"):
            role = "dim"
        rows += [((line, role),)] if len(line) <= width else paragraph(line, width)
    if files:
        rows += [(), (("Model files", "title"),)]
    for line in files:
        rows += paragraph(line, width, "text", "  ")
    return rows


def flag_rows(item: FlagRow, notes: Sequence[str], estimate: str, width: int) -> list[Row]:
    """Return the rows of a page about a flag: its help, its value and its default. `notes` are
    remarks on the flag from the preset and from the text that accompanies the preset, and
    `estimate` is the memory estimate of the plan."""
    spec = item.spec
    rows = paragraph(about_text(item), width)
    facts = (
        [("group", spec.area), ("also", ", ".join(spec.aliases)), ("variable", spec.env or "")]
        if spec
        else []
    )
    known = spec.default_note if spec and spec.default is None else value_text(item.default)
    facts += [("default", known), ("now", value_text(item.value))]
    for label, text in facts:
        if text:
            rows += beside(pad(label, 10), "dim", paragraph(text, max(20, width - 10)))
    for note in (item.finding, *notes, estimate):
        if note:
            rows += paragraph(note, width, "text", "  ")
    return rows


def preset_rows(preset: Preset, width: int) -> list[Row]:
    rows: list[Row] = [((preset.title, "strong"),), *paragraph(preset.summary, width), ()]
    for section in preset_sections(preset):
        rows += [(), ((section.title, "title"),)] if section.title else []
        for line in section.lines:
            sign, role = SIGNS[line.sign]
            if line.label:
                rows += beside(
                    pad(line.label, 12), "dim", paragraph(line.text, max(20, width - 12))
                )
            else:
                rows += paragraph(f"{sign} {line.text}", width, role, "    ")
    return rows


def activity_rows(activity: tuple[Activity, ...], width: int) -> list[Row]:
    if not activity:
        return paragraph("Workbench has changed nothing on this host yet.", width, "dim")
    rows: list[Row] = []
    for a in reversed(activity):
        room = max(20, width - 10)
        outcome = paragraph(a.outcome, room, "dim") if a.outcome else []
        rows += beside(
            pad(clock(a.unix_s), 10),
            "dim",
            [*paragraph(f"$ {a.command}", room, "text", "    "), *outcome],
        )
    return rows


def log_finding_rows(findings: Iterable[Finding], width: int) -> list[Row]:
    """Return the rows about the log lines whose cause Workbench knows, the most severe first: line,
    cause, fix, and the source of this information."""
    rows: list[Row] = []
    room = max(20, width - 10)
    for finding in by_severity(findings):
        sign, role = LEVELS[finding.level]
        about = paragraph(f"{sign} {finding.text}", room, role, "  ")
        if finding.fix and finding.level is not Level.INFO:
            about += paragraph(f"  fix: {finding.fix}", room, "text", "    ")
        if finding.changes:
            about += paragraph(
                f"  f or t: {' '.join(change.text for change in finding.changes)}",
                room,
                "text",
                "    ",
            )
        about += paragraph(f"  {finding.source}", room, "dim", "  ") if finding.source else []
        elsewhere = "text" if finding.code.startswith("text.") else "log"
        place = f"line {finding.line}" if finding.line else elsewhere
        rows += [
            *beside(
                pad(place, 10), "dim", [*paragraph(finding.evidence or "", room, "text"), *about]
            ),
            (),
        ]
    return rows


def in_force_rows(report: InForceReport, width: int) -> list[Row]:
    """Return the table of a server's settings. Each row has the value in the plan, the value that
    the server uses, and the source of the latter. If the page is narrow, the source has a row of
    its own."""
    wide = width >= WIDE_TABLE
    name_w, asked_w, force_w = (
        (24, 22, 34) if wide else (width * 3 // 10, width * 3 // 10, width * 4 // 10 - 2)
    )
    head = cell("setting", name_w) + cell("asked", asked_w) + cell("in force", force_w)
    rows: list[Row] = [(("  " + head + ("where read" if wide else ""), "dim"),)]
    if report.differing:
        rows = [
            (
                (
                    f"! {count_of(report.differing, 'row differs', 'rows differ')} from what was "
                    "asked",
                    "warn",
                ),
            ),
            (),
            *rows,
        ]
    for row in report.rows:
        role = "dim" if row.in_force is None else "text"
        if row.differs:
            role = "warn"
        texts = cell(row.asked or "-", asked_w) + cell(row.in_force or NOT_REPORTED, force_w)
        place = cut(row.where, max(0, width - 2 - name_w - asked_w - force_w)) if wide else ""
        rows.append(
            (
                ("! " if row.differs else "  ", "warn"),
                (cell(row.name, name_w), "text"),
                (texts, role),
                (place, "dim"),
            )
        )
        if not wide and row.where:
            rows.append(((cut(f"      {row.where}", width), "dim"),))
    return [*rows, (), *(line for text in report.notes for line in paragraph(text, width, "warn"))]
