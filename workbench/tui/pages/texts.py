"""The rows of pages: the keys, explanations of words and flags, a preset, and the activity log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.findings import Finding, Level, by_severity, option_texts_of_changes
from workbench.session.state import Activity
from workbench.store.preset_text import preset_sections
from workbench.tui.cells import Row, labelled_paragraph, pad_text, paragraph_rows, rows_beside_label
from workbench.tui.formats import flag_default_text, flag_value_text, time_of_day_or_date_text
from workbench.tui.glyphs import LEVELS, G
from workbench.tui.panes.launch import flag_description

if TYPE_CHECKING:
    from workbench.model.flags import FlagRow
    from workbench.model.preset import Preset
    from workbench.session.plans.model_fit import FitReport
    from workbench.store.glossary import Term
    from workbench.tui.bindings import ScreenKey

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
    rows += paragraph_rows(f"{intro}  p  s  b  /  .  g  r", width, "dim")
    for where, title in (("", "Everywhere"), *panes):
        rows += [(), ((title, "title"),)]
        for k in keys:
            if k.where == where:
                name = pad_text(f"  {k.name_on_keyboard}", 12)
                rows += labelled_paragraph(name, k.help, width, label_role="key")
    signs = (
        f"{G.on} ready  ~ under way  {G.alert} altered or throttled  ! warning or does not "
        "fit  x failed  "
    )
    signs += "* edited  o your own  n/a not given"
    rows += [
        (),
        (("Signs", "title"),),
        *paragraph_rows(f"  {signs}", width, "text", "  "),
    ]
    terms = (
        "? explains the terms on the screen, and in the Launch pane the flag under the cursor; : "
        "finds a term by name."
    )
    return [*rows, (), (("Terms", "title"),), *paragraph_rows(f"  {terms}", width, "text", "  ")]


def glossary_term_rows(terms: Iterable[Term], width: int) -> list[Row]:
    """Return rows with the terms of the glossary, each with its meaning."""
    rows: list[Row] = []
    for term in terms:
        name = pad_text(term.term, 18) + "  "
        rows += labelled_paragraph(name, term.means, width, label_role="strong")
    return rows


def fit_page_rows(report: FitReport, files: Sequence[str], width: int) -> list[Row]:
    """Return the rows of the page "What fits": the table of quantizations and GPUs, and the lines
    `files` about the files of the model."""
    from workbench.session.plans.model_fit import fit_report_blocks
    from workbench.tui.block_rows import block_rows

    rows = block_rows(fit_report_blocks(report), width)
    if files:
        rows += [(), (("Model files", "title"),)]
    for line in files:
        rows += paragraph_rows(line, width, "text", "  ")
    return rows


def flag_page_rows(
    item: FlagRow, notes: Sequence[str], memory_estimate: str | None, width: int
) -> list[Row]:
    """Return the rows of a page about a flag: its help, its value and its default. `notes` are
    remarks on the flag from the preset and from the text that accompanies the preset, and
    `memory_estimate` is that of the plan; None if there is none."""
    spec = item.spec
    rows = paragraph_rows(flag_description(item), width)
    facts = {"default": flag_default_text(item.default), "now": flag_value_text(item.value)}
    if spec is not None:
        if spec.default is None:
            facts["default"] = spec.default_note
        own = {"group": spec.area, "also": ", ".join(spec.aliases), "variable": spec.env or ""}
        facts = {**own, **facts}
    for label, text in facts.items():
        if text:
            rows += labelled_paragraph(pad_text(label, 10), text, width)
    for note in (item.finding, *notes, memory_estimate):
        if note:
            rows += paragraph_rows(note, width, "text", "  ")
    return rows


def preset_rows(preset: Preset, width: int) -> list[Row]:
    rows: list[Row] = [((preset.title, "strong"),), *paragraph_rows(preset.summary, width), ()]
    for section in preset_sections(preset):
        if section.title:
            rows += [(), ((section.title, "title"),)]
        for line in section.lines:
            sign, role = SIGNS[line.sign]
            if line.label:
                rows += labelled_paragraph(pad_text(line.label, 12), line.text, width)
            else:
                rows += paragraph_rows(f"{sign} {line.text}", width, role, "    ")
    return rows


def activity_rows(activity: tuple[Activity, ...], width: int) -> list[Row]:
    if not activity:
        return paragraph_rows("Workbench has changed nothing on this host yet.", width, "dim")
    rows: list[Row] = []
    times = [time_of_day_or_date_text(a.unix_s) for a in activity]
    cells = max(map(len, times)) + 2
    room = max(20, width - cells)
    for a, at in zip(reversed(activity), reversed(times), strict=True):
        lines = paragraph_rows(f"$ {a.command}", room, "text", "    ")
        if a.outcome:
            lines += paragraph_rows(a.outcome, room, "dim")
        rows += rows_beside_label(pad_text(at, cells), "dim", lines)
    return rows


def log_finding_rows(findings: Iterable[Finding], width: int) -> list[Row]:
    """Return the rows about the log lines whose cause Workbench knows, the most severe first: line,
    cause, fix, and the source of this information."""
    rows: list[Row] = []
    room = max(20, width - 10)
    for finding in by_severity(findings):
        sign, role = LEVELS[finding.level]
        about = paragraph_rows(finding.evidence or "", room, "text")
        about += paragraph_rows(f"{sign} {finding.text}", room, role, "  ")
        if finding.fix and finding.level is not Level.INFO:
            about += paragraph_rows(f"  fix: {finding.fix}", room, "text", "    ")
        if finding.changes:
            options = option_texts_of_changes(finding.changes)
            about += paragraph_rows(f"  f or t: {options}", room, "text", "    ")
        if finding.source:
            about += paragraph_rows(f"  {finding.source}", room, "dim", "  ")
        place = "text" if finding.code.startswith("text.") else "log"
        if finding.line:
            place = f"line {finding.line}"
        rows += [*rows_beside_label(pad_text(place, 10), "dim", about), ()]
    return rows
