"""A one-line input whose keys are answered at once and in order, without a blinking cursor."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.widgets import Input

from workbench.model.untrusted_text import clean


class Entry(Input):
    """`on_submit(text)` runs in line with the key, so that what is typed next already meets what it opened."""

    DEFAULT_CSS = """
    Entry { border: none; height: 1; padding: 0 0; background: #262626; color: $wb-text; width: 1fr; }
    Entry:focus { border: none; background: $wb-field; }
    Entry > .input--cursor { background: $wb-text; color: $wb-ground; text-style: none; }
    Entry > .input--placeholder { color: $wb-dim; }
    """

    change: Callable[[str], None] | None = None  # the first value is set before __init__ is done

    def __init__(
        self,
        value: str = "",
        *,
        placeholder: str = "",
        id: str | None = None,
        on_submit: Callable[[str], None] | None = None,
        on_change: Callable[[str], None] | None = None,
        select: bool = False,
        secret: bool = False,
    ) -> None:
        """`select`: what stands there is replaced by the first key, as in a form with suggested values; `secret`: dots
        are shown instead."""
        super().__init__(value, placeholder=placeholder, id=id, compact=True, select_on_focus=False, password=secret)
        self.cursor_blink = False
        self.submit, self.change, self.select = on_submit, on_change, select

    def on_mount(self) -> None:
        if self.select:  # now, not at the focus event, which comes after keys that were typed meanwhile
            self.action_select_all()

    def take_key(self, event: events.Key) -> bool:
        """Insert a printable key; False when it is not one."""
        if not event.is_printable or event.character is None:
            return False
        self.replace(event.character, *self.selection) if not self.selection.is_empty else (
            self.insert_text_at_cursor(event.character)
        )
        return True

    def validate_value(self, value: str) -> str:
        """What is pasted may hold anything, and so may a value that a preset gave."""
        return clean(value, max(len(value), 1))

    def watch_value(self, value: str) -> None:
        # In line with the key, not by message: enter right after the last letter must see the narrowed list.
        if self.change is not None and self.is_mounted:
            self.change(value)

    async def action_submit(self) -> None:
        if self.submit is not None:
            self.submit(self.value)
        else:
            await super().action_submit()
