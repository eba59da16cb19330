"""The rows of a message and of its next step in little room."""

from __future__ import annotations

from workbench.model.findings import Level
from workbench.session.state import Notice
from workbench.tui.glyphs import G
from workbench.tui.widgets.bars import notice_rows

WIDTH = 32
LONG_STEP = "start the server again with a smaller context, then measure it"


def texts(notice: Notice, most: int) -> list[str]:
    rows = notice_rows(notice, WIDTH, most)
    return ["".join(text for text, _ in row).strip() for row in rows]


def test_the_mark_of_what_is_left_out_stands_where_it_is_left_out() -> None:
    notice = Notice(1, Level.ERROR, "the server ended", next_step=LONG_STEP)
    message, step = texts(notice, 2)
    assert message.endswith("the server ended")
    assert step.startswith("next: start the server") and step.endswith(G.more)


def test_a_long_message_keeps_a_row_for_its_next_step() -> None:
    notice = Notice(1, Level.ERROR, "word " * 40, next_step=LONG_STEP)
    *message, step = texts(notice, 4)
    assert len(message) == 3 and message[-1].endswith(G.more)
    assert step.startswith("next: start") and step.endswith(G.more)
