"""Benchmarks: running one, repeating the loop, and cancelling whatever is measuring."""

from __future__ import annotations

from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.tui.cells import Row, paragraph
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.ask import Confirm
from workbench.tui.modals.bench_form import BenchForm, overrides
from workbench.tui.modals.form import Values
from workbench.tui.modals.launch import change_rows


class BenchController(Controller):
    async def run(self) -> None:
        """Ask for the load, then benchmark the server. While the server starts, the benchmark waits for READY."""
        if self.state.bench.running:
            self.say("a benchmark is running", next_step="K cancels it")
            return
        server = self.state.server
        if server is None or server.state not in (ServerState.READY, ServerState.STARTING):
            self.say("there is no server to benchmark", Level.WARN, "s starts the plan")
            return

        def decided(values: Values | None) -> None:
            if values is not None:
                made = overrides(values)
                self.go("results")
                self.attempt(lambda: self.session.bench.run(**made))

        waits = "; starts at READY" if server.state is ServerState.STARTING else ""
        text = f"{server.engine} {server.model} at {server.url or 'its port'}{waits}"
        profiles = self.try_now(lambda: self.session.bench.profiles()) or {}
        without = "preset's own" if server.preset_id else "standard"
        standing = "as before" if self.session.bench.asked else without
        await self.app.push_screen(BenchForm(self.session.bench.defaults(), profiles, text, standing), decided)

    async def again(self) -> None:
        """Restart with the plan, benchmark as before, and compare, if the user agrees."""
        if self.state.bench.running or self.state.bench.queued:
            self.say("a benchmark is under way", next_step="“.” repeats it when it is done; K cancels it")
            return
        if self.state.plan is None or self.state.bench.last_id is None:
            self.say("“.” repeats a measurement, and there is none yet", Level.WARN, "s starts, b benchmarks")
            return
        changes = self.try_now(self.session.servers.changes_against_running) or ()

        def text(width: int) -> list[Row]:
            rows = paragraph("Restart with the plan, benchmark as before, compare with the previous result.", width)
            return [*rows, (), *(change_rows(changes, width) or paragraph("no change: a repeat", width, "dim"))]

        def decided(yes: bool | None) -> None:
            if yes:
                self.go("results")
                self.attempt(self.session.bench.restart_and_compare())

        await self.app.push_screen(Confirm("Again", text, yes="run", default=True), decided)

    def cancel(self) -> None:
        """Cancel whatever is measuring. An experiment and a sweep keep the runs that are complete."""
        state = self.state
        if state.experiment is not None and state.experiment.state == "running":
            self.attempt(
                lambda: self.session.experiments.stop(), lambda _: self.say("experiment stopped; X, R resumes it")
            )
        elif state.sweep is not None and state.sweep.state == "running":
            self.attempt(lambda: self.session.sweeps.cancel(), lambda _: self.say("sweep stopped; S shows its points"))
        elif state.bench.running or state.bench.queued:
            self.attempt(lambda: self.session.bench.cancel())
        else:
            self.say("nothing is being measured")
