"""Forms: labelled inputs and choices with hints beside them, and fields for details, which are
hidden at first."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from workbench.model.errors import InputError, WorkbenchError
from workbench.model.lazy_dataclass import dataclass
from workbench.store.crash_files import internal_error_message_and_details
from workbench.tui.cells import Painted, Row, RowMaker, pad_text, paragraph_rows
from workbench.tui.modals.base import Label, Modal, Text
from workbench.tui.widgets.entry import Entry, typed_character

Values = dict[str, str]  # field name -> text
Submit = Callable[[Values], Awaitable[None]]
LABEL_CELLS = 24
ENTRY_CELLS = 22
_MOST_DIGITS = 18  # of a whole number, so that no number is too large to be stored


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form. If `options` is not empty, the user chooses one of these values. A
    `detail` field is hidden until the user presses ctrl+o, the input of a `wide` field fills the
    rest of the row, and the text of a `secret` field is shown as dots."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    options: tuple[str, ...] = ()
    detail: bool = False
    wide: bool = False
    secret: bool = False
    lines: bool = False  # a pasted text may have several lines


def fill_fields_with_last_values(
    fields: Sequence[Field], last_values: Mapping[str, str]
) -> tuple[Field, ...]:
    """Return the fields with the values of `last_values`, which maps field names to texts. A value
    that is not among the options of its field is ignored."""
    filled = []
    for field in fields:
        value = last_values.get(field.name, field.value)
        if not field.options or value in field.options:
            field = replace(field, value=value)
        filled.append(field)
    return tuple(filled)


class ChoiceField(Painted, can_focus=True):
    """A field whose value is one of several words. The left, right and space keys change the word,
    and a letter selects the next word that begins with it.

    Textual's Select would need two more keys for each change, and would draw a list over the form.
    """

    GROUND = "box"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,space", "change(1)", show=False),
        Binding("left", "change(-1)", show=False),
    ]

    def __init__(
        self,
        options: Sequence[str],
        value: str,
        on_change: Callable[[str], None],
        on_submit: Callable[[str], None],
        on_unmatched_key: Callable[[events.Key], None] = lambda event: None,
    ) -> None:
        """`on_unmatched_key` is called with a printable key that begins no option."""
        super().__init__()
        self.options = list(options)
        self.value = self.options[0]
        if value in self.options:
            self.value = value
        self.on_change, self.on_submit, self.on_unmatched_key = (
            on_change,
            on_submit,
            on_unmatched_key,
        )

    def action_change(self, by: int) -> None:
        self.set_value(self.options[(self.options.index(self.value) + by) % len(self.options)])

    def set_value(self, value: str) -> None:
        if value != self.value:
            self.value = value
            self.repaint()
            self.on_change(value)

    def try_handling_key(self, event: events.Key) -> bool:
        if event.key == "enter":
            self.on_submit(self.value)
            return True
        letter = typed_character(event).lower()
        if letter in ("", " "):
            return False
        at = self.options.index(self.value) + 1
        turned = [*self.options[at:], *self.options[:at]]
        found = next((option for option in turned if option.lower().startswith(letter)), None)
        if found is not None:
            self.set_value(found)
        else:
            self.on_unmatched_key(event)
        return True

    def rows(self, width: int, height: int) -> Sequence[Row]:
        role = "rest"
        if self.has_focus:
            role = "select"
        return [((pad_text(f"< {self.value} >", width), role),)]

    def watch_has_focus(self, value: bool) -> None:
        super().watch_has_focus(value)
        self.repaint()


class _Hint(Text):
    def __init__(self, form: Form, field: Field) -> None:
        super().__init__(
            lambda _: [((f"  {form.current_hints.get(field.name, field.hint)}", form.HINT_ROLE),)]
        )


class Form(Modal[Values]):
    """A form that closes with the values of its fields, a dict of texts by field name. The enter
    key accepts all values.

    `check` raises InputError for invalid values, whose message the form shows while it stays open.
    `hints` returns the texts beside the fields, by field name, and `make_summary` returns rows
    below the fields. `submit` acts on the accepted values before the form closes. Meanwhile the
    border shows the text `doing`, and only the escape key has an effect. The form shows an error of
    `submit` and stays open.
    """

    HINT_ROLE: ClassVar[str] = "dim"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
        Binding("ctrl+o", "unfold", show=False, priority=True),
    ]
    AUTO_FOCUS = "Entry, ChoiceField"

    def __init__(
        self,
        title: str,
        fields: Sequence[Field],
        *,
        intro: RowMaker | None = None,
        check: Callable[[Values], object] | None = None,
        hints: Callable[[Values], Mapping[str, str]] | None = None,
        make_summary: Callable[[Values, int], list[Row]] | None = None,
        accept: str = "accept",
        heading: str = "",
        label_cells: int = LABEL_CELLS,
        entry_cells: int = ENTRY_CELLS,
        wide: bool = False,
        keys: str = "",
        submit: Submit | None = None,
        doing: str = "",
    ) -> None:
        shown = [f"enter {accept}", "tab next field", keys, "esc cancel"]
        if any(f.detail for f in fields):
            shown.insert(2, "ctrl+o details")
        super().__init__(title, "   ".join(filter(None, shown)), wide=wide)
        self.fields, self.intro, self.check, self.hints, self.heading = (
            fields,
            intro,
            check,
            hints,
            heading,
        )
        self.label_cells, self.entry_cells = label_cells, entry_cells
        self.submit, self.doing = submit, doing
        self.problem = ""
        self.current_hints: Mapping[str, str] = {}
        self.inputs: dict[str, Entry | ChoiceField] = {f.name: self._make_input(f) for f in fields}
        self.complaint = Text(self._problem_rows)
        self.make_summary = make_summary
        self.summary: Text | None = None
        if make_summary is not None:
            self.summary = Text(self._summary_rows)
        self.lines: dict[str, Horizontal] = {}

    def _problem_rows(self, width: int) -> list[Row]:
        if not self.problem:
            return []
        return paragraph_rows(f"x {self.problem}", width, "bad")

    def _summary_rows(self, width: int) -> list[Row]:
        """Return the rows below the fields, which describe the values. While a typed value is
        invalid, return the error instead; [] while the form shows a problem."""
        if self.problem or self.make_summary is None:
            return []
        try:
            return [(), *self.make_summary(self.values, width)]
        except InputError as error:
            return [(), *paragraph_rows(error.message, width, "dim")]

    def _make_input(self, field: Field) -> Entry | ChoiceField:
        if field.options:
            return ChoiceField(
                field.options,
                field.value,
                lambda _: self.update_after_field_change(field.name),
                self._check_and_accept_values,
                self.handle_unmatched_key,
            )
        return Entry(
            field.value,
            on_submit=self._check_and_accept_values,
            select=not field.secret,
            secret=field.secret,
            lines=field.lines,
            on_change=lambda _: self.update_after_field_change(field.name),
        )

    @property
    def values(self) -> Values:
        return {name: one.value.strip() for name, one in self.inputs.items()}

    def set_field(self, name: str, value: str) -> None:
        """Set the value of the field `name`, as if the user had typed it."""
        one = self.inputs[name]
        if isinstance(one, ChoiceField):
            one.set_value(value)
        else:
            one.value = value

    def make_widgets(self) -> Sequence[Widget]:
        self._update_hints()
        self.lines = {f.name: self._make_field_line(f) for f in self.fields}
        parts: list[Widget] = []
        if self.intro is not None:
            parts.append(Text(self.intro, reserved_rows=len(self.fields) + 2))
        if self.heading:
            parts.append(Text(lambda _: [((self.heading, "head"),)]))
        parts += self.lines.values()
        if self.summary is not None:
            parts.append(self.summary)
        return (*parts, self.complaint)

    def _make_field_line(self, field: Field) -> Horizontal:
        one: Widget = self.inputs[field.name]
        hints: list[Widget] = []
        if (field.hint or self.hints) and not field.wide:
            one.styles.width = self.entry_cells
            hints = [_Hint(self, field)]
        line = Horizontal(Label(field.label, self.label_cells), one, *hints, classes="field")
        line.display = not field.detail
        return line

    def _update_hints(self) -> None:
        if self.hints is not None:
            self.current_hints = self.hints(self.values)

    def update_after_field_change(self, field_name: str) -> None:
        """Update the hints and the rows below the fields, because the field `field_name` has a new
        value."""
        if not self.lines:  # the first values are set before the form is built
            return
        self._update_hints()
        for hint in self.query(_Hint):
            hint.repaint()
        self.show_problem("")
        if self.summary is not None:
            self.summary.rebuild_rows()

    def handle_unmatched_key(self, event: events.Key) -> None:
        """Act on a printable key that begins no option of the focused field. This class ignores
        it."""

    def action_unfold(self) -> None:
        """Show the detail fields and focus the first one, or hide them."""
        details = [f for f in self.fields if f.detail]
        if not details:
            return
        shown = not self.lines[details[0].name].display
        for field in details:
            self.lines[field.name].display = shown
        first = self.fields[0]
        if shown:
            first = details[0]
        self.set_focus(self.inputs[first.name])

    def show_problem(self, problem: str) -> None:
        """Show the error `problem`, and focus the field whose name is at its beginning. If
        `problem` is "", remove the error that is shown."""
        if problem == self.problem:
            return
        self.problem = problem
        self.complaint.rebuild_rows()
        if self.summary is not None:
            self.summary.rebuild_rows()
        faulty = _field_named_in_problem(problem, self.fields)
        if faulty is not None:
            if faulty.detail and not self.lines[faulty.name].display:
                self.action_unfold()
            self.set_focus(self.inputs[faulty.name])

    def _check_and_accept_values(self, _: str = "") -> None:
        values = self.values
        try:
            if self.check is not None:
                self.check(values)
        except InputError as error:
            self.show_problem(error.message)
            return
        if self.submit is None:
            self.dismiss(values)
        elif not self.is_busy:
            self.is_busy = True
            self.show_key_hints(self.doing)
            self.run_worker(self._submit_values_and_close(self.submit, values), exit_on_error=False)

    async def _submit_values_and_close(self, submit: Submit, values: Values) -> None:
        """Call `submit` with the accepted values. Close the form if `submit` succeeds, otherwise
        show its error in the form."""
        problem = ""
        try:
            await submit(values)
        except WorkbenchError as error:
            problem = "; ".join(filter(None, (error.message, error.next_step)))
        except Exception as error:
            problem = "; ".join(internal_error_message_and_details(error))
        self.is_busy = False
        if not self.is_current:  # the user has left with escape meanwhile
            return
        self.show_key_hints(self.keys)
        if problem:
            self.show_problem(problem)
        else:
            self.dismiss(values)


def _field_named_in_problem(problem: str, fields: Sequence[Field]) -> Field | None:
    """Return the field that the error message `problem` is about; None if there is none. The
    message, such as "power limit: expected watts", begins with the name or the label of the field.
    """
    subject = problem.partition(":")[0].lower()
    for field in fields:
        if subject in (field.name.lower(), field.label.lower()):
            return field
    for field in fields:
        if subject.startswith(f"{field.name.lower()} "):
            return field
        if field.label.lower().startswith(f"{subject} "):
            return field
    return None


# values of fields, for `check`
def parse_whole_number(values: Values, name: str, label: str, minimum: int = 1) -> int:
    """Return the number in the field `name`. If the text is not a whole number of at least
    `minimum`, raise InputError with `label` in the message."""
    text = values[name]
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < minimum:
        raise InputError(f"{label}: expected a whole number of at least {minimum}, got “{text}”")
    return int(text)


def parse_positive_number(values: Values, name: str, label: str, unit: str = "") -> float | None:
    """Return the number in the field `name`, whose text may end with `unit`; None for an empty
    field. If the text is not a number above 0, raise InputError with `label` in the message."""
    text = values.get(name, "").rstrip(f"{unit} ")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise InputError(f"{label}: expected a number above 0, got “{values[name]}”")
    return number


def parse_gpu_index(values: Values, gpu_count: int) -> int | None:
    """Return the number of the chosen GPU; None for all GPUs. Raise InputError if the text is not
    one of the numbers from 0 to `gpu_count` - 1."""
    text = values.get("gpu", "all").lower()
    if text in ("", "all"):
        return None
    if not text.isdecimal() or int(text) >= gpu_count:
        raise InputError(f"GPU: expected “all” or a number 0..{gpu_count - 1}, got {text}")
    return int(text)
