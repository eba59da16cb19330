"""The page of models: the copies of models on this host or on all hosts, and details of the copy
under the cursor."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType

from workbench.model.counts import count_of
from workbench.model.model_copy import size_text
from workbench.tui.cells import (
    Row,
    cut_text,
    cut_text_middle,
    labelled_paragraph,
    pad_text,
    pad_text_with_gap,
    paragraph_rows,
)
from workbench.tui.formats import duration_text
from workbench.tui.pages.base import Page
from workbench.tui.widgets.pick_list import PickList

if TYPE_CHECKING:
    from workbench.model.model_copy import ModelCopy, ModelFile
    from workbench.session.hosts.models import HostModels
    from workbench.session.state import SessionState

SIZE_CELLS, FILES_CELLS, STATE_CELLS, DIGEST_CELLS = 9, 10, 12, 16
UNREAD = "  cannot be read: "
MOST_FOOT = 7  # rows about the copy under the cursor


class ModelsPage(PickList, Page):
    """The list of the model copies on one or several hosts. With several hosts, each host has a
    heading."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "press('enter')", show=False)]

    def __init__(self, title: str) -> None:
        Page.__init__(self, title, lambda width: [], kind="models")
        self.items: Sequence[ModelCopy | str] = ()
        self.cursor = self.top = 0
        self.began_s: float | None = None  # monotonic time since which the hosts are asked

    def start_search_timer(self) -> None:
        """Show how long the search for models has been running, until `show_found_models` gets the
        results."""
        self.began_s = time.monotonic()
        self.draw()

    def show(self, state: SessionState) -> None:
        """Draw how long the search for models has been running. Nothing else on the page depends on
        `state`."""
        if self.began_s is not None:
            self.draw()

    def show_found_models(self, found: Sequence[HostModels], with_host_headings: bool) -> None:
        """Show the result of the search: the hosts in `found` with their model copies. If
        `with_host_headings` is true, each host has a heading."""
        items: list[ModelCopy | str] = []
        for host in found:
            if host.problem:
                items.append(f"{host.host}{UNREAD}{host.problem.removeprefix(f'{host.host}: ')}")
            elif with_host_headings and host.copies:
                items.append(host.host)
            elif with_host_headings:
                items.append(f"{host.host}  no models")
            items += host.copies
        self.began_s = None
        self.set_items(items)

    @property
    def copy_under_cursor(self) -> ModelCopy | None:
        """Return the model copy under the cursor; None if there is none."""
        if isinstance(self.current_item, str):
            return None
        return self.current_item

    def is_heading(self, item: Any) -> bool:
        return isinstance(item, str)

    def item_key(self, item: Any) -> Hashable:
        if isinstance(item, str):
            return item
        return item.host, item.path

    def rows_above_items(self, width: int) -> list[Row]:
        if self.began_s is not None:
            since = duration_text(time.monotonic() - self.began_s)
            return paragraph_rows(f"looking for models: {since}", width, "dim")
        if not self.items:
            return []
        head = pad_text("size", SIZE_CELLS, True) + pad_text("files", FILES_CELLS, True) + "  state"
        return [((pad_text(" model", self._name_cells(width)) + head, "head"),)]

    def rows_without_items(self, width: int) -> list[Row]:
        if self.began_s is not None:
            return []
        text = (
            "No models on this host: neither in the hub's cache nor in the directories of "
            "hosts.toml."
        )
        return [
            *paragraph_rows(text, width),
            (),
            *paragraph_rows("n downloads one, a lists all hosts.", width, "dim"),
        ]

    @staticmethod
    def _name_cells(width: int) -> int:
        return max(20, width - SIZE_CELLS - FILES_CELLS - STATE_CELLS)

    def item_row(self, item: Any, width: int) -> Row:
        if isinstance(item, str):
            role = "title"
            if UNREAD in item:
                role = "warn"
            return ((cut_text(f" {item}", width), role),)
        name, state = self._name_cells(width), ("  ! PARTIAL", "warn")
        if item.is_complete:
            state = ("  complete", "good")
        sizes = pad_text(size_text(item.size_bytes), SIZE_CELLS, True)
        sizes += pad_text(count_of(len(item.files), "file"), FILES_CELLS, True)
        return (
            (f" {pad_text(cut_text_middle(item.model, name - 2), name - 1)}", "text"),
            (sizes, "text"),
            state,
        )

    def rows_below_items(self, width: int, height: int) -> list[Row]:
        if self.copy_under_cursor is None or height <= 2 * MOST_FOOT:
            return []
        return [(), *model_copy_rows(self.copy_under_cursor, width)[:MOST_FOOT]]


def model_copy_rows(model_copy: ModelCopy, width: int) -> list[Row]:
    """Return the rows about a model copy: its directory, commit, problems, and the digest of its
    small files."""
    facts = [("place", f"{model_copy.path} on {model_copy.host}  ({model_copy.kind})", "text")]
    if model_copy.revision:
        names = (model_copy.revision, *(f"({ref})" for ref in model_copy.refs))
        facts.append(("commit", " ".join(names), "text"))
    if model_copy.problems:
        facts.append(("problem", "; ".join(model_copy.problems), "warn"))
    if model_copy.digest_without_weights:
        facts.append(
            ("digest", f"{model_copy.digest_without_weights} of its index and small files", "dim")
        )
    rows: list[Row] = []
    for label, text, role in facts:
        rows += labelled_paragraph(pad_text(label, 9), text, width, role)
    return rows


def model_file_rows(model_copy: ModelCopy, width: int) -> list[Row]:
    """Return the rows of a model copy's page: its directory, commit, problems and digest, then its
    files with size and hash."""
    damaged, hashed, named = [], 0, 0
    for file in model_copy.files:
        if file.is_damaged:
            damaged.append(file.name)
        if file.sha256 is not None:
            hashed += 1
            named += file.sha256 == file.blob
    rows = model_copy_rows(model_copy, width)
    if damaged:
        text = (
            f"x {count_of(len(damaged), 'file has', 'files have')} other bytes than the hub names: "
            f"{', '.join(damaged)}"
        )
        rows += [(), *paragraph_rows(text, width, "bad", "  ")]
    elif hashed == len(model_copy.files):
        text = (
            f"ok every byte was hashed; {count_of(named, 'file')} compared with the hash that "
            "the hub gave"
        )
        rows += [(), *paragraph_rows(text, width, "good", "   ")]
    else:
        rows += [(), *paragraph_rows("V in the list of models hashes every byte.", width, "dim")]
    name = max(20, width - SIZE_CELLS - DIGEST_CELLS - 4)
    head = pad_text("file", name) + pad_text("size", SIZE_CELLS, True) + "  sha256"
    return [
        *rows,
        (),
        ((head, "head"),),
        *(_model_file_row(file, name) for file in model_copy.files),
    ]


def _model_file_row(file: ModelFile, name_cells: int) -> Row:
    digest, role = "  not hashed", "dim"
    if file.sha256:
        digest, role = f"  {file.sha256[:DIGEST_CELLS]}", "text"
    if file.is_damaged:
        digest, role = f"x {digest.lstrip()}", "bad"
    size = pad_text(size_text(file.size_bytes), SIZE_CELLS, True)
    return (
        (pad_text_with_gap(cut_text_middle(file.name, name_cells - 1), name_cells), "text"),
        (size, "text"),
        (digest, role),
    )
