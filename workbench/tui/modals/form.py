"""Forms: labelled inputs and choices, with what is known of each value beside it, and details that fold away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from workbench.model.errors import WorkbenchError
from workbench.tui.cells import Painted, Row, pad, paragraph
from workbench.tui.modals.base import Modal, TextBody
from workbench.tui.widgets.entry import Entry

Values = dict[str, str]
Submit = Callable[[Values], Awaitable[None]]
LABEL_CELLS = 24
ENTRY_CELLS = 22


@dataclass(frozen=True, slots=True)
class Field:
    """`options`: one of these, changed with left and right; `detail`: folded away at first; `wide`: the input takes
    the rest of the row; `secret`: dots instead of letters."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    options: tuple[str, ...] = ()
    detail: bool = False
    wide: bool = False
    secret: bool = False


def filled(fields: Sequence[Field], last: Mapping[str, str]) -> tuple[Field, ...]:
    """The fields with what stood in them last; an option that is no longer one stays as it is suggested."""
    return tuple(
        replace(f, value=last[f.name]) if f.name in last and (not f.options or last[f.name] in f.options) else f
        for f in fields
    )


class Cycle(Painted, can_focus=True):
    """One of several words: left, right and space change it, a letter goes to the next word that begins so."""

    GROUND = "box"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,space", "change(1)", show=False),
        Binding("left", "change(-1)", show=False),
    ]

    def __init__(
        self, options: Sequence[str], value: str, on_change: Callable[[str], None], on_submit: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.options = list(options)
        self.value = value if value in self.options else self.options[0]
        self.on_change, self.on_submit = on_change, on_submit

    def action_change(self, by: int) -> None:
        self.set_value(self.options[(self.options.index(self.value) + by) % len(self.options)])

    def set_value(self, value: str) -> None:
        if value != self.value:
            self.value = value
            self.repaint()
            self.on_change(value)

    def take_key(self, event: events.Key) -> bool:
        """enter and letters; False for all other keys."""
        if event.key == "enter":
            self.on_submit(self.value)
            return True
        if not event.is_printable or not event.character or event.character == " ":
            return False
        at = self.options.index(self.value) + 1
        turned = [*self.options[at:], *self.options[:at]]
        found = next((o for o in turned if o.lower().startswith(event.character.lower())), None)
        if found is not None:
            self.set_value(found)
        return True

    def rows(self, width: int, height: int) -> Sequence[Row]:
        role = "select" if self.has_focus else "rest"
        return [((pad(f"< {self.value} >", width), role),)]

    def watch_has_focus(self, value: bool) -> None:
        super().watch_has_focus(value)
        self.repaint()


class _Hint(TextBody):
    def __init__(self, form: Form, field: Field) -> None:
        super().__init__(lambda _: [((f"  {form.hint_of(field)}", form.hint_role(field)),)], focusable=False)


class Form(Modal[Values]):
    """Labelled fields. enter accepts all of them; `check` may refuse with a text, which then stands in the box.

    `hints` gives texts beside the fields from what stands in them now; `tail` rows below the fields. `submit` does what
    was asked for while the form stands, with `doing` in its border; its error is what is wrong. Meanwhile all keys but
    esc are dropped.
    """

    def __init__(
        self,
        title: str,
        fields: Sequence[Field],
        *,
        intro: Callable[[int], list[Row]] | None = None,
        check: Callable[[Values], str | None] | None = None,
        hints: Callable[[Values], Mapping[str, str]] | None = None,
        tail: Callable[[Values, int], list[Row]] | None = None,
        accept: str = "accept",
        heading: str = "",
        label_cells: int = LABEL_CELLS,
        entry_cells: int = ENTRY_CELLS,
        wide: bool = False,
        keys: str = "",
        submit: Submit | None = None,
        doing: str = "",
    ) -> None:
        folded = any(f.detail for f in fields)
        more = f"{'   ctrl+o details' if folded else ''}{'   ' + keys if keys else ''}"
        super().__init__(title, f"enter {accept}   tab next field{more}   esc cancel")
        self.fields, self.intro, self.check, self.hints, self.heading = fields, intro, check, hints, heading
        self.label_cells, self.entry_cells = label_cells, entry_cells
        self.set_class(wide, "-wide")
        self.submit, self.doing = submit, doing
        self.problem = ""
        self.known: Mapping[str, str] = {}
        self.inputs: dict[str, Entry | Cycle] = {f.name: self._input(f) for f in fields}
        self.complaint = TextBody(
            lambda w: paragraph(f"x {self.problem}", w, "bad") if self.problem else [], focusable=False
        )
        # What is wrong is said once: by the tail while it is typed, as a complaint when it was to be accepted.
        self.tail = TextBody(lambda w: [] if self.problem else tail(self.values, w), focusable=False) if tail else None
        self.lines: list[Horizontal] = []
        self._built = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
        Binding("ctrl+o", "unfold", show=False, priority=True),
    ]
    AUTO_FOCUS = "Entry, Cycle"

    def _input(self, field: Field) -> Entry | Cycle:
        if field.options:
            return Cycle(field.options, field.value, lambda _: self.changed(field.name), self._accept)
        return Entry(
            field.value,
            on_submit=self._accept,
            select=not field.secret,
            secret=field.secret,
            on_change=lambda _: self.changed(field.name),
        )

    @property
    def values(self) -> Values:
        return {name: one.value.strip() for name, one in self.inputs.items()}

    def put(self, name: str, value: str) -> None:
        """Another value in a field, as if it had been typed."""
        one = self.inputs[name]
        if isinstance(one, Cycle):
            one.set_value(value)
        else:
            one.value = value

    def content(self) -> Sequence[Widget]:
        parts: list[Widget] = []
        if self.intro is not None:
            parts.append(TextBody(self.intro, focusable=False, reserve=len(self.fields) + 2))
        if self.heading:
            parts.append(TextBody(lambda _: [((self.heading, "head"),)], focusable=False))
        self._look()
        for f in self.fields:
            line = self._line(f)
            line.display = not f.detail
            self.lines.append(line)
            parts.append(line)
        self._built = True
        return (*parts, *([self.tail] if self.tail else []), self.complaint)

    def _line(self, field: Field) -> Horizontal:
        label = TextBody(lambda _: [((field.label, "dim"),)], focusable=False)
        label.styles.width = self.label_cells
        one: Widget = self.inputs[field.name]
        hinted = bool(field.hint or self.hints) and not field.wide
        if hinted:
            one.styles.width = self.entry_cells
        return Horizontal(label, one, *([_Hint(self, field)] if hinted else []), classes="field")

    def hint_of(self, field: Field) -> str:
        return self.known.get(field.name, field.hint)

    def hint_role(self, field: Field) -> str:
        return "dim"

    def _look(self) -> None:
        self.known = self.hints(self.values) if self.hints else {}

    def changed(self, name: str) -> None:
        """A value is another one now: hints and tail may be too."""
        if not self._built:
            return
        self._look()
        for hint in self.query(_Hint):
            hint.repaint()
        self.complain("")
        if self.tail is not None:
            self.tail.again()

    def action_unfold(self) -> None:
        """Details in and out; the first one gets the focus."""
        folded = [(line, f) for line, f in zip(self.lines, self.fields, strict=True) if f.detail]
        if not folded:
            return
        shown = not folded[0][0].display
        for line, _ in folded:
            line.display = shown
        first = folded[0][1] if shown else self.fields[0]
        self.set_focus(self.inputs[first.name])

    def complain(self, problem: str) -> None:
        """Say what is wrong, and go to the field that the text begins with; "" takes it back."""
        if problem == self.problem:
            return
        self.problem = problem
        self.complaint.again()
        if self.tail is not None:
            self.tail.again()
        named = [f for exact in (True, False) for f in self.fields if _named(f, problem, exact)]
        faulty = named[0] if problem and named else None
        if faulty is not None:
            line = self.lines[self.fields.index(faulty)]
            if faulty.detail and not line.display:
                self.action_unfold()
            self.set_focus(self.inputs[faulty.name])

    def _accept(self, _: str = "") -> None:
        values = self.values
        problem = (self.check(values) if self.check else None) or ""
        if problem:
            self.complain(problem)
        elif self.submit is None:
            self.dismiss(values)
        elif not self.working:
            self.working = True
            self.say_keys(self.doing)
            self.run_worker(self._submitted(self.submit, values), exit_on_error=False)

    async def _submitted(self, submit: Submit, values: Values) -> None:
        """The form stands until it has been taken; what is wrong is put right where it was typed."""
        problem = ""
        try:
            await submit(values)
        except WorkbenchError as error:
            problem = "; ".join(filter(None, (error.message, error.next_step)))
        except Exception as error:
            from workbench.store.crash_files import defect_text

            problem = "; ".join(defect_text(error))
        self.working = False
        if not self.is_current:  # left with esc meanwhile
            return
        self.say_keys(self.keys)
        if problem:
            self.complain(problem)
        else:
            self.dismiss(values)


def _named(field: Field, problem: str, exact: bool) -> bool:
    """Return whether a text such as "power limit: expected watts" is about the field: by its name, or a part of it."""
    what = problem.partition(":")[0].lower()
    names = (field.name.lower(), field.label.lower())
    if exact:
        return what in names
    return what.startswith(f"{names[0]} ") or names[1].startswith(f"{what} ")
