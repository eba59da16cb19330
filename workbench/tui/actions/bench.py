"""Benchmarks, results and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.tui.actions.base import Actions

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, Comparison
    from workbench.session.state import BenchRow
    from workbench.tui.modals.page import Keys
    from workbench.tui.widgets.results import Results


class BenchActions(Actions):
    results: Results

    if TYPE_CHECKING:  # given by the GPU's actions

        def action_revert(self) -> None: ...

    async def action_bench(self) -> None:
        state = self.session.state
        if state.bench.running:
            self.say("a benchmark is running", next_step="K cancels it")
            return
        server = state.server
        if server is None or server.state not in (ServerState.READY, ServerState.STARTING):
            self.say("there is no server to benchmark", Level.WARN, "s starts the plan")
            return
        from workbench.tui.modals.bench_form import BenchForm, overrides

        def decided(values: dict[str, str] | None) -> None:
            made = overrides(values) if values else None
            if isinstance(made, dict):
                self.go(4)
                self.attempt(lambda: self.session.bench(**made))

        waits = server.state is ServerState.STARTING
        text = f"{server.engine} {server.model} at {server.url or 'its port'}" + ("; starts at READY" if waits else "")
        profiles = self.try_now(lambda: self.session.bench_profiles()) or {}
        without = "preset's own" if server.preset_id else "standard"
        standing = "as before" if self.session.benched_before() else without
        await self.app.push_screen(BenchForm(self.session.bench_defaults(), profiles, text, standing), decided)

    async def action_again(self) -> None:
        if self.session.state.bench.running or self.session.state.bench.queued:
            self.say("a benchmark is under way", next_step="“.” repeats it when it is done; K cancels it")
            return
        if self.session.state.plan is None or self.session.state.bench.last_id is None:
            self.say("“.” repeats a measurement, and there is none yet", Level.WARN, "s starts, b benchmarks")
            return
        from workbench.tui.cells import Row, paragraph
        from workbench.tui.modals.ask import Confirm
        from workbench.tui.modals.launch import change_rows

        changes = self.try_now(self.session.changes_against_running) or ()

        def text(width: int) -> list[Row]:
            rows = paragraph("Restart with the plan, benchmark as before, compare with the previous result.", width)
            return [*rows, (), *(change_rows(changes, width) or paragraph("no change: a repeat", width, "dim"))]

        def decided(yes: bool | None) -> None:
            if yes:
                self.go(4)
                self.attempt(self.session.restart_bench_compare())

        await self.app.push_screen(Confirm("Again", text, yes="run", default=True), decided)

    def action_compare(self) -> None:
        self.attempt(self.session.compare(), self._compared)

    def _compared(self, comparison: Comparison) -> None:
        self.go(5)

    # results
    @property
    def row(self) -> BenchRow | None:
        current: BenchRow | None = self.results.current
        return current

    def action_mark_a(self) -> None:
        if (row := self.row) is not None:
            self.try_now(lambda: self.session.mark(row.id, "A"))

    def action_mark_b(self) -> None:
        if (row := self.row) is not None:
            self.try_now(lambda: self.session.mark(row.id, "B"))

    def action_detail(self) -> None:
        if (row := self.row) is None:
            return

        def show(result: BenchResult) -> None:
            from workbench.tui.modals.page import Page
            from workbench.tui.modals.result import result_rows

            def keys() -> Keys:
                return {"r": ("revert GPU settings", self.action_revert)} if self.session.state.alterations else {}

            self.app.push_screen(Page(f"Result #{result.id}", lambda w: result_rows(result, w), keys=keys))

        self.attempt(self.session.result(row.id), show)

    async def action_delete(self) -> None:
        if (row := self.row) is None:
            return
        from workbench.tui.cells import paragraph
        from workbench.tui.modals.ask import Confirm

        def decided(yes: bool | None) -> None:
            if yes:
                self.attempt(self.session.delete_result(row.id))

        about = f"{row.label}  {row.model}"
        ask = Confirm(f"Delete result #{row.id}", lambda w: paragraph(about, w), yes="delete it")
        await self.app.push_screen(ask, decided)

    async def action_export(self) -> None:
        if (row := self.row) is None:
            return
        from workbench.report.registry import OUTPUT_FORMATS
        from workbench.tui.modals.base import PickModal

        forms = [(each.name, each.title, "text") for each in OUTPUT_FORMATS.values()]

        def chosen(form: str | None) -> None:
            if form:
                self.attempt(self.session.export_result(row.id, form), lambda path: self.say(f"written: {path}"))

        await self.app.push_screen(PickModal(f"Export result #{row.id}", forms), chosen)

    def action_note(self) -> None:
        """Note and tags of the result under the cursor, as they are now."""
        if (row := self.row) is not None:
            self.attempt(lambda: self.session.result(row.id), self._ask_note)

    def _ask_note(self, result: BenchResult) -> None:
        from workbench.tui.modals.form import Field, Form

        given_now = (("note", result.note), ("tags", " ".join(result.tags)))
        fields = [Field(name, name, value, wide=True) for name, value in given_now]

        async def write(note: str, tags: list[str]) -> None:
            if note != result.note:
                await self.session.note_result(result.id, note)
            if tags != list(result.tags):
                await self.session.tag_result(result.id, tags)

        def given(values: dict[str, str] | None) -> None:
            if values is not None:
                tags = list(dict.fromkeys(values["tags"].replace(",", " ").split()))
                self.attempt(lambda: write(values["note"], tags))

        self.app.push_screen(Form(f"Result #{result.id}", fields, accept="write", label_cells=8), given)

    async def action_plot(self) -> None:
        from workbench.tui.modals.plot import Plot

        state = self.session.state
        await self.app.push_screen(Plot(state.results, state.mark_a, state.mark_b))
