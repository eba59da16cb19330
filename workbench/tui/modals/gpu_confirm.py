"""The pages before and after a change of GPU settings: first the commands and the affected GPUs,
then the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from workbench.model.counts import count_of, gpus_text
from workbench.model.setting_records import InForce, SettingCommand, SettingOutcome, SettingsReport
from workbench.model.settings import HOST_INDEX
from workbench.session.state import SessionState
from workbench.tui.cells import (
    Row,
    RowMaker,
    Run,
    cut_text,
    pad_text,
    pad_text_with_gap,
    paragraph_rows,
    rows_beside_label,
    stack_paragraphs,
)
from workbench.tui.formats import (
    NA,
    enclose_nonempty_text,
    setting_label,
    setting_value_text,
    short_gpu_name,
)
from workbench.tui.glyphs import G
from workbench.tui.modals.base import Label, Text, TextThenChoices
from workbench.tui.modals.launch import other_measurement_warning_rows
from workbench.tui.widgets.entry import Entry
from workbench.tui.widgets.guard_state import guard_rows

Process = tuple[int, int, str, bool]  # GPU index, pid, name, whether Workbench started it
FORCE = {
    InForce.YES: ("ok in force", "good"),
    InForce.CONSISTENT: ("? consistent, proves nothing", "dim"),
    InForce.CHANGED: (f"{G.alert} changed by someone else", "warnb"),
    InForce.CAPPED: (f"{G.alert} capped", "warn"),
    InForce.NO_EFFECT: (f"{G.alert} no effect", "warnb"),
    InForce.NOT_CHECKED: ("? not checked", "dim"),
}


VALUE_SOURCES = {
    "read": "read from the driver",
    "journal": "set by Workbench before",
    "default": "the driver's default",
    "unknown": "a lock cannot be read",
    "claim": "according to its user's Workbench",
}


# who started processes: the words for one and for several, and their role, by whether it was
# Workbench
OF_WHOM = {
    True: ("a server of Workbench", "servers of Workbench", "text"),
    False: ("not started by Workbench", "not started by Workbench", "warn"),
}


class PlannedChange(NamedTuple):
    """A change of GPU settings before it is made: what each command would do, and the processes on
    the GPUs (None if they are unknown). If the change ends by itself, `restore_commands` has the
    commands that restore the values before."""

    planned_outcomes: Sequence[SettingOutcome]
    processes: Sequence[Process] | None
    restore_commands: Sequence[SettingCommand] = ()

    @property
    def commands(self) -> Sequence[SettingCommand]:
        return [*(o.command for o in self.planned_outcomes), *self.restore_commands]

    @property
    def gpu_indexes(self) -> Sequence[int]:
        """The numbers of the GPUs that the commands change, and HOST_INDEX if they change the
        host."""
        return sorted({c.gpu_index for c in self.commands})


def running_measurement_kind(state: SessionState) -> str:
    """Return the kind of measurement that this Workbench runs now, such as "benchmark"; "" if it
    measures nothing. Of an experiment and the sweep that it belongs to, return "experiment"."""
    series = state.running_series
    if series:
        return series[0].kind_noun
    if state.bench.running:
        return "benchmark"
    if state.running_quality is not None:
        return "comparison of answers"
    return ""


def running_measurement_warning_rows(state: SessionState, width: int) -> list[Row]:
    """Return a warning that this Workbench is measuring; [] if it is not."""
    what = running_measurement_kind(state)
    if not what:
        return []
    text = f"! A running {what} is disturbed: its result would mix both settings."
    return [*paragraph_rows(text, width, "warn", "  "), ()]


def setting_change_consent_rows(
    state: SessionState, change: PlannedChange, width: int, is_detailed: bool = False
) -> list[Row]:
    """Return the rows that a user reads before a change of GPU settings: who measures on the host,
    the GPUs and their processes, the values before and requested, the commands, and the notes. If
    `is_detailed` is true, each GPU and each process has a row of its own."""
    password = state.host.sudo_password
    rows = [
        *other_measurement_warning_rows(state.host.measured_by, width),
        *running_measurement_warning_rows(state, width),
        *affected_gpu_rows(state, change.gpu_indexes, change.processes, width, is_detailed),
        (),
        *setting_change_rows(change.planned_outcomes, width),
        (),
        *setting_command_rows([o.command for o in change.planned_outcomes], width, password),
    ]
    if change.restore_commands:
        rows += [
            (),
            (("Back at the end", "strong"),),
            *setting_command_rows(change.restore_commands, width, password),
        ]
    return [*rows, (), *setting_note_rows(change.planned_outcomes, width)]


def gpu_label(gpu_index: int) -> str:
    return gpus_text([gpu_index])


def affected_gpu_rows(
    state: SessionState,
    gpu_indexes: Sequence[int],
    processes: Sequence[Process] | None,
    width: int,
    is_detailed: bool = False,
) -> list[Row]:
    """Return rows with the names of the GPUs that have the numbers `gpu_indexes`, and the processes
    on these GPUs. Equal GPUs share a row, and so do the servers of Workbench and the other
    programs; if `is_detailed` is true, each GPU and each process has its own. `processes` is None
    if the processes are unknown."""
    rows = _gpu_name_rows(state, gpu_indexes, is_detailed)
    if processes is None:
        return [
            *rows,
            *paragraph_rows("! the processes on these GPUs are not known", width, "warn"),
        ]
    where: dict[tuple[int, str, bool], list[int]] = {}
    for index, pid, what, ours in processes:
        if index in gpu_indexes:
            where.setdefault((pid, what, ours), []).append(index)
    for ours in (True, False):
        same = {key: on for key, on in where.items() if key[2] is ours}
        one, several, role = OF_WHOM[ours]
        if is_detailed or len(same) == 1:
            for (pid, what, _), on in same.items():
                if len(gpu_indexes) > 1:
                    what += f" on {gpus_text(on)}"
                text = f"      {pid} {what}: {one}"
                rows += paragraph_rows(text, width, role, "        ")
        elif same:
            programs = [(pid, what) for pid, what, _ in same]
            rows.append(((_fitting_processes_text(programs, several, width), role),))
    if not all(ours for _, _, ours in where):
        rows += paragraph_rows(
            "! Other programs use these GPUs: the change affects them too.", width, "warn", "  "
        )
    return rows


def has_details_beyond_summary(
    gpu_indexes: Sequence[int], processes: Sequence[Process] | None
) -> bool:
    """Return whether the detailed rows of `affected_gpu_rows` show more than the short ones. They
    do if there are several GPUs, several servers of Workbench, or several other programs."""
    concerned = {(pid, ours) for index, pid, _, ours in processes or () if index in gpu_indexes}
    of_each_kind = Counter(ours for _, ours in concerned)
    return max(len(gpu_indexes), *of_each_kind.values(), 0) > 1


def _gpu_name_rows(state: SessionState, gpu_indexes: Sequence[int], is_detailed: bool) -> list[Row]:
    """Return rows with the names of GPUs: one row for GPUs with the same name, or, if
    `is_detailed`, one for each with its UUID."""
    infos = {info.index: info for info in state.gpu_infos}
    alike: dict[tuple[str, str], list[int]] = {}
    for index in gpu_indexes:
        name, uuid = NA, ""
        if index == HOST_INDEX:
            name = "CPUs of the host"
        elif index in infos:
            name, uuid = short_gpu_name(infos[index].name), infos[index].uuid
        if not is_detailed and len(gpu_indexes) > 1:
            uuid = ""
        alike.setdefault((name, uuid), []).append(index)
    rows: list[Row] = []
    for (name, uuid), same in alike.items():
        place = gpus_text(same)
        if len(same) > 1:
            name = f"{len(same)} x {name}"
        title = pad_text(place, max(6, len(place) + 2))
        rows.append(((title, "title"), (name, "strong"), (f"  {uuid}", "dim")))
    return rows


def _fitting_processes_text(
    processes: Sequence[tuple[int, str]], origin_text: str, width: int
) -> str:
    """Return one line with as many of the processes, pairs (pid, name), as fit into `width` cells,
    and who started them. If not even one fits, return only their number."""
    most = len(processes)
    for shown in range(most, 0, -1):
        names = ", ".join(f"{pid} {what}" for pid, what in processes[:shown])
        more = enclose_nonempty_text(", ", most - shown, " more")
        text = f"      {names}{more}: {origin_text}"
        if len(text) <= width:
            return text
    return cut_text(f"      {count_of(most, 'process', 'processes')}: {origin_text}", width)


def setting_change_rows(planned: Sequence[SettingOutcome], width: int) -> list[Row]:
    """Return a table of the planned changes of GPU settings: GPU, setting, present value, requested
    value, and the source of the present value. GPUs with the same change share a row. The present
    value is not always the one that a revert restores, which is "before" on the form."""
    alike: dict[tuple[str, str, str, str], list[int]] = {}
    for o in planned:
        word = setting_label(o.command.setting)
        now = setting_value_text(o.command.setting, o.before)
        wanted = setting_value_text(o.command.setting, o.command.value)
        source = VALUE_SOURCES.get(o.before_known, o.before_known)
        alike.setdefault((word, now, wanted, source), []).append(o.command.gpu_index)
    cells = (9, 17, 15, 15) if width >= 90 else (8, 17, 13, 13)
    heads = zip(("", "setting", "now", "requested"), cells, strict=True)
    rows: list[Row] = [(("".join(pad_text(text, size) for text, size in heads), "head"),)]
    for (word, now, wanted, source), indexes in alike.items():
        texts = (gpus_text(indexes), word, now, wanted)
        shown = zip(texts, cells, ("title", "text", "text", "strong"), strict=True)
        row = [(pad_text_with_gap(text, size), role) for text, size, role in shown]
        rows.append((*row, (source, "dim")))
    return rows


def setting_note_rows(planned: Sequence[SettingOutcome], width: int) -> list[Row]:
    """Return the notes about the planned commands as rows, each different note once. A note about a
    missing permission is left out, because `setting_command_rows` shows it."""
    notes: list[str] = []
    rights: list[str] = []  # listed below the commands
    for o in planned:
        notes += split_at_semicolons(f"{o.command.note}; {o.message}")
        rights += split_at_semicolons(o.command.right or "")
    rows: list[Row] = []
    for note in dict.fromkeys(notes):
        if note not in rights:
            rows += rows_beside_label("! ", "warn", paragraph_rows(note, width - 2))
    return rows


def split_at_semicolons(text: str) -> list[str]:
    return list(filter(None, map(str.strip, text.split("; "))))


def load_check_finding_rows(findings: Sequence[str], width: int) -> list[Row]:
    """Return rows with the findings of a check under load about each GPU setting, the settings that
    are not in force first. GPUs with the same finding share a paragraph."""
    alike: dict[str, list[int]] = {}
    for finding in findings:
        place, _, text = finding.partition(": ")
        number = place.removeprefix("GPU")
        if text and place == "host":
            alike.setdefault(text, []).append(HOST_INDEX)
        elif text and number.isdecimal():
            alike.setdefault(text, []).append(int(number))
        else:
            alike.setdefault(finding, [])
    rows: list[Row] = []
    for text, indexes in sorted(
        alike.items(), key=lambda one: _SEVERE.index(_finding_sign_and_role(one[0])[1])
    ):
        first, *more = split_at_semicolons(text) or [""]
        sign, role = _finding_sign_and_role(first)
        if indexes:
            first = f"{gpus_text(indexes)}: {first}"
        rows += paragraph_rows(f"{sign} {first}", width, role, "  ")
        rows += [*stack_paragraphs((f"  {line}" for line in more), width, "text", "  "), ()]
    if not rows:
        text = "The load gave no evidence about the settings."
        rows = [*paragraph_rows(text, width, "dim"), ()]
    where = (
        "The GPU's row on the main screen shows this until the settings change, and every "
        "result records it."
    )
    return [*rows, *paragraph_rows(where, width, "dim")]


def _finding_sign_and_role(finding: str) -> Run:
    if "no effect" in finding:
        return G.alert, "warnb"
    if "capped by" in finding:
        return G.alert, "warn"
    if "is in force" in finding or finding.endswith(" is on"):
        return "ok", "good"
    return "!", "text"


_SEVERE = ("warnb", "warn", "text", "good")  # settings that are not in force come first


def setting_command_rows(
    commands: Sequence[SettingCommand], width: int, has_sudo_password: bool = False
) -> list[Row]:
    """Return rows with the commands, followed by a row for each permission that the user lacks. If
    `has_sudo_password` is true, these rows are warnings, because sudo with the password may permit
    the commands. Otherwise they are errors."""
    rows: list[Row] = []
    for c in commands:
        lines = paragraph_rows(f"$ {c.shell_line}", width - 6, "text", "    ")
        rows += rows_beside_label(pad_text(gpu_label(c.gpu_index), 6), "title", lines)
    sign, role = "x", "bad"
    if has_sudo_password:  # sudo may give the rights that the user lacks
        sign, role = "!", "warn"
    rights = dict.fromkeys(c.right for c in commands if c.right)
    return [*rows, *stack_paragraphs((f"{sign} {right}" for right in rights), width, role, "  ")]


class ConfirmSettings(TextThenChoices[dict[str, str]]):
    """The question before commands change GPU settings. It closes with {"password": the typed sudo
    password}, with {} if it asked for no password, or with None if the user cancels.

    With `make_detailed_rows`, the key ctrl+o shows that text in the place of `make_rows`, and again
    back. The box keeps no copy of the password: it empties the field on closing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
        Binding("ctrl+o", "detail", show=False, priority=True),
    ]
    AUTO_FOCUS = "Entry, Choices"
    agreement = "yes"

    def __init__(
        self,
        title: str,
        make_rows: RowMaker,
        *,
        yes_text: str,
        default_no: bool = False,
        asks_password: bool = False,
        make_detailed_rows: RowMaker | None = None,
    ) -> None:
        keys = "enter choose   esc cancel"
        if make_detailed_rows is not None:
            keys = "enter choose   ctrl+o details   esc cancel"
        super().__init__(title, keys, wide=True)
        self.make_rows, self.yes_text, self.make_detailed_rows = (
            make_rows,
            yes_text,
            make_detailed_rows,
        )
        self.chosen = "yes"
        if default_no and not asks_password:
            self.chosen = "no"
        self.field: Entry | None = None
        if asks_password:
            self.field = Entry(on_submit=lambda _: self._choose_or_scroll("yes"), secret=True)

    def make_widgets(self) -> Sequence[Widget]:
        items = [("yes", self.yes_text, "text"), ("no", "cancel", "text")]
        parts: list[Widget] = [self.make_text(lambda w: [*self.make_rows(w), ()], 4)]
        if self.field is not None:
            self.field.styles.width = 30
            hint = Text(lambda _: [(("  for sudo only, never kept", "dim"),)])
            parts.append(Horizontal(Label("sudo password", 18), self.field, hint, classes="field"))
        return (*parts, self.make_choices(items, self._close_with_choice, self.chosen))

    def action_detail(self) -> None:
        """Change between the text and its detailed form."""
        if self.make_detailed_rows is not None:
            self.make_rows, self.make_detailed_rows = self.make_detailed_rows, self.make_rows
            self.body.rebuild_rows()

    def _close_with_choice(self, choice_name: str) -> None:
        if choice_name != "yes":
            self.dismiss(None)
            return
        given = {}
        if self.field is not None:
            given["password"], self.field.value = self.field.value, ""
        self.dismiss(given)


