"""An input of one line. Its keys act at once and in order, and its cursor does not blink, which
saves traffic."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.widgets import Input

from workbench.model.untrusted_text import clean_text

LINE_END = "\N{SYMBOL FOR NEWLINE}"


def typed_character(event: events.Key) -> str:
    """Return the character that a printable key types; "" for any other key."""
    if not event.is_printable:
        return ""
    return str(event.character)


class Entry(Input):
    """Textual's Input, but it calls functions instead of posting messages. Therefore a page that
    `on_submit` opens exists before the next key is handled."""

    DEFAULT_CSS = """
    Entry { border: none; height: 1; padding: 0 0; background: $wb-bar; color: $wb-text; width: 1fr; }
    Entry:focus { border: none; background: $wb-field; }
    Entry > .input--cursor { background: $wb-text; color: $wb-ground; text-style: none; }
    Entry > .input--placeholder { color: $wb-dim; }
    """

    change: Callable[[str], None] | None = None  # the first value is set within __init__ of Input

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
        lines: bool = False,
    ) -> None:
        """`on_submit` is called on enter, and `on_change` after each edit. With `select`, the first
        typed key replaces the value, and with `secret`, the value is shown as dots. With `lines`, a
        pasted text keeps all its lines, joined by a visible sign; otherwise only its first line is
        pasted."""
        super().__init__(
            value,
            placeholder=placeholder,
            id=id,
            compact=True,
            select_on_focus=False,
            password=secret,
        )
        self.cursor_blink = False
        self.submit, self.change, self.select, self.lines = on_submit, on_change, select, lines

    def on_mount(self) -> None:
        if self.select:  # now: the focus event comes after the keys that are typed meanwhile
            self.action_select_all()

    def _on_paste(self, event: events.Paste) -> None:
        if self.lines and event.text:
            event.prevent_default()
            event.stop()
            self.replace(LINE_END.join(event.text.splitlines()), *self.selection)

    def try_handling_key(self, event: events.Key) -> bool:
        """Insert the character of a printable key, and return True. Return False for any other
        key."""
        character = typed_character(event)
        if not character:
            return False
        if self.selection.is_empty:
            self.insert_text_at_cursor(character)
        else:
            self.replace(character, *self.selection)
        return True

    def validate_value(self, value: str) -> str:
        """Return `value` without control sequences, which a pasted text or a preset may contain."""
        return clean_text(value, max(len(value), 1))

    def watch_value(self, value: str) -> None:
        # A call, not a message: enter right after the last letter must find the narrowed list.
        if self.change is not None and self.is_mounted:
            self.change(value)

    async def action_submit(self) -> None:
        if self.submit is not None:
            self.submit(self.value)
        else:
            await super().action_submit()
