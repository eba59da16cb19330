"""GPU settings: the commands first, then the guard, the proof under load, and the revert with one key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.model.settings import GuardView, SettingCommand, SettingOutcome, SettingsReport
from workbench.session.state import SessionState
from workbench.tui.cells import Row, paragraph
from workbench.tui.controllers.base import Controller
from workbench.tui.formats import alteration_texts, countdown, there_before
from workbench.tui.glyphs import G
from workbench.tui.modals.ask import Confirm, foreign_settings
from workbench.tui.modals.form import Values
from workbench.tui.modals.gpu_confirm import (
    ConfirmSettings,
    Process,
    change_rows,
    command_rows,
    concerned_rows,
    finding_rows,
    note_rows,
    report_rows,
)
from workbench.tui.modals.gpu_settings import Suggestion, Wanted, each_alone, parse, settings_form, suggestion_of
from workbench.tui.modals.launch import disturbed_rows
from workbench.tui.modals.page import Keys, Page

VERIFY_S = 8.0


# for each choice about a value that another program has set: words for the message before and after
CHOSEN = {"ours": ("setting again", "Set again"), "keep": ("leaving as it is", "Left as it is")}


class GpuController(Controller):
    async def edit(self) -> None:
        state = self.state
        if state.telemetry is None or not state.telemetry.gpus:
            if state.telemetry is None and not state.telemetry_problem and state.host.link != "failed":
                self.say("the GPUs have not been read yet", Level.WARN, "press g again when their figures are there")
            else:
                self.say("no GPU can be set here", Level.WARN, state.telemetry_problem or "h works on another host")
            return

        suggested, count = self._suggested(state), len(state.telemetry.gpus)
        found: list[tuple[Wanted, Sequence[SettingOutcome], Sequence[Process] | None]] = []

        async def look_up(values: Values) -> None:
            wanted = parse(values, count)
            assert isinstance(wanted, Wanted)
            self.services.working = (
                True  # until the commands stand there: a key typed meanwhile is not for the pane below
            )
            try:
                found.append((wanted, *await self._planned(wanted)))
            except InputError as error:
                raise await self._at_its_field(wanted, error) from None

        def asked(values: Values | None) -> None:
            if values and found:
                self._confirm(*found[-1])
            self.services.working = False

        await self.app.push_screen(settings_form(self.state, suggested, look_up), asked)

    async def _at_its_field(self, wanted: Wanted, error: InputError) -> InputError:
        """The error, with the field of the form that it is about in front: each setting is asked about by itself."""

        for name, alone in each_alone(wanted.settings):
            try:
                await self.session.gpu.apply(alone, wanted.gpu, dry_run=True)
            except InputError as its:
                return InputError(f"{name}: {its.message}", next_step=its.next_step)
        return error

    def _suggested(self, state: SessionState) -> Suggestion | None:
        """What the preset of the plan mentions. It is only written into the form."""
        preset_id = state.plan.plan.preset_id if state.plan else None
        if preset_id is None or state.alterations:
            return None

        carried = self.try_now(lambda: self.session.plans.preset_gpu_settings(preset_id))
        return suggestion_of(carried, preset_id) if carried else None

    async def _planned(self, wanted: Wanted) -> tuple[Sequence[SettingOutcome], Sequence[Process] | None]:
        """Every command with what is there before; nothing is changed."""
        report = await self.session.gpu.apply(wanted.settings, wanted.gpu, dry_run=True)
        return report.outcomes, await self._processes()

    async def _processes(self) -> Sequence[Process] | None:
        """None where it cannot be told: the page says so, and the change is still the person's to decide."""
        try:
            return await self.session.gpu.processes()
        except Exception as error:
            self.services.explain(error)
            return None

    def _confirm(self, wanted: Wanted, planned: Sequence[SettingOutcome], processes: Sequence[Process] | None) -> None:

        state = self.state
        commands = [o.command for o in planned]
        indexes = sorted({c.gpu_index for c in commands})

        def text(width: int) -> list[Row]:
            rows = [*disturbed_rows(state.measured_by, width)]
            rows += [*concerned_rows(state, indexes, processes, width), (), *change_rows(planned, width), ()]
            rows += [*command_rows(commands, width, state.host.sudo_password), (), *note_rows(planned, width)]
            after = "What is there before is written to disk first; r gives it back."
            if wanted.trial_s is not None:
                after += f" On trial for {wanted.trial_s:g} s: given back then unless T keeps it."
            return [*rows, *paragraph(after, width, "dim")]

        def decided(given: Values | None) -> None:
            if given is not None:
                self.attempt(
                    lambda: self.session.gpu.apply(
                        wanted.settings, wanted.gpu, trial_s=wanted.trial_s, password=given.get("password")
                    ),
                    lambda r: self.show_report("GPU settings", r),
                )

        lacking = any(c.right for c in commands)
        self.app.push_screen(
            ConfirmSettings(
                "These commands change the GPUs",
                text,
                yes="run them",
                default_no=lacking or state.measured_by is not None,
                password=state.host.sudo_password,
            ),
            decided,
        )

    def revert(self) -> None:
        """At once: it only puts back what was. Asked about during a benchmark of anybody, whose figures it would spoil,
        and where sudo wants a password."""
        state = self.state
        if not state.alterations:
            self.say("no GPU setting is altered")
            return

        texts = [f"{gpus}: {now} back to {there_before(b)}" for gpus, now, b in alteration_texts(state.alterations)]
        if not state.bench.running and state.measured_by is None and not state.host.sudo_password:
            self._revert(texts)
            return

        def text(width: int) -> list[Row]:
            rows = disturbed_rows(state.measured_by, width)
            if state.bench.running:
                rows += paragraph("! A benchmark is running: its figures would mix both settings.", width, "warn")
            return [*rows, *(row for line in texts for row in paragraph(line, width))]

        def decided(given: Values | None) -> None:
            if given is not None:
                self._revert(texts, given.get("password"))

        self.app.push_screen(
            ConfirmSettings(
                "Revert GPU settings",
                text,
                yes="revert",
                default_no=state.bench.running or state.measured_by is not None,
                password=state.host.sudo_password,
            ),
            decided,
        )

    def _revert(self, texts: Sequence[str], password: str | None = None, foreign: str | None = None) -> None:
        doing, done = CHOSEN.get(foreign or "", ("reverting", "Reverted"))
        self.say(f"{doing} {'; '.join(texts)}")

        def reverted(report: SettingsReport) -> None:
            if any(o.foreign for o in report.outcomes):
                self._ask_of_foreign(report, password)
            else:
                self.show_report(done, report, texts)

        self.attempt(lambda: self.session.gpu.revert(password=password, foreign=foreign), reverted)

    def _ask_of_foreign(self, report: SettingsReport, password: str | None) -> None:
        """Nothing has been done to a setting that someone else has changed since."""

        outcomes = [o for o in report.outcomes if o.foreign]
        texts = [f"{o.command.where} {o.command.setting}" for o in outcomes]

        def decided(choice: str | None) -> None:
            if choice is None:
                self.say("nothing was done to what someone else has set", next_step="r asks again")
            else:
                self._revert(texts, password, choice)

        self.app.push_screen(foreign_settings(outcomes), decided)

    def show_report(self, title: str, report: SettingsReport, texts: Sequence[str] = ()) -> None:
        """Short when all went well, a page where something did not or needs reading."""
        plain = report.ok and not report.rolled_back and all(str(o.in_force) == "yes" for o in report.outcomes)
        trial = report.guard.trial_left_s if report.guard and not texts else None
        problem = report.guard.problem if report.guard and not texts else None
        if plain and not problem:
            count = len(report.outcomes)
            counted = f"{count} setting{'s' * (count != 1)} read back and in force"
            said = f"{title}: {'; '.join(texts)}; {counted}" if texts else f"{title}: {counted}"
            then = "r puts them back; l lists the commands"
            if trial is not None:
                then = f"on trial for {trial:.0f} s: T keeps them, r puts them back"
            self.say(said, next_step=None if texts else then)
            return
        self.services.hush()

        def keys() -> Keys:
            """None once the settings are reverted."""
            if not self.state.alterations:
                return {}
            verify: Keys = {} if texts or not report.ok else {"V": ("check under load", self.verify)}
            return {**verify, **self._trial_keys}

        self.app.push_screen(
            Page(title, lambda w: report_rows(report, w), wide=True, keys=keys, top=self._trial_rows(trial is not None))
        )

    @property
    def _trial_keys(self) -> Keys:
        guard = self.state.guard
        if guard is None or guard.trial_left_s is None:
            return {}
        return {"T": ("keep", self.keep_trial), "r": ("revert", self.revert)}

    def _trial_rows(self, on_trial: bool) -> Callable[[int], list[Row]]:
        """For the top of a page: what is left of a trial, and that it has ended while the page lay over it."""

        def rows(width: int) -> list[Row]:
            state = self.state
            left = self.services.status_bar.trial.left(state.guard, state.guard.trial_left_s if state.guard else None)
            if left is not None:
                text = f"{G.alert} on trial: reverted in {countdown(left)} unless T keeps it"
            elif on_trial and not state.alterations:
                text = "! The settings have been given back since: what stands below was before that."
            else:
                return []
            return [*paragraph(text, width, "warnb"), ()]

        return rows

    # trial, guard
    def keep_trial(self) -> None:
        guard = self.state.guard
        if guard is None or guard.trial_left_s is None:
            self.say("no GPU setting is on trial", next_step="g sets some; its last field is the trial time")
            return
        self.attempt(lambda: self.session.gpu.guard.confirm(), self._kept)

    def _kept(self, guard: GuardView) -> None:
        said = "kept: the settings stay until r"
        if guard.heartbeat_s:
            said += f"; they are given back when Workbench is silent for {guard.heartbeat_s:g} s"
        self.say(said)

    async def leave_on(self) -> None:
        """Without a guard's heartbeat: they outlive this screen."""
        state = self.state
        if not state.alterations:
            self.say("no GPU setting is altered")
            return

        cautions = await self.session.gpu.cautions()

        def text(width: int) -> list[Row]:
            rows: list[Row] = []
            for gpus, now, before in alteration_texts(state.alterations):
                rows += paragraph(f"{gpus}: {now}, was {before}", width)
            for caution in cautions:
                rows += paragraph(f"! {caution}", width, "warn")
            return [
                *rows,
                *paragraph(
                    "They stay on when Workbench ends or its link is lost, until r or a restart of "
                    "the host; the journal keeps what was before.",
                    width,
                    "dim",
                ),
            ]

        def decided(yes: bool | None) -> None:
            if yes:
                self.attempt(
                    lambda: self.session.gpu.guard.keep(), lambda _: self.say("the settings are left on; r reverts")
                )

        await self.app.push_screen(Confirm("Leave the GPU settings on", text, yes="leave them on", wide=True), decided)

    # proof
    def verify(self) -> None:
        """Load on the server, and what it shows of each altered setting."""
        state = self.state
        if not state.alterations:
            self.say("no GPU setting is altered: there is nothing to check", next_step="g sets some")
            return
        server = state.server
        if server is None or server.state is not ServerState.READY:
            self.say("load comes from a server that is READY, and there is none", Level.WARN, "s starts the plan")
            return
        if state.bench.running:
            self.say("a benchmark is running: it checks the settings itself")
            return
        self._load(server.engine)

    def _load(self, engine: str, **probe: Any) -> None:
        async def work() -> tuple[Sequence[str], Sequence[SettingCommand]]:
            return await self.session.proof.verify_lines(VERIFY_S, **probe), await self.session.proof.probe_commands()

        self.services.count_down(f"checking under load: {engine} is kept busy", VERIFY_S)
        self.attempt(work, lambda found: self._verified(*found), failed=self.services.stop_counting)

    def _verified(self, findings: Sequence[str], probe: Sequence[SettingCommand]) -> None:
        """`probe`: commands of one that can be made, where the load proved nothing."""
        self.services.stop_counting()
        self.services.hush()

        def keys() -> Keys:
            """None once the settings are reverted."""
            if not self.state.alterations:
                return {}
            first: Keys = {"p": ("probe", lambda: self._ask_probe(probe))} if probe else {}
            again = {"r": ("revert", self.revert), "V": ("again", self.verify)}
            return {**first, **again, **self._trial_keys}

        top = self._trial_rows(bool(self.state.alterations))
        self.app.push_screen(
            Page("What the load showed", lambda w: finding_rows(findings, w), wide=True, keys=keys, top=top)
        )

    def _ask_probe(self, commands: Sequence[SettingCommand]) -> None:
        """Another lock for a moment under load tells whether the clock follows locks at all."""

        state = self.state
        server, wants_password = state.server, state.host.sudo_password
        if server is None or server.state is not ServerState.READY:
            self.say("load comes from a server that is READY, and there is none", Level.WARN, "s starts the plan")
            return

        def text(width: int) -> list[Row]:
            about = f"{VERIFY_S:g} s under load, then another lock for some seconds, then yours again:"
            return [*paragraph(about, width), (), *command_rows(commands, width, wants_password)]

        def decided(given: Values | None) -> None:
            if given is not None:
                self._load(server.engine, probe=True, password=given.get("password"))

        lacking = any(c.right for c in commands)
        title = "A probe sets other clocks for a moment"
        self.app.push_screen(
            ConfirmSettings(title, text, yes="run them", default_no=lacking, password=wants_password), decided
        )
