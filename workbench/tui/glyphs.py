"""The signs of the screen, which are single characters, in Unicode or ASCII. Each sign is
understandable without its colour."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Mapping

from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass

# Severity of a finding: its sign, and the role of its text.
LEVELS: Mapping[str | None, tuple[str, str]] = {
    Level.ERROR: ("x", "bad"),
    Level.WARN: ("!", "warn"),
    Level.HINT: ("i", "dim"),
    Level.INFO: ("i", "dim"),
}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """A set of signs. `levels` are the characters for a cell of a one-row graph, from the lowest
    bar to the highest; the last character means that the value is at the limit. With `braille`,
    the long graphs have two values in a cell, drawn with the dots of Braille patterns."""

    levels: str = "▁▂▃▄▅▆▇█"
    braille: bool = True
    on: str = "●"
    off: str = "○"
    alert: str = "▲"
    more: str = "…"
    bar_full: str = "▓"
    bar_empty: str = "░"
    rule: str = "│"
    arrow: str = ">"
    becomes: str = "→"  # between an old and a new value
    at_least: str = "≥"
    plus_minus: str = "±"
    dot: str = "·"
    line: str = "─"  # a limit across a graph
    pointer: str = "▲"  # at the cursor of the time axis


ASCII = Glyphs(
    levels="_.:-=+*#",
    braille=False,
    on="*",
    off="o",
    alert="!",
    more="~",
    bar_full="#",
    bar_empty=".",
    rule="|",
    becomes=">",
    at_least=">=",
    plus_minus="+-",
    dot="-",
    line="-",
    pointer="^",
)


def choose_glyphs(env: Mapping[str, str] = os.environ) -> Glyphs:
    """Return the ASCII signs if the variable WORKBENCH_ASCII in `env` is 1, and the Unicode signs
    if it is 0. Without the variable, return the ASCII signs only if the terminal's character set
    lacks block elements such as "▁". The console of Linux has block elements, but no Braille
    patterns."""
    unicode = Glyphs(braille=env.get("TERM") != "linux")
    asked = env.get("WORKBENCH_ASCII")
    if asked:
        return unicode if asked == "0" else ASCII
    if sys.platform == "win32":
        return unicode if locale.getpreferredencoding(False) == "cp65001" else ASCII
    return unicode if _locale_name(env).lower().replace("-", "").endswith("utf8") else ASCII


def _locale_name(env: Mapping[str, str]) -> str:
    """Return the name of the locale for characters when this process was started, such as "C" or
    "en_US.UTF-8".

    In the C locale Python sets its variable LC_CTYPE to UTF-8, which does not describe the terminal
    (PEP 538).
    """
    plain = ("", "C", "POSIX")
    if env.get("LC_ALL"):
        return env["LC_ALL"].partition("@")[0]
    language, characters = env.get("LANG", ""), env.get("LC_CTYPE", "")
    coerced = language in plain and characters in ("C.UTF-8", "C.utf8", "UTF-8")
    return (language if coerced or not characters else characters).partition("@")[0]


G = choose_glyphs()
_PLAIN = str.maketrans("“”„‘’…·≥≤±×→←─│┌┐└┘├┤°–—●○▲█▓░", '"""\'\'~->< x><-|++++|| --*o!##.')


def ascii_if_needed(text: str) -> str:
    """Return `text`. If the screen uses the ASCII signs, ASCII characters replace all others in
    it."""
    if G is not ASCII or text.isascii():
        return text
    from rich.cells import cell_len

    text = text.translate(_PLAIN)
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text)
