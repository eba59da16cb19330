"""One flag or environment variable: an input or a list of choices by its type; the session checks what was typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from workbench.model.errors import WorkbenchError
from workbench.model.flags import FlagKind, FlagRow
from workbench.model.secrets import is_secret_name
from workbench.tui.cells import Row, paragraph
from workbench.tui.formats import value_text
from workbench.tui.modals.base import Choices, Modal, TextBody
from workbench.tui.panes.launch import LEVELS, range_text
from workbench.tui.widgets.entry import Entry

UNSET = "\0unset"


class FlagEdit(Modal[bool]):
    """`set_value(text)` and `unset()` are the session's; an InputError stays in the box with what was expected."""

    def __init__(self, row: FlagRow, set_value: Callable[[str], None], unset: Callable[[], None]) -> None:
        listed = self.options(row)
        name = f"${row.name}" if row.is_env else row.name
        super().__init__(name, "enter set   ctrl+r remove from the plan   esc cancel")
        self.row, self.set_value, self.unset = row, set_value, unset
        self.problem, self.secret = "", False
        self.complaint = TextBody(
            lambda w: [(), *paragraph(self.problem, w, "bad")] if self.problem else [], focusable=False
        )
        current = value_text(row.value if row.value is not None else row.default)
        self.entry: Entry | None = None
        self.choices: Choices | None = None
        if listed:
            items = [(o, o + ("  (default)" if o == value_text(row.default) else ""), "text") for o in listed]
            if row.value is not None:
                items.append((UNSET, "remove from the plan", "dim"))
            self.choices = Choices(items, self._take, current, reserve=8)
        else:
            # A secret's value is not known here: what is typed replaces it, and nothing typed keeps it.
            self.secret = is_secret_name(row.name)
            value = "" if row.value is None or self.secret else value_text(row.value)
            hint = "set; type a new value" if self.secret and row.value else f"default {value_text(row.default)}"
            self.entry = Entry(value, placeholder=hint, on_submit=self._take, secret=self.secret)

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+r", "remove", show=False, priority=True)]

    @staticmethod
    def options(row: FlagRow) -> tuple[str, ...]:
        spec = row.spec
        if spec is None or spec.repeatable:
            return ()
        if spec.kind is FlagKind.BOOL:
            return ("on", "off")
        return spec.choices

    def content(self) -> Sequence[Widget]:
        field: Widget | None = self.entry or self.choices
        assert field is not None
        return (TextBody(self._about, focusable=False, reserve=5), field, self.complaint)

    def on_mount(self) -> None:
        if self.entry is not None:
            self.entry.action_select_all()

    def _about(self, width: int) -> list[Row]:
        row, spec = self.row, self.row.spec
        rows: list[Row] = []
        if spec is not None:
            bounds = range_text(spec.minimum, spec.maximum)
            kind = " ".join(filter(None, (str(spec.kind), bounds)))
            facts = [kind, f"default {value_text(spec.default)}", *(["repeatable"] if spec.repeatable else [])]
            facts += [f"also {', '.join(spec.aliases)}"] if spec.aliases else []
            facts += [f"turned off by {spec.negation}"] if spec.negation else []
            facts += ["1k = 1000, 1K = 1024"] if spec.human_readable_int else []
            facts += ["deprecated"] if spec.deprecated else []
            rows += paragraph("   ".join(facts), width, "dim")
            rows += paragraph(" ".join(spec.help.split()), width, "text")
            if spec.json_fields:
                rows += paragraph(f"JSON fields: {', '.join(spec.json_fields)}", width, "dim")
        elif row.is_env:
            rows += paragraph("environment variable of the server process", width, "dim")
        else:
            rows += paragraph("not in this engine version's flag list: it is passed as it is", width, "warn")
        if row.finding:
            sign, role = LEVELS.get(row.level or "info", ("i", "dim"))
            rows += paragraph(f"{sign} {row.finding}", width, role)
        return [*rows, ()]

    def _take(self, text: str) -> None:
        if text == UNSET:
            self.action_remove()
            return
        if self.secret and not text:
            self.dismiss(False)
            return
        try:
            self.set_value(text.strip())
        except WorkbenchError as error:
            self.problem = f"x {error.message}" + (f"  next: {error.next_step}" if error.next_step else "")
            self.complaint.again()
        else:
            self.dismiss(True)

    def action_remove(self) -> None:
        self.unset()
        self.dismiss(True)
