"""Pictures of real renders: the application at a given size, after given keys, as SVG and PNG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.session.api import SessionApi

FONT = "DejaVu Sans Mono"
ZOOM = 1.0


async def take(
    session: SessionApi, size: tuple[int, int], keys: Sequence[str], path: Path, *, title: str = "workbench"
) -> list[Path]:
    """Draw `session` at `size` (columns, rows), press `keys` (Textual names), write `path`.svg and `path`.png.

    The PNG needs resvg_py and the DejaVu Sans Mono font; without resvg_py only the SVG is written. Returns the paths.
    """
    from workbench.tui.app import WorkbenchApp

    app = WorkbenchApp(session)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        svg = plain_fonts(app.export_screenshot(title=title))
    return write(svg, path)


def plain_fonts(svg: str) -> str:
    """Without the web font, which neither GitHub nor a renderer loads: a font that is on most machines."""
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg)
    return svg.replace("Fira Code", FONT)


def write(svg: str, path: Path) -> list[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [path.with_suffix(".svg")]
    made[0].write_text(svg, encoding="utf-8")
    try:
        import resvg_py
    except ImportError:
        return made
    data = resvg_py.svg_to_bytes(svg_string=svg, font_family=FONT, monospace_family=FONT)
    png = path.with_suffix(".png")
    png.write_bytes(bytes(data))
    return [*made, png]
