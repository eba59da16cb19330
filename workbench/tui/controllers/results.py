"""The keys of results: show, mark, compare, plot, annotate, export and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.errors import StoreError
from workbench.model.findings import Level
from workbench.report.registry import EXPORT_FORMATS
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.ask import Confirm
from workbench.tui.modals.base import PickModal
from workbench.tui.modals.form import Field, Form, Values
from workbench.tui.pages.advice import top_finding_rows
from workbench.tui.pages.base import Keys, Page
from workbench.tui.pages.plot import Plot
from workbench.tui.pages.result import result_rows
from workbench.tui.panes.result_groups import SeriesRow
from workbench.tui.panes.results import Results
from workbench.tui.widgets.result_timeline import aligned_timeline_rows, timeline_rows

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.model.quality import QualityResult
    from workbench.session.bench.row import BenchRow
    from workbench.session.results.advice import AdvisedResult
    from workbench.store.result_timelines import ResultTimeline

    ResultDetails = tuple[AdvisedResult, ResultTimeline | None, Sequence[QualityResult]]


class ResultController(Controller):
    @property
    def selected_row(self) -> BenchRow | None:
        """Return the result under the cursor of the Bench pane; None if the list is empty, or if
        the cursor is on an experiment or a sweep."""
        return self.pane_of_type(Results).result_under_cursor

    def compare_marked_results(self) -> None:
        self.run_in_background(self.session.results.compare(), lambda _: self.go_to_pane("compare"))

    def toggle_mark_of_selected_result(self, letter: str) -> None:
        if (row := self.selected_row) is not None:
            self.run_or_show_error(
                lambda: self.session.results.toggle_comparison_mark(row.id, letter)
            )

    def compare_with_selected_result(self) -> None:
        """Compare A with the result under the cursor. If the user has marked B, change nothing."""
        if (row := self.selected_row) is not None:
            self.run_in_background(
                self.session.results.compare_result_under_cursor(row.id), exclusive_group="follow"
            )

    def open_result_or_toggle_runs(self) -> None:
        """Open the page of the result under the cursor, with its timeline. On an experiment or a
        sweep, list its runs."""
        pane = self.pane_of_type(Results)
        if isinstance(pane.current_item, SeriesRow):
            pane.toggle_series_runs(pane.current_item)
            return

        async def read_result_details(result_id: int) -> ResultDetails:
            found = await self.session.advisor.advise_on_result(result_id)
            return (
                found,
                await self._read_timeline(result_id),
                await self.session.results.list_quality_results(),
            )

        def open_result_page(found: ResultDetails) -> None:
            advised, timeline, quality_results = found
            result, advice = advised.result, self.controllers.advice
            assert result is not None  # the advice on a result has one

            def page_keys() -> Keys:
                return {
                    "i": ("Advice", lambda: advice.open_advice_page(advised)),
                    **advice.advice_page_keys(advised),
                }

            def make_result_rows(width: int) -> list[Row]:
                return result_rows(
                    result,
                    width,
                    timeline_rows(timeline, width),
                    top_finding_rows(advised, width),
                    quality_results,
                )

            self.services.pages.open(Page(f"Result #{result.id}", make_result_rows, page_keys))

        if (row := self.selected_row) is not None:
            self.run_in_background(read_result_details(row.id), open_result_page)

    def marked_or_compared_result_ids(self) -> tuple[int | None, int | None]:
        """Return the numbers of the results that are marked A and B. In place of one that is not
        marked, return that of the Compare pane; None if the pane shows no comparison."""
        a, b, comparison = self.state.mark_a, self.state.mark_b, self.state.comparison
        if comparison is None:
            return a, b
        return a or comparison.a, b or comparison.b

    def _result_ids_or_show_message(self, absence_phrase: str) -> tuple[int, int] | None:
        """Return the numbers of the results that are marked A and B. In place of one that is not
        marked, return that of the Compare pane. If there are no two, show a message, and return
        None. `absence_phrase` says in it what cannot be shown, such as "is no difference"."""
        a, b = self.marked_or_compared_result_ids()
        if a is not None and b is not None:
            return a, b
        self.show_message(
            f"no two results are marked, so there {absence_phrase} to show",
            Level.WARN,
            "mark two results in the Bench pane with a and B",
        )
        return None

    def show_differences(self) -> None:
        """Open the page with what differs between the results A and B."""
        found = self._result_ids_or_show_message("is no difference")
        if found is None:
            return

        async def read_pair(first: int, second: int) -> tuple[BenchResult, BenchResult]:
            return await self.session.results.get(first), await self.session.results.get(second)

        def open_differences_page(pair: tuple[BenchResult, BenchResult]) -> None:
            from workbench.tui.pages.differs import (
                result_differences_rows,  # not for the first frame
            )

            title = f"What differs between #{pair[0].id} and #{pair[1].id}"
            self.services.pages.open(Page(title, lambda w: result_differences_rows(*pair, w)))

        self.run_in_background(read_pair(*found), open_differences_page)

    def show_timelines(self) -> None:
        """Open the page with the timelines of the results that are marked A and B. If only one or
        none is marked, take the missing one from the Compare pane."""
        found = self._result_ids_or_show_message("are no timelines")
        if found is None:
            return
        a, b = found

        async def read_timelines(first: int, second: int) -> Sequence[ResultTimeline | None]:
            return [await self._read_timeline(first), await self._read_timeline(second)]

        def open_timelines_page(found: Sequence[ResultTimeline | None]) -> None:
            named = {f"A #{a}": found[0], f"B #{b}": found[1]}
            self.services.pages.open(
                Page(f"Timelines of #{a} and #{b}", lambda w: aligned_timeline_rows(named, w))
            )

        self.run_in_background(read_timelines(a, b), open_timelines_page)

    async def _read_timeline(self, result_id: int) -> ResultTimeline | None:
        """Return the stored timeline of a result. Return None if there is none. If its file is
        damaged, show a message and return None."""
        try:
            return await self.session.results.timelines.get(result_id)
        except StoreError as error:
            self.services.show_error(error)
            return None

    async def ask_to_delete_selected_result(self) -> None:
        if (row := self.selected_row) is None:
            return

        def delete_if_confirmed(yes: bool | None) -> None:
            if yes:
                self.run_in_background(self.session.results.delete(row.id))

        about = f"{row.label}  {row.model}"
        ask = Confirm(
            f"Delete result #{row.id}", lambda w: paragraph_rows(about, w), yes="delete it"
        )
        await self.app.push_screen(ask, delete_if_confirmed)

    async def export_selected_result(self) -> None:
        if (row := self.selected_row) is None:
            return

        forms = [(each.name, each.title, "text") for each in EXPORT_FORMATS.values()]

        def export_in_format(form: str | None) -> None:
            if form:
                self.run_in_background(
                    self.session.results.export_result(row.id, form),
                    lambda path: self.show_message(f"written: {path}"),
                )

        await self.app.push_screen(PickModal(f"Export result #{row.id}", forms), export_in_format)

    def edit_note_and_tags(self) -> None:
        """Edit the note and the tags of the result under the cursor."""
        if (row := self.selected_row) is not None:
            self.run_in_background(lambda: self.session.results.get(row.id), self._open_note_form)

    def _open_note_form(self, result: BenchResult) -> None:
        fields = [
            Field("note", "note", result.note, wide=True),
            Field("tags", "tags", " ".join(result.tags), wide=True),
        ]

        async def store_note_and_tags(note: str, tags: list[str]) -> None:
            if note != result.note:
                await self.session.results.set_result_note(result.id, note)
            if tags != list(result.tags):
                await self.session.results.set_result_tags(result.id, tags)

        def store_form_values(values: Values | None) -> None:
            if values is not None:
                tags = list(dict.fromkeys(values["tags"].replace(",", " ").split()))
                self.run_in_background(lambda: store_note_and_tags(values["note"], tags))

        self.app.push_screen(
            Form(f"Result #{result.id}", fields, accept="write", label_cells=8), store_form_values
        )

    def open_plot(self) -> None:
        self.services.pages.open(Plot(self.state))
