"""GPU settings: shown as commands first, reverted with one key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.findings import Level
from workbench.tui.actions.base import Actions

if TYPE_CHECKING:
    from workbench.model.settings import SettingCommand, SettingsReport


class GpuActions(Actions):
    async def action_gpu(self) -> None:
        state = self.session.state
        if state.telemetry is None or not state.telemetry.gpus:
            self.say("no GPU can be set here", Level.WARN, state.telemetry_problem or "h works on another host")
            return
        from workbench.tui.modals.gpu_settings import Wanted, parse, settings_form

        count = len(state.telemetry.gpus)

        def asked(values: dict[str, str] | None) -> None:
            wanted = parse(values, count) if values else None
            if isinstance(wanted, Wanted):
                self.attempt(self.session.plan_gpu(wanted.settings, wanted.gpu), lambda c: self._confirm(wanted, c))

        await self.app.push_screen(settings_form(state), asked)

    def _confirm(self, wanted: object, commands: Sequence[SettingCommand]) -> None:
        from workbench.tui.modals.ask import Confirm
        from workbench.tui.modals.gpu_settings import Wanted, command_rows

        assert isinstance(wanted, Wanted)

        def decided(yes: bool | None) -> None:
            if yes:
                self.attempt(self.session.apply_gpu(wanted.settings, wanted.gpu),
                             lambda r: self.show_report("GPU settings", r))  # fmt: skip

        self.app.push_screen(
            Confirm("These commands change the GPUs", lambda w: command_rows(commands, w), yes="run them", default=True,
                    wide=True), decided)  # fmt: skip

    def action_revert(self) -> None:
        """At once: it only puts back what was. Asked about during a benchmark, whose figures it would spoil."""
        state = self.session.state
        if not state.alterations:
            self.say("no GPU setting is altered")
            return
        from workbench.tui.formats import alteration_texts

        texts = [f"{gpus}: {now} back to {before}" for gpus, now, before in alteration_texts(state.alterations)]
        if not state.bench.running:
            self._revert(texts)
            return
        from workbench.tui.modals.ask import Confirm
        from workbench.tui.paint import Row, paragraph

        def text(width: int) -> list[Row]:
            rows = paragraph("! A benchmark is running: its figures would mix both settings.", width, "warn")
            return [*rows, *(row for line in texts for row in paragraph(line, width))]

        def decided(yes: bool | None) -> None:
            if yes:
                self._revert(texts)

        self.app.push_screen(Confirm("Revert GPU settings", text, yes="revert", no="wait"), decided)

    def _revert(self, texts: Sequence[str]) -> None:
        self.say(f"reverting {'; '.join(texts)}")
        self.attempt(self.session.revert_gpu(), lambda r: self.show_report("Reverted", r, texts))

    def show_report(self, title: str, report: SettingsReport, texts: Sequence[str] = ()) -> None:
        """Short when all went well, a page where something did not or needs reading."""
        plain = report.ok and all(str(o.in_force) == "yes" for o in report.outcomes)
        if plain:
            count = len(report.outcomes)
            counted = f"{count} setting{'s' * (count != 1)} read back and in force"
            said = f"{title}: {'; '.join(texts)}; {counted}" if texts else f"{title}: {counted}"
            self.say(said, next_step=None if texts else "r puts them back; l lists the commands")
            return
        from workbench.tui.modals.base import TextModal
        from workbench.tui.modals.gpu_settings import report_rows

        self.app.push_screen(TextModal(title, lambda w: report_rows(report, w)))
