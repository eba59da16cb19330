"""The screen as text: what a person would read, one line per row, compared with plain files.

WORKBENCH_GRIDS=write pytest tests/tui      writes the files again; look at the diff before committing
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

from textual._context import visible_screen_stack

FOLDER = Path(__file__).resolve().parents[1] / "tui" / "grids"
# read at import: the tests' own environment is cleaned of WORKBENCH_*
WRITE = os.environ.get("WORKBENCH_GRIDS") == "write"


def grid(app: Any) -> str:
    """Return the characters of the screen without trailing blanks."""
    # what is behind a modal is drawn from this, which Textual sets when it draws; without it the
    # rows come out empty
    visible_screen_stack.set(app._background_screens)
    strips = app.screen._compositor.render_strips(app.size)
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips) + "\n"


def check(name: str, text: str) -> None:
    """Compare the screen with tests/tui/grids/NAME.txt."""
    path = FOLDER / f"{name}.txt"
    if WRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    assert path.exists(), (
        f"{path.name} is missing: WORKBENCH_GRIDS=write pytest tests/tui writes it"
    )
    before = path.read_text(encoding="utf-8")
    diff = "\n".join(
        difflib.unified_diff(before.splitlines(), text.splitlines(), "kept", "now", lineterm="")
    )
    assert before == text, f"{name} looks different:\n{diff}"
