"""The questions of an SSH login. Text of a server is never shown as Workbench's own: it stands in a
frame that names the server, and no line of it begins at the edge of the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable, Sequence

from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_text

MOST_LINES = 6  # of one question
MOST_CHARS = 160  # of one line
MARGIN = "  | "
_MOST_WIDTH = 100


@dataclass(frozen=True, slots=True)
class LoginQuestion:
    """A question for a passphrase, password or code. `wanted` says what to type, in words of
    Workbench, and `host` names the machine of the login. `said` has the server's own words, cleaned
    and cut, one line each. If `stays_here` is true, the answer is not sent to that machine."""

    wanted: str
    host: str
    said: tuple[str, ...] = ()
    stays_here: bool = False

    @property
    def heading(self) -> str:
        return f"The server {self.host} asks:"

    @property
    def prompt(self) -> str:
        """The last line of the question, after which the user types: what is wanted, and where the
        answer goes."""
        if self.stays_here:
            return f"{self.wanted}, to log in to {self.host}; it stays on this machine"
        return f"{self.wanted}, sent to {self.host}"

    def text(self, columns: int) -> str:
        """Return the whole question for a terminal with `columns` columns: the server's words in
        their frame, if it said any, then the prompt."""
        if not self.said:
            return f"{self.prompt}: "
        width = max(20, min(columns, _MOST_WIDTH) - len(MARGIN) - 1)
        rows = [f"{MARGIN}{row}" for line in self.said for row in _wrap_server_line(line, width)]
        return "\n".join([self.heading, *rows, f"{self.prompt}: "])


# Asks the user for a passphrase, password or code. Returns None if the user declines.
Ask = Callable[[LoginQuestion], Awaitable[str | None]]


def clean_server_lines(*texts: str) -> tuple[str, ...]:
    """Return the lines of `texts`, the words of a server, as a question shows them: without control
    characters, empty lines and runs of spaces, at most MOST_LINES, each cut after MOST_CHARS."""
    lines = [clean_text(line) for text in texts for line in text.splitlines()[: MOST_LINES + 1]]
    found = [" ".join(line.split()) for line in lines]
    return tuple(_truncate_server_line(line) for line in found if line)[:MOST_LINES]


def quote_server_line(text: str) -> str:
    """Return `text`, the words of a server, as one line in quotation marks for a message of
    Workbench; "no words" if it is blank."""
    words = clean_server_lines(" ".join(clean_text(text).split()))
    return f'"{words[0]}"' if words else "no words"


def _truncate_server_line(line: str) -> str:
    return line if len(line) <= MOST_CHARS else f"{line[:MOST_CHARS]}…"


def _wrap_server_line(line: str, width: int) -> Sequence[str]:
    """Return a line of the server as rows of at most `width` cells. A character that is not ASCII
    may be two cells wide."""
    return textwrap.wrap(line, width if line.isascii() else width // 2)
