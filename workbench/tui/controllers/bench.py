"""The keys of benchmarks: run a benchmark, restart and benchmark again, cancel a measurement."""

from __future__ import annotations

from functools import partial

from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.bench_form import BenchForm, bench_fields_from_values
from workbench.tui.modals.form import Values
from workbench.tui.modals.launch import ConfirmStart

_WHEN_READY = "; the benchmark starts when the server is READY"
_AGAIN = "Restart with the plan, benchmark as before, compare with the previous result."


class BenchController(Controller):
    async def open_bench_form(self) -> None:
        """Show the benchmark form, then benchmark the server. If the server is starting, the
        benchmark begins when it is READY."""
        if self.state.bench.running:
            self.show_message("a benchmark is running", next_step="press K to cancel the benchmark")
            return
        server, plan = self.state.server, self.state.plan
        if plan is not None and "starting" in self.state.busy:  # the new server is not listed yet
            text = f"{plan.plan.engine} {plan.plan.model}{_WHEN_READY}"
            preset_id = plan.plan.preset_id
        elif server is not None and server.state in (ServerState.READY, ServerState.STARTING):
            text = f"{server.engine} {server.model} at {server.url or 'its port'}"
            preset_id = server.preset_id
            if not server.is_ready:
                text += _WHEN_READY
        else:
            self._report_no_server()
            return

        def start_benchmark(values: Values | None) -> None:
            if values is not None:
                self.services.clear_message()
                made = bench_fields_from_values(values)
                self.go_to_pane("results")
                self.run_measurement(
                    lambda: self.session.bench.benchmark_selected_run(**made),
                    self.warn_if_result_rejected,
                    outlives_screen=True,
                )

        profiles = self.run_or_show_error(
            lambda: self.session.bench.profile_titles_and_fields(), {}
        )
        load_source = "standard"
        if self.session.bench.asked:
            load_source = "as before"
        elif preset_id:
            load_source = "preset's own"
        await self.app.push_screen(
            BenchForm(self.session.bench.default_spec(), profiles, text, load_source),
            start_benchmark,
        )

    def warn_if_result_rejected(self, result_id: int | None) -> None:
        """Show a warning with the reason if the result `result_id` was rejected. Do nothing if it
        is valid, or not in the list of results."""
        row = self.state.find_result(result_id)
        if row is not None and row.refused:
            text = f"result {row.id} is rejected: {row.refused[0]}"
            self.show_message(text, Level.WARN, "press enter on its row to read more")

    def _report_no_server(self) -> None:
        """Show the message that there is no server to benchmark. If the last start was rejected,
        the message repeats the reason, because the user can no longer see the message about the
        start."""
        rejected = self.controllers.servers.rejected
        if self.is_searching_servers:
            self.show_server_search_message("a benchmark needs a server")
        elif rejected is None:
            self.show_message(
                "there is no server to benchmark",
                Level.WARN,
                "press s to start a server with the plan",
            )
        else:
            text = f"there is no server to benchmark; the start was rejected: {rejected.message}"
            self.show_message(text, Level.WARN, rejected.next_step)

    async def restart_and_repeat_benchmark(self) -> None:
        """Ask for consent, then restart the server with the plan, repeat the last benchmark, and
        compare the two results."""
        if self.state.bench.is_running_or_queued:
            self.show_message(
                "a benchmark is running or waiting",
                next_step="press K to cancel it, or “.” again after its end",
            )
            return
        if self.state.plan is None or self.state.bench.last_id is None:
            next_step = "press s to start the server, then b to benchmark it"
            if self.state.ready_server is not None:
                next_step = "press b to benchmark the server that runs"
            self.show_message("there is no benchmark to repeat yet", Level.WARN, next_step)
            return

        def restart_and_compare(page: ConfirmStart) -> None:
            self.go_to_pane("results")
            self.run_measurement(
                partial(self.session.bench.restart_and_compare_results, quality=page.with_answers),
                lambda _: self._show_comparison(),
                outlives_screen=True,
            )

        await self.controllers.servers.show_start_plan(
            self.state.plan,
            restart_and_compare,
            self.restart_and_repeat_benchmark,
            followup_text=_AGAIN,
            answers_cost_text=self.run_or_show_error(
                self.session.bench.answer_comparison_cost_text, ""
            ),
        )

    def _show_comparison(self) -> None:
        """Open the Compare pane if the terminal is so small that it shows only one pane. Do nothing
        if there is no comparison, or if the user has left the Bench pane or opened a page."""
        panes = self.services.panes
        is_bench_pane_alone = panes.single and panes.active == "results"
        if not is_bench_pane_alone or self.services.pages.visible_page is not None:
            return
        if self.state.comparison is not None:
            self.go_to_pane("compare")

    def cancel_measurement(self) -> None:
        """Cancel the running measurement or work on a model. If several are running, cancel the
        first in this order: experiment, sweep, benchmark, comparison of answers, copying, download
        or hashing of a model. Complete runs of an experiment or a sweep are kept."""
        state, running = self.state, self.state.running_series
        if state.experiment in running:
            self.run_in_background(
                lambda: self.session.experiments.stop(),
                lambda _: self.show_message("experiment stopped; press X, then R to resume it"),
            )
        elif running:
            self.run_in_background(
                lambda: self.session.sweeps.cancel(),
                lambda _: self.show_message("sweep stopped; press S to see its points"),
            )
        elif state.bench.is_running_or_queued:
            self.run_in_background(lambda: self.session.bench.cancel())
        elif state.running_quality is not None:
            self.controllers.quality.stop_comparison()
        elif state.host.model_work is not None:
            self.run_in_background(lambda: self.session.models.work.cancel())
        else:
            self.show_message("no benchmark, sweep, experiment, comparison or copy is running")
