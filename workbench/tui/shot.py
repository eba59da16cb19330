"""Pictures of real renders, as PNG or SVG."""

from __future__ import annotations

import re
from pathlib import Path

FONT = "DejaVu Sans Mono"


def plain_fonts(svg: str) -> str:
    """Without the web font, which neither GitHub nor a renderer loads: a font that is on most machines."""
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg)
    return svg.replace("Fira Code", FONT)


def write(svg: str, path: Path) -> Path:
    """PATH.png, drawn by resvg_py with the DejaVu Sans Mono font; PATH.svg where there is no resvg_py."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import resvg_py
    except ImportError:
        made = path.with_suffix(".svg")
        made.write_text(svg, encoding="utf-8")
        return made
    made = path.with_suffix(".png")
    made.write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=svg, font_family=FONT, monospace_family=FONT)))
    return made
