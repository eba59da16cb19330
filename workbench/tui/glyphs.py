"""Signs that carry the meaning before colour does. ASCII where the terminal's encoding has nothing better."""

from __future__ import annotations

import locale
import os
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


def choose() -> Glyphs:
    """ASCII when asked for (WORKBENCH_ASCII=1) or when the locale cannot encode block elements."""
    if os.environ.get("WORKBENCH_ASCII"):
        return ASCII
    encoding = locale.getpreferredencoding(False).lower().replace("-", "")
    return Glyphs() if encoding in ("utf8", "cp65001") or os.environ.get("PYTHONUTF8") == "1" else ASCII


G = choose()
