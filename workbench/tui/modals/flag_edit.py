"""The editor of one flag or environment variable: an input, or a list of the allowed values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from workbench.engines.flag_values import format_flag_value
from workbench.model.errors import WorkbenchError
from workbench.model.flags import FlagKind, FlagRow, FlagSpec
from workbench.model.secrets import is_secret_name
from workbench.tui.cells import Row, paragraph_rows, stack_paragraphs
from workbench.tui.formats import flag_default_text, flag_value_text
from workbench.tui.modals.base import Choice, Choices, Modal, Text
from workbench.tui.panes.launch import NOT_FLAGS, flag_finding_text_and_role, range_text
from workbench.tui.widgets.entry import Entry

UNSET = "\0unset"


class FlagEdit(Modal[bool]):
    """The editor of one flag or environment variable. It calls `set_value` with the new text, or
    `unset` to remove the flag from the plan. An invalid value keeps the box open and shows the
    error. The box closes with True if the plan has changed.

    `notes` are remarks about the flag from the preset and from the text that accompanies the
    preset. An empty text removes a flag. While the user types, the box shows the result of
    `estimate`, which says how the typed value would change the use of memory.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+r", "remove", show=False, priority=True)]

    def __init__(
        self,
        row: FlagRow,
        set_value: Callable[[str], None],
        unset: Callable[[], None],
        *,
        notes: Sequence[str] = (),
        estimate: Callable[[str], str] | None = None,
    ) -> None:
        name = row.name
        if row.is_env:
            name = f"${name}"
        super().__init__(name, "enter set   ctrl+r remove from the plan   esc cancel")
        self.row, self.set_value, self.unset = row, set_value, unset
        self.notes, self.estimate = notes, estimate
        self.effect = Text(self._memory_effect_rows)
        self.secret, self.problem = False, ""
        self.complaint = Text(self._problem_rows)
        self.entry: Entry | None = None
        options = self.allowed_values(row)
        if options:
            self.field: Widget = self._make_choices(options)
        else:
            self.field = self._make_entry()

    def _problem_rows(self, width: int) -> list[Row]:
        if not self.problem:
            return []
        return [(), *paragraph_rows(self.problem, width, "bad")]

    @staticmethod
    def allowed_values(row: FlagRow) -> tuple[str, ...]:
        """Return the allowed values of a flag, from which the user chooses one; () if the user has
        to type the value."""
        spec = row.spec
        if spec is None or spec.repeatable:
            return ()
        if spec.kind is FlagKind.BOOL:
            return "on", "off"
        return spec.choices

    def _make_choices(self, options: Sequence[str]) -> Choices:
        row = self.row
        default = flag_default_text(row.default)
        items: list[Choice] = []
        for option in options:
            label = option
            if option == default:
                label += "  (default)"
            items.append((option, label, "text"))
        now = row.default
        if row.value is not None:
            items.append((UNSET, "remove from the plan", "dim"))
            now = row.value
        return Choices(
            items,
            self._submit_value,
            flag_value_text(now),
            reserved_rows=10,
            on_move=self.effect.rebuild_rows,
        )

    def _make_entry(self) -> Entry:
        row = self.row
        value, hint = format_flag_value(row.value), f"default {flag_default_text(row.default)}"
        # The value of a secret is not known here: a typed text replaces the value, an empty one
        # keeps it.
        self.secret = is_secret_name(row.name)
        if self.secret:
            value = ""
            if row.value:
                hint = "set; type a new value"
        self.entry = Entry(
            value, placeholder=hint, on_submit=self._submit_value, secret=self.secret, select=True
        )
        self.entry.change = lambda _: self.effect.rebuild_rows()
        return self.entry

    def make_widgets(self) -> Sequence[Widget]:
        return (
            Text(self._flag_help_rows, reserved_rows=9),
            self.field,
            self.effect,
            self.complaint,
        )

    @property
    def entered_value(self) -> str:
        """Return the value that the enter key would set; "" if it would remove the flag."""
        if self.entry is not None:
            return self.entry.value.strip()
        if not isinstance(self.field, Choices) or self.field.current_item is None:
            return ""
        chosen = str(self.field.current_item[0])
        if chosen == UNSET:
            return ""
        return chosen

    def _memory_effect_rows(self, width: int) -> list[Row]:
        """Return rows that say how the typed or chosen value would change the memory estimate, or
        why that value is invalid; [] for a row of the plan whose effect is never estimated."""
        if self.estimate is None:
            return []
        try:
            text, role = self.estimate(self.entered_value), "text"
        except WorkbenchError as error:
            text, role = error.message, "dim"
        if "does not fit" in text:
            role = "warn"
        return [(), *paragraph_rows(text, width, role)]

    def _flag_help_rows(self, width: int) -> list[Row]:
        row, spec = self.row, self.row.spec
        rows: list[Row] = []
        if spec is not None:
            rows += paragraph_rows("   ".join(_catalog_facts_of_flag(spec)), width, "dim")
            rows += paragraph_rows(spec.help, width)
            if spec.json_fields:
                rows += paragraph_rows(f"JSON fields: {', '.join(spec.json_fields)}", width, "dim")
        elif row.is_env:
            rows += paragraph_rows("environment variable of the server process", width, "dim")
        else:
            rows += paragraph_rows(
                "not in the flag list of this engine version: passed unchanged", width, "warn"
            )
        if row.finding:
            text, role = flag_finding_text_and_role(row)
            rows += paragraph_rows(text, width, role)
        return [*rows, *stack_paragraphs(self.notes, width, "text", "  "), ()]

    def _submit_value(self, text: str) -> None:
        may_be_empty = self.row.is_env or self.row.name.partition(".")[0] in NOT_FLAGS
        if text == UNSET:
            self.action_remove()
        elif text.strip() or (may_be_empty and not self.secret):
            self._change_plan_or_show_error(partial(self.set_value, text.strip()))
        elif self.secret or self.row.value is None:
            self.dismiss(False)
        else:
            self.action_remove()

    def action_remove(self) -> None:
        self._change_plan_or_show_error(self.unset)

    def _change_plan_or_show_error(self, change: Callable[[], None]) -> None:
        """Change the plan and close the box, or show why the plan cannot be changed."""
        try:
            change()
        except WorkbenchError as error:
            self.problem = f"x {error.message}"
            if error.next_step:
                self.problem += f"  next: {error.next_step}"
            self.complaint.rebuild_rows()
        else:
            self.dismiss(True)


def _catalog_facts_of_flag(spec: FlagSpec) -> Iterator[str]:
    """Yield texts with what the catalog says about a flag besides its help, such as its kind and
    its default."""
    if spec.area:
        yield spec.area
    yield f"{spec.kind} {range_text(spec.minimum, spec.maximum)}".rstrip()
    if spec.default is None and spec.default_note:
        yield f"default {spec.default_note}"
    else:
        yield f"default {flag_default_text(spec.default)}"
    if spec.repeatable:
        yield "repeatable"
    if spec.aliases:
        yield f"also {', '.join(spec.aliases)}"
    if spec.negation:
        yield f"turned off by {spec.negation}"
    if spec.human_readable_int:
        yield "1k = 1000, 1K = 1024"
    if spec.deprecated:
        yield "deprecated"
