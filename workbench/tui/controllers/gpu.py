"""The keys of GPU settings: change settings, end a trial by keeping them, leave them altered when
Workbench ends, revert them, and check them under load."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.setting_records import (
    GuardView,
    InForce,
    SettingCommand,
    SettingOutcome,
    SettingsReport,
)
from workbench.model.sweep import BACK
from workbench.model.unconfirmed_changes import split_altered_and_begun_changes
from workbench.session.state import SessionState
from workbench.tui.cells import Row, RowMaker, paragraph_rows, stack_paragraphs
from workbench.tui.controllers.base import Controller
from workbench.tui.formats import (
    alteration_gpus_now_and_before,
    countdown_text,
    enclose_nonempty_text,
    restored_value_text,
    running_setting_change_text,
    setting_label,
)
from workbench.tui.glyphs import G
from workbench.tui.modals.ask import Confirm, externally_changed_settings_question
from workbench.tui.modals.form import Values
from workbench.tui.modals.gpu_confirm import (
    ConfirmSettings,
    PlannedChange,
    has_details_beyond_summary,
    load_check_finding_rows,
    running_measurement_kind,
    running_measurement_warning_rows,
    setting_change_consent_rows,
    setting_command_rows,
    settings_report_rows,
)
from workbench.tui.modals.gpu_settings import (
    RequestedSettings,
    Suggestion,
    parse_settings_form,
    settings_form,
    settings_suggestion_from_entries,
    split_into_labelled_settings,
)
from workbench.tui.modals.launch import other_measurement_warning_rows
from workbench.tui.pages.base import Keys, Page

VERIFY_S = 8.0
_CHECK = "the check under load"
RUN_AND_MEASURE = "run them, and measure"
_OF_A_SERIES = (
    "The values are set one after the other, each for its measurements. The values before are "
    "written to disk first; they are restored at the end and after any failure."
)
# the user's choice about a value of another program, None without one -> words for the message
# before and after the revert
CHOSEN: Mapping[str | None, tuple[str, str]] = {
    None: ("reverting", "Reverted"),
    "original": ("reverting", "Reverted"),
    "ours": ("setting again", "Set again"),
    "keep": ("leaving as it is", "Left as it is"),
}


class GpuController(Controller):
    async def open_settings_form(self) -> None:
        """Show the form of GPU settings, then the commands that would change them, and run these if
        the user agrees."""
        state = self.state
        if not state.gpus:
            self._report_no_gpus()
            return
        count = len(state.gpus)
        found: list[tuple[RequestedSettings, PlannedChange]] = []

        async def look_up_commands(values: Values) -> None:
            wanted = parse_settings_form(values, count)
            # a key that is typed before the commands are shown is not meant for the pane
            self.services.is_busy = True
            try:
                report = await self.session.gpu.apply_settings(
                    wanted.settings, wanted.gpu, dry_run=True
                )
            except InputError as error:
                raise await self._error_naming_invalid_setting(wanted, error) from None
            found.append((wanted, await self.planned_change_from_outcomes(report.outcomes)))

        def confirm_commands(values: Values | None) -> None:
            if values and found:
                self._confirm_requested_settings(*found[-1])
            self.services.is_busy = False

        await self.app.push_screen(
            settings_form(state, self._suggest_settings(), look_up_commands), confirm_commands
        )

    def _report_no_gpus(self) -> None:
        host = self.state.host
        if self.state.telemetry is not None or host.telemetry_problem or host.link == "failed":
            why = enclose_nonempty_text(": ", host.telemetry_problem)
            text = f"no GPU setting can be changed on this host{why}"
            self.show_message(text, Level.WARN, "press h to work on another host")
        else:
            again = "press g again after the first reading"
            self.show_message("the GPUs have not been read yet", Level.WARN, again)

    async def _error_naming_invalid_setting(
        self, wanted: RequestedSettings, error: InputError
    ) -> InputError:
        """Return `error`, which rejects the GPU settings `wanted`, with the label of the invalid
        setting in front of its message. To find that setting, make a dry run with each setting
        alone."""
        for name, alone in split_into_labelled_settings(wanted.settings):
            try:
                await self.session.gpu.apply_settings(alone, wanted.gpu, dry_run=True)
            except InputError as its:
                return InputError(f"{name}: {its.message}", next_step=its.next_step)
        return error

    def _suggest_settings(self) -> Suggestion | None:
        """Return the GPU settings of the plan's preset as texts for the form. Return None if the
        preset has no GPU settings, or if settings are altered already."""
        if self.state.plan is None or self.state.alterations:
            return None
        preset_id = self.state.plan.plan.preset_id
        if preset_id is None:
            return None
        mentioned = self.run_or_show_error(
            lambda: self.session.plans.preset_gpu_settings(preset_id)
        )
        return settings_suggestion_from_entries(mentioned or (), preset_id)

    async def planned_change_from_outcomes(
        self, planned: Sequence[SettingOutcome], restore_commands: Sequence[SettingCommand] = ()
    ) -> PlannedChange:
        """Return a change from the outcomes of a dry run, with the processes that use the GPUs. If
        they cannot be listed, show the error as a message, and return the change with None for the
        processes."""
        try:
            return PlannedChange(planned, await self.session.gpu.gpu_processes(), restore_commands)
        except Exception as error:
            self.services.show_error(error)
            return PlannedChange(planned, None, restore_commands)

    def _ask_consent(
        self,
        title: str,
        make_rows: RowMaker,
        accept_label: str,
        on_consent: Callable[[str | None], None],
        *,
        is_no_default: bool,
        make_detailed_rows: RowMaker | None = None,
        takes_password: bool = True,
    ) -> None:
        """Show the rows of `make_rows`, the commands to run, in a box with `title`, and those of
        `make_detailed_rows` after ctrl+o. Ask for consent, with the cursor on no if `is_no_default`
        is true, and with `takes_password` for a password if sudo needs one. If the user agrees,
        call `on_consent` with the password, or with None if none was asked for."""

        def call_on_consent(given: Values | None) -> None:
            if given is not None:
                on_consent(given.get("password"))

        password = takes_password and self.state.host.sudo_password
        box = ConfirmSettings(
            title,
            make_rows,
            yes_text=accept_label,
            default_no=is_no_default,
            asks_password=password,
            make_detailed_rows=make_detailed_rows,
        )
        self.app.push_screen(box, call_on_consent)

    def _confirm_requested_settings(self, wanted: RequestedSettings, change: PlannedChange) -> None:
        after = "The previous values are written to disk first; press r to restore them."
        if wanted.trial_s is not None:
            after += (
                f" On trial for {wanted.trial_s:g} s: the settings are then reverted "
                "unless you press T."
            )

        def apply_settings(password: str | None) -> None:
            self.run_in_background(
                lambda: self.session.gpu.apply_settings(
                    wanted.settings, wanted.gpu, trial_s=wanted.trial_s, password=password
                ),
                lambda report: self.show_settings_report("GPU settings", report),
            )

        self._confirm_setting_change(change, after, "run them", apply_settings)

    def _confirm_setting_change(
        self,
        change: PlannedChange,
        closing_text: str,
        accept_label: str,
        on_consent: Callable[[str | None], None],
        *,
        takes_password: bool = True,
    ) -> None:
        """Show the commands of a change of GPU settings, the values before and requested, what runs
        on the GPUs, and the sentences `closing_text`. If the user agrees, call `on_consent` as
        `_ask_consent` does."""
        state = self.state

        def make_change_rows(width: int, is_detailed: bool = False) -> list[Row]:
            rows = setting_change_consent_rows(state, change, width, is_detailed)
            return [*rows, *paragraph_rows(closing_text, width, "dim")]

        detailed: RowMaker | None = None
        if has_details_beyond_summary(change.gpu_indexes, change.processes):
            detailed = partial(make_change_rows, is_detailed=True)
        asks = any(c.right or c.foreign for c in change.commands)
        self._ask_consent(
            "These commands change the GPUs",
            make_change_rows,
            accept_label,
            on_consent,
            is_no_default=asks or _is_host_being_measured(state),
            make_detailed_rows=detailed,
            takes_password=takes_password,
        )

    # measurements that change settings
    async def planned_change_of_gpu_sweep(
        self, commands_by_value: Mapping[str, Sequence[SettingCommand]]
    ) -> PlannedChange:
        """Return the change that a sweep of a GPU setting makes. `commands_by_value` has its
        commands by value, and under BACK those that restore the values before."""
        back = commands_by_value[BACK]
        before = {(c.gpu_index, c.setting): c.value for c in back}
        steps = [
            c for value, commands in commands_by_value.items() if value != BACK for c in commands
        ]
        planned = [
            SettingOutcome(c, not c.right, before.get((c.gpu_index, c.setting)), c.value)
            for c in await self.session.gpu.add_notes_about_other_setters(steps)
        ]
        return await self.planned_change_from_outcomes(planned, back)

    def confirm_setting_changes(
        self,
        look_up_changes: Callable[[], Coroutine[Any, Any, PlannedChange]],
        on_consent: Callable[[str | None], None],
        *,
        takes_password: bool = False,
    ) -> None:
        """Look up with `look_up_changes` which GPU settings a measurement changes, and show the
        commands. If the user agrees, call `on_consent`. If the measurement `takes_password`, and
        sudo needs one, ask for it and pass it on; otherwise pass None."""
        host = self.state.host.name
        self.show_message(
            "looking up the commands that change GPU settings: nothing is changed yet"
        )
        # a key that is typed before the commands are shown is not meant for the pane
        self.services.is_busy = True

        def ask_consent(change: PlannedChange) -> None:
            self.services.is_busy = False
            self.services.clear_message()
            if self.state.host.name == host:
                self._confirm_setting_change(
                    change, _OF_A_SERIES, RUN_AND_MEASURE, on_consent, takes_password=takes_password
                )

        def accept_keys_again() -> None:
            self.services.is_busy = False

        self.run_in_background(look_up_changes, ask_consent, on_error=accept_keys_again)

    def _warn_if_settings_are_changing(self, retry_key: str, undone_text: str) -> bool:
        """Warn if a change of GPU settings is under way, and return whether it is. The altered
        settings are known only after the change, so the message says that `retry_key` must be
        pressed again then. `undone_text` says what the key has not done, such as "nothing is
        reverted yet"."""
        work = running_setting_change_text(self.state)
        if work:
            next_step = f"press {retry_key} again when that has ended"
            self.show_message(f"{undone_text}: Workbench is {work}", Level.WARN, next_step)
        return bool(work)

    # revert
    def revert_settings(self) -> None:
        """Revert every altered GPU setting. Ask first if the revert disturbs a measurement, or if
        sudo needs a password."""
        state = self.state
        if not state.alterations:
            if not self._warn_if_settings_are_changing("r", "nothing is reverted yet"):
                self.show_message("no GPU setting is altered")
            return
        altered, begun = split_altered_and_begun_changes(state.alterations, state.telemetry)
        texts = []
        for gpus, now, before in alteration_gpus_now_and_before(altered):
            texts.append(f"{gpus}: {now} back to {restored_value_text(before)}")
        for change, outcome in begun:
            ((gpus, now, _),) = alteration_gpus_now_and_before([change])
            texts.append(f"{gpus}: {now}, {outcome}")
        disturbs = _is_host_being_measured(state)
        if not disturbs and not state.host.sudo_password:
            self._run_revert(texts)
            return

        def make_question_rows(width: int) -> list[Row]:
            rows = other_measurement_warning_rows(self.state.host.measured_by, width)
            rows += running_measurement_warning_rows(self.state, width)
            return [*rows, *stack_paragraphs(texts, width)]

        self._ask_consent(
            "Revert GPU settings",
            make_question_rows,
            "revert",
            lambda p: self._run_revert(texts, p),
            is_no_default=disturbs,
        )

    def _run_revert(
        self,
        setting_texts: Sequence[str],
        password: str | None = None,
        foreign_choice: str | None = None,
    ) -> None:
        doing, done = CHOSEN[foreign_choice]
        self.show_message(f"{doing} {'; '.join(setting_texts)}")

        def show_revert_outcome(report: SettingsReport) -> None:
            if any(map(_was_changed_by_others, report.outcomes)):
                self._ask_about_externally_changed_settings(report, password)
            elif not report.outcomes and report.recovery is None:
                self.show_message(
                    "no GPU setting is altered"
                )  # another Workbench has reverted them since
            else:
                self.show_settings_report(done, report, setting_texts)

        self.run_in_background(
            lambda: self.session.gpu.revert_settings(password=password, foreign=foreign_choice),
            show_revert_outcome,
        )

    def _ask_about_externally_changed_settings(
        self, report: SettingsReport, password: str | None
    ) -> None:
        """Ask what to do about the settings that another user or program has changed. The revert
        has left these settings as they are."""
        outcomes = list(filter(_was_changed_by_others, report.outcomes))
        texts = [
            f"{o.command.gpu_or_host_name} {setting_label(o.command.setting)}" for o in outcomes
        ]

        def revert_as_chosen(choice: str | None) -> None:
            if choice is None:
                self.show_message(
                    "the GPU settings that someone else has changed were not reverted",
                    next_step="press r to be asked again what to do with these settings",
                )
            else:
                self._run_revert(texts, password, choice)

        self.app.push_screen(externally_changed_settings_question(outcomes), revert_as_chosen)

    # reports
    def show_settings_report(
        self, title: str, report: SettingsReport, restored_texts: Sequence[str] = ()
    ) -> None:
        """Show the outcome of a change or a revert of GPU settings: a message if every setting is
        in force, otherwise a page. After a revert, `restored_texts` describe the restored settings;
        after a change, `restored_texts` is empty."""
        trial_s = problem = None
        if report.guard is not None and not restored_texts:
            trial_s, problem = report.guard.trial_left_s, report.guard.problem
        if _are_all_settings_in_force(report) and not problem:
            counted = f"{count_of(len(report.outcomes), 'setting')} read back and in force"
            next_step: str | None = "press r to revert them, or l to list the commands"
            if trial_s is not None:
                next_step = (
                    f"on trial for {trial_s:.0f} s: press T to keep them, or r to revert them"
                )
            if restored_texts:
                next_step = None
            self.show_message(
                f"{title}: {'; '.join([*restored_texts, counted])}", next_step=next_step
            )
            return
        verify: Keys = {}
        if report.ok and not restored_texts:
            verify = {"V": ("Check under load", self.check_settings_under_load)}
        on_trial = trial_s is not None
        self._open_settings_page(
            title, lambda w: settings_report_rows(report, w), verify, is_on_trial=on_trial
        )

    def _open_settings_page(
        self, title: str, make_rows: RowMaker, extra_keys: Keys, *, is_on_trial: bool
    ) -> None:
        """Open a page about GPU settings with the rows of `make_rows` and the keys `extra_keys`,
        which work until the settings are reverted. With `is_on_trial`, the settings are reverted at
        the end of a trial. Then the page begins with the time left, and later says that the
        settings are reverted."""
        self.services.clear_message()
        top = self._trial_row_maker(is_on_trial)

        def current_keys() -> Keys:
            if not self.state.alterations:
                return {}
            return {**self._settings_page_keys, **extra_keys}

        self.services.pages.open(
            Page(title, lambda w: [*top(w), *make_rows(w)], current_keys, kind="GPU settings")
        )

    @property
    def _settings_page_keys(self) -> Keys:
        """Return the keys that every page about GPU settings has while settings are altered. One
        key reverts the settings. If they are on trial, which means that they are reverted after
        some time, another key keeps them."""
        revert: Keys = {"r": ("Revert", self.revert_settings)}
        if self.state.trial_left_s is None:
            return revert
        return {"T": ("Keep", self.confirm_trial_settings), **revert}

    def _trial_row_maker(self, is_on_trial: bool) -> RowMaker:
        """Return a function that maps a width in cells to the first rows of a page about GPU
        settings. During a trial, the rows show the seconds until the settings are reverted. If
        `is_on_trial` is true and the settings have been reverted, the rows say so."""

        def make_trial_rows(width: int) -> list[Row]:
            countdown = self.services.status_bar.trial
            left = countdown.remaining_s_now(self.state.guard, self.state.trial_left_s)
            if left is not None:
                text = f"{G.alert} on trial: reverted in {countdown_text(left)} unless you press T"
            elif is_on_trial and not self.state.alterations:
                text = (
                    "! The settings have been reverted since. The text below was true before that."
                )
            else:
                return []
            return [*paragraph_rows(text, width, "warnb"), ()]

        return make_trial_rows

    # trial, guard
    def confirm_trial_settings(self) -> None:
        """End the trial of the GPU settings so that they stay; show a message if none is on
        trial."""
        if self.state.trial_left_s is None:
            if self._warn_if_settings_are_changing("T", "nothing is kept yet"):
                return
            next_step = (
                "press g to change GPU settings; enter a trial time in the last field of the form"
            )
            self.show_message("no GPU setting is on trial", next_step=next_step)
            return
        self.run_in_background(
            lambda: self.session.gpu.guard.confirm_trial_settings(), self._report_confirmed_trial
        )

    def _report_confirmed_trial(self, guard: GuardView) -> None:
        text = "the trial is over and the GPU settings stay until you press r to revert them"
        if guard.heartbeat_s:
            text += f", or until the guard gets no heartbeat for {guard.heartbeat_s:g} s"
        self.show_message(text)

    async def ask_to_retain_settings(self) -> None:
        """Ask whether the GPU settings stay altered when Workbench ends. If the user agrees, tell
        the guard, a process on the host, that it must not revert them."""
        alterations = self.state.alterations
        if not alterations:
            if not self._warn_if_settings_are_changing("L", "nothing is left on yet"):
                self.show_message("no GPU setting is altered")
            return
        cautions = await self.session.gpu.warnings_without_guard()

        def make_question_rows(width: int) -> list[Row]:
            rows: list[Row] = []
            for gpus, now, before in alteration_gpus_now_and_before(alterations):
                rows += paragraph_rows(f"{gpus}: {now}, was {before}", width)
            rows += stack_paragraphs((f"! {caution}" for caution in cautions), width, "warn")
            about = (
                "The settings stay on when Workbench ends or its connection is lost, until you "
                "press r or the host "
                "restarts. The journal keeps the previous values."
            )
            return [*rows, *paragraph_rows(about, width, "dim")]

        def retain_if_confirmed(yes: bool | None) -> None:
            if yes:
                keep = self.session.gpu.guard.leave_settings_on_unguarded
                said = "the GPU settings stay altered after Workbench ends; press r to revert them"
                self.run_in_background(lambda: keep(), lambda _: self.show_message(said))

        await self.app.push_screen(
            Confirm(
                "Leave the GPU settings on", make_question_rows, yes="leave them on", wide=True
            ),
            retain_if_confirmed,
        )

    # proof
    def check_settings_under_load(self) -> None:
        """Put load on the server for some seconds, then show which of the altered GPU settings are
        in force."""
        if not self.state.alterations:
            if not self._warn_if_settings_are_changing("V", "nothing is checked yet"):
                self.show_message(
                    "no GPU setting is altered: there is nothing to check",
                    next_step="press g to change GPU settings",
                )
        elif (server := self.ready_server_or_show_message(_CHECK)) is None:
            return
        elif self.state.bench.running:
            self.show_message(
                "no check started: a benchmark is running, and a benchmark checks the GPU "
                "settings too"
            )
        else:
            self._run_load_check(server.engine)

    def _run_load_check(self, engine: str, **probe_options: Any) -> None:
        async def findings_and_probe_commands() -> tuple[Sequence[str], Sequence[SettingCommand]]:
            return await self.session.gpu_verifier.verify_and_report_lines(
                VERIFY_S, **probe_options
            ), await self.session.gpu_verifier.probe_commands()

        self.services.start_countdown(f"checking under load: {engine} is kept busy", VERIFY_S)
        self.run_in_background(
            findings_and_probe_commands,
            lambda found: self._show_load_check(*found),
            on_error=self.services.stop_countdown,
        )

    def _show_load_check(
        self, findings: Sequence[str], probe_commands: Sequence[SettingCommand]
    ) -> None:
        """Open the page with `findings`, which say for each setting whether the load showed it in
        force. `probe_commands` has the commands of a further test, which a key of the page offers.
        It is empty if no further test is needed."""
        self.services.stop_countdown()
        keys: Keys = {"V": ("Again", self.check_settings_under_load)}
        if probe_commands:
            keys = {"p": ("Probe", lambda: self._ask_clock_lock_probe(probe_commands)), **keys}
        on_trial = bool(self.state.alterations)
        self._open_settings_page(
            "What the load showed",
            lambda width: load_check_finding_rows(findings, width),
            keys,
            is_on_trial=on_trial,
        )

    def _ask_clock_lock_probe(self, commands: Sequence[SettingCommand]) -> None:
        """Ask for consent to test further whether this GPU obeys clock locks. The `commands` of the
        test set another clock lock under load for some seconds."""
        server, password = self.ready_server_or_show_message(_CHECK), self.state.host.sudo_password
        if server is None:
            return

        def make_question_rows(width: int) -> list[Row]:
            about = (
                f"After {VERIFY_S:g} s under load, these commands set another lock for some "
                "seconds, then yours again:"
            )
            return [
                *paragraph_rows(about, width),
                (),
                *setting_command_rows(commands, width, password),
            ]

        self._ask_consent(
            "A probe sets other clocks for a moment",
            make_question_rows,
            "run them",
            lambda given: self._run_load_check(server.engine, probe=True, password=given),
            is_no_default=any(c.right for c in commands),
        )


def _is_host_being_measured(state: SessionState) -> bool:
    """Return whether this Workbench or anybody else measures on the host now. A change of a GPU
    setting would disturb the measurement."""
    return state.host.measured_by is not None or bool(running_measurement_kind(state))


def _are_all_settings_in_force(report: SettingsReport) -> bool:
    """Return whether every setting of a change is in force, and nothing went wrong on the way."""
    if not report.ok or report.rolled_back or report.recovery is not None:
        return False
    return all(outcome.in_force is InForce.YES for outcome in report.outcomes)


def _was_changed_by_others(outcome: SettingOutcome) -> bool:
    """Return whether a revert has left the setting alone because someone else has set it since."""
    return outcome.foreign or bool(outcome.left_to)