def settings_report_rows(report: SettingsReport, width: int) -> list[Row]:
    """Return a table of the settings: the value before, requested and read back, and whether the
    setting is in force.

    Above the table is what was kept of a journal that was damaged. Below it are the settings that
    were reverted after a failed command, the state of the guard, and the file with the previous
    values.
    """
    rows: list[Row] = []
    if report.recovery is not None:
        rows += [*paragraph_rows(f"! {report.recovery.text}", width, "warn"), ()]
    if report.outcomes:
        heads = ("", "setting", "before", "requested", "reads", "in force")
        rows += [
            ((_report_table_line(width, *heads), "head"),),
            *_outcome_rows(report.outcomes, width),
        ]
    else:
        rows += paragraph_rows("Nothing to do: no setting was altered.", width, "dim")
    if report.rolled_back:
        rows += [(), (("Reverted, because a later command failed", "strong"),)]
        rows += _outcome_rows(report.rolled_back, width)
    if any(o.ok and o.in_force is InForce.NOT_CHECKED for o in report.outcomes):
        text = (
            "A clock lock cannot be read back: press V to put load on the GPU and see the effect."
        )
        rows += [(), *paragraph_rows(text, width)]
    if report.guard is not None:
        # the page counts it down
        rows += [(), *guard_rows(replace(report.guard, trial_left_s=None), None, width)]
    if report.journal:
        rows += paragraph_rows(
            f"the previous values are kept in {report.journal}", width, "dim", "  "
        )
    return rows


