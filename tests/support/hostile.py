"""Texts and numbers as a hostile host, server or file sends them, and the check that none of them
reaches the user."""

from __future__ import annotations

from hypothesis import strategies as st

from workbench.model.untrusted_text import UNSAFE

PIECES = (
    "\x1b]52;c;cHduZWQ=\x07",  # writes the clipboard
    "\x1b]0;owned\x1b\\",
    "\x9d0;owned\x9c",
    "\x1b[2J",
    "\x9b31m",
    "\x1bP1$r0m\x1b\\",
    "\x1bc",
    "\x07",
    "\x08\x08",
    "\x7f",
    "\r",
    "\n",
    "\nworkbench: forged line",
    "\x85",
    "\u2028",
    "\u202e",
    "\u2066",
    "\ud800",
    "\udcff",
    "\0",
    "[red]",
    "[/]",
    "<img src=x onerror=alert(1)>",
    "<script>",
    "](javascript:x)",
    "`*_|",
    "name",
    "=1+1",
    "x" * 400,
)
# One text with everything that must not arrive anywhere, for tests that cannot afford many.
EVIL = "evil\x1b]52;c;cHduZWQ=\x07\x9b31m\x1b[2J\u202e\ud800\nFORGED\x85\x07<script>[red]x"


# Numbers as a hostile host, driver, file or user sends them, and other data in place of a number.
ODD_NUMBERS: tuple[object, ...] = (
    1e308,
    -1e308,
    -1e300,
    float("inf"),
    float("-inf"),
    float("nan"),
    -1,
    10**400,
    -(10**400),
    2**31,
    2**63,
    2**64 - 1,
    0xFFFFFFFF * 1000,
    True,
    False,
    "12",
    "nan",
    "",
    [],
    [1],
    {},
)


def hostile_numbers() -> st.SearchStrategy[object]:
    """Return odd numbers and data of other types, among possible numbers."""
    return st.sampled_from(ODD_NUMBERS) | st.floats() | st.integers()


def hostile_texts() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)


def assert_safe(text: str) -> None:
    """Assert that `text` contains nothing that a terminal or a reader would obey. Its own line
    breaks are allowed."""
    found = UNSAFE.search(text)
    assert found is None, f"{found[0]!r} in {text[max(0, found.start() - 60) : found.end() + 60]!r}"
