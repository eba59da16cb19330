"""The keys of results: show, mark, compare, plot, annotate, export and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.report.registry import OUTPUT_FORMATS
from workbench.tui.cells import paragraph
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.ask import Confirm
from workbench.tui.modals.base import PickModal
from workbench.tui.modals.form import Field, Form, Values
from workbench.tui.pages.base import Page
from workbench.tui.pages.plot import Plot
from workbench.tui.pages.result import result_rows
from workbench.tui.panes.results import Results

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.session.state import BenchRow


class ResultController(Controller):
    @property
    def row(self) -> BenchRow | None:
        """Return the result under the cursor of the Bench pane; None if the list is empty."""
        return self.pane(Results).current

    def compare(self) -> None:
        self.attempt(self.session.results.compare(), lambda _: self.go("compare"))

    def mark(self, which: str) -> None:
        if (row := self.row) is not None:
            self.try_now(lambda: self.session.results.mark(row.id, which))

    def show(self) -> None:
        def open_page(result: BenchResult) -> None:
            self.services.pages.open(Page(f"Result #{result.id}", lambda w: result_rows(result, w)))

        if (row := self.row) is not None:
            self.attempt(self.session.results.get(row.id), open_page)

    async def delete(self) -> None:
        if (row := self.row) is None:
            return

        def decided(yes: bool | None) -> None:
            if yes:
                self.attempt(self.session.results.delete(row.id))

        about = f"{row.label}  {row.model}"
        ask = Confirm(f"Delete result #{row.id}", lambda w: paragraph(about, w), yes="delete it")
        await self.app.push_screen(ask, decided)

    async def export(self) -> None:
        if (row := self.row) is None:
            return

        forms = [(each.name, each.title, "text") for each in OUTPUT_FORMATS.values()]

        def chosen(form: str | None) -> None:
            if form:
                self.attempt(self.session.results.export(row.id, form), lambda path: self.say(f"written: {path}"))

        await self.app.push_screen(PickModal(f"Export result #{row.id}", forms), chosen)

    def note(self) -> None:
        """Edit the note and the tags of the result under the cursor."""
        if (row := self.row) is not None:
            self.attempt(lambda: self.session.results.get(row.id), self._ask_note)

    def _ask_note(self, result: BenchResult) -> None:
        fields = [
            Field("note", "note", result.note, wide=True),
            Field("tags", "tags", " ".join(result.tags), wide=True),
        ]

        async def write(note: str, tags: list[str]) -> None:
            if note != result.note:
                await self.session.results.note(result.id, note)
            if tags != list(result.tags):
                await self.session.results.tag(result.id, tags)

        def decided(values: Values | None) -> None:
            if values is not None:
                tags = list(dict.fromkeys(values["tags"].replace(",", " ").split()))
                self.attempt(lambda: write(values["note"], tags))

        self.app.push_screen(Form(f"Result #{result.id}", fields, accept="write", label_cells=8), decided)

    def plot(self) -> None:
        self.services.pages.open(Plot(self.state))