def _report_table_line(width: int, *cells: str) -> str:
    *first, last = cells
    sized = zip(first, _report_column_cells(width), strict=True)
    return "".join(pad_text_with_gap(text, size) for text, size in sized) + last


def _report_column_cells(width: int) -> tuple[int, ...]:
    return (9, 17, 16, 15, 15) if width >= 96 else (8, 17, 12, 12, 12)


def _outcome_rows(outcomes: Sequence[SettingOutcome], width: int) -> list[Row]:
    alike: dict[tuple[object, ...], list[SettingOutcome]] = {}
    for o in outcomes:
        shown = (
            o.ok,
            str(o.before),
            str(o.requested),
            str(o.read_back),
            o.in_force,
            _message_without_gpu(o),
        )
        alike.setdefault((o.command.setting, str(o.command.value), *shown), []).append(o)
    rows: list[Row] = []
    for same in alike.values():
        rows += _rows_of_equal_outcomes(same, width)
    return rows


def _message_without_gpu(outcome: SettingOutcome) -> str:
    """Return the setting's message without the UUID and the index of its GPU, so that several GPUs
    with the same message can share a row."""
    command = outcome.command
    without_uuid = outcome.message.replace(command.gpu_uuid, "")
    return without_uuid.replace(gpu_label(command.gpu_index), "")


def _rows_of_equal_outcomes(equal_outcomes: Sequence[SettingOutcome], width: int) -> list[Row]:
    o = equal_outcomes[0]
    word, asked = setting_label(o.command.setting), o.requested
    if asked is None:
        asked = o.command.value
    (outcome_text, role), message_role = FORCE[o.in_force], "dim"
    if not o.ok:
        outcome_text, role, message_role = "x failed", "bad", "warn"
    values = [
        setting_value_text(o.command.setting, value) for value in (o.before, asked, o.read_back)
    ]
    line = _report_table_line(
        width, gpus_text(one.command.gpu_index for one in equal_outcomes), word, *values, ""
    )
    rows: list[Row] = [((line, "text"), (outcome_text, role))]
    if len(values[0]) >= _report_column_cells(width)[2]:
        rows += paragraph_rows(f"      before: {values[0]}", width, "text", "      ")
    lines = (f"      {line}" for line in split_at_semicolons(o.message))
    return [*rows, *stack_paragraphs(lines, width, message_role, "        ")]
