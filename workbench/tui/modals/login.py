"""The question of an SSH login for a passphrase, password or code."""

from __future__ import annotations

from collections.abc import Sequence

from textual.widget import Widget

from workbench.tui.cells import paragraph
from workbench.tui.modals.base import Modal, Text
from workbench.tui.widgets.entry import Entry


class Login(Modal[str]):
    """The question of an SSH login. The outcome is the answer, which Workbench does not store; None
    if the user cancels."""

    def __init__(self, prompt: str) -> None:
        super().__init__("Log in", "enter answer   esc do not connect")
        self.prompt = prompt
        self.field = Entry(on_submit=self._answer, secret=True)

    def content(self) -> Sequence[Widget]:
        return (Text(lambda width: [*paragraph(self.prompt, width), ()]), self.field)

    def _answer(self, text: str) -> None:
        self.field.value = ""
        self.dismiss(text)
