"""Pane 1, Presets: first the presets that fit the GPUs of the host, then those for any GPU, then
the others with the reason. The loaded preset and broken files have a mark."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from workbench.model import fuzzy
from workbench.model.counts import count_of
from workbench.session.state import PresetEntry, SessionState
from workbench.tui.bindings import Key, copy_keys_for_view, make_textual_bindings
from workbench.tui.cells import (
    Row,
    cut_paragraph_rows,
    cut_text,
    cut_text_middle,
    pad_text,
    paragraph_rows,
    row_width,
)
from workbench.tui.formats import short_gpu_name, short_preset_name
from workbench.tui.glyphs import G
from workbench.tui.panes.base import Pane
from workbench.tui.widgets.pick_list import PickList

if TYPE_CHECKING:
    from workbench.session.session import Session
    from workbench.tui.controllers import Controllers

SHORT, LONG = 4, 8  # cells of the engine
READ_S = 5.0  # for which enter waits for the presets


class Presets(Pane, PickList):
    NAME, TITLE = "presets", "Presets"
    FIELDS = frozenset({"presets", "presets_read", "plan"})
    KEYS = copy_keys_for_view(
        "presets",
        Key(
            "enter",
            "load",
            "load the preset under the cursor",
            lambda c: c.plan.load_preset(c.pane_of_type(Presets).current_item),
        ),
        Key(
            "i",
            "detail",
            "show the source of the preset's numbers, and known problems with them",
            lambda c: c.plan.show_selected_preset(),
        ),
        Key(
            "I",
            "import",
            "make a preset of a recipe or a command line of another tool",
            lambda c: c.recipes.import_recipe(),
        ),
    )
    HINTS = ("enter", "slash", "i")
    SEARCH = "letters of a preset"
    SEARCH_HINT = "enter load  esc back"
    BINDINGS = make_textual_bindings(KEYS)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.query_text = ""
        self._read = asyncio.Event()
        self._loaded: str | None = None  # the preset on which the cursor was put

    def show(self, state: SessionState) -> None:
        untouched = self.cursor == 0 and not self.query_text
        self.state = state
        if state.presets_read:
            self._read.set()
        self._filter_presets(keep_cursor=not untouched)
        self._move_cursor_to_plan(state)

    def _move_cursor_to_plan(self, state: SessionState) -> None:
        """Put the cursor on the preset of the plan when that has become another one. A search keeps
        its own cursor."""
        loaded = _plan_preset_id(state)
        if loaded == self._loaded or self.query_text:
            return
        if any(item.id == loaded for item in self.items):
            self._loaded = loaded
            self.select_item(loaded)

    @property
    def title_detail(self) -> str:
        if self.query_text:
            return f"/{self.query_text}"
        return str(len(self.session.state.presets) or "")

    # search
    def apply_search(self, text: str, controllers: Controllers) -> None:
        self.lit, self.query_text = True, text
        self._filter_presets(keep_cursor=False)

    def end_search(self, controllers: Controllers) -> None:
        self.lit, self.query_text = False, ""
        self._filter_presets(keep_cursor=True)

    async def submit_search(self, text: str, controllers: Controllers) -> None:
        """Load the preset that matches the typed text best, or the one that the cursor was moved
        to. If the presets have not been read yet, wait for them, at most READ_S seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._read.wait(), READ_S)
        entry = self.current_item
        fitting = next((one for one in self.items if one.fits and not one.problem), None)
        await controllers.search.close_search_input()
        await controllers.plan.load_preset(entry, fitting)

    def _filter_presets(self, keep_cursor: bool) -> None:
        """Show the presets that match the search, the best match first. Without a search, show all
        presets, those for the host's GPUs first. With `keep_cursor`, the cursor stays on its
        preset."""
        entries = sorted(self.state.presets, key=_preset_sort_key)
        found = fuzzy.best_matches(
            self.query_text, entries, lambda e: f"{e.id} {e.title} {e.engine} {e.hardware}"
        )
        self.set_items(found, keep_cursor=keep_cursor)

    def item_key(self, item: Any) -> Hashable:
        return str(item.id)

    def item_row(self, item: PresetEntry, width: int) -> Row:
        """Return a row such as "> qwen3-vl-2b-dp4   vllm *". The marks are ">" for the loaded
        preset, "!" for one that does not fit, "x" for a broken file, "*" for edits and "o" for the
        user's own presets."""
        plan, lead, role, tail = self.state.plan, "  ", "text", " "
        if item.own:
            tail = "o"
        if item.id == _plan_preset_id(self.state):
            lead, role = f"{G.arrow} ", "goodb"
            if plan is not None and plan.edit_count:
                tail = "*"
        elif item.fits is False:
            lead, role = "! ", "dim"
        if item.problem:
            return (
                ("x ", "bad"),
                (pad_text(item.id, max(10, width - 9)), "dim"),
                (" broken", "bad"),
            )
        engine, size = item.engine, LONG
        if width < 44:
            engine, size = _short_engine_name(item.engine), SHORT
        room = max(8, width - len(lead) - 2 - size - len(tail))
        name = cut_text_middle(short_preset_name(item.id, item.engine), min(room, 34))
        title = ""
        if room - 35 >= 12:
            title = f" {cut_text(item.lacks or item.title, room - 35)}"
        return (
            (lead, role),
            (pad_text(name, min(room, 34)), role),
            (" ", "text"),
            (pad_text(engine, size), "dim"),
            (pad_text(title, max(0, room - 34)), "dim"),
            (f" {tail}", "warn"),
        )

    def rows_below_items(self, width: int, height: int) -> list[Row]:
        """Return rows about the preset under the cursor, for the lower end of the pane; [] if the
        pane is too low."""
        item: PresetEntry | None = self.current_item
        if item is None or height < 14:
            return []
        if item.problem:
            return [(), *paragraph_rows(f"x {item.problem}", width, "bad")[:4]]
        lines: list[Row] = [(), *cut_paragraph_rows(item.title, width, 2, "strong")]
        known = [item.engine, short_gpu_name(item.hardware), item.status]
        if item.own:
            known.append("own")
        about = f" {G.dot} ".join(filter(None, known))
        lines += cut_paragraph_rows(about, width, 2, "dim")
        if item.fits is False:
            lines += cut_paragraph_rows(
                f"! does not fit the GPUs here: {item.lacks}", width, 2, "warn"
            )
        if item.caveats:
            lines += paragraph_rows(
                f"! {count_of(item.caveats, 'caveat')} (i: read)", width, "warn"
            )[:1]
        if item.summary and height >= 26:
            lines += [(), *paragraph_rows(item.summary, width, "text")[:5]]
        if max(map(row_width, lines)) > width:
            return [row[:1] for row in lines]
        return lines

    def rows_without_items(self, width: int) -> list[Row]:
        return paragraph_rows(self._empty_pane_text(), width, "dim")

    def _empty_pane_text(self) -> str:
        if self.query_text:
            return f"No preset matches “{self.query_text}”. Press esc to see all presets."
        if not self.state.presets_read:
            return "Reading presets …"
        return (
            "No presets. `workbench presets path` shows their folders. Press n to save the plan as "
            "a preset."
        )


def _preset_sort_key(item: PresetEntry) -> tuple[int, bool]:
    """Return the sort key of a preset: (number of its group, whether it is a variant of another
    preset). The groups are 0 for presets made for the host's GPUs, 1 for any GPU, 2 for GPUs that
    the host lacks or may lack, and 3 for broken files."""
    group = 2
    if item.problem:
        group = 3
    elif item.hardware == "any GPU":
        group = 1
    elif item.fits:
        group = 0
    return group, item.baseline is not None


def _plan_preset_id(state: SessionState) -> str | None:
    """Return the id of the preset from which the plan was loaded; None without a plan or preset."""
    if state.plan is None:
        return None
    return state.plan.plan.preset_id


@cache
def _short_engine_name(engine: str) -> str:
    from workbench import engines  # not for the first frame

    return engines.short_engine_name(engine)
