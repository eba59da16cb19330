"""The preset list: which setups there are, which is loaded, and what is wrong with a file that does not hold."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from workbench.session.state import PresetEntry, SessionState
from workbench.tui import fuzzy
from workbench.tui.bindings import bindings_for
from workbench.tui.glyphs import G
from workbench.tui.paint import Row, cut, pad, paragraph, row_width
from workbench.tui.widgets.pick_list import PickList


class Presets(PickList):
    BINDINGS = bindings_for("presets")

    def __init__(self) -> None:
        super().__init__(id="presets")
        self.state: SessionState | None = None
        self.query_text = ""

    def show(self, state: SessionState) -> None:
        self.state = state
        self._narrow_down(keep=True)

    def filter(self, text: str, *, keep: bool = False) -> None:
        """Only what matches, best first; with `keep` the cursor stays where it is."""
        self.query_text = text
        self._narrow_down(keep)

    def _narrow_down(self, keep: bool) -> None:
        entries = self.state.presets if self.state else ()
        found = fuzzy.best(self.query_text, entries, lambda e: f"{e.id} {e.title} {e.engine} {e.hardware}")
        self.set_items(found, keep=keep)

    def key_of(self, item: Any) -> Hashable:
        return str(item.id)

    def item_row(self, item: PresetEntry, width: int) -> Row:
        """ "> qwen3-vl-2b dp4   * ": the loaded one has the mark, a broken one says so, wide panes tell more."""
        loaded = self.state and self.state.plan and self.state.plan.plan.preset_id == item.id
        lead = f"{G.arrow} " if loaded else "  "
        if item.problem:
            return ((lead, "text"), (pad(item.id, max(10, width - 11)), "dim"), (" x broken", "bad"))
        edited = bool(loaded and self.state and self.state.plan and self.state.plan.edited)
        tail = (" *" if edited else "") + (" own" if item.own else "")
        role = "goodb" if loaded else "dim" if item.fits is False else "text"
        if width < 44:
            return ((lead, role), (pad(item.id, width - 2 - len(tail)), role), (tail, "warn"))
        engine = pad(item.engine, 9)
        id_width = min(34, width - 2 - len(engine) - len(tail))
        rest = width - 2 - id_width - len(engine) - len(tail) - 1
        extra = cut(item.title, rest) if rest >= 12 else ""
        return (
            (lead, role), (pad(item.id, id_width), role), (" ", "text"), (engine, "dim"),
            (pad(extra, max(0, rest)), "dim"), (tail, "warn"),
        )  # fmt: skip

    def foot_rows(self, width: int, height: int) -> list[Row]:
        """Two or three lines on the entry under the cursor, where there is room for them."""
        item: PresetEntry | None = self.current
        if item is None or height < 14:
            return []
        if item.problem:
            return [(), *paragraph(f"x {item.problem}", width, "bad")[:4]]
        lines: list[Row] = [(), *paragraph(item.title, width, "strong")[:2]]
        about = " · ".join(filter(None, (item.engine, item.hardware, item.status))).replace(" · ", f" {G.dot} ")
        lines += paragraph(about, width, "dim")[:2]
        if item.fits is False:
            lines += paragraph("! does not fit the GPUs of this host", width, "warn")
        if item.caveats:
            plural = "s" if item.caveats > 1 else ""
            lines += paragraph(f"! {item.caveats} caveat{plural} (i: read)", width, "warn")[:1]
        if item.summary and height >= 20:
            lines += [(), *paragraph(item.summary, width, "text")[:5]]
        return lines if all(row_width(r) <= width for r in lines) else [r[:1] for r in lines]

    def empty_rows(self, width: int) -> list[Row]:
        if self.query_text:
            return paragraph(f"No preset matches “{self.query_text}”. esc: all presets.", width, "dim")
        if self.state and self.state.presets_problem:
            return paragraph(f"x {self.state.presets_problem}", width, "bad")
        if self.state is None:
            return paragraph("Reading presets …", width, "dim")
        return paragraph(
            "No presets. `workbench presets path` says where they live. n: new from the plan.", width, "dim"
        )
