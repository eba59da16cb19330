"""The rows of three pages: the help, a preset, and the activity log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.session.state import Activity
from workbench.store.preset_text import preset_sections
from workbench.tui.cells import Row, beside, pad, paragraph
from workbench.tui.formats import clock
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.preset import Preset
    from workbench.tui.bindings import Key

WORDS = (
    ("plan", "the engine, its flags and variables in the Launch pane; s starts a server with it"),
    ("A, B", "the two configurations or results that are compared; a and B in the Bench pane mark them"),
    ("pair", "a run of A and a run of B, one after the other; an interval needs two pairs"),
    ("single pair", "one run each: the change is shown without a claim"),
    ("± n", "the 95 % confidence interval of the change"),
    ("tok/s, tok/J", "output tokens per second, and per joule of the GPUs"),
    ("TTFT", "time to the first token of an answer; half of them (p50), 99 of 100 (p99) are at least as fast"),
    ("ITL, TPOT", "time between two tokens of an answer: each time, and the mean of the answer"),
    ("sm, mem", "clocks of the GPU's processors and of its memory, in MHz"),
    ("lock", "a range for a clock; only a load shows whether the clock stays in it"),
    ("in force", "a load has shown that the setting works; capped: power or heat kept the clock below it"),
    ("trial", "GPU settings that are reverted after a time unless you press T"),
    ("guard", "a process on the host that reverts GPU settings if it gets no heartbeat from Workbench"),
    ("rejected", "a result whose values are not valid; its page says why"),
)
SIGNS = {
    "": (" ", "text"),
    "good": ("ok", "good"),
    "warn": ("!", "warn"),
    "unproven": ("?", "warn"),
    "bad": ("x", "bad"),
}


def help_rows(keys: Sequence[Key], panes: Sequence[tuple[str, str]], width: int) -> list[Row]:
    """Return the help page: the keys of each pane, the signs and the words. `panes` are (name, title) in the order of
    the page."""
    rows: list[Row] = []
    intro = "Load a preset, edit flags, start, bench, change one thing, restart, bench, compare, revert."
    rows += paragraph(f"{intro} p  /  s  b  /  s  b  c  r", width, "dim")
    for where, title in (("", "Everywhere"), *panes):
        rows += [(), ((title, "title"),)]
        for k in keys:
            if k.where == where:
                rows += beside(pad(f"  {k.shown}", 12), "key", paragraph(k.help, max(20, width - 12)))
    signs = f"{G.on} ready  ~ under way  {G.alert} altered or throttled  ! warning or does not fit  x failed  "
    signs += "* edited  o your own  n/a not given"
    rows += [(), (("Signs", "title"),), *paragraph(f"  {signs}", width, "text", "  "), (), (("Words", "title"),)]
    for word, meaning in WORDS:
        rows += beside(pad(f"  {word}", 16), "strong", paragraph(meaning, max(20, width - 16)))
    return rows


def preset_rows(preset: Preset, width: int) -> list[Row]:
    rows: list[Row] = [((preset.title, "strong"),), *paragraph(preset.summary, width), ()]
    for section in preset_sections(preset):
        rows += [(), ((section.title, "title"),)] if section.title else []
        for line in section.lines:
            sign, role = SIGNS[line.sign]
            if line.label:
                rows += beside(pad(line.label, 12), "dim", paragraph(line.text, max(20, width - 12)))
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
        rows += beside(pad(clock(a.unix_s), 10), "dim", [*paragraph(f"$ {a.command}", room, "text", "    "), *outcome])
    return rows
