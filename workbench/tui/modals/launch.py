"""The page before the start of a server, and rows about commands, findings, changes and other
servers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import filterfalse
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from workbench.model.counts import count_of
from workbench.model.findings import (
    Finding,
    Level,
    PlanChange,
    by_severity,
    option_texts_of_changes,
)
from workbench.model.plan import Command, PlanDifference
from workbench.model.server_run import ServerStatus
from workbench.session.state import PlanView
from workbench.tui.cells import Row, RowMaker, paragraph_rows, rows_beside_label, stack_paragraphs
from workbench.tui.formats import flag_value_text
from workbench.tui.glyphs import LEVELS, G
from workbench.tui.modals.base import Modal, TextBody

if TYPE_CHECKING:
    from workbench.model.measurement_owner import MeasurementOwner
    from workbench.server.external_servers import FoundServer


def finding_rows(findings: Sequence[Finding], width: int) -> list[Row]:
    """Return rows with the findings, which are problems that Workbench has found in the plan, and
    their fixes. The worst finding is first."""
    rows: list[Row] = []
    for f in by_severity(findings):
        sign, role = LEVELS[f.level]
        text = f.text
        if f.flag and f.flag not in text:
            text = f"{f.flag}: {text}"
        rows += paragraph_rows(f"{sign} {text}", width, role, "  ")
        fix = f.fix or ""
        if f.changes:
            fix += f"  [{option_texts_of_changes(f.changes)}]"
        if fix:
            rows += paragraph_rows(f"  fix: {fix}", width, "dim", "       ")
        if f.expected_gain:
            rows += paragraph_rows(f"  gain: {f.expected_gain}", width, "dim", "        ")
    return rows


def command_rows(command: Command, width: int) -> list[Row]:
    """Return rows with the working directory, the environment variables, the command with one flag
    per row, and the files that the command needs."""
    rows: list[Row] = []
    if command.workdir:
        rows.append(((f"cd {shlex.quote(command.workdir)}", "dim"),))
    for name, value in command.env.items():
        rows += paragraph_rows(f"{name}={shlex.quote(value)}", width, "dim", "  ")
    parts = _flag_and_value_words(command.argv)
    parts[:-1] = [f"{part} \\" for part in parts[:-1]]
    lead, role = "$ ", "strong"
    for part in parts:
        rows += paragraph_rows(f"{lead}{part}", width, role, "    ")
        lead, role = "  ", "text"
    for name, text in command.files.items():
        rows += [(), ((f"file {name}:", "dim"),)]
        rows += [((f"  {line}", "text"),) for line in text.splitlines()]
    return rows


def _flag_and_value_words(argv: Sequence[str]) -> list[str]:
    """Return the words of a command, quoted for a shell: the program, then each flag with its
    value."""
    parts: list[str] = []
    for word in argv:
        if word.startswith("-") or not parts:
            parts.append(shlex.quote(word))
        else:
            parts[-1] += f" {shlex.quote(word)}"
    return parts


def external_server_rows(server: FoundServer, width: int) -> list[Row]:
    """Return rows about a server that Workbench did not start: its process, address and models, and
    how the user can benchmark or follow it."""
    about = {
        "process": f"{server.pid}, of user id {server.uid}",
        "address": server.url,
        "unit": "",
        "models": ", ".join(server.models) or server.note,
        "output": server.output or "in the terminal that started it: not shown here",
        "measure": server.bench_command,
        "follow": server.adopt_command,
    }
    if server.unit:
        about["unit"] = server.unit_text
    rows: list[Row] = []
    for name, text in about.items():
        if text:
            rows.append(((f"{name:<9}", "dim"), (text, "text")))
    return [*rows, (), (("Command", "strong"),), *command_rows(Command(server.argv), width)]


def other_measurement_warning_rows(owner: MeasurementOwner | None, width: int) -> list[Row]:
    """Return a warning that another Workbench is measuring on this host. `owner` describes
    that Workbench. If `owner` is None, nobody else is measuring, and the result is []."""
    if owner is None:
        return []
    try:
        who = f": {owner}"
    except Exception:  # a text about somebody else must not stop a revert
        who = ""
    text = f"{G.alert} This host is being measured{who}. A change here disturbs that measurement."
    return [*paragraph_rows(text, width, "warnb", "  "), ()]


def plan_change_rows(changes: Sequence[PlanDifference], width: int) -> list[Row]:
    rows: list[Row] = []
    for c in changes:
        name = c.name
        if c.kind == "env":
            name = f"${name}"
        a, b = flag_value_text(c.a), flag_value_text(c.b)
        rows += paragraph_rows(f"  {name}: {a} {G.becomes} {b}", width, "warn", "    ")
    return rows


def _is_error_or_warning(finding: Finding) -> bool:
    return finding.level in (Level.ERROR, Level.WARN)


def _stopped_by_restart_text(server: ServerStatus) -> str:
    """Return what a restart stops, with its verb: "The running server a3f2 is"."""
    if not server.outlived:
        return f"The running server {server.run_id} is"
    if server.outlived == 1:
        return f"1 process that outlived the server {server.run_id} is"
    return f"{server.outlived} processes that outlived the server {server.run_id} are"


class ConfirmStart(Modal[bool]):
    """The page before the start of a server. The enter key starts the server, but it has no effect
    if the plan has an error, or if a start on the host would be refused. The page closes with True
    if the user agrees, and with False if the user chose the change that the reason proposes."""

    def __init__(
        self,
        plan: PlanView,
        server: ServerStatus | None,
        changes: Sequence[PlanDifference],
        make_warning_rows: RowMaker = lambda width: [],
        *,
        next_step_text: str = "",
        answers_cost_text: str = "",
    ) -> None:
        """`server` is the one that the start replaces, None if the start stops nothing. `changes`
        are those of the plan against it. `make_warning_rows` gets the width in cells, and returns
        warnings
        about measurements that the start would disturb. `next_step_text` says what follows the
        start; "" if nothing does. `answers_cost_text` says what comparing the answers adds; "" if
        they are not compared."""
        self.rejected = plan.command is None or any(f.level is Level.ERROR for f in plan.findings)
        self.next_step_text, self.answers_cost_text = next_step_text, answers_cost_text
        self.with_answers = bool(answers_cost_text)
        self.problem: Finding | None = None  # why a start on the host would be refused
        self.warnings: Sequence[Finding] = ()  # about a start on the host as it is now
        self.verb, title = "start", f"Start {plan.plan.engine}"
        if next_step_text:
            self.verb, title = "run", "Again"
        elif server is not None:
            self.verb, title = "restart", f"Restart {plan.plan.engine}"
        super().__init__(title)
        self.keys = self._key_hints()
        self.plan, self.server, self.changes, self.make_warning_rows = (
            plan,
            server,
            changes,
            make_warning_rows,
        )
        self.add_class("-wide")

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,s", "accept", show=False),
        Binding("f", "fix", show=False),
        Binding("y", "copy", show=False),
        Binding("a", "answers", show=False),
    ]

    def _key_hints(self) -> str:
        if self.rejected:
            keys = "esc back to the plan"
            for change in self._proposed_changes[:1]:
                keys += f"   f {change.name}={change.value}"
            return keys
        keys = f"enter {self.verb}   esc cancel   y copy"
        if self.with_answers:
            return f"{keys}   a leave out answers"
        if self.answers_cost_text:
            return f"{keys}   a compare answers"
        return keys

    @property
    def _proposed_changes(self) -> Sequence[PlanChange]:
        """The changes of the plan that the reason against a start proposes."""
        if self.problem is None:
            return ()
        return self.problem.changes

    def make_widgets(self) -> Sequence[Widget]:
        return (TextBody(self._plan_rows),)

    def show_problem(self, problem: Finding | None) -> None:
        """Show why a start on the host would be refused, and refuse it. Do nothing for None, which
        means that nothing is known to prevent the start."""
        if problem is None or not self.is_current:
            return
        self.problem, self.rejected = problem, True
        self._redraw()

    def show_warnings(self, warnings: Sequence[Finding]) -> None:
        """Show warnings about a start on the host as it is now. The plan can be started all the
        same."""
        if warnings and self.is_current:
            self.warnings = warnings
            self._redraw()

    def _redraw(self) -> None:
        """Show the key hints and the text again."""
        self.keys = self._key_hints()
        self.show_key_hints(self.keys)
        for body in self.query(TextBody):
            body.rebuild_rows()

    def _plan_rows(self, width: int) -> list[Row]:
        plan = self.plan
        rows = [*self.make_warning_rows(width), *self._first_step_or_refusal_rows(width)]
        rows.append((("model   ", "dim"), (plan.plan.model, "text")))
        installed = plan.installed or plan.installed_problem
        facts = filter(None, (installed, f"checked against {plan.flag_source_text}"))
        rows.append((("engine  ", "dim"), ("   ".join(facts), "text")))
        # the estimate is shown once: as a finding if it is a warning or an error
        findings = list(plan.findings)
        if plan.memory:
            estimates = plan.memory_findings
            if not any(map(_is_error_or_warning, estimates)):
                rows += rows_beside_label("memory  ", "dim", paragraph_rows(plan.memory, width - 8))
                findings = [f for f in findings if f not in estimates]
        if self.server is not None and not self.server.outlived:
            count = count_of(len(self.changes), "change")
            rows += [(), ((f"{count} against the running server", "strong"),)]
            rows += plan_change_rows(self.changes, width)
        if self.problem is not None:  # it names the program that is missing already
            findings = [f for f in findings if f.code != "engine.missing"]
        findings += self.warnings
        serious = list(filter(_is_error_or_warning, findings))
        if serious:
            rows += [(), *finding_rows(serious, width)]
        if plan.start_command is not None:
            title = "Command"
            if plan.run_command:
                title += f", run by {plan.plan.run_as}"
            rows += [(), ((title, "strong"),), *command_rows(plan.start_command, width)]
        hints = list(filterfalse(_is_error_or_warning, findings))
        if hints:
            rows += [(), (("Hints", "strong"),), *finding_rows(hints, width)]
        return rows

    def _first_step_or_refusal_rows(self, width: int) -> list[Row]:
        """Return rows that say what the start does first, or why it is refused; [] for a start that
        stops nothing."""
        if self.problem is not None:
            rows = finding_rows([self.problem], width)
            if self.server is not None:
                rows += paragraph_rows("The server that runs goes on.", width)
            return rows
        if self.rejected:
            text = "x This plan cannot start until the errors below are fixed."
            return paragraph_rows(text, width, "bad")
        if self.next_step_text:
            texts = [self.next_step_text]
            if self.with_answers:
                texts.append(self.answers_cost_text)
            elif self.answers_cost_text:
                texts.append("The answers are not compared: the verdict says quality not measured.")
            return stack_paragraphs(texts, width)
        if self.server is None:
            return []
        return paragraph_rows(
            f"{_stopped_by_restart_text(self.server)} stopped first.", width, "warn"
        )

    def action_accept(self) -> None:
        if not self.rejected:
            self.dismiss(True)

    def action_fix(self) -> None:
        if self._proposed_changes:
            self.dismiss(False)

    def action_answers(self) -> None:
        if self.answers_cost_text:
            self.with_answers = not self.with_answers
            self._redraw()

    def action_copy(self) -> None:
        if self.plan.start_command is not None:
            self.copy_text(self.plan.start_command.shell_line)
