"""Benchmarks, results and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.model.findings import Level
from workbench.model.run import ServerState
from workbench.tui.actions.base import Actions

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, Comparison
    from workbench.session.state import BenchRow
    from workbench.tui.widgets.results import Results

NUMBERS = (
    ("concurrency", "streams at once", "1: a single reader"),
    ("requests", "requests", "counted ones"),
    ("max_tokens", "output tokens each", "forced where possible"),
    ("input_tokens", "prompt tokens each", "approximately"),
    ("warmup", "warm-up requests", "same shape, not counted"),
)


def overrides(values: dict[str, str]) -> dict[str, Any] | str:
    """Numbers out of the form, or what is wrong with one."""
    made: dict[str, Any] = {}
    for name, label, _ in NUMBERS:
        low = 0 if name == "warmup" else 1
        if not values[name].isdigit() or int(values[name]) < low:
            return f"{label}: expected a whole number of at least {low}, got “{values[name]}”"
        made[name] = int(values[name])
    cache = {"off": False, "on": True, "": False}.get(values["shared_prefix"].lower())
    if cache is None:
        return f"prefix cache: expected on or off, got “{values['shared_prefix']}”"
    made["shared_prefix"] = cache
    return made


class BenchActions(Actions):
    results: Results

    async def action_bench(self) -> None:
        state = self.session.state
        if state.bench.running:
            self.say("a benchmark is running", next_step="K in 4 cancels it")
            return
        server = state.server
        if server is None or server.state not in (ServerState.READY, ServerState.STARTING):
            self.say("there is no server to benchmark", Level.WARN, "s starts the plan")
            return
        from workbench.tui.modals.base import Field, Form
        from workbench.tui.paint import paragraph

        spec = self.session.bench_defaults()
        fields = [Field(name, label, str(getattr(spec, name)), hint) for name, label, hint in NUMBERS]
        cache = "on" if spec.shared_prefix else "off"
        fields.append(Field("shared_prefix", "prefix cache", cache, "off: every prompt is new"))

        def check(values: dict[str, str]) -> str | None:
            outcome = overrides(values)
            return outcome if isinstance(outcome, str) else None

        def decided(values: dict[str, str] | None) -> None:
            made = overrides(values) if values else None
            if isinstance(made, dict):
                self.go(4)
                self.attempt(self.session.bench(**made))

        waits = server.state is ServerState.STARTING
        text = f"{server.engine} {server.model} at {server.url or 'its port'}" + ("; starts at READY" if waits else "")
        form = Form("Benchmark", fields, intro=lambda w: [*paragraph(text, w, "dim"), ()], check=check, accept="run")
        await self.app.push_screen(form, decided)

    def action_cancel_bench(self) -> None:
        self.attempt(self.session.cancel_bench())

    async def action_again(self) -> None:
        if self.session.state.plan is None or self.session.state.bench.last_id is None:
            self.say("“.” repeats a measurement, and there is none yet", Level.WARN, "s starts, b benchmarks")
            return
        from workbench.tui.modals.ask import Confirm
        from workbench.tui.modals.launch import change_rows
        from workbench.tui.paint import Row, paragraph

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
            from workbench.tui.modals.base import TextModal
            from workbench.tui.modals.info import result_rows

            self.app.push_screen(TextModal(f"Result #{result.id}", lambda w: result_rows(result, w)))

        self.attempt(self.session.result(row.id), show)

    async def action_delete(self) -> None:
        if (row := self.row) is None:
            return
        from workbench.tui.modals.ask import Confirm
        from workbench.tui.paint import paragraph

        def decided(yes: bool | None) -> None:
            if yes:
                self.attempt(self.session.delete_result(row.id))

        about = f"{row.label}  {row.model}"
        ask = Confirm(f"Delete result #{row.id}", lambda w: paragraph(about, w), yes="delete it")
        await self.app.push_screen(ask, decided)

    async def action_export(self) -> None:
        if (row := self.row) is None:
            return
        from workbench.tui.modals.base import PickModal

        forms = [("json", "JSON, with all conditions", "text"), ("csv", "CSV", "text"), ("md", "Markdown", "text")]

        def chosen(form: str | None) -> None:
            if form:
                self.attempt(self.session.export_result(row.id, form), lambda path: self.say(f"written: {path}"))

        await self.app.push_screen(PickModal(f"Export result #{row.id}", forms), chosen)

    async def action_plot(self) -> None:
        from workbench.tui.modals.plot import Plot

        await self.app.push_screen(Plot(self.session.state.results))
