"""The question of an SSH login for a passphrase, password or code."""

from __future__ import annotations

from collections.abc import Sequence

from textual.widget import Widget

from workbench.hosts.login_question import MARGIN, LoginQuestion
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.modals.base import Modal, Text
from workbench.tui.widgets.entry import Entry


class Login(Modal[str]):
    """The question of an SSH login. The outcome is the answer, which Workbench does not store; None
    if the user cancels."""

    def __init__(self, question: LoginQuestion) -> None:
        super().__init__(f"Log in to {question.host}", "enter answer   esc do not connect")
        self.question = question
        self.field = Entry(on_submit=self._submit_answer, secret=True)

    def make_widgets(self) -> Sequence[Widget]:
        return (Text(self._question_rows), self.field)

    def _question_rows(self, width: int) -> list[Row]:
        rows: list[Row] = []
        if self.question.said:
            rows += paragraph_rows(self.question.heading, width, "strong")
            for line in self.question.said:
                rows += [
                    ((MARGIN, "dim"), *row) for row in paragraph_rows(line, width - len(MARGIN))
                ]
        return [*rows, *paragraph_rows(self.question.prompt, width, "dim"), ()]

    def _submit_answer(self, text: str) -> None:
        self.field.value = ""
        self.dismiss(text)
