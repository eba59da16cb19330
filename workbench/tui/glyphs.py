"""Signs that carry the meaning before colour does. ASCII where the terminal's encoding has nothing better."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs. `levels`: heights of a sparkline cell, lowest first; the last means "at the limit"."""

    levels: str = "▁▂▃▄▅▆▇█"
    on: str = "●"
    off: str = "○"
    alert: str = "▲"
    more: str = "…"
    bar_full: str = "▓"
    bar_empty: str = "░"
    rule: str = "│"
    arrow: str = ">"
    at_least: str = "≥"
    plus_minus: str = "±"
    dot: str = "·"


ASCII = Glyphs(
    levels="_.:-=+*#",
    on="*",
    off="o",
    alert="!",
    more="~",
    bar_full="#",
    bar_empty=".",
    rule="|",
    at_least=">=",
    plus_minus="+-",
    dot="-",
)


def choose(env: Mapping[str, str] = os.environ) -> Glyphs:
    """ASCII when asked for (WORKBENCH_ASCII=1; 0: never) or when the locale cannot encode block elements."""
    asked = env.get("WORKBENCH_ASCII")
    if asked:
        return Glyphs() if asked == "0" else ASCII
    if sys.platform == "win32":
        return Glyphs() if locale.getpreferredencoding(False) == "cp65001" else ASCII
    return Glyphs() if _locale(env).lower().replace("-", "").endswith("utf8") else ASCII


def _locale(env: Mapping[str, str]) -> str:
    """The locale for characters as it was when this process began. In the C locale Python takes UTF-8 for itself and
    says so in LC_CTYPE (PEP 538), which tells nothing of the terminal."""
    plain = ("", "C", "POSIX")
    if env.get("LC_ALL"):
        return env["LC_ALL"].partition("@")[0]
    language, characters = env.get("LANG", ""), env.get("LC_CTYPE", "")
    coerced = language in plain and characters in ("C.UTF-8", "C.utf8", "UTF-8")
    return (language if coerced or not characters else characters).partition("@")[0]


G = choose()
_PLAIN = str.maketrans("“”„‘’…·≥≤±×→←─│┌┐└┘├┤°–—●○▲█▓░", '"""\'\'~->< x><-|++++|| --*o!##.')


def plain(text: str) -> str:
    """`text` in the signs that are drawn here: each that is not ASCII by one that is, where only those are."""
    if G is not ASCII or text.isascii():
        return text
    from rich.cells import cell_len

    text = text.translate(_PLAIN)
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text)
