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
    cut_middle,
    cut_text,
    pad_text,
    paragraph_rows,
    rows_beside_label,
    text_cell,
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

    def wait(self) -> None:
        """Show how long the search for models has been running, until `take` gets the results."""
        self.began_s = time.monotonic()
        self.draw()

    def show(self, state: SessionState) -> None:
        """Draw how long the search for models has been running. Nothing else on the page depends on
        `state`."""
        if self.began_s is not None:
            self.draw()

    def take(self, found: Sequence[HostModels], several: bool) -> None:
        """Show the result of the search: the hosts in `found` with their model copies. If `several`
        is true, each host has a heading."""
        items: list[ModelCopy | str] = []
        for host in found:
            if host.problem:
                items.append(f"{host.host}{UNREAD}{host.problem.removeprefix(f'{host.host}: ')}")
            elif several:
                items.append(host.host if host.copies else f"{host.host}  no models")
            items += host.copies
        self.began_s = None
        self.set_items(items)

    @property
    def copy(self) -> ModelCopy | None:
        """Return the model copy under the cursor; None if there is none."""
        return None if isinstance(self.current, str) else self.current

    def is_heading(self, item: Any) -> bool:
        return isinstance(item, str)

    def key_of(self, item: Any) -> Hashable:
        return item if isinstance(item, str) else (item.host, item.path)

    def head_rows(self, width: int) -> list[Row]:
        if self.began_s is not None:
            return paragraph_rows(
                f"looking for models: {duration_text(time.monotonic() - self.began_s)}",
                width,
                "dim",
            )
        head = pad_text("size", SIZE_CELLS, True) + pad_text("files", FILES_CELLS, True) + "  state"
        return (
            [((pad_text(" model", self._name_cells(width)) + head, "head"),)] if self.items else []
        )

    def empty_rows(self, width: int) -> list[Row]:
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
            return ((cut_text(f" {item}", width), "warn" if UNREAD in item else "title"),)
        name = self._name_cells(width)
        state = (("  complete", "good"),) if item.is_complete else (("  ! PARTIAL", "warn"),)
        sizes = pad_text(size_text(item.size_bytes), SIZE_CELLS, True)
        sizes += pad_text(count_of(len(item.files), "file"), FILES_CELLS, True)
        return (
            (f" {pad_text(cut_middle(item.model, name - 2), name - 1)}", "text"),
            (sizes, "text"),
            *state,
        )

    def foot_rows(self, width: int, height: int) -> list[Row]:
        copy = self.copy
        return (
            [(), *about_copy(copy, width)[:MOST_FOOT]]
            if copy is not None and height > 2 * MOST_FOOT
            else []
        )


def about_copy(copy: ModelCopy, width: int) -> list[Row]:
    """Return the rows about a model copy: its directory, commit, problems, and the digest of its
    small files."""
    commit = copy.revision and " ".join((copy.revision, *(f"({ref})" for ref in copy.refs)))
    facts = (
        ("place", f"{copy.path} on {copy.host}  ({copy.kind})", "text"),
        ("commit", commit or "", "text"),
        ("problem", "; ".join(copy.problems), "warn"),
        (
            "digest",
            f"{copy.small_digest} of its index and small files" if copy.small_digest else "",
            "dim",
        ),
    )
    return [
        row
        for label, text, role in facts
        if text
        for row in rows_beside_label(
            pad_text(label, 9), "dim", paragraph_rows(text, max(20, width - 9), role)
        )
    ]


def file_rows(copy: ModelCopy, width: int) -> list[Row]:
    """Return the rows of a model copy's page: its directory, commit, problems and digest, then its
    files with size and hash."""
    damaged = [file.name for file in copy.files if file.is_damaged]
    hashed = sum(file.sha256 is not None for file in copy.files)
    rows = about_copy(copy, width)
    if damaged:
        text = (
            f"x {count_of(len(damaged), 'file has', 'files have')} other bytes than the hub names: "
            f"{', '.join(damaged)}"
        )
        rows += [(), *paragraph_rows(text, width, "bad", "  ")]
    elif hashed == len(copy.files):
        named = sum(file.sha256 is not None and file.sha256 == file.blob for file in copy.files)
        text = (
            f"ok every byte was hashed; {count_of(named, 'file')} compared with the hash that "
            "the hub gave"
        )
        rows += [(), *paragraph_rows(text, width, "good", "   ")]
    else:
        rows += [(), *paragraph_rows("V in the list of models hashes every byte.", width, "dim")]
    name = max(20, width - SIZE_CELLS - DIGEST_CELLS - 4)
    head = pad_text("file", name) + pad_text("size", SIZE_CELLS, True) + "  sha256"
    return [*rows, (), ((head, "head"),), *(_file_row(file, name) for file in copy.files)]


def _file_row(file: ModelFile, name: int) -> Row:
    digest = file.sha256[:DIGEST_CELLS] if file.sha256 else "not hashed"
    sign, role = "  ", "text" if file.sha256 else "dim"
    if file.is_damaged:
        sign, role = "x ", "bad"
    size = pad_text(size_text(file.size_bytes), SIZE_CELLS, True)
    return (
        (text_cell(cut_middle(file.name, name - 1), name), "text"),
        (size, "text"),
        (sign + digest, role),
    )
